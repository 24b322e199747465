"""A bundle has everything about a broker, except secrets; it works without a broker, too."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.cli import main
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.ops import cluster_facts
from plog.ops.bundle import Bundle, BundleError, Source, collect, default_name, unused_path
from plog.ops.pages.address import page_from
from plog.ops.secrets import HIDDEN, Masker
from plog.types import TopicPartition
from tests.handlers.wire import create_topic, speak
from tests.ops.test_doctor import unit  # noqa: F401 - a fixture
from tests.servers import BrokerProcess, free_port

SECRETS = {
    "properties": "sesame-of-the-file",
    "jaas": "sesame in a jaas; config",
    "commented": "sesame-in-a-comment",
    "override": "sesame-of-an-override",
    "variable": "sesame-of-a-variable",
    "other variable": "sesame-of-another-program",
    "logged": "sesame-of-a-log-line",
    "logged json": "sesame of json",
    "url": "sesame-of-a-proxy",
    "url with @": "sesame@in@a-url",
    "url with /": "sesame/in-a-url",
    "url without a user": "sesametokenofaurl",
    "bearer": "sesame.of.a.bearer",
    "basic": "c2VzYW1lOmJhc2lj",
    "bare bearer": "sesame.of.a.bare.bearer",
    "pwd": "sesame-of-pwd",
    "option": "sesame-of-an-option",
    "sentence": "sesame-in-a-sentence",
    "jaas user": "alices-sesame",
    "logged jaas user": "bobs-sesame",
    "pem": "c2VzYW1lIG9mIGEga2V5",
    "short": "zq7x",
}
JAAS = "org.example.PlainLoginModule required username='u' password=\"{}\""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with secrets in its properties, its variables and on its command line."""
    directory = tmp_path_factory.mktemp("bundled")
    variables = {
        "PLOG_SSL_KEY_PASSWORD": SECRETS["variable"],
        "DB_PASSWORD": SECRETS["other variable"],
        "CACHE_PASSWORD": SECRETS["short"],
    }
    made = BrokerProcess(directory, environment=variables)
    made.overrides |= {
        "metrics.listener": f"127.0.0.1:{free_port()}",
        "ssl.keystore.password": SECRETS["override"],
    }
    with made:
        with Admin(made.bootstrap) as admin:
            admin.create_topic("flights", partitions=3)
        (directory / "server.properties").write_text(
            f"log.dirs={made.log_dirs[0]}\nlisteners=PLAINTEXT://{made.bootstrap}\n"
            f"metrics.listener={made.overrides['metrics.listener']}\n"
            f"sasl.jaas.config={JAAS.format(SECRETS['jaas'])}"
            f' user_alice="{SECRETS["jaas user"]}";\n'
            f"listener.name.x.ssl.truststore.password: {SECRETS['properties'][:8]}\\\n"
            f"   {SECRETS['properties'][8:]}\n"
            f"#ssl.keystore.password={SECRETS['commented']}\n"
        )
        yield made


def logged(directory: Path) -> Path:
    path = directory / "kept.log"
    path.write_text(
        "first\n"
        f"INFO x: sasl.jaas.config = {JAAS.format(SECRETS['logged'])};\n"
        + json.dumps({"message": f'password="{SECRETS["logged json"]}"'})
        + f"\nvia http://user:{SECRETS['url']}@proxy:3128/\n"
        f"via http://user:{SECRETS['url with @']}@proxy and user:{SECRETS['url with /']}@proxy\n"
        f"clone https://{SECRETS['url without a user']}@host/x.git\n"
        f"Authorization: Bearer {SECRETS['bearer']}\n"
        f"{{'Authorization': 'Basic {SECRETS['basic']}'}}\n"
        f"sent Bearer {SECRETS['bare bearer']}\n"
        f"pwd={SECRETS['pwd']}\n"
        f"plogctl --password {SECRETS['option']} --verbose\n"
        f"alice used the password {SECRETS['sentence']} and {SECRETS['jaas user']}\n"
        f'user_bob="{SECRETS["logged jaas user"]}"\n'
        f"-----BEGIN PRIVATE KEY-----\n{SECRETS['pem']}\n-----END PRIVATE KEY-----\n"
        f"again {SECRETS['properties']} and {SECRETS['override']}\n"
        f"mysql -p{SECRETS['short']} at a%20{SECRETS['short']}, \\n{SECRETS['short']}."
        f" \x1b[31m{SECRETS['short']}\x1b[0m\n"
        f"and the broker's {SECRETS['other variable']}, {SECRETS['variable']}\nlast\n"
    )
    return path


