"""Two runs of a query whose steps alternate, and die at every step; second attempts at tasks.

The steps are those of the sink and of `BatchSink`. A third run finishes the query at the end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from plog.errors import ProducerFenced
from plog.spark.decisions import CheckpointRewound, Fenced
from plog.spark.open_transactions import TransactionLost
from tests.spark.stepped_runs import (
    ENDLESS,
    Brokers,
    Killed,
    SecondAttempt,
    SteppedRun,
    Workers,
    use_stepped_parts,
)

EXPECTED = (Fenced, ProducerFenced, CheckpointRewound, TransactionLost, Killed)
"""Ends of a run that its user understands; any other is a fault of the sink."""
ENDS = {
    "both die": [],
    "first dies": [1],
    "second dies": [0],
    "first goes on": [0, 1],
    "second goes on": [1, 0],
}
"""The runs that go on to their end, in their order, after both have made some steps."""


def schedules(steps: int) -> Iterator[tuple[int, int]]:
    """Yield how many steps the first run makes, and how many the second one after it."""
    return itertools.product(range(steps + 1), repeat=2)


def steps_alone(batches: int, tasks: int) -> int:
    """Return the steps of a run that nothing disturbs."""
    brokers = Brokers()
    run = SteppedRun(brokers, "alone", batches, tasks, Workers("alone"))
    run.give()
    assert run.fault is None
    assert brokers.visible() == Counter(itertools.product(range(batches), range(tasks)))
    return run.steps


def play(first: int, second: int, ends: list[int], batches: int, tasks: int, shared: bool) -> None:
    """Run a schedule, finish the query with a third run, and check what readers see."""
    brokers = Brokers()
    workers = [Workers(f"{n}-") for n in range(3)]
    if shared:
        workers = workers[:1] * 3
    runs = [SteppedRun(brokers, f"run-{n}", batches, tasks, workers[n]) for n in range(2)]
    for run, steps in zip(runs, (first, second), strict=True):
        run.give(steps)
    for n in ends:
        runs[n].give(ENDLESS)
    finish(brokers, runs, batches, tasks, workers[2])


def finish(
    brokers: Brokers, runs: list[SteppedRun], batches: int, tasks: int, workers: Workers
) -> None:
    """Kill these runs, finish the query with a last one, and check what readers see."""
    for run in runs:
        run.kill()
    last = SteppedRun(brokers, "last", batches + 1, tasks, workers)
    last.give()
    assert last.fault is None, last.fault
    assert all(run.fault is None or isinstance(run.fault, EXPECTED) for run in runs), [
        repr(run.fault) for run in runs
    ]
    assert brokers.visible() == Counter(itertools.product(range(batches + 1), range(tasks)))
    assert "open" not in brokers.states.values()


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(
    "shared",
    [pytest.param(False, marks=pytest.mark.long), True],
    ids=["other-workers", "same-workers"],
)
@pytest.mark.parametrize(("batches", "tasks"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.long)])
def test_each_batch_is_visible_once(
    monkeypatch: pytest.MonkeyPatch, ends: list[int], shared: bool, batches: int, tasks: int
) -> None:
    use_stepped_parts(monkeypatch)
    steps = steps_alone(batches, tasks)
    assert steps > 10
    for first, second in schedules(steps):
        try:
            play(first, second, ends, batches, tasks, shared)
        except AssertionError as fault:
            raise AssertionError(
                f"first run {first} steps, second run {second}: {fault}"
            ) from fault


def play_in_turns(steps: tuple[int, ...]) -> None:
    """Let two runs make these numbers of steps in turns, and then both go on to their end."""
    brokers = Brokers()
    workers = Workers("")
    runs = [SteppedRun(brokers, f"run-{n}", 1, 1, workers) for n in range(2)]
    for turn, count in enumerate(steps):
        runs[turn % 2].give(count)
    runs[len(steps) % 2].give()
    runs[1 - len(steps) % 2].give()
    finish(brokers, runs, 1, 1, workers)


@pytest.mark.parametrize(
    "turns", [pytest.param(3, id="three"), pytest.param(4, id="four", marks=pytest.mark.long)]
)
def test_each_batch_is_visible_once_when_a_replaced_driver_goes_on(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    use_stepped_parts(monkeypatch)
    most = steps_alone(1, 1)
    first = range(most // 2, most + 1)  # from where its driver is about to begin
    others = [range(1, most + 1)] * 2 + [range(1, 6)] * (turns - 3)
    for steps in itertools.product(first, *others):
        try:
            play_in_turns(steps)
        except AssertionError as fault:
            raise AssertionError(f"steps in turns {steps}: {fault}") from fault


def test_second_attempt_at_a_task_never_stops_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stepped_parts(monkeypatch)
    for first, second in schedules(steps_alone(1, 1)):
        brokers, workers = Brokers(), Workers("")
        run = SteppedRun(brokers, "run", 1, 1, workers)
        attempt = SecondAttempt(brokers, "run", workers)
        for one, steps in ((attempt, first), (run, second), (attempt, ENDLESS), (run, ENDLESS)):
            one.give(steps)
        assert run.fault is None, f"attempt {first} steps, run {second}: {run.fault!r}"
        finish(brokers, [run, attempt], 1, 1, workers)
