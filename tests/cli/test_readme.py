"""The commands of the README and of docs/FIRST_STEPS.md do what the pages say.

Each page's broker starts by the page's own line, at a port and in a directory of the test. Every
block is run or named here, so that a page cannot gain a command that is never tried.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.servers import free_port
from tests.waiting import until

ADDRESS = "127.0.0.1:9092"
ACTIVATE = ". .venv/bin/activate\n"
READY_S = 30
README = ROOT / "README.md"
FIRST_STEPS = ROOT / "docs" / "FIRST_STEPS.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MEASURED_S = "0.3"
PATIENCE, SHORTER = "poll(timeout=10)", "poll(timeout=5)"
NO_WAIT = "--override group.initial.rebalance.delay.ms=0"


def section(page: Path, title: str) -> str:
    """Return the text below a heading of the second level."""
    _, found, rest = page.read_text("utf-8").partition(f"\n## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def blocks(page: Path, title: str, language: str = "") -> list[str]:
    """Return a section's blocks of a language; those of commands have none."""
    return [text for found, text in BLOCK.findall(section(page, title)) if found == language]


class Shell:
    """A terminal in which the virtual environment is active, in a directory of the test."""

    def __init__(self, address: str, directory: Path) -> None:
        self._directory = directory
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PLOG_BOOTSTRAP_SERVER": address,
        }
        self.address = address

    def typed(self, lines: str) -> str:
        """Return the output of some lines; the first failure ends them."""
        return self._run(["bash", "-euc", lines.replace(ACTIVATE, "")])

    def python(self, program: str) -> str:
        assert ADDRESS in program
        return self._run([sys.executable, "-c", program.replace(ADDRESS, self.address)])

    def begin(self, line: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            return subprocess.Popen(
                ["bash", "-euc", f"exec {line}"],
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def started(block: str, directory: Path) -> Iterator[Shell]:
    """Start the broker of a block, and stop it as the pages say, by Ctrl-C."""
    begun = Shell(f"127.0.0.1:{free_port()}", directory)
    line = block.replace(ACTIVATE, "").strip()
    assert line.endswith("--override log.dirs=/tmp/plog")
    line = line.replace("/tmp/plog", str(directory / "plog"))
    log = directory / "broker.log"
    listens = f"--override listeners=PLAINTEXT://{begun.address}"
    broker = begun.begin(f"{line} {listens} {NO_WAIT}", log)
    try:
        until(lambda: "listening on" in log.read_text(), "says that it is listening", READY_S)
        yield begun
        broker.send_signal(signal.SIGINT)
        assert broker.wait(60) == 0, log.read_text()
    finally:
        broker.kill()
        broker.wait()


def test_readme_can_be_tried_as_it_stands(tmp_path: Path) -> None:
    server, typed = blocks(README, "Try it")
    (producer,) = blocks(README, "Try it", "python")
    with started(server, tmp_path) as shell:
        printed = shell.typed(typed)
        assert "hello" in printed.splitlines()
        assert "1001" in printed, "the leader"
        shell.python(producer)
        read = shell.typed("plog consume greetings --keys --exit-at-end")
        assert "k\thello from librdkafka" in read.splitlines()


def test_first_steps_work_from_the_first_to_the_last(tmp_path: Path) -> None:
    (server,) = blocks(FIRST_STEPS, "Start a broker")
    with started(server, tmp_path) as shell:
        (typed,) = blocks(FIRST_STEPS, "Write and read")
        printed = shell.typed(typed)
        assert "hello" in printed.splitlines()
        assert "1001" in printed, "the leader"
        retention = shell.typed("plog configs describe topic greetings --json")
        assert "1209600000" in retention, "two weeks"

        (typed,) = blocks(FIRST_STEPS, "Keys, headers and tombstones")
        printed = shell.typed(typed).splitlines()
        columns = [line.split("\t") for line in printed]
        assert [
            [*line[:2], *line[3:]] for line in columns if len(line) == 6 and line[4] == "ann"
        ] == [["0", "0", "", "ann", "Ann"], ["0", "2", "", "ann", "null"]]
        assert ["role=admin", "cyd", "Cyd"] in [line[3:] for line in columns]
        assert "0@1 bob=Bob" in printed
        assert "greetings\thello" in printed
        assert printed[-4:] == ["Ann", "Bob", "null", "Cyd"]

        shell.typed("\n".join(blocks(FIRST_STEPS, "Back up and restore a topic")))
        records = [
            json.loads(shell.typed(f"plog consume {topic} --exit-at-end --json"))
            for topic in ("greetings", "copy", "restored")
        ]
        assert records[0] == {**records[1], "topic": "greetings"}
        kept = ("key", "value", "headers", "timestamp")
        assert [records[0][name] for name in kept] == [records[2][name] for name in kept]

        producer, consumer = blocks(FIRST_STEPS, "Use a Kafka client", "python")
        shell.python(producer)
        assert PATIENCE in consumer
        consumer = consumer.replace(PATIENCE, SHORTER)
        read = shell.python(consumer)
        assert "b'hello from librdkafka'" in read
        assert len(read.splitlines()) == 2

        (typed,) = blocks(FIRST_STEPS, "Look after a group")
        *first, last = typed.splitlines()
        printed = shell.typed("\n".join(first))
        assert "readers" in printed
        lag = json.loads(shell.typed(f"{last} --json"))
        assert sum(each["lag"] for each in lag["partitions"]) == 2, "moved back to the start"
        assert len(shell.python(consumer).splitlines()) == 2

        (typed,) = blocks(FIRST_STEPS, "Measure")
        measured = re.sub(r"^(plog perf .*)$", rf"\1 --seconds {MEASURED_S}", typed, flags=re.M)
        assert measured.count(MEASURED_S) == 3
        shell.typed(measured)
        assert "speed" not in shell.typed("plog topics list").split()


@pytest.mark.parametrize(
    ("page", "tried"),
    [
        (README, {"See it work", "Try it", "Feed Spark", "Install"}),
        (FIRST_STEPS, {"Start a broker", "Write and read", "Use a Kafka client"}
            | {"Look after a group", "Measure"}
            | {"Keys, headers and tombstones", "Back up and restore a topic"}),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else None,
)  # fmt: skip
def test_every_block_is_in_a_section_that_is_tried(page: Path, tried: set[str]) -> None:
    """`bin/demo` and `bin/deb` are run by their own tests, and Spark's blocks by tests/spark."""
    titles = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert {title for title in titles if BLOCK.search(section(page, title))} == tried


def test_other_commands_of_the_readme_are_those_that_tests_run() -> None:
    demo, _ = blocks(README, "See it work")  # tests/spark/test_demo.py compares the report
    assert demo == "bin/demo\n"
    (install,) = blocks(README, "Install")
    assert install == 'package=$(bin/deb)\napt install "$package"\n'
