"""Produce and InitProducerId beside Kafka 3.9, and what Fetch then finds."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from plog._native import batch, records
from plog._native.crc32c import crc32c
from plog.protocol.messages.producers import InitProducerIdRequest
from tests.compat.against_kafka.ask import delete_records, fetch, produce
from tests.compat.against_kafka.pair import Case, Made, Side, Step, Topic
from tests.handlers.wire import NOW_MS, make_batch

STAMP = NOW_MS - 3_600_000
HOUR_MS = 3_600_000
READ = Step(fetch(("t", 0, 0)), 12)
AT_MAGIC, AT_CRC, AT_ATTRIBUTES, AT_LAST_DELTA, AT_COUNT = 16, 17, 21, 23, 57
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def plain(*values: bytes | None, **options: object) -> bytes:
    return make_batch(values or (b"v",), timestamps=[STAMP] * max(len(values), 1), **options)


def sent(data: bytes | None, version: int = 9, topic: Topic | None = None, acks: int = -1) -> Case:
    """Return a case that writes a record set and reads what there is then."""
    return Case([Step(produce(("t", 0, data), acks=acks), version), READ], {"t": topic or Topic()})


def with_bytes(data: bytes, at: int, code: str, value: int, *, checked: bool = True) -> bytes:
    """Return a batch with one field of its header set, and the CRC made right again."""
    changed = bytearray(data)
    struct.pack_into(">" + code, changed, at, value)
    if checked:
        struct.pack_into(">I", changed, AT_CRC, crc32c(bytes(changed[AT_ATTRIBUTES:])))
    return bytes(changed)


def stamped(*times: int, **options: object) -> bytes:
    return make_batch([b"v"] * len(times), timestamps=times, **options)


def with_offset(data: bytes, base_offset: int) -> bytes:
    changed = bytearray(data)
    batch.restamp_offsets(changed, base_offset, -1)
    return bytes(changed)


BATCH = plain(b"a", b"b")


def old_message_set(timestamp: int) -> bytes:
    return struct.pack(">qi", 0, 22) + struct.pack(">Ibbqii", 0, 1, 0, timestamp, -1, -1)


PLAIN_TIME, TRANSACTIONAL_TIME = 1 << 40, 1 << 40 | 1 << 28
"""Where a batch has its attributes an old message set has its time: these and those of a
transaction, in turns of three days."""
WRITTEN = Topic(batches=[plain(b"0", b"1")])


def configured(**configs: object) -> Topic:
    return Topic(configs={key.replace("_", "."): str(value) for key, value in configs.items()})


PRODUCE = {
    "acks-all": sent(BATCH),
    "acks-1": sent(BATCH, acks=1),
    "acks-2": sent(BATCH, acks=2),
    "acks-minus-2": sent(BATCH, acks=-2),
    "acks-2-version-3": sent(BATCH, 3, acks=2),
    "behind-others": sent(BATCH, topic=WRITTEN),
    "unknown-topic": Case([Step(produce(("no", 0, BATCH)), 9)]),
    "unknown-topic-11": Case([Step(produce(("no", 0, BATCH)), 11)]),
    "illegal-topic": Case([Step(produce(("a b", 0, BATCH)), 9)]),
    "unknown-partition": Case([Step(produce(("t", 5, BATCH)), 9)]),
    "negative-partition": Case([Step(produce(("t", -1, BATCH)), 9)]),
    "good-and-unknown": Case([Step(produce(("t", 0, BATCH), ("no", 0, BATCH)), 9), READ]),
    "good-and-bad-partition": Case([Step(produce(("t", 0, BATCH), ("t", 5, BATCH)), 9), READ]),
    "nothing": Case([Step(produce(), 9)]),
    "wrong-crc": sent(with_bytes(BATCH, AT_CRC, "I", 7, checked=False)),
    "wrong-crc-and-unknown-topic": Case(
        [Step(produce(("no", 0, with_bytes(BATCH, AT_CRC, "I", 7, checked=False))), 9)]
    ),
    "magic-0": sent(with_bytes(BATCH, AT_MAGIC, "b", 0, checked=False)),
    "magic-1": sent(with_bytes(BATCH, AT_MAGIC, "b", 1, checked=False)),
    "magic-3": sent(with_bytes(BATCH, AT_MAGIC, "b", 3, checked=False)),
    "magic-minus-1": sent(with_bytes(BATCH, AT_MAGIC, "b", -1, checked=False)),
    "message-set-of-magic-1": sent(old_message_set(PLAIN_TIME)),
    "message-set-of-magic-1-at-another-time": sent(old_message_set(TRANSACTIONAL_TIME)),
    "empty-record-set": sent(b""),
    "empty-record-set-11": sent(b"", 11),
    "two-batches": sent(BATCH + BATCH),
    "two-batches-version-3": sent(BATCH + BATCH, 3),
    "cut-header": sent(BATCH[:40]),
    "cut-before-magic": sent(BATCH[:10]),
    "cut-batch": sent(BATCH[:-1]),
    "tail-behind-batch": sent(BATCH + b"\0"),
    "long-tail-behind-batch": sent(BATCH + b"\0" * 30),
    "length-0": sent(with_bytes(BATCH, 8, "i", 0, checked=False)),
    "length-negative": sent(with_bytes(BATCH, 8, "i", -5, checked=False)),
    "length-too-large": sent(with_bytes(BATCH, 8, "i", 2**31 - 1, checked=False)),
    "no-records": sent(with_bytes(with_bytes(BATCH[:61], 8, "i", 49), AT_COUNT, "i", 0)),
    "count-too-small": sent(with_bytes(BATCH, AT_COUNT, "i", 1)),
    "count-too-large": sent(with_bytes(BATCH, AT_COUNT, "i", 3)),
    "count-negative": sent(with_bytes(BATCH, AT_COUNT, "i", -1)),
    "last-delta-too-small": sent(with_bytes(BATCH, AT_LAST_DELTA, "i", 0)),
    "last-delta-too-large": sent(with_bytes(BATCH, AT_LAST_DELTA, "i", 5)),
    "last-delta-negative": sent(with_bytes(BATCH, AT_LAST_DELTA, "i", -1)),
    "compressed-count-wrong": sent(with_bytes(plain(b"a", b"b", codec=1), AT_COUNT, "i", 3)),
    "base-offset-5": sent(with_offset(BATCH, 5)),
    "base-offset-negative": sent(with_offset(BATCH, -1)),
    "leader-epoch-5": sent(with_bytes(BATCH, 12, "i", 5, checked=False)),
    "codec-5": sent(with_bytes(BATCH, AT_ATTRIBUTES, "h", 5)),
    "codec-7": sent(with_bytes(BATCH, AT_ATTRIBUTES, "h", 7)),
    "unused-attributes": sent(with_bytes(BATCH, AT_ATTRIBUTES, "h", 0x400)),
    "delete-horizon": sent(with_bytes(BATCH, AT_ATTRIBUTES, "h", 0x40)),
    "says-log-append-time": sent(with_bytes(BATCH, AT_ATTRIBUTES, "h", 0x08)),
    "control-batch": sent(
        bytes(
            records.control_batch(
                abort=False, offset=0, timestamp=STAMP, producer_id=1, producer_epoch=0,
                coordinator_epoch=0,
            )
        )
    ),
    "transactional": sent(plain(producer=(1, 0, 0), transactional=True)),
    "transactional-without-producer": sent(plain(transactional=True)),
    "gzip-of-nothing-right": sent(with_bytes(BATCH, AT_ATTRIBUTES, "h", 1)),
    "zstd-before-its-version": sent(plain(codec=4), 6),
    "snappy-version-3": sent(plain(codec=2), 3),
    "too-large": sent(plain(b"x" * 1000), topic=configured(max_message_bytes=500)),
    "too-large-version-3": sent(plain(b"x" * 1000), 3, configured(max_message_bytes=500)),
    "too-large-expanded": sent(
        plain(b"x" * 1000, codec=1), topic=configured(max_message_bytes=500)
    ),
    "too-large-recompressed": sent(
        plain(b"x" * 1000, codec=1),
        topic=configured(max_message_bytes=500, compression_type="uncompressed"),
    ),
    "larger-than-segment": sent(plain(b"x" * 1000), topic=configured(segment_bytes=500)),
    "as-large-as-allowed": sent(BATCH, topic=configured(max_message_bytes=len(BATCH))),
    "a-byte-too-large": sent(BATCH, topic=configured(max_message_bytes=len(BATCH) - 1)),
    "too-old": sent(
        stamped(NOW_MS, NOW_MS - HOUR_MS),
        topic=configured(message_timestamp_before_max_ms=600_000),
    ),
    "too-old-version-7": sent(
        stamped(NOW_MS - HOUR_MS), 7, configured(message_timestamp_before_max_ms=600_000)
    ),
    "too-new": sent(
        stamped(NOW_MS, NOW_MS + HOUR_MS),
        topic=configured(message_timestamp_after_max_ms=600_000),
    ),
    "too-new-compressed": sent(
        stamped(NOW_MS, NOW_MS + HOUR_MS, codec=1),
        topic=configured(message_timestamp_after_max_ms=600_000),
    ),
    "too-far-off-by-difference": sent(
        stamped(NOW_MS - HOUR_MS), topic=configured(message_timestamp_difference_max_ms=600_000)
    ),
    "too-old-but-log-append-time": sent(
        stamped(NOW_MS - HOUR_MS),
        topic=configured(
            message_timestamp_before_max_ms=600_000, message_timestamp_type="LogAppendTime"
        ),
    ),
    "no-timestamp": sent(stamped(-1)),
    "no-timestamp-and-bounds": sent(
        stamped(-1), topic=configured(message_timestamp_before_max_ms=600_000)
    ),
    "no-timestamp-and-log-append-time": sent(
        stamped(-1), topic=configured(message_timestamp_type="LogAppendTime")
    ),
    "far-future": sent(stamped(2**62)),
    "log-append-time": sent(BATCH, topic=configured(message_timestamp_type="LogAppendTime")),
    "log-append-time-version-3": sent(
        BATCH, 3, configured(message_timestamp_type="LogAppendTime")
    ),
    "log-append-time-compressed": sent(
        plain(codec=3), topic=configured(message_timestamp_type="LogAppendTime")
    ),
    "compacted-without-key": sent(
        plain(b"a", b"b"), topic=configured(cleanup_policy="compact")
    ),
    "compacted-without-key-version-7": sent(
        plain(b"a", b"b"), 7, configured(cleanup_policy="compact")
    ),
    "compacted-without-key-compressed": sent(
        plain(b"a", b"b", codec=1), topic=configured(cleanup_policy="compact,delete")
    ),
    "compacted-with-key": sent(
        plain(b"a", None, key=b"k"), topic=configured(cleanup_policy="compact")
    ),
    "min-insync-2": sent(BATCH, topic=configured(min_insync_replicas=2)),
    "min-insync-2-acks-1": sent(BATCH, topic=configured(min_insync_replicas=2), acks=1),
    "after-delete-records": Case(
        [
            Step(delete_records(("t", 0, 1)), 2),
            Step(produce(("t", 0, BATCH)), 9),
            Step(fetch(("t", 0, 1)), 12),
        ],
        {"t": WRITTEN},
    ),
}  # fmt: skip
PRODUCE |= {f"version-{version}": sent(BATCH, version) for version in range(3, 12)}
PRODUCE |= {
    f"{codec}-to-topic-of-{of}": sent(
        plain(b"a" * 100, b"b", codec=number), topic=configured(compression_type=of)
    )
    for codec, number in CODECS.items()
    for of in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    if codec in ("none", "lz4") or of in ("producer", "gzip")
}

# -- producers

NEW_ID = Step(
    lambda side: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4
)


def numbered(sequence: int, epoch: int = 0, count: int = 2, producer_id: int | None = None) -> Step:
    """Return the sending of records of the case's producer, or of the one of an id."""

    def make(side: Side) -> object:
        known = side.producer_id if producer_id is None else producer_id
        data = plain(*[b"v"] * count, producer=(known, epoch, sequence))
        return produce(("t", 0, data))(side)

    return Step(make, 9)


