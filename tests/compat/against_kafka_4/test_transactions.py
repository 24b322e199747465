"""Transactions of version 2 (KIP-890) beside Kafka 4.1, and clients of version 1 among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest

from tests.compat.against_kafka import group_steps, txn_steps
from tests.compat.against_kafka.ask import fetch, list_offsets
from tests.compat.against_kafka.group_steps import alone
from tests.compat.against_kafka.pair import Case, Step, Topic, case_of
from tests.compat.against_kafka.txn_steps import (
    NOBODY,
    add,
    add_many,
    add_offsets,
    comes,
    described,
    init,
    listed,
    producers,
)
from tests.compat.against_kafka_4.steps import join

write = partial(txn_steps.write, version=12)
end = partial(txn_steps.end, version=5)
commit_offsets = partial(txn_steps.commit_offsets, version=5)
write_1 = partial(txn_steps.write, version=11)
end_1 = partial(txn_steps.end, version=4)
commit_offsets_1 = partial(txn_steps.commit_offsets, version=4)
"""By which a client of version 1 is known."""

T, U = ("t", [0]), ("u", [0])
BOTH = ("t", [0, 1])
ENDS = {True: "CompleteCommit", False: "CompleteAbort"}
WORDS = {True: "commit", False: "abort"}
WRITTEN = [init(), write()]
"""A transaction of the producer `p`, which it began by writing."""
COMMITTED = [*WRITTEN, end(), comes("CompleteCommit")]
ABORTED = [*WRITTEN, end(commit=False), comes("CompleteAbort")]
READ = [
    Step(fetch(("t", 0, 0), isolation_level=1), 12),
    Step(list_offsets(("t", 0, -1), isolation=1), 7),
]
"""What a reader of committed records finds."""
ONE = ("t", 0, 5)
FETCHED = [
    group_steps.fetch(("t", [0, 1]), ("u", [0])),
    group_steps.fetch(("t", [0, 1]), ("u", [0]), stable=True),
]
"""What the group `g` has committed."""

INIT = {
    "version-5": [init(), described("x")],
    "twice": [init(), init(), described("x")],
    "again": [init(), init(again=True), init(again=True), described("x")],
    "again-with-older-epoch": [init(), init(again=True), init(again=True, by=-1), described("x")],
    "again-with-newer-epoch": [init(), init(again=True, by=1)],
    "again-with-other-id": [init(), init(who=(NOBODY, 0))],
    "after-commit": [*COMMITTED, init(), described("x")],
    "after-commit-again": [*COMMITTED, init(again=True), described("x")],
    "after-commit-again-with-the-epoch-before": [*COMMITTED, init(again=True, by=-1)],
    "after-abort": [*ABORTED, init(), described("x")],
    "while-ongoing": [*WRITTEN, init(), comes("CompleteAbort"), init(), described("x")],
    "while-ongoing-again": [
        *WRITTEN, init(again=True), comes("CompleteAbort"), init(again=True), described("x")],
}  # fmt: skip

WRITE = {
    "begins": [*WRITTEN, *READ, described("x"), producers(T)],
    "goes-on": [*WRITTEN, write(sequence=1), write(index=1), write("u"), described("x")],
    "added-before": [init(), add(T), write(), described("x")],
    "next": [*COMMITTED, write(), *READ, end(), comes("CompleteCommit"), *READ, producers(T)],
    "next-goes-on-with-its-numbers": [*COMMITTED, write(sequence=1), *READ],
    "next-begins-at-5": [*COMMITTED, write(sequence=5)],
    "begins-at-5": [init(), write(sequence=5)],
    "gap": [*WRITTEN, write(sequence=3)],
    "duplicate": [*WRITTEN, write(), *READ],
    "of-before-the-end": [*COMMITTED, write(by=-1), *READ, described("x")],
    "late-of-before-the-end": [*COMMITTED, write(by=-1, sequence=1), *READ, described("x")],
    "of-before-the-end-in-another-partition": [*COMMITTED, write(by=-1, index=1)],
    "of-before-while-the-next-is-open": [*COMMITTED, write(), write(by=-1, sequence=1), *READ],
    "epoch-older": [init(), init(), write(by=-1)],
    "epoch-newer": [*WRITTEN, write(by=1)],
    "epoch-newer-at-first": [init(), write(by=1)],
    "unknown-producer": [init(), write(who=(NOBODY, 0))],
    "other-id": [init(), write(name="y")],
    "without-id": [init(), write(name=None)],
    "empty-id": [init(), write(name="")],
    "unknown-topic": [init(), write("no")],
    "unknown-partition": [init(), write(index=9), described("x")],
    "not-transactional": [init(), write(transactional=False), *READ, described("x")],
    "not-transactional-amid": [*WRITTEN, write(transactional=False, sequence=1)],
}  # fmt: skip

END = {
    **{
        word: [*WRITTEN, end(commit=commit), comes(ENDS[commit]), *READ, producers(T),
            described("x")]
        for commit, word in WORDS.items()
    },
    **{
        f"{word}-again-as-{WORDS[again]}": [*WRITTEN, end(commit=commit), comes(ENDS[commit]),
            end(commit=again, by=-1), described("x")]
        for commit, word in WORDS.items()
        for again in (True, False)
    },
    **{
        f"{word}-told-again": [*WRITTEN, end(commit=commit), comes(ENDS[commit]),
            end(commit=commit, by=-1), write(), end(commit=commit), comes(ENDS[commit]), *READ]
        for commit, word in WORDS.items()
    },
    **{
        f"{word}-of-before-while-the-next-is-open": [*COMMITTED, write(), end(commit=commit, by=-1),
            described("x"), end(), comes("CompleteCommit"), *READ]
        for commit, word in WORDS.items()
    },
    "commit-of-nothing-after-commit": [*COMMITTED, end(), described("x")],
    "commit-of-nothing-after-abort": [*ABORTED, end(), described("x")],
    "commit-of-nothing": [init(), end(), described("x")],
    "abort-of-nothing": [init(), end(commit=False), comes("CompleteAbort"), described("x")],
    "abort-of-nothing-again": [init(), end(commit=False), comes("CompleteAbort"),
        end(commit=False, by=-1), end(by=-1), described("x")],
    "abort-of-nothing-and-write": [init(), end(commit=False), comes("CompleteAbort"), write(),
        end(), comes("CompleteCommit"), *READ],
    "abort-of-nothing-after-commit": [*COMMITTED, end(commit=False), comes("CompleteAbort"),
        described("x"), *READ],
    "abort-of-nothing-after-abort": [*ABORTED, end(commit=False), comes("CompleteAbort"),
        end(commit=False, by=-1), *READ],
    "abort-of-nothing-with-older-epoch": [init(), init(), end(commit=False, by=-1)],
    "unknown-id": [*WRITTEN, end(name="y"), described("x")],
    "unknown-producer": [*WRITTEN, end(who=(NOBODY, 0)), described("x")],
    "epoch-older": [init(), *WRITTEN, end(by=-1), described("x")],
    "epoch-newer": [*WRITTEN, end(by=1), described("x")],
    "after-init": [*COMMITTED, init(), end(), end(by=-1), described("x")],
    "several-partitions": [init(), write(), write(index=1), write("u"), end(),
        comes("CompleteCommit"), *READ, producers(BOTH, U)],
    "three-in-turn": [*COMMITTED, write(), end(commit=False), comes("CompleteAbort"), write(),
        end(), comes("CompleteCommit"), *READ, producers(T), listed()],
}  # fmt: skip

BY_ANOTHER = [*WRITTEN, init(via="q"), comes("CompleteAbort"), init(via="q")]
"""The producer `p` has written, and `q` has come after it."""
FENCED = {
    "writes": [*BY_ANOTHER, write(sequence=1), write(), write(index=1), *READ],
    "commits": [*BY_ANOTHER, end(), described("x")],
    "aborts": [*BY_ANOTHER, end(commit=False), described("x")],
    "aborts-before-its-successor-is-there": [
        *WRITTEN, init(via="q"), comes("CompleteAbort"), end(commit=False), end(),
        write(sequence=1), described("x")],
    "commits-offsets": [*BY_ANOTHER, commit_offsets(ONE), *FETCHED],
    "adds-partitions": [*BY_ANOTHER, add(T), described("x")],
    "adds-offsets": [*BY_ANOTHER, add_offsets(), described("x")],
    "goes-on": [*BY_ANOTHER, init(again=True), described("x")],
    "while-its-successor-writes": [
        *BY_ANOTHER, write(via="q"), write(sequence=1), end(), end(commit=False),
        commit_offsets(ONE), described("x"), end(via="q"), comes("CompleteCommit"), *READ],
    "goes-on-while-its-successor-writes": [*BY_ANOTHER, write(via="q"), init(again=True)],
}  # fmt: skip

SHORT_LIVED = [init(timeout_ms=1000), write(), comes("CompleteAbort")]
"""A transaction that has taken too long."""
TIMED_OUT = {
    "described": [*SHORT_LIVED, described("x"), *READ, producers(T)],
    "aborts": [*SHORT_LIVED, end(commit=False), end(commit=False), comes("CompleteAbort")],
    "commits": [*SHORT_LIVED, end(), end(), described("x")],
    "writes": [*SHORT_LIVED, write(sequence=1), write(), *READ, described("x")],
    "writes-elsewhere": [*SHORT_LIVED, write(index=1), described("x")],
    "commits-offsets": [*SHORT_LIVED, commit_offsets(ONE), *FETCHED],
    "adds-offsets": [*SHORT_LIVED, add_offsets()],
    "goes-on": [*SHORT_LIVED, init(again=True), described("x")],
    "begins-anew": [*SHORT_LIVED, init(), described("x"), write(), end(), comes("CompleteCommit"),
        *READ],
    "aborts-and-begins-anew": [*SHORT_LIVED, end(commit=False), init(), write(),
        end(commit=False), comes("CompleteAbort"), *READ],
    "with-offsets": [init(timeout_ms=1000), commit_offsets(ONE), comes("CompleteAbort"), *FETCHED,
        end()],
    "of-version-1": [init(timeout_ms=1000), add(T), write_1(), comes("CompleteAbort"),
        described("x"), end_1(), end_1(commit=False), write_1(sequence=1), init(again=True),
        described("x")],
}  # fmt: skip

IN_GROUP = [init(), commit_offsets(ONE)]
OFFSETS = {
    **{
        word: [*IN_GROUP, *FETCHED, end(commit=commit), comes(ENDS[commit]), *FETCHED]
        for commit, word in WORDS.items()
    },
    "added-before": [init(), add_offsets(), commit_offsets(ONE), end(), comes("CompleteCommit"),
        *FETCHED],
    "added-again": [*IN_GROUP, add_offsets(), add_offsets("h")],
    "twice": [*IN_GROUP, commit_offsets(("t", 0, 6)), end(), comes("CompleteCommit"), *FETCHED],
    "with-records": [*WRITTEN, commit_offsets(ONE), end(), comes("CompleteCommit"), *FETCHED,
        *READ],
    "of-two-groups": [*IN_GROUP, commit_offsets(ONE, group="h"), end(), comes("CompleteCommit"),
        group_steps.fetch(T, groups=["g", "h"])],
    "next": [*IN_GROUP, end(), comes("CompleteCommit"), commit_offsets(("t", 0, 6)), end(),
        comes("CompleteCommit"), *FETCHED],
    "of-before-the-end": [*IN_GROUP, end(), comes("CompleteCommit"),
        commit_offsets(("t", 0, 6), by=-1), *FETCHED],
    "epoch-older": [init(), init(), commit_offsets(ONE, by=-1)],
    "epoch-newer": [*IN_GROUP, commit_offsets(ONE, by=1)],
    "unknown-producer": [init(), commit_offsets(ONE, who=(NOBODY, 0))],
    "unknown-id": [init(), commit_offsets(ONE, name="y")],
    "unknown-topic": [init(), commit_offsets(("no", 0, 1)), described("x")],
    "good-and-unknown": [init(), commit_offsets(ONE, ("no", 0, 1)), end(), comes("CompleteCommit"),
        *FETCHED],
    "of-member": [*alone(), init(), commit_offsets(ONE, member="a", generation=None), end(),
        comes("CompleteCommit"), *FETCHED],
    "older-generation": [*alone(), init(), commit_offsets(ONE, member="a", generation=0),
        described("x")],
    "unknown-member": [*alone(), init(), commit_offsets(ONE, member="no", generation=None)],
    "of-consumer-group": [join("a"), init(), commit_offsets(ONE, member="a", generation=1), end(),
        comes("CompleteCommit"), *FETCHED],
    "of-consumer-group-and-older-epoch": [join("a"), init(),
        commit_offsets(ONE, member="a", generation=0), described("x")],
}  # fmt: skip

VERSION_1 = {
    **{
        word: [init(), add(T), write_1(), end_1(commit=commit), comes(ENDS[commit]), *READ,
            producers(T), described("x"), end_1(commit=commit), end_1(commit=not commit)]
        for commit, word in WORDS.items()
    },
    "writes-without-adding": [init(), write_1()],
    "commits-offsets-without-adding": [init(), commit_offsets_1(ONE)],
    "two-in-turn": [init(), add(T), write_1(), end_1(), comes("CompleteCommit"), add(T),
        write_1(sequence=1), end_1(commit=False), comes("CompleteAbort"), *READ],
    "abort-of-nothing": [init(), end_1(commit=False), described("x")],
    "then-version-2": [init(), add(T), write_1(), end_1(), comes("CompleteCommit"),
        write(sequence=1), end(), comes("CompleteCommit"), write(), *READ, described("x")],
    "after-version-2": [*COMMITTED, add(T), write_1(), end_1(), comes("CompleteCommit"), *READ,
        described("x")],
    "ends-version-2": [*WRITTEN, end_1(), comes("CompleteCommit"), described("x"), *READ],
    "writes-in-version-2": [*WRITTEN, write_1(sequence=1), *READ],
    "verified": [*WRITTEN, add_many(("x", "p", [T]), verify=True),
        add_many(("x", "p", [BOTH]), verify=True)],
}  # fmt: skip

KEPT = {"retention.ms": "-1"}
"""The records' time is long ago."""
TOPICS = {"t": Topic(partitions=2, configs=KEPT), "u": Topic(configs=KEPT)}
GROUPS: Mapping[str, Mapping[str, Sequence[Step]]] = {
    "InitProducerId of version 2": INIT,
    "Produce of version 2": WRITE,
    "EndTxn of version 2": END,
    "Fenced producer of version 2": FENCED,
    "Transaction that takes too long": TIMED_OUT,
    "TxnOffsetCommit of version 2": OFFSETS,
    "Client of version 1": VERSION_1,
}
CASES = {
    f"{api}/{name}": case_of(steps, TOPICS)
    for api, cases in GROUPS.items()
    for name, steps in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
