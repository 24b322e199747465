"""Shards of both coordinators load from real logs: two at a time, the smallest first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from plog._native.records import build_batch
from plog.cluster.partition import Partition
from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.load_queue import LoadQueue
from plog.coordinator.replay import Replayed
from plog.coordinator.shards import Shards
from plog.coordinator.txn_coordinator import TRANSACTIONS_TOPIC
from plog.errors import CoordinatorLoadInProgress, NotCoordinator
from plog.types import TopicPartition
from tests.cluster.node import Node

TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
RECORDS = {
    TopicPartition(OFFSETS_TOPIC, 0): 50,
    TopicPartition(OFFSETS_TOPIC, 1): 10,
    TopicPartition(OFFSETS_TOPIC, 2): 40,
    TopicPartition(TRANSACTIONS_TOPIC, 0): 30,
    TopicPartition(TRANSACTIONS_TOPIC, 1): 60,
    TopicPartition(TRANSACTIONS_TOPIC, 2): 20,
}
"""How many records each partition has. The first two load at once."""
WAIT_S = 60


class Watch:
    """Sees which shards load, and holds each until it is let go."""

    def __init__(self) -> None:
        self.order: list[TopicPartition] = []
        self.running = self.most = 0
        self._lock = threading.Lock()
        self._going_on = threading.Semaphore(0)

    def let_one_go(self) -> None:
        self._going_on.release()

    def load(self, at: TopicPartition) -> None:
        with self._lock:
            self.order.append(at)
            self.running += 1
            self.most = max(self.most, self.running)
        assert self._going_on.acquire(timeout=WAIT_S)
        with self._lock:
            self.running -= 1


class Counted:
    """A shard that knows how many records its partition has."""

    def __init__(self, watch: Watch, topic: str, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.count = 0
        self._at = TopicPartition(topic, partition)
        self._watch = watch

    def fill(self, replayed: Replayed) -> None:
        self._watch.load(self._at)
        self.count = len(replayed.table)


@pytest.fixture
def led(tmp_path: Path) -> Iterator[list[Partition]]:
    """Partitions of both topics that this broker leads."""
    directory = tmp_path / "data"
    directory.mkdir()
    node = Node([directory])
    for topic in TOPICS:
        node.create(topic, 3)
    found = []
    for at, count in RECORDS.items():
        partition = node.replicas.leader(at)
        for number in range(count):
            batch = bytearray(build_batch([(node.clock.now_ms(), b"%d" % number, b"v", ())]))
            partition.append(batch, acks=1, now_ms=node.clock.now_ms())
        found.append(partition)
    yield found
    node.stop()


def made(watch: Watch, loads: LoadQueue) -> list[Shards[Counted]]:
    """Return the shards of both topics, which share the threads."""

    def ignore(_: Counted | Iterable[Counted]) -> None:
        """Do nothing."""

    return [
        Shards(
            asyncio.get_running_loop(),
            topic,
            partitions=lambda: 3,
            load_bytes=1000,
            loads=loads,
            make=lambda index, epoch, topic=topic: Counted(watch, topic, index, epoch),
            taken=ignore,
            given_up=ignore,
            loaded=ignore,
        )
        for topic in TOPICS
    ]


def test_two_shards_load_at_once_and_the_smallest_of_the_others_next(led: list[Partition]) -> None:
    watch = Watch()

    async def scenario() -> dict[TopicPartition, int]:
        loads = LoadQueue()
        both = made(watch, loads)
        async with asyncio.timeout(WAIT_S):
            for shards in both:
                shards.on_leadership(led, [])
            while sum(len(one.all_loading) for one in both) < len(RECORDS):
                await asyncio.sleep(0.001)
            for begun in range(2, len(RECORDS) + 1):
                while len(watch.order) < begun:
                    await asyncio.sleep(0.001)
                watch.let_one_go()
            watch.let_one_go()
            while any(one.is_loading for one in both):
                await asyncio.sleep(0.001)
        loads.close()
        return {
            TopicPartition(shards.topic, shard.partition): shard.count
            for shards in both
            for shard in shards
        }

    assert asyncio.run(scenario()) == RECORDS
    assert watch.most == 2
    first, rest = watch.order[:2], watch.order[2:]
    assert set(first) == set(list(RECORDS)[:2])
    assert [RECORDS[at] for at in rest] == [20, 30, 40, 60]


def test_shard_answers_from_memory_only_while_no_other_broker_may_lead(
    led: list[Partition],
) -> None:
    watch = Watch()
    is_fresh = False

    async def scenario() -> None:
        nonlocal is_fresh
        loads = LoadQueue()
        shards, _ = made(watch, loads)
        shards.is_fresh = lambda at: is_fresh
        key = next(key for key in map(str, range(100)) if shards.index_of(key) == 0)
        async with asyncio.timeout(WAIT_S):
            shards.on_leadership(led[:1], [])
            watch.let_one_go()
            while not watch.order or watch.running:
                await asyncio.sleep(0.001)
            await loads.run(0, lambda: None)  # the thread has ended, and so has its waiter
            with pytest.raises(CoordinatorLoadInProgress):
                shards.of_fresh(key)
            is_fresh = True
            while shards.is_loading:
                await asyncio.sleep(0.001)
        shard = shards.of_fresh(key)
        is_fresh = False
        with pytest.raises(NotCoordinator):
            shards.of_fresh(key)
        assert shards.of(key) is shard, "what it appends is refused in any case"
        loads.close()

    asyncio.run(scenario())
