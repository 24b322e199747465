from __future__ import annotations

import struct

import pytest

from plog.errors import CorruptRecord
from plog.storage.transaction_index import AbortedTransaction, decode_aborted, encode_aborted

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
