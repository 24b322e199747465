from __future__ import annotations

import struct
from pathlib import Path

import pytest

from plog._native.partition_log import FileRange
from plog.errors import CorruptRecord, OffsetOutOfRange
from plog.storage.log import Log
from plog.storage.segment_verdict import Known
from plog.storage.transaction_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    AbortedTransactions,
    decode_aborted,
    encode_aborted,
)

from .storage_logs import NOW_MS, Settings, batch, control_batch, open_log, recovered

ONE = AbortedTransaction(7, 10, 20, 21)
TWO = AbortedTransaction(8, 5, 30, 25)


def test_entries_are_as_kafka_writes_them() -> None:
    data = struct.pack(">hqqqq", 0, 7, 10, 20, 21)
    assert len(data) == 34
    assert encode_aborted([ONE]) == data
    assert decode_aborted(data + encode_aborted([TWO])) == [ONE, TWO]
    assert decode_aborted(b"") == []


@pytest.mark.parametrize(
    "data",
    [
        encode_aborted([ONE])[:-1],
        encode_aborted([ONE]) + b"\0",
        b"\0\1" + encode_aborted([ONE])[2:],
        encode_aborted([TWO, ONE]),
        encode_aborted([ONE._replace(first_offset=21)]),
        encode_aborted([ONE._replace(first_offset=-1)]),
    ],
)
def test_damaged_index_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_aborted(data)


LONE = AbortedTransaction(7, 10, 20, 21)  # nothing else was open when it ended
NESTED = AbortedTransaction(8, 25, 30, 23)  # while another, open since 23, goes on
OUTER = AbortedTransaction(9, 23, 40, 41)
LAST = AbortedTransaction(7, 50, 60, 61)


@pytest.mark.parametrize(
    ("fetch_offset", "upper_offset", "wanted"),
    [
        (0, 10, []),
        (0, 11, [LONE]),
        (20, 21, [LONE]),  # its marker
        (21, 23, []),
        (21, 24, [OUTER]),
        (21, 26, [NESTED, OUTER]),
        (31, 41, [OUTER]),
        (0, 100, [LONE, NESTED, OUTER, LAST]),
        (41, 50, []),
        (61, 100, []),
    ],
)
def test_aborted_transactions_of_a_range(
    fetch_offset: int, upper_offset: int, wanted: list[AbortedTransaction]
) -> None:
    log = AbortedTransactions([LONE, NESTED, OUTER, LAST])
    assert log.overlapping(fetch_offset, upper_offset) == wanted


def test_search_ends_where_everything_was_stable() -> None:
    # An entry that its predecessor's last stable offset rules out: nobody looks at it.
    log = AbortedTransactions([LONE, LAST._replace(first_offset=5)])
    assert log.overlapping(0, 21) == [LONE]


def test_truncation_forgets_what_ended_later() -> None:
    log = AbortedTransactions([LONE, NESTED, OUTER, LAST])
    assert len(log) == 4
    assert log.below(40).overlapping(0, 100) == [LONE, NESTED]
    assert len(log.below(41)) == 3
    assert not log.below(0)


# -- in a log

ROUNDS = 50
ROUND = 5  # offsets: four records, and the marker that aborts them
SETTINGS = Settings(index_interval_bytes=200)


