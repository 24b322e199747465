"""`batch` and its twin give the same answers."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plog._native import batch as native
from plog._reference import batch as reference
from plog.errors import CorruptRecord, ErrorCode

from .batch_headers import crc32c, stamped
from .batches import (
    CODECS,
    NOW_MS,
    SMALL,
    answer,
    build,
    damaged,
)
from .harness import forked, run_seed

ENGINES = [native, reference]
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
        ({"batch_length": 2**31 - 1}, "bytes are left, it takes 2147483659"),
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
    size = len(batches[0])
    assert cut == f"CorruptRecord: batch at {tail}: only 70 bytes are left, it takes {size}"


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


def test_damaged_batches_get_one_answer():
    originals = [build(SMALL, codec) for codec in CODECS]
    assert forked(check_all, damaged(originals, 400, run_seed())) > 800


@settings(max_examples=200)
@given(st.binary(max_size=80))
@example(b"\xff" * 61)
def test_junk_gets_one_answer(data):
    agree("scan", data)
    agree("whole", data, 0)


def test_corrupt_record_carries_kafkas_code():
    with pytest.raises(CorruptRecord) as caught:
        native.check_batch(b"")
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
