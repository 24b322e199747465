"""topics, produce, consume, configs: what they print, how they end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import TIMEOUT_S, as_shells_tell, command_line, environment
from tests.servers import free_port

COMMANDS = [
    *("server", "topics", "produce", "consume", "transactions", "configs", "perf"),
    *("log-dirs", "dump-log"),
]
SUBCOMMANDS = [
    *(["topics", name] for name in ["list", "describe", "create", "add-partitions", "delete"]),
    ["topics", "delete-records"],
    *(["configs", name] for name in ["describe", "set", "reset"]),
    *(["perf", name] for name in ["produce", "consume", "latency"]),
]


def error_of(done) -> str:
    """The one line that an error is told in."""
    (line,) = done.stderr.decode().splitlines()
    return line


@pytest.mark.parametrize(
    "command", [[], *([c] for c in COMMANDS), *SUBCOMMANDS], ids=lambda c: " ".join(c) or "plog"
)
def test_help_says_what_a_command_does(call, command):
    text = call(*command, "--help").stdout.decode()
    assert "Usage: plog" in text
    assert "--help" in text
    assert len(text.splitlines()) > 5


def test_topic_is_created_listed_described_and_deleted(call, broker):
    created = call(
        "topics", "create", "life", "--partitions", 3, "--config", "retention.ms=1000000"
    )
    assert created.stdout == b"Created topic life.\n"
    listed = json.loads(call("topics", "list", "--json").stdout)
    assert {"topic": "life", "partitions": 3, "replicas": 1} in listed
    assert b"life" in call("topics", "list").stdout
    call("produce", "life", "--partition", 1, stdin=b"a\nb\n")
    told = json.loads(call("topics", "describe", "life", "--json").stdout)
    assert told["topic"] == "life"
    assert len(told["topic_id"]) == 22
    second = told["partitions"][1]
    assert second.pop("bytes") > 0
    assert second == {
        "partition": 1,
        "leader": 0,
        "epoch": 0,
        "replicas": [0],
        "isr": [0],
        "start": 0,
        "end": 2,
    }
    table = call("topics", "describe", "life").stdout.decode()
    assert told["topic_id"] in table
    added = call("topics", "add-partitions", "life", 5, "--json")
    assert json.loads(added.stdout) == {"topic": "life", "partitions": 5}
    removed = call("topics", "delete-records", "life", 1, -1, "--yes", "--json")
    assert json.loads(removed.stdout)["log_start_offset"] == 2
    for answer in (b"", b"n\n"):
        refused = call("topics", "delete", "life", stdin=answer, status=1)
        assert refused.stdout == b""
        assert refused.stderr.decode().endswith("Not deleted. Pass --yes to skip this question.\n")
    assert b"Deleted" in call("topics", "delete", "life", stdin=b"y\n").stdout
    assert "life" not in {t["topic"] for t in json.loads(call("topics", "list", "--json").stdout)}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["topics", "describe", "nowhere"], "'nowhere' does not exist"),
        (["topics", "delete", "nowhere", "--yes"], "nowhere"),
        (["topics", "add-partitions", "nowhere", 3], "nowhere"),
        (["topics", "delete-records", "nowhere", 0, 1, "--yes"], "nowhere"),
        (["topics", "create", "a/b"], "a/b"),
        (
            ["topics", "create", "t", "--replication-factor", 5],
            "a replication factor of 5 needs as many live brokers, and there is only 1",
        ),
        (["topics", "create", "t", "--config", "nosuch=1"], "nosuch"),
        (["topics", "create", "t", "--config", "retention.ms=x"], "retention.ms"),
        (["topics", "create", "t", "--config", "retention.m=1"], "did you mean `retention.ms`?"),
        (["produce", "a b"], "invalid topic name"),
        (["consume", "nowhere"], "plog topics list"),
        (["configs", "describe", "topic", "nowhere"], "nowhere"),
        (["configs", "describe", "broker", "77"], "no broker has id '77'; the cluster has 0"),
        (["configs", "describe", "broker", "x"], "no broker has id 'x'"),
        (["configs", "set", "broker", "0", "log.dirs=/x"], "log.dirs"),
    ],
)
def test_error_is_one_line_and_status_1(call, arguments, text):
    line = error_of(call(*arguments, stdin=b"x\n", status=1))
    assert line.startswith("plog: ")
    assert text in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["topics", "create"],
        ["topics", "create", "t", "--config", "novalue"],
        ["topics", "create", "t", "--config", "a=1", "--config", "a=2"],
        ["topics", "create", "t", "--partitions", "0"],
        ["produce", "t", "--header", "novalue"],
        ["produce", "t", "--key-separator", ""],
        ["produce", "t", "/nowhere/file"],
        ["consume", "t", "--max", "-1"],
        ["configs", "set", "topic", "t", "novalue"],
        ["configs", "set", "nosuch", "t", "a=b"],
        ["dump-log", "/nowhere/00000000000000000000.log"],
        ["top", "--every", "0"],
    ],
)
def test_wrong_use_is_status_2_with_the_usage(call, arguments):
    text = call(*arguments, status=2).stderr.decode()
    assert text.startswith("Usage: plog")
    assert text.splitlines()[-1].startswith("plog: ")


@pytest.mark.parametrize(
    ("arguments", "status", "error", "text"),
    [
        (["topics", "describe", "nowhere"], 1, "UnknownTopicOrPartition", "plog topics list"),
        (["topics", "create", "t", "--config", "nosuch=1"], 1, "InvalidConfig", "nosuch"),
        (["topics", "create"], 2, "UsageError", "'TOPIC...'"),
        (["topics", "create", "t", "--nosuch"], 2, "UsageError", "--nosuch"),
        (["top", "--metrics", "127.0.0.1:1"], 1, "Error", "no metrics page at"),
    ],
)
def test_error_is_json_where_json_is_asked_for(call, arguments, status, error, text):
    done = call(*arguments, "--json", status=status)
    assert done.stdout == b""
    told = json.loads(error_of(done))
    assert set(told) == {"error", "message"}
    assert told["error"] == error
    assert text in told["message"]
    assert not told["message"].startswith("plog: ")


@pytest.mark.parametrize("command", [[], ["topics"], ["configs"], ["perf"]])
def test_no_command_shows_those_there_are(call, command):
    assert b"Commands:" in call(*command, status=2).stderr


def test_metrics_page_that_is_not_there_is_one_line(call):
    line = error_of(call("top", "--metrics", f"127.0.0.1:{free_port()}", status=1))
    assert line.startswith("plog: no metrics page at 127.0.0.1:")


def test_everything_that_is_wrong_with_configs_is_named(call, topic):
    changes = ["retention.ms=x", "nosuch=1", "cleanup.policy+=nope", "segment.bytes=y"]
    line = error_of(call("configs", "set", "topic", topic, *changes, status=1))
    for key in ("retention.ms: ", "nosuch: ", "cleanup.policy: ", "segment.bytes: "):
        assert key in line
    text = call("configs", "set", "topic", topic, "a", "b=1", "c", status=2).stderr.decode()
    assert "'a', 'c' are not KEY=VALUE" in text


def test_existing_topic_is_an_error_unless_it_may_be_there(call, topic):
    assert "already exists" in error_of(call("topics", "create", topic, status=1))
    told = call("topics", "create", topic, "--if-not-exists", "--json").stdout
    assert json.loads(told) == {"topic": topic, "created": False}
    told = call("topics", "create", "never-made", "--dry-run", "--json").stdout
    assert json.loads(told) == {"topic": "never-made", "created": False}
    assert "never-made" not in call("topics", "list").stdout.decode()


@pytest.mark.parametrize("arguments", [["topics", "list"], ["produce", "t"], ["consume", "t"]])
def test_no_broker_is_one_line_that_says_what_to_do(run, arguments):
    port = free_port()
    done = run(*arguments, "-b", f"127.0.0.1:{port}", stdin=b"x\n", status=1)
    line = error_of(done)
    assert f"127.0.0.1:{port}" in line
    assert "refused" in line
    assert "plog server" in line


def test_lines_come_back_as_they_were_written(run, topic):
    lines = b"".join(b"line %d\n" % n for n in range(5000))
    written = run("produce", topic, stdin=lines)
    assert written.stdout == b""
    assert written.stderr == b"Wrote 5000 records to %s.\n" % topic.encode()
    read = run("consume", topic, "--exit-at-end").stdout
    assert sorted(read.splitlines()) == sorted(lines.splitlines())


def test_keys_headers_and_bytes_survive(call, topic, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"k1\tv1\nno key\n\tempty key\r\nk2\t\xff\xfe\nlast\t")
    told = call(
        "produce", topic, source, "--key-separator", "\t", "--header", "a=1", "--header", "a=ü",
        "--missing-key", "null", "--partition", 0, "--compression", "zstd", "--json",
    )  # fmt: skip
    assert json.loads(told.stdout) == {"topic": topic, "records": 5}
    plain = call("consume", topic, "--exit-at-end", "--keys").stdout
    assert plain == b"k1\tv1\nnull\tno key\n\tempty key\nk2\t\xff\xfe\nlast\t\n"
    found = [
        json.loads(line)
        for line in call("consume", topic, "--exit-at-end", "--json").stdout.splitlines()
    ]
    assert [record["offset"] for record in found] == list(range(5))
    assert {record["partition"] for record in found} == {0}
    assert [record["key"] for record in found] == ["k1", None, "", "k2", "last"]
    assert found[3]["value"] == {"base64": "//4="}
    assert found[0]["headers"] == [["a", "1"], ["a", "ü"]]


def test_consume_begins_where_it_is_told(call, topic):
    call("produce", topic, "--partition", 0, stdin=b"".join(b"%d\n" % n for n in range(100)))
    call("produce", topic, "--partition", 1, stdin=b"other\n")

    def consume(*arguments, status=0):
        done = call("consume", topic, *arguments, "--exit-at-end", status=status)
        return done.stdout.decode().split()

    assert consume("--partition", 0) == [str(n) for n in range(100)]
    assert consume("--partition", 0, "--from", 95) == [str(n) for n in range(95, 100)]
    # Past the other's end, so nothing of it.
    assert consume("--from", 98) == ["98", "99"]
    assert consume("--from", 10**12) == []
    assert consume("--from", "latest") == []
    assert sorted(consume("--from", "@2001-01-01")) == sorted(consume())
    assert consume("--from", "@2101-01-01T00:00:00+02:00") == []
    assert consume("--partition", 0, "--max", 3) == ["0", "1", "2"]
    assert consume("--max", 0) == []
    line = call("consume", topic, "--partition", 0, "--from", 50, "--max", 1, "--json").stdout
    timestamp = json.loads(line)["timestamp"]
    at = consume("--partition", 0, "--from", f"@{timestamp}", "--max", 1)
    assert int(at[0]) <= 50
    assert consume("--from", "yesterday", status=2) == []
    assert consume("--from", "@yesterday", status=2) == []
    assert consume("--from", "9" * 5000, status=2) == []
    assert consume("--from", "@" + "9" * 5000, status=2) == []
    assert consume("--partition", 9, status=1) == []


def test_reader_that_goes_ends_consume_quietly(run, topic, broker):
    run("produce", topic, stdin=b"".join(b"%d\n" % n for n in range(50_000)))
    for extra in ([], ["--json"]):
        consuming = subprocess.Popen(
            command_line("consume", topic, *extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(broker.bootstrap),
        )
        assert consuming.stdout is not None
        assert consuming.stdout.readline()
        consuming.stdout.close()
        assert consuming.stderr is not None
        assert consuming.stderr.read() == b""
        consuming.stderr.close()
        consuming.wait(TIMEOUT_S)


@pytest.mark.parametrize("arguments", [["consume"], ["produce"]])
def test_interrupt_ends_a_command_quietly(run, topic, broker, arguments):
    run("produce", topic, stdin=b"first\n")
    running = subprocess.Popen(
        command_line(*arguments, topic),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(broker.bootstrap),
    )
    assert running.stdout is not None
    assert running.stdin is not None
    if arguments == ["consume"]:
        assert running.stdout.readline() == b"first\n"
    else:
        # It has read this line once the topic has it.
        running.stdin.write(b"second\n" * 100_000)
        running.stdin.flush()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=TIMEOUT_S)
    assert errors.strip() == b""  # but for the line break behind ^C
    assert as_shells_tell(running.returncode) == 130


def test_consume_waits_for_new_records(run, topic, broker):
    consuming = subprocess.Popen(
        command_line("consume", topic, "--max", 2),
        stdout=subprocess.PIPE,
        env=environment(broker.bootstrap),
    )
    assert consuming.stdout is not None
    for line in (b"one\n", b"two\n"):
        run("produce", topic, stdin=line)
        assert consuming.stdout.readline() == line
    assert consuming.wait(TIMEOUT_S) == 0
    consuming.stdout.close()


def test_produce_stops_at_a_record_that_is_refused(run):
    run("topics", "create", "compacted", "--config", "cleanup.policy=compact")
    done = run("produce", "compacted", stdin=b"without a key\n" * 10, status=1)
    assert "key" in error_of(done)


def test_progress_is_shown_on_a_terminal_only(run, topic, broker, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x\n" * 20_000)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command_line("produce", topic, source),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env={**environment(broker.bootstrap), "TERM": "xterm"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # how a terminal says that nobody is there any more
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait(TIMEOUT_S) == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown)
    assert re.search(rb"[0-9,]+ records .*\r", plain)
    assert b"Wrote 20000 records" in plain


def test_configs_are_described_set_and_reset(call, topic):
    def described(*arguments):
        text = call("configs", "describe", "topic", topic, "--json", *arguments).stdout
        return {entry["key"]: entry for entry in json.loads(text)}

    assert described() == {}
    assert "retention.ms" in described("--all")
    assert described("--all", "--doc")["retention.ms"]["documentation"]
    told = call("configs", "set", "topic", topic, "retention.ms=5000", "cleanup.policy+=compact")
    assert b"changed retention.ms, cleanup.policy" in told.stdout
    assert described()["retention.ms"] == {
        "key": "retention.ms",
        "value": "5000",
        "source": "topic",
        "read_only": False,
    }
    assert described()["cleanup.policy"]["value"] == "delete,compact"
    call("configs", "set", "topic", topic, "cleanup.policy-=delete")
    assert described()["cleanup.policy"]["value"] == "compact"
    assert "nope" in error_of(call("configs", "set", "topic", topic, "retention.ms=nope", status=1))
    call("configs", "set", "topic", topic, "retention.ms=6000", "--dry-run")
    assert described()["retention.ms"]["value"] == "5000"
    told = call("configs", "reset", "topic", topic, "retention.ms", "cleanup.policy", "--json")
    assert json.loads(told.stdout)["keys"] == ["retention.ms", "cleanup.policy"]
    assert described() == {}


def test_group_configs_are_described_set_and_reset(call):
    def described(*arguments):
        text = call("configs", "describe", "group", "billing", "--json", *arguments).stdout
        return {entry["key"]: (entry["value"], entry["source"]) for entry in json.loads(text)}

    key = "consumer.session.timeout.ms"
    assert described() == {}
    table = call("configs", "describe", "group", "billing").stdout
    assert table == b"All settings are at their defaults.\n"
    assert described("--all")[key] == ("45000", "default")
    told = call("configs", "set", "group", "billing", f"{key}=50000")
    assert told.stdout == b"Group billing: changed consumer.session.timeout.ms.\n"
    assert told.stderr == b""
    assert described() == {key: ("50000", "group")}
    refused = call("configs", "set", "group", "billing", f"{key}=60001", status=1)
    assert "60001 is above group.consumer.max.session.timeout.ms" in error_of(refused)
    told = call("configs", "reset", "group", "billing", key)
    assert told.stdout == b"Group billing: reset consumer.session.timeout.ms.\n"
    assert described() == {}


def test_log_levels_are_described_set_and_reset(call):
    def level(logger):
        rows = json.loads(call("configs", "describe", "broker-logger", 0, "--json").stdout)
        return {row["logger"]: row["level"] for row in rows}[logger]

    assert level("plog.network.control_plane") == level("root") == "INFO"
    done = call("configs", "set", "broker-logger", 0, "plog.network=TRACE", "plog.ops=ERROR")
    assert done.stdout == b"Loggers of broker 0: changed plog.network, plog.ops.\n"
    assert level("plog.network.control_plane") == "TRACE"
    call("configs", "set", "broker-logger", 0, "plog.network=WARN", "--dry-run")
    done = call("configs", "reset", "broker-logger", 0, "plog.network", "plog.ops", "--json")
    assert json.loads(done.stdout)["keys"] == ["plog.network", "plog.ops"]
    assert level("plog.network.control_plane") == "INFO"
    for refused, reason in (
        (["set", "broker-logger", 0, "plog.nothing=INFO"], "'plog.nothing' does not exist"),
        (["set", "broker-logger", 0, "plog=LOUD"], "'LOUD' is not a log level: use one of FATAL,"),
        (["set", "broker-logger", "default", "plog=INFO"], "no broker has id 'default'"),
        (["describe", "broker-logger", 7], "no broker has id '7'; the cluster has 0"),
        (["reset", "broker-logger", 0, "root"], "the root logger can be set, not reset"),
        (["set", "broker-logger", 0, "plog+=INFO"], "a log level can only be set or reset"),
    ):
        assert reason in error_of(call("configs", *refused, status=1))


def test_broker_configs_are_described_and_set(call):
    assert b"listeners" in call("configs", "describe", "broker", "0").stdout
    told = call("configs", "set", "broker", "default", "log.retention.ms=123456789")
    assert told.stderr == b""
    refused = call("configs", "set", "broker", "default", "retention.ms=5", status=1)
    assert "did you mean `log.retention.ms`?" in error_of(refused)
    key = "remote.log.manager.thread.pool.size"
    told = call("configs", "set", "broker", "default", f"{key}=5")
    assert "no effect in plog: plog has no remote storage" in error_of(told)
    call("configs", "reset", "broker", "default", key)
    found: dict[str, dict] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while "log.retention.ms" not in found:  # each broker hears of it in its own time
        text = call("configs", "describe", "broker", "0", "--json").stdout
        found = {entry["key"]: entry for entry in json.loads(text)}
        assert time.monotonic() < deadline
    assert found["log.retention.ms"]["value"] == "123456789"
    assert found["log.retention.ms"]["source"] == "dynamic default"
    call("configs", "reset", "broker", "default", "log.retention.ms")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/nowhere/server.properties"], "/nowhere/server.properties"),
        (["--override", "nosuch"], "nosuch"),
        (["--override", "listeners=PLAINTEXT://127.0.0.1:notaport"], "notaport"),
    ],
)
def test_server_that_cannot_start_says_why(run, arguments, text):
    assert text in run("server", *arguments, status=1).stderr.decode()


def test_server_says_all_that_is_wrong_with_its_listeners_in_the_order_of_the_file(run, tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(
        "inter.broker.listener.name=FOO\n"
        "num.partitions=0\n"
        "listeners=PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:x,SSL://127.0.0.1:0\n"
        "log.retention.ms=0\n"
        "advertised.listeners=PLAINTEXT://0.0.0.0:0,CLIENTS://a:1\n"
        f"log.dirs={tmp_path},{tmp_path}\n"
    )
    override = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,X"
    done = run("server", path, "--override", override, status=1)
    assert done.stderr.decode().splitlines() == [
        f"plog: {path}:1: `inter.broker.listener.name`: FOO is not one of listeners",
        f"plog: {path}:2: `num.partitions`: 0 is below 1",
        f"plog: {path}:3: `listeners`: 'PLAINTEXT://127.0.0.1:x' is not of the form "
        "NAME://host:port",
        f"plog: {path}:3: `listeners`: PLAINTEXT appears twice",
        f"plog: {path}:3: `listeners`: listener SSL: plog does not support SSL yet; use PLAINTEXT",
        f"plog: {path}:4: `log.retention.ms`: 0 is neither -1 nor at least 1",
        f"plog: {path}:5: `advertised.listeners`: CLIENTS is not one of listeners",
        f"plog: {path}:5: `advertised.listeners`: PLAINTEXT would make clients connect to "
        "0.0.0.0; name a host that they can reach",
        f"plog: {path}:6: `log.dirs`: names a directory twice",
        "plog: --override: `listener.security.protocol.map`: 'X' is not of the form "
        "NAME:PROTOCOL, PROTOCOL one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ]


def test_server_on_a_port_that_is_taken_says_so(run, broker, tmp_path):
    listeners = f"listeners=PLAINTEXT://{broker.bootstrap}"
    done = run("server", "--override", listeners, "--override", f"log.dirs={tmp_path}", status=1)
    assert "in use" in done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(
    "changed",
    [
        ["reset", "topic", "TOPIC", "nonsense"],
        ["reset", "topic", "TOPIC", "retention.ms", "nonsense", "segment.bytes"],
        ["reset", "broker", "0", "nonsense"],
        ["reset", "broker", "default", "nonsense", "log.retention.ms"],
        ["reset", "group", "readers", "nonsense"],
        ["set", "topic", "TOPIC", "retention.ms=5000", "nonsense=1"],
        ["set", "broker", "0", "nonsense=1", "log.retention.ms=5000"],
        ["set", "broker", "default", "nonsense=1"],
        ["set", "group", "readers", "nonsense=1"],
        ["set", "topic", "TOPIC", "retention.ms=5000", "segment.bytes=x"],
    ],
    ids=lambda words: "-".join(words),
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["", "dry-run"])
def test_configs_change_nothing_when_one_key_is_wrong(call, topic, changed, more):
    words = [topic if word == "TOPIC" else word for word in changed]
    call("configs", "set", "topic", topic, "retention.ms=1000")
    refused = call("configs", *words, *more, status=1)
    assert refused.stdout == b""
    assert ("nonsense: unknown key" if "nonsense" in str(words) else "segment.bytes") in error_of(
        refused
    )
    kept = json.loads(call("configs", "describe", "topic", topic, "--json").stdout)
    assert [(one["key"], one["value"]) for one in kept] == [("retention.ms", "1000")]
