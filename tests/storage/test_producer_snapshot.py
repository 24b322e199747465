from __future__ import annotations

import struct

import crcmod.predefined
import pytest

from plog._native.partition_log import ProducerEntry, SequencedBatch
from plog.errors import CorruptRecord
from plog.storage.producer_snapshot import decode_snapshot, encode_snapshot
from plog.storage.producer_state import MAX_SEQUENCE, ONLY_ZERO_NEXT

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

PLAIN = ProducerEntry(
    4711, 2, (SequencedBatch(10, 19, 119, 9, 1_700_000_000_123),), 1_700_000_000_123, -1, -1
)
IN_TRANSACTION = PLAIN._replace(producer_id=3, coordinator_epoch=7, current_txn_first_offset=100)
MARKER_ONLY = ProducerEntry(9, 1, (ONLY_ZERO_NEXT,), 55, 4, -1)


def test_snapshot_is_as_kafka_writes_it() -> None:
    body = struct.pack(">i", 1) + struct.pack(
        ">qhiqiqiq", 4711, 2, 19, 119, 9, 1_700_000_000_123, -1, -1
    )
    data = struct.pack(">hI", 1, crc32c(body)) + body
    assert len(data) == 2 + 4 + 4 + 46
    assert encode_snapshot([PLAIN]) == data
    assert decode_snapshot(data) == [PLAIN]


def test_snapshot_round_trips_in_order_of_ids() -> None:
    data = encode_snapshot([PLAIN, MARKER_ONLY, IN_TRANSACTION])
    assert decode_snapshot(data) == [IN_TRANSACTION, MARKER_ONLY, PLAIN]
    assert decode_snapshot(encode_snapshot([])) == []


def test_only_the_newest_batch_is_kept() -> None:
    five = tuple(SequencedBatch(n, n, n, 0, n) for n in range(5))
    (found,) = decode_snapshot(encode_snapshot([PLAIN._replace(batches=five)]))
    assert found.batches[0][:4] == five[-1][:4]


def test_first_sequence_wraps_back() -> None:
    wrapped = SequencedBatch(MAX_SEQUENCE - 1, 3, 50, 5, 1)
    (found,) = decode_snapshot(
        encode_snapshot([PLAIN._replace(batches=(wrapped,), last_timestamp=1)])
    )
    assert found.batches == (wrapped,)


def test_every_prefix_extension_and_flipped_bit_is_refused() -> None:
    data = encode_snapshot([PLAIN, IN_TRANSACTION])
    for cut in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_snapshot(data[:cut])
    with pytest.raises(CorruptRecord):
        decode_snapshot(data + b"\0")
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_snapshot(bytes(flipped))


@pytest.mark.parametrize(
    "entry", [PLAIN._replace(producer_id=-2), PLAIN._replace(current_txn_first_offset=-2)]
)
def test_entry_that_no_producer_can_have_is_refused(entry: ProducerEntry) -> None:
    """The struct refuses it too, and by then the log could not be opened without it."""
    with pytest.raises(CorruptRecord, match="producer snapshot: producer "):
        decode_snapshot(encode_snapshot([entry]))


@pytest.mark.parametrize("count", [-1, 0, 2, 1 << 30])
def test_wrong_count_with_a_right_crc_is_refused(count: int) -> None:
    body = struct.pack(">i", count) + encode_snapshot([PLAIN])[10:]
    with pytest.raises(CorruptRecord):
        decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)
