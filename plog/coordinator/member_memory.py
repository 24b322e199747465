"""Limits the memory of the members of all groups.

The broker keeps a member's data while it is a member: its names, its metadata for each assignor and
its assignment. Kafka limits these by the size of a request and by `group.max.size`, but not their
total.

Owns the total limit (`group.members.max.bytes`) and the share of one group: a sixteenth of the
memory that the other groups leave. So large groups cannot use up the room of small ones. A member
is never removed because of the limit, and a request that does not grow its data is always accepted.
Changes no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from plog.coordinator.consumer_events import Beat
from plog.coordinator.group_events import Join, Sync
from plog.coordinator.group_shard import Group
from plog.errors import ErrorCode
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock

SHARE = 16
"""A group may use one part in SHARE of the free memory: 16 MB of 256 MB. A group's record must also
fit into `__consumer_offsets`, 1 MB by default."""

STALE_MS = 10_000
"""Maximum age of the total; it is recomputed earlier before a request is refused."""
PATIENCE_MS = 1_000


@dataclass(slots=True)
class MemberMemory:
    """The memory of one coordinator's members. For the event loop's thread.

    Groups loaded from the log are accepted at any size; `look_again` counts them. The memory of a
    deleted group is noticed at the next recount.

    Args:
        sizes: returns the size of each group in bytes.
        lines: rate-limited log lines about refused requests.
    """

    most_bytes: int
    clock: Clock
    sizes: Callable[[], Iterable[int]]
    lines: BoundedLines
    _used: int = 0
    _asked_ms: int | None = None

    def look_again(self) -> None:
        """Recount soon, because groups were loaded."""
        self._asked_ms = None

    def took(self, more_bytes: int) -> None:
        """Add the growth of a group, which may be negative."""
        self._used += more_bytes

    def refuse(
        self,
        group: Group,
        asked: Join | Sync | Beat,
        *,
        too_large: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED,
    ) -> ErrorCode:
        """Return and log the error of a request that is too large; NONE to accept it.

        Args:
            too_large: as of `refusal`.
        """
        before, after = group.members_size, group.members_size_with(asked)
        refusal = self.refusal(before, after, too_large=too_large)
        if refusal is not ErrorCode.NONE:
            self.lines.warning(
                "group %.100r needs %d bytes, more than group.members.max.bytes allows: %s",
                group.group_id,
                after,
                refusal.name,
            )
        return refusal

    def refusal(
        self, before: int, after: int, *, too_large: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED
    ) -> ErrorCode:
        """Return the error of growing a group to a size; NONE to accept it.

        Args:
            too_large: the error for a size above the limit even without other groups. It is final;
                memory of other groups may become free, so that error is retriable.
        """
        if after <= before:
            return ErrorCode.NONE
        if after > self.most_bytes // SHARE:
            return too_large
        self._maybe_ask(STALE_MS)
        if not self._has_room(before, after):
            self._maybe_ask(PATIENCE_MS)
            if not self._has_room(before, after):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _has_room(self, before: int, after: int) -> bool:
        return after <= (self.most_bytes - (self._used - before)) // SHARE

    def _maybe_ask(self, after_ms: int) -> None:
        now_ms = self.clock.monotonic_ms()
        if self._asked_ms is None or now_ms - self._asked_ms >= after_ms:
            self._used = sum(self.sizes())
            self._asked_ms = now_ms
