"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords beside Kafka 3.9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.against_kafka.ask import (
    create,
    delete,
    delete_records,
    delete_states,
    grow,
    metadata,
    new,
)
from tests.compat.against_kafka.pair import Case, Step, Topic, one
from tests.handlers.wire import make_batch

NONE: dict[str, Topic] = {}


def made(request, version: int = 4) -> Case:
    """Return a case that needs no topic."""
    return Case([Step(request, version)], NONE)


CREATE = {
    "ordinary": made(create(new())),
    "ordinary-with-its-configs": made(create(new()), 7),
    "refused": made(create(new(partitions=0)), 7),
    "defaults": made(create(new(partitions=-1, factor=-1))),
    "defaults-before-KIP-464": made(create(new(partitions=-1, factor=-1)), 3),
    "validated": made(create(new(), validate_only=True)),
    "validated-is-not-made": Case(
        [Step(create(new(), validate_only=True), 4), Step(metadata("new"), 12)], NONE
    ),
    "there-already": Case([Step(create(new("t")), 7)]),
    "there-already-validated": Case([Step(create(new("t"), validate_only=True), 7)]),
    "no-topics": made(create()),
    "no-time": Case([Step(create(new(), timeout_ms=0), 7)], NONE),
    "negative-time": made(create(new(), timeout_ms=-1)),
    "partitions-0": made(create(new(partitions=0))),
    "partitions-minus-2": made(create(new(partitions=-2))),
    "partitions-10001": made(create(new(partitions=10_001), validate_only=True)),
    "replication-0": made(create(new(factor=0))),
    "replication-2": made(create(new(factor=2))),
    "replication-minus-2": made(create(new(factor=-2))),
    "partitions-0-and-replication-2": made(create(new(partitions=0, factor=2))),
    "twice": made(create(new(), new())),
    "twice-beside-another": made(create(new(), new("other"), new())),
    "twice-with-bad-name": made(create(new("a b"), new("a b"))),
    "assigned": made(create(new(partitions=-1, factor=-1, replicas=[(0, [0]), (1, [0])]))),
    "assigned-and-counted": made(create(new(partitions=2, factor=-1, replicas=[(0, [0])]))),
    "assigned-and-counted-alike": made(create(new(partitions=1, replicas=[(0, [0])]))),
    "assigned-and-replicated": made(create(new(partitions=-1, factor=1, replicas=[(0, [0])]))),
    "assigned-to-unknown-broker": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [7])]), validate_only=True)
    ),
    "assigned-to-negative-broker": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [-1])]), validate_only=True)
    ),
    "assigned-to-one-twice": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [0, 0])]), validate_only=True)
    ),
    "assigned-to-nobody": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [])]), validate_only=True)
    ),
    "assigned-with-gap": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [0]), (2, [0])]))
    ),
    "assigned-from-1": made(create(new(partitions=-1, factor=-1, replicas=[(1, [0])]))),
    "assigned-twice": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [0]), (0, [0])]), validate_only=True)
    ),
    "assigned-unevenly": made(
        create(new(partitions=-1, factor=-1, replicas=[(0, [0]), (1, [0, 1])]))
    ),
    "config": made(create(new(configs=[("retention.ms", "5000"), ("cleanup.policy", "compact")]))),
    "config-unknown": made(create(new(configs=[("no.such", "1")]))),
    "config-bad": made(create(new(configs=[("retention.ms", "x")]))),
    "config-null": made(create(new(configs=[("retention.ms", None)]))),
    "config-twice": made(
        create(new(configs=[("retention.ms", "5000"), ("retention.ms", "6000")]))
    ),
    "config-bad-validated": made(
        create(new(configs=[("retention.ms", "x")]), validate_only=True)
    ),
    "config-bad-and-partitions-0": made(
        create(new(partitions=0, configs=[("retention.ms", "x")]))
    ),
    "config-bad-and-there-already": Case([Step(create(new("t", configs=[("no", "1")])), 7)]),
    "good-and-bad": made(create(new(), new("bad", partitions=0))),
    "collision-of-dot": Case(
        [Step(create(new("a_b")), 7)], {"a.b": Topic()}
    ),
    "collision-of-underscore": Case([Step(create(new("a.b")), 7)], {"a_b": Topic()}),
    "collision-validated": Case(
        [Step(create(new("a_b"), validate_only=True), 7)], {"a.b": Topic()}
    ),
}  # fmt: skip

NAMES = {
    "space": "a b",
    "slash": "a/b",
    "umlaut": "ä",
    "newline": "a\n",
    "nul": "a\0b",
    "colon": "a:b",
    "comma": "a,b",
    "percent": "%s",
    "allowed": "Az09._-",
    "two-underscores": "__x",
    "emoji": "🎉",
}
"""Behind the case's prefix."""


class Whole(str):
    """A name that is not prefixed."""


WHOLE_NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "three-dots-and-too-long": "." * 250,
    "too-long": "x" * 250,
    "much-too-long": "x" * 30_000,
    "offsets": "__consumer_offsets",
}


def as_it_is(request):
    """Have a request call topics without the case's prefix."""

    def make(side):
        prefix, side.prefix = side.prefix, ""
        try:
            return request(side)
        finally:
            side.prefix = prefix

    return make


def long_name(side):
    return create(new("x" * (249 - len(side.prefix))))(side)


def longer_name(side):
    return create(new("x" * (250 - len(side.prefix))))(side)


