"""Requests with two faults beside Kafka 3.9: both brokers report the same fault first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from tests.compat.against_kafka.ask import (
    APPEND,
    BROKER,
    SET,
    TOPIC,
    alter,
    delete_records,
    grow,
)
from tests.compat.against_kafka.pair import Case, Made, Step, Topic
from tests.compat.against_kafka.test_cluster import elect, move, reassign
from tests.handlers.wire import make_batch

PLACES = [("t", 0), ("t", 7), ("t", -1), ("no", 0), ("a b", 0)]
"""A partition that exists, and partitions that do not."""
WRITTEN = Topic(batches=[make_batch([b"a"] * 3)])
COMPACTED = Topic(configs={"cleanup.policy": "compact"})

REPLICAS = [None, [], [7], [0, 0], [-1], [-1, -1], [0, 7], [7, 7], [0, -1]]
ASSIGNMENTS = [None, [], [[7]], [[]], [[0, 0]], [[-1]], [[0], [0]], [[0], [7]], [[0], []]]
CHANGES = {
    "unknown-key": [("no.such", SET, "1")],
    "bad-value": [("segment.bytes", SET, "x")],
    "unknown-operation": [("segment.bytes", 4, "x")],
    "unknown-operation-of-unknown-key": [("no.such", 4, "1")],
    "null": [("segment.bytes", SET, None)],
    "null-of-unknown-key": [("no.such", SET, None)],
    "null-of-unknown-operation": [("segment.bytes", 4, None)],
    "append-to-unknown-key": [("no.such", APPEND, "1")],
    "append-null-to-no-list": [("segment.bytes", APPEND, None)],
    "append-bad-value-to-no-list": [("segment.bytes", APPEND, "x")],
    "bad-value-twice": [("segment.bytes", SET, "x"), ("segment.bytes", SET, "y")],
    "null-twice": [("segment.bytes", SET, None), ("segment.bytes", SET, None)],
    "unknown-key-and-null": [("no.such", SET, "1"), ("segment.bytes", SET, None)],
    "nothing": [],
}
RESOURCES = {"unknown-topic": (TOPIC, "no"), "illegal-topic": (TOPIC, "a b")}
BROKERS = {"other-broker": (BROKER, "1"), "broker-of-no-number": (BROKER, "x")}


def steps(made: Iterable[Made], version: int) -> list[Step]:
    return [Step(request, version) for request in made]


CASES = {
    **{
        f"PartitionReassignments/{name}-{index}": Case(
            steps([reassign((name, index, replicas)) for replicas in REPLICAS], 0)
        )
        for name, index in PLACES
    },
    **{
        f"ElectLeaders/type-{kind}": Case(
            steps([elect(kind, (name, [index])) for name, index in PLACES], 2)
        )
        for kind in (0, 1, 2)
    },
    **{
        f"CreatePartitions/{name}-{count}": Case(
            steps(
                [
                    grow((name, count, *([] if some is None else [some])), validate_only=True)
                    for some in ASSIGNMENTS
                ],
                3,
            )
        )
        for name, count in [
            *itertools.product(["t", "no", "a b"], [-1, 0, 1, 2]),
            *(("no", 10_002), ("a b", 10_002)),
        ]
    },
    **{
        f"LogDirs/to-{name}-path": Case(
            steps([move(path, (topic, [index])) for topic, index in PLACES], 2)
        )
        for name, path in (("absolute", "/no/such"), ("relative", "data"), ("empty", ""))
    },
    **{
        f"DeleteRecords/{name}-{index}": Case(
            steps([delete_records((name, index, offset)) for offset in (9, -2, -1, 0)], 2),
            {"t": WRITTEN, "c": COMPACTED},
        )
        for name, index in [*PLACES, ("c", 0), ("c", 7), ("__consumer_offsets", 7)]
    },
    **{
        f"IncrementalAlterConfigs/faults-of-{what}": Case(
            steps(
                [
                    alter((kind, name, changes), validate_only=only)
                    for changes in CHANGES.values()
                    for only in (False, True)
                ],
                1,
            )
        )
        for what, (kind, name) in (RESOURCES | BROKERS | {"topic": (TOPIC, "t")}).items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_first_of_two_faults_is_that_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
