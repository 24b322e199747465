"""`zookeeper.connect`: accepted and wrong forms, and the commands that use the one parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.cli import main
from plog.cluster.zookeeper_client import Client
from plog.errors import ConfigError
from plog.settings.definitions import BrokerSettings
from plog.settings.listeners import Address
from plog.settings.zookeeper_connect import ZooKeeperConnect, parse_connect

ACCEPTED = {
    "zk1:2181": ([("zk1", 2181)], ""),
    "zk1": ([("zk1", 2181)], ""),
    "zk1:1/": ([("zk1", 1)], ""),
    "zk1:2181,zk2,zk3:65535/plog": ([("zk1", 2181), ("zk2", 2181), ("zk3", 65535)], "/plog"),
    " zk1:2181 , zk2:2182 /a/b ": ([("zk1", 2181), ("zk2", 2182)], "/a/b"),
    "zk1:2181,": ([("zk1", 2181)], ""),
    ",zk1:2181,,zk2:2181": ([("zk1", 2181), ("zk2", 2181)], ""),
    "zk1:2181,zk1:2181/a": ([("zk1", 2181), ("zk1", 2181)], "/a"),
    "[::1]:2182,[fe80::1%eth0],10.0.0.1/plog": (
        [("::1", 2182), ("fe80::1%eth0", 2181), ("10.0.0.1", 2181)],
        "/plog",
    ),
    "zk-1.example:02181/plog v2": ([("zk-1.example", 2181)], "/plog v2"),
}
REFUSED = {
    "/plog": "names no server",
    ",": "names no server",
    "zk1:abc": "'zk1:abc' has port 'abc'; use a number from 1 to 65535",
    "zk1:": "'zk1:' has port ''; use a number from 1 to 65535",
    "zk1:0": "'zk1:0' has port '0'; use a number from 1 to 65535",
    "zk1:65536": "'zk1:65536' has port '65536'; use a number from 1 to 65535",
    "zk1:-1": "'zk1:-1' has port '-1'; use a number from 1 to 65535",
    "zk1:2181 zk2": "'zk1:2181 zk2' has port '2181 zk2'; use a number from 1 to 65535",
    "zk1 zk2": "'zk1 zk2' has an invalid host",
    ":2181": "':2181' names no host",
    "[]:2181": "'[]:2181' names no host",
    "zk1,:2181": "':2181' names no host",
    "[zk1]:2181": "'[zk1]:2181' has an invalid host",
    "[10.0.0.1]": "'[10.0.0.1]' has an invalid host",
    "zk1..example": "'zk1..example' has an invalid host",
    "me@zk1": "'me@zk1' has an invalid host",
    "zk1]": "'zk1]' is not of the form host:port",
    "::1": (
        "'::1' has several colons; write an IPv6 address in brackets, and a comma between servers"
    ),
    "zk1:2181/plog,zk2:2181/plog": (
        "path '/plog,zk2:2181/plog' has a comma or a colon; name all servers first, and the path"
        " once, after the last server"
    ),
    "zk1/a:b": (
        "path '/a:b' has a comma or a colon; name all servers first, and the path once, after the"
        " last server"
    ),
    "zk1/plog/": "path '/plog/' ends with a slash",
    "zk1//plog": "path '//plog' has an empty name, . or ..",
    "zk1/a/./b": "path '/a/./b' has an empty name, . or ..",
    "zk1/..": "path '/..' has an empty name, . or ..",
    "zk1/a\x01": r"path '/a\x01' has the character '\x01'",
}


@pytest.mark.parametrize(("text", "meant"), ACCEPTED.items())
def test_servers_and_path_are_read(text: str, meant: tuple[list[Address], str]) -> None:
    servers, path = parse_connect(text)
    assert (list(servers), path) == meant


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_wrong_form_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_connect(text)
    with pytest.raises(ConfigError) as fault:
        BrokerSettings({"zookeeper.connect": text})
    assert str(fault.value) == f"zookeeper.connect: {reason}"


def test_empty_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="is empty; remove the key for a broker that runs alone"):
        BrokerSettings({"zookeeper.connect": " "})


def test_settings_have_every_port() -> None:
    settings = BrokerSettings({"zookeeper.connect": "zk1 ,[::1]:2182, /plog"})
    assert settings.zookeeper_connect == "zk1:2181,[::1]:2182/plog"


NAMES = st.text("abcXYZ019-_. %@é", min_size=1).filter(
    lambda name: name == name.strip() and name not in (".", "..")
)
HOSTS = st.one_of(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{1,10})*", fullmatch=True),
    st.ip_addresses().map(str),
)
CONNECTS = st.builds(
    ZooKeeperConnect,
    st.lists(st.builds(Address, HOSTS, st.integers(1, 65535)), min_size=1, max_size=5).map(tuple),
    st.lists(NAMES, max_size=3).map(lambda names: "".join(f"/{name}" for name in names)),
)


@given(CONNECTS)
def test_text_of_a_value_is_that_value(value: ZooKeeperConnect) -> None:
    assert parse_connect(str(value)) == value


@given(st.text("zk1:/,.[]@% \t-é", max_size=20))
def test_any_text_is_refused_or_a_client_can_use_it(text: str) -> None:
    try:
        value = parse_connect(text)
    except ValueError:
        return
    assert parse_connect(str(value)) == value
    client = Client(value.servers, 1.0)
    assert set(client.hosts) == {(host.lower(), port) for host, port in value.servers}
    assert client.chroot == ""


COMMANDS = {
    "server": ["server", "--override", "zookeeper.connect={}"],
    "doctor": ["doctor", "--override", "zookeeper.connect={}"],
    "move-store": ["move-store", "--zookeeper", "{}"],
    "adopt": ["adopt", "server.properties", "--zookeeper", "{}"],
}


@pytest.mark.parametrize("text", ["127.0.0.1:abc/x", "zk1:2181/plog,zk2:2181/plog", ""])
@pytest.mark.parametrize("command", COMMANDS)
def test_command_refuses_a_wrong_value_before_it_uses_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([word.format(text) for word in COMMANDS[command]])
    out, errors = capsys.readouterr()
    assert ended.value.code in (1, 2)
    reason = {
        "127.0.0.1:abc/x": "has port 'abc'",
        "zk1:2181/plog,zk2:2181/plog": "has a comma or a colon",
        "": "names no server" if command in ("move-store", "adopt") else "is empty",
    }[text]
    assert reason in " ".join((out + errors).split())
    assert not list(tmp_path.iterdir())
