"""Every command that talks to a server, where no server answers and where a name is unknown.

The commands are those of the click tree: a new one is in the sweep as soon as it exists.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from plog.cli import main, plog
from plog.client import metadata
from plog.client.connection import Connection
from plog.ops import adoption, watch
from tests.servers import free_port

ANSWER_MS = 200
"""How long a command of this test waits for an answer."""
WAITING_S = 0.5
"""How long a command that waits for its server runs here."""
UNKNOWN = "nosuch"
SERVER_OPTIONS = {
    "bootstrap": "--bootstrap-server",
    "address": "--metrics",
    "zookeeper": "--zookeeper",
}
"""The options that name a server, by parameter. A command needs one of these to be in the sweep."""
ARGUMENTS = {
    "topic": UNKNOWN,
    "topics": UNKNOWN,
    "group": UNKNOWN,
    "groups": UNKNOWN,
    "transactional_ids": UNKNOWN,
    "feature": UNKNOWN,
    "kind": "topic",
    "name": UNKNOWN,
    "names": UNKNOWN,
    "keys": "retention.ms",
    "changes": "retention.ms=1000",
    "count": "5",
    "partition": "0",
    "offset": "0",
    "level": "1",
    "source": "-",
    "partitions": f"{UNKNOWN}-0",
    "broker": "0",
}
MORE = {
    "topics delete": ["--yes"],
    "groups reset": ["--topic", UNKNOWN, "--to-earliest"],
    "topics delete-records": ["--yes"],
    "groups delete": ["--yes"],
    "groups delete-offsets": ["--topic", UNKNOWN],
    "transactions abort": ["--start-offset", "0"],
    "reassign plan": [UNKNOWN],
    "host-metrics": ["--count", "1", "--every", "0.1", "--no-create"],
    "top": ["--count", "1"],
}
WAITS = {"host-metrics"}
"""It waits for a cluster on purpose, and says so."""
FINDINGS = {
    "doctor": "a server that does not answer is one of its findings",
    "move-store": "it reads the broker's own store first: tests/cli/test_move_store.py",
    "bundle": "it collects the rest, and names the parts that it lacks",
}
"""Commands outside the sweep, and the reason."""
WITHOUT_NAME = {
    *("cluster", "topics create", "topics list", "groups list", "features list", "perf latency"),
    *("transactions list", "transactions find-hanging", "top", "adopt"),
    *("cluster restart-check", "reassign status"),
}
"""These create what they name, or name nothing in the cluster."""


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """Restore the loggers that a command changes: it runs in the process of the other tests."""
    client, last_resort = logging.getLogger("plog.client"), logging.lastResort
    assert last_resort is not None
    level, formatter = client.level, last_resort.formatter
    yield
    client.setLevel(level)
    last_resort.setFormatter(formatter)


class Case(NamedTuple):
    path: str
    server_option: str
    words: tuple[str, ...]

    def command_line(self, address: str) -> list[str]:
        return [*self.path.split(), *self.words, self.server_option, address]


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    if command.invoke_without_command:
        yield " ".join(path), command
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def cases() -> Iterator[Case]:
    for path, command in leaves(plog):
        if path in FINDINGS:
            continue
        names = {one.name for one in command.params}
        for parameter, option in SERVER_OPTIONS.items():
            if parameter in names:
                words = [
                    ARGUMENTS.get(str(one.name), f"<{one.name}>")
                    for one in command.params
                    if isinstance(one, click.Argument)
                ]
                yield Case(path, option, (*words, *MORE.get(path, ())))


CASES = list(cases())
FOR_TOPICS = [case for case in CASES if case.path not in WITHOUT_NAME]
IN_A_GROUP = Case("consume", "--bootstrap-server", (UNKNOWN, "--group", "g", "--exit-at-end"))


def test_sweep_has_every_option_that_names_a_server() -> None:
    wanted = re.compile(r"HOST:PORT")
    for path, command in leaves(plog):
        for one in command.params:
            if isinstance(one, click.Option) and wanted.search(one.metavar or ""):
                assert one.name in SERVER_OPTIONS or (path, one.name) == ("host-metrics", "metrics")


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def run_quickly(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    """Run a command in this process with a short time for answers; return what it printed."""

    def connect(host: str, port: int, *, timeout_ms: int, **options: Any) -> Connection:
        return Connection(host, port, timeout_ms=ANSWER_MS, **options)

    monkeypatch.chdir(tmp_path)  # a command must not leave a file in the checkout
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={tmp_path}\nbroker.id=1\n")
    plan = tmp_path / "plan.json"
    move = {"topic": UNKNOWN, "partition": 0, "replicas": [0]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    files = {"<properties>": str(properties), "<file>": str(plan)}

    def run(case: Case, address: str, *, answers: bool) -> tuple[str, str]:
        if not answers:
            monkeypatch.setattr(metadata, "Connection", connect)
            monkeypatch.setattr(watch.read, "__defaults__", (ANSWER_MS / 1000,))
            monkeypatch.setattr(adoption, "CONNECT_TIMEOUT_S", ANSWER_MS / 1000)
        line = [files.get(word, word) for word in case.command_line(address)]
        ending = threading.Timer(WAITING_S, os.kill, (os.getpid(), signal.SIGTERM))
        if case.path in WAITS and not answers:
            ending.start()
        with pytest.raises(SystemExit) as ended:
            main(line)
        ending.cancel()
        written = capfd.readouterr()
        assert ended.value.code == 1 or case.path in WAITS, written
        return written.out, written.err

    return run


def check(case: Case, name: str, written: tuple[str, str], *, waits: bool = False) -> None:
    out, err = written
    assert out == ""
    lines = err.splitlines()
    assert name in err
    assert len(lines) == 1
    assert "waiting for" in err or not waits
    assert all(line.startswith("plog: ") for line in lines), err


@pytest.mark.parametrize("case", [*CASES, IN_A_GROUP], ids=lambda case: "-".join(case[0].split()))
def test_command_reports_a_server_that_is_not_there(run_quickly, case: Case) -> None:
    address = f"127.0.0.1:{free_port()}"
    check(case, address, run_quickly(case, address, answers=False), waits=case.path in WAITS)


@pytest.mark.parametrize("case", [*CASES, IN_A_GROUP], ids=lambda case: "-".join(case[0].split()))
def test_command_reports_a_server_that_never_answers(run_quickly, silent: str, case: Case) -> None:
    check(case, silent, run_quickly(case, silent, answers=False), waits=case.path in WAITS)


@pytest.mark.parametrize(
    "case", [*FOR_TOPICS, IN_A_GROUP], ids=lambda case: "-".join(case[0].split())
)
def test_command_reports_a_name_that_the_cluster_does_not_know(
    run_quickly, broker, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"value\n")))
    check(case, UNKNOWN, run_quickly(case, broker.bootstrap, answers=True))
