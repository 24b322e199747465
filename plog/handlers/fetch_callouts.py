"""The unusual partitions of a Fetch: reads them, or refuses them.

Owns the checks of KIP-320 and the budget of the partitions that it reads; reading is the log's. It
takes over what a follower has if its log has not parted from this one. The reactor knows whether
all is enough, waits for more, and responds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from plog._native.fetch_callout import AskedRange, FetchCallout, Found
from plog._native.partition_log import FileRange
from plog.cluster.partition import Partition
from plog.errors import (
    ErrorCode,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnsupportedCompressionType,
)
from plog.handlers.context import Context
from plog.handlers.leader_hints import NO_HINT, endpoints_of, hint_of
from plog.handlers.registry import decides
from plog.network.control_plane import Decided
from plog.protocol.messages.fetch import FetchRequest
from plog.storage.leader_epochs import UnknownEpoch
from plog.storage.log import ColdRead, Log
from plog.types import NO_EPOCH, NO_OFFSET, TopicPartition

CONSUMER, DEBUGGING_CONSUMER = -1, -2
"""As replica ids; 0 and above are followers. A debugging consumer reads past the high watermark."""
ZSTD, ZSTD_SINCE = "zstd", 10
TOPIC_IDS_SINCE = 13
LEADER_HINTS_SINCE = 16
NOT_READ = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)
"""Errors of partitions whose logs are not looked at; they have an empty list of aborted
transactions."""


@decides(FetchRequest, versions="4-18")
async def decide(ctx: Context, callout: FetchCallout) -> Decided:
    """Read what may be read; one partition's error leaves the others alone.

    A disk is waited for once at most, beside the event loop.
    """
    reading = _Reading(ctx, callout)
    try:
        found = reading.read(may_wait=False)
    except ColdRead as cold:
        with ctx.connection.while_open():
            found = await ctx.services.replicas.disks.in_thread(cold.log_dir, reading.read_through)
    return Decided(found, endpoints_of(ctx, (one.leader_id for one in found)))


class _Reading:
    """Reads the partitions of a callout, as often as it is asked to."""

    def __init__(self, ctx: Context, callout: FetchCallout) -> None:
        self._ctx = ctx
        self._callout = callout
        self._asked = callout.asked
        self._noted: set[tuple[bytes, str, int]] = set()

    def read(self, *, may_wait: bool) -> list[Found]:
        """Read them in their order, within the budget.

        Raises:
            ColdRead: the disk must be asked; not with `may_wait`.
        """
        found = []
        budget, is_first = self._callout.max_bytes, self._callout.is_first
        for asked in self._asked:
            is_first = is_first and asked.bytes_before == 0
            budget = max(budget - asked.bytes_before, 0)
            # The first bytes of a response are never refused for their size, or one large
            # batch would stop its consumer for ever (KIP-74).
            one = self._read(asked, min(max(asked.max_bytes, 0), budget), is_first, may_wait)
            if isinstance(one.records, FileRange):
                is_first = False
                budget = max(budget - len(one.records), 0)
            found.append(one)
        return found

    def read_through(self) -> list[Found]:
        """Read them, however long it takes, and have their pages where they are sent from."""
        found = self.read(may_wait=True)
        for one in found:
            if isinstance(one.records, FileRange) and not one.records.is_resident():
                one.records.read_through()
        return found

    def _read(self, asked: AskedRange, limit: int, is_first: bool, may_wait: bool) -> Found:
        at = TopicPartition(asked.topic, asked.partition)
        try:
            if self._ctx.version >= TOPIC_IDS_SINCE:
                topic_id = uuid.UUID(bytes=asked.topic_id)
                at = at._replace(topic=self._ctx.topic_of_id(topic_id))
            return self._read_partition(at, asked, limit, is_first, may_wait)
        except KafkaError as refusal:
            return _refusal(self._ctx, at, refusal)

    def _read_partition(
        self, at: TopicPartition, asked: AskedRange, limit: int, is_first: bool, may_wait: bool
    ) -> Found:
        partition = self._ctx.services.replicas.leader(at, asked.leader_epoch)
        if self._ctx.version >= TOPIC_IDS_SINCE and partition.topic_id.bytes != asked.topic_id:
            raise InconsistentTopicId(f"{at} has topic id {partition.topic_id} on this broker")
        self._check_replica(at, partition, asked)
        while True:
            log = partition.log
            try:
                return self._read_log(partition, log, asked, limit, is_first, may_wait)
            except KafkaStorageError:
                if partition.hosted_log is log:
                    raise
                # It has just moved to another directory.

    def _check_replica(self, at: TopicPartition, partition: Partition, asked: AskedRange) -> None:
        callout = self._callout
        if callout.is_followers:
            partition.check_follower(callout.replica_id, callout.replica_epoch, asked.leader_epoch)
        elif callout.replica_id > CONSUMER:
            raise _not_a_follower(callout.replica_id, at, asked)

    def _note(self, partition: Partition, log: Log, asked: AskedRange) -> None:
        """Take over what a follower has, once for each of its requests."""
        if not log.log_start_offset <= asked.offset <= log.log_end_offset:
            return  # the read says so
        which = (asked.topic_id, asked.topic, asked.partition)
        if asked.is_noted or which in self._noted:
            return
        callout = self._callout
        partition.note_follower(
            callout.replica_id,
            callout.replica_epoch,
            asked.leader_epoch,
            asked.offset,
            asked.log_start_offset,
            callout.came_ms,
        )
        self._noted.add(which)

    def _read_log(
        self,
        partition: Partition,
        log: Log,
        asked: AskedRange,
        limit: int,
        is_first: bool,
        may_wait: bool,
    ) -> Found:
        if self._ctx.version < ZSTD_SINCE and log.settings.compression_type == ZSTD:
            # As in Kafka, the topic's setting decides alone. Batches that producers compressed go
            # to every client: an old version of the protocol may belong to a client with zstd.
            raise UnsupportedCompressionType(f"zstd topics need Fetch v{ZSTD_SINCE} or newer")
        is_followers = self._callout.is_followers
        read_committed = self._callout.read_committed and not is_followers

        def read() -> FileRange | None:
            if diverging_epoch != NO_EPOCH:
                return None
            return log.read(asked.offset, limit, upper, is_first, may_wait)

        while True:
            truncations = log.native.truncations
            diverging_epoch, diverging_end = _divergence(partition, asked)
            if is_followers and diverging_epoch == NO_EPOCH:
                self._note(partition, log, asked)
            upper = self._readable_end(partition, log)
            found, aborted = (
                _read_committed(log, read, asked, upper) if read_committed else (read(), None)
            )
            # Or these are from before a truncation, and the log has been filled again past them.
            if log.native.truncations == truncations:
                break
        return Found(
            ErrorCode.NONE,
            b"" if found is None else found,
            partition.shown_to_followers if is_followers else log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            aborted,
            diverging_epoch,
            diverging_end,
        )

    def _readable_end(self, partition: Partition, log: Log) -> int:
        if self._callout.is_followers or self._callout.replica_id == DEBUGGING_CONSUMER:
            return log.log_end_offset
        return partition.readable_end(read_committed=self._callout.read_committed)


def _read_committed(
    log: Log, read: Callable[[], FileRange | None], asked: AskedRange, upper: int
) -> tuple[FileRange | None, list[tuple[int, int]]]:
    found, entries = log.transactions.read_committed(read, asked.offset, upper)
    return found, [(entry.producer_id, entry.first_offset) for entry in entries]


def _not_a_follower(replica_id: int, at: TopicPartition, asked: AskedRange) -> KafkaError:
    text = f"broker {replica_id} is not a replica of {at}"
    if asked.leader_epoch == NO_EPOCH:
        return NotLeaderOrFollower(text)
    # It agrees with this leader on the epoch, so it may become one that is only not known yet.
    return UnknownLeaderEpoch(text)


def _divergence(partition: Partition, asked: AskedRange) -> tuple[int, int]:
    """Return the epoch and the offset where the logs of reader and leader part (KIP-595).

    NO_EPOCH, NO_OFFSET: they do not.
    """
    log, at = partition.log, partition.topic_partition
    try:
        found = log.divergence(asked.last_epoch, asked.offset)
    except UnknownEpoch:
        raise OffsetOutOfRange(f"{at}: unknown leader epoch {asked.last_epoch}") from None
    if asked.last_epoch != NO_EPOCH and asked.offset < log.log_start_offset:
        raise OffsetOutOfRange(
            f"{at}: offset {asked.offset} is below the log's start, {log.log_start_offset}"
        )
    return (NO_EPOCH, NO_OFFSET) if found is None else found


def _refusal(ctx: Context, at: TopicPartition, refusal: KafkaError) -> Found:
    is_elsewhere = refusal.code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    )
    hint = hint_of(ctx, at) if is_elsewhere and ctx.version >= LEADER_HINTS_SINCE else NO_HINT
    log_start_offset = NO_OFFSET
    if refusal.code == ErrorCode.OFFSET_OUT_OF_RANGE:
        # Clients that reset want to know where the log begins (v5+).
        known = ctx.services.replicas.get(at)
        if known is not None and (log := known.hosted_log) is not None:
            log_start_offset = log.log_start_offset
    return Found(
        refusal.code,
        None if refusal.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE else b"",
        NO_OFFSET,
        NO_OFFSET,
        log_start_offset,
        [] if refusal.code in NOT_READ else None,
        leader_id=hint.leader_id,
        leader_epoch=hint.leader_epoch,
    )
