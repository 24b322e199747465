"""Orders that come while a coordinator reads a log: memory of another life is never used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plog.cluster.partition import Partition
from plog.coordinator.replay import Replayed
from plog.coordinator.shards import Shards
from plog.errors import NotCoordinator
from plog.storage.log import Log
from plog.types import TopicPartition
from tests.storage.storage_logs import NOW_MS, batch, open_log

AT = TopicPartition("__consumer_offsets", 0)
WAIT_S = 60


@dataclass
class Shard:
    """The number of records of the log that it was filled from."""

    stage: Stage
    partition: int
    leader_epoch: int
    count: int = -1

    def fill(self, replayed: Replayed) -> None:
        self.count = replayed.end_offset
        self.stage.hold(self)


@dataclass
class Stage:
    """One partition of a coordinator's topic. Its logs are held as they are read."""

    directory: Path
    logs: list[Log] = field(default_factory=list)
    held: list[tuple[Shard, threading.Event]] = field(default_factory=list)
    active: list[Shard] = field(default_factory=list)
    shards: Shards[Shard] = field(init=False)
    partition: Any = None

    def begin(self) -> None:
        self.shards = Shards(
            asyncio.get_running_loop(),
            AT.topic,
            partitions=lambda: 1,
            load_bytes=1_000,
            make=lambda index, epoch: Shard(self, index, epoch),
            taken=self.active.append,
            given_up=self.active.remove,
            loaded=lambda together: None,
        )

    def hold(self, shard: Shard) -> None:
        goes_on = threading.Event()
        self.held.append((shard, goes_on))
        assert goes_on.wait(WAIT_S)

    async def do(self, order: str) -> None:
        """Obey `log 3` (a new log of 3 records), `lead 1`, `held 1`, `follow`, `go on` or `end`."""
        match order.split():
            case ["log", count]:
                log = open_log(self.directory / f"log{len(self.logs)}")
                self.logs.append(log)
                log.append_as_leader(batch(int(count)), now_ms=NOW_MS)
                self.partition = SimpleNamespace(topic_partition=AT, hosted_log=log)
            case ["lead", epoch]:
                self.partition.leadership = SimpleNamespace(leader_epoch=int(epoch))
                self.shards.on_leadership([cast(Partition, self.partition)], [])
            case ["follow"]:
                self.shards.on_leadership([], [cast(Partition, self.partition)])
            case ["offline"]:
                self.partition.hosted_log = None
                self.shards.on_leadership([], [cast(Partition, self.partition)])
            case ["held", number]:
                while len(self.held) < int(number):
                    await asyncio.sleep(0.001)
            case ["go", "on"]:
                for _, goes_on in self.held:
                    goes_on.set()
            case ["end"]:
                for _, goes_on in self.held:
                    goes_on.set()
                await asyncio.sleep(0)  # the orders
                while self.shards.is_loading or self.shards._tasks:
                    for _, goes_on in list(self.held):
                        goes_on.set()
                    await asyncio.sleep(0.001)


STORIES: dict[str, Sequence[str]] = {
    # The lead ends as its log is read: KAFKA-9307, KAFKA-16030.
    "-": ("log 3", "lead 1", "held 1", "follow", "end"),
    "- offline": ("log 3", "lead 1", "held 1", "offline", "end"),
    # And begins again before that reader has ended: its memory is that of the first lead.
    "4@3": ("log 3", "lead 1", "held 1", "follow", "log 4", "lead 3", "held 2", "end"),
    # A later epoch of the same lead keeps the memory; the topic that is created again does not.
    "3@2": ("log 3", "lead 1", "held 1", "end", "lead 2", "end"),
    "5@0": ("log 3", "lead 7", "held 1", "end", "follow", "log 5", "lead 0", "held 2", "end"),
    # Deleted and created again while it is read: KAFKA-19274.
    "5@0 read": ("log 3", "lead 7", "held 1", "follow", "log 5", "lead 0", "held 2", "end"),
    # It leads again in an epoch that a reader is at work for already.
    "3@1": ("log 3", "lead 1", "held 1", "lead 1", "end"),
}


@pytest.mark.parametrize("expected", STORIES)
def test_kafka_9307_memory_is_that_of_the_last_lead(tmp_path: Path, expected: str) -> None:
    async def play() -> None:
        stage = Stage(tmp_path)
        stage.begin()
        async with asyncio.timeout(WAIT_S):
            for order in STORIES[expected]:
                await stage.do(order)
        found = [f"{one.count}@{one.leader_epoch}" for one in stage.shards]
        assert found == ([] if expected[0] == "-" else [expected.split()[0]])
        assert stage.active == list(stage.shards)
        if not found:
            with pytest.raises(NotCoordinator):
                stage.shards.of("any key")
        stage.shards.close()
        for log in stage.logs:
            log.close()

    asyncio.run(play())
