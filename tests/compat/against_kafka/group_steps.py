"""Steps of the cases about groups: each asks on the connection of one member.

Groups and topics are called by the case's own names. A member is called by its connection
(`via`): it says the id and the generation that it was told last, unless a step says others.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from plog.coordinator.subscriptions import encode_assignment
from plog.protocol import codec
from plog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from plog.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.compat.against_kafka.ask import topics_of
from tests.compat.against_kafka.pair import Side, Step

SUBSCRIPTION_VERSION = 1
REASONS_SINCE, MANY_LEAVE_SINCE, MANY_GROUPS_SINCE = 8, 3, 8


def group_id(side: Side, group: str) -> str:
    """Return what the case's group is really called; one without a name has none."""
    return side.name(group) if group else ""


def who(side: Side, via: str, called: str | None) -> str:
    """Return the id of a member, by default of the connection's; other texts stand as they are."""
    name = via if called is None else called
    return side.members.get(name, "" if called is None else called)


def subscribed(side: Side, topics: Sequence[str]) -> bytes:
    """Return what a consumer tells of itself."""
    value = ConsumerProtocolSubscription(topics=list(map(side.name, topics)))
    version = struct.pack(">h", SUBSCRIPTION_VERSION)
    return version + codec.encode(value, SUBSCRIPTION_VERSION)


def join(
    via: str,
    version: int = 9,
    *,
    group: str = "g",
    member: str | None = None,
    instance: str | None = None,
    kind: str = "consumer",
    protocols: Sequence[str] = ("range",),
    metadata: bytes = b"m",
    topics: Sequence[str] | None = None,
    session_ms: int = 60_000,
    rebalance_ms: int = 60_000,
    later: bool = False,
) -> Step:
    def make(side: Side) -> JoinGroupRequest:
        told = metadata if topics is None else subscribed(side, topics)
        return JoinGroupRequest(
            group_id=group_id(side, group),
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=who(side, via, member),
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=told) for name in protocols],
            reason="because" if version >= REASONS_SINCE else None,
        )

    return Step(make, version, via=via, later=later)


def sync(
    via: str,
    version: int = 5,
    *,
    group: str = "g",
    member: str | None = None,
    instance: str | None = None,
    generation: int | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
    assignments: Mapping[str, bytes] | None = None,
    assigned: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    later: bool = False,
) -> Step:
    """`assigned` has topics and partitions by members, for `assignments` of consumers."""

    def make(side: Side) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=group_id(side, group),
            generation_id=side.generation if generation is None else generation,
            member_id=who(side, via, member),
            group_instance_id=instance,
            protocol_type=kind,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=who(side, via, name), assignment=given)
                for name, given in {**_encoded(side, assigned), **(assignments or {})}.items()
            ],
        )

    return Step(make, version, via=via, later=later)


def _encoded(
    side: Side, assigned: Mapping[str, Mapping[str, Sequence[int]]] | None
) -> dict[str, bytes]:
    return {
        member: encode_assignment({side.name(topic): some for topic, some in topics.items()})
        for member, topics in (assigned or {}).items()
    }


def beat(
    via: str,
    version: int = 4,
    *,
    group: str = "g",
    member: str | None = None,
    instance: str | None = None,
    generation: int | None = None,
) -> Step:
    def make(side: Side) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=group_id(side, group),
            generation_id=side.generation if generation is None else generation,
            member_id=who(side, via, member),
            group_instance_id=instance,
        )

    return Step(make, version, via=via)


def leave(
    *members: tuple[str, str | None], version: int = 5, group: str = "g", via: str = "admin"
) -> Step:
    """Of members by their connections, or by other ids, and by their instances."""

    def make(side: Side) -> LeaveGroupRequest:
        ids = [who(side, via, name) for name, _ in members]
        if version < MANY_LEAVE_SINCE:
            return LeaveGroupRequest(group_id=group_id(side, group), member_id=ids[0])
        return LeaveGroupRequest(
            group_id=group_id(side, group),
            members=[
                MemberIdentity(member_id=one, group_instance_id=instance)
                for one, (_, instance) in zip(ids, members, strict=True)
            ],
        )

    return Step(make, version, via=via)


