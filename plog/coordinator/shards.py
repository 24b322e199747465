"""The partitions of one internal topic that this broker leads, each as what it keeps in memory.

Owns how a partition is taken over (its log is read in a thread of its own), given up, and found by
a key's hash. What is kept of a partition is the coordinator's, and so is whatever happens to it.
For the event loop's thread, but for `on_leadership`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from plog.cluster.partition import Partition
from plog.coordinator.group_hash import partition_of
from plog.coordinator.replay import Replayed, replay
from plog.errors import CoordinatorLoadInProgress, KafkaError, NotCoordinator
from plog.storage.log import Log

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a log that could not be read is read again."""


class Shard(Protocol):
    """What is kept of one partition."""

    partition: int
    leader_epoch: int

    def fill(self, replayed: Replayed) -> None:
        """Take in what the partition's log says; in a thread, and before anybody asks."""
        ...


S = TypeVar("S", bound=Shard)
Work = Callable[[], Coroutine[None, None, None]]


class Shards(Generic[S]):
    """The shards of one topic.

    Args:
        partitions: tells how many the topic has, or will have.
        make: makes an empty shard of a partition and the epoch that it is led in.
        taken: told of a shard that is served from now on.
        given_up: told of one that is not.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        *,
        partitions: Callable[[], int],
        load_bytes: int,
        make: Callable[[int, int], S],
        taken: Callable[[S], None],
        given_up: Callable[[S], None],
    ) -> None:
        self._loop = loop
        self.topic = topic
        self._partitions = partitions
        self._load_bytes = load_bytes
        self._make = make
        self._taken = taken
        self._given_up = given_up
        self._served: dict[int, S] = {}
        self._loading: dict[int, S] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __iter__(self) -> Iterator[S]:
        """Iterate over those that are served now."""
        return iter(list(self._served.values()))

    @property
    def is_loading(self) -> bool:
        """Whether there is more than what is served."""
        return bool(self._loading)

    @property
    def is_closed(self) -> bool:
        """Whether the broker stops."""
        return self._is_closed

    def index_of(self, key: str) -> int:
        """Return the partition that keeps a key, whoever leads it."""
        return partition_of(key, self._partitions())

    def of(self, key: str) -> S:
        """Return the shard that keeps a key, whether there is something under it or not.

        Raises:
            NotCoordinator: another broker keeps it.
            CoordinatorLoadInProgress: its log is being read.
        """
        index = self.index_of(key)
        shard = self._served.get(index)
        if shard is not None:
            return shard
        if index in self._loading:
            raise CoordinatorLoadInProgress(f"{self.topic}-{index} is loading")
        raise NotCoordinator(f"{self.topic}-{index} is not led here")

    def at(self, index: int) -> S | None:
        """Return the shard of a partition, None if it is not served here (yet)."""
        return self._served.get(index)

    def loading(self, index: int) -> S | None:
        """Return the shard of a partition whose log is being read, in a thread."""
        return self._loading.get(index)

    def is_served(self, shard: S) -> bool:
        """Tell whether a shard is still the one that is served."""
        return not self._is_closed and self._served.get(shard.partition) is shard

    # -- they come and go --------------------------------------------------------------------

    def on_leadership(self, leading: Iterable[Partition], following: Iterable[Partition]) -> None:
        """Take over and give up partitions. From any thread."""
        ours = [one for one in leading if one.topic_partition.topic == self.topic]
        gone = [one for one in following if one.topic_partition.topic == self.topic]
        if (ours or gone) and not self._is_closed:
            self._loop.call_soon_threadsafe(self._change, ours, gone)

    def _change(self, leading: list[Partition], following: list[Partition]) -> None:
        if self._is_closed:
            return
        for partition in following:
            self.give_up(partition.topic_partition.partition)
        for partition in leading:
            self._take_over(partition)

    def _take_over(self, partition: Partition) -> None:
        index, epoch = partition.topic_partition.partition, partition.leadership.leader_epoch
        served = self._served.get(index)
        if served is not None:
            # Led on without a break: what is in memory is what the log says.
            served.leader_epoch = max(served.leader_epoch, epoch)
            return
        loading = self._loading.get(index)
        if partition.hosted_log is None or (loading is not None and loading.leader_epoch >= epoch):
            return
        shard = self._loading[index] = self._make(index, epoch)
        self.spawn(self._load(shard, partition))

    async def _load(self, shard: S, partition: Partition) -> None:
        """Read the partition's log, and serve it; after a failure the log that is there then."""
        index = shard.partition

        def is_abandoned() -> bool:
            return self._is_closed or self._loading.get(index) is not shard

        def read(hosted: Log) -> None:
            shard.fill(replay(hosted, chunk_bytes=self._load_bytes, abandoned=is_abandoned))

        pause_s = FIRST_PAUSE_S
        while not is_abandoned():
            hosted = partition.hosted_log
            try:
                if hosted is not None:
                    await asyncio.to_thread(read, hosted)
                    break
            except KafkaError as failure:
                # It may have moved to another directory meanwhile, or its disk have failed.
                log.error("%s-%d is not available yet: %s", self.topic, index, failure)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if is_abandoned():
            return
        del self._loading[index]
        self.serve(shard)

    def serve(self, shard: S) -> None:
        """Serve a shard that knows what its partition's log says."""
        self._served[shard.partition] = shard
        self._taken(shard)

    def give_up(self, index: int) -> None:
        """Serve a partition no more: another broker does, or it is gone."""
        self._loading.pop(index, None)
        shard = self._served.pop(index, None)
        if shard is not None:
            self._given_up(shard)

    def give_up_all(self) -> None:
        """Serve no partition any more and take none over: the broker stops."""
        self._is_closed = True
        for index in [*self._served, *self._loading]:
            self.give_up(index)

    # -- work --------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Have work done beside requests; it is cancelled when the broker stops."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def spawn_every(self, interval_ms: int, work: Work) -> None:
        """Have work done again and again, so long after it has ended."""
        self.spawn(self._again_and_again(interval_ms / 1000, work))

    async def _again_and_again(self, interval_s: float, work: Work) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except Exception as bug:  # noqa: BLE001 - nobody else would begin it again
                at = traceback.extract_tb(bug.__traceback__)[-1]
                log.error(
                    "%s: periodic task failed: %r at %s:%d",
                    self.topic,
                    bug,
                    at.filename,
                    at.lineno or 0,
                )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("%s: the coordinator failed with an internal error", self.topic, exc_info=bug)

    def close(self) -> None:
        """Stop: no work goes on, and nobody is answered."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
