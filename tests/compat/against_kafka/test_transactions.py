"""Transactions beside Kafka 3.9, request by request; they are of version 1 in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.compat.against_kafka import group_steps
from tests.compat.against_kafka.ask import fetch, list_offsets, produce
from tests.compat.against_kafka.group_steps import alone, join, leave
from tests.compat.against_kafka.pair import Case, Pair, Step, Topic, case_of
from tests.compat.against_kafka.test_cluster import find
from tests.compat.against_kafka.txn_steps import (
    NOBODY,
    add,
    add_many,
    add_offsets,
    comes,
    commit_offsets,
    described,
    end,
    init,
    listed,
    mark,
    producers,
    write,
)
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.wire import make_batch

T, U = ("t", [0]), ("u", [0])
BOTH = ("t", [0, 1])
OPEN = [init(), add(T)]
"""A transaction of the producer `p`, which has one partition."""
WRITTEN = [*OPEN, write()]
COMMITTED = [*WRITTEN, end(), comes("CompleteCommit")]
ABORTED = [*WRITTEN, end(commit=False), comes("CompleteAbort")]
READ = [
    Step(fetch(("t", 0, 0), isolation_level=1), 12),
    Step(list_offsets(("t", 0, -1), isolation=1), 7),
]
"""What a reader of committed records finds."""
BATCH = make_batch([b"v"], timestamps=[1_700_000_000_000])
FETCHED = [
    group_steps.fetch(("t", [0, 1]), ("u", [0])),
    group_steps.fetch(("t", [0, 1]), ("u", [0]), stable=True),
]
"""What the group `g` has committed."""

FIND = {
    **{f"version-{version}": [Step(find("x", kind=1), version)] for version in range(1, 4)},
    **{f"version-{version}": [Step(find(keys=["x", "y"], kind=1), version)] for version in (4, 5)},
    "empty": [Step(find(keys=[""], kind=1), 4)],
    "empty-version-3": [Step(find("", kind=1), 3)],
}

INIT = {
    **{f"version-{version}": [init(version=version), described("x")] for version in range(6)},
    "twice": [init(), init(), described("x")],
    "of-two": [init(), init(via="q"), init(again=True), init(via="q", again=True)],
    "empty-id": [init("")],
    "long-id": [init("x" * 20_000), described("x" * 20_000)],
    "id-with-newline": [init("x\ny"), described("x\ny")],
    "timeout-0": [init(timeout_ms=0)],
    "timeout-negative": [init(timeout_ms=-1)],
    "timeout-longest": [init(timeout_ms=900_000), described("x")],
    "timeout-too-long": [init(timeout_ms=900_001)],
    "timeout-changes": [init(), init(timeout_ms=1234), described("x")],
    "timeout-too-long-of-known": [init(), init(timeout_ms=900_001), described("x")],
    "id-without-epoch": [init(who=(5, -1))],
    "epoch-without-id": [init(who=(-1, 5))],
    "id-negative": [init(who=(-2, 0))],
    "epoch-negative": [init(), init(again=True, by=-5)],
    "who-of-unknown-id": [init(who=(NOBODY, 0))],
    "who-of-unknown-id-3": [init(version=3, who=(NOBODY, 0))],
    "again": [init(), init(again=True), init(again=True), described("x")],
    "again-3": [init(version=3), init(version=3, again=True)],
    "again-with-older-epoch": [init(), init(again=True), init(again=True, by=-1), described("x")],
    "again-with-much-older-epoch": [init(), init(), init(), init(again=True, by=-2)],
    "again-with-much-older-epoch-3": [init(), init(), init(), init(version=3, again=True, by=-2)],
    "again-with-older-epoch-after-init": [init(), init(), init(again=True, by=-1)],
    "again-with-newer-epoch": [init(), init(again=True, by=1), described("x")],
    "again-with-other-id": [init(), init(who=(NOBODY, 0)), described("x")],
    "again-with-other-id-3": [init(), init(version=3, who=(NOBODY, 0))],
    "while-ongoing": [*OPEN, init(), comes("CompleteAbort"), init(), described("x")],
    "while-ongoing-again": [
        *OPEN, init(again=True), comes("CompleteAbort"), init(), described("x")],
    "while-ongoing-with-older-epoch": [
        init(), init(), add(T), init(again=True, by=-1), described("x")._replace(settles=True)],
    "while-ongoing-with-newer-epoch": [
        *OPEN, init(again=True, by=1), described("x")._replace(settles=True)],
    "while-ongoing-with-other-id": [*OPEN, init(who=(NOBODY, 0)), described("x")],
    "fences-the-one-before": [
        *OPEN, init(via="q"), comes("CompleteAbort"), init(via="q"),
        add(T), end(), write(), add(T, via="q"), write(via="q"), end(via="q"),
        comes("CompleteCommit"), *READ],
    "after-commit": [*COMMITTED, init(), described("x")],
    "after-commit-again": [*COMMITTED, init(again=True), described("x")],
    "after-abort": [*ABORTED, init(), described("x")],
}  # fmt: skip

ADD = {
    **{
        f"version-{version}": [init(), add(T, version=version), described("x")]
        for version in range(4)
    },
    **{
        f"many-{version}": [init(), add_many(("x", "p", [T]), version=version), described("x")]
        for version in (4, 5)
    },
    "unknown-id": [init(), add(T, name="y")],
    "empty-id": [init(), add(T, name="")],
    "unknown-producer": [init(), add(T, who=(NOBODY, 0))],
    "unknown-id-and-topic": [add(("no", [0]), name="y")],
    "epoch-older": [init(), init(), add(T, by=-1)],
    **{
        f"epoch-older-{version}": [init(), init(), add(T, by=-1, version=version)]
        for version in range(3)
    },
    "epoch-newer": [init(), add(T, by=1)],
    "epoch-newer-1": [init(), add(T, by=1, version=1)],
    "epoch-negative": [init(), add(T, by=-1)],
    "unknown-topic": [init(), add(("no", [0])), described("x")],
    "unknown-partition": [init(), add(("t", [0, 9])), described("x")],
    "negative-partition": [init(), add(("t", [-1])), described("x")],
    "good-and-unknown": [init(), add(T, ("no", [0]), U), described("x")],
    "empty-topic": [init(), add(("", [0]))],
    "nothing": [init(), add(), described("x")],
    "no-partitions": [init(), add(("t", [])), described("x")],
    "same-twice-in-one": [init(), add(("t", [0, 0])), described("x")],
    "again": [*OPEN, add(T), described("x")],
    "more": [*OPEN, add(("t", [1])), add(U), described("x")],
    "after-commit": [*COMMITTED, add(T), described("x")],
    "after-abort": [*ABORTED, add(("t", [1])), described("x")],
    "many-of-two": [
        init(), init("y", via="q"), add_many(("x", "p", [T]), ("y", "q", [U])),
        described("x", "y")],
    "many-with-unknown": [init(), add_many(("x", "p", [T]), ("y", "q", [U])), described("x", "y")],
    "many-epoch-older": [init(), init(), add_many(("x", "p", [T]), by=-1)],
    "many-unknown-producer": [init(), add_many(("x", "p", [T]), who=(NOBODY, 0))],
    "many-empty-id": [init(), add_many(("", "p", [T]))],
    "many-unknown-topic": [init(), add_many(("x", "p", [T, ("no", [0])])), described("x")],
    **{
        f"verify-{version}": [
            *OPEN, add_many(("x", "p", [T]), version=version, verify=True),
            add_many(("x", "p", [BOTH]), version=version, verify=True), described("x")]
        for version in (4, 5)
    },
    "verify-nothing-open": [init(), add_many(("x", "p", [T]), verify=True), described("x")],
    "verify-after-commit": [*COMMITTED, add_many(("x", "p", [T]), verify=True)],
    "verify-unknown-id": [init(), add_many(("y", "p", [T]), verify=True)],
    "verify-empty-id": [init(), add_many(("", "p", [T]), verify=True)],
    "verify-unknown-producer": [*OPEN, add_many(("x", "p", [T]), verify=True, who=(NOBODY, 0))],
    "verify-epoch-older": [
        init(), init(), add(T), add_many(("x", "p", [T]), verify=True, by=-1)],
    "verify-epoch-newer": [*OPEN, add_many(("x", "p", [T]), verify=True, by=1)],
    "verify-unknown-topic": [*OPEN, add_many(("x", "p", [T, ("no", [0])]), verify=True)],
}  # fmt: skip

ADD_OFFSETS = {
    **{f"version-{version}": [init(), add_offsets(version=version)] for version in range(5)},
    "unknown-id": [init(), add_offsets(name="y")],
    "empty-id": [init(), add_offsets(name="")],
    "empty-group": [init(), add_offsets("")],
    "unknown-producer": [init(), add_offsets(who=(NOBODY, 0))],
    "epoch-older": [init(), init(), add_offsets(by=-1)],
    **{
        f"epoch-older-{version}": [init(), init(), add_offsets(by=-1, version=version)]
        for version in range(3)
    },
    "epoch-newer": [init(), add_offsets(by=1)],
    "again": [init(), add_offsets(), add_offsets(), add_offsets("h")],
    "after-commit": [*COMMITTED, add_offsets()],
}

IN_GROUP = [init(), add_offsets()]
ENDS = {True: "CompleteCommit", False: "CompleteAbort"}
ONE = ("t", 0, 5)

OFFSETS = {
    **{
        f"version-{version}": [
            *IN_GROUP, commit_offsets(ONE, version=version), *FETCHED, end(),
            comes("CompleteCommit"), *FETCHED]
        for version in range(5)
    },
    "aborted": [
        *IN_GROUP, commit_offsets(ONE), end(commit=False), comes("CompleteAbort"), *FETCHED],
    "over-a-commit": [
        group_steps.commit(("t", 0, 3)), *IN_GROUP, commit_offsets(ONE), *FETCHED,
        end(commit=False), comes("CompleteAbort"), *FETCHED],
    "under-a-commit": [
        *IN_GROUP, commit_offsets(ONE), group_steps.commit(("t", 0, 9)), end(),
        comes("CompleteCommit"), *FETCHED],
    "several": [
        *IN_GROUP, commit_offsets(ONE, ("t", 1, 7), ("u", 0, 9)), end(),
        comes("CompleteCommit"), *FETCHED],
    "twice": [
        *IN_GROUP, commit_offsets(ONE), commit_offsets(("t", 0, 6)), end(),
        comes("CompleteCommit"), *FETCHED],
    "nothing": [*IN_GROUP, commit_offsets()],
    "not-added": [init(), commit_offsets(ONE)],
    "not-added-3": [init(), commit_offsets(ONE, version=3)],
    "not-added-other-partitions-are": [*OPEN, commit_offsets(ONE)],
    "unknown-id": [*IN_GROUP, commit_offsets(ONE, name="y")],
    "empty-id": [*IN_GROUP, commit_offsets(ONE, name="")],
    "empty-group": [*IN_GROUP, commit_offsets(ONE, group="")],
    "unknown-producer": [*IN_GROUP, commit_offsets(ONE, who=(NOBODY, 0))],
    "epoch-older": [init(), *IN_GROUP, commit_offsets(ONE, by=-1)],
    "epoch-older-after-a-commit": [
        init(), *IN_GROUP, commit_offsets(ONE), commit_offsets(ONE, by=-1)],
    "epoch-newer": [*IN_GROUP, commit_offsets(ONE, by=1)],
    "unknown-topic": [*IN_GROUP, commit_offsets(("no", 0, 1))],
    "unknown-partition": [*IN_GROUP, commit_offsets(ONE, ("t", 9, 1))],
    "good-and-unknown": [
        *IN_GROUP, commit_offsets(ONE, ("no", 0, 1)), end(), comes("CompleteCommit"), *FETCHED],
    "offset-negative": [*IN_GROUP, commit_offsets(("t", 0, -1)), end(), comes("CompleteCommit"),
        *FETCHED],
    "metadata-null": [
        *IN_GROUP, commit_offsets(ONE, metadata=None), end(), comes("CompleteCommit"), *FETCHED],
    "metadata-too-long": [*IN_GROUP, commit_offsets(ONE, ("t", 1, 1), metadata="m" * 4097)],
    "after-commit": [
        *IN_GROUP, commit_offsets(ONE), end(), comes("CompleteCommit"), commit_offsets(ONE)],
    "of-member": [
        *alone(), *IN_GROUP, commit_offsets(ONE, member="a", generation=None), end(),
        comes("CompleteCommit"), *FETCHED],
    "of-member-without-saying-so": [*alone(), *IN_GROUP, commit_offsets(ONE)],
    "of-member-2": [*alone(), *IN_GROUP, commit_offsets(ONE, version=2)],
    "unknown-member": [*alone(), *IN_GROUP, commit_offsets(ONE, member="no", generation=None)],
    "unknown-member-without-generation": [*alone(), *IN_GROUP, commit_offsets(ONE, member="no")],
    "unknown-member-of-no-group": [*IN_GROUP, commit_offsets(ONE, member="no", generation=1)],
    "generation-without-member": [*alone(), *IN_GROUP, commit_offsets(ONE, generation=None)],
    "older-generation": [*alone(), *IN_GROUP, commit_offsets(ONE, member="a", generation=0)],
    "newer-generation": [*alone(), *IN_GROUP, commit_offsets(ONE, member="a", generation=2)],
    "older-generation-2": [
        *alone(), *IN_GROUP, commit_offsets(ONE, version=2, member="a", generation=0)],
    "fenced-instance": [
        *alone(instance="i"), *IN_GROUP,
        commit_offsets(ONE, member="nobody", instance="i", generation=None)],
    "unknown-instance": [
        *alone(), *IN_GROUP, commit_offsets(ONE, member="a", instance="i", generation=None)],
    "of-a-group-that-was-left": [
        *alone(), leave(("a", None)), *IN_GROUP,
        commit_offsets(ONE, member="a", generation=None), commit_offsets(ONE)],
    "before-sync": [
        *([join("a")] * 2), *IN_GROUP, commit_offsets(ONE, member="a", generation=None)],
    "deleted-group": [
        *IN_GROUP, commit_offsets(ONE), group_steps.deleted("g"), group_steps.described("g")],
    "offsets-deleted": [
        *IN_GROUP, commit_offsets(ONE), group_steps.delete_offsets(("t", [0])), *FETCHED],
}  # fmt: skip

END = {
    **{
        f"{'commit' if commit else 'abort'}-{version}": [
            *WRITTEN, *READ, end(commit=commit, version=version), comes(ENDS[commit]), *READ,
            producers(T)]
        for version in range(5)
        for commit in (True, False)
    },
    **{
        f"{'commit' if commit else 'abort'}-again-as-{'commit' if again else 'abort'}": [
            *WRITTEN, end(commit=commit), comes(ENDS[commit]), end(commit=again), described("x")]
        for commit in (True, False)
        for again in (True, False)
    },
    "commit-of-nothing": [init(), end(), described("x")],
    "abort-of-nothing": [init(), end(commit=False), described("x")],
    "commit-without-records": [*OPEN, end(), comes("CompleteCommit"), *READ, producers(T)],
    "abort-without-records": [
        *OPEN, end(commit=False), comes("CompleteAbort"), *READ, producers(T)],
    "commit-of-no-partitions": [init(), add(), end(), comes("CompleteCommit")],
    "unknown-id": [*OPEN, end(name="y"), described("x")],
    "empty-id": [*OPEN, end(name="")],
    "unknown-producer": [*OPEN, end(who=(NOBODY, 0)), described("x")],
    "epoch-older": [init(), *OPEN, end(by=-1), described("x")],
    **{
        f"epoch-older-{version}": [init(), *OPEN, end(by=-1, version=version)]
        for version in range(3)
    },
    "epoch-newer": [*OPEN, end(by=1), described("x")],
    "after-init": [*COMMITTED, init(), end(), end(commit=False), described("x")],
    "two-in-turn": [
        *COMMITTED, add(T), write(sequence=1), *READ, end(commit=False),
        comes("CompleteAbort"), *READ],
    "several-partitions": [
        init(), add(BOTH, U), write(), write(index=1), write("u"), end(),
        comes("CompleteCommit"), *READ, producers(BOTH, U)],
}  # fmt: skip

WRITE = {
    **{
        f"version-{version}": [*OPEN, write(version=version), *READ, described("x")]
        for version in range(3, 12)
    },
    "not-added": [init(), write(), *READ],
    "not-added-10": [init(), write(version=10)],
    "other-partition": [*OPEN, write(index=1)],
    "without-id": [*OPEN, write(name=None)],
    "other-id": [*OPEN, write(name="y")],
    "empty-id": [*OPEN, write(name="")],
    "unknown-producer": [*OPEN, write(who=(NOBODY, 0))],
    "epoch-older": [init(), *OPEN, write(by=-1)],
    "epoch-older-after-a-record": [init(), *OPEN, write(), write(by=-1)],
    "epoch-newer": [*OPEN, write(by=1)],
    "not-transactional": [*OPEN, write(transactional=False), *READ],
    "not-transactional-without-id": [*OPEN, write(transactional=False, name=None), *READ],
    "not-transactional-amid": [*WRITTEN, write(transactional=False, sequence=1), *READ],
    "begins-at-5": [*OPEN, write(sequence=5), *READ],
    "gap": [*WRITTEN, write(sequence=3)],
    "duplicate": [*WRITTEN, write(), *READ],
    "after-commit": [*COMMITTED, write(sequence=1), *READ],
    "duplicate-after-commit": [*COMMITTED, write(), *READ],
    "after-abort": [*ABORTED, write(sequence=1), *READ],
    "beside-others": [
        *WRITTEN, Step(produce(("t", 0, BATCH)), 9), *READ, end(commit=False),
        comes("CompleteAbort"), *READ],
}  # fmt: skip

MARK = {
    **{
        f"version-{version}": [*WRITTEN, mark(T, version=version), *READ, producers(T)]
        for version in range(2)
    },
    "abort": [*WRITTEN, mark(T, commit=False), *READ, producers(T)],
    "twice": [*WRITTEN, mark(T), mark(T), *READ, producers(T)],
    "twice-in-one": [*WRITTEN, mark(T, times=2), *READ],
    "of-nothing-open": [init(), mark(T), *READ, producers(T)],
    "unknown-producer": [mark(T, who=(NOBODY, 3)), *READ, producers(T)],
    "unknown-topic": [mark(("no", [0]), who=(NOBODY, 0))],
    "unknown-partition": [mark(("t", [0, 9]), who=(NOBODY, 0))],
    "nothing": [mark(times=0)],
    "no-partitions": [mark(("t", []), who=(NOBODY, 0))],
    "epoch-older": [init(), *WRITTEN, mark(T, by=-1), *READ, producers(T)],
    "epoch-newer": [*WRITTEN, mark(T, by=1), *READ, producers(T)],
    "coordinator-epoch-newer": [*WRITTEN, mark(T, coordinator_epoch=5), *READ, producers(T)],
    "coordinator-epoch-older": [
        *WRITTEN,
        mark(T, coordinator_epoch=5),
        mark(T, coordinator_epoch=4),
        *READ,
    ],
    "coordinator-epoch-negative": [*WRITTEN, mark(T, coordinator_epoch=-1), *READ, producers(T)],
    "several": [init(), add(BOTH), write(), write(index=1), mark(BOTH), producers(BOTH)],
    "then-end": [*WRITTEN, mark(T, commit=False), end(), comes("CompleteCommit"), *READ],
}

PRODUCERS = {
    "nobody": [producers(T)],
    "nothing": [producers()],
    "no-partitions": [producers(("t", []))],
    "unknown-topic": [producers(("no", [0]))],
    "unknown-partition": [producers(("t", [9]))],
    "negative-partition": [producers(("t", [-1]))],
    "empty-topic": [producers(("", [0]))],
    "illegal-topic": [producers(("a/b", [0]))],
    "same-twice": [producers(T, T)],
    "good-and-unknown": [producers(("t", [0, 9]), ("no", [0]))],
    "ongoing": [*WRITTEN, producers(T)],
    "added-only": [*OPEN, producers(T)],
    "committed": [*COMMITTED, producers(T)],
    "aborted": [*ABORTED, producers(T)],
    "next-epoch": [*COMMITTED, init(), add(T), write(), producers(T)],
    "idempotent": [init(), write(name=None, transactional=False), producers(T)],
}

DESCRIBE = {
    "unknown": [described("no")],
    "empty": [described("")],
    "nothing": [described()],
    "same-twice": [init(), described("x", "x")],
    "good-and-unknown": [init(), described("x", "no")],
    "empty-state": [init(), described("x")],
    "ongoing": [*OPEN, described("x")],
    "with-offsets": [init(), add_offsets(), add(T)],
    "several-topics": [init(), add(T, U), described("x")],
    "committed": [*COMMITTED, described("x")],
    "aborted": [*ABORTED, described("x")],
}

TWO = [init(), init("y", via="q"), add(T, name="y", via="q")]
"""One that has nothing, and one with a transaction."""
LIST = {
    **{f"version-{version}": [*TWO, listed(version)] for version in range(2)},
    "of-state": [*TWO, listed(states=["Ongoing"])],
    "of-states": [*TWO, listed(states=["Ongoing", "Empty"])],
    "of-other-state": [*TWO, listed(states=["PrepareAbort"])],
    "of-dead": [*TWO, listed(states=["Dead"])],
    "of-prepare-epoch-fence": [*TWO, listed(states=["PrepareEpochFence"])],
    "of-unknown-state": [*TWO, listed(states=["Nowhere"])],
    "of-unknown-and-known-state": [*TWO, listed(states=["Nowhere", "Ongoing"])],
    "of-state-in-lower-case": [*TWO, listed(states=["ongoing"])],
    "of-empty-state": [*TWO, listed(states=[""])],
    "of-producer": [*TWO, listed(of=["q"])],
    "of-producers": [*TWO, listed(of=["q", "p"])],
    "of-unknown-producer": [*TWO, listed(of=[NOBODY])],
    "of-no-producer": [*TWO, listed(of=[-1])],
    "of-producer-and-state": [*TWO, listed(of=["p"], states=["Ongoing"])],
    "of-duration-0": [*TWO, listed(duration_ms=0)],
    "of-long-duration": [*TWO, listed(duration_ms=3_600_000)],
    "of-longest-duration": [*TWO, listed(duration_ms=2**63 - 1)],
    "of-duration-minus-2": [*TWO, listed(duration_ms=-2)],
    "ended": [*COMMITTED, init("y", via="q"), listed()],
    "ended-of-duration-0": [*COMMITTED, listed(duration_ms=0)],
}

KEPT = {"retention.ms": "-1"}
"""The records' time is long ago."""
TOPICS = {"t": Topic(partitions=2, configs=KEPT), "u": Topic(configs=KEPT)}


def cases(api: str, named: Mapping[str, Sequence[Step]]) -> dict[str, Case]:
    return {f"{api}/{name}": case_of(steps, TOPICS) for name, steps in named.items()}


CASES = {
    **cases("FindCoordinator", {f"transactional-id-{name}": steps for name, steps in FIND.items()}),
    **cases("InitProducerId of a transactional id", INIT),
    **cases("AddPartitionsToTxn", ADD),
    **cases("AddOffsetsToTxn", ADD_OFFSETS),
    **cases("TxnOffsetCommit", OFFSETS),
    **cases("EndTxn", END),
    **cases("Produce of a transaction", WRITE),
    **cases("WriteTxnMarkers", MARK),
    **cases("DescribeProducers", PRODUCERS),
    **cases("DescribeTransactions", DESCRIBE),
    **cases("ListTransactions", LIST),
}


@pytest.fixture
def transactions_are_kept(pair: Pair) -> None:
    """Have both coordinate: what they keep it in is made when it is first asked for."""
    for side in pair.sides:
        for kind in (GROUP, TRANSACTION):
            await_coordinator(side.wire, "any", kind)


@pytest.mark.usefixtures("transactions_are_kept")
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
