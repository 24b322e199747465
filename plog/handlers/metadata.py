"""Metadata: brokers, topics and leaders; unknown topics are created where that is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from plog.cluster.metadata_cache import MetadataSnapshot, PartitionMetadata, TopicMetadata
from plog.cluster.topic_admin import INTERNAL_TOPICS
from plog.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicId,
)
from plog.handlers.context import Context
from plog.handlers.operations import ALL_OF_CLUSTER, ALL_OF_TOPIC, NOT_ASKED
from plog.handlers.registry import handles
from plog.handlers.topics import create_with_defaults
from plog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from plog.types import ZERO_UUID, is_legal_topic_name

NO_LEADER = NO_CONTROLLER = -1
EXACT_LISTENER_ERROR_SINCE = 6
BY_ID_SINCE = 12


@handles(MetadataRequest, versions="0-13")
async def metadata(ctx: Context, request: MetadataRequest) -> MetadataResponse:
    """Describe the cluster as this listener's clients should see it."""
    if ctx.version < BY_ID_SINCE and any(map(_is_by_id, request.topics or ())):
        return _refuse_ids(request.topics or ())
    snapshot = ctx.services.metadata.snapshot
    # Version 0 has no null: there an empty list means every topic, later it means none.
    wants_all = request.topics is None or (ctx.version == 0 and not request.topics)
    if wants_all:
        topics = await ctx.each(partial(_describe, ctx, snapshot), snapshot.topics.values())
    else:
        # Named twice is told once, also by name and by id.
        asked = {(one.name, one.topic_id): one for one in request.topics or ()}
        created = await _create_missing(ctx, request, snapshot)
        found = await ctx.each(partial(_one, ctx, snapshot, created), asked.values())
        topics = list({(one.name, one.topic_id): one for one in found}.values())
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = ALL_OF_TOPIC
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in ctx.nodes()
        ],
        cluster_id=ctx.services.cluster_id,
        controller_id=snapshot.live_controller_id,
        topics=topics,
        cluster_authorized_operations=(
            ALL_OF_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _is_by_id(asked: MetadataRequestTopic) -> bool:
    return asked.topic_id != ZERO_UUID or asked.name is None


def _refuse_ids(asked: Sequence[MetadataRequestTopic]) -> MetadataResponse:
    """Answer a version that has fields for ids and does not know them yet: with nothing else."""
    return MetadataResponse(
        brokers=[],
        cluster_id=None,
        controller_id=NO_CONTROLLER,
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST,
                name=one.name or "",
                topic_id=one.topic_id,
                is_internal=False,
                partitions=[],
            )
            for one in asked
        ],
        cluster_authorized_operations=NOT_ASKED,
    )


async def _create_missing(
    ctx: Context, request: MetadataRequest, snapshot: MetadataSnapshot
) -> dict[str, ErrorCode]:
    """Create the topics asked for that there are not, where that is allowed.

    Returns:
        The answer for each: that it has no leader yet, or why it cannot be.
    """
    outcomes: dict[str, ErrorCode] = {}
    if not (
        request.allow_auto_topic_creation
        and ctx.services.settings.broker().auto_create_topics_enable
    ):
        return outcomes
    for one in request.topics or ():
        name = one.name
        if (
            name is None
            or _is_by_id(one)
            or name in snapshot.topics
            or name in outcomes
            or not is_legal_topic_name(name)
        ):
            continue
        try:
            # Another client may be quicker, and its topic not announced yet.
            with suppress(TopicAlreadyExists):
                await create_with_defaults(ctx, name)
            outcomes[name] = ErrorCode.LEADER_NOT_AVAILABLE
        except KafkaError as refusal:
            outcomes[name] = refusal.code
    return outcomes


def _one(
    ctx: Context,
    snapshot: MetadataSnapshot,
    created: Mapping[str, ErrorCode],
    asked: MetadataRequestTopic,
) -> MetadataResponseTopic:
    name: str | None = asked.name
    try:
        if name is None or _is_by_id(asked):
            name = snapshot.topic_names.get(asked.topic_id)
            if name is None:
                raise UnknownTopicId(f"no topic has the id {asked.topic_id}")
        if not is_legal_topic_name(name):
            raise InvalidTopic(f"invalid topic name {name[:300]!r}")
        found = snapshot.topics.get(name)
        if found is not None:
            return _describe(ctx, snapshot, found)
        code = created.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except KafkaError as refusal:
        code = refusal.code
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=asked.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
    )


def _describe(
    ctx: Context, snapshot: MetadataSnapshot, topic: TopicMetadata
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _describe_partition(ctx, snapshot, partition) for partition in topic.partitions.values()
        ],
    )


def _describe_partition(
    ctx: Context, snapshot: MetadataSnapshot, partition: PartitionMetadata
) -> MetadataResponsePartition:
    error = ErrorCode.NONE
    leader = snapshot.brokers.get(partition.leader_id)
    if leader is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif leader.endpoint(ctx.connection.listener_name) is None:
        # Older clients do not know the exact error.
        exact = ctx.version >= EXACT_LISTENER_ERROR_SINCE
        error = ErrorCode.LISTENER_NOT_FOUND if exact else ErrorCode.LEADER_NOT_AVAILABLE
    elif ctx.version == 0 and partition.offline_replicas:
        error = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=partition.partition_index,
        leader_id=NO_LEADER if leader is None else partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=list(partition.offline_replicas),
    )
