"""A target over what is appended: batches one after another, as leader, and read again."""

from __future__ import annotations

from plog._native import batch, partition_log
from plog.errors import KafkaError
from plog.storage.producer_state import Verdict, check, decide

from .common import HEADER_BYTES, exact, said, with_right_crcs
from .record_targets import NOW_MS
from .request_targets import memory_log

END = 1 << 62


def appends(data: memoryview) -> None:
    """A record set: the struct takes of each batch what Python's rules would, and gives it back."""
    log = memory_log()
    log.set_leader(3, writable=True, sole_replica=True)
    written = bytearray()
    left = exact(with_right_crcs(data))
    while len(left) >= HEADER_BYTES:
        header = said(batch.check_batch, left)
        if isinstance(header, str):
            break
        one, left = exact(left[: header.size_bytes]), left[header.size_bytes :]
        if not header.is_control:
            append(log, one, header, written)
    # What nobody has validated is taken or not, as its few fields say that are looked at.
    rest = exact(left)
    found = said(log.append, rest, NOW_MS)
    if not isinstance(found, str) and found.status == partition_log.APPENDED:
        written += rest
    read_back(log, bytes(written))
    log.close()


def append(
    log: partition_log.PartitionLog,
    one: memoryview,
    header: batch.BatchHeader,
    written: bytearray,
) -> None:
    """Append a batch by the ordinary rule, else by what Python decides."""
    known = log.producer(header.producer_id) if header.producer_id >= 0 else None
    verdict, copy = check(known, header)
    end = log.log_end_offset
    found = log.append(one, NOW_MS)
    if found.status == partition_log.ROLL_NEEDED:
        return
    if verdict is Verdict.UNUSUAL:
        assert found.status == partition_log.PRODUCER_UNUSUAL, found
        try:
            decided = decide(known, header)
        except KafkaError:
            return
        found = log.append(one, NOW_MS, decided)
    elif verdict is Verdict.DUPLICATE:
        assert copy is not None
        assert found.status == partition_log.DUPLICATE, found
        assert found.last_offset == copy.last_offset
        return
    if found.status == partition_log.ROLL_NEEDED:
        return
    assert found.status == partition_log.APPENDED, found
    assert (found.base_offset, found.last_offset) == (end, end + header.last_offset_delta)
    assert log.log_end_offset == found.last_offset + 1
    assert batch.check_batch(one).partition_leader_epoch == 3
    written += one


def read_back(log: partition_log.PartitionLog, written: bytes) -> None:
    """Read from the start, by the hints where the next batch is."""
    offset, pieces = 0, []
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20, END, True)
        assert found is not None
        pieces.append(found.read())
        offset = found.next_offset_hint
    assert b"".join(pieces) == written
