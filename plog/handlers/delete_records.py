"""DeleteRecords: raises the log start offsets of partitions."""

from __future__ import annotations

from pathlib import Path

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


@handles(DeleteRecordsRequest, versions="0-2")
async def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Raise the log start offset of partitions this broker leads; it stays there over a kill."""
    touched: set[Path] = set()
    results = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                await _delete_before(ctx, topic.name, asked, touched) for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    for log_dir in sorted(touched):
        store = ctx.services.logs.checkpoints.store_log_start_offsets
        await ctx.at_disk(log_dir, store, log_dir)
    return DeleteRecordsResponse(topics=results)


async def _delete_before(
    ctx: Context, topic: str, asked: DeleteRecordsPartition, touched: set[Path]
) -> DeleteRecordsPartitionResult:
    """Raise one log start offset, and add the log's directory to those that are `touched`."""
    at = TopicPartition(topic, asked.partition_index)
    try:
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"{topic} is an internal topic")
        partition = ctx.services.replicas.leader(at)
        if "delete" not in partition.settings.cleanup_policy:
            raise PolicyViolation(
                f"{topic} is compacted: records can be deleted only with cleanup.policy=delete"
            )
        log = partition.log
        offset = log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        if offset < 0 or offset > log.high_watermark:
            raise OffsetOutOfRange(
                f"{at}: offset {asked.offset} is not in 0 .. high watermark {log.high_watermark}"
            )
        log_dir = log.log_dir
        low_watermark = await ctx.at_disk(log_dir, log.delete_records_before, offset)
        touched.add(log_dir)
    except KafkaError as refusal:
        return DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=-1, error_code=refusal.code
        )
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index,
        low_watermark=low_watermark,
        error_code=ErrorCode.NONE,
    )
