"""`rows` and its twin make the same batches of the same columns, and refuse the same."""

from __future__ import annotations

import itertools
import random
import struct
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import columns as native_columns
from plog._native import records as native_records
from plog._native import rows as native
from plog._reference import records as reference_records
from plog._reference import rows as reference
from plog.client.partitioner import partition_for_key
from tests.arrow_rows import columns_of, rows_of, table

from .batches import NOW_MS, answer, build, maybe_bytes
from .harness import forked, mutations, run_seed

ENGINES = [(native, native_records), (reference, reference_records)]
PARTITIONS = 5

headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=9)}),
    max_size=3,
)
arrow_rows = st.fixed_dictionaries(
    {},
    optional={
        "key": maybe_bytes,
        "value": maybe_bytes,
        "headers": headers,
        "partition": st.none() | st.integers(0, PARTITIONS - 1),
        "timestamp_ms": st.none() | st.integers(0, 2**40) | st.just(2**63 - 1),
    },
)
names = st.lists(
    st.sampled_from(["key", "value", "headers", "partition", "timestamp_ms"]), unique=True
)

SMALL = [
    {"key": b"k1", "value": b"value", "partition": 3, "timestamp_ms": 5},
    {"value": b"", "headers": [{"key": "h", "value": b"1"}, {"key": "é", "value": None}]},
    {"key": b"", "headers": []},
    {"key": b"k2", "value": b"x" * 70, "timestamp_ms": NOW_MS},
    {},
    {"key": b"k2", "headers": [{"key": "", "value": b""}], "partition": 0},
]


def plain(array) -> tuple[int, dict, dict]:
    """Return what `columns_of` does, as bytes that both engines can hold."""
    rows, columns, array_offsets = columns_of(array)
    return (
        rows,
        {
            name: [None if buffer is None else bytes(buffer) for buffer in buffers]
            for name, buffers in columns.items()
        },
        array_offsets,
    )


def run(engine, records, rows, columns, array_offsets, limit=200, sticky=PARTITIONS):
    """Make batches of the rows, as a producer does; return them and what is told of the rows."""
    held = engine.RowColumns(rows, columns, array_offsets)
    partitions = held.partitions(PARTITIONS, sticky)
    order, starts = engine.group(partitions, PARTITIONS + 1)
    batches = []
    for start, end in itertools.pairwise(starts):
        at = start
        while at < end:
            builder = records.BatchBuilder()
            if at % 2:
                builder.append(NOW_MS, b"there", b"before", [("é", None)])
            before = len(builder)
            taken = held.fill(builder, order, at, end, NOW_MS, limit)
            assert len(builder) == before + taken - at
            assert len(builder) == 1 or builder.uncompressed_bytes <= limit or taken == at
            batches.append((at, taken, builder.uncompressed_bytes, bytes(builder.build())))
            at = max(taken, at + 1)
    told = (len(held), held.largest, held.placed, held.largest_partition)
    return told, bytes(partitions), bytes(order), starts, batches


def agree(*args, **kwargs):
    found, expected = (answer(run, *engine, *args, **kwargs) for engine in ENGINES)
    assert found == expected
    return found


def record(row: dict) -> tuple:
    given = row.get("timestamp_ms")
    return (
        NOW_MS if given is None else given,
        row.get("key"),
        row.get("value"),
        [(header["key"], header["value"]) for header in row.get("headers") or ()],
    )


def ints(column: bytes) -> list[int]:
    return [value for (value,) in struct.iter_unpack("=i", column)]


# -- rows become records ---------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.lists(arrow_rows, max_size=12), names, st.integers(0, 3), st.integers(0, 400))
def test_batches_of_columns_are_those_of_the_records(rows, kept, skipped, limit):
    batch = table(rows, kept)[skipped:]
    rows = [{name: row[name] for name in kept if name in row} for row in rows[skipped:]]
    if not kept:
        rows = []
    _, partitions, order, starts, batches = agree(*plain(batch), limit=limit)
    assert ints(partitions) == [
        row["partition"]
        if row.get("partition") is not None
        else PARTITIONS
        if row.get("key") is None
        else partition_for_key(row["key"], PARTITIONS)
        for row in rows
    ]
    of = ints(partitions)
    assert ints(order) == sorted(range(len(rows)), key=of.__getitem__)
    assert starts == [sum(p < start for p in of) for start in range(PARTITIONS + 2)]
    for at, taken, _, built in batches:
        head = [(NOW_MS, b"there", b"before", [("é", None)])] if at % 2 else []
        wanted = [record(rows[index]) for index in ints(order)[at:taken]]
        assert built == native_records.build_batch(head + wanted)


