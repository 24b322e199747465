"""FindCoordinator: which broker coordinates a group or a transactional id."""

from __future__ import annotations

from contextlib import suppress

from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.group_hash import partition_of
from plog.coordinator.txn_coordinator import TRANSACTIONS_TOPIC
from plog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    TopicAlreadyExists,
)
from plog.handlers.context import Context, Node
from plog.handlers.registry import handles
from plog.handlers.topics import create_with_defaults
from plog.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from plog.types import TopicPartition

GROUP, TRANSACTION = 0, 1
NO_NODE, NO_PORT = -1, -1
BATCHED_SINCE = 4
"""From this version on a request holds many keys (KIP-699)."""


@handles(FindCoordinatorRequest, versions="0-6")
async def find_coordinator(
    ctx: Context, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Answer for each key (one before version 4)."""
    if ctx.version >= BATCHED_SINCE:
        return FindCoordinatorResponse(
            coordinators=[
                await _answer(ctx, request.key_type, key) for key in request.coordinator_keys
            ]
        )
    only = await _answer(ctx, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _answer(ctx: Context, key_type: int, key: str) -> Coordinator:
    try:
        node = await _find(ctx, key_type, key)
    except KafkaError as refusal:
        return Coordinator(
            key=key,
            node_id=NO_NODE,
            host="",
            port=NO_PORT,
            error_code=refusal.code,
            error_message=str(refusal),
        )
    return Coordinator(
        key=key, node_id=node.id, host=node.host, port=node.port, error_code=ErrorCode.NONE
    )


async def _find(ctx: Context, key_type: int, key: str) -> Node:
    if key_type not in (GROUP, TRANSACTION):
        raise InvalidRequest(f"coordinator type {key_type} is unknown")
    topic_name = OFFSETS_TOPIC if key_type == GROUP else TRANSACTIONS_TOPIC
    if key_type == TRANSACTION and not key:
        raise InvalidRequest("the transactional id is empty")
    metadata = ctx.services.metadata
    topic = metadata.topic(topic_name)
    if topic is None:
        try:
            with suppress(TopicAlreadyExists):
                await create_with_defaults(ctx, topic_name)
        except KafkaError as refusal:
            raise CoordinatorNotAvailable(f"{topic_name} cannot be created: {refusal}") from refusal
        raise CoordinatorNotAvailable(f"{topic_name} is being created")
    leader = metadata.leader(TopicPartition(topic_name, partition_of(key, len(topic.partitions))))
    if leader is not None:
        for node in ctx.nodes():
            if node.id == leader.leader_id:
                return node
    raise CoordinatorNotAvailable(f"the partition of {topic_name} for {key!r} has no leader")
