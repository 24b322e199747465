"""TxnOffsetCommit: offsets that a group commits with a transaction (KIP-98, KIP-447)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from plog._native.partition_guards import TxnGuard
from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.txn_connections import Way
from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode, KafkaError
from plog.handlers.context import Context
from plog.handlers.group_ids import check_group_id
from plog.handlers.group_offsets import committable
from plog.handlers.registry import handles
from plog.handlers.transactional_writes import late_of, permission_to_begin
from plog.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from plog.types import TopicPartition

OF_THE_LOG = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What is said of the group's partition, as of its coordinator."""
LOADING_SINCE = 2
"""Clients of earlier versions give up when they are told that a coordinator is loading."""
ABORTABLE_SINCE = 4
"""From this version on TRANSACTION_ABORTABLE is understood (KIP-890)."""
JOINS_SINCE = 5
"""From this version on the group's offsets join the transaction with the first of these."""
TOPIC_IDS_SINCE = 6
"""From this version on topics are given by id."""


@handles(TxnOffsetCommitRequest, versions="0-6")
async def txn_offset_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Commit what can be committed; it stands once the transaction does."""
    now_ms = ctx.services.clock.now_ms()
    offsets, errors = committable(
        ctx,
        request.topics,
        lambda asked, topic_id: _committed(asked, topic_id, now_ms),
        by_id=ctx.version >= TOPIC_IDS_SINCE,
    )
    error = await _commit(ctx, request, offsets) if offsets else ErrorCode.NONE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.version < LOADING_SINCE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=asked.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, asked.partition_index), error
                        ),
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _committed(
    asked: TxnOffsetCommitRequestPartition, topic_id: uuid.UUID, now_ms: int
) -> CommittedOffset:
    return CommittedOffset(
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
        now_ms,
        topic_id=topic_id,
    )


async def _commit(
    ctx: Context,
    request: TxnOffsetCommitRequest,
    offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
) -> ErrorCode:
    producer = Producer(request.producer_id, request.producer_epoch)
    groups = ctx.services.groups
    try:
        check_group_id(request.group_id)
        groups.shards.of(request.group_id)
        if ctx.version < JOINS_SINCE:
            # Also in the middle of a transaction: they have no numbers that would tell, and the
            # offsets of one before would take the place of this one's.
            late = late_of(ctx, request.transactional_id, producer, Way.OFFSETS)
            if late is not None:
                raise late
        guard = await _permission(ctx, request, producer)
        with ctx.connection.aside():
            return await groups.commit_in_transaction(
                request.group_id,
                offsets,
                producer=producer,
                guard=guard,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
            )
    except KafkaError as refusal:
        code = ErrorCode(refusal.code)
        return OF_THE_LOG.get(code, code)


async def _permission(
    ctx: Context, request: TxnOffsetCommitRequest, producer: Producer
) -> TxnGuard | None:
    """Return the guard to begin the transaction in the group's partition, if it takes one.

    Raises KafkaError: it may not begin.
    """
    at = TopicPartition(OFFSETS_TOPIC, ctx.services.groups.shards.index_of(request.group_id))
    log = ctx.services.replicas.leader(at).log
    guard = await ctx.at_log(log, log.transactions.guard_for_producer, *producer)
    if guard is None:
        return None
    permissions = await permission_to_begin(
        ctx,
        request.transactional_id,
        producer,
        {at: (log, guard)},
        way=Way.OFFSETS,
        joins=ctx.version >= JOINS_SINCE,
        may_abort=ctx.version >= ABORTABLE_SINCE,
    )
    if isinstance(found := permissions[at], KafkaError):
        raise found
    return found