@pytest.mark.parametrize(("engine", "records"), ENGINES)
def test_rows_are_taken_up_to_the_limit_and_the_next_call_goes_on(engine, records):
    sizes = [len(native_records.build_batch([record(row)] * 1)) for row in SMALL]
    whole = native_records.build_batch([record(row) for row in SMALL])
    held = engine.RowColumns(*plain(table(SMALL)))
    order = struct.pack("=6i", *range(6))
    for limit in range(len(whole) + 2):
        builder = records.BatchBuilder()
        taken = held.fill(builder, order, 0, 6, NOW_MS, limit)
        fitting = [
            n
            for n in range(1, 7)
            if len(native_records.build_batch([record(row) for row in SMALL[:n]])) <= limit
        ]
        assert taken == max(fitting, default=1)
        if builder.uncompressed_bytes > limit:
            assert builder.uncompressed_bytes == sizes[0]
        assert held.fill(builder, order, taken, 6, NOW_MS, 1 << 20) == 6
        assert builder.build() == whole


def test_what_the_columns_kernel_gives_goes_in_as_it_is():
    sent = [
        (NOW_MS, b"k", b"v", ()),
        (NOW_MS, None, None, [("h", None), ("é", b"\xff")]),
        (NOW_MS, b"", b"", ()),
    ]
    reader = native_columns.ColumnBuilder(frozenset({"key", "value", "headers"}), "t", 0)
    reader.append(build(sent), 0, 1 << 40)
    held = native.RowColumns(len(reader), reader.take())
    builder = native_records.BatchBuilder()
    order, _ = native.group(held.partitions(1, 0), 1)
    assert held.fill(builder, order, 0, 3, NOW_MS, 1 << 20) == 3
    assert builder.build() == native_records.build_batch(sent)


def test_rows_may_be_many_and_their_order_is_kept():
    rows, groups = 100_000, 7
    keys = [b"%d" % (n % 1000) for n in range(rows)]
    held = rows_of(table([{"key": key, "value": b"%d" % n} for n, key in enumerate(keys)]))
    partitions = held.partitions(groups, 0)
    order, starts = native.group(partitions, groups)
    of = ints(bytes(partitions))
    assert of == [partition_for_key(key, groups) for key in keys]
    assert ints(bytes(order)) == sorted(range(rows), key=of.__getitem__)
    assert starts[-1] == rows


@pytest.mark.parametrize(("engine", "records"), ENGINES)
def test_no_rows_need_no_buffers(engine, records):
    held = engine.RowColumns(0, {"key": [None] * 3, "value": [b"", b"", None]})
    assert (len(held), held.largest, held.placed, held.largest_partition) == (0, (0, 0), 0, -1)
    order, starts = engine.group(held.partitions(3, 3), 4)
    assert (bytes(order), starts) == (b"", [0] * 5)
    assert held.fill(records.BatchBuilder(), order, 0, 0, NOW_MS, 100) == 0


@pytest.mark.parametrize(("engine", "records"), ENGINES)
def test_largest_row_is_told_with_at_least_its_bytes(engine, records):
    del records
    held = engine.RowColumns(*plain(table(SMALL)))
    row, size = held.largest
    assert (row, size) == (3, 72)
    wide = [*SMALL, {"headers": [{"key": "h" * 300, "value": None}]}]
    row, size = engine.RowColumns(*plain(table(wide))).largest
    assert row == 6
    assert 302 <= size <= 320


# -- what is refused -------------------------------------------------------------------------------

TEN = struct.pack("=11i", *range(11))


@pytest.mark.parametrize(
    ("offsets", "row"),
    [
        ((-1, 0, 1), 0),
        ((0, 2, 1), 1),
        ((0, 1, 11), 1),
        ((2, 1, 1), 0),
        ((0, -(2**31), 0), 0),
        ((2**31 - 1, 2**31 - 1, 2**31 - 1), 0),
    ],
)
@pytest.mark.parametrize("column", ["key", "value", "headers", "headers.key", "headers.value"])
def test_offsets_that_leave_the_data_are_refused(column, offsets, row):
    columns = {
        "key": [None, TEN, b"0123456789"],
        "value": [None, TEN, b"0123456789"],
        "headers": [None, struct.pack("=3i", 0, 1, 2)],
        "headers.key": [None, TEN, b"0123456789"],
        "headers.value": [None, TEN, b"0123456789"],
    }
    columns[column][1] = struct.pack("=3i", *offsets)
    found = agree(2, columns, {})
    if column == "headers":
        assert found == f"ValueError: row {row}: its headers are not within the items"
    elif column.startswith("headers."):
        what = column.removeprefix("headers.")
        assert found == f"ValueError: row {row}: a header's {what} is not within the data"
    else:
        assert found == f"ValueError: row {row}: its {column} is not within the data"


