"""Both index engines on ordered, unordered and damaged entries."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plog._native import index as native
from plog._reference import index as reference
from plog.errors import CorruptRecord

from .harness import outcome

INT32 = st.integers(-(2**31), 2**31 - 1)
SMALL = st.integers(0, 60)
OFFSET_ENTRIES = st.lists(st.tuples(SMALL, SMALL) | st.tuples(INT32, INT32), max_size=12)
TIME_ENTRIES = st.lists(
    st.tuples(SMALL, SMALL) | st.tuples(st.integers(-(2**63), 2**63 - 1), INT32), max_size=12
)
TARGETS = st.integers(-5, 70) | st.integers(-(2**65), 2**65)


def offset_index(entries):
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def time_index(entries):
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def rising(entries):
    """Sort each column by itself, so that neither falls."""
    firsts, seconds = (sorted(entry[column] for entry in entries) for column in (0, 1))
    return list(zip(firsts, seconds, strict=True))


def test_entry_sizes_are_those_of_the_files():
    assert (native.OFFSET_ENTRY_BYTES, native.TIME_ENTRY_BYTES) == (8, 12)
    assert (reference.OFFSET_ENTRY_BYTES, reference.TIME_ENTRY_BYTES) == (8, 12)


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(
    ("target", "found"),
    [
        (99, (100, 0)),
        (100, (100, 0)),
        (109, (100, 0)),
        (110, (110, 4200)),
        (119, (110, 4200)),
        (120, (120, 9000)),
        (130, (130, 14000)),
        (10**12, (130, 14000)),
    ],
)
def test_offset_lookup_finds_the_greatest_entry_at_or_below(engine, target, found):
    entries = offset_index([(10, 4200), (20, 9000), (30, 14000)])
    assert engine.lookup_offset(entries, 100, target) == found
    assert engine.lookup_offset(memoryview(bytearray(entries)), 100, target) == found


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (999, (-1, 100)),
        (1000, (1000, 110)),
        (1999, (1000, 110)),
        (2000, (2000, 120)),
        (2**63 - 1, (2000, 120)),
    ],
)
def test_time_lookup_finds_the_greatest_entry_at_or_below(engine, timestamp, found):
    assert engine.lookup_time(time_index([(1000, 10), (2000, 20)]), 100, timestamp) == found


@settings(max_examples=300)
@given(entries=OFFSET_ENTRIES, base=st.integers(0, 2**62), target=TARGETS)
@example(entries=[(0, 0)] * 3, base=0, target=0)
def test_native_offset_lookup_agrees_with_reference(entries, base, target):
    for order in (entries, sorted(entries)):
        data = offset_index(order)
        for wanted in (target, base + target):
            expected = outcome(reference.lookup_offset, data, base, wanted)
            assert outcome(native.lookup_offset, data, base, wanted) == expected


@settings(max_examples=300)
@given(entries=TIME_ENTRIES, base=st.integers(0, 2**62), timestamp=TARGETS)
def test_native_time_lookup_agrees_with_reference(entries, base, timestamp):
    for order in (entries, sorted(entries)):
        data = time_index(order)
        expected = outcome(reference.lookup_time, data, base, timestamp)
        assert outcome(native.lookup_time, data, base, timestamp) == expected


@settings(max_examples=300)
@given(st.sets(st.integers(0, 300), max_size=40), st.integers(-1, 301))
def test_offset_lookup_over_rising_entries_equals_a_linear_search(offsets, target):
    rising = [(offset, 10 * offset + 1) for offset in sorted(offsets)]
    below = [entry for entry in rising if entry[0] <= target]
    assert native.lookup_offset(offset_index(rising), 0, target) == (below or [(0, 0)])[-1]


@settings(max_examples=300)
@given(entries=OFFSET_ENTRIES)
def test_native_offset_check_agrees_with_reference(entries):
    for order in (entries, sorted(entries), rising(entries)):
        data = offset_index(order)
        expected = outcome(reference.check_offset_index, data, 7)
        assert outcome(native.check_offset_index, data, 7) == expected


@settings(max_examples=300)
@given(entries=TIME_ENTRIES)
def test_native_time_check_agrees_with_reference(entries):
    for order in (entries, sorted(entries), rising(entries)):
        data = time_index(order)
        expected = outcome(reference.check_time_index, data, 7)
        assert outcome(native.check_time_index, data, 7) == expected


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([(5, 1), (5, 2)], "entry 1 of base offset 100 does not rise: relative offset 5"),
        ([(5, 1), (4, 2)], "entry 1 of base offset 100 does not rise: relative offset 4"),
        ([(5, 2), (6, 2)], "entry 1 of base offset 100 does not rise: relative offset 6"),
        ([(-1, 2)], "entry 0 of base offset 100 does not rise: relative offset -1"),
        ([(1, -2)], "entry 0 of base offset 100 does not rise: relative offset 1, position -2"),
        ([(5, 9), (0, 0)], "entry 1 of base offset 100 does not rise: relative offset 0"),
    ],
)
def test_offset_index_out_of_order_is_corrupt(engine, entries, fault):
    with pytest.raises(CorruptRecord, match=fault):
        engine.check_offset_index(offset_index(entries), 100)


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([(9, 5), (9, 6)], "entry 1 of base offset 100 does not rise: timestamp 9"),
        ([(9, 5), (8, 6)], "entry 1 of base offset 100 does not rise: timestamp 8"),
        ([(9, 5), (10, 4)], "entry 1 of base offset 100 does not rise: timestamp 10"),
        ([(-1, 5)], "entry 0 of base offset 100 does not rise: timestamp -1"),
        ([(0, -5)], "entry 0 of base offset 100 does not rise: timestamp 0, relative offset -5"),
    ],
)
def test_time_index_out_of_order_is_corrupt(engine, entries, fault):
    with pytest.raises(CorruptRecord, match=fault):
        engine.check_time_index(time_index(entries), 100)


@pytest.mark.parametrize("engine", [native, reference])
def test_check_of_rising_entries_counts_them(engine):
    assert engine.check_offset_index(b"", 100) == 0
    assert engine.check_offset_index(offset_index([(0, 0), (3, 4096), (9, 9000)]), 100) == 3
    # Kafka lets the offset stay where it was: the final entry of a roll.
    assert engine.check_time_index(time_index([(0, 0), (3, 4), (9, 4)]), 100) == 3


@pytest.mark.parametrize("engine", [native, reference])
def test_preallocated_index_fails_its_check(engine):
    for entries in ([], [(5, 9)]):
        with pytest.raises(CorruptRecord):
            engine.check_offset_index(offset_index(entries) + bytes(64), 0)
        with pytest.raises(CorruptRecord):
            engine.check_time_index(time_index(entries) + bytes(96), 0)


@pytest.mark.parametrize("size", [1, 7, 9, 11, 13, 20])
def test_size_that_is_no_multiple_of_an_entry_is_corrupt_for_both(size):
    for name, args in [
        ("lookup_offset", (0, 5)),
        ("lookup_time", (0, 5)),
        ("check_offset_index", (0,)),
        ("check_time_index", (0,)),
    ]:
        expected = outcome(getattr(reference, name), bytes(size), *args)
        assert outcome(getattr(native, name), bytes(size), *args) == expected
        assert expected[:2] == ("error", CorruptRecord)


@settings(max_examples=200)
@given(st.integers(-(2**33), 2**33) | st.integers(-(2**65), 2**65), st.integers(-(2**33), 2**33))
@example(2**31 - 1, 2**31 - 1)
@example(2**31, 0)
@example(2**63, 0)
@example(2**63 - 1, 0)
def test_native_encoders_agree_with_reference(first, second):
    for name in ("encode_offset_entry", "encode_time_entry"):
        expected = outcome(getattr(reference, name), first, second)
        assert outcome(getattr(native, name), first, second) == expected


def test_encoded_entries_are_the_files_bytes():
    assert native.encode_offset_entry(258, 4097) == bytes.fromhex("0000010200001001")
    assert native.encode_time_entry(2**40, 258) == bytes.fromhex("000001000000000000000102")
