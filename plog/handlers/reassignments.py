"""Reassignments of partitions (KIP-455): no replica moves to another broker yet.

They are supported because Kafka's tool sends them, even when it only moves replicas between log
directories.
"""

from __future__ import annotations

from plog.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from plog.types import CANNOT_MOVE, TopicPartition

NO_MESSAGE = ""
"""Not null, as from Kafka with ZooKeeper, which knows version 0 alone."""


@handles(AlterPartitionReassignmentsRequest, versions="0-1")
def alter_partition_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Accept the replicas that a partition already has, and refuse any others.

    That holds whether the request allows another number of replicas or not.
    """
    return AlterPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=NO_MESSAGE if ctx.version == 0 else None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_reassign(ctx, topic.name, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassign(
    ctx: Context, topic: str, asked: ReassignablePartition
) -> ReassignablePartitionResponse:
    answer = ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_code=ErrorCode.NONE
    )
    try:
        _check(ctx, TopicPartition(topic, asked.partition_index), asked.replicas)
    except KafkaError as refusal:
        answer.error_code, answer.error_message = refusal.code, str(refusal)
    return answer


def _check(ctx: Context, at: TopicPartition, replicas: list[int] | None) -> None:
    """Check a reassignment: its replicas before the partition, as in Kafka. Raises KafkaError."""
    if replicas is None:
        raise NoReassignmentInProgress(f"{at} has no reassignment in progress")
    cluster = ctx.services.metadata.snapshot
    if not replicas or len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"{replicas} is empty or names a broker twice")
    unknown = [broker for broker in replicas if broker not in cluster.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"{replicas} names unknown brokers: {unknown}")
    present = cluster.partition(at)
    if present is None:
        raise UnknownTopicOrPartition(f"{at} does not exist")
    if tuple(replicas) != present.replicas:
        raise InvalidReplicaAssignment(f"{CANNOT_MOVE}; its replicas are {list(present.replicas)}")


@handles(ListPartitionReassignmentsRequest, versions="0-0")
def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Say that nothing is moving."""
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE, error_message=NO_MESSAGE, topics=[]
    )
