"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of a group.

Checks requests and builds the responses of each version. The coordinator keeps the offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_shard import Group
from plog.coordinator.group_states import GroupState
from plog.coordinator.subscriptions import CONSUMER_PROTOCOL
from plog.errors import ErrorCode, KafkaError, error_for
from plog.handlers.context import Context
from plog.handlers.group_ids import check_group_id
from plog.handlers.registry import handles
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from plog.settings.keys import LONG_MAX
from plog.types import NO_OFFSET, NO_TIMESTAMP, ZERO_UUID, TopicPartition

NO_EPOCH = -1
MANY_GROUPS_SINCE = 8
"""From this version on, OffsetFetch asks for several groups."""
TOPIC_IDS_SINCE = 10
"""From this version on, OffsetCommit and OffsetFetch have the ids of topics, not their names."""


# -- OffsetCommit ----------------------------------------------------------------------------------


@handles(OffsetCommitRequest, versions="0-10")
async def offset_commit(ctx: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit the valid offsets; an error of one partition leaves the others alone."""
    now_ms = ctx.services.clock.now_ms()
    offsets, errors = committable(
        ctx,
        request.topics,
        lambda asked, topic_id: _committed(request, asked, topic_id, now_ms),
        by_id=ctx.version >= TOPIC_IDS_SINCE,
    )
    # Without a valid offset the group is neither asked nor created.
    error = await _commit(ctx, request, offsets) if offsets else ErrorCode.NONE
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
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


async def _commit(
    ctx: Context,
    request: OffsetCommitRequest,
    offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
) -> ErrorCode:
    try:
        with ctx.connection.aside():
            return await ctx.services.groups.commit(
                request.group_id,
                offsets,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id_or_member_epoch,
                version=ctx.version,
            )
    except KafkaError as refusal:
        return ErrorCode(refusal.code)


class AskedPartition(Protocol):
    """A partition of OffsetCommit or TxnOffsetCommit."""

    partition_index: int
    committed_metadata: str | None


P = TypeVar("P", bound=AskedPartition)


class AskedTopic(Protocol[P]):
    """A topic of OffsetCommit or TxnOffsetCommit."""

    name: str
    topic_id: uuid.UUID
    partitions: list[P]


def committable(
    ctx: Context,
    topics: Sequence[AskedTopic[P]],
    committed: Callable[[P, uuid.UUID], CommittedOffset],
    *,
    by_id: bool,
) -> tuple[list[tuple[TopicPartition, CommittedOffset]], dict[TopicPartition, ErrorCode]]:
    """Return the offsets of a request that can be committed, and the errors of the others.

    Sets the names of topics that are requested by id.
    """
    if by_id:
        name_topics(ctx, topics)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    most_bytes = ctx.services.settings.broker().offset_metadata_max_bytes
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    errors: dict[TopicPartition, ErrorCode] = {}
    snapshot = ctx.services.metadata.snapshot
    for topic in topics:
        for asked in topic.partitions:
            at = TopicPartition(topic.name, asked.partition_index)
            if snapshot.partition(at) is None:
                errors[at] = unknown if topic.name or not by_id else ErrorCode.UNKNOWN_TOPIC_ID
            elif _metadata_length(asked) > most_bytes:
                errors[at] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offsets.append((at, committed(asked, snapshot.topics[topic.name].topic_id)))
    return offsets, errors


class TopicOfId(Protocol):
    """A topic of a request that names it by id."""

    name: str
    topic_id: uuid.UUID


def name_topics(ctx: Context, topics: Iterable[TopicOfId]) -> None:
    """Set the name of each topic from its id; the empty name if no topic has the id."""
    for topic in topics:
        topic.name = ctx.services.metadata.topic_name(topic.topic_id) or ""


def _metadata_length(asked: AskedPartition) -> int:
    """Return the length that `offset.metadata.max.bytes` limits: UTF-16 units, as in Java."""
    return len((asked.committed_metadata or "").encode("utf-16-le")) // 2


def _committed(
    request: OffsetCommitRequest,
    asked: OffsetCommitRequestPartition,
    topic_id: uuid.UUID,
    now_ms: int,
) -> CommittedOffset:
    at_ms = now_ms if asked.commit_timestamp < 0 else asked.commit_timestamp
    kept_ms = request.retention_time_ms
    return CommittedOffset(
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
        at_ms,
        NO_TIMESTAMP if kept_ms < 0 else min(at_ms + kept_ms, LONG_MAX),
        topic_id,
    )


# -- OffsetFetch -----------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A request for offsets of a group: partitions by topic, None for all committed offsets."""

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]] | None
    member_id: str | None = None
    member_epoch: int = NO_EPOCH


class Found(NamedTuple):
    """The committed offset of a partition, or an error."""

    partition: int
    committed: CommittedOffset
    error: ErrorCode = ErrorCode.NONE


NOTHING = CommittedOffset(NO_OFFSET, NO_EPOCH)


