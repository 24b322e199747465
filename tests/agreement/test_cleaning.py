"""The kernels of compaction against what Python makes of the same records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog._native import batch, cleaning, compression
from plog._native.offset_map import BYTES_PER_KEY, OffsetMap
from plog._native.records import Record, build_batch, control_batch, walk
from plog._reference import cleaning as twin_of
from plog._reference import offset_map as reference
from plog.errors import CorruptRecord

NOW_MS = 1_700_000_000_000
ROOM = 64 * BYTES_PER_KEY

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c" * 40])
RECORDS = st.lists(
    st.tuples(
        st.integers(-5_000_000_000, 5_000_000_000),
        KEYS,
        st.one_of(st.none(), st.binary(max_size=200)),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=20,
)
CODECS = st.sampled_from(range(5))


def made(
    records: list[tuple[int, bytes | None, bytes | None, list]], codec: int, base: int
) -> bytes:
    return build_batch(
        [(NOW_MS + at, key, value, headers) for at, key, value, headers in records],
        codec=codec,
        base_offset=base,
        leader_epoch=3,
        producer_id=7,
        producer_epoch=1,
        base_sequence=9,
    )


def map_of(entries: dict[bytes, int]) -> OffsetMap:
    """Return a map that says so; each key's last record is in a batch of its own."""
    found = OffsetMap(ROOM)
    for key, offset in entries.items():
        assert found.add_batch(build_batch([(0, key, b"", ())], base_offset=offset))
    return found


# -- the map ---------------------------------------------------------------------------------------


@given(records=RECORDS, codec=CODECS, base=st.integers(0, 1 << 40), skipped=st.integers(0, 5))
def test_map_holds_the_last_offset_of_each_key(
    records: list, codec: int, base: int, skipped: int
) -> None:
    found = OffsetMap(ROOM)
    assert found.add_batch(made(records, codec, base), base + skipped)
    expected = {
        key: base + n for n, (_, key, *_) in enumerate(records) if key is not None and n >= skipped
    }
    twin = reference.OffsetMap(ROOM)
    # What is compressed some Pythons cannot read without a library; the keys are the same.
    assert twin.add_batch(made(records, compression.NONE, base), base + skipped)
    assert found.count == twin.count == len(expected)
    for key in (b"", b"a", b"b", b"c" * 40, b"never"):
        assert found.latest(key) == twin.latest(key) == expected.get(key, -1)


def test_later_batches_win_and_earlier_ones_do_not() -> None:
    found = map_of({b"k": 10})
    assert found.add_batch(build_batch([(0, b"k", b"", ())], base_offset=20))
    assert found.add_batch(build_batch([(0, b"k", b"", ())], base_offset=5))
    assert (found.latest(b"k"), found.count) == (20, 1)


def test_a_map_that_is_full_says_so_and_goes_on_with_what_it_knows() -> None:
    found = OffsetMap(10 * BYTES_PER_KEY, 0.5)
    assert found.capacity == 5
    assert found.add_batch(build_batch([(0, bytes([n]), b"", ()) for n in range(5)]))
    assert not found.add_batch(build_batch([(0, b"x", b"", ())], base_offset=9))
    assert found.add_batch(build_batch([(0, b"\0", b"", ())], base_offset=9))
    assert (found.latest(b"\0"), found.latest(b"x")) == (9, -1)


def test_many_keys_are_all_told_apart() -> None:
    found = OffsetMap(20_000 * BYTES_PER_KEY)
    keys = [b"key %d" % n for n in range(15_000)]
    assert found.add_batch(build_batch([(0, key, b"", ()) for key in keys]))
    assert [found.latest(key) for key in keys] == list(range(15_000))


@pytest.mark.parametrize("arguments", [(0,), (BYTES_PER_KEY,), (1000, 0.0), (1000, 1.0)])
def test_memory_for_no_key_is_refused(arguments: tuple) -> None:
    with pytest.raises(ValueError, match="hold no key"):
        OffsetMap(*arguments)


# -- what is left of a batch -----------------------------------------------------------------------


def expected_of(
    found: list[Record], latest: dict[bytes, int], known_to: int, *, drop_tombstones: bool
) -> list[Record]:
    return [
        record
        for record in found
        if record.offset >= known_to
        or (
            record.key is not None
            and not (drop_tombstones and record.value is None)
            and latest.get(record.key, -1) <= record.offset
        )
    ]


