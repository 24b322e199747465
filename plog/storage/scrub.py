"""Reads segments again that nobody has asked for, slowly, to find damage before a client does.

Owns where the round is. Every batch that was durable when the round came to its log is
checked, a bounded number of bytes at a time. Never repairs: the log's owner takes a damaged
partition offline.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

from plog._native.partition_log import Segment
from plog.errors import KafkaStorageError
from plog.storage.log import Log
from plog.storage.segment_files import LOG, path_of
from plog.storage.segment_scan import BatchReader, OffsetOrder, ReadAt

ROUND_INTERVAL_MS = 24 * 60 * 60 * 1000


class Scrub:
    """An endless sequence of rounds over all logs, advanced by `step`."""

    def __init__(
        self, logs: Callable[[], Iterable[Log]], on_damage: Callable[[Log, str], None]
    ) -> None:
        self._logs = logs
        self._on_damage = on_damage
        self._round: Iterator[int] | None = None
        self._next_round_ms = 0

    def step(self, budget_bytes: int, now_ms: int) -> int:
        """Check about `budget_bytes` more; return how many. `now_ms` is monotonic."""
        if self._round is None:
            if now_ms < self._next_round_ms:
                return 0
            self._next_round_ms = now_ms + ROUND_INTERVAL_MS
            self._round = self._check_all()
        checked = 0
        while checked < budget_bytes:
            size = next(self._round, None)
            if size is None:
                self._round = None
                break
            checked += size
        return checked

    def _check_all(self) -> Iterator[int]:
        """Check batch by batch; yields their sizes."""
        for log in list(self._logs()):
            try:
                yield from self._check(log)
            except (KafkaStorageError, OSError) as error:
                if isinstance(error, OSError):
                    log.faults.disk_failed(error)

    def _check(self, log: Log) -> Iterator[int]:
        durable_end = log.durable_end
        for segment in [weakref.ref(segment) for segment in log.native.segments]:
            # A round takes hours: what retention lets go, or a deleted topic, is not kept by it.
            if (found := segment()) is None:
                continue
            base_offset, size_bytes = found.base_offset, found.size_bytes
            del found
            reader = BatchReader(_while_it_is_there(segment), 0, size_bytes)
            order = OffsetOrder(base_offset, log.gaps_legal_below)
            fault = None
            for scanned in reader:
                if order.expected >= durable_end or (fault := order.fault_of(scanned.header)):
                    break
                yield scanned.header.size_bytes
            if order.expected >= durable_end:
                return  # what follows, good or bad, was written meanwhile
            fault = fault or reader.fault
            if fault is not None and segment() in log.native.segments:
                path = path_of(log.directory, base_offset, LOG)
                self._on_damage(log, f"{path} at byte {reader.position}: {fault}")
                return


def _while_it_is_there(segment: weakref.ref[Segment]) -> ReadAt:
    """Return how a segment is read for as long as somebody else has it; then it is empty."""

    def read(position: int, size: int) -> bytes:
        found = segment()
        return b"" if found is None else found.read(position, size)

    return read