@pytest.mark.parametrize(
    ("rows", "columns", "array_offsets", "text"),
    [
        (-1, {}, {}, "-1 rows"),
        (2**31 - 1, {}, {}, "2147483647 rows"),
        (1, {"topic": []}, {}, "unknown column topic"),
        (1, {}, {"topic": 1}, "unknown column topic"),
        (1, {"key": [None, TEN]}, {}, "key: 2 buffers, not 3"),
        (1, {"headers": [None, TEN]}, {}, "headers need their keys and values"),
        (1, {"headers.key": [None, TEN, b""]}, {}, "headers need their keys and values"),
        (1, {"key": [None, TEN, b""]}, {"key": -1}, "key: begins at -1"),
        (1, {"key": [None, TEN, b""]}, {"key": 2**31}, "key: begins at 2147483648"),
        (11, {"key": [None, TEN, b"0123456789"]}, {}, "key: 10 values for 11 rows"),
        (10, {"value": [None, TEN, b""]}, {"value": 1}, "value: 9 values for 10 rows"),
        (1, {"value": [None, TEN, b""]}, {"value": 99}, "value: 0 values for 1 rows"),
        (9, {"key": [b"\xff", TEN, b"0123456789"]}, {}, "key: 8 values for 9 rows"),
        (1, {"key": [None, None, None]}, {}, "key: 0 values for 1 rows"),
        (1, {"key": [b"", TEN, b""]}, {}, "key: 0 values for 1 rows"),
        (3, {"partition": [None, b"\0" * 11]}, {}, "partition: 2 values for 3 rows"),
        (2, {"timestamp_ms": [None, b"\0" * 8]}, {}, "timestamp_ms: 1 values for 2 rows"),
        (1, {"partition": [None, b"\xff" * 4]}, {}, "row 0: its partition is negative"),
        (1, {"timestamp_ms": [None, b"\xff" * 8]}, {}, "row 0: its timestamp is before 1970"),
        (
            2,
            {"partition": [None, b"\0" * 4 + b"\5\0\0\0"]},
            {},
            "row 1: its partition is not one of 5",
        ),
    ],
)
def test_columns_that_make_no_sense_are_refused(rows, columns, array_offsets, text):
    assert agree(rows, columns, array_offsets) == f"ValueError: {text}"


@pytest.mark.parametrize("null", ["key", "struct"])
def test_header_without_a_key_is_refused(null):
    header = {"key": None, "value": b"x"} if null == "key" else None
    batch = table([{"value": b"1"}, {"headers": [{"key": "h", "value": b""}, header]}])
    assert agree(*plain(batch)) == "ValueError: row 1: a header has no key"


def test_null_list_has_no_headers_whatever_its_items():
    lists = pa.array([[{"key": None, "value": b"x"}]], table([]).schema.field("headers").type)
    rows, columns, array_offsets = plain(pa.RecordBatch.from_arrays([lists], names=["headers"]))
    columns["headers"][0] = b"\0"
    (_, _, _, _, batches) = agree(rows, columns, array_offsets)
    assert batches[0][3] == native_records.build_batch([(NOW_MS, None, None, ())])


@pytest.mark.parametrize(("engine", "records"), ENGINES)
@pytest.mark.parametrize(
    ("places", "text"),
    [
        ((-1, 1), "places -1 to 1 of 6"),
        ((2, 1), "places 2 to 1 of 6"),
        ((0, 7), "places 0 to 7 of 6"),
        ((0, 5), "row 6: it does not exist"),
        ((5, 6), "row -1: it does not exist"),
    ],
)
def test_order_that_names_no_row_is_refused_and_the_batch_is_as_it_was(
    engine, records, places, text
):
    held = engine.RowColumns(*plain(table(SMALL)))
    order = struct.pack("=6i", 0, 1, 2, 3, 6, -1)
    builder = records.BatchBuilder()
    builder.append(NOW_MS, None, b"first")
    before = builder.build()
    assert answer(held.fill, builder, order, *places, NOW_MS + 7, 1 << 20) == f"ValueError: {text}"
    assert builder.build() == before
    assert held.fill(builder, order, 0, 4, NOW_MS, 1 << 20) == 4