def contents(bundle: Bundle, path: Path) -> dict[str, bytes]:
    bundle.write(path)
    with tarfile.open(path) as archive:
        archive.extractall(path.parent, filter="data")
    directory = path.parent / path.name.removesuffix(".tar.gz")
    return {one.name: one.read_bytes() for one in directory.iterdir()}


def test_bundle_of_a_running_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    source = Source(
        str(broker.directory / "server.properties"),
        (f"ssl.key.password={SECRETS['override']}",),
        {"PLOG_SSL_KEYSTORE_PASSWORD": SECRETS["variable"]},
        log=str(logged(tmp_path)),
        log_lines=19,
    )
    bundle = collect(source)
    found = contents(bundle, tmp_path / default_name())
    assert [part for part in bundle.parts if part.error] == []
    assert set(found) == {"README.txt", *(part.name for part in bundle.parts)}
    everything = b"".join(found.values())
    assert [what for what, secret in SECRETS.items() if secret.encode() in everything] == []
    assert HIDDEN.encode() in found["log.txt"]
    assert found["log.txt"].endswith(b"\nlast\n")
    assert b"first" not in found["log.txt"]  # only the last lines

    topics = json.loads(found["topics.json"])
    assert (topics["count"], topics["partitions"], topics["topics"][0]["name"]) == (1, 3, "flights")
    process = json.loads(found["process.json"])
    assert process["id"] == broker.pid
    assert len(process["threads"]) > 3
    assert {"S", "R", "D"} >= {one["state"] for one in process["threads"]}
    assert any("Max open files" in line for line in process["limits"])
    assert process["variables"]["PLOG_SSL_KEY_PASSWORD"] == HIDDEN
    assert "DB_PASSWORD" not in process["variables"]
    assert b"plog_build_info" in found["metrics.txt"]
    assert json.loads(found["groups.json"])["count"] == 0
    (used,) = json.loads(found["broker-settings.json"]).values()
    assert used["metrics.listener"]["value"] == broker.overrides["metrics.listener"]
    settings = json.loads(found["settings.json"])
    assert settings["given"]["listeners"] == f"PLAINTEXT://{broker.bootstrap}"
    assert settings["effective"]["num.partitions"] == "1"
    assert (
        f"5: listener.name.x.ssl.truststore.password={HIDDEN}".encode()
        in (found["settings-file.txt"])
    )
    assert b"broker 0 of cluster" in found["doctor.txt"]
    assert json.loads(found["disks.json"])[0]["bytes"]["flights-0"] >= 0
    assert json.loads(found["versions.json"])["libraries"]["click"]
    assert json.loads(found["host.json"])["proc"]["mounts"]


OF_THE_HOST = {
    *("settings-file.txt", "settings.json", "versions.json", "host.json", "variables.json"),
    *("disks.json", "process.json", "log.txt"),
}


