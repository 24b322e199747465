"""The steps of a round of `bin/chaos`."""

from __future__ import annotations

from . import power, strikes
from .plan import OF_ONE, OF_SEVERAL, PLANNED, Step, round_of
from .scene import Role


def test_seed_decides_the_steps() -> None:
    assert round_of(7) == round_of(7)
    assert round_of(7) != round_of(8)


def test_round_has_every_strike() -> None:
    names = {strike.__name__ for step in round_of(7) for strike, _ in step.strikes}
    assert names >= {one.__name__ for one in (*OF_ONE, *OF_SEVERAL, *PLANNED)}


def test_only_faults_of_one_broker_come_two_at_a_time() -> None:
    pairs = [step.strikes for seed in range(20) for step in round_of(seed) if len(step.strikes) > 1]
    assert pairs
    assert {strike for pair in pairs for strike, _ in pair} <= set(OF_ONE)
    assert all(first is not second for (first, _), (second, _) in pairs)


def test_faults_come_during_planned_work() -> None:
    names = {
        step.in_words([0] * len(step.strikes)) for seed in range(20) for step in round_of(seed)
    }
    for work in ("during moves", "during a rolling restart"):
        assert any(work in name for name in names)


def test_step_in_words() -> None:
    pair = Step(((strikes.kill, Role.LEADER), (strikes.cut_off, Role.GROUPS)), 0, waits=True)
    all_hosts = Step(((power.all_lose_power, Role.PLAIN),), 0, waits=True)
    assert pair.in_words([1, 2]) == (
        "kill: a leader (broker 1); cut off: a group's coordinator (broker 2)"
    )
    assert all_hosts.in_words([0]) == "all lose power"
