"""The small values every layer speaks: which partition, which offset, which topic id.

Owns no behaviour beyond conversion to and from the text forms that Kafka uses
in file names, znodes and on the command line.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import NamedTuple, NewType, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What kernels read from; those that write in place want a writable one."""

Offset = NewType("Offset", int)
"""Position of a record in a partition, 0 and up."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of one partition (KIP-101); -1 when unknown."""

NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_EPOCH = -1
NO_PRODUCER_ID = -1

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's legal topic names, but for the two that name directories."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return Kafka's directory name, ``topic-partition``."""
        return f"{self.topic}-{self.partition}"


CLUSTER_METADATA = "__cluster_metadata"
"""The log of KRaft's controllers looks like a partition of this, and is no topic."""


def is_legal_topic_name(name: str) -> bool:
    """Tell whether Kafka would accept `name` for a topic."""
    return name not in (".", "..") and TOPIC_NAME.fullmatch(name) is not None


ZERO_UUID = uuid.UUID(int=0)
"""On the wire: no topic id."""

RESERVED_UUIDS = 100
"""So many, counted from zero, are never drawn: Kafka gives the first ones meanings of their own."""


def new_topic_id() -> uuid.UUID:
    """Draw a topic id (KIP-516)."""
    return _draw_uuid()


def new_directory_id() -> uuid.UUID:
    """Draw the id of a log directory (KIP-858)."""
    return _draw_uuid()


def _draw_uuid() -> uuid.UUID:
    """Draw an id that stands for nothing else.

    Those whose text begins with a dash are drawn again, as Kafka does, because
    command lines would take them for options.
    """
    while True:
        drawn = uuid.uuid4()
        if drawn.int >= RESERVED_UUIDS and uuid_to_text(drawn)[0] != "-":
            return drawn


def uuid_to_text(value: uuid.UUID) -> str:
    """Return the 22 characters (base64url, unpadded) of znodes and partition.metadata."""
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def uuid_from_text(text: str) -> uuid.UUID:
    """Read what `uuid_to_text` wrote.

    Raises:
        ValueError: not 22 characters of base64url.
    """
    raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    return uuid.UUID(bytes=raw)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number of things in words: ``1 broker``, ``2 brokers``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
