"""DeleteRecords: raises the log start offsets of partitions, here and on their followers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from plog.cluster.metadata_cache import MetadataSnapshot
from plog.cluster.topic_admin import INTERNAL_TOPICS
from plog.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    OffsetOutOfRange,
    PolicyViolation,
)
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from plog.types import TopicPartition

HIGH_WATERMARK = -1
"""As the offset of DeleteRecords: everything that is committed."""
NO_LOW_WATERMARK = -1


@handles(DeleteRecordsRequest, versions="0-2")
async def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Raise the log start offset of partitions this broker leads; it stays there over a kill.

    A partition is done once all its live replicas have deleted the records.
    """
    ends_ms = ctx.services.clock.monotonic_ms() + request.timeout_ms
    deletions = [
        _Deletion(ctx, TopicPartition(topic.name, asked.partition_index), asked)
        for topic in request.topics
        for asked in topic.partitions
    ]
    touched: set[Path] = set()
    for deletion in deletions:
        await deletion.begin(touched)
    for log_dir in sorted(touched):
        store = ctx.services.logs.checkpoints.store_log_start_offsets
        await ctx.at_disk(log_dir, store, log_dir)
    await _until_followers_have_deleted(
        ctx, [one for one in deletions if not one.is_done()], ends_ms
    )
    results = iter(deletions)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[next(results).result for _ in topic.partitions]
            )
            for topic in request.topics
        ]
    )


class _Deletion:
    """The deletion of one partition's records.

    Attributes:
        result: what the response says; of one that is not done, that its time is over.
    """

    def __init__(self, ctx: Context, at: TopicPartition, asked: DeleteRecordsPartition) -> None:
        self.at = at
        self._services = ctx.services
        self._at_disk = ctx.at_disk
        self._offset = asked.offset
        self._is_done = False
        self.result = DeleteRecordsPartitionResult(
            partition_index=at.partition,
            low_watermark=NO_LOW_WATERMARK,
            error_code=ErrorCode.REQUEST_TIMED_OUT,
        )

    async def begin(self, touched: set[Path]) -> None:
        """Raise the log start offset here, and add the log's directory to those `touched`."""
        try:
            if self.at.topic in INTERNAL_TOPICS:
                raise InvalidTopic(f"{self.at.topic} is an internal topic")
            partition = self._services.replicas.leader(self.at)
            if "delete" not in partition.settings.cleanup_policy:
                raise PolicyViolation(
                    f"{self.at.topic} is compacted: records can be deleted only with"
                    " cleanup.policy=delete"
                )
            log = partition.log
            asked, high_watermark = self._offset, log.high_watermark
            if asked == HIGH_WATERMARK:
                self._offset = high_watermark
            elif not 0 <= asked <= high_watermark:
                raise OffsetOutOfRange(
                    f"{self.at}: offset {asked} is not in 0 .. high watermark {high_watermark}"
                )
            await self._at_disk(log.log_dir, log.delete_records_before, self._offset)
            touched.add(log.log_dir)
            self.result.low_watermark = partition.low_watermark(self._is_alive)
            self._note(self.result.low_watermark)
        except KafkaError as refusal:
            self._end(refusal.code, NO_LOW_WATERMARK)

    def is_done(self) -> bool:
        """Tell whether all live replicas have deleted the records, or this broker cannot know."""
        if self._is_done:
            return True
        try:
            low_watermark = self._services.replicas.leader(self.at).low_watermark(self._is_alive)
        except KafkaError as refusal:
            self._end(refusal.code, NO_LOW_WATERMARK)
            return True
        self._note(low_watermark)
        return self._is_done

    def listen(self, listening: ExitStack) -> None:
        """Have `is_done` asked again when a follower has deleted records."""
        partition = self._services.replicas.get(self.at)
        if partition is not None and (log := partition.hosted_log) is not None:
            listening.enter_context(self._services.bells.listening(self.at, log.native))

    def _note(self, low_watermark: int) -> None:
        if low_watermark >= self._offset:
            self._end(ErrorCode.NONE, low_watermark)

    def _is_alive(self, broker_id: int) -> bool:
        return broker_id in self._services.metadata.snapshot.brokers

    def _end(self, code: ErrorCode, low_watermark: int) -> None:
        self.result.error_code, self.result.low_watermark = code, low_watermark
        self._is_done = True


async def _until_followers_have_deleted(
    ctx: Context, deletions: Sequence[_Deletion], ends_ms: int
) -> None:
    """Wait for them, as long as the request's time lasts."""
    if not deletions:
        return
    purgatory = ctx.services.purgatory
    places = [one.at for one in deletions]

    def look_again(snapshot: MetadataSnapshot) -> None:  # a follower may have died
        for at in places:
            purgatory.touch_threadsafe(at)

    def are_done() -> bool:  # each is asked, as the others may not be done in time
        return not [one for one in deletions if not one.is_done()]

    with ctx.connection.while_open(), ExitStack() as listening:
        for one in deletions:
            one.listen(listening)
        listening.callback(ctx.services.metadata.subscribe(look_again))
        left_ms = ends_ms - ctx.services.clock.monotonic_ms()
        await purgatory.wait(places, left_ms, are_done)
