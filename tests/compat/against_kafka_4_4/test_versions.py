"""Versions that are newer than Kafka 3.9, beside Kafka 4.4."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.against_kafka import ask
from tests.compat.against_kafka.group_steps import (
    alone,
    commit,
    deleted,
    described,
    fetch,
    leave,
    listed,
)
from tests.compat.against_kafka.pair import Case, Topic, one
from tests.compat.against_kafka.test_cluster import cluster, log_dirs, reassign
from tests.compat.against_kafka.txn_steps import init, mark, producers, write
from tests.compat.against_kafka.txn_steps import listed as transactions
from tests.compat.against_kafka_4.steps import join
from tests.handlers.wire import make_batch

AT = ("t", [0])
WRITTEN = [init(), write(version=12)]
T, UNKNOWN = ("t", 0, 5), ("no", 0, 1)
WANTED, NOT_THERE = ("t", [0, 1]), ("no", [0])
OFFSETS = {
    "simple": [commit(T, version=10), fetch(WANTED, version=10), fetch(WANTED)],
    "of-member": [
        *alone(), commit(T, via="a", generation=None, epoch=3, version=10),
        fetch(WANTED, version=10), commit(T, via="a", generation=7, version=10),
        commit(T, member="stranger", version=10)],
    "unknown-id": [commit(T, UNKNOWN, version=10), fetch(WANTED, NOT_THERE, version=10)],
    "unknown-id-alone": [commit(UNKNOWN, version=10), fetch(NOT_THERE, version=10), listed()],
    "unknown-partition": [commit(T, ("t", 7, 1), version=10), fetch(("t", [0, 7]), version=10)],
    "unknown-id-of-wrong-generation": [
        *alone(), commit(T, UNKNOWN, via="a", generation=7, version=10)],
    "all": [commit(T, ("t", 1, 6), ("u", 0, 1)), fetch(every=True, version=10)],
    "all-of-unknown-group": [fetch(every=True, version=10)],
    "unknown-group": [fetch(WANTED, NOT_THERE, version=10)],
    "empty-group": [fetch(WANTED, NOT_THERE, groups=[""], version=10)],
    "unknown-member": [
        commit(T), fetch(WANTED, NOT_THERE, member="stranger", epoch=1, version=10)],
    "many-groups": [commit(T), commit(("t", 0, 9), group="h"),
        fetch(WANTED, NOT_THERE, groups=["g", "h", "no"], version=10)],
    "same-topic-twice": [commit(T, ("u", 0, 1), ("t", 1, 3), version=10),
        fetch(("t", [0]), ("t", [1]), version=10)],
    "stable": [commit(T), fetch(WANTED, stable=True, version=10)],
    "no-topics": [commit(T), fetch(version=10), commit(version=10)],
}  # fmt: skip

DESCRIPTIONS = {
    "stable": [*alone(), described("g", version=6)],
    "unknown": [described("g", "h", version=6, operations=True)],
    "only-commits": [commit(T), described("g", version=6)],
    "emptied": [*alone(), leave(("a", None)), described("g", version=6)],
    "empty-id": [described("", version=6)],
    "other-type": [join("a"), described("g", version=6)],
}
DELETIONS = {
    "ordinary": [commit(T), deleted("g", version=3), described("g", version=6)],
    "unknown": [deleted("g", "h", version=3)],
    "empty-id": [deleted("", version=3)],
    "stable": [*alone(), deleted("g", version=3)],
}
TRANSACTIONS = {
    "all": [init(), init("y", via="q"), transactions(2)],
    "pattern": [init(), init("y", via="q"), transactions(2, pattern="x.*")],
    "part": [init(), init("xy", via="q"), transactions(2, pattern="x")],
    "nothing": [init(), transactions(2, pattern="z.*")],
    "no-pattern": [init(), transactions(2, pattern="")],
    "bad-pattern": [init(), transactions(2, pattern="(")],
    "and-state": [
        *WRITTEN,
        init("xy", via="q"),
        transactions(2, pattern="x.*", states=["Ongoing"]),
    ],
}
MARKERS = {
    "version-1": [*WRITTEN, mark(AT, version=2), producers(AT)],
    "own-epoch": [*WRITTEN, mark(AT, by=1, version=2, own_epoch=True), producers(AT)],
    "own-epoch-is-the-writes": [*WRITTEN, mark(AT, version=2, own_epoch=True), producers(AT)],
    "own-epoch-older": [
        init(), *WRITTEN, mark(AT, by=-1, version=2, own_epoch=True), producers(AT)],
    "own-epoch-twice": [*WRITTEN, mark(AT, by=1, version=2, own_epoch=True),
        mark(AT, by=1, version=2, own_epoch=True), producers(AT)],
    "own-epoch-of-nothing": [init(), mark(AT, by=1, version=2, own_epoch=True), producers(AT)],
    "own-epoch-of-stranger": [mark(AT, who=(5, 3), version=2, own_epoch=True), producers(AT)],
    "unknown-topic": [mark(("no", [0]), who=(5, 0), version=2, own_epoch=True)],
}  # fmt: skip

CASES = {
    f"{api}/{name}-{version}": Case(steps, {"t": Topic(2), "u": Topic()})
    for api, version, cases in (
        ("Offsets", 10, OFFSETS),
        ("DescribeGroups", 6, DESCRIPTIONS),
        ("DeleteGroups", 3, DELETIONS),
        ("ListTransactions", 2, TRANSACTIONS),
        ("WriteTxnMarkers", 2, MARKERS),
    )
    for name, steps in cases.items()
} | {
    "Metadata/version-13": one(ask.metadata("t", "no"), 13),
    **{
        f"ListOffsets/version-{version}-{-timestamp}": one(
            ask.list_offsets(("t", 0, timestamp)), version, t=Topic(batches=[make_batch()])
        )
        for version, timestamp in ((10, -1), (11, -2), (11, -6), (10, -6))
    },
    **{
        f"AlterPartitionReassignments/{name}-1": one(reassign(*moves, **options), 1)
        for name, moves, options in (
            ("as-it-is", [("t", 0, [0])], {}),
            ("as-it-is-no-resize", [("t", 0, [0])], {"allow_replication_factor_change": False}),
            ("unknown-broker", [("t", 0, [0, 7])], {"allow_replication_factor_change": False}),
            ("cancel", [("t", 0, None)], {"allow_replication_factor_change": False}),
        )
    },
    "DescribeLogDirs/version-5": one(log_dirs(("t", [0]), ("no", [0])), 5),
    "DescribeCluster/version-2": one(cluster(), 2),
    "DescribeCluster/fenced-2": one(cluster(include_fenced_brokers=True), 2),
    "DescribeCluster/controllers-2": one(cluster(endpoint_type=2), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
