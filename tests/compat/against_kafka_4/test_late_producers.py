"""Java's producers whose transaction took too long, beside Kafka 4.1 (KIP-588).

Such a producer is refused its next write for its epoch, which Java takes for the end of the
transaction alone: it may abort. By that one of version 2 is told its next epoch, and goes on. One
of version 1 aborts under the epoch that it has lost, and is fenced for good before it comes to the
request that would tell it another, by Kafka as well.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.cluster.features import TRANSACTION_VERSION
from plog.types import TopicPartition
from tests.compat.against_kafka.pair import Pair, Side
from tests.compat.clients import PATIENCE_S
from tests.compat.programs import JAVA, Java
from tests.handlers.wire import create_topic
from tests.transactions.transactor import Transactor, read
from tests.waiting import until

TIMEOUT_MS = 5_000
"""More than a write takes, however busy the machine is."""
GOES_ON = {"write": "InvalidProducerEpochException", "abort": "done", "next": "done"}
IS_FENCED = {
    "write": "InvalidProducerEpochException",
    "abort": "ProducerFencedException",
    "next": "ProducerFencedException",
    "another": "done",
}
OLD, NEW = JAVA
EXPECTED = {(OLD, 2): IS_FENCED, (NEW, 2): GOES_ON, (NEW, 1): IS_FENCED}
"""By the client and the version that the brokers serve; the old client is of version 1 anyway."""


class Late:
    """A producer of one side's; its transaction is open once it is made."""

    def __init__(self, client: Java, side: Side, name: str, log: Path) -> None:
        self._log = log
        self._described = Transactor(side.wire, name).described
        command = [
            *client.late_command(client.built()),
            name,
            f"bootstrap.servers=127.0.0.1:{side.port}",
            f"transactional.id={name}",
            f"transaction.timeout.ms={TIMEOUT_MS}",
        ]
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    def await_abort(self) -> None:
        """Wait until it has written, and its transaction is over."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "written\n", self._log.read_text()
        until(lambda: self._described().transaction_state == "CompleteAbort", "aborted")

    def go_on(self) -> dict[str, str]:
        """Return what becomes of what it does then."""
        said, _ = self._process.communicate("go on\n", timeout=PATIENCE_S)
        assert self._process.returncode == 0, self._log.read_text()
        return dict(map(str.split, said.splitlines()))

    def end(self) -> None:
        with self._process:
            self._process.kill()


def have_version(side: Side, version: int) -> None:
    """Have a broker serve transactions of this version, and no later one."""
    with Admin(f"127.0.0.1:{side.port}") as admin:

        def level() -> int:
            (found,) = (one for one in admin.features() if one.name == TRANSACTION_VERSION)
            return found.level

        if (before := level()) != version:
            admin.set_feature(TRANSACTION_VERSION, version, lower=version < before)
            until(lambda: level() == version, "in force")


@pytest.fixture(params=EXPECTED, ids=lambda one: f"{one[0].name}-of-{one[1]}")
def client(pair: Pair, request: pytest.FixtureRequest) -> Iterator[tuple[Java, int]]:
    """A client, and the version that both brokers serve."""
    _, version = request.param
    for side in pair.sides:
        have_version(side, version)
    yield request.param
    for side in pair.sides:
        have_version(side, 2)


def test_producer_whose_transaction_took_too_long_goes_on_where_it_does_with_kafka(
    pair: Pair, tmp_path: Path, client: tuple[Java, int]
) -> None:
    java, version = client
    name = f"late-{java.name}-of-{version}"
    at = TopicPartition(name, 0)
    for side in pair.sides:
        create_topic(side.wire, name)
    lates = [
        Late(java, side, name, tmp_path / f"{number}.log") for number, side in enumerate(pair.sides)
    ]
    try:
        for side, late in zip(pair.sides, lates, strict=True):
            late.await_abort()
            assert read(side.wire, at) == []
            assert late.go_on() == EXPECTED[client]
            until(lambda side=side: read(side.wire, at) == [b"next"], "committed")
            assert read(side.wire, at, committed=False) == [b"late", b"next"]
    finally:
        for late in lates:
            late.end()
