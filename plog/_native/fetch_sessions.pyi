from typing import Final

NONE: Final = 0
"""No session: everything asked for is to be read."""
NEW: Final = 1
"""The same, and the request opened a session."""
NEXT: Final = 2
"""Read what the session remembers, and tell of what has changed."""
ENDED: Final = 3
"""Nothing is left to read: the session is over."""
UNKNOWN: Final = 4
"""Refused: there is no such session."""
WRONG_EPOCH: Final = 5
"""Refused: it is not the session's next request."""
MIXED_NAMES: Final = 6
"""Refused: the session names topics by name and the request by id, or the other way round."""
EVICT_AFTER_MS: Final = 120_000
"""A full table gives up a session unused for longer; else one that is older and smaller than the
session that wants its place."""
PART_BYTES: Final = 256
"""What a partition counts, besides its topic's name."""
MOST_BYTES: Final = 1 << 28
"""What the partitions of all sessions may count together. A new session that has no room gets none,
as when there is no slot, and at once if what its request lists counts more than all the room; one
whose request lists more new partitions than there is room for, once those that it forgets are gone,
is over (UNKNOWN)."""
LONGEST_TOPIC: Final = 249
"""No topic has a longer name, so no session remembers one."""
MOST_PARTS: Final = 250_000
"""A session that grows above it is over."""

Name = tuple[bytes, bytes, int]
"""(topic, topic id, partition): a partition as requests name it, by name (the id is zeros) or by id
(the name is empty)."""
Wanted = tuple[bytes, bytes, int, int, int, int, int, int]
"""A Name, then (fetch offset, max bytes, leader epoch, last fetched epoch, log start offset)."""
Fact = tuple[bytes, bytes, int, bool, bool, bool, int, int]
"""A Name, then (has error, has records, diverges, high watermark, log start offset): what a read
came to."""

class SessionCache:
    """The broker's fetch sessions (KIP-227), shared with the reactor. Thread-safe."""

    def __init__(
        self, slots: int, *, most_bytes: int = MOST_BYTES, seed: int | None = None
    ) -> None:
        """`seed` makes the sessions' ids those of another table with the same."""

    def __len__(self) -> int: ...
    def begin(
        self,
        session_id: int,
        session_epoch: int,
        asked: list[Wanted],
        forgotten: list[Name],
        *,
        by_id: bool,
        now_ms: int,
    ) -> tuple[int, int, int]:
        """Return (what the request came to, its session's id, what `epoch` is until the next one).

        The last two are 0 without a session.
        """

    def partitions(self, session_id: int, epoch: int) -> list[Wanted] | None:
        """Return what a session reads, in order; None when it is over or its epoch another."""

    def tell(self, session_id: int, epoch: int, facts: list[Fact]) -> list[bool] | None:
        """Note what an answer says, and return which partitions it must name.

        Those with records go to the end of the session's line. None as from `partitions`.
        """