@handles(OffsetFetchRequest, versions="0-10")
def offset_fetch(ctx: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return committed offsets; an unknown group or partition has offset -1 and no error."""
    if ctx.version >= MANY_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=[
                _fetch_group(ctx, group, require_stable=request.require_stable)
                for group in request.groups
            ]
        )
    topics = request.topics
    wanted = Wanted(
        request.group_id,
        None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics],
    )
    try:
        found = _fetch(ctx, wanted, require_stable=request.require_stable)
        error = ErrorCode.NONE
    except KafkaError as refusal:
        error = ErrorCode(refusal.code)
        found = [
            (topic, [Found(index, NOTHING, error) for index in partitions])
            for topic, partitions in wanted.topics or ()
        ]
    return OffsetFetchResponse(
        error_code=error,
        topics=[
            OffsetFetchResponseTopic(
                name=topic, partitions=_partitions(OffsetFetchResponsePartition, partitions)
            )
            for topic, partitions in found
        ],
    )


def _fetch_group(
    ctx: Context, asked: OffsetFetchRequestGroup, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    by_id = ctx.version >= TOPIC_IDS_SINCE
    if by_id:
        name_topics(ctx, asked.topics or ())
    known = None if asked.topics is None else [t for t in asked.topics if t.name or not by_id]
    wanted = Wanted(
        asked.group_id,
        None if known is None else [(topic.name, topic.partition_indexes) for topic in known],
        asked.member_id,
        asked.member_epoch,
    )
    try:
        found = _fetch(ctx, wanted, require_stable=require_stable)
    except KafkaError as refusal:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=refusal.code)
    if known is not None:
        ids = [topic.topic_id for topic in known]
    else:
        metadata = [ctx.services.metadata.topic(name) for name, _ in found]
        ids = [ZERO_UUID if topic is None else topic.topic_id for topic in metadata]
    topics = [
        OffsetFetchResponseTopics(
            name=name,
            topic_id=topic_id,
            partitions=_partitions(OffsetFetchResponsePartitions, partitions),
        )
        for (name, partitions), topic_id in zip(found, ids, strict=True)
        # A topic that was deleted has no id to be reported by.
        if topic_id != ZERO_UUID or not by_id
    ]
    for topic in asked.topics or ():
        if by_id and not topic.name:
            unknown = [
                Found(index, NOTHING, ErrorCode.UNKNOWN_TOPIC_ID)
                for index in topic.partition_indexes
            ]
            topics.append(
                OffsetFetchResponseTopics(
                    name="",
                    topic_id=topic.topic_id,
                    partitions=_partitions(OffsetFetchResponsePartitions, unknown),
                )
            )
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


R = TypeVar("R", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)


def _partitions(kind: type[R], found: Iterable[Found]) -> list[R]:
    """Return the partitions of a response, of the kind that its version has."""
    return [
        kind(
            partition_index=one.partition,
            committed_offset=one.committed.offset,
            committed_leader_epoch=one.committed.leader_epoch,
            metadata=one.committed.metadata,
            error_code=one.error,
        )
        for one in found
    ]


def _fetch(ctx: Context, wanted: Wanted, *, require_stable: bool) -> list[tuple[str, list[Found]]]:
    group = ctx.services.groups.find(wanted.group_id)
    if group is not None:
        refusal = group.refuse_fetch(wanted.member_id, wanted.member_epoch)
        if refusal is not ErrorCode.NONE:
            raise error_for(refusal)
    if wanted.topics is not None:
        return [
            (topic, [_found(group, TopicPartition(topic, index), require_stable) for index in some])
            for topic, some in wanted.topics
        ]
    if group is None:
        return []
    by_topic: dict[str, list[Found]] = {}
    for at, _ in group.offsets:
        by_topic.setdefault(at.topic, []).append(_found(group, at, require_stable))
    return list(by_topic.items())


def _found(group: Group | None, at: TopicPartition, require_stable: bool) -> Found:
    if group is None:
        return Found(at.partition, NOTHING)
    if require_stable and group.offsets.is_undecided(at):
        return Found(at.partition, NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return Found(at.partition, group.offsets.get(at) or NOTHING)


# -- OffsetDelete ----------------------------------------------------------------------------------


@handles(OffsetDeleteRequest, versions="0-0")
async def offset_delete(ctx: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete offsets of topics that no member is subscribed to (KIP-496)."""
    try:
        check_group_id(request.group_id)
        group = ctx.services.groups.find(request.group_id)
        error = _why_not_deletable(group)
        if group is None or error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=error, topics=[])
        asked = [
            TopicPartition(topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        errors = _deletion_errors(ctx, asked, group)
        wanted = [at for at in asked if at not in errors and group.offsets.get(at) is not None]
        with ctx.connection.aside():
            await ctx.services.groups.endings.forget_offsets(group, wanted)
    except KafkaError as refusal:
        return OffsetDeleteResponse(error_code=refusal.code, topics=[])
    return OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, one.partition_index), ErrorCode.NONE
                        ),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _why_not_deletable(group: Group | None) -> ErrorCode:
    """Return the error if no offset of a group can be deleted, else NONE."""
    if group is None or group.machine.state.value == GroupState.DEAD.value:
        return ErrorCode.GROUP_ID_NOT_FOUND
    machine = group.machine
    if not isinstance(machine, ClassicGroup):
        return ErrorCode.NONE
    if machine.state is GroupState.EMPTY or machine.protocol_type == CONSUMER_PROTOCOL:
        return ErrorCode.NONE
    return ErrorCode.NON_EMPTY_GROUP


def _deletion_errors(
    ctx: Context, asked: Iterable[TopicPartition], group: Group
) -> dict[TopicPartition, ErrorCode]:
    # None: a member's topics are not known, so it may be any topic.
    wanted = group.subscribed_topics()
    errors = {}
    for at in asked:
        if not ctx.services.metadata.contains(at):
            errors[at] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif wanted is None or at.topic in wanted:
            errors[at] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return errors
