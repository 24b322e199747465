"""Moves leads and replicas of a cluster under load, and kills a leader once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from plog.client.admin import Admin
from plog.client.reassignments import ReassignmentAdmin
from plog.errors import KafkaError
from plog.types import TopicPartition
from tests.cluster.elections import Elections
from tests.cluster.processes import Brokers
from tests.waiting import until

REPLICAS = 3
LEAST_MOVES = 3
"""So often the lead of a partition went to another broker while a client wrote and read."""
AT_ONCE = 3
PAUSE_S = 0.5
ASK_MS = 3_000
MOVED_WITHIN_S = 60.0
SETTINGS = {
    "default.replication.factor": REPLICAS,
    "min.insync.replicas": 2,
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": 3_000,
}
"""Settings of brokers whose partitions have three replicas."""
COORDINATORS_TOO = {
    "offsets.topic.replication.factor": REPLICAS,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": REPLICAS,
    "transaction.state.log.num.partitions": 3,
}
"""And whose coordinators move, too."""


class Mover:
    """Moves leads and replicas until it is stopped.

    Args:
        topics: whose partitions to move, once they exist; each has `REPLICAS` replicas. The leader
            of partition 0 of the first topic is killed once, and started again.
        chance: chooses partitions and replicas.
    """

    def __init__(self, brokers: Brokers, topics: Sequence[str], chance: random.Random) -> None:
        self._brokers = brokers
        self._topics = topics
        self._killed_at = TopicPartition(topics[0], 0)
        self._chance = chance
        self._stops = threading.Event()
        self.moves = 0
        self.kills = 0

    @property
    def is_enough(self) -> bool:
        """Whether leads have moved, and a leader was killed."""
        return self.moves >= LEAST_MOVES and self.kills == 1

    def run(self) -> None:
        """Move until `stop`."""
        while not self._stops.wait(PAUSE_S):
            before = self._leaders()
            if self.moves >= LEAST_MOVES and not self.kills:
                self._kill(before[self._killed_at])
            else:
                self._move(list(before))
            after = self._leaders()
            self.moves += sum(leader != after[at] for at, leader in before.items())

    def stop(self) -> None:
        """End after the move that is under way."""
        self._stops.set()

    def _leaders(self) -> dict[TopicPartition, int]:
        with Admin(self._brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
            topics = admin.topics()
        return {
            TopicPartition(name, index): part.leader_id
            for name in self._topics
            if name in topics
            for index, part in topics[name].partitions.items()
        }

    def _move(self, places: Sequence[TopicPartition]) -> None:
        """Have some partitions on other brokers, or in another order, led by the first."""
        everyone = range(len(self._brokers.brokers))
        chosen = self._chance.sample(places, AT_ONCE)
        with Elections(self._brokers.bootstrap, request_timeout_ms=ASK_MS) as elections:
            with ReassignmentAdmin(self._brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
                targets = {at: self._chance.sample(everyone, REPLICAS) for at in chosen}
                _until_done(partial(admin.reassign, targets))
                until(lambda: admin.moves() == {}, "all replicas are moved", MOVED_WITHIN_S)
            _until_done(elections.elect_preferred)

    def _kill(self, leader: int) -> None:
        self._brokers.lose(leader)
        self.kills += 1
        until(lambda: self._leaders()[self._killed_at] not in (leader, -1), "another one leads")
        self._brokers.start()


def _until_done(ask: Callable[[], None]) -> None:
    """Ask until the controller has done it."""

    def is_done() -> bool:
        try:
            ask()
        except KafkaError:
            return False
        return True

    until(is_done, "the controller has done it", MOVED_WITHIN_S)


@contextmanager
def moving(brokers: Brokers, topics: Sequence[str], chance: random.Random) -> Iterator[Mover]:
    """Move leads until the block ends. Raises what the mover has raised.

    Raises AssertionError if too few leads have moved in the block.
    """
    mover = Mover(brokers, topics, chance)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(mover.run)
        try:
            yield mover
        finally:
            mover.stop()
        moved.result()
    assert mover.is_enough, f"{mover.moves} leads moved, {mover.kills} leaders killed"
    print(f"{mover.moves} leads moved, {mover.kills} leaders killed")
