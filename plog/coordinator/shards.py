"""The partitions of an internal topic that this broker leads, each with its state in memory.

Owns taking over a partition (a separate thread reads its log), giving it up, and finding it by the
hash of a key. The coordinator owns the contents of a shard. For the event loop's thread, except
`on_leadership`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from plog.cluster.partition import Partition
from plog.coordinator.failures import bugs_are_errors
from plog.coordinator.group_hash import partition_of
from plog.coordinator.load_queue import LoadQueue
from plog.coordinator.replay import Replayed, replay
from plog.errors import CoordinatorLoadInProgress, KafkaError, NotCoordinator
from plog.storage.log import Log
from plog.types import TopicPartition

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses before another attempt to read a log."""


LOOK_S = 0.02
"""How often a log that was read is looked at until all of it is committed."""


class Shard(Protocol):
    """The state of one partition."""

    partition: int
    leader_epoch: int

    def fill(self, replayed: Replayed) -> None:
        """Fill the shard from the partition's log; runs in a thread, before the first request."""
        ...


S = TypeVar("S", bound=Shard)
Work = Callable[[], Coroutine[None, None, None]]


class Shards(Generic[S]):
    """The shards of one topic.

    Args:
        partitions: returns the number of partitions that the topic has or will have.
        loads: reads the logs, for this topic and others; None: this topic has threads of its own.
        make: creates an empty shard for a partition and a leader epoch.
        taken: called with a shard when it becomes active.
        given_up: called with a shard when it is no longer active.
        loaded: called with the shards that were loaded together, once the last one is active.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        *,
        partitions: Callable[[], int],
        load_bytes: int,
        loads: LoadQueue | None = None,
        make: Callable[[int, int], S],
        taken: Callable[[S], None],
        given_up: Callable[[S], None],
        loaded: Callable[[Sequence[S]], None],
    ) -> None:
        self._loop = loop
        self.topic = topic
        self._partitions = partitions
        self._load_bytes = load_bytes
        self._loads = loads or LoadQueue()
        self._make = make
        self._taken = taken
        self._given_up = given_up
        self._loaded = loaded
        self._loaded_together: list[S] = []
        self._served: dict[int, S] = {}
        self._loading: dict[int, S] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.may_lead: Callable[[TopicPartition], bool] = lambda at: False
        """Whether this broker leads a partition, or does not know yet who leads the log here."""
        self.is_fresh: Callable[[TopicPartition], bool] = lambda at: True
        """Whether this broker would know if another one led a partition by now."""

    def __iter__(self) -> Iterator[S]:
        """Iterate over the active shards."""
        return iter(list(self._served.values()))

    @property
    def is_loading(self) -> bool:
        """Whether some shards are still loading."""
        return bool(self._loading)

    @property
    def all_loading(self) -> list[S]:
        """The shards whose logs are being read in a thread."""
        return list(self._loading.values())

    @property
    def is_closed(self) -> bool:
        """Whether the broker is stopping."""
        return self._is_closed

    def index_of(self, key: str) -> int:
        """Return the partition of a key, regardless of its leader."""
        return partition_of(key, self._partitions())

    def of(self, key: str) -> S:
        """Return the shard of a key, even if the key has no value.

        Raises:
            NotCoordinator: another broker leads its partition.
            CoordinatorLoadInProgress: its log is being read, or will be, as far as this broker
                knows: clients ask it again.
        """
        index = self.index_of(key)
        shard = self._served.get(index)
        if shard is not None:
            return shard
        if index in self._loading:
            raise CoordinatorLoadInProgress(f"{self.topic}-{index} is loading")
        if not self._is_closed and self.may_lead(TopicPartition(self.topic, index)):
            raise CoordinatorLoadInProgress(f"{self.topic}-{index} may be led from here")
        raise NotCoordinator(f"this broker does not lead {self.topic}-{index}")

    def of_fresh(self, key: str) -> S:
        """Return the shard of a key, for a response from memory alone.

        A broker that was stopped past its session has an old state, and leads only as far as it
        knows. What it appends is refused in any case.

        Raises as `of`; NotCoordinator: another broker may lead the partition.
        """
        shard = self.of(key)
        if not self._is_fresh(shard):
            at = f"{self.topic}-{shard.partition}"
            raise NotCoordinator(f"another broker may lead {at}: followers have not fetched lately")
        return shard

    def _is_fresh(self, shard: S) -> bool:
        return self.is_fresh(TopicPartition(self.topic, shard.partition))

    def at(self, index: int) -> S | None:
        """Return the active shard of a partition, or None."""
        return self._served.get(index)

    def loading(self, index: int) -> S | None:
        """Return the shard of a partition whose log is being read in a thread, or None."""
        return self._loading.get(index)

    def is_served(self, shard: S) -> bool:
        """Return whether a shard is still active."""
        return not self._is_closed and self._served.get(shard.partition) is shard

    # -- leadership --------------------------------------------------------------------------

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
            # Still the leader in the same epoch: memory matches the log.
            served.leader_epoch = max(served.leader_epoch, epoch)
            return
        loading = self._loading.get(index)
        if partition.hosted_log is None or (loading is not None and loading.leader_epoch >= epoch):
            return
        shard = self._loading[index] = self._make(index, epoch)
        self.spawn(self._load(shard, partition))

    async def _load(self, shard: S, partition: Partition) -> None:
        """Read the partition's log and activate the shard; retry after a failure."""
        index = shard.partition

        def is_abandoned() -> bool:
            return self._is_closed or self._loading.get(index) is not shard

        def read(hosted: Log) -> int:
            found = replay(hosted, chunk_bytes=self._load_bytes, abandoned=is_abandoned)
            shard.fill(found)
            return found.end_offset

        end = 0
        pause_s = FIRST_PAUSE_S
        while not is_abandoned():
            hosted = partition.hosted_log
            try:
                if hosted is not None:
                    with bugs_are_errors("reading a log"):
                        end = await self._loads.run(hosted.size_bytes, partial(read, hosted))
                    break
            except KafkaError as failure:
                # The log may have moved to another directory, or its disk may have failed.
                log.error("%s-%d is not available yet: %s", self.topic, index, failure)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        # Clients do not hear of records that another leader may take back, nor of old ones.
        while not is_abandoned() and not (_has_committed(partition, end) and self._is_fresh(shard)):
            await asyncio.sleep(LOOK_S)
        if is_abandoned():
            return
        del self._loading[index]
        self.serve(shard)
        self._loaded_together.append(shard)
        if not self._loading:
            together, self._loaded_together = self._loaded_together, []
            self._loaded(together)

    def serve(self, shard: S) -> None:
        """Activate a shard that was filled from its log."""
        self._served[shard.partition] = shard
        self._taken(shard)

    def give_up(self, index: int) -> None:
        """Drop a partition that another broker leads now, or that was deleted."""
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
        """Run a task next to requests; it is cancelled when the broker stops."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def spawn_every(self, interval_ms: int, work: Work) -> None:
        """Repeat a task, with a pause of `interval_ms` after each run."""
        self.spawn(self._again_and_again(interval_ms / 1000, work))

    async def _again_and_again(self, interval_s: float, work: Work) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except Exception as bug:  # noqa: BLE001 - the task must run again
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
        """Cancel all tasks; pending requests get no response."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()


def _has_committed(partition: Partition, end: int) -> bool:
    """Return whether all below an offset is on every replica in sync."""
    log = partition.hosted_log
    return log is not None and log.high_watermark >= end
