"""What the records of a consumer group (KIP-848) in `__consumer_offsets` say, and their bytes.

Owns the versions that are written, those of Kafka 3.9 and 4.0, which newer brokers read. The
topics that a group has seen are written with their number of partitions, and without racks, as
Kafka 4.0 does.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from plog.coordinator.assignors import IdPartition, Partitions
from plog.coordinator.consumer_table import (
    ClassicSide,
    Key,
    Kind,
    Record,
    Resolved,
    Subscriber,
    Topic,
    Value,
)
from plog.coordinator.group_events import Protocol
from plog.coordinator.reconciliation import Current, MemberState
from plog.coordinator.versioned import decode, encode, version_of
from plog.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicMetadata,
)
from plog.protocol.messages.consumer_groups import TopicPartitions

GROUP_KINDS = frozenset({Kind.EPOCH, Kind.TOPICS, Kind.TARGET_EPOCH})
MEMBER_KINDS = frozenset({Kind.MEMBER, Kind.TARGET, Kind.CURRENT})
VALUE = 0
"""The version of every value that is written."""


class ConsumerKey(NamedTuple):
    """The key of a record of this group."""

    group: str
    key: Key


def decode_key(data: bytes) -> ConsumerKey | None:
    """Decode a record's key; None for one that is no consumer group's. Raises CorruptRecord."""
    version = version_of(data)
    if version in GROUP_KINDS:
        group = decode(ConsumerGroupKey, version, data).group_id
        return ConsumerKey(group, Key(Kind(version)))
    if version in MEMBER_KINDS:
        member = decode(ConsumerGroupMemberKey, version, data)
        return ConsumerKey(member.group_id, Key(Kind(version), member.member_id))
    if version == Kind.REGEX:
        regex = decode(ConsumerGroupRegularExpressionKey, version, data)
        return ConsumerKey(regex.group_id, Key(Kind.REGEX, regex.regular_expression))
    return None


def encode_key(group: str, key: Key) -> bytes:
    """Encode a record's key."""
    kind, name = key
    if kind in GROUP_KINDS:
        return encode(ConsumerGroupKey(group_id=group), kind)
    if kind in MEMBER_KINDS:
        return encode(ConsumerGroupMemberKey(group_id=group, member_id=name), kind)
    return encode(ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=name), kind)


def encode_value(record: Record) -> bytes | None:
    """Encode a record's value; None removes what its key names."""
    match record.key.kind, record.value:
        case _, None:
            return None
        case Kind.EPOCH, int(epoch):
            return encode(ConsumerGroupMetadataValue(epoch=epoch), VALUE)
        case Kind.TARGET_EPOCH, int(epoch):
            return encode(ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch), VALUE)
        case Kind.TOPICS, dict(topics):
            return encode(_topics(topics), VALUE)
        case Kind.MEMBER, Subscriber() as member:
            return encode(_member(member), VALUE)
        case Kind.TARGET, frozenset() as target:
            value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=by_topic(target))
            return encode(value, VALUE)
        case Kind.CURRENT, Current() as current:
            return encode(_current(current), VALUE)
        case Kind.REGEX, Resolved(topics, version, at_ms):
            found = ConsumerGroupRegularExpressionValue(
                topics=sorted(topics), version=version, timestamp=at_ms
            )
            return encode(found, VALUE)
        case _:
            raise TypeError(f"{record.value!r} is not a value of {record.key.kind.name}")


def decode_value(kind: Kind, data: bytes) -> Value:
    """Decode a record's value. Raises CorruptRecord."""
    version = version_of(data)
    match kind:
        case Kind.EPOCH:
            epoch: int = decode(ConsumerGroupMetadataValue, version, data).epoch
            return epoch
        case Kind.TARGET_EPOCH:
            target = decode(ConsumerGroupTargetAssignmentMetadataValue, version, data)
            assigned_for: int = target.assignment_epoch
            return assigned_for
        case Kind.TOPICS:
            topics = decode(ConsumerGroupPartitionMetadataValue, version, data).topics
            return {one.topic_name: Topic(one.topic_id, one.num_partitions) for one in topics}
        case Kind.MEMBER:
            return _subscriber(decode(ConsumerGroupMemberMetadataValue, version, data))
        case Kind.TARGET:
            found = decode(ConsumerGroupTargetAssignmentMemberValue, version, data)
            return partitions_of(found.topic_partitions)
        case Kind.CURRENT:
            return _decoded_current(
                decode(ConsumerGroupCurrentMemberAssignmentValue, version, data)
            )
        case Kind.REGEX:
            regex = decode(ConsumerGroupRegularExpressionValue, version, data)
            return Resolved(frozenset(regex.topics), regex.version, regex.timestamp)


def by_topic(partitions: Partitions) -> list[TopicPartitions]:
    """Return partitions as messages and records have them."""
    found: defaultdict[uuid.UUID, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(partitions):
        found[topic_id].append(partition)
    return [
        TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in found.items()
    ]


def partitions_of(topics: Iterable[TopicPartitions]) -> Partitions:
    """Return the partitions that a message or a record names."""
    return frozenset(
        IdPartition(topic.topic_id, number) for topic in topics for number in topic.partitions
    )


def _topics(topics: dict[str, Topic]) -> ConsumerGroupPartitionMetadataValue:
    return ConsumerGroupPartitionMetadataValue(
        topics=[
            TopicMetadata(
                topic_id=topic.topic_id,
                topic_name=name,
                num_partitions=topic.size,
                partition_metadata=[],
            )
            for name, topic in sorted(topics.items())
        ]
    )


def _member(member: Subscriber) -> ConsumerGroupMemberMetadataValue:
    classic = member.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex or "",  # as Kafka, which knows null, too
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=one.name, metadata=one.metadata) for one in classic.protocols
            ],
        ),
    )


def _subscriber(value: ConsumerGroupMemberMetadataValue) -> Subscriber:
    classic = value.classic_member_metadata
    return Subscriber(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        # Without its tag, as plog once left out who speaks KIP-848's protocol, it says nothing.
        classic=None
        if classic is None or not classic.supported_protocols
        else ClassicSide(
            classic.session_timeout_ms,
            tuple(Protocol(one.name, one.metadata) for one in classic.supported_protocols),
        ),
    )


def _current(current: Current) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=by_topic(current.assigned),
        partitions_pending_revocation=by_topic(current.revoking),
    )


def _decoded_current(value: ConsumerGroupCurrentMemberAssignmentValue) -> Current:
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    return Current(
        value.member_epoch,
        value.previous_member_epoch,
        state,
        partitions_of(value.assigned_partitions),
        partitions_of(value.partitions_pending_revocation),
    )
