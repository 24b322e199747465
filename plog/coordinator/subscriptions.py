"""What the members of a group of consumers told of themselves, as far as a broker looks at it."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from plog.coordinator.classic_group import ClassicGroup
from plog.errors import InvalidRequest
from plog.protocol import codec
from plog.protocol.framing import MOST_REQUEST_ELEMENTS
from plog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL = "consumer"
"""The type of groups whose members tell their topics in Kafka's own form."""

_VERSION = struct.Struct(">h")


def subscribed_topics(group: ClassicGroup) -> set[str] | None:
    """Return the topics that members of a group want; None when that cannot be told."""
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
    if len(metadata) < _VERSION.size:
        return None
    version = _VERSION.unpack_from(metadata)[0]
    newest = ConsumerProtocolSubscription.api.versions.high
    try:
        found, _ = codec.decode(
            ConsumerProtocolSubscription,
            min(version, newest),
            metadata,
            _VERSION.size,
            most_elements=MOST_REQUEST_ELEMENTS,
        )
    except InvalidRequest:
        return None
    return found.topics
