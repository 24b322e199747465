"""`batch` and its twin give the same answers; both give those that Kafka's leader would."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plog._native import batch as native
from plog._reference import batch as reference
from plog.errors import CorruptRecord, ErrorCode

from .batches import (
    CODECS,
    MALFORMED_RECORDS,
    NOW_MS,
    SMALL,
    answer,
    build,
    crc32c,
    damaged,
    malformed,
    raw_record,
    record_lists,
    stamped,
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
PROPERTIES = [
    "size_bytes",
    "last_offset",
    "next_offset",
    "last_sequence",
    "codec",
    "is_log_append_time",
    "is_transactional",
    "is_control",
    "has_delete_horizon",
]


def agree(name: str, *args, **kwargs):
    expected = answer(getattr(reference, name), *args, **kwargs)
    found = answer(getattr(native, name), *args, **kwargs)
    assert found == expected
    return found


def validate(data: bytes, **changed):
    return agree("validate_produced", data, **(RULES | changed))


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_header_of_a_batch_has_the_fields_it_was_written_with(engine):
    batch = stamped(
        build(SMALL),
        base_offset=1000,
        partition_leader_epoch=7,
        attributes=0x78,
        producer_id=12,
        producer_epoch=3,
        base_sequence=2**31 - 2,
    )
    header = engine.check_batch(b"xx" + batch, 2)
    assert header._asdict() == {
        "position": 2,
        "base_offset": 1000,
        "batch_length": len(batch) - 12,
        "partition_leader_epoch": 7,
        "magic": 2,
        "crc": crc32c(batch[21:]),
        "attributes": 0x78,
        "last_offset_delta": 2,
        "base_timestamp": NOW_MS,
        "max_timestamp": NOW_MS + 5,
        "producer_id": 12,
        "producer_epoch": 3,
        "base_sequence": 2**31 - 2,
        "records_count": 3,
    }
    assert [getattr(header, name) for name in PROPERTIES] == [
        len(batch), 1002, 1003, 0, 0, True, True, True, True,
    ]  # fmt: skip


def test_last_sequence_of_a_batch_without_one_is_minus_one():
    assert agree("check_batch", build(SMALL)).last_sequence == -1


@pytest.mark.parametrize("codec", CODECS)
def test_every_prefix_of_a_batch_is_refused_alike(codec):
    batch = build(SMALL, codec)
    for cut in range(len(batch)):
        for name in ("read_header", "check_batch"):
            found = agree(name, batch[:cut])
            if name == "check_batch" or cut < 61:
                assert found == f"CorruptRecord: {found[15:]}"
        assert validate(batch[:cut]).error != 0
    assert agree("check_batch", batch + b"\0").size_bytes == len(batch)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"magic": 1}, "batch at 0: magic 1, must be 2"),
        ({"magic": -1}, "batch at 0: magic -1, must be 2"),
        ({"batch_length": 48}, "batch at 0: batch_length 48 is less than its header"),
        (
            {"batch_length": -(2**31)},
            "batch at 0: batch_length -2147483648 is less than its header",
        ),
        ({"batch_length": 2**31 - 1}, "bytes are there, it takes 2147483659"),
        ({"crc": 0}, "says 00000000"),
        ({"base_offset": -1}, "contradict"),
        ({"base_offset": 2**63 - 3}, "contradict"),
        ({"last_offset_delta": -1}, "contradict"),
        ({"last_offset_delta": 1}, "contradict"),
        ({"records_count": -1}, "contradict"),
        ({"records_count": 4}, "contradict"),
        ({"records_count": 9, "last_offset_delta": 9}, "contradict"),
    ],
)
def test_header_that_contradicts_the_batch_is_refused(fields, text):
    found = agree("check_batch", stamped(build(SMALL), **fields))
    assert found.startswith("CorruptRecord: batch at 0: ")
    assert text in found


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 2**63 - 4},
        {"last_offset_delta": 2**31 - 1},  # what compaction leaves
        {"records_count": 0},
        {"partition_leader_epoch": -7, "crc": crc32c(build(SMALL)[21:])},
    ],
)
def test_header_that_compaction_or_a_leader_may_leave_is_accepted(fields):
    assert agree("check_batch", stamped(build(SMALL), **fields)).records_count in (0, 3)


@pytest.mark.parametrize("pos", [-1, 10])
@pytest.mark.parametrize("name", ["read_header", "check_batch"])
def test_position_outside_the_buffer_is_a_value_error(name, pos):
    found = agree(name, b"123456789", pos)
    assert found == f"ValueError: position {pos} is outside the buffer of 9 bytes"


def test_scan_finds_every_batch_and_refuses_a_cut_tail():
    batches = [build(SMALL, codec, base_offset=codec * 3) for codec in CODECS]
    found = agree("scan", b"".join(batches))
    assert [header.base_offset for header in found] == [0, 3, 6, 9, 12]
    assert [header.codec for header in found] == list(CODECS)
    assert agree("scan", b"") == []
    tail = len(b"".join(batches))
    cut = agree("scan", b"".join(batches) + batches[0][:70])
    assert cut == f"CorruptRecord: batch at {tail}: 70 bytes are there, it takes {len(batches[0])}"


def test_whole_ends_before_the_batch_that_is_cut():
    batches = [build(SMALL, codec, base_offset=codec * 3) for codec in CODECS]
    data = b"".join(batches)
    assert agree("whole", data, 0) == (len(data), 15)
    assert agree("whole", data, 20) == (len(data), 20)
    assert agree("whole", b"", 7) == (0, 7)
    for cut in range(1, len(batches[-1])):
        assert agree("whole", data[:-cut], 0) == (len(data) - len(batches[-1]), 12)


@pytest.mark.parametrize(("base", "delta"), [(-1, 0), (0, -1), (2**63 - 1, 0), (2**63 - 3, 2)])
def test_whole_refuses_offsets_that_make_no_sense(base, delta):
    found = agree("whole", stamped(build(SMALL), base_offset=base, last_offset_delta=delta), 0)
    assert found.startswith("CorruptRecord: batch at 0: base_offset")


# -- validation ------------------------------------------------------------------------------------


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
        (b"\0" * 16, 87, "16 bytes are there"),
        (b"\0" * 17, 87, "magic 0"),
        (stamped(MORE, magic=1), 87, "magic 1"),
        (stamped(MORE, magic=3), 2, "magic 3"),
        (stamped(MORE, magic=-1), 2, "magic -1"),
        (MORE[:60], 87, "60 bytes are there"),
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


# -- restamping ------------------------------------------------------------------------------------


def restamp(name: str, data: bytes, *args):
    results = []
    for engine in ENGINES:
        copy = bytearray(data)
        results.append((answer(getattr(engine, name), copy, *args), bytes(copy)))
    assert results[0] == results[1]
    return results[0]


def test_restamping_offsets_leaves_the_crc_right():
    _, batch = restamp("restamp_offsets", b"12" + build(SMALL), 77, 5, 2)
    header = native.check_batch(batch, 2)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (77, 5, 79)


def test_restamping_append_time_sets_the_bit_and_the_crc():
    _, batch = restamp("restamp_append_time", build(SMALL, 4), 99)
    header = native.check_batch(batch)
    assert (header.attributes, header.max_timestamp) == (0x0C, 99)


def test_restamping_max_timestamp_changes_nothing_else():
    _, batch = restamp("restamp_max_timestamp", build(SMALL), 99)
    assert batch == stamped(build(SMALL), max_timestamp=99)
    assert restamp("restamp_max_timestamp", batch, 99) == (None, batch)


@pytest.mark.parametrize(
    "name_and_args",
    [("restamp_offsets", 1, 1), ("restamp_append_time", 1), ("restamp_max_timestamp", 1)],
)
def test_restamping_a_cut_batch_writes_nothing(name_and_args):
    name, *args = name_and_args
    for data in (b"", build(SMALL)[:60], build(SMALL)[:-1], stamped(build(SMALL), batch_length=-1)):
        found, after = restamp(name, data, *args)
        assert found.startswith("CorruptRecord")
        assert after == data
    for engine in ENGINES:
        with pytest.raises((BufferError, TypeError)):
            getattr(engine, name)(build(SMALL), *args)


# -- damage ----------------------------------------------------------------------------------------


def check_all(data: bytes) -> None:
    agree("read_header", data)
    agree("check_batch", data)
    agree("scan", data)
    agree("whole", data, 0)
    agree("validate_produced", data, **RULES)


def test_damaged_batches_get_one_answer():
    originals = [build(SMALL, codec) for codec in CODECS]
    assert forked(check_all, damaged(originals, 400, run_seed())) > 800


@settings(max_examples=200)
@given(st.binary(max_size=80))
@example(b"\xff" * 61)
def test_junk_gets_one_answer(data):
    agree("scan", data)
    agree("whole", data, 0)
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


def test_corrupt_record_carries_kafkas_code():
    with pytest.raises(CorruptRecord) as caught:
        native.check_batch(b"")
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
