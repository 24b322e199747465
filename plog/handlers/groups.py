"""FindCoordinator: which broker coordinates a group or a transactional id."""

from __future__ import annotations

import logging
from contextlib import suppress

from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.group_hash import partition_of
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
_TOLD = "told of transactions"
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
    if key_type == TRANSACTION:
        _tell(ctx, key)
        # Clients say so and try again, instead of giving up for good.
        raise CoordinatorNotAvailable("this broker coordinates no transactions")
    metadata = ctx.services.metadata
    topic = metadata.topic(OFFSETS_TOPIC)
    if topic is None:
        try:
            with suppress(TopicAlreadyExists):
                await create_with_defaults(ctx, OFFSETS_TOPIC)
        except KafkaError as refusal:
            raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} cannot be made: {refusal}") from refusal
        raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} is being made")
    leader = metadata.leader(
        TopicPartition(OFFSETS_TOPIC, partition_of(key, len(topic.partitions)))
    )
    if leader is not None:
        for node in ctx.nodes():
            if node.id == leader.leader_id:
                return node
    raise CoordinatorNotAvailable(f"nobody leads the partition of {OFFSETS_TOPIC} for {key!r}")


def _tell(ctx: Context, transactional_id: str) -> None:
    """Say once for a connection what its client waits for: it asks again, and tells nobody."""
    if ctx.connection.attributes.setdefault(_TOLD, False):
        return
    ctx.connection.attributes[_TOLD] = True
    # Both are the client's: whatever it writes there, it is one line, and no long one.
    ctx.services.coordinator_lines.log(
        logging.WARNING,
        "client %.100r at %s asks for the coordinator of transactional id %.100r, and will go on"
        " asking: transactions come with a later release",
        ctx.header.client_id,
        ctx.connection.peer,
        transactional_id,
    )