def in_turn(*steps: Step) -> Case:
    return Case([NEW_ID, *steps, READ])


FIVE = [numbered(n * 2) for n in range(5)]
PRODUCERS = {
    "in-order": in_turn(numbered(0), numbered(2), numbered(4)),
    "begins-at-5": in_turn(numbered(5)),
    "gap": in_turn(numbered(0), numbered(3)),
    "back": in_turn(numbered(0), numbered(1)),
    "duplicate": in_turn(numbered(0), numbered(2), numbered(2)),
    "duplicate-of-the-first-of-five": in_turn(*FIVE, numbered(0)),
    "duplicate-older-than-five": in_turn(*FIVE, numbered(10), numbered(0)),
    "duplicate-of-other-length": in_turn(numbered(0), numbered(0, count=3)),
    "unknown-producer": in_turn(numbered(0, producer_id=12345)),
    "unknown-producer-in-the-middle": in_turn(numbered(7, producer_id=12346)),
    "newer-epoch": in_turn(numbered(0), numbered(0, epoch=1)),
    "newer-epoch-in-the-middle": in_turn(numbered(0), numbered(2, epoch=1)),
    "older-epoch": in_turn(numbered(0, epoch=1), numbered(2, epoch=0)),
    "older-epoch-duplicate": in_turn(numbered(0), numbered(0, epoch=1), numbered(0)),
    "negative-epoch": in_turn(numbered(0, epoch=-1)),
    "negative-sequence": in_turn(numbered(-1)),
    "sequence-minus-2": in_turn(numbered(-2)),
    "sequence-without-producer": in_turn(numbered(3, producer_id=-1)),
    "wraps": in_turn(numbered(2**31 - 3), numbered(2**31 - 1)),
    "wraps-within-batch": in_turn(numbered(2**31 - 2), numbered(0), numbered(2)),
    "unnumbered-between": Case(
        [NEW_ID, numbered(0), Step(produce(("t", 0, BATCH)), 9), numbered(2), READ]
    ),
    "acks-1-duplicate": Case(
        [
            NEW_ID,
            *[
                Step(
                    lambda side: produce(
                        ("t", 0, plain(producer=(side.producer_id, 0, 0))), acks=1
                    )(side),
                    9,
                )
            ]
            * 2,
            READ,
        ]
    ),
    "duplicate-with-log-append-time": Case(
        [NEW_ID, numbered(0), numbered(0), READ],
        {"t": configured(message_timestamp_type="LogAppendTime")},
    ),
    "duplicate-version-3": Case(
        [NEW_ID, *[Step(numbered(0).request, 3)] * 2, READ],
    ),
}  # fmt: skip


