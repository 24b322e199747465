"""How much memory the members of all groups may take, and who is not taken in when it runs short.

A member's words are kept for as long as it is one: its names, what it told the leader for each
assignor, its assignment. Kafka bounds them by the size of a request and by `group.max.size`, and
neither bounds what there is of them together.

Owns how much there may be (`group.members.max.bytes`), and what one group may have of it: a
sixteenth of what the others leave. So the less is left, the smaller must be what comes, and whoever
uses it up with large groups leaves room for small ones. No member is sent away for it, and one that
tells no more than it did is always heard. Changes no group.
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
"""Of the room a group may have one part in so many: 16 MB of 256 MB. One whose record is larger
than `__consumer_offsets` takes, 1 MB where nothing else is set, can never be stored."""

STALE_MS = 10_000
"""After so long all groups are asked for their sizes again; sooner if somebody would be refused."""
PATIENCE_MS = 1_000


@dataclass(slots=True)
class MemberMemory:
    """The memory of one coordinator's members. For the event loop's thread.

    Groups that are read from the log are there, whatever they take: `look_again` counts them. What
    goes with a whole group is noticed when all are asked again.

    Args:
        sizes: tells how many bytes each group takes.
        lines: of what was refused, in the log.
    """

    most_bytes: int
    clock: Clock
    sizes: Callable[[], Iterable[int]]
    lines: BoundedLines
    _used: int = 0
    _asked_ms: int | None = None

    def look_again(self) -> None:
        """Take note that groups have come from elsewhere."""
        self._asked_ms = None

    def took(self, more_bytes: int) -> None:
        """Take note that a group has grown, or has shrunk."""
        self._used += more_bytes

    def refuse(
        self,
        group: Group,
        asked: Join | Sync | Beat,
        *,
        too_large: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED,
    ) -> ErrorCode:
        """Tell why a group does not take in what somebody says, and the log, too; NONE if it does.

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
        """Tell why a group may not grow to a size; NONE if it may.

        Args:
            too_large: what one is told that would find no room if there were no other group. It is
                for good; what others take may be given back, and is worth another try.
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