@pytest.mark.parametrize(("engine", "records"), ENGINES)
def test_timestamp_too_far_from_the_first_is_refused(engine, records):
    held = engine.RowColumns(*plain(table([{"timestamp_ms": 2**63 - 1}])))
    builder = records.BatchBuilder()
    builder.append(-2, None, None)
    before = builder.build()
    found = answer(held.fill, builder, b"\0" * 4, 0, 1, NOW_MS, 1 << 20)
    assert found.endswith("is too far from -2")
    assert builder.build() == before


@pytest.mark.parametrize(
    ("partitions", "groups", "text"),
    [
        (b"", 0, "0 groups"),
        (b"\0" * 5, 1, "5 bytes are not a column of int32"),
        (struct.pack("=3i", 0, 2, 1), 2, "row 1: its partition is not one of 2"),
        (struct.pack("=3i", 0, 1, -1), 2, "row 2: its partition is not one of 2"),
    ],
)
def test_partitions_that_are_none_of_the_groups_are_refused(partitions, groups, text):
    found = [answer(engine.group, partitions, groups) for engine, _ in ENGINES]
    assert found == [f"ValueError: {text}"] * 2


def test_topic_needs_a_partition():
    found = [
        answer(engine.RowColumns(*plain(table(SMALL))).partitions, 0, 0) for engine, _ in ENGINES
    ]
    assert found == ["ValueError: a topic of 0 partitions"] * 2


# -- damage ----------------------------------------------------------------------------------------


def damaged(count: int, seed: int) -> Iterator[tuple]:
    """Yield columns of which one buffer, a number of rows or an array's offset is wrong."""
    chance = random.Random(seed)
    originals = [plain(table(SMALL)), plain(table(SMALL)[1:]), plain(table(SMALL * 9)[5:])]
    for number in range(count):
        rows, columns, array_offsets = chance.choice(originals)
        columns = {name: list(buffers) for name, buffers in columns.items()}
        name = chance.choice(list(columns))
        at = chance.randrange(len(columns[name]))
        match chance.randrange(8):
            case 0:
                rows += chance.choice([-1, 1, 8, 2**20])
            case 1:
                array_offsets = array_offsets | {name: chance.choice([0, 1, 7, 64, 2**31 - 2])}
            case 2:
                columns[name][at] = None
            case _:
                held = columns[name][at]
                columns[name][at] = next(
                    mutations([b"\xff\0" if held is None else held], 1, seed + number)
                )
        yield rows, columns, array_offsets


def check(case: tuple) -> None:
    agree(*case)


def test_damaged_columns_get_one_answer():
    assert forked(check, list(damaged(3000, run_seed()))) == 3000


def test_buffers_that_change_meanwhile_are_read_within_their_bounds():
    """Whoever writes to a buffer gets other rows or an error, and never other memory."""
    rows, columns, array_offsets = plain(table(SMALL * 200))
    columns = {
        name: [None if one is None else bytearray(one) for one in buffers]
        for name, buffers in columns.items()
    }
    good = {name: [None if one is None else bytes(one) for one in b] for name, b in columns.items()}
    seed = run_seed()

    def write(stop: threading.Event) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            name = chance.choice(list(columns))
            at = chance.randrange(len(columns[name]))
            if columns[name][at]:
                place = chance.randrange(len(columns[name][at]))
                columns[name][at][place] = chance.randrange(256)
                if chance.random() < 0.5:
                    columns[name][at][:] = good[name][at]

    def mangle(_: int) -> None:
        for name, buffers in good.items():
            for at, one in enumerate(buffers):
                if one is not None:
                    columns[name][at][:] = one
        held = native.RowColumns(rows, columns, array_offsets)
        order = struct.pack(f"={rows}i", *range(rows))
        stop = threading.Event()
        writer = threading.Thread(target=write, args=(stop,))
        writer.start()
        for _ in range(20):
            builder = native_records.BatchBuilder()
            for call in (
                lambda: held.partitions(5, 5),
                lambda b=builder: held.fill(b, order, 0, rows, NOW_MS, 1 << 20),
            ):
                found = answer(call)
                assert not isinstance(found, str) or found.startswith("ValueError: row ")
            if len(builder):
                native_records.walk(builder.build())
        stop.set()
        writer.join()

    assert forked(mangle, range(10)) == 10
