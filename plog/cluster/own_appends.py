"""Records that the broker writes for itself, to partitions that it leads.

Owns the wait until they are as safe as a producer's with acks=all. Never decides what is written,
nor what becomes of those who wait when it cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from plog._native import records
from plog._native.partition_log import Appended
from plog.cluster.partition import ACKS_ALL, Partition
from plog.cluster.replica_manager import ReplicaManager
from plog.errors import KafkaStorageError, MessageTooLarge, RequestTimedOut
from plog.protocol import record_batch
from plog.runtime.clock import Clock
from plog.runtime.purgatory import Purgatory
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition


class Pair(NamedTuple):
    """A record's key and value; None deletes what the key names."""

    key: bytes
    value: bytes | None


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
        clock: Clock,
        timeout_ms: int = 5_000,
    ) -> None:
        self._replicas = replicas
        self._logs = logs
        self._purgatory = purgatory
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def append(
        self,
        at: TopicPartition,
        pairs: Sequence[Pair],
        *,
        codec: int = record_batch.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        """Append records as one batch, and return the offset of the first once all are safe.

        With a producer they are of its transaction. What was appended and is not known to be safe
        (RequestTimedOut) may become so later.

        Raises:
            NotLeaderOrFollower, KafkaStorageError, NotEnoughReplicas: nothing was appended.
            MessageTooLarge: the batch is larger than the topic allows.
            RequestTimedOut: the replicas took too long.
        """
        now_ms = self._clock.now_ms()
        data = bytearray(
            records.build_batch(
                [(now_ms, key, value, ()) for key, value in pairs],
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id >= 0,
            )
        )
        partition = self._replicas.leader(at)
        appended = await self._append(partition, data, now_ms)
        await self._until_safe(partition, appended.last_offset)
        return appended.base_offset

    async def _append(self, partition: Partition, data: bytearray, now_ms: int) -> Appended:
        limit = partition.settings.max_message_bytes
        if len(data) > limit:
            raise MessageTooLarge(f"batch of {len(data)} bytes, max.message.bytes is {limit}")
        append = partial(partition.append, data, acks=ACKS_ALL, now_ms=now_ms)
        slow = partition.slow_log_dir
        return append() if slow is None else await self._replicas.disks.in_thread(slow, append)

    async def _until_safe(self, partition: Partition, last_offset: int) -> None:
        at, failures = partition.topic_partition, list[OSError]()

        def flushed(error: OSError | None) -> None:  # on the commit thread
            if error is not None:
                failures.append(error)
            self._purgatory.touch_threadsafe(at)

        def is_safe() -> bool:
            partition.check_leader()
            log = partition.log
            safe_end = log.high_watermark
            if partition.settings.flush_before_ack:
                safe_end = min(safe_end, log.durable_end)
            if safe_end <= last_offset and failures:
                raise KafkaStorageError(f"the records are not on disk: {failures[0]}")
            return safe_end > last_offset

        if partition.settings.flush_before_ack:
            self._logs.commit(partition.log, flushed)
        if not await self._purgatory.wait([at], self._timeout_ms, is_safe):
            raise RequestTimedOut(f"{at}: the records are not safe on every in-sync replica yet")
