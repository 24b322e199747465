"""README's "Try it" does what it says when it is typed, with a broker begun by its own line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.servers import free_port
from tests.waiting import until

ADDRESS = "127.0.0.1:9092"
ACTIVATE = ". .venv/bin/activate\n"
READY_S = 30

_, _, SECTION = (ROOT / "README.md").read_text("utf-8").partition("\n## Try it\n")
SECTION = SECTION.partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
SERVER, TYPED = (block for language, block in BLOCKS if not language)
PRODUCER, CONSUMER = (block for language, block in BLOCKS if language == "python")
GROUPS = re.findall(r"`(plog groups [^`]*readers[^`]*)`", SECTION)


class Shell:
    """A terminal in which the virtual environment is active."""

    def __init__(self, address: str) -> None:
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",  # or a table is folded
            "PLOG_BOOTSTRAP_SERVER": address,
        }
        self.address = address

    def typed(self, lines: str) -> str:
        """Return what lines print; the first that fails ends them."""
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
            command, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The broker of the first block, in a directory and at a port of the test's."""
    begun = Shell(f"127.0.0.1:{free_port()}")
    line = SERVER.replace(ACTIVATE, "").strip()
    assert line.endswith("--override log.dirs=/tmp/plog")
    line = line.replace("/tmp/plog", str(tmp_path / "plog"))
    log = tmp_path / "broker.log"
    broker = begun.begin(f"{line} --override listeners=PLAINTEXT://{begun.address}", log)
    try:
        until(lambda: "listening" in log.read_text(), "says that it is listening", READY_S)
        yield begun
        broker.send_signal(signal.SIGINT)  # Ctrl-C
        assert broker.wait(60) == 0, log.read_text()
    finally:
        broker.kill()
        broker.wait()


def test_section_works_from_its_first_line_to_its_last(shell: Shell) -> None:
    told = shell.typed(TYPED)
    assert "hello" in told.splitlines()
    assert "1001" in told, "the broker's number, as the page says"

    shell.python(PRODUCER)
    read = shell.python(CONSUMER)
    assert "b'hello from librdkafka'" in read
    assert len(read.splitlines()) == 2

    describe, reset = GROUPS
    assert re.search(r"greetings\s.*\b0\b", shell.typed(describe))
    shell.typed(reset)
    assert len(shell.python(CONSUMER).splitlines()) == 2, "sent back to the start"