def init(version: int, *, transactional_id: str | None = None, **options: int) -> Case:
    given = {"transaction_timeout_ms": 60_000, **options}
    made: Made = lambda side: InitProducerIdRequest(  # noqa: E731
        transactional_id=transactional_id and side.name(transactional_id), **given
    )
    return Case([Step(made, version)], {})


INIT = {f"version-{version}": init(version) for version in range(6)} | {
    "with-id-and-epoch": init(4, producer_id=5, producer_epoch=0),
    "with-id-alone": init(4, producer_id=5),
    "with-epoch-alone": init(4, producer_epoch=5),
    "empty-transactional-id": init(4, transactional_id=""),
    "transactional": init(4, transactional_id="x"),
    "transactional-timeout-0": init(4, transactional_id="x", transaction_timeout_ms=0),
    "transactional-timeout-too-long": init(
        4, transactional_id="x", transaction_timeout_ms=2**31 - 1
    ),
    "timeout-0": init(4, transaction_timeout_ms=0),
}

CASES = {
    f"{api}/{name}": case
    for api, cases in {
        "Produce": PRODUCE,
        "Produce of a producer": PRODUCERS,
        "InitProducerId": INIT,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold_on_plane: Callable[[str, Case], None], name: str) -> None:
    hold_on_plane(name, CASES[name])
