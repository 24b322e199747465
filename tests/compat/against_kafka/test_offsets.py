"""ListOffsets and OffsetForLeaderEpoch beside Kafka 3.9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.against_kafka.ask import delete_records, end_of_epoch, list_offsets
from tests.compat.against_kafka.pair import Case, Step, Topic, one
from tests.handlers.wire import NOW_MS, make_batch

STAMP = NOW_MS - 3_600_000
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
WRITTEN = Topic(
    batches=[
        make_batch([b"a", b"b", b"c"], timestamps=[STAMP, STAMP + 10, STAMP + 20]),
        make_batch([b"d", b"e"], timestamps=[STAMP + 50, STAMP + 40]),
        make_batch([b"f", b"g"], timestamps=[STAMP + 30, STAMP + 60], codec=1),
        make_batch([b"h"], timestamps=[STAMP + 5]),
    ]
)
SEGMENTS = Topic(
    configs={"segment.bytes": "200"},
    batches=[make_batch([b"x" * 100], timestamps=[STAMP + n]) for n in range(6)],
)


def at(timestamp: int, version: int = 9, topic: Topic = WRITTEN, **options: int) -> Case:
    return one(list_offsets(("t", 0, timestamp), **options), version, t=topic)


LIST = {
    "latest": at(LATEST),
    "earliest": at(EARLIEST),
    "max-timestamp": at(MAX_TIMESTAMP),
    "earliest-local": at(EARLIEST_LOCAL),
    "latest-tiered": at(LATEST_TIERED),
    "minus-6": at(-6),
    "minus-100": at(-100),
    "max-timestamp-before-its-version": at(MAX_TIMESTAMP, 6),
    "earliest-local-before-its-version": at(EARLIEST_LOCAL, 7),
    "latest-tiered-before-its-version": at(LATEST_TIERED, 8),
    "minus-6-version-1": at(-6, 1),
    "empty-latest": at(LATEST, topic=Topic()),
    "empty-earliest": at(EARLIEST, topic=Topic()),
    "empty-max-timestamp": at(MAX_TIMESTAMP, topic=Topic()),
    "empty-at-0": at(0, topic=Topic()),
    "empty-latest-tiered": at(LATEST_TIERED, topic=Topic()),
    "at-0": at(0),
    "at-the-first": at(STAMP),
    "between": at(STAMP + 15),
    "within-batch-out-of-order": at(STAMP + 41),
    "within-compressed-batch": at(STAMP + 55),
    "at-the-greatest": at(STAMP + 60),
    "beyond-the-greatest": at(STAMP + 61),
    "far-future": at(2**63 - 1),
    "segments-latest-0": at(LATEST, 0, SEGMENTS, most=10),
    "segments-earliest-0": at(EARLIEST, 0, SEGMENTS),
    "segments-one-0": at(LATEST, 0, SEGMENTS),
    "segments-none-0": at(LATEST, 0, SEGMENTS, most=0),
    "segments-future-0": at(2**62, 0, SEGMENTS, most=10),
    "segments-past-0": at(5, 0, SEGMENTS),
    "segments-minus-6-0": at(-6, 0, SEGMENTS),
    "empty-latest-0": at(LATEST, 0, Topic()),
    "segments-between": at(STAMP + 3, 9, SEGMENTS),
    "segments-max-timestamp": at(MAX_TIMESTAMP, 9, SEGMENTS),
    "committed-latest": at(LATEST, isolation=1),
    "committed-max-timestamp": at(MAX_TIMESTAMP, isolation=1),
    "unknown-isolation": at(LATEST, isolation=7),
    "as-follower": at(LATEST, replica_id=1),
    "as-debugging": at(LATEST, replica_id=-2),
    "as-replica-minus-3": at(LATEST, replica_id=-3),
    "epoch-0": at(LATEST, epoch=0),
    "epoch-too-new": at(LATEST, epoch=1),
    "epoch-minus-2": at(LATEST, epoch=-2),
    "unknown-topic": one(list_offsets(("no", 0, LATEST)), 9),
    "unknown-topic-0": one(list_offsets(("no", 0, LATEST)), 0),
    "unknown-partition": one(list_offsets(("t", 5, LATEST)), 9),
    "negative-partition": one(list_offsets(("t", -1, LATEST)), 9),
    "illegal-topic": one(list_offsets(("a b", 0, LATEST)), 9),
    "partition-twice": one(list_offsets(("t", 0, LATEST), ("t", 0, EARLIEST)), 9),
    "partition-twice-0": one(list_offsets(("t", 0, LATEST), ("t", 0, EARLIEST)), 0),
    "good-and-unknown": one(list_offsets(("t", 0, LATEST), ("no", 0, LATEST)), 9),
    "nothing": one(list_offsets(), 9),
    "after-delete-records": Case(
        [
            Step(delete_records(("t", 0, 4)), 2),
            *(
                Step(list_offsets(("t", 0, when)), 9)
                for when in (EARLIEST, EARLIEST_LOCAL, 0, STAMP + 10, MAX_TIMESTAMP)
            ),
            Step(list_offsets(("t", 0, EARLIEST)), 0),
            Step(end_of_epoch(("t", 0, -1, 0)), 4),
        ],
        {"t": WRITTEN},
    ),
    "after-delete-of-all": Case(
        [
            Step(delete_records(("t", 0, -1)), 2),
            *(
                Step(list_offsets(("t", 0, when)), 9)
                for when in (EARLIEST, 0, MAX_TIMESTAMP, LATEST)
            ),
            Step(end_of_epoch(("t", 0, -1, 0)), 4),
        ],
        {"t": WRITTEN},
    ),
}


def epoch(current: int, asked: int, topic: Topic = WRITTEN, **options: int) -> Case:
    return one(end_of_epoch(("t", 0, current, asked), **options), 4, t=topic)


EPOCHS = {
    "present": epoch(-1, 0),
    "present-and-agreed": epoch(0, 0),
    "future": epoch(-1, 5),
    "negative": epoch(-1, -1),
    "minus-2": epoch(-1, -2),
    "empty": epoch(-1, 0, Topic()),
    "empty-future": epoch(-1, 1, Topic()),
    "reader-too-new": epoch(1, 0),
    "reader-minus-2": epoch(-2, 0),
    "as-consumer": epoch(-1, 0, replica_id=-1),
    "as-debugging": epoch(-1, 0, replica_id=-2),
    "as-follower": epoch(-1, 0, replica_id=1),
    "unknown-topic": one(end_of_epoch(("no", 0, -1, 0)), 4),
    "unknown-partition": one(end_of_epoch(("t", 5, -1, 0)), 4),
    "negative-partition": one(end_of_epoch(("t", -1, -1, 0)), 4),
    "illegal-topic": one(end_of_epoch(("a b", 0, -1, 0)), 4),
    "nothing": one(end_of_epoch(), 4),
}

CASES = {
    f"{api}/{name}": case
    for api, cases in {"ListOffsets": LIST, "OffsetForLeaderEpoch": EPOCHS}.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