def test_bundle_of_another_host_has_the_parts_of_the_protocol(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    bundle = collect(Source(bootstrap=broker.bootstrap))
    failed = {part.name: part.error for part in bundle.parts if part.error}
    assert failed.keys() == OF_THE_HOST
    (reason,) = set(failed.values())
    assert reason == "they are on the broker's host: run plog bundle PROPERTIES there"
    assert b"plog_build_info" in bundle.contents["metrics.txt"]
    doctor = bundle.contents["doctor.txt"].decode()
    assert f" answers at {broker.bootstrap}" in doctor
    assert "default settings" not in doctor
    # Settings or a log say that this host is the broker's.
    source = Source(bootstrap=broker.bootstrap, overrides=(f"log.dirs={tmp_path}/none",))
    failed = {part.name: part.error for part in collect(source).parts if part.error}
    assert failed.keys() == {"settings-file.txt", "process.json", "log.txt"}
    bundle = collect(Source(bootstrap=broker.bootstrap, log=str(logged(tmp_path))))
    assert bundle.contents["log.txt"].endswith(b"\nlast\n")


def test_page_of_another_host_is_not_this_hosts(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's listener is a loopback address; a page of another broker is here."""
    elsewhere = f"2130706433:{broker.port}"  # 127.0.0.1, as an address that is not a loopback's
    bundle = collect(Source(bootstrap=elsewhere))
    (reason,) = [part.error for part in bundle.parts if part.name == "metrics.txt"]
    listener = broker.overrides["metrics.listener"]
    assert reason == f"the page at {listener} can be read on the broker's own host only"
    assert f"metrics         {reason}" in bundle.contents["doctor.txt"].decode()
    # An earlier address that does not answer does not hide the page.
    bundle = collect(Source(bootstrap=f"127.0.0.1:{free_port()},{broker.bootstrap}"))
    assert b"plog_build_info" in bundle.contents["metrics.txt"]


@pytest.mark.parametrize(
    ("listener", "host", "address"),
    [
        ("127.0.0.1:9095", "plog1", ""),
        ("localhost:9095", "10.0.0.1", ""),
        ("[::1]:9095", "10.0.0.1", ""),
        ("", "plog1", ""),
        ("0.0.0.0:9095", "plog1", "plog1:9095"),
        (":9095", "plog1", "plog1:9095"),
        ("[::]:9095", "2001:db8::1", "[2001:db8::1]:9095"),
        ("10.0.0.2:9095", "plog1", "10.0.0.2:9095"),
        ("127.0.0.1:9095", "localhost", "127.0.0.1:9095"),
        ("0.0.0.0:9095", "::1", "[::1]:9095"),
    ],
)
def test_page_is_reachable_from_the_clients_host(listener: str, host: str, address: str) -> None:
    page = page_from(listener, host)
    assert page.address == address
    assert (page.reason == "") is (address != "")


def test_bundle_waits_once_for_a_broker_that_hangs(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plog.ops.doctor.running_broker.WAIT_MS", 200)
    monkeypatch.setattr("plog.ops.cluster_facts.WAIT_MS", 200)
    monkeypatch.setattr("plog.ops.bundle.WAIT_S", 0.2)
    with broker.suspended():
        bundle = collect(Source(str(broker.directory / "server.properties")))
    failed = {part.name: part.error for part in bundle.parts if part.error}
    assert set(failed) == {
        *("metrics.txt", "cluster.json", "broker-settings.json", "topics.json"),
        *("groups.json", "transactions.json", "log.txt"),
    }
    assert "did not answer" in failed["cluster.json"]
    assert failed["groups.json"] == failed["cluster.json"]
    process = json.loads(bundle.contents["process.json"])
    assert {one["state"] for one in process["threads"]} == {"T"}
    assert b"the running broker does not answer" in bundle.contents["doctor.txt"]


def test_wrong_advertised_address_hides_no_part(tmp_path: Path) -> None:
    """A name that does not exist, and an address at which nothing listens."""
    made = BrokerProcess(tmp_path)
    other = free_port()
    made.overrides |= {
        "listeners": f"PLAINTEXT://{made.bootstrap},CLOSED://127.0.0.1:{other}",
        "advertised.listeners": f"PLAINTEXT://plog.invalid:9092,CLOSED://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLOSED:PLAINTEXT",
    }
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in made.overrides.items()))
    with made:
        with closing(speak(made.port)) as client:
            create_topic(client, "flights", partitions=3)
        with cluster_facts.reach(made.bootstrap) as reached, GroupAdmin(reached) as groups:
            groups.commit("readers", {TopicPartition("flights", 0): 0})
        bundles = [
            collect(Source(str(path))),
            collect(Source(bootstrap=f"127.0.0.1:{other}")),
            collect(Source(bootstrap=f"127.0.0.1:{free_port()},{made.bootstrap}")),
        ]
    for bundle in bundles:
        found = bundle.contents
        failed = {part.name for part in bundle.parts if part.error}
        assert failed <= OF_THE_HOST | {"metrics.txt"}
        assert json.loads(found["cluster.json"])["features"]
        (settings,) = json.loads(found["broker-settings.json"]).values()
        assert settings["num.partitions"]["value"] == "1"
        names = [one["name"] for one in json.loads(found["topics.json"])["topics"]]
        assert "flights" in names
        (group,) = json.loads(found["groups.json"])["groups"]
        assert (group["group_id"], group["lag"]["records"]) == ("readers", 0)
        assert json.loads(found["transactions.json"])["count"] == 0
        assert b"cannot be reached from here" in found["doctor.txt"]
    (broker,) = json.loads(bundles[0].contents["cluster.json"])["brokers"]
    assert broker["host"] == "plog.invalid"


def test_bundle_without_a_broker_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path}/data\nlog.retntion.ms=1\nssl.key.password=sesame\n")
    bundle = collect(Source(str(path)))
    found = contents(bundle, tmp_path / "b.tar.gz")
    failed = {part.name: part.error for part in bundle.parts if part.error}
    assert failed["topics.json"] == "the settings are wrong: doctor.txt has the reasons"
    assert failed["log.txt"].startswith("no systemd unit uses these settings")
    assert b"did you mean `log.retention.ms`" in found["doctor.txt"]
    assert b"3: ssl.key.password=[hidden]" in found["settings-file.txt"]
    for name, reason in failed.items():
        assert f"{name}" in found["README.txt"].decode()
        assert f"NOT COLLECTED: {reason}" in found["README.txt"].decode()


