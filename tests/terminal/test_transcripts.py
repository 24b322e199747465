"""Plays each transcript against a broker of its own. `--rewrite` records the text that is shown."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.servers import BrokerProcess, free_port
from tests.terminal.terminal import Terminal
from tests.terminal.transcript import Step, Transcript

PATHS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name of a fixed length: lines are folded behind it."""
    with tempfile.TemporaryDirectory(prefix="plog", dir="/tmp") as made:
        yield Path(made)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_terminal_shows_what_the_transcript_says(path: Path, place: Path, request) -> None:
    transcript = Transcript(path)
    page = f"127.0.0.1:{free_port()}"
    overrides: dict[str, object] = {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 5,
        "transaction.state.log.num.partitions": 5,
        "metrics.listener": page,
    }
    overrides.update(option.split("=", 1) for option in transcript.options("broker"))
    directory, binaries, brokers = (place / name for name in ("home", "bin", "broker"))
    for made in (directory, binaries, brokers):
        made.mkdir()
    for name, words in {"plog": "-m plog", "python": "", "python3": ""}.items():
        program = binaries / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    with ExitStack() as ended, BrokerProcess(brokers, overrides=overrides) as broker:
        environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(directory),
            "PLOG_BOOTSTRAP_SERVER": broker.bootstrap,
            "PLOG_METRICS": page,
            "BROKER_LOG": str(broker.log_path),
        }
        environment.pop("COLUMNS", None)
        places = {broker.bootstrap: "127.0.0.1:9092", page: "127.0.0.1:9095", str(directory): "~"}
        places[str(binaries)] = "/opt/plog/bin"
        places[sys.executable] = "/opt/plog/bin/python3"

        def run(step: Step) -> list[str]:
            command = step.command
            for address in (broker.bootstrap, page):
                command = command.replace(places[address], address)
            terminal = Terminal(command, directory, environment)
            ended.callback(terminal.close)
            if step.is_background:
                return []
            for line in step.typed:
                terminal.answer(line)
            status = terminal.wait()
            text = terminal.text
            for found, shown in places.items():
                text = text.replace(found, shown)
            lines = text.split("\n") if text else []
            return [*lines, f"[status {status}]"] if status else lines

        transcript.play(run, rewrite=request.config.getoption("--rewrite"))