@given(
    records=RECORDS,
    codec=CODECS,
    base=st.integers(0, 1000),
    latest=st.dictionaries(st.sampled_from([b"", b"a", b"b", b"c" * 40]), st.integers(0, 1030)),
    known_to=st.integers(0, 1100),
    drop=st.booleans(),
    horizon_ms=st.sampled_from([-1, NOW_MS + 5_000]),
)
def test_batch_keeps_what_is_not_superseded(
    records: list,
    codec: int,
    base: int,
    latest: dict[bytes, int],
    known_to: int,
    drop: bool,
    horizon_ms: int,
) -> None:
    data = made(records, codec, base)
    before, header = walk(data), batch.check_batch(data)
    expected = expected_of(before, latest, known_to, drop_tombstones=drop)
    found = cleaning.clean_batch(
        data, map_of(latest), known_to=known_to, drop_tombstones=drop, horizon_ms=horizon_ms
    )
    twin = reference.OffsetMap(ROOM)
    for key, offset in latest.items():
        twin.add_batch(build_batch([(0, key, b"", ())], base_offset=offset))
    if codec == compression.NONE:
        assert found == twin_of.clean_batch(
            data, twin, known_to=known_to, drop_tombstones=drop, horizon_ms=horizon_ms
        )
    assert found.records == len(expected)
    assert found.has_tombstones == any(record.value is None for record in expected)
    says_horizon = found.has_tombstones and horizon_ms >= 0
    if len(expected) == len(before) and not says_horizon:
        assert found.data is None
        return
    if not expected:
        assert found.data == b""
        return
    assert found.data is not None
    assert walk(found.data) == expected
    after = batch.check_batch(found.data)
    assert after.has_delete_horizon == says_horizon
    if says_horizon:
        assert after.base_timestamp == horizon_ms
    assert after.max_timestamp == max(record.timestamp for record in expected)
    unchanged = (
        "base_offset",
        "last_offset_delta",
        "partition_leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "codec",
    )
    for name in unchanged:
        assert getattr(after, name) == getattr(header, name), name


def test_appended_at_a_time_keeps_that_time() -> None:
    data = bytearray(build_batch([(5, b"a", b"1", ()), (6, b"b", None, ())]))
    batch.restamp_append_time(data, 900)
    found = cleaning.clean_batch(
        bytes(data), map_of({b"a": 50}), known_to=99, drop_tombstones=False, horizon_ms=10_000
    )
    assert found.data is not None
    assert [(one.timestamp, one.timestamp_type) for one in walk(found.data)] == [(900, 1)]


def test_a_horizon_is_set_once_and_read_back() -> None:
    marker = control_batch(
        abort=True, offset=4, timestamp=77, producer_id=7, producer_epoch=0, coordinator_epoch=2
    )
    found = cleaning.set_delete_horizon(marker, 123_456)
    header = batch.check_batch(found)
    assert (header.has_delete_horizon, header.base_timestamp) == (True, 123_456)
    assert header.is_control
    assert walk(found) == walk(marker)
    assert found == twin_of.set_delete_horizon(marker, 123_456)


def test_an_empty_batch_keeps_its_producer_and_its_end() -> None:
    data = made([(0, b"a", b"1", []), (1, b"b", b"2", [])], compression.LZ4, 40)
    header = batch.check_batch(cleaning.empty_batch(data))
    plain = made([(0, b"a", b"1", [])], compression.NONE, 40)
    assert cleaning.empty_batch(plain) == twin_of.empty_batch(plain)
    assert (header.base_offset, header.last_offset, header.records_count) == (40, 41, 0)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (7, 1, 10)
    assert header.size_bytes == batch.HEADER_BYTES


@pytest.mark.parametrize("cut", [0, 10, 60, 61, 69])
def test_what_is_no_batch_is_refused(cut: int) -> None:
    data = made([(0, b"a", b"1", [])], compression.NONE, 0)[:cut]
    for call in (
        lambda: OffsetMap(ROOM).add_batch(data),
        lambda: cleaning.clean_batch(data, OffsetMap(ROOM), known_to=0, drop_tombstones=False),
        lambda: cleaning.set_delete_horizon(data, 5),
        lambda: cleaning.empty_batch(data),
    ):
        with pytest.raises(CorruptRecord):
            call()


@given(
    position=st.integers(61, 90), byte=st.integers(0, 255), codec=st.sampled_from([0, 1, 2, 3, 4])
)
def test_damaged_records_are_refused_or_read(position: int, byte: int, codec: int) -> None:
    data = bytearray(made([(0, b"a", b"1" * 9, []), (1, b"b", None, [])], codec, 0))
    if position < len(data):
        data[position] = byte
    for call in (
        lambda: OffsetMap(ROOM).add_batch(bytes(data)),
        lambda: cleaning.clean_batch(
            bytes(data), OffsetMap(ROOM), known_to=0, drop_tombstones=True
        ),
        lambda: cleaning.set_delete_horizon(bytes(data), 5),
    ):
        try:
            call()
        except CorruptRecord:
            continue
