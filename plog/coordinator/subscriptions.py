"""Decodes the subscriptions and assignments of consumers in classic groups."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from plog.coordinator.classic_group import ClassicGroup
from plog.errors import InvalidRequest
from plog.protocol import codec
from plog.protocol.framing import MOST_REQUEST_ELEMENTS
from plog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from plog.protocol.schema import Struct

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups with subscriptions in Kafka's own format."""

_VERSION = struct.Struct(">h")

S = TypeVar("S", bound=Struct)


def subscribed_topics(group: ClassicGroup) -> set[str] | None:
    """Return the topics to which a group's members are subscribed; None if unknown."""
    if group.protocol_type != CONSUMER_PROTOCOL:
        return None
    found: set[str] = set()
    for member in group.roster:
        topics = _topics(member.metadata(group.protocol_name))
        if topics is None:
            return None
        found.update(topics)
    return found


def _topics(metadata: bytes) -> Iterable[str] | None:
    found = read_subscription(metadata)
    return None if found is None else found.topics


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """Decode a member's subscription; return None if it is not in Kafka's format."""
    return _read(ConsumerProtocolSubscription, metadata)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment | None:
    """Decode a leader's assignment; return None if it is not in Kafka's format."""
    return _read(ConsumerProtocolAssignment, assignment)


def encode_assignment(partitions: Mapping[str, Sequence[int]], *, like: bytes = b"") -> bytes:
    """Encode a member's assignment, in the version of its subscription."""
    newest = ConsumerProtocolAssignment.api.versions.high
    version = min(_VERSION.unpack_from(like)[0] if like else newest, newest)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartitions(topic=topic, partitions=list(numbers))
            for topic, numbers in partitions.items()
        ]
    )
    return _VERSION.pack(version) + codec.encode(assignment, version)


def _read(cls: type[S], data: bytes) -> S | None:
    if len(data) < _VERSION.size:
        return None
    version = _VERSION.unpack_from(data)[0]
    try:
        found, _ = codec.decode(
            cls,
            min(version, cls.api.versions.high),
            data,
            _VERSION.size,
            most_elements=MOST_REQUEST_ELEMENTS,
        )
    except InvalidRequest:
        return None
    return found
