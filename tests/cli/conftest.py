"""The commands as a user starts them: processes, with a broker of their own."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.cli import main
from tests.planes import Plane
from tests.servers import BrokerProcess

TIMEOUT_S = 120
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 5,
        "transaction.state.log.num.partitions": 5,
    }
    with BrokerProcess(tmp_path_factory.mktemp("cli"), overrides=overrides) as running:
        yield running


Run = Callable[..., subprocess.CompletedProcess[bytes]]


def command_line(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "plog", *map(str, arguments)]


def environment(bootstrap: str) -> dict[str, str]:
    return {**os.environ, "PLOG_BOOTSTRAP_SERVER": bootstrap, "PYTHONPATH": str(ROOT)}


def as_shells_tell(status: int) -> int:
    """Return the status that a shell reports, whether a signal ended a process or it said so.

    CPython started with `-m` does the first after a KeyboardInterrupt within an exec(), as of a
    dataclass that is being imported, even if it was caught and sys.exit(130) called.
    """
    return 128 - status if status < 0 else status


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    """Run `plog ...`; fail unless it ends with `status`, quietly where it should."""

    def run(*arguments: object, stdin: bytes = b"", status: int = 0):
        done = subprocess.run(
            command_line(*arguments),
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment(broker.bootstrap),
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr.decode())
        return done

    return run


@pytest.fixture
def call(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture
) -> Run:
    """As `run`, without the half second that a process takes: for the many small cases."""

    def call(*arguments: object, stdin: bytes = b"", status: int = 0):
        monkeypatch.setenv("PLOG_BOOTSTRAP_SERVER", broker.bootstrap)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        written = capfdbinary.readouterr()
        assert ended.value.code == status, (ended.value.code, *written)
        return subprocess.CompletedProcess(arguments, status, *written)

    return call


_numbers = itertools.count()


@pytest.fixture
def topic(call: Run) -> str:
    name = f"topic{next(_numbers)}"
    call("topics", "create", name, "--partitions", 2)
    return name
