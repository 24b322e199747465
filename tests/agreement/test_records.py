"""`records` and its twin give the same answers, and other libraries read what they build."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from plog._native import batch as native_batch
from plog._native import records as native
from plog._native import validation
from plog._reference import records as reference

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
TWIN_CODECS = [0, 1, 2, 3]
"""Those which the twin can write."""


def agree(name: str, *args, **kwargs):
    expected = answer(getattr(reference, name), *args, **kwargs)
    found = answer(getattr(native, name), *args, **kwargs)
    assert found == expected
    return found


def plain(records):
    """Records as `walk` returns them, less what the batch adds."""
    return [(timestamp, key, value, tuple(headers)) for timestamp, key, value, headers in records]


def walked(records):
    return [(r.timestamp, r.key, r.value, r.headers) for r in records]


# -- reading ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(record_lists, st.sampled_from(CODECS), st.integers(0, 2**62))
def test_records_of_another_library_are_read(records, codec, base_offset):
    found = agree("walk", build(records, codec, base_offset=base_offset))
    assert walked(found) == plain(records)
    assert [r.offset for r in found] == [base_offset + i for i in range(len(records))]
    assert {r.timestamp_type for r in found} == {0}


def test_append_time_is_the_timestamp_of_every_record():
    found = agree("walk", stamped(build(SMALL), attributes=0x08, max_timestamp=77))
    assert [(r.timestamp, r.timestamp_type) for r in found] == [(77, 1)] * 3


def test_compacted_batch_keeps_its_offsets():
    batch = with_records(
        stamped(build(SMALL[:2]), last_offset_delta=9, base_offset=100),
        raw_record(offset_delta=3) + raw_record(offset_delta=9),
    )
    assert [r.offset for r in agree("walk", batch)] == [103, 109]


def test_emptied_batch_has_no_records():
    batch = with_records(stamped(build(SMALL), records_count=0), b"")
    assert agree("walk", batch) == []


def test_header_key_that_is_no_utf8_gets_replacement_characters():
    batch = with_records(build(SMALL[:1]), raw_record(rest=b"\x01\x01\x02\x04h\xff\x01"))
    assert agree("walk", batch)[0].headers == (("h�", None),)


@pytest.mark.parametrize("name", MALFORMED_RECORDS)
def test_malformed_records_are_corrupt(name):
    found = agree("walk", malformed(name))
    if name == "attributes":  # Kafka's readers do not look at them
        assert len(found) == 2
    else:
        assert found.startswith("CorruptRecord: ")


@pytest.mark.parametrize("codec", CODECS)
def test_every_prefix_is_refused(codec):
    batch = build(SMALL, codec)
    for cut in range(len(batch)):
        assert agree("walk", batch[:cut]).startswith("CorruptRecord: batch at 0: ")
    assert walked(agree("walk", batch + b"tail")) == plain(SMALL)
    assert walked(agree("walk", b"head" + batch, pos=4)) == plain(SMALL)


@pytest.mark.parametrize("pos", [-1, 4])
def test_position_outside_the_buffer_is_a_value_error(pos):
    assert agree("walk", b"123", pos=pos).startswith("ValueError: position ")


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_beyond_the_limit_are_refused(codec):
    batch = build([(NOW_MS, None, b"x" * 3000, ())], codec)
    size = len(build([(NOW_MS, None, b"x" * 3000, ())])) - 61
    assert len(agree("walk", batch, decompressed_limit=size)) == 1
    found = agree("walk", batch, decompressed_limit=size - 1)
    assert found == f"CorruptRecord: records take more than {size - 1} bytes uncompressed"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec):
    found = agree("walk", stamped(build(SMALL), attributes=codec))
    assert found == f"CorruptRecord: codec {codec} is unknown"


def check_walk(data: bytes) -> None:
    agree("walk", data, decompressed_limit=1 << 20)


def test_damaged_batches_get_one_answer():
    originals = [build(SMALL, codec) for codec in CODECS]
    assert forked(check_walk, damaged(originals, 500, run_seed())) > 1000


# -- building --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(record_lists, st.sampled_from(TWIN_CODECS), st.booleans(), st.booleans())
def test_built_batches_are_the_same(records, codec, log_append_time, transactional):
    ours, twins = (
        engine.build_batch(
            records,
            codec=codec,
            base_offset=5,
            leader_epoch=3,
            log_append_time=log_append_time,
            producer_id=9,
            producer_epoch=2,
            base_sequence=4,
            transactional=transactional,
        )
        for engine in ENGINES
    )
    if codec == 0:
        assert ours == twins
    # Compressors may differ, but in nothing else.
    assert ours[12:17] + ours[21:61] == twins[12:17] + twins[21:61]
    assert native.walk(ours) == native.walk(twins) == reference.walk(ours)
    header = native_batch.check_batch(ours)
    assert header.records_count == len(records) == header.last_offset_delta + 1
    assert header.base_timestamp == records[0][0]
    assert header.max_timestamp == max(record[0] for record in records)
    assert (header.base_offset, header.partition_leader_epoch) == (5, 3)
    assert (header.is_transactional, header.is_log_append_time) == (transactional, log_append_time)
    if not log_append_time:
        assert walked(native.walk(ours)) == plain(records)


@settings(max_examples=40)
@given(record_lists)
def test_built_batch_is_what_another_library_builds(records):
    ours = native.build_batch(records)
    theirs = build(records)
    # kafka-python stamps leader epoch 0, which is the broker's to say and outside the CRC.
    assert stamped(theirs, partition_leader_epoch=-1) == ours


@pytest.mark.parametrize("codec", CODECS)
def test_built_batch_is_read_by_aiokafka(codec):
    batch = native.build_batch(SMALL, codec=codec)
    found = DefaultRecordBatch(bytearray(batch))
    assert found.validate_crc()
    assert plain((r.timestamp, r.key, r.value, r.headers) for r in found) == plain(SMALL)


@pytest.mark.parametrize("codec", [0, 1])
def test_built_batch_is_read_by_kafka_python(codec):
    batch = native.build_batch(SMALL, codec=codec)
    found = KafkaPythonBatch(batch)
    assert found.validate_crc()
    assert plain((r.timestamp, r.key, r.value, r.headers) for r in found) == plain(SMALL)


@pytest.mark.parametrize(
    ("engine", "codec"),
    [(native, codec) for codec in CODECS] + [(reference, codec) for codec in TWIN_CODECS],
)
def test_built_batch_passes_validation(engine, codec):
    batch = engine.build_batch(SMALL, codec=codec)
    found = validation.validate_produced(
        batch,
        now_ms=NOW_MS,
        before_max_ms=10,
        after_max_ms=10,
        log_append_time=False,
        key_required=False,
        decompressed_limit=1 << 20,
    )
    assert (found.error, found.max_timestamp) == (0, NOW_MS + 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_builder_counts_what_it_holds(engine):
    builder = engine.BatchBuilder()
    assert (len(builder), builder.uncompressed_bytes) == (0, 61)
    sizes = [builder.append(*record) for record in SMALL]
    assert len(builder) == 3
    assert sizes[-1] == builder.uncompressed_bytes == len(builder.build())
    assert builder.build() == builder.build()


@pytest.mark.parametrize("engine", ENGINES)
def test_producer_may_be_set_before_the_batch_is_built(engine):
    builder = engine.BatchBuilder()
    builder.append(NOW_MS, None, b"")
    first = native_batch.check_batch(builder.build())
    builder.set_producer(7, 1, 40)
    second = native_batch.check_batch(builder.build())
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (-1, -1, -1)
    assert (second.producer_id, second.producer_epoch, second.base_sequence) == (7, 1, 40)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_keys_values_and_headers_may_be_any_buffer(engine, make):
    builder = engine.BatchBuilder()
    builder.append(NOW_MS, make(b"key"), make(b"value"), [("h", make(b"1"))])
    assert walked(native.walk(builder.build())) == [(NOW_MS, b"key", b"value", (("h", b"1"),))]


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_every_varint_width_are_read_back(engine):
    sizes = [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 2**20 - 1, 2**20, 2**20 + 1]
    records = [(NOW_MS + size**3, b"k" * size, b"v" * size, ()) for size in sizes]
    records += [(NOW_MS - size**3, None, None, [("h" * size, b"x" * size)]) for size in sizes]
    assert walked(native.walk(engine.build_batch(records))) == plain(records)


@pytest.mark.parametrize("engine", ENGINES)
def test_offset_deltas_of_many_records_are_read_back(engine):
    records = [(NOW_MS + i * 1000, None, None, ()) for i in range(20_000)]
    found = native.walk(engine.build_batch(records))
    assert [(r.offset, r.timestamp) for r in found] == [
        (i, NOW_MS + i * 1000) for i in range(20_000)
    ]


def append_after(engine, first: int, second: int):
    builder = engine.BatchBuilder()
    builder.append(first, None, None)
    return builder.append(second, None, None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (-1, 2**63 - 1),
        (1, -(2**63)),
        (-(2**63), 2**63 - 1),
        (0, 2**63 - 1),
        (0, -(2**63)),
        (-(2**63), -1),
    ],
)
def test_timestamps_too_far_apart_are_refused(first, second):
    found = [answer(append_after, engine, first, second) for engine in ENGINES]
    assert found[0] == found[1]
    fits = -(2**63) <= second - first < 2**63
    assert fits == isinstance(found[0], int)
    assert fits or found[0] == f"ValueError: timestamp {second} is too far from {first}"


def test_batch_without_records_is_not_built():
    assert agree("build_batch", []) == "ValueError: a batch needs a record"


@pytest.mark.parametrize("arguments", [{"codec": 9}, {"codec": 5}, {"codec": 1, "level": 99}])
def test_unknown_codec_or_level_is_refused_at_once(arguments):
    assert agree("BatchBuilder", **arguments).startswith("ValueError: ")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        ("text", None, ()),
        (None, "text", ()),
        (None, None, [("h", "text")]),
        (None, None, [(b"h", b"")]),
    ],
)
def test_wrong_types_are_refused_and_leave_the_builder_as_it_was(engine, key, value, headers):
    builder = engine.BatchBuilder()
    builder.append(*SMALL[0])
    with pytest.raises((TypeError, AttributeError)):
        builder.append(NOW_MS, key, value, headers)
    assert builder.build() == native.build_batch(SMALL[:1])


@pytest.mark.parametrize("abort", [False, True])
def test_marker_is_the_78_bytes_of_kafka(abort):
    marker = agree(
        "control_batch",
        abort=abort,
        offset=7,
        timestamp=NOW_MS,
        producer_id=9,
        producer_epoch=1,
        coordinator_epoch=3,
        leader_epoch=2,
    )
    golden = (
        "0000000000000007 00000042 00000002 02 {crc} 0030 00000000"
        "0000018bcfe56800 0000018bcfe56800 0000000000000009 0001 ffffffff 00000001"
        "20 00 00 00 08 0000000{type} 0c 000000000003 00"
    ).format(crc="00000000", type=0 if abort else 1)
    assert marker == stamped(bytes.fromhex(golden))
    assert len(marker) == 78
    header = native_batch.check_batch(marker)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
