"""Two runs of a query whose steps alternate in every way, and die at every step.

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
    for run in runs:
        run.kill()
    last = SteppedRun(brokers, "last", batches + 1, tasks, workers[2])
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
