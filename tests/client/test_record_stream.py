"""What a reader sees of a record set, and what it must not."""

from __future__ import annotations

import pytest

from plog._native import cleaning, records
from plog._native.batch import HEADER_BYTES
from plog.client.fetcher import Fetched, whole_batches
from plog.client.record_stream import RecordStream
from plog.errors import CorruptRecord
from plog.types import TopicPartition
from tests.client.fake_broker import batch_of


def fetched(data: bytes, *, aborted=(), offset=0) -> Fetched:
    whole, next_offset = whole_batches(memoryview(data), offset)
    return Fetched(TopicPartition("t", 0), whole, next_offset, 0, 0, 0, list(aborted))


def transactional(offset: int, producer_id: int, *values: bytes) -> bytes:
    return records.build_batch(
        [(0, None, value, ()) for value in values],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, producer_id: int, *, abort: bool) -> bytes:
    return records.control_batch(
        abort=abort,
        offset=offset,
        timestamp=0,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
    )


def read(stream: RecordStream, most: int = 1000) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in stream.take(most)]


def test_records_come_in_portions_across_batches():
    data = batch_of([b"0", b"1", b"2"]) + batch_of([b"3", b"4"], 3)
    stream = RecordStream(fetched(data), 0)
    assert read(stream, 2) == [(0, b"0"), (1, b"1")]
    assert not stream.is_exhausted
    assert read(stream, 2) == [(2, b"2"), (3, b"3")]
    assert read(stream, 2) == [(4, b"4")]
    assert stream.is_exhausted
    assert stream.next_offset == 5


def test_records_come_with_the_leader_epoch_of_their_batches():
    epochs = [3, 3, 5, 7]
    batches = [bytearray(batch_of([b"a", b"b"], 2 * n)) for n in range(4)]
    for data, epoch in zip(batches, epochs, strict=True):
        data[12:16] = epoch.to_bytes(4, "big")  # which the checksum leaves out
    batches[3] = bytearray(marker(6, 9, abort=False))
    batches[3][12:16] = (7).to_bytes(4, "big")
    stream = RecordStream(fetched(b"".join(batches)), 0)
    assert stream.leader_epoch == -1
    told = [stream.take_of_epoch(3) for _ in range(4)]
    assert [([record.offset for record in taken], epoch) for taken, epoch in told] == [
        ([0, 1, 2], 3),
        ([3], 3),
        ([4, 5], 5),
        ([], 7),
    ]
    assert stream.is_exhausted
    assert stream.leader_epoch == 7


@pytest.mark.parametrize("start", range(6))
def test_records_below_the_start_are_left_out(start):
    data = batch_of([b"0", b"1", b"2"]) + batch_of([b"3", b"4"], 3)
    stream = RecordStream(fetched(data, offset=start), start)
    assert [offset for offset, _ in read(stream)] == list(range(start, 5))


def test_control_records_are_left_out_but_passed_by():
    data = batch_of([b"0"]) + marker(1, 9, abort=False) + batch_of([b"2"], 2)
    stream = RecordStream(fetched(data + marker(3, 9, abort=False)), 0)
    assert read(stream, 2) == [(0, b"0"), (2, b"2")]
    assert stream.is_exhausted
    assert stream.next_offset == 4


def test_aborted_transactions_are_left_out_and_committed_ones_not():
    data = b"".join(
        [
            transactional(0, 1, b"committed"),
            transactional(1, 2, b"aborted"),
            batch_of([b"plain"], 2),
            transactional(3, 2, b"aborted too"),
            marker(4, 2, abort=True),
            marker(5, 1, abort=False),
            transactional(6, 2, b"committed later"),
            marker(7, 2, abort=False),
            transactional(8, 2, b"aborted again"),
            marker(9, 2, abort=True),
            transactional(10, 2, b"the last"),
        ]
    )
    stream = RecordStream(fetched(data, aborted=[(2, 8), (2, 1)]), 0)
    assert read(stream) == [
        (0, b"committed"),
        (2, b"plain"),
        (6, b"committed later"),
        (10, b"the last"),
    ]


def test_marker_that_was_emptied_ends_no_transaction():
    data = b"".join(
        [
            cleaning.empty_batch(marker(0, 2, abort=True)),
            transactional(1, 2, b"aborted"),
            cleaning.empty_batch(marker(2, 3, abort=True)),
            marker(3, 2, abort=True),
            batch_of([b"4"], 4),
        ]
    )
    stream = RecordStream(fetched(data, aborted=[(2, 0), (3, 0)]), 0)
    assert read(stream) == [(4, b"4")]


def test_transaction_that_was_aborted_before_the_start_is_left_out():
    data = transactional(5, 2, b"aborted") + marker(6, 2, abort=True) + batch_of([b"7"], 7)
    stream = RecordStream(fetched(data, aborted=[(2, 1)], offset=5), 5)
    assert read(stream) == [(7, b"7")]


def test_corrupt_batch_is_raised_when_its_turn_comes_and_again():
    bad = bytearray(batch_of([b"2", b"3"], 2))
    bad[-1] ^= 1
    stream = RecordStream(fetched(batch_of([b"0", b"1"]) + bytes(bad)), 0)
    assert read(stream) == [(0, b"0"), (1, b"1")]
    assert not stream.is_exhausted
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            read(stream)


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_read(codec):
    data = records.build_batch([(0, b"k", b"v" * 500, [("h", b"x")])] * 3, codec=codec)
    assert read(RecordStream(fetched(data), 0)) == [(n, b"v" * 500) for n in range(3)]


def test_batch_that_is_cut_at_any_byte_is_left_for_the_next_fetch():
    first, second = batch_of([b"0", b"1"]), batch_of([b"2", b"3"], 2)
    data = memoryview(first + second)
    for cut in range(len(data) + 1):
        whole, next_offset = whole_batches(data[:cut], 0)
        batches = (cut >= len(first)) + (cut >= len(first) + len(second))
        assert len(whole) == [0, len(first), len(first) + len(second)][batches]
        assert next_offset == 2 * batches


def test_header_that_makes_no_sense_is_refused():
    with pytest.raises(CorruptRecord):
        whole_batches(memoryview(bytes(HEADER_BYTES)), 0)