def rounds() -> list[AbortedTransaction]:
    return [AbortedTransaction(1, n, n + 4, n + 5) for n in range(0, ROUNDS * ROUND, ROUND)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log in which one producer aborts again and again, with the index of it."""
    directory = tmp_path / "flights-0"
    open_log(directory, SETTINGS).drop()
    pieces = bytearray()
    for number in range(ROUNDS):
        data = batch(4, producer_id=1, epoch=0, sequence=4 * number, transactional=True)
        data[:8] = (number * ROUND).to_bytes(8, "big")
        pieces += data + control_batch(
            abort=True,
            offset=number * ROUND + 4,
            timestamp=NOW_MS,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
        )
    (directory / "00000000000000000000.log").write_bytes(pieces)
    return open_log(directory, SETTINGS)


def read_committed(
    log: Log, start: int, upper: int, size: int = 1 << 20
) -> tuple[FileRange | None, list[AbortedTransaction]]:
    return log.transactions.read_committed(lambda: log.read(start, size, upper, True), start, upper)


def test_log_lists_what_was_aborted_in_the_range_that_was_read(log: Log) -> None:
    end = log.log_end_offset
    for start in (0, 3, 99, 100, 104, 240):
        begun = [one for one in rounds() if one.last_offset >= start]
        assert read_committed(log, start, end)[1] == begun
        assert read_committed(log, start, start + 7)[1] == [
            one for one in begun if one.first_offset < start + 7
        ]
    assert read_committed(log, end, end) == (None, [])


def test_range_cut_by_its_size_lists_little_more_than_its_own(log: Log) -> None:
    end = log.log_end_offset
    for size in range(1, 3000, 37):
        found, listed = read_committed(log, 100, end, size)
        assert found is not None
        held = log.native.segments[0].read(found.position, len(found))
        rounds_held = -(-len(held) // (log.size_bytes // ROUNDS))
        assert listed == rounds()[20 : 20 + len(listed)]
        # An index entry stands at every second batch or so.
        assert rounds_held <= len(listed) <= rounds_held + 3


def test_what_is_read_goes_with_the_list_that_it_was_read_beside(log: Log) -> None:
    log.roll()
    log.append_as_leader(batch(1), now_ms=NOW_MS)
    end, starts = log.last_stable_offset, []

    def read() -> FileRange | None:
        starts.append(log.log_start_offset)
        found = log.read(start, 1 << 20, end, True)
        if len(starts) == 1:
            log.delete_records_before(end - 1)
            log.update_settings(Settings(retention_bytes=1))
            log.apply_retention(NOW_MS)
        return found

    start = 0
    with pytest.raises(OffsetOutOfRange):  # by then it is not there any more
        log.transactions.read_committed(read, start, end)
    assert starts == [0, end - 1]
    start = end - 1
    assert log.transactions.read_committed(read, start, end)[1] == []


def test_range_ends_at_the_next_batch_that_is_indexed(log: Log) -> None:
    log.append_as_leader(batch(1), now_ms=NOW_MS)  # whose entry, if any, is in no file yet
    (segment,) = log.native.segments
    end = log.log_end_offset
    indexed = {segment.lookup_offset(offset) for offset in range(end)}
    for size in (*range(1, 3000, 37), segment.size_bytes):
        found = log.read(100, size, end, True)
        assert found is not None
        behind = [offset for offset, at in indexed if at >= found.position + len(found)]
        expected = found.next_offset_hint
        assert found.end_offset() == (min(behind, default=end) if expected < 0 else expected)


def test_truncated_log_forgets_what_was_aborted_later(log: Log, tmp_path: Path) -> None:
    assert log.truncate_to(102)
    assert read_committed(log, 0, 100)[1] == rounds()[:20]
    index = log.directory / "00000000000000000000.txnindex"
    assert decode_aborted(index.read_bytes()) == rounds()[:20]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[ENTRY_BYTES:] + data[:ENTRY_BYTES],
        lambda data: data + encode_aborted([AbortedTransaction(1, 900, 1000, 1001)]),
    ],
    ids=["cut", "disordered", "past-the-end"],
)
def test_index_that_makes_no_sense_is_made_again(log: Log, damage) -> None:
    log.close()
    index = log.directory / "00000000000000000000.txnindex"
    good = index.read_bytes()
    index.write_bytes(damage(good))
    found = recovered(log.directory, Known(clean_shutdown=True))
    assert index.read_bytes() == good
    assert found.aborted.overlapping(0, 1000) == rounds()
    assert ["transaction indexes" in line for line in found.reports] == [True]
