"""What members may take: a share of what others leave, looked up now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from plog.coordinator.group_events import Protocol
from plog.coordinator.member_memory import PATIENCE_MS, SHARE, STALE_MS, MemberMemory
from plog.coordinator.member_sizes import size_of
from plog.errors import ErrorCode
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import ManualClock

MOST = 100 * SHARE
NONE, TRY_AGAIN = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE


def memory_of(sizes: Callable[[], Iterable[int]], clock: ManualClock | None = None) -> MemberMemory:
    lines = BoundedLines(logging.getLogger(__name__), "%d further ones")
    return MemberMemory(MOST, clock or ManualClock(), sizes, lines)


def test_group_may_have_a_share_of_what_others_leave() -> None:
    memory = memory_of(list)
    assert memory.refusal(0, 101) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert memory.refusal(0, 101, too_large=ErrorCode.UNKNOWN_SERVER_ERROR) is (
        ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert memory.refusal(0, 100) is NONE
    memory.took(100)
    left = MOST - 100
    assert memory.refusal(0, left // SHARE + 1) is TRY_AGAIN
    assert memory.refusal(0, left // SHARE) is NONE
    # What it has itself is no other's.
    assert memory.refusal(90, 99) is NONE
    assert memory.refusal(0, 99) is TRY_AGAIN
    memory.took(-50)
    assert memory.refusal(0, (MOST - 50) // SHARE) is NONE


def test_who_takes_no_more_than_before_is_never_refused() -> None:
    memory = memory_of(lambda: [MOST, MOST])
    assert memory.refusal(MOST, MOST + 1) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert memory.refusal(MOST, MOST) is NONE
    assert memory.refusal(MOST, 1) is NONE
    assert memory.refusal(0, 1) is TRY_AGAIN


def test_large_ones_leave_room_for_small_ones() -> None:
    sizes: list[int] = []
    memory = memory_of(lambda: sizes)
    for size in (100, 50, 20):
        while memory.refusal(0, size) is NONE:
            sizes.append(size)
            memory.took(size)
    assert sum(sizes) < MOST
    assert memory.refusal(0, 1) is NONE


def test_what_has_gone_is_noticed_once_somebody_would_be_refused() -> None:
    clock, sizes = ManualClock(), [MOST]
    asked = []

    def ask() -> list[int]:
        asked.append(clock.monotonic_ms())
        return sizes

    memory = memory_of(ask, clock)
    assert memory.refusal(0, 1) is TRY_AGAIN
    sizes.clear()
    clock.advance(PATIENCE_MS - 1)
    assert memory.refusal(0, 1) is TRY_AGAIN
    clock.advance(1)
    assert memory.refusal(0, 1) is NONE
    assert len(asked) == 2


def test_what_came_otherwise_is_noticed_in_time() -> None:
    clock, sizes = ManualClock(), [0]
    memory = memory_of(lambda: sizes, clock)
    assert memory.refusal(0, 1) is NONE
    sizes[0] = MOST
    assert memory.refusal(0, 1) is NONE
    memory.look_again()
    assert memory.refusal(0, 1) is TRY_AGAIN
    sizes[0] = 0
    clock.advance(STALE_MS)
    assert memory.refusal(0, 1) is NONE
    sizes[0] = MOST
    clock.advance(STALE_MS)
    assert memory.refusal(0, 1) is TRY_AGAIN


def test_words_are_counted_as_they_are_held() -> None:
    nothing = size_of(None)
    assert size_of("m") > nothing
    assert size_of(bytes(1000)) >= nothing + 1000
    # One letter of another script makes all the others take four bytes.
    assert size_of("\U0001f980" + 1000 * "a") >= nothing + 4000
    assert size_of(protocols=[Protocol("", b"")] * 10) >= nothing + 10 * 100
    assert size_of(topics=[str(n) for n in range(1000)]) >= nothing + 1000 * 100
