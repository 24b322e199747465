"""What a reader makes of an answer to Fetch: the rules of read_committed, in the plainest way."""

from __future__ import annotations

from plog._native import batch
from plog._native.records import Record
from plog.protocol.messages.fetch import PartitionData
from tests.handlers.wire import walk_all


def kept_records(part: PartitionData) -> tuple[list[Record], int]:
    """Return the records of no marker and no aborted transaction, and where the next fetch begins.

    That is -1 where the answer holds no whole batch.
    """
    data = bytes(part.records or b"")
    to_come = sorted(part.aborted_transactions or (), key=lambda one: one.first_offset)
    aborted: set[int] = set()
    found: list[Record] = []
    next_offset, position = -1, 0
    while position + batch.HEADER_BYTES <= len(data):
        header = batch.read_header(data, position)
        if position + header.size_bytes > len(data):
            break
        whole = data[position : position + header.size_bytes]
        position += header.size_bytes
        next_offset = header.next_offset
        while to_come and to_come[0].first_offset <= header.last_offset:
            aborted.add(to_come.pop(0).producer_id)
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += walk_all(whole)
    return found, next_offset
