"""A transaction whose partition is away does not delay the writes of other transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from tests.cluster.processes import Brokers
from tests.cluster.spanning import Parts, Play, at_last
from tests.compat.live_kafka import ZooKeeper
from tests.coordinator.conftest import TRANSACTION
from tests.handlers.wire import fresh_name
from tests.routed import Routed
from tests.transactions.transactor import Transactor
from tests.waiting import until

NONE = ErrorCode.NONE
PARTS = Parts(coordinator=0, away=1, third=2)
WRITES = 10
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    # The coordinator needs none of the others.
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_replication_factor": 1,
}


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    with Brokers(tmp_path, zookeeper.bootstrap, **SETTINGS) as running:
        yield running


class Stuck:
    """Repeats the first write of a transaction that waits for the one before to end."""

    def __init__(self, play: Play) -> None:
        self.refused = 0
        self.error = NONE
        self._play = play
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        at = self._play.places[PARTS.third]
        while True:
            self.error = ErrorCode(self._play.one.produce(at, b"next").error_code)
            if self.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return
            self.refused += 1

    def ends(self) -> None:
        """Wait until its write is accepted."""
        until(lambda: not self._thread.is_alive(), "an answer other than CONCURRENT_TRANSACTIONS")
        assert self.error is NONE


def test_first_writes_of_others_do_not_wait_for_a_transaction_whose_partition_is_away(
    brokers: Brokers,
) -> None:
    with (
        closing(Routed(brokers.ports, home=PARTS.third)) as wire,
        closing(Routed(brokers.ports, home=PARTS.third)) as others_wire,
    ):
        play = Play(brokers, wire, PARTS, group_on=PARTS.coordinator, own_epochs=True)
        name = others_wire.name_on(TRANSACTION, PARTS.coordinator, fresh_name())
        other = Transactor(others_wire, name, own_epochs=True).start()
        play.write(b"v")
        brokers[PARTS.away].kill()
        assert play.one.end(commit=True) is NONE

        stuck = Stuck(play)
        until(lambda: stuck.refused > 0, "the first refusal")
        before = stuck.refused
        for _ in range(WRITES):
            error = at_last(lambda: other.produce(play.places[PARTS.third], b"v").error_code)
            assert error is NONE
            other.finish(commit=True)
        # Each of the stuck writes is answered after a second. If the coordinator answered both
        # transactions together, each write would wait for one of those.
        assert stuck.refused - before < WRITES // 2

        brokers[PARTS.away].start()
        stuck.ends()
        play.one.finish(commit=True)
