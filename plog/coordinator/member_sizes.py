"""About how much memory a member of a group takes, as it is held here.

Owns what counts, never how much there may be: that is `member_memory`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from sys import getsizeof

from plog.coordinator.group_events import Protocol

EACH_BYTES = 4_000
"""What a member takes beside its words, with its timers and a group that there is for it alone."""
EACH_PROTOCOL_BYTES = 120
EACH_TOPIC_BYTES = 60


def size_of(
    *words: str | bytes | None,
    protocols: Iterable[Protocol] = (),
    topics: Collection[str] = (),
) -> int:
    """Return about how many bytes a member takes that tells this of itself."""
    own = sum(getsizeof(word) for word in words if word is not None)
    told = sum(
        EACH_PROTOCOL_BYTES + getsizeof(name) + getsizeof(metadata) for name, metadata in protocols
    )
    wanted = EACH_TOPIC_BYTES * len(topics) + sum(map(getsizeof, topics))
    return EACH_BYTES + own + told + wanted
