"""Attempts of a request, repeated while its failure may pass: a leader moves, a group loads.

Owns the wait between two attempts. The callers decide which errors may pass, and for how long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from plog.errors import KafkaError

T = TypeVar("T")

RETRY_BACKOFF_S = 0.1
"""Wait before the next attempt."""


def retry(
    attempt: Callable[[], T],
    *,
    timeout_s: float,
    may_pass: Callable[[KafkaError], bool],
    before_next: Callable[[KafkaError], None] | None = None,
) -> T:
    """Call `attempt` until it returns, and return its result.

    Args:
        timeout_s: after it the error of an attempt is final; a running attempt is not interrupted.
        may_pass: whether another attempt may succeed after an error.
        before_next: prepares the next attempt, after the wait; it gets the error of the last one.

    Raises:
        KafkaError: the error of the last attempt.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except KafkaError as fault:
            if not may_pass(fault) or not wait_for_next(deadline):
                raise
            if before_next is not None:
                before_next(fault)


def wait_for_next(deadline: float) -> bool:
    """Wait before the next attempt; return False at once if the time is over.

    Args:
        deadline: as of time.monotonic().
    """
    if time.monotonic() >= deadline:
        return False
    time.sleep(RETRY_BACKOFF_S)
    return True
