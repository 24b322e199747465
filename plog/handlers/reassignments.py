"""Reassignments of partitions to other brokers (KIP-455). The controller moves them.

Kafka's tool sends them even when it only moves replicas between log directories.
"""

from __future__ import annotations

from functools import partial

from plog.cluster.controller_context import Assignment
from plog.errors import ErrorCode, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from plog.types import TopicPartition

NO_MESSAGE = ""
"""Not null, as from Kafka with ZooKeeper, which knows version 0 alone."""


@handles(AlterPartitionReassignmentsRequest, versions="0-1")
async def alter_partition_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begin moves of partitions, and give others up."""
    targets = {
        TopicPartition(topic.name, asked.partition_index): (
            None if asked.replicas is None else tuple(asked.replicas)
        )
        for topic in request.topics
        for asked in topic.partitions
    }
    answer = AlterPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=NO_MESSAGE if ctx.version == 0 else None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[],
    )
    ctx.ends_in(request.timeout_ms)
    try:
        codes = await ctx.from_controller(
            partial(
                ctx.services.controller.reassign,
                targets,
                may_change_factor=request.allow_replication_factor_change,
            )
        )
    except KafkaError as refusal:
        answer.error_code, answer.error_message = refusal.code, str(refusal)
        return answer
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            at = TopicPartition(topic.name, asked.partition_index)
            results.append(_answered(ctx, at, asked.replicas, codes[at]))
        answer.responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    return answer


def _answered(
    ctx: Context, at: TopicPartition, replicas: list[int] | None, code: ErrorCode
) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=at.partition,
        error_code=code,
        error_message=None if code is ErrorCode.NONE else _reason(ctx, at, replicas, code),
    )


def _reason(ctx: Context, at: TopicPartition, replicas: list[int] | None, code: ErrorCode) -> str:
    """Say why a move is refused."""
    match code:
        case ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            return f"{str(at)[:300]!r} has no reassignment in progress"
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return f"{str(at)[:300]!r} does not exist"
        case ErrorCode.REASSIGNMENT_IN_PROGRESS:
            return f"the replicas of {at} have just been changed by another request"
        case ErrorCode.INVALID_REPLICATION_FACTOR:
            return f"{at} has another number of replicas than {replicas}"
    if replicas is not None and (not replicas or len(set(replicas)) < len(replicas)):
        return f"{replicas} is empty or names a broker twice"
    known = ctx.services.metadata.snapshot.brokers
    if unknown := [broker for broker in replicas or () if broker not in known]:
        return f"{replicas} names unknown brokers: {unknown}"
    return f"none of the replicas that {at} would keep is in sync"


@handles(ListPartitionReassignmentsRequest, versions="0-0")
async def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Say which partitions move."""
    asked = (
        None
        if request.topics is None
        else [
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        ]
    )
    ctx.ends_in(request.timeout_ms)
    answer = ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE, error_message=NO_MESSAGE, topics=[]
    )
    try:
        moving = await ctx.from_controller(partial(ctx.services.controller.moves, asked))
    except KafkaError as refusal:
        answer.error_code, answer.error_message = refusal.code, str(refusal)
        return answer
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for at, assignment in sorted(moving.items()):
        by_topic.setdefault(at.topic, []).append(_move(at, assignment))
    answer.topics = [
        OngoingTopicReassignment(name=name, partitions=partitions)
        for name, partitions in by_topic.items()
    ]
    return answer


def _move(at: TopicPartition, assignment: Assignment) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=at.partition,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding),
        removing_replicas=list(assignment.removing),
    )
