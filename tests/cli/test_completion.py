"""Completion: the words for a line, and the lines that bash, zsh and fish make of them on TAB."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from plog.cli import plog
from plog.cli.cluster_names import ASKED, WAIT_S
from plog.cli.completion import COMPLETE_VARIABLE, SHELLS, line_words
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.cli.conftest import ROOT, environment
from tests.cli.test_groups import commit
from tests.cli.test_help import COMMANDS, find
from tests.servers import free_port
from tests.terminal.terminal import Terminal

PROMPT = "ready> "
PATIENCE_S = 60
"""Instead of the wait of a key press."""
ATTEMPTS, ATTEMPT_S = 6, 10


@pytest.fixture(scope="module")
def names(broker) -> None:
    """Topics, groups and transactional ids to complete; one topic cannot be typed as it is."""
    from plog.client.admin import Admin

    with Admin(broker.bootstrap) as admin:
        for topic in ("gates.arrivals", "gates.departures", "quakes"):
            admin.create_topic(topic)
    for group in ("sensors-a", "sensors-b", "sensors; rm -rf ~", "sensors$(id)"):
        commit(broker, group, {TopicPartition("quakes", 0): 0})
    with Producer(broker.bootstrap, transactional_id="tellers-1") as producer:
        producer.init_transactions()


Complete = Callable[..., list[str]]


@pytest.fixture
def complete(broker, names, monkeypatch) -> Complete:
    """Return the words that plog reports to a shell for a line."""

    monkeypatch.setattr("plog.cli.cluster_names.WAIT_S", PATIENCE_S)

    def complete(line: str, shell: str = "zsh", bootstrap: str | None = None) -> list[str]:
        monkeypatch.setenv("PLOG_BOOTSTRAP_SERVER", bootstrap or broker.bootstrap)
        monkeypatch.setenv("COMP_LINE", line)
        found = SHELLS[shell](plog, {}, "plog", COMPLETE_VARIABLE).complete()
        return [each.split("\t")[1] for each in found.splitlines()]

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plog to", ["topics", "top"]),
        ("plog topics del", ["delete", "delete-records"]),
        ("plog topics list --int", ["--internal"]),
        ("plog topics describe gat", ["gates.arrivals", "gates.departures"]),
        ("plog topics describe 'gat", ["gates.arrivals", "gates.departures"]),
        ("plog topics describe --json gates.a", ["gates.arrivals"]),
        ("PLOG_METRICS=a:1 /usr/bin/plog topics describe qu", ["quakes"]),
        ("plog topics describe __c", ["__consumer_offsets"]),
        ("plog topics create qu", []),
        ("plog consume qua", ["quakes"]),
        ("plog consume quakes --group sens", ["sensors-a", "sensors-b"]),
        ("plog groups delete sensors-a sens", ["sensors-b"]),
        ("plog groups reset sensors-a --topic=qu", ["--topic=quakes"]),
        ("plog groups list --state prepar", ["preparingrebalance"]),
        ("plog transactions describe tell", ["tellers-1"]),
        ("plog configs describe b", ["broker", "broker-logger"]),
        ("plog configs describe broker ", ["0", "default"]),
        ("plog configs describe topic qu", ["quakes"]),
        ("plog configs set topic quakes retention.", ["retention.bytes=", "retention.ms="]),
        ("plog configs reset topic quakes retention.m", ["retention.ms"]),
        ("plog configs set group sensors-a share.x", []),
        ("plog configs describe broker-logger ", ["0"]),
        ("plog configs set broker-logger 0 plog.storage.sche", ["plog.storage.scheduler="]),
        ("plog configs set broker-logger 0 plog.storage=D", ["plog.storage=DEBUG"]),
        ("plog configs reset broker-logger 0 plog.storage.sche", ["plog.storage.scheduler"]),
        ("plog configs reset broker-logger 0 roo", ["root"]),
        ("plog configs set broker-logger missing ", []),
        ("plog topics create new --config retention.", ["retention.bytes=", "retention.ms="]),
        ("plog topics create new --config=retention.m", ["--config=retention.ms="]),
        ("plog server --override log.cleaner.threads", ["log.cleaner.threads="]),
        ("plog consume quakes --from ", ["earliest", "latest"]),
        ("plog consume quakes --from=l", ["--from=latest"]),
        ("plog consume quakes --from @", []),
        ("plog consume quakes --until ", ["latest"]),
        ("plog topics offsets quakes --at ", ["earliest", "latest", "max-timestamp"]),
        ("plog features set transaction.", ["transaction.version"]),
        ("plog nothing qu", []),
        ("plog completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_words_that_fit_are_reported(complete: Complete, line: str, words: list[str]) -> None:
    assert complete(line) == words


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("groups delete-", "delete-offsets\tDelete committed offsets of GROUP for some topics."),
        ("consume t --from e", "earliest\tThe first record of the log."),
    ],
)
def test_words_come_with_their_meaning(monkeypatch, line, word) -> None:
    monkeypatch.setenv("COMP_LINE", f"plog {line}")
    found = SHELLS["fish"](plog, {}, "plog", COMPLETE_VARIABLE).complete()
    assert found == f"plain\t{word}"


def test_bash_gets_the_part_behind_the_last_break(complete: Complete) -> None:
    assert complete("plog groups reset sensors-a --topic=qu", "bash") == ["quakes"]
    assert complete("plog topics describe gates.a", "bash") == ["gates.arrivals"]
    assert complete("plog configs set broker-logger 0 root=D", "bash") == ["DEBUG"]


def test_broker_that_the_line_names_is_asked(complete: Complete, broker) -> None:
    nothing = f"127.0.0.1:{free_port()}"
    line = f"plog topics describe -b {broker.bootstrap} qu"
    assert complete(line, bootstrap=nothing) == ["quakes"]
    line = f"plog topics describe --bootstrap-server={broker.bootstrap} qu"
    assert complete(line, bootstrap=nothing) == ["quakes"]


def test_broker_that_does_not_answer_gives_no_names(complete: Complete, capfd, monkeypatch) -> None:
    monkeypatch.setattr("plog.cli.cluster_names.WAIT_S", WAIT_S)
    assert complete("plog topics describe ", bootstrap=f"127.0.0.1:{free_port()}") == []
    assert complete("plog topics describe ", bootstrap="no address") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert complete("plog topics describe ", bootstrap=address) == []
    assert capfd.readouterr().err == ""


def test_look_up_without_an_end_is_left_after_one_wait_below_a_second(
    complete: Complete, monkeypatch
) -> None:
    """The process start has the rest of the second; its own time is not measured here."""
    waits, timeouts = [], []
    released, ended = threading.Event(), threading.Event()

    class Recorded(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            waits.append(timeout)
            super().join(timeout)

    def endless(bootstrap: str, timeout_ms: int) -> list[str]:
        timeouts.append(timeout_ms)
        released.wait()
        ended.set()
        return ["late"]

    monkeypatch.setattr("plog.cli.cluster_names.WAIT_S", WAIT_S)
    monkeypatch.setattr("plog.cli.cluster_names.threading", SimpleNamespace(Thread=Recorded))
    monkeypatch.setitem(ASKED, find(("topics", "describe")).params[0].name, endless)
    try:
        assert complete("plog topics describe ") == []
        assert not ended.is_set()
    finally:
        released.set()
    assert ended.wait(PATIENCE_S)
    assert waits == [WAIT_S]
    assert timeouts == [int(WAIT_S * 1000)]
    assert WAIT_S < 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [""]),
        ("plog", ["plog"]),
        ("plog ", ["plog", ""]),
        ("plog a\\ b 'c d", ["plog", "a b", "c d"]),
        ("plog 'a' \"", ["plog", "a", ""]),
    ],
)
def test_line_is_divided_as_a_shell_does(line: str, words: list[str]) -> None:
    assert line_words(line) == words


def test_every_parameter_with_a_name_of_the_cluster_is_completed() -> None:
    """A metavar says what a parameter takes; its name decides how it is completed."""
    taking = {"TOPIC", "GROUP", "TRANSACTIONAL_ID", "FEATURE"}
    for path in COMMANDS:
        command = find(path)
        for parameter in command.params:
            metavar = parameter.make_metavar(click.Context(command)).strip("[]").rstrip(".")
            if metavar.partition("[")[0] in taking:
                assert parameter.name in ASKED, (path, parameter.name)


# -- in real shells

START = {
    "bash": "exec bash --noprofile --rcfile {rc} -i",
    "zsh": "ZDOTDIR={directory} exec zsh -i",
    "fish": "exec fish -i -C 'source {rc}'",
}
RC = {
    "bash": f"PS1='{PROMPT}'\nbind 'set show-all-if-ambiguous on'\nsource {{script}}\n",
    "zsh": f"PS1='{PROMPT}'\nfpath=({{functions}} $fpath)\nautoload -Uz compinit\n"
    "compinit -u -d {directory}/dump\n",
    "fish": f"function fish_prompt; echo -n '{PROMPT}'; end\nset -g fish_greeting\n"
    "source {script}\n",
}  # fmt: skip


@pytest.fixture(params=list(SHELLS))
def shell(request, broker, names, tmp_path: Path) -> Iterator[Terminal]:
    """An interactive shell with plog's script, which the package installs for all users."""
    if shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param}")
    (tmp_path / "plog").write_text(f'#!/bin/sh\nexec {sys.executable} -m plog "$@"\n')
    (tmp_path / "plog").chmod(0o755)
    functions = tmp_path / "functions"
    functions.mkdir()
    script = functions / "_plog"
    script.write_text(SHELLS[request.param].script)
    places = {
        "script": script,
        "functions": functions,
        "directory": tmp_path,
        "rc": tmp_path / ".zshrc",
    }
    places["rc"].write_text(RC[request.param].format(**places))
    variables = {
        **environment(broker.bootstrap),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
    }
    terminal = Terminal(START[request.param].format(**places), tmp_path, variables, lines=50)
    terminal.wait_for(PROMPT.rstrip(), 20)
    yield terminal
    terminal.close()


