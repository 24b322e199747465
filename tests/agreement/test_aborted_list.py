"""The kernel's list of aborted transactions beside the log's, which is the truth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog._native.aborted_list import PublishedAborted
from plog.storage import transaction_index
from plog.storage.transaction_index import (
    FAR_OFFSET,
    AbortedTransaction,
    AbortedTransactions,
    encode_aborted,
)

OFFSETS = st.integers(0, 60) | st.integers(0, FAR_OFFSET)
PRODUCERS = st.integers(0, 3) | st.integers(0, (1 << 63) - 1)


@st.composite
def lists(draw: st.DrawFn) -> list[AbortedTransaction]:
    """Draw entries whose markers ascend; their other offsets may make no sense.

    Behind each marker there is an offset for the next batch.
    """
    markers = sorted(draw(st.sets(OFFSETS.filter(lambda at: at < FAR_OFFSET), max_size=12)))
    return [
        AbortedTransaction(draw(PRODUCERS), draw(OFFSETS), marker, draw(OFFSETS))
        for marker in markers
    ]


def told(entries: list[AbortedTransaction]) -> list[tuple[int, int]]:
    return [(one.producer_id, one.first_offset) for one in entries]


@given(lists(), st.lists(st.tuples(PRODUCERS, OFFSETS), max_size=3), OFFSETS, OFFSETS)
def test_kernel_chooses_what_the_log_does(
    entries: list[AbortedTransaction],
    ending: list[tuple[int, int]],
    fetch_offset: int,
    upper_offset: int,
) -> None:
    log = AbortedTransactions(entries)
    expected = log.overlapping(fetch_offset, upper_offset)
    native = PublishedAborted(encode_aborted(entries), [], 0)
    assert native.overlapping(fetch_offset, upper_offset) == told(expected)
    log._ending = tuple(AbortedTransaction(*one, FAR_OFFSET, FAR_OFFSET) for one in ending)
    expected = log.overlapping(fetch_offset, upper_offset)
    native = PublishedAborted(encode_aborted(entries), ending, 0)
    assert native.overlapping(fetch_offset, upper_offset) == told(expected)
    assert len(native) == len(entries) + len(ending)


@given(lists(), st.integers(0, 13), OFFSETS, OFFSETS)
def test_who_reads_from_where_all_is_known_meets_no_other(
    entries: list[AbortedTransaction], most: int, fetch_offset: int, upper_offset: int
) -> None:
    log = AbortedTransactions(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_index, "MOST_PUBLISHED", most)
        native = log.published()
    if native is None:
        assert not entries
        return
    assert len(native) == min(len(entries), most)
    assert (native.known_from == 0) == (len(entries) <= most)
    if fetch_offset >= native.known_from:
        expected = told(log.overlapping(fetch_offset, upper_offset))
        assert native.overlapping(fetch_offset, upper_offset) == expected


def test_entries_come_whole() -> None:
    data = encode_aborted([AbortedTransaction(7, 10, 20, 21)])
    for cut in range(1, len(data)):
        with pytest.raises(ValueError, match=f"{cut} bytes"):
            PublishedAborted(data[:cut], [], 0)
    assert PublishedAborted(b"", [], 0).overlapping(0, FAR_OFFSET) == []