CREATE |= {f"name-{what}": made(create(new(name))) for what, name in NAMES.items()}
CREATE |= {
    f"name-{what}": made(as_it_is(create(new(name), validate_only=True)))
    for what, name in WHOLE_NAMES.items()
}
CREATE |= {"name-of-249": made(long_name), "name-of-250": made(longer_name)}

DELETE = {
    "ordinary": Case([Step(delete("t"), 5), Step(metadata("t"), 12)]),
    "by-id": Case([Step(delete_states((None, "t")), 6), Step(metadata("t"), 12)]),
    "by-name-6": Case([Step(delete_states(("t", None)), 6)]),
    "unknown": made(delete("no"), 5),
    "unknown-by-name-6": made(delete_states(("no", None)), 6),
    "unknown-id": made(delete_states((None, "no")), 6),
    "neither-name-nor-id": made(delete_states((None, None)), 6),
    "name-and-id": Case([Step(delete_states(("t", "t")), 6)]),
    "twice": Case([Step(delete("t", "t"), 5)]),
    "twice-6": Case([Step(delete_states(("t", None), ("t", None)), 6)]),
    "twice-by-id": Case([Step(delete_states((None, "t"), (None, "t")), 6)]),
    "by-name-and-by-id": Case([Step(delete_states((None, "t"), ("t", None)), 6)]),
    "good-and-unknown": Case([Step(delete("t", "no"), 5)]),
    "internal": Case(
        [
            Step(as_it_is(create(new("__consumer_offsets"))), 4),
            Step(as_it_is(delete_records(("__consumer_offsets", 0, 0))), 2),
            Step(as_it_is(delete("__consumer_offsets")), 5),
        ],
        NONE,
    ),
    "illegal-name": made(delete("a b"), 5),
    "empty-name": made(as_it_is(delete("")), 5),
    "nothing": made(delete(), 5),
    "no-time": Case([Step(delete("t", timeout_ms=0), 5)]),
    "again": Case([Step(delete("t"), 5), Step(delete("t"), 5)]),
}

GROW = {
    "ordinary": Case([Step(grow(("t", 3)), 3), Step(metadata("t"), 12)]),
    "validated": Case([Step(grow(("t", 3), validate_only=True), 3), Step(metadata("t"), 12)]),
    "same": one(grow(("t", 1)), 3),
    "fewer": one(grow(("t", 1)), 3, t=Topic(partitions=2)),
    "to-0": one(grow(("t", 0)), 3),
    "to-minus-1": one(grow(("t", -1)), 3),
    "to-10002": one(grow(("t", 10_002), validate_only=True), 3),
    "unknown": made(grow(("no", 3)), 3),
    "illegal-name": made(grow(("a b", 3)), 3),
    "twice": one(grow(("t", 3), ("t", 4)), 3),
    "good-and-unknown": one(grow(("t", 3), ("no", 4)), 3),
    "assigned": Case([Step(grow(("t", 3, [[0], [0]])), 3), Step(metadata("t"), 12)]),
    "assigned-too-few": one(grow(("t", 3, [[0]])), 3),
    "assigned-too-many": one(grow(("t", 2, [[0], [0]])), 3),
    "assigned-none": one(grow(("t", 2, [])), 3),
    "assigned-to-unknown-broker": one(grow(("t", 2, [[7]])), 3),
    "assigned-to-nobody": one(grow(("t", 2, [[]])), 3),
    "assigned-to-broker-twice": one(grow(("t", 2, [[0, 0]])), 3),
    "nothing": made(grow(), 3),
    "no-time": one(grow(("t", 2), timeout_ms=0), 3),
}

TEN = Topic(batches=[make_batch([b"%d" % n for n in range(5)]), make_batch([b"x"] * 5)])
TRIM = {
    "ordinary": one(delete_records(("t", 0, 3)), 2, t=TEN),
    "to-the-end": one(delete_records(("t", 0, 10)), 2, t=TEN),
    "all": one(delete_records(("t", 0, -1)), 2, t=TEN),
    "all-of-nothing": one(delete_records(("t", 0, -1)), 2),
    "to-0": one(delete_records(("t", 0, 0)), 2, t=TEN),
    "above-the-end": one(delete_records(("t", 0, 11)), 2, t=TEN),
    "minus-2": one(delete_records(("t", 0, -2)), 2, t=TEN),
    "below-the-start": Case(
        [Step(delete_records(("t", 0, 5)), 2), Step(delete_records(("t", 0, 3)), 2)], {"t": TEN}
    ),
    "twice": one(delete_records(("t", 0, 3), ("t", 0, 4)), 2, t=TEN),
    "unknown-topic": made(delete_records(("no", 0, 0)), 2),
    "unknown-partition": one(delete_records(("t", 5, 0)), 2),
    "negative-partition": one(delete_records(("t", -1, 0)), 2),
    "good-and-unknown": one(delete_records(("t", 0, 2), ("no", 0, 0)), 2, t=TEN),
    "compacted": one(
        delete_records(("t", 0, 0)), 2, t=Topic(configs={"cleanup.policy": "compact"})
    ),
    "compacted-and-deleted": one(
        delete_records(("t", 0, 0)), 2, t=Topic(configs={"cleanup.policy": "compact,delete"})
    ),
    "nothing": made(delete_records(), 2),
}

CASES = {
    f"{api}/{name}": case
    for api, cases in {
        "CreateTopics": CREATE,
        "DeleteTopics": DELETE,
        "CreatePartitions": GROW,
        "DeleteRecords": TRIM,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