@pytest.mark.usefixtures("unit")
def test_log_of_a_unit_is_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journalctl"
    journal.write_text('#!/bin/sh\necho "$@"; echo "INFO password=sesame"; exit "$STATUS"\n')
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path}/data\n")
    monkeypatch.setenv("STATUS", "0")
    asked, line = collect(Source(str(path), log_lines=3)).contents["log.txt"].decode().splitlines()
    assert asked == "--unit plog.service --lines 3 --no-pager --output short-iso-precise"
    assert line == "INFO password=[hidden]"
    monkeypatch.setenv("STATUS", "1")
    failed = {part.name: part.error for part in collect(Source(str(path))).parts}
    assert failed["log.txt"].startswith("journalctl ended with status 1")


def test_bundle_never_overwrites_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    Bundle("now", contents={"a": b"1"}).write(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(BundleError, match="exists: name another file with --output"):
        Bundle("now").write(path)
    assert path.read_bytes() == before
    with pytest.raises(BundleError, match="No such file or directory"):
        Bundle("now").write(tmp_path / "none" / "b.tar.gz")


def test_two_bundles_of_one_second_have_two_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20130704T120000Z")
    bundle = Bundle("2013-07-04T12:00:00Z")
    paths = [unused_path(tmp_path)]
    bundle.write(paths[0])
    paths.append(unused_path(tmp_path))
    bundle.write(paths[1])
    assert paths[0].name.endswith("-20130704T120000Z.tar.gz")
    assert paths[1].name.endswith("-20130704T120000Z-2.tar.gz")
    assert unused_path(tmp_path).name.endswith("-20130704T120000Z-3.tar.gz")


def test_bundle_of_a_mistyped_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bundle", str(tmp_path / "typo.properties"), "--output", str(tmp_path)])
    error = f"plog: {tmp_path}/typo.properties: No such file or directory\n"
    assert (ended.value.code, capsys.readouterr().err) == (1, error)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("retention.ms=5", "retention.ms=5"),
        ("ssl.key.password=x y z", "ssl.key.password=[hidden]"),
        ("a PASSWORD: x", "a PASSWORD: [hidden]"),
        ('{"client_secret": "x", "b": 1}', '{"client_secret": "[hidden]", "b": 1}'),
        ('at 1 {"a": "pwd=x y", "b": 1.50}', 'at 1 {"a": "pwd=[hidden]", "b": 1.5}'),
        ('at 1 {"b":1.50,"c":"no secrets"}', 'at 1 {"b":1.50,"c":"no secrets"}'),
        ('token: {"b": 1}', "token: [hidden]"),
        ('{"token": "x", "b"', '{"token": [hidden]'),
        ('{"Authorization": "Basic x", "b": 1}', '{"Authorization": "[hidden]", "b": 1}'),
        ('{\\"password\\": \\"x\\"}', '{\\"password\\": [hidden]'),
        ("ssl.truststore.location=/etc/x", "ssl.truststore.location=[hidden]"),
        ("sasl.jaas.config=a required b='c';\nnext", "sasl.jaas.config=[hidden]\nnext"),
        ("http://a:b@c/ http://a:b/", "http://[hidden]@c/ http://a:b/"),
        ("http://a:b@c@d/e?f", "http://[hidden]@d/e?f"),
        ("http://a:b/c@d", "http://[hidden]@d"),
        ("https://token@d", "https://[hidden]@d"),
        ("proxy=a:b/c@d:1", "proxy=[hidden]@d:1"),
        ("1@a:9093,2@b:9093", "1@a:9093,2@b:9093"),
        ("Proxy-Authorization: Basic eDp5", "Proxy-Authorization: [hidden]"),
        ("CLUSTER_AUTHORIZATION_FAILED: no", "CLUSTER_AUTHORIZATION_FAILED: no"),
        ("a bearer abcdefgh.i, then", "a bearer [hidden] then"),
        ("db.pwd=x", "db.pwd=[hidden]"),
        ("x --password hunter2 -v", "x --password [hidden] -v"),
        ("x --api-key 'a b' -v", "x --api-key [hidden] -v"),
        ("the password is hunter2 now", "the password is [hidden] now"),
        ('user_alice="a b" c', "user_alice=[hidden] c"),
        ("x.LoginModule required a='b';", "x.LoginModule required [hidden]"),
        ("invalid token '='", "invalid token '='"),
    ],
)
def test_secrets_are_masked_by_their_names(text: str, shown: str) -> None:
    assert Masker().text(text) == shown


