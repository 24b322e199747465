"""Consumer groups as coordinators describe them: their states, and their members' partitions.

Owns the types for groups and members, and how they are read from responses. Sends no requests.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from plog.client.metadata import Node
from plog.errors import InvalidRequest
from plog.protocol import codec
from plog.protocol.messages.consumer_groups import Assignment, DescribedConsumerGroup
from plog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from plog.protocol.messages.group_admin import DescribedGroup, DescribedGroupMember
from plog.types import TopicPartition

DEAD = "Dead"
"""The state of a group that does not exist."""
CLASSIC, CONSUMER = "classic", "consumer"
"""Types of groups, by the protocol of their members (KIP-848)."""
MEMBER_TYPES = {0: CLASSIC, 1: CONSUMER}
"""By the member types of ConsumerGroupDescribe v1."""
CONSUMER_PROTOCOL = "consumer"
"""Protocol type of the groups whose assignments have Kafka's own encoding."""

_VERSION = struct.Struct(">h")


class ListedGroup(NamedTuple):
    """A group as its coordinator lists it; `state` is "" if an old broker does not send it."""

    group_id: str
    state: str
    protocol_type: str
    group_type: str


class GroupMember(NamedTuple):
    """A member; `assigned` is None if its assignment does not have Kafka's own encoding.

    In a consumer group (KIP-848) a member has an epoch and a target: the partitions that it will
    have once it and the others have given up theirs. There `member_type` may be either type, or ""
    if the broker does not send it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...] | None
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    member_type: str = CLASSIC


class GroupDescription(NamedTuple):
    """A group; `assignor` is "" until one is chosen. Classic groups have no epochs."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    members: list[GroupMember]
    coordinator: Node
    group_type: str = CLASSIC
    epoch: int | None = None
    assignment_epoch: int | None = None


def description(group: DescribedGroup, coordinator: Node) -> GroupDescription:
    """Return a group as DescribeGroups describes it."""
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        [_member(member, group.protocol_type) for member in group.members],
        coordinator,
    )


def consumer_description(group: DescribedConsumerGroup, coordinator: Node) -> GroupDescription:
    """Return a group as ConsumerGroupDescribe describes it (KIP-848)."""
    return GroupDescription(
        group.group_id,
        group.group_state,
        CONSUMER_PROTOCOL,
        group.assignor_name,
        [
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host.removeprefix("/"),
                _partitions(member.assignment),
                member.member_epoch,
                _partitions(member.target_assignment),
                MEMBER_TYPES.get(member.member_type, ""),
            )
            for member in group.members
        ],
        coordinator,
        CONSUMER,
        group.group_epoch,
        group.assignment_epoch,
    )


def _partitions(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    is_known = protocol_type == CONSUMER_PROTOCOL
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        # Kafka's brokers put Java's slash before an address.
        member.client_host.removeprefix("/"),
        decode_assignment(bytes(member.member_assignment)) if is_known else None,
    )


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """Return the partitions of a member's assignment, sorted; None if the encoding is not Kafka's.

    Empty data, as in a group that rebalances, means no partitions.
    """
    if not data:
        return ()
    if len(data) < _VERSION.size:
        return None
    (version,) = _VERSION.unpack_from(data)
    newest = ConsumerProtocolAssignment.api.versions.high
    try:
        found, _ = codec.decode(
            ConsumerProtocolAssignment, min(version, newest), data, _VERSION.size
        )
    except InvalidRequest:
        return None
    return tuple(
        sorted(
            TopicPartition(topic.topic, index)
            for topic in found.assigned_partitions
            for index in topic.partitions
        )
    )
