"""`columns` and its twin give the same buffers; pyarrow reads from them what `walk` reads."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import columns as native
from plog._native import records as native_records
from plog._reference import columns as reference

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
ALL = frozenset(native.COLUMNS)
END = 2**62
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}


def arrow(count: int, taken) -> pa.RecordBatch:
    """Return the columns as pyarrow sees them, each checked in full."""
    buffers = {
        name: [None if buffer is None else pa.py_buffer(buffer) for buffer in column]
        for name, column in taken.items()
    }
    arrays = {}
    for name, kind in TYPES.items():
        if name not in buffers:
            continue
        children = None
        if name == "headers":
            items = len(buffers["headers.key"][1]) // 4 - 1
            key = pa.Array.from_buffers(pa.string(), items, buffers["headers.key"])
            value = pa.Array.from_buffers(pa.binary(), items, buffers["headers.value"])
            children = [pa.Array.from_buffers(HEADER, items, [None], children=[key, value])]
        arrays[name] = pa.Array.from_buffers(kind, count, buffers[name], children=children)
        arrays[name].validate(full=True)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def run(engine, script, columns=ALL):
    """Append as `script` says; return what append returned, the sizes and the buffers."""
    builder = engine.ColumnBuilder(columns, "tópic", 3)
    told = [builder.append(*args, **kwargs) for args, kwargs in script]
    sizes = (len(builder), builder.data_bytes)
    taken = {
        name: [None if buffer is None else bytes(buffer) for buffer in column]
        for name, column in builder.take().items()
    }
    assert (len(builder), builder.data_bytes) == (0, 0)
    return told, sizes, taken


def agree(*script, columns=ALL):
    expected = answer(run, reference, script, columns)
    found = answer(run, native, script, columns)
    assert found == expected
    return found


def call(*args, **kwargs):
    return args, kwargs


def rows(found):
    _, (count, _), taken = found
    return arrow(count, taken).to_pylist()


def offsets(found):
    return [row["offset"] for row in rows(found)]


def expected_rows(record_set: bytes, batches: list[bytes]):
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "tópic",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": record.timestamp_type,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for batch in batches
        for record in native_records.walk(batch)
    ]


def as_numbers(found):
    _, (count, _), taken = found
    batch = arrow(count, taken)
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


# -- layout ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.tuples(record_lists, st.sampled_from(CODECS)), min_size=1, max_size=4))
def test_columns_hold_what_walk_reads(batches):
    built, base = [], 10
    for records, codec in batches:
        built.append(build(records, codec, base_offset=base))
        base += len(records)
    found = agree(call(b"".join(built), 0, END))
    assert found[0] == [base]
    assert as_numbers(found) == expected_rows(b"".join(built), built)


@pytest.mark.parametrize("name", native.COLUMNS)
def test_only_the_wanted_columns_are_filled(name):
    found = agree(call(build(SMALL), 0, END), columns=frozenset({name}))
    assert {key.split(".")[0] for key in found[2]} == {name}
    assert arrow(3, found[2]).num_rows == 3


def test_no_column_at_all_counts_rows():
    assert agree(call(build(SMALL), 0, END), columns=frozenset()) == ([3], (3, 0), {})


def test_unknown_column_is_refused():
    for engine in ENGINES:
        with pytest.raises(ValueError, match="unknown column colour"):
            engine.ColumnBuilder(frozenset({"colour"}), "t", 0)


def test_empty_builder_hands_over_empty_columns():
    found = agree()
    assert rows(found) == []
    assert arrow(0, found[2]).num_rows == 0


def test_schema_is_the_one_spark_wants():
    t = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    header = t.StructType().add("key", t.StringType()).add("value", t.BinaryType())
    schema = (
        t.StructType()
        .add("key", t.BinaryType())
        .add("value", t.BinaryType())
        .add("topic", t.StringType())
        .add("partition", t.IntegerType())
        .add("offset", t.LongType())
        .add("timestamp", t.TimestampType())
        .add("timestampType", t.IntegerType())
        .add("headers", t.ArrayType(header))
    )
    found = agree(call(build(SMALL), 0, END))
    wanted = to_arrow_schema(schema, timezone="UTC")
    assert arrow(3, found[2]).schema.equals(wanted)


@pytest.mark.parametrize("count", [7, 8, 9, 15, 16, 17])
@pytest.mark.parametrize("null_at", [0, 6, 7, 8, 16])
def test_nulls_are_marked_wherever_they_stand(count, null_at):
    records = [(NOW_MS, None if i == null_at else b"k", b"v", ()) for i in range(count)]
    found = agree(call(build(records), 0, END))
    assert [row["key"] for row in rows(found)] == [record[1] for record in records]
    assert (found[2]["key"][0] is None) == (null_at >= count)
    assert found[2]["value"][0] is None


def test_record_without_headers_has_null_headers():
    records = [(NOW_MS, None, None, h) for h in ((), [("a", None)], (), [("b", b""), ("b", b"2")])]
    assert [row["headers"] for row in rows(agree(call(build(records), 0, END)))] == [
        None,
        [{"key": "a", "value": None}],
        None,
        [{"key": "b", "value": b""}, {"key": "b", "value": b"2"}],
    ]


def test_header_key_that_is_no_utf8_gets_replacement_characters():
    record = raw_record(rest=b"\x01\x01\x04\x04h\xff\x01\x06\xe4\xbd\xa0\x01")
    found = agree(call(with_records(build(SMALL[:1]), record), 0, END))
    assert [header["key"] for header in rows(found)[0]["headers"]] == ["h�", "你"]


@pytest.mark.parametrize(
    ("timestamp", "microseconds"),
    [
        (NOW_MS, NOW_MS * 1000),
        (-1, -1000),
        (2**63 // 1000, 2**63 // 1000 * 1000),
        (2**63 // 1000 + 1, 2**63 - 1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63) // 1000 + 1, (-(2**63) // 1000 + 1) * 1000),
        (-(2**63) // 1000, -(2**63)),
        (-(2**63), -(2**63)),
    ],
)
def test_timestamps_are_microseconds_as_far_as_they_go(timestamp, microseconds):
    found = agree(call(build([(timestamp, None, None, ())]), 0, END))
    assert as_numbers(found)[0]["timestamp"] == microseconds


def test_append_time_is_the_timestamp_of_every_row():
    batch = stamped(build(SMALL), attributes=0x08, max_timestamp=77)
    found = as_numbers(agree(call(batch, 0, END)))
    assert [(row["timestamp"], row["timestampType"]) for row in found] == [(77000, 1)] * 3


def test_buffers_outlive_their_builder_and_are_read_only():
    builder = native.ColumnBuilder(ALL, "t", 0)
    builder.append(build(SMALL), 0, END)
    taken = builder.take()
    builder.append(build([(5, b"other", b"other", ())] * 50), 0, END)
    del builder
    data = memoryview(taken["value"][2])
    assert data.readonly
    del taken
    assert data.tobytes() == b"value"


# -- which records are rows ------------------------------------------------------------------------


def log(codec: int = 0) -> bytes:
    """Offsets 10..12, 13..15 and, after a gap, 20..22."""
    return b"".join(build(SMALL, codec, base_offset=base) for base in (10, 13, 20))


LOG_OFFSETS = [10, 11, 12, 13, 14, 15, 20, 21, 22]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("start", [0, 10, 11, 12, 13, 15, 16, 18, 20, 22, 23, 30])
@pytest.mark.parametrize("end", [0, 9, 10, 11, 13, 14, 16, 17, 20, 21, 23, 30])
def test_rows_are_trimmed_to_the_offsets_asked_for(codec, start, end):
    found = agree(call(log(codec), start, end))
    assert offsets(found) == [offset for offset in LOG_OFFSETS if start <= offset < end]
    (after,) = found[0]
    if start >= end:
        assert after == start
    elif end <= 23:
        assert after == end
    else:
        assert after == max(start, 23)


def test_negative_start_is_refused():
    assert agree(call(log(), -1, 5)) == "ValueError: start_offset is -1"


def test_cut_batch_is_left_for_the_next_call():
    first = len(build(SMALL))
    for cut in range(len(log())):
        told, _, _ = found = agree(call(log()[:cut], 10, END))
        whole = cut // first
        assert told == [[10, 13, 16][whole]]
        assert offsets(found) == LOG_OFFSETS[: 3 * whole]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9, 10])
def test_rows_in_portions_are_all_the_rows(codec, limit):
    for engine in ENGINES:
        builder = engine.ColumnBuilder(ALL, "t", 0)
        next_offset, read = 0, []
        while True:
            before = next_offset
            next_offset = builder.append(log(codec), before, 23, max_rows=limit)
            count = len(builder)
            assert count <= limit
            read += [row["offset"] for row in arrow(count, builder.take()).to_pylist()]
            if next_offset == 23:
                break
            assert next_offset > before
        assert read == LOG_OFFSETS


def test_full_builder_takes_nothing_more():
    found = agree(call(log(), 0, END, 2), call(log(), 12, END, 2), call(log(), 12, END, 4))
    assert found[0] == [12, 12, 14]
    assert offsets(found) == [10, 11, 12, 13]


@pytest.mark.parametrize("max_bytes", [0, 1, 60, 61, 100, 150, 500, 5000])
def test_max_bytes_is_passed_by_one_row_at_most(max_bytes):
    for columns in (ALL, frozenset({"value"}), frozenset({"key", "headers"})):
        _, (count, size), _ = agree(call(log(), 0, END, max_bytes=max_bytes), columns=columns)
        if count:
            _, (_, before), _ = agree(call(log(), 0, END, max_rows=count - 1), columns=columns)
            assert before < max_bytes
        assert size >= max_bytes or count == len(LOG_OFFSETS) or count == 0


def test_held_batch_is_not_taken_for_another():
    one = build([(NOW_MS, b"a", b"1", ())] * 4, 1, base_offset=0)
    two = build([(NOW_MS, b"b", b"2", ())] * 4, 1, base_offset=0)
    found = agree(
        call(one, 0, END, 2),
        call(two, 2, END, 3),
        call(one, 3, END, 4),
        call(one, 0, END, 6),
        call(one, 2, END),
    )
    assert found[0] == [2, 3, 4, 2, 4]
    assert [row["value"] for row in rows(found)] == [b"1", b"1", b"2", b"1", b"1", b"1", b"1", b"1"]


def test_batches_before_the_start_are_not_read():
    broken = stamped(build(SMALL), crc=1)
    found = agree(call(broken + build(SMALL, base_offset=3), 3, END))
    assert offsets(found) == [3, 4, 5]
    assert agree(call(broken, 2, END)).startswith("CorruptRecord: batch at 0: CRC is ")


def test_batches_that_go_back_are_corrupt():
    found = agree(call(build(SMALL, base_offset=3) + build(SMALL, base_offset=5), 0, END))
    size = len(build(SMALL))
    assert found == (
        f"CorruptRecord: batch at {size}: base_offset 5 is below 6, where the batch before it ends"
    )


def test_rows_end_where_offsets_into_the_topic_would():
    builder = native.ColumnBuilder(ALL, "t" * 2**26, 0)
    batch = build([(NOW_MS, None, None, ())] * 40)
    assert builder.append(batch, 0, END) == 31
    assert builder.append(batch, 31, END) == 31
    assert len(builder) == 31


def test_threads_cannot_meet_in_one_builder():
    batch = native_records.build_batch([(NOW_MS, None, b"x" * 100, ())] * 200_000, codec=1)
    builder = native.ColumnBuilder(ALL, "t", 0)
    refused = []
    over = threading.Event()

    def disturb():
        while not over.is_set() and not refused:
            try:
                builder.append(b"", 0, END)
            except RuntimeError as error:
                refused.append(str(error))

    disturber = threading.Thread(target=disturb)
    disturber.start()
    rows = 0
    # It is expanded and decoded without the interpreter lock, for many milliseconds. On a busy
    # machine the other thread may get no turn meanwhile.
    while not refused and rows < 20 * 200_000:
        rows += builder.append(batch, 0, END)
    over.set()
    disturber.join()
    assert refused == ["another thread appends to this builder"]
    assert arrow(rows, builder.take()).num_rows == rows


# -- transactions ----------------------------------------------------------------------------------


def data(base: int, producer_id: int, transactional: bool = True, codec: int = 0) -> bytes:
    return build(
        SMALL[:1],
        codec,
        base_offset=base,
        producer=(producer_id, 0, 0),
        transactional=transactional,
    )


def marker(offset: int, producer_id: int, abort: bool) -> bytes:
    return native_records.control_batch(
        abort=abort,
        offset=offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
    )


TRANSACTIONS = b"".join(
    [
        data(0, 1),  # committed by 2
        data(1, 2),  # aborted by 4
        marker(2, 1, abort=False),
        data(3, 1),  # of a second transaction of producer 1, aborted by 6
        marker(4, 2, abort=True),
        data(5, 2),  # of a second transaction of producer 2, committed by 8
        marker(6, 1, abort=True),
        data(7, 3, transactional=False),
        marker(8, 2, abort=False),
    ]
)
ABORTED = [(2, 1), (1, 3)]


@pytest.mark.parametrize(
    ("aborted", "wanted"),
    [
        (None, [0, 1, 3, 5, 7]),
        ([], [0, 1, 3, 5, 7]),
        (ABORTED, [0, 5, 7]),
        (ABORTED[::-1], [0, 5, 7]),
        ([(3, 0)], [0, 1, 3, 5, 7]),  # 7 is not transactional
        ([(9, 9)], [0, 1, 3, 5, 7]),
    ],
)
def test_aborted_data_and_markers_give_no_rows(aborted, wanted):
    found = agree(call(TRANSACTIONS, 0, END, aborted=aborted))
    assert (found[0], offsets(found)) == ([9], wanted)


@pytest.mark.parametrize("start", range(10))
def test_transactions_are_known_wherever_reading_starts(start):
    found = agree(call(TRANSACTIONS, start, END, aborted=ABORTED))
    assert offsets(found) == [offset for offset in (0, 5, 7) if offset >= start]
    assert found[0] == [9]


def test_portions_of_a_fetch_agree_on_what_was_aborted():
    found = agree(*(call(TRANSACTIONS, n, n + 1, aborted=ABORTED) for n in range(9)))
    assert offsets(found) == [0, 5, 7]


def test_emptied_and_unknown_markers_end_nothing():
    emptied = with_records(stamped(marker(1, 1, abort=True), records_count=0), b"")
    other = with_records(marker(2, 1, abort=True), raw_record(rest=b"\x08\x00\x00\x00\x05\x01\x00"))
    found = agree(call(data(0, 1) + emptied + other + data(3, 1), 0, END, aborted=[(1, 0)]))
    assert offsets(found) == []
    assert found[0] == [4]


@pytest.mark.parametrize("rest", [b"\x01\x01\x00", b"\x06\x00\x00\x00\x01\x00", b"\x08\x00\x00"])
def test_marker_that_cannot_be_read_is_corrupt(rest):
    broken = with_records(marker(0, 1, abort=True), raw_record(rest=rest))
    assert agree(call(broken, 0, END, aborted=[])).startswith("CorruptRecord: ")
    assert agree(call(broken, 0, END))[0] == [1]


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MALFORMED_RECORDS)
def test_malformed_records_are_corrupt(name):
    found = agree(call(malformed(name), 0, END))
    if name != "attributes":
        assert found.startswith("CorruptRecord: ")


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_beyond_the_limit_are_corrupt(codec):
    batch = build([(NOW_MS, None, b"x" * 3000, ())], codec)
    for engine in ENGINES:
        builder = engine.ColumnBuilder(ALL, "t", 0, decompressed_limit=3000)
        found = answer(builder.append, batch, 0, END)
        assert found == "CorruptRecord: records take more than 3000 bytes uncompressed"


def check_columns(data: bytes) -> None:
    agree(call(data, 0, END))
    agree(call(data, 1, 5, 2, aborted=[(1, 0)]), call(data, 2, END, 3, aborted=[(1, 0)]))


def test_damaged_batches_get_one_answer():
    originals = [build(SMALL, codec) for codec in CODECS]
    originals += [log(), TRANSACTIONS, marker(0, 1, abort=True)]
    assert forked(check_columns, damaged(originals, 300, run_seed())) > 600