def commit(
    *parts: tuple[str, int, int],
    version: int = 9,
    group: str = "g",
    via: str = "tool",
    member: str | None = None,
    instance: str | None = None,
    generation: int | None = -1,
    metadata: str | None = "m",
    retention_ms: int = -1,
    committed_ms: int = -1,
    epoch: int = -1,
) -> Step:
    """Topic, partition, offset; neighbours of one topic share its entry.

    `generation` None is the one that was told last.
    """

    def partition(index: int, offset: int) -> OffsetCommitRequestPartition:
        return OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            commit_timestamp=committed_ms,
            committed_metadata=metadata,
        )

    def make(side: Side) -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id=group_id(side, group),
            generation_id_or_member_epoch=side.generation if generation is None else generation,
            member_id=who(side, via, member),
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=topics_of(
                OffsetCommitRequestTopic,
                side,
                (
                    (name, [partition(*rest) for _, *rest in some])
                    for name, some in groupby(parts, itemgetter(0))
                ),
            ),
        )

    return Step(make, version, via=via)


def fetch(
    *topics: tuple[str, Sequence[int]],
    version: int = 9,
    groups: Sequence[str] = ("g",),
    every: bool = False,
    stable: bool = False,
    member: str | None = None,
    epoch: int = -1,
) -> Step:
    """Of the same topics in each group, or of all that are committed."""
    kind = OffsetFetchRequestTopics if version >= MANY_GROUPS_SINCE else OffsetFetchRequestTopic

    def make(side: Side) -> OffsetFetchRequest:
        wanted = None if every else topics_of(kind, side, topics)
        if version < MANY_GROUPS_SINCE:
            return OffsetFetchRequest(
                group_id=group_id(side, groups[0]), topics=wanted, require_stable=stable
            )
        return OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group_id(side, group),
                    member_id=side.members.get(member or "", member),
                    member_epoch=epoch,
                    topics=wanted,
                )
                for group in groups
            ],
            require_stable=stable,
        )

    return Step(make, version)


def delete_offsets(*topics: tuple[str, Sequence[int]], group: str = "g") -> Step:
    def make(side: Side) -> OffsetDeleteRequest:
        return OffsetDeleteRequest(
            group_id=group_id(side, group),
            topics=topics_of(
                OffsetDeleteRequestTopic,
                side,
                (
                    (name, [OffsetDeleteRequestPartition(partition_index=one) for one in some])
                    for name, some in topics
                ),
            ),
        )

    return Step(make, 0)


def listed(version: int = 5, states: Sequence[str] = (), types: Sequence[str] = ()) -> Step:
    return Step(
        lambda side: ListGroupsRequest(states_filter=list(states), types_filter=list(types)),
        version,
    )


def described(
    *groups: str,
    version: int = 5,
    operations: bool = False,
    until: tuple[str, str] | None = None,
) -> Step:
    def make(side: Side) -> DescribeGroupsRequest:
        return DescribeGroupsRequest(
            groups=[group_id(side, group) for group in groups],
            include_authorized_operations=operations,
        )

    return Step(make, version, until=until)


def deleted(*groups: str, version: int = 2) -> Step:
    return Step(
        lambda side: DeleteGroupsRequest(groups_names=[group_id(side, one) for one in groups]),
        version,
    )


# -- more than one of them


def heard(via: str, version: int) -> Step:
    """Hear the answer of a step that was `later`."""
    return Step(None, version, via=via)


def until(state: str, group: str = "g") -> Step:
    """Wait until a group is in a state; the members that it has by then are compared too."""
    return described(group, until=(f"groups/{group}/group_state", state))


def alone(
    via: str = "a", group: str = "g", instance: str | None = None, **join_more: object
) -> list[Step]:
    """Have one member be a stable group."""
    steps = [join(via, group=group, instance=instance, **join_more)]  # type: ignore[arg-type]
    if instance is None:
        steps *= 2  # told its id first
    kind = str(join_more.get("kind", "consumer"))
    return [*steps, sync(via, group=group, instance=instance, kind=kind, assignments={via: b"all"})]


def two(a: str = "a", b: str = "b", *, b_instance: str | None = None) -> list[Step]:
    """Have two members be a stable group, which `a` leads."""
    first_of_b = [] if b_instance else [join(b)]
    return [
        *alone(a),
        *first_of_b,
        join(b, instance=b_instance, later=True),
        until("PreparingRebalance"),
        join(a),
        heard(b, 9),
        sync(a, assignments={a: b"for a", b: b"for b"}),
        sync(b, instance=b_instance),
    ]
