"""OffsetForLeaderEpoch (KIP-101, KIP-320): where a leader epoch ends in this log."""

from __future__ import annotations

from plog.errors import ErrorCode, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from plog.types import TopicPartition


@handles(OffsetForLeaderEpochRequest, versions="0-4")
def offset_for_leader_epoch(
    ctx: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look every partition up."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(ctx, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _end_offset(ctx: Context, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = ctx.services.replicas.leader(
            TopicPartition(topic, asked.partition), asked.current_leader_epoch
        )
        epoch, end_offset = partition.log.epoch_end_offset(asked.leader_epoch)
    except KafkaError as refusal:
        return EpochEndOffset(error_code=refusal.code, partition=asked.partition)
    return EpochEndOffset(
        error_code=ErrorCode.NONE,
        partition=asked.partition,
        leader_epoch=epoch,
        end_offset=end_offset,
    )
