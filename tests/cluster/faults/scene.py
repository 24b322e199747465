"""A cluster in which one broker has one role, with load on all of it."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable, Collection
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.coordinators import KeyType, find_coordinator
from plog.client.metadata import Cluster
from plog.client.transaction_admin import TransactionAdmin
from plog.errors import CoordinatorNotAvailable, KafkaError
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble
from tests.waiting import until

from .load import INPUT, OUTPUT
from .workers import Job, Workers

T = TypeVar("T")

SESSION_MS = 3_000
PARTITIONS = 3
COMPLETE_WITHIN_S = 30.0
ASK_MS = 5_000
ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
SETTINGS: dict[str, object] = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
REPLICATED: dict[str, object] = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 2_000,
}


def settings_of(factor: int) -> dict[str, object]:
    """Return the settings of brokers whose topics have so many replicas."""
    own = {key: 1 for key in REPLICATED if key.endswith(".factor")}
    return {**SETTINGS, **(REPLICATED if factor > 1 else own)}


class Role(StrEnum):
    """What the broker does that the fault meets."""

    CONTROLLER = "controller"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    LEADER = "leader"
    PLAIN = "plain"
    """Registered, and nothing else. It follows the partitions with several replicas."""


class Scene:
    """Three brokers, the workers, and the one broker that has the role."""

    def __init__(
        self,
        directory: Path,
        zookeepers: Ensemble,
        brokers: Brokers,
        role: Role,
        seed: int,
        *,
        factor: int = 1,
    ) -> None:
        self._factor = factor
        self.chance = random.Random(seed)
        self.zookeepers, self.brokers, self.role = zookeepers, brokers, role
        self.workers = Workers(directory / "histories", brokers.bootstrap, PARTITIONS, seed)
        self.controller = brokers.controller
        ids = set(range(len(brokers.brokers)))
        others = ids - {self.controller}
        self.victim = self.controller if role is Role.CONTROLLER else min(others)
        self._rest = sorted(ids - {self.victim})
        self._create_topics()
        try:
            self._start_load()
        except BaseException:
            self.close()
            raise

    @property
    def session_s(self) -> float:
        return SESSION_MS / 1000

    def _create_topics(self) -> None:
        led_by = [self.victim] if self.role is Role.LEADER else []
        leaders = list(itertools.islice(itertools.cycle(led_by + self._rest), PARTITIONS))
        with Admin(self.brokers.bootstrap) as admin:
            for topic in (INPUT, OUTPUT):
                assignments = {
                    index: [one, *(self._others(one))] for index, one in enumerate(leaders)
                }
                admin.create_topic(topic, assignments=assignments)

    def _others(self, leader: int) -> list[int]:
        """Return the followers of a partition."""
        others = [one for one in [*self._rest, self.victim] if one != leader]
        return others[: self._factor - 1]

    def _start_load(self) -> None:
        groups_at = self.victim if self.role is Role.GROUPS else self._rest[0]
        transactions_at = self.victim if self.role is Role.TRANSACTIONS else self._rest[1]
        with Cluster(self.brokers.bootstrap) as cluster:
            copiers = _coordinated(cluster, KeyType.GROUP, "copiers", groups_at)
            self.copiers = copiers
            self.members = _coordinated(cluster, KeyType.GROUP, "members", groups_at)
            ids = [
                _coordinated(cluster, KeyType.TRANSACTION, f"copy-{kind}", transactions_at)
                for kind in ("rd", "plog")
            ]
        self.transactional_ids = ids
        self.workers.start(
            Job("feeder"),
            Job("copier", {"client": "rd", "group": copiers, "transactional_id": ids[0]}),
            Job("copier", {"client": "plog", "group": copiers, "transactional_id": ids[1]}),
            Job("member", {"client": "rd", "group": self.members}),
            Job("member", {"client": "plog", "group": self.members}),
            Job("asker", {"client": "plog", "group": copiers, "transactional_id": ids[0]}),
        )
        self.workers.until_progress(1)

    def aimed(self, role: Role, seed: int, spared: Collection[int] = ()) -> Scene:
        """Return this scene with a victim that has the role now, or any if that one is spared.

        The seed chooses the partition whose leader or follower is meant, and then for the strike.
        """
        other = copy.copy(self)
        other.role, other.chance = role, random.Random(seed)
        at = other.chance.randrange(PARTITIONS)
        found = _answered(lambda: self._who_has(role, at), COMPLETE_WITHIN_S)
        allowed = set(range(len(self.brokers.brokers))) - set(spared)
        other.victim = other.chance.choice(sorted(found & allowed or allowed))
        return other

    def _who_has(self, role: Role, at: int) -> set[int]:
        coordinated = {
            Role.GROUPS: (KeyType.GROUP, self.members),
            Role.TRANSACTIONS: (KeyType.TRANSACTION, self.transactional_ids[0]),
        }
        with Cluster(self.brokers.bootstrap, request_timeout_ms=ASK_MS) as cluster:
            if role in coordinated:
                return {find_coordinator(cluster, *coordinated[role]).node_id}
            if role is Role.CONTROLLER:
                cluster.refresh([])
                return {cluster.controller_id}
            partition = cluster.topic(OUTPUT).partitions[at]
            leader = {partition.leader_id}
            return leader if role is Role.LEADER else set(partition.replicas) - leader

    def until_complete(self, within_s: float = COMPLETE_WITHIN_S) -> None:
        """Wait until each transaction of now is over: at its coordinator, and in every partition.

        Those that begin meanwhile are others.
        """
        end = time.monotonic() + within_s
        now_ms = time.time_ns() // 1_000_000

        def left_s() -> float:
            return max(end - time.monotonic(), 0.0)

        with TransactionAdmin(self.brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
            partitions = _answered(admin.all_partitions, left_s())
            with Consumer(self.brokers.bootstrap, request_timeout_ms=ASK_MS) as consumer:
                ends = _answered(lambda: consumer.end_offsets(partitions), left_s())
            for name in self.transactional_ids:
                until(lambda name=name: _is_over(admin, name, now_ms), f"{name} is over", left_s())
        with Consumer(self.brokers.bootstrap, isolation_level="read_committed") as consumer:
            until(lambda: not _open(consumer, ends), "every partition is stable", left_s())

    def end(self) -> None:
        """Have the workers end, and everything that they did read by others."""
        self.workers.leave()
        self.until_complete()
        with TransactionAdmin(self.brokers.bootstrap) as admin:
            states = {one.transactional_id: one.state for one in admin.transactions()}
        assert set(states.values()) <= ENDED, states
        self.workers.read_finally()
        until(self._is_in_sync, "every replica is in sync", COMPLETE_WITHIN_S)

    def _is_in_sync(self) -> bool:
        with Admin(self.brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
            topics = _answered(admin.topics, COMPLETE_WITHIN_S).values()
        return all(
            set(part.isr) == set(part.replicas)
            for topic in topics
            for part in topic.partitions.values()
        )

    def close(self) -> None:
        self.workers.kill()


def _coordinated(cluster: Cluster, kind: KeyType, prefix: str, broker_id: int) -> str:
    """Return a name with the prefix that a broker coordinates."""
    for number in itertools.count():
        name = f"{prefix}-{number}"
        if _coordinator_of(cluster, kind, name) == broker_id:
            return name
    raise AssertionError


def _coordinator_of(cluster: Cluster, kind: KeyType, name: str) -> int:
    found: list[int] = []

    def look() -> bool:
        try:
            found.append(find_coordinator(cluster, kind, name).node_id)
        except CoordinatorNotAvailable:
            return False
        return True

    until(look, f"{name} has a coordinator")
    return found[0]


def _answered(ask: Callable[[], T], within_s: float) -> T:
    """Ask again while brokers are about to take their partitions back."""
    end = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except KafkaError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _is_over(admin: TransactionAdmin, name: str, now_ms: int) -> bool:
    try:
        found = admin.describe(name)
    except KafkaError:
        return False
    return found.state in ENDED or (found.started_ms or 0) > now_ms


def _open(consumer: Consumer, ends: dict[TopicPartition, int]) -> list[TopicPartition]:
    try:
        stable = consumer.end_offsets(ends)
    except KafkaError:
        return list(ends)
    return [at for at, end in ends.items() if stable[at] < end]
