"""Repeated attempts: which errors end them, and when."""

from __future__ import annotations

import pytest

from plog.client import attempts
from plog.client.attempts import RETRY_BACKOFF_S, retry, wait_for_next
from plog.errors import InvalidTopic, KafkaError, NotLeaderOrFollower


class Clock:
    """Time that passes in `sleep` alone."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(attempts, "time", clock)
    return clock


def attempt_of(outcomes):
    """Return an attempt that raises errors and returns everything else, one outcome a call."""
    left = iter(outcomes)

    def attempt():
        outcome = next(left)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    return attempt


def may_pass(fault: KafkaError) -> bool:
    return fault.retriable


MOVING = [NotLeaderOrFollower(f"attempt {n}") for n in range(100)]


def test_attempts_go_on_while_the_error_may_pass(clock: Clock) -> None:
    prepared: list[tuple[KafkaError, float]] = []
    found = retry(
        attempt_of([*MOVING[:3], "found"]),
        timeout_s=10,
        may_pass=may_pass,
        before_next=lambda fault: prepared.append((fault, clock.now)),
    )
    assert found == "found"
    assert [fault for fault, _ in prepared] == MOVING[:3]
    waits = [at - 1000 for _, at in prepared]
    assert waits == pytest.approx([RETRY_BACKOFF_S * n for n in (1, 2, 3)])


def test_other_error_ends_the_attempts_without_a_wait(clock: Clock) -> None:
    with pytest.raises(InvalidTopic):
        retry(attempt_of([InvalidTopic("t")]), timeout_s=10, may_pass=may_pass)
    assert clock.now == 1000


def test_last_error_is_raised_when_the_time_is_over(clock: Clock) -> None:
    with pytest.raises(NotLeaderOrFollower, match="attempt 5"):
        retry(attempt_of(MOVING), timeout_s=RETRY_BACKOFF_S * 4.5, may_pass=may_pass)
    with pytest.raises(NotLeaderOrFollower, match="attempt 0"):
        retry(attempt_of(MOVING), timeout_s=0, may_pass=may_pass)


def test_wait_ends_at_once_after_the_deadline(clock: Clock) -> None:
    assert wait_for_next(1000.05)
    assert not wait_for_next(1000.05)
    assert clock.now == 1000 + RETRY_BACKOFF_S
