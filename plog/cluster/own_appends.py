"""Records that the broker writes for itself, to partitions that it leads.

Owns their order, and the wait until they are as safe as a producer's with acks=all. Never decides
what is written, nor what becomes of those who wait when it cannot be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

from plog._native import records
from plog._native.partition_guards import TxnGuard
from plog._native.partition_log import Appended
from plog.cluster.acks_all import AckWait
from plog.cluster.change_bells import ChangeBells
from plog.cluster.partition import ACKS_ALL, Partition
from plog.cluster.replica_manager import ReplicaManager
from plog.errors import MessageTooLarge, NotLeaderOrFollower
from plog.protocol import record_batch
from plog.runtime.clock import Clock
from plog.runtime.purgatory import Purgatory
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.producer_state import Marker
from plog.types import TopicPartition


class Pair(NamedTuple):
    """A record's key and value; None deletes what the key names."""

    key: bytes
    value: bytes | None


class Writer(NamedTuple):
    """The producer in whose transaction records are written, and its guard if they begin it."""

    producer_id: int
    producer_epoch: int
    guard: TxnGuard | None


def ignore(position: int, /) -> None:
    """For those who only want to know when records are safe."""


class OwnAppends:
    """Appends for coordinators, in the event loop.

    Args:
        timeout_ms: how long the in-sync replicas may take.
    """

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        logs: LogManager,
        purgatory: Purgatory[TopicPartition],
        bells: ChangeBells,
        clock: Clock,
        timeout_ms: int = 5_000,
    ) -> None:
        self._replicas = replicas
        self._logs = logs
        self._purgatory = purgatory
        self._bells = bells
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._unfinished: Counter[Log] = Counter()
        """How many appends of a log wait for a disk's thread, or are in it."""

    async def append(
        self,
        at: TopicPartition,
        pairs: Sequence[Pair],
        *,
        codec: int = record_batch.NONE,
        of: Writer | None = None,
        appended: Callable[[int], None] = ignore,
    ) -> int:
        """Append records as one batch, and return the offset of the first once all are safe.

        What was appended and is not known to be safe (RequestTimedOut) may become so later.

        Args:
            appended: told that offset at once, before any other append to the partition.

        Raises:
            NotLeaderOrFollower, KafkaStorageError, NotEnoughReplicas: nothing was appended.
            MessageTooLarge: the batch is larger than the topic allows.
            InvalidProducerEpoch, InvalidTxnState: `of` may not write here.
            RequestTimedOut, NotEnoughReplicasAfterAppend: appended, but not known to be safe.
        """
        now_ms = self._clock.now_ms()
        builder = partial(
            records.build_batch, [(now_ms, key, value, ()) for key, value in pairs], codec=codec
        )
        partition = self._replicas.leader(at)
        if of is None:
            data = bytearray(builder())
            append = partial(partition.append, data, acks=ACKS_ALL, now_ms=now_ms)
        else:
            data = bytearray(
                builder(
                    producer_id=of.producer_id,
                    producer_epoch=of.producer_epoch,
                    transactional=True,
                )
            )
            append = partial(partition.append_for_coordinator, data, now_ms=now_ms, guard=of.guard)
        limit = partition.settings.max_message_bytes
        if len(data) > limit:
            raise MessageTooLarge(f"batch of {len(data)} bytes, max.message.bytes is {limit}")
        done = await self._append(partition, append)
        appended(done.base_offset)
        await self._until_safe(partition, done)
        return done.base_offset

    async def append_marker(
        self, at: TopicPartition, producer_id: int, producer_epoch: int, marker: Marker
    ) -> None:
        """End a producer's transaction in a partition, safely.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: somebody later has been there.
            NotLeaderOrFollower, KafkaStorageError, NotEnoughReplicas: nothing was appended.
            RequestTimedOut, NotEnoughReplicasAfterAppend: appended, but not known to be safe.
        """
        partition = self._replicas.leader(at)
        now_ms = self._clock.now_ms()
        done = await self._append(
            partition,
            partial(partition.append_marker, producer_id, producer_epoch, marker, now_ms=now_ms),
        )
        await self._until_safe(partition, done)

    async def _append(self, partition: Partition, append: Callable[[], Appended]) -> Appended:
        """Append in the event loop, or in a disk's thread; never before what came earlier."""
        disks, log = self._replicas.disks, partition.log

        def append_there() -> Appended:
            # What came later may be in the log that has taken this one's place.
            if partition.log is not log:
                raise NotLeaderOrFollower(f"{partition.topic_partition} has moved")
            return append()

        is_first = log not in self._unfinished
        self._unfinished[log] += 1
        try:
            if is_first:
                return await disks.at_log(log, append_there)
            return await disks.in_thread(log.log_dir, append_there)
        finally:
            self._unfinished[log] -= 1
            if not self._unfinished[log]:
                del self._unfinished[log]

    async def _until_safe(self, partition: Partition, done: Appended) -> None:
        wait = AckWait(partition, done)
        wait.start_flush(self._logs, self._purgatory)
        at = partition.topic_partition
        with self._listening(partition, wait):
            if not await self._purgatory.wait([at], self._timeout_ms, wait.is_safe):
                raise wait.timed_out()

    def _listening(self, partition: Partition, wait: AckWait) -> AbstractContextManager[None]:
        """Hear of what followers have, where the answer depends on it."""
        if wait.log is None or len(partition.leadership.replicas) == 1:
            return nullcontext()
        return self._bells.listening(partition.topic_partition, wait.log.native)
