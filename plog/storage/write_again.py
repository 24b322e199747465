"""Writes a file's batches once more where they are, so that the next sync has them to write.

Owns how: every batch is checked first, and just the bytes that were checked are written,
a bounded number at a time. Never decides which bytes need it.
"""

from __future__ import annotations

from plog.storage.filesystem import Filesystem
from plog.storage.segment_scan import CHUNK_BYTES, BatchReader, reader_of


def write_again(fs: Filesystem, fd: int, start: int, end: int) -> str | None:
    """Write the batches in [start, end) again; None, or what is wrong with one, and where.

    Raises OSError.
    """
    reader = BatchReader(reader_of(fs, fd), start, end)
    checked = bytearray()
    for scanned in reader:
        checked += scanned.data
        if len(checked) >= CHUNK_BYTES:
            fs.pwrite(fd, checked, start)
            start += len(checked)
            checked = bytearray()
    if reader.fault is not None:
        return f"at byte {reader.position}: {reader.fault}"
    if checked:
        fs.pwrite(fd, checked, start)
    return None
