"""What a query's records say, and what follows from them for a batch of a run."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.client.transaction_states import PreparedTransaction
from plog.spark.decisions import (
    MAX_EARLIER_RUNS,
    NO_BATCH,
    BatchStatus,
    CheckpointRewound,
    DamagedDecision,
    Decision,
    Fenced,
    TransactionalIds,
    batch_status,
    commit_batch,
    driver_transactional_id,
    has_other_plan,
    is_committed_by,
    register_run,
    task_id_prefix,
)

names = st.text(min_size=1, max_size=20)
transactions = st.builds(
    PreparedTransaction, names, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)
)
decisions = st.builds(
    Decision,
    run=names,
    batch=st.integers(-1, 2**63 - 1),
    transactions=st.lists(transactions, max_size=3).map(tuple),
    earlier=st.lists(names, max_size=3).map(tuple),
    plan=st.none() | names,
)
ONE = PreparedTransaction("id", 7, 3)


@given(decisions)
def test_record_is_read_as_it_was_written(decision: Decision) -> None:
    assert Decision.decode(decision.encode()) == decision


GOLDEN = {
    "version": 1,
    "run": "r",
    "batch": 4,
    "transactions": [["id", 7, 3]],
    "earlier": ["q"],
}
"""As the first release wrote it."""


def test_record_stays_what_it_is() -> None:
    """Those of an older release decide for queries that go on with a newer one."""
    assert Decision.decode(json.dumps(GOLDEN).encode()) == Decision("r", 4, (ONE,), ("q",))
    value = json.dumps({**GOLDEN, "plan": "abc"}).encode()
    assert Decision("r", 4, (ONE,), ("q",), "abc").encode() == value
    assert Decision.decode(value) == Decision("r", 4, (ONE,), ("q",), "abc")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        *(json.dumps({k: v for k, v in GOLDEN.items() if k != key}).encode() for key in GOLDEN),
        *(json.dumps({**GOLDEN, key: None}).encode() for key in GOLDEN if key != "run"),
        json.dumps({**GOLDEN, "version": 2}).encode(),
        json.dumps({**GOLDEN, "batch": "four"}).encode(),
        json.dumps({**GOLDEN, "transactions": [["id", 7]]}).encode(),
        json.dumps({**GOLDEN, "transactions": [["id", "seven", 3]]}).encode(),
    ],
)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(DamagedDecision):
        Decision.decode(value)


def test_run_enters_once_and_batches_are_decided_once() -> None:
    assert batch_status(None, "r1", 0) is BatchStatus.UNREGISTERED
    last = register_run(None, "r1", 0)
    assert last == Decision("r1", NO_BATCH)
    assert batch_status(last, "r1", 0) is BatchStatus.PENDING
    last = commit_batch(last, 0, [ONE], "plan")
    assert last == Decision("r1", 0, (ONE,), (), "plan")
    assert batch_status(last, "r1", 0) is BatchStatus.COMMITTED
    assert batch_status(last, "r1", 1) is BatchStatus.PENDING


def test_next_run_takes_over_and_remembers_what_stands() -> None:
    before = commit_batch(register_run(None, "r1", 0), 5, [ONE], "plan")
    assert batch_status(before, "r2", 5) is BatchStatus.UNREGISTERED
    last = register_run(before, "r2", 5)
    # Whoever enters has committed what was decided.
    assert last == Decision("r2", 5, (), ("r1",), "plan")
    assert batch_status(last, "r2", 5) is BatchStatus.COMMITTED
    assert batch_status(last, "r2", 6) is BatchStatus.PENDING
    with pytest.raises(Fenced, match="run r1 was replaced by run r2"):
        batch_status(last, "r1", 6)


def test_committed_batch_is_a_second_write_only_in_the_run_that_committed_it() -> None:
    last = commit_batch(register_run(None, "r1", 0), 5, [ONE])
    found = [is_committed_by(last, "r1", batch) for batch in (4, 5, 6)]
    assert found == [True, True, False]
    replayed = register_run(last, "r2", 5)
    assert not any(is_committed_by(replayed, run, 5) for run in ("r1", "r2"))
    assert not is_committed_by(None, "r1", 0)
    empty = commit_batch(register_run(None, "r1", 0), 5, [])
    assert not is_committed_by(empty, "r1", 5)  # a registered run has the same record


def test_run_that_goes_back_behind_what_stands_is_refused() -> None:
    """Its tasks would be told that their batches stand, and what they write now would be lost."""
    before = commit_batch(register_run(None, "r1", 0), 5, [ONE])
    with pytest.raises(
        CheckpointRewound, match="batch 5 is already committed, but the query restarts at batch 4"
    ):
        register_run(before, "r2", 4)
    assert register_run(before, "r2", 6).batch == 5


@pytest.mark.parametrize(
    ("stands", "comes", "is_so"),
    [
        (Decision("r", 5, (ONE,), (), "a"), (5, "a"), False),
        (Decision("r", 5, (ONE,), (), "a"), (5, "b"), True),
        (Decision("r", 5, (ONE,), (), "a"), (5, None), False),
        (Decision("r", 5, (ONE,), (), None), (5, "b"), False),
        (Decision("r", 5, (ONE,), (), "a"), (4, "b"), False),
        (None, (5, "b"), False),
    ],
)
def test_batch_of_another_plan_is_another_where_both_are_known(
    stands: Decision | None, comes: tuple[int, str | None], is_so: bool
) -> None:
    assert has_other_plan(stands, *comes) is is_so


def test_as_many_runs_as_may_still_have_tasks_are_remembered() -> None:
    last = register_run(None, "r0", 0)
    for n in range(1, 100):
        last = register_run(last, f"r{n}", n)
    assert last.earlier == tuple(f"r{n}" for n in range(98, 98 - MAX_EARLIER_RUNS, -1))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_ids_of_what_may_be_committed_again_are_not_used(attempts: list[int]) -> None:
    """The last decision names ids of one batch; tasks of the next one write meanwhile."""
    transactional_ids = TransactionalIds("process")
    used: dict[int, list[str]] = {}
    for batch, more in enumerate(attempts):
        used[batch] = [transactional_ids.next_id("p-", "q", "run", batch) for _ in range(more + 1)]
        assert len(set(used[batch])) == more + 1
        if batch:
            assert not set(used[batch]) & set(used[batch - 1])
    # And yet they are few.
    assert len(set(itertools.chain(*used.values()))) <= 2 * (max(attempts) + 1)


def test_next_run_of_a_batch_uses_the_ids_again_and_others_have_their_own() -> None:
    transactional_ids = TransactionalIds("process")
    ids = [transactional_ids.next_id("p-", "q", "r1", 4) for _ in range(2)]
    assert ids == [f"{task_id_prefix('p-', 'q')}process-0-{n}" for n in range(2)]
    assert transactional_ids.next_id("p-", "q", "r2", 4) == ids[0]
    assert transactional_ids.next_id("p-", "other", "r2", 4) not in ids
    assert TransactionalIds("another").next_id("p-", "q", "r1", 4) not in ids
    assert not driver_transactional_id("p-", "q").startswith(task_id_prefix("p-", "q"))
