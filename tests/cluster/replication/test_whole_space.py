"""No acknowledged record is lost, whatever happens and in whatever order; each broken rule is seen.

The space that is asked for, three replicas, records and epochs, takes `--long`. Every run tries two
smaller ones, in which every broken rule but one shows.
"""

from __future__ import annotations

import pytest

from tests.cluster.replication.explorer import explore
from tests.cluster.replication.model import Model, Rules

STEPS = {
    "acknowledge",
    "crash",
    "cut",
    "elect",
    "fetch",
    "grow",
    "hear",
    "lose",
    "note",
    "produce",
    "propose",
    "refuse",
    "register",
    "replace",
    "shrink",
}


@pytest.mark.parametrize(
    ("records", "epochs"),
    [(1, 3), (2, 2), pytest.param(3, 3, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
    ids=lambda count: str(count),
)
def test_no_acknowledged_record_is_lost(records: int, epochs: int) -> None:
    found = explore(Model(records, epochs))
    print(f"3 replicas, {records} records, {epochs} epochs: {found.states:,} states")
    assert not found.path
    assert set(found.steps) == STEPS, "the model never does what it should try"


@pytest.mark.parametrize(
    ("rules", "records", "epochs"),
    [
        (Rules(elects_in_sync=False), 1, 2),
        (Rules(counts_proposed=False), 1, 2),
        (Rules(forgets_positions=False), 1, 3),
        (Rules(asks_for_registration=False), 1, 2),
        (Rules(answers_old_waits=True), 2, 3),
        (Rules(knows_epoch_start=False), 1, 3),
        (Rules(goes_back_by_epochs=False), 2, 2),
    ],
    ids=lambda value: (
        " ".join(name for name, is_kept in vars(value).items() if is_kept != getattr(Rules(), name))
        if isinstance(value, Rules)
        else str(value)
    ),
)
def test_broken_rule_loses_a_record(rules: Rules, records: int, epochs: int) -> None:
    found = explore(Model(records, epochs, rules))
    print(f"after {found.states:,} states: {', '.join(found.path)}")
    assert found.path
