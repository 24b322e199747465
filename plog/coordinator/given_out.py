"""Member ids that were given out and nobody has come back with yet, over all groups (KIP-394).

Owns which of them go when there are too many: the oldest, as whoever asked has long had the
answer. Kafka has no bound. A client that comes too late asks for another id. Touches no group and
no timer: `group_coordinator` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plog.coordinator.group_events import Timer

MOST_BYTES = 64 * 1024 * 1024
EACH_BYTES = 2_000
"""What one takes beside its words, with a group that there is for it alone."""

Key = tuple[str, Timer]
"""A group's name, and the timer of the id."""


@dataclass(slots=True)
class GivenOut:
    """The ids, the oldest first."""

    most_bytes: int = MOST_BYTES
    _sizes: dict[Key, int] = field(default_factory=dict)
    _bytes: int = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._sizes)

    def add(self, key: Key) -> list[Key]:
        """Take in one that was given out just now; return those that are one too many."""
        self.drop(key)
        group_id, timer = key
        size = EACH_BYTES + len(group_id) + len(timer.member_id)
        self._sizes[key] = size
        self._bytes += size
        surplus = []
        while self._bytes > self.most_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.drop(oldest)
            surplus.append(oldest)
        return surplus

    def drop(self, key: Key) -> None:
        """Take in that one is not waited for any more; another timer's name is nothing."""
        self._bytes -= self._sizes.pop(key, 0)