def test_tab_completes_commands_options_and_names(shell: Terminal, broker) -> None:
    def on_tab(typed: str, shown: str) -> None:
        """Type a part and TAB, wait for the completed line, and clear it.

        On a busy host the broker may not answer in time; then TAB is pressed again.
        """
        for _ in range(ATTEMPTS):
            shell.type(f"{typed}\t")
            with suppress(AssertionError):
                shell.wait_for(f"{PROMPT}{shown}", ATTEMPT_S)
                break
            shell.type("\x15")
        else:
            raise AssertionError(f"TAB does not complete {typed!r}:\n{shell.text}")
        shell.type("\x15")  # Ctrl-U

    on_tab("plog consum", "plog consume")
    on_tab("plog topics desc", "plog topics describe")
    on_tab("plog topics describe --js", "plog topics describe --json")
    on_tab("plog topics describe gates.a", "plog topics describe gates.arrivals")
    on_tab("plog groups reset sensors-a --topic=qua", "plog groups reset sensors-a --topic=quakes")
    on_tab(
        "plog configs set topic quakes retention.m", "plog configs set topic quakes retention.ms="
    )
    on_tab("plog consume quakes --from ear", "plog consume quakes --from earliest")
    level = "plog configs set broker-logger 0 plog.storage=DE"
    on_tab(level, f"{level}BUG")
    named = f"plog topics describe -b {broker.bootstrap}"
    on_tab(f"{named} gates.d", f"{named} gates.departures")
    # Several words fit: they are listed, and no name is run as a command.
    for _ in range(ATTEMPTS):
        shell.type("\x15plog groups describe sens\t\t")
        with suppress(AssertionError):
            shell.wait_for("sensors-b", ATTEMPT_S)
            break
    assert "sensors-a" in shell.text
    assert "rm -rf" not in shell.text
    assert "uid=" not in shell.text
