"""Finds when the record at an offset was appended, by its timestamp, without waiting for a disk.

Owns a memory of the last look-ups: a group that stands still costs one. A batch header outside of
the page cache is read by another thread, so that its timestamp is found the next time.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Final

from plog._native.batch import HEADER_BYTES, read_header
from plog.errors import CorruptRecord, KafkaStorageError
from plog.storage.log import Log

NO_RECORD: Final = -1
"""In place of a timestamp: the log has no record there, only markers of transactions."""
MAX_REMEMBERED = 10_000
MAX_MARKERS = 16
"""How many batches are skipped in search of a record."""
UNREADABLE = (CorruptRecord, KafkaStorageError, OSError)


class RecordTimes:
    """The timestamps of records at committed offsets. For one thread."""

    def __init__(self) -> None:
        # Dictionaries of numbers are nothing to the garbage collector.
        self._known: dict[Log, dict[int, int]] = {}
        self._used: dict[Log, dict[int, int]] = {}
        self._used_count = 0
        self._cold: queue.SimpleQueue[tuple[Log, int]] = queue.SimpleQueue()
        self._asked: set[tuple[Log, int]] = set()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin a page: forget the timestamps that the page before did not use."""
        self._known, self._used, self._used_count = self._used, {}, 0

    def at(self, log: Log, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset, or NO_RECORD.

        None: it is not known, or not yet.
        """
        timestamp = self._known.get(log, {}).get(offset)
        if timestamp is None:
            try:
                timestamp = look_up(log, offset, may_wait=False)
            except BlockingIOError:
                self._read_later(log, offset)
            except UNREADABLE:
                pass  # readers of the partition learn about that
        # The next append may change NO_RECORD.
        if timestamp not in (None, NO_RECORD) and self._used_count < MAX_REMEMBERED:
            self._used.setdefault(log, {})[offset] = timestamp
            self._used_count += 1
        return timestamp

    def _read_later(self, log: Log, offset: int) -> None:
        if (log, offset) in self._asked or len(self._asked) >= MAX_REMEMBERED:
            return
        self._asked.add((log, offset))
        self._cold.put((log, offset))
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the process from its end.
            self._thread = threading.Thread(target=self._read_cold, name="lag", daemon=True)
            self._thread.start()

    def _read_cold(self) -> None:
        while True:
            log, offset = self._cold.get()
            with suppress(*UNREADABLE):
                look_up(log, offset, may_wait=True)
            self._asked.discard((log, offset))
            del log


def look_up(log: Log, offset: int, *, may_wait: bool) -> int | None:
    """Return the timestamp of the first record at or after an offset, or NO_RECORD.

    The timestamp is that of its batch. None: the batch has none.

    Raises:
        BlockingIOError: not `may_wait`, and the header is not in the page cache.
        CorruptRecord, KafkaStorageError, OSError: the batch cannot be read.
    """
    state = log.native.state()
    offset = max(offset, state.log_start_offset)
    for _ in range(MAX_MARKERS):
        found = log.native.read(offset, 0, state.high_watermark, True, may_wait)
        if found is None:
            break
        header = read_header(found.read(HEADER_BYTES))
        if header.is_control:
            offset = header.next_offset
            continue
        # The base timestamp is that of the first record, unless it means something else.
        is_base = not (header.is_log_append_time or header.has_delete_horizon)
        timestamp = header.base_timestamp if is_base else header.max_timestamp
        return timestamp if timestamp >= 0 else None
    return NO_RECORD
