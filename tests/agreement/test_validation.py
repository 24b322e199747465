"""`validation` and its twin give the same answers; both give those that Kafka's leader would."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plog._native import validation as native
from plog._reference import validation as reference
from plog.errors import ErrorCode

from .batch_headers import stamped
from .batches import (
    CODECS,
    MALFORMED_RECORDS,
    NOW_MS,
    SMALL,
    answer,
    build,
    damaged,
    malformed,
    raw_record,
    record_lists,
    with_records,
    zstd_for_the_twin,  # noqa: F401 - a fixture of every test here
)
from .harness import forked, run_seed

ENGINES = [native, reference]
RULES = {
    "now_ms": NOW_MS,
    "before_max_ms": 10_000,
    "after_max_ms": 1_000,
    "log_append_time": False,
    "key_required": False,
    "decompressed_limit": 1 << 20,
}


def validate(data: bytes, **changed):
    rules = RULES | changed
    expected = answer(reference.validate_produced, data, **rules)
    found = answer(native.validate_produced, data, **rules)
    assert found == expected
    return found


# -- what passes and what does not -----------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("transactional", [False, True])
def test_batch_of_another_library_passes(codec, transactional):
    producer = (5, 0, 17) if transactional else (-1, -1, -1)
    batch = build(SMALL, codec, producer=producer, transactional=transactional)
    found = validate(batch)
    assert found == (0, "", [], 1, len(build(SMALL)), NOW_MS + 5)


@settings(max_examples=60)
@given(record_lists, st.sampled_from(CODECS), st.booleans(), st.booleans())
def test_validation_of_any_records_agrees(records, codec, log_append_time, key_required):
    batch = build(records, codec)
    found = validate(batch, log_append_time=log_append_time, key_required=key_required)
    if found.error == 0 and not log_append_time:
        timestamps = [record[0] for record in records]
        assert found.max_timestamp == max(-1, *timestamps)


@pytest.mark.parametrize("name", MALFORMED_RECORDS)
def test_malformed_records_are_an_invalid_record(name):
    found = validate(malformed(name))
    assert found.error == ErrorCode.INVALID_RECORD
    assert found.message


MORE = build(SMALL[:1])


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", 87, "there is none"),
        (b"\0" * 16, 87, "16 bytes are left"),
        (b"\0" * 17, 87, "magic 0"),
        (stamped(MORE, magic=1), 87, "magic 1"),
        (stamped(MORE, magic=3), 2, "magic 3"),
        (stamped(MORE, magic=-1), 2, "magic -1"),
        (MORE[:60], 87, "60 bytes are left"),
        (MORE[:-1], 87, "it takes"),
        (MORE + b"\0", 87, "1 bytes follow"),
        (MORE + MORE, 87, "bytes follow"),
        (stamped(MORE, crc=1), 2, "CRC"),
        (stamped(MORE, batch_length=40), 2, "batch_length 40"),
        (stamped(MORE, base_offset=1), 87, "base_offset is 1"),
        (stamped(MORE, last_offset_delta=-1), 87, "last_offset_delta is -1"),
        (stamped(MORE, last_offset_delta=-1, records_count=0), 87, "last_offset_delta is -1"),
        (stamped(MORE, records_count=0), 87, "records_count is 0"),
        (stamped(MORE, records_count=-5), 87, "records_count is -5"),
        (stamped(MORE, records_count=2), 87, "records_count is 2, last_offset_delta is 0"),
        (stamped(MORE, records_count=2, last_offset_delta=1), 87, "record 1 at byte"),
        (
            stamped(MORE, records_count=2**31 - 1, last_offset_delta=2**31 - 2),
            87,
            "record 1 at byte",
        ),
        (stamped(MORE, attributes=0x20), 87, "control"),
        (stamped(MORE, attributes=0x40), 87, "delete horizon"),
        (stamped(MORE, attributes=0x08), 32, "LogAppendTime"),
        (stamped(MORE, attributes=0x10), 87, "needs a producer_id"),
        (stamped(MORE, attributes=5), 76, "codec 5"),
        (stamped(MORE, attributes=7), 76, "codec 7"),
        (stamped(MORE, attributes=1), 2, "codec 1"),
        (stamped(MORE, attributes=2), 2, "codec 2"),
        (stamped(MORE, attributes=3), 2, "codec 3"),
        (stamped(MORE, attributes=4), 2, "codec 4"),
        (stamped(MORE, producer_id=-2), 87, "producer_id is -2"),
        (stamped(MORE, producer_id=1), 87, "producer_epoch is -1"),
        (stamped(MORE, producer_id=1, producer_epoch=0), 87, "base_sequence is -1"),
    ],
)
def test_batch_that_no_client_may_send_is_refused(data, error, text):
    found = validate(data)
    assert (found.error, found.record_errors) == (error, [])
    assert text in found.message


@pytest.mark.parametrize(
    "fields",
    [
        # What clients send without a producer id: KafkaJS and Sarama leave zeros.
        {"producer_epoch": 0, "base_sequence": 0},
        {"base_sequence": 0},
        {"partition_leader_epoch": 0},
        {"partition_leader_epoch": -1},
        {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0},
        {"max_timestamp": 0},  # Kafka's leader computes it anew
        {"attributes": 0x100},
    ],
)
def test_batch_that_real_clients_send_passes(fields):
    found = validate(stamped(MORE, **fields))
    assert (found.error, found.max_timestamp) == (0, NOW_MS)


def test_records_beyond_the_limit_are_too_large():
    batch = build([(NOW_MS, None, b"x" * 5000, ())], 4)
    size = validate(batch).uncompressed_bytes - 61
    assert validate(batch, decompressed_limit=size).error == 0
    assert validate(batch, decompressed_limit=size - 1).error == ErrorCode.MESSAGE_TOO_LARGE


def test_records_with_wrong_offsets_are_named():
    batch = with_records(
        build(SMALL), raw_record() + raw_record(offset_delta=2) + raw_record(offset_delta=1)
    )
    assert validate(batch)[:3] == (
        87,
        "2 of 3 records refused",
        [(1, "offset delta is 2, must be 1"), (2, "offset delta is 1, must be 2")],
    )


def test_records_without_keys_are_named_where_keys_are_needed():
    found = validate(build(SMALL), key_required=True)
    assert found[:3] == (
        87,
        "1 of 3 records refused",
        [(1, "a record of a compacted topic needs a key")],
    )


@pytest.mark.parametrize(
    ("timestamp", "error"),
    [
        (NOW_MS - 10_001, 32),
        (NOW_MS - 10_000, 0),
        (NOW_MS + 1_000, 0),
        (NOW_MS + 1_001, 32),
        (-1, 0),  # no timestamp
        (-2, 32),
        (0, 32),
    ],
)
def test_timestamp_must_be_within_its_bounds(timestamp, error):
    batch = build([(NOW_MS, None, b"", ()), (timestamp, None, b"", ())])
    found = validate(batch)
    assert found.error == error
    assert [index for index, _ in found.record_errors] == ([1] if error else [])
    assert validate(batch, log_append_time=True)[:4] == (0, "", [], 0)


def test_invalid_timestamp_prevails_over_other_record_errors():
    batch = build([(NOW_MS, None, b"", ()), (5, b"k", b"", ())])
    found = validate(batch, key_required=True)
    assert (found.error, len(found.record_errors)) == (32, 2)


def test_at_most_a_hundred_record_errors_are_listed():
    found = validate(build([(NOW_MS, None, b"", ())] * 150), key_required=True)
    assert len(found.record_errors) == 100
    assert found.message == "150 of 150 records refused"


@pytest.mark.parametrize(
    ("timestamps", "max_timestamp", "delta"),
    [
        ([NOW_MS, NOW_MS + 2, NOW_MS + 2], NOW_MS + 2, 1),
        ([-1, -1], -1, 0),
        ([-5, -1], -1, 1),
        ([-5, -2], -1, -1),
        ([-(2**62), 2**62 - 1], 2**62 - 1, 1),
    ],
)
def test_max_timestamp_is_found_whatever_the_header_says(timestamps, max_timestamp, delta):
    batch = build([(timestamp, None, b"", ()) for timestamp in timestamps])
    batch = stamped(batch, max_timestamp=123)
    found = validate(batch, before_max_ms=2**63 - 1, after_max_ms=2**63 - 1)
    assert (found.error, found.max_timestamp, found.max_timestamp_offset_delta) == (
        0, max_timestamp, delta,
    )  # fmt: skip


@pytest.mark.parametrize("now_ms", [0, NOW_MS, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("before", [0, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("after", [0, 2**63 - 1, -(2**63)])
def test_bounds_saturate(now_ms, before, after):
    validate(build(SMALL), now_ms=now_ms, before_max_ms=before, after_max_ms=after)


def test_validation_starts_at_its_position():
    assert validate(b"abc" + build(SMALL), pos=3).error == 0


@pytest.mark.parametrize("pos", [-1, 10])
def test_position_outside_the_buffer_is_a_value_error(pos):
    found = validate(b"123456789", pos=pos)
    assert found == f"ValueError: position {pos} is outside the buffer of 9 bytes"


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_prefix_of_a_batch_is_refused_alike(codec):
    batch = build(SMALL, codec)
    for cut in range(len(batch)):
        assert validate(batch[:cut]).error != 0


def test_damaged_batches_get_one_answer():
    originals = [build(SMALL, codec) for codec in CODECS]
    assert forked(validate, damaged(originals, 400, run_seed())) > 800


@settings(max_examples=200)
@given(st.binary(max_size=80))
@example(b"\xff" * 61)
def test_junk_gets_one_answer(data):
    validate(data)
    validate(with_records(build(SMALL[:2]), data))


@pytest.mark.parametrize("engine", ENGINES)
def test_golden_batch_is_read(engine):
    # Byte by byte: k -> v with header a = b.
    golden = bytes.fromhex(
        "0000000000000000 0000003e ffffffff 02 00000000 0000 00000000"
        "0000018bcfe56800 0000018bcfe56800 ffffffffffffffff ffff ffffffff 00000001"
        "18 00 00 00 02 6b 02 76 02 02 61 02 62"
    )
    assert len(golden) == 74
    assert engine.validate_produced(golden, **RULES).message.startswith("batch at 0: CRC is ")
    golden = stamped(golden)
    assert engine.validate_produced(golden, **RULES).error == 0