def test_secrets_among_the_words_of_a_command_are_masked() -> None:
    words = ["plog", "--password", "hunter2", "--secret-file", "", "-v", "--log", "x"]
    shown = ["plog", "--password", HIDDEN, "--secret-file", "", "-v", "--log", "x"]
    assert Masker().json({"cmdline": words}) == {"cmdline": shown}


def test_values_of_jaas_are_learnt_except_names() -> None:
    masker = Masker()
    value = """Plain required username="admin" password='adminpw' serviceName="kafka"
        user_alice="alicepw1" user_bob=bobspw1 other="a \\"quoted\\" one" debug="true";"""
    masker.learn("listener.name.x.sasl.jaas.config", value)
    text = "admin kafka true adminpw alicepw1 bobspw1 required"
    assert masker.text(text) == f"admin kafka true {HIDDEN} {HIDDEN} {HIDDEN} required"
    assert masker.text('a "quoted" one') == HIDDEN
    assert masker.text('a \\"quoted\\" one') == HIDDEN


def test_directory_of_a_shell_is_no_secret() -> None:
    masker = Masker()
    masker.learn("PWD", "/opt/plog")
    masker.learn("DB_PWD", "sesame")
    assert masker.text("/opt/plog sesame") == f"/opt/plog {HIDDEN}"


def test_long_lines_are_masked_in_a_short_time() -> None:
    """A search that begins at each sign of a long word would take minutes."""
    for text in ("x" * 100_000, "a:" * 20_000, "://" * 20_000, "{" * 100_000):
        assert Masker().text(text) == text


@pytest.mark.parametrize("secret", ["pass", "a.b1", "secret7", "sés4", "$x_y", "-pw-"])
def test_short_known_secret_is_masked_as_a_word(secret: str) -> None:
    masker = Masker()
    masker.learn("db.password", secret)
    for before, after in (
        *(("", ""), ("=", ""), ("u:", "@h"), ("'", "'"), ("[", "]"), ("/", "/"), ("a.", ".b")),
        *(("-p", " -h"), ("\\n", "\\n"), ("\\u0020", ","), ("%3A", "%3D"), ("\\x1b", "\\x1b")),
        *(("\x1b[1;31m", "\x1b[0m"), ("x\n", "\nx"), ("é ", " é")),
    ):
        found = masker.text(f"the {before}{secret}{after} it")
        assert secret not in found
        assert HIDDEN in found
    if secret[0].isalnum():
        kept = f"x{secret} {secret}age by{secret}ed é{secret} {secret}_file"
        assert masker.text(kept) == kept


@pytest.mark.parametrize("secret", ["password", "password-of-12"])
def test_long_known_secret_is_masked_inside_of_words(secret: str) -> None:
    masker = Masker()
    masker.learn("db.pwd", secret)
    assert masker.text(f"x{secret}s") == f"x{HIDDEN}s"


def test_known_secrets_are_masked_everywhere_and_short_ones_by_name_only() -> None:
    masker = Masker()
    masker.learn("ssl.key.password", 'a "quoted" one')
    masker.learn("sasl.jaas.config", "x required password=opensesame user=u;")
    masker.learn("x.password", "1")
    masker.learn("ssl.client.auth", "required")
    assert masker.text('1 a "quoted" one required') == "1 [hidden] required"
    assert masker.text(json.dumps('a "quoted" one')) == '"[hidden]"'
    assert masker.text("see opensesame") == "see [hidden]"
    assert masker.json({"x.password": "1", "list": ["opensesame", 1, None]}) == {
        "x.password": HIDDEN,
        "list": [HIDDEN, 1, None],
    }
