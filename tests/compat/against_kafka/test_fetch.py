"""Fetch beside Kafka 3.9: offsets, sizes, epochs, sessions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.against_kafka.ask import delete, delete_records, fetch, produce
from tests.compat.against_kafka.pair import Case, Step, Topic, one
from tests.handlers.wire import NOW_MS, make_batch

STAMP = NOW_MS - 3_600_000


def written(*values: bytes, **options: object) -> bytes:
    return make_batch(values, timestamps=[STAMP] * len(values), **options)


FOUR = Topic(
    batches=[written(b"a", b"b"), written(b"c"), written(b"d" * 500, codec=1), written(b"e")]
)
SEGMENTS = Topic(
    configs={"segment.bytes": "200"}, batches=[written(b"%d" % n * 100) for n in range(4)]
)
WHOLE = 2**31 - 1


def read(offset: int, version: int = 12, topic: Topic = FOUR, **options: object) -> Case:
    return one(fetch(("t", 0, offset), **options), version, t=topic)


def by_id(offset: int, version: int = 13, **options: object) -> Case:
    return one(fetch(("t", 0, offset), by_id=True, **options), version, t=FOUR)


ONE = {
    "from-0": read(0),
    "from-within-a-batch": read(1),
    "from-the-end": read(5),
    "above-the-end": read(6),
    "far-above": read(2**62),
    "minus-1": read(-1),
    "empty": read(0, topic=Topic()),
    "empty-from-1": read(1, topic=Topic()),
    "below-the-start": Case(
        [Step(delete_records(("t", 0, 3)), 2), Step(fetch(("t", 0, 2)), 12)], {"t": FOUR}
    ),
    "from-a-start-within-a-batch": Case(
        [Step(delete_records(("t", 0, 1)), 2), Step(fetch(("t", 0, 1)), 12)], {"t": FOUR}
    ),
    "above-the-end-version-4": read(6, 4),
    "segments": read(0, topic=SEGMENTS),
    "segments-from-2": read(2, topic=SEGMENTS),
    "max-bytes-0": read(0, max_bytes=0),
    "max-bytes-1": read(0, max_bytes=1),
    "max-bytes-negative": read(0, max_bytes=-1),
    "max-bytes-100": read(0, max_bytes=100),
    "partition-max-bytes-0": read(0, partition_max_bytes=0),
    "partition-max-bytes-1": read(0, partition_max_bytes=1),
    "partition-max-bytes-80": read(0, partition_max_bytes=80),
    "partition-max-bytes-150": read(0, partition_max_bytes=150),
    "partition-max-bytes-negative": read(0, partition_max_bytes=-1),
    "two-partitions-one-byte": one(
        fetch(("t", 0, 0), ("u", 0, 0), max_bytes=1), 12, t=FOUR, u=FOUR
    ),
    "two-partitions-partition-max-bytes-1": one(
        fetch(("t", 0, 0), ("u", 0, 0), partition_max_bytes=1), 12, t=FOUR, u=FOUR
    ),
    "two-partitions-300-bytes": one(
        fetch(("t", 0, 0), ("u", 0, 0), max_bytes=300), 12, t=FOUR, u=FOUR
    ),
    "min-bytes-too-many": read(0, min_bytes=1_000_000, max_wait_ms=50),
    "min-bytes-too-many-and-an-error": one(
        fetch(("t", 0, 0), ("t", 7, 0), min_bytes=1_000_000, max_wait_ms=200), 12, t=FOUR
    ),
    "min-bytes-0": read(5, min_bytes=0, max_wait_ms=5_000),
    "min-bytes-negative": read(5, min_bytes=-1, max_wait_ms=5_000),
    "no-wait": read(5, min_bytes=1, max_wait_ms=0),
    "negative-wait": read(5, min_bytes=1, max_wait_ms=-5),
    "committed": read(0, isolation_level=1),
    "committed-from-the-end": read(5, isolation_level=1),
    "unknown-isolation": read(0, isolation_level=9),
    "epoch-0": read(0, leader_epoch=0),
    "epoch-too-new": read(0, leader_epoch=3),
    "epoch-minus-2": read(0, leader_epoch=-2),
    "last-epoch-0": read(5, last_fetched_epoch=0),
    "last-epoch-0-above-the-end": read(9, last_fetched_epoch=0),
    "last-epoch-too-new": read(5, last_fetched_epoch=3),
    "last-epoch-minus-2": read(5, last_fetched_epoch=-2),
    "unknown-topic": one(fetch(("no", 0, 0)), 12),
    "unknown-partition": one(fetch(("t", 7, 0)), 12),
    "negative-partition": one(fetch(("t", -1, 0)), 12),
    "illegal-topic": one(fetch(("a b", 0, 0)), 12),
    "good-and-unknown": one(fetch(("t", 0, 0), ("no", 0, 0)), 12, t=FOUR),
    "partition-twice": one(fetch(("t", 0, 0), ("t", 0, 3)), 12, t=FOUR),
    "nothing": one(fetch(), 12),
    "nothing-4": one(fetch(), 4),
    "by-id": by_id(0),
    "unknown-id": one(fetch(("no", 0, 0), by_id=True), 13),
    "unknown-id-and-good": one(
        fetch(("no", 0, 0), ("t", 0, 0), by_id=True), 13, t=FOUR
    ),
    "by-id-unknown-partition": one(fetch(("t", 7, 0), by_id=True), 13),
    "by-id-of-the-deleted": Case(
        [Step(delete("t"), 5), Step(fetch(("t", 0, 0), by_id=True), 13)]
    ),
    "as-follower": read(0, replica_id=1),
    "as-follower-with-epoch": read(0, replica_id=1, leader_epoch=0),
    "as-this-broker": read(0, replica_id=0),
    "as-debugging": read(0, replica_id=-2),
    "as-replica-minus-3": read(0, replica_id=-3),
    "zstd-topic-version-9": read(0, 9, Topic(configs={"compression.type": "zstd"})),
    "zstd-topic-version-10": read(0, 10, Topic(configs={"compression.type": "zstd"})),
    "zstd-batches-version-9": read(0, 9, Topic(batches=[written(b"z", codec=4)])),
}  # fmt: skip
ONE |= {f"version-{version}": read(0, version) for version in range(4, 13)}
ONE |= {f"version-{version}": by_id(0, version) for version in range(13, 18)}

START = Step(fetch(("t", 0, 0), session=(0, 0)), 12)


def session(*steps: Step) -> Case:
    return Case([START, *steps], {"t": FOUR, "u": FOUR})


SESSIONS = {
    "begun": session(),
    "begun-empty": Case([Step(fetch(session=(0, 0)), 12)]),
    "goes-on": session(Step(fetch(session=(None, 1)), 12), Step(fetch(session=(None, 2)), 12)),
    "goes-on-elsewhere": session(
        Step(fetch(("t", 0, 5), session=(None, 1)), 12), Step(fetch(session=(None, 2)), 12)
    ),
    "tells-of-new-records": session(
        Step(fetch(("t", 0, 5), session=(None, 1)), 12),
        Step(produce(("t", 0, written(b"new"))), 9),
        Step(fetch(session=(None, 2)), 12),
    ),
    "tells-of-a-new-start": session(
        Step(fetch(("t", 0, 5), session=(None, 1)), 12),
        Step(delete_records(("t", 0, 2)), 2),
        Step(fetch(session=(None, 2)), 12),
        Step(fetch(session=(None, 3)), 12),
    ),
    "another-partition": session(
        Step(fetch(("u", 0, 0), session=(None, 1)), 12), Step(fetch(session=(None, 2)), 12)
    ),
    "forgotten": session(
        Step(fetch(("u", 0, 0), session=(None, 1)), 12),
        Step(fetch(session=(None, 2), forgotten=[("t", 0)]), 12),
    ),
    "forgotten-that-is-unknown": session(
        Step(fetch(session=(None, 1), forgotten=[("u", 0), ("no", 3)]), 12)
    ),
    "forgotten-and-asked": session(
        Step(fetch(("t", 0, 3), session=(None, 1), forgotten=[("t", 0)]), 12)
    ),
    "all-forgotten": session(
        Step(fetch(session=(None, 1), forgotten=[("t", 0)]), 12),
        Step(fetch(session=(None, 2)), 12),
    ),
    "unknown-id": Case([Step(fetch(("t", 0, 0), session=(12345, 1)), 12)]),
    "unknown-id-epoch-0": Case([Step(fetch(("t", 0, 0), session=(12345, 0)), 12)]),
    "unknown-id-ended": Case([Step(fetch(("t", 0, 0), session=(12345, -1)), 12)]),
    "no-id-epoch-1": Case([Step(fetch(("t", 0, 0), session=(0, 1)), 12)]),
    "no-id-epoch-minus-1": Case([Step(fetch(("t", 0, 0), session=(0, -1)), 12)]),
    "no-id-epoch-minus-2": Case([Step(fetch(("t", 0, 0), session=(0, -2)), 12)]),
    "epoch-too-new": session(Step(fetch(session=(None, 2)), 12)),
    "epoch-again": session(
        Step(fetch(session=(None, 1)), 12), Step(fetch(session=(None, 1)), 12)
    ),
    "begun-again": session(Step(fetch(("t", 0, 3), session=(None, 0)), 12)),
    "ended": session(
        Step(fetch(session=(None, -1)), 12), Step(fetch(session=(None, 1)), 12)
    ),
    "ended-while-asking": session(Step(fetch(("t", 0, 3), session=(None, -1)), 12)),
    "error-is-told-again": session(
        Step(fetch(("t", 0, 99), session=(None, 1)), 12), Step(fetch(session=(None, 2)), 12)
    ),
    "begun-with-an-error": Case(
        [
            Step(fetch(("t", 0, 0), ("no", 0, 0), session=(0, 0)), 12),
            Step(fetch(session=(None, 1)), 12),
        ]
    ),
    "names-then-ids": session(Step(fetch(session=(None, 1)), 13)),
    "names-then-ids-asked": session(
        Step(fetch(("t", 0, 0), by_id=True, session=(None, 1)), 13)
    ),
    "ids": Case(
        [
            Step(fetch(("t", 0, 0), by_id=True, session=(0, 0)), 13),
            Step(fetch(session=(None, 1)), 13),
            Step(fetch(("u", 0, 0), by_id=True, session=(None, 2)), 13),
            Step(fetch(session=(None, 3), forgotten=[("t", 0)], by_id=True), 13),
        ],
        {"t": FOUR, "u": FOUR},
    ),
    "ids-then-names": Case(
        [
            Step(fetch(("t", 0, 0), by_id=True, session=(0, 0)), 13),
            Step(fetch(session=(None, 1)), 12),
        ],
        {"t": FOUR},
    ),
    "unknown-id-of-topic": Case(
        [
            Step(fetch(("no", 0, 0), by_id=True, session=(0, 0)), 13),
            Step(fetch(session=(None, 1)), 13),
        ]
    ),
    "topic-deleted-meanwhile": session(
        Step(delete("t"), 5), Step(fetch(session=(None, 1)), 12)
    ),
    "topic-deleted-meanwhile-by-id": Case(
        [
            Step(fetch(("t", 0, 0), by_id=True, session=(0, 0)), 13),
            Step(delete("t"), 5),
            Step(fetch(session=(None, 1)), 13),
        ],
        {"t": FOUR},
    ),
    "order-of-turns": session(
        Step(fetch(("u", 0, 0), session=(None, 1)), 12),
        Step(fetch(session=(None, 2), max_bytes=1), 12),
        Step(fetch(session=(None, 3), max_bytes=1), 12),
    ),
}  # fmt: skip

CASES = {
    f"{api}/{name}": case
    for api, cases in {"Fetch": ONE, "Fetch in a session": SESSIONS}.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold_on_plane: Callable[[str, Case], None], name: str) -> None:
    hold_on_plane(name, CASES[name])
