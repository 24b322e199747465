"""The wait of acks=all in the event loop: for Produce requests and for the broker's own appends.

Owns how the wait begins and which error ends it. Whether a batch is safe is decided by the
partition's log alone (`PartitionLog.ack_status`), as for requests that never enter the event loop.
"""

from __future__ import annotations

from plog._native.partition_log import (
    ACK_NOT_LEADER,
    ACK_OFFLINE,
    ACK_SAFE,
    ACK_TOO_FEW_IN_SYNC,
    Appended,
)
from plog.cluster.partition import Partition
from plog.errors import (
    KafkaStorageError,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from plog.runtime.purgatory import Purgatory
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition


class AckWait:
    """One batch that acks=all waits for.

    It keeps the log from the time of the append. The log that takes its place after a move never
    counts: `ack_status` recognizes the log by its id.
    """

    def __init__(self, partition: Partition, appended: Appended) -> None:
        self.topic_partition = partition.topic_partition
        self._partition = partition
        self._log = partition.hosted_log
        self._appended = appended
        self._must_be_durable = partition.settings.flush_before_ack
        self._flush_error: OSError | None = None

    @property
    def log(self) -> Log | None:
        """The log that has the batch."""
        return self._log

    def start_flush(self, logs: LogManager, purgatory: Purgatory[TopicPartition]) -> None:
        """Ask for a flush if the answer depends on one; the purgatory's waiters look after it."""

        def flushed(error: OSError | None) -> None:  # on the commit thread
            if error is not None:
                self._flush_error = error
            purgatory.touch_threadsafe(self.topic_partition)

        if self._log is not None and self._must_be_durable:
            logs.commit(self._log, flushed)

    def is_safe(self) -> bool:
        """Tell whether every in-sync replica has the batch.

        Raises:
            NotLeaderOrFollower: leadership or the log was lost; the records may be gone.
            KafkaStorageError: the partition went offline, or the flush failed.
            NotEnoughReplicasAfterAppend: fewer replicas than min.insync.replicas are in sync.
        """
        status = ACK_NOT_LEADER
        if self._log is not None:
            status = self._log.native.ack_status(
                self._appended, must_be_durable=self._must_be_durable
            )
        if status == ACK_SAFE:
            return True
        offline = self._partition.offline_reason
        if status == ACK_OFFLINE or offline is not None:
            offline = offline or "its log directory has failed"
            raise KafkaStorageError(f"{self.topic_partition} is offline: {offline}")
        if status == ACK_NOT_LEADER:
            raise NotLeaderOrFollower("this broker no longer leads the partition")
        if status == ACK_TOO_FEW_IN_SYNC:
            raise NotEnoughReplicasAfterAppend(
                "the records are committed, but fewer replicas than min.insync.replicas are in sync"
            )
        if self._flush_error is not None:
            raise KafkaStorageError(f"the records are not on disk: {self._flush_error}")
        return False

    def timed_out(self) -> RequestTimedOut:
        """Return the error for a batch that is still not safe when the request's time is over."""
        return RequestTimedOut("the records are not safe on every in-sync replica yet")
