"""The records of one fetched record set, decoded a batch at a time.

Owns the records that a reader must not see: control records, records of aborted
transactions, and records below the requested offset. Its memory is that of the fetch and
of one expanded batch.
"""

from __future__ import annotations

from collections import deque

from plog._native import batch, records
from plog._native.batch import BatchHeader
from plog._native.records import Record
from plog.client.fetcher import Fetched
from plog.errors import CorruptRecord
from plog.types import NO_EPOCH

_ABORT = 0
"""Type of an end marker (KIP-98): 0 abort, 1 commit; the second i16 of its key."""


class RecordStream:
    """Returns the records of `fetched` at or after `start`, in offset order.

    Attributes:
        next_offset: the offset of the next fetch.
        leader_epoch: the epoch of the last decoded batch; -1 before the first.
    """

    def __init__(self, fetched: Fetched, start: int) -> None:
        self.next_offset = fetched.next_offset
        self.leader_epoch = NO_EPOCH
        self._data = fetched.records
        self._start = start
        self._aborted = sorted(fetched.aborted, key=lambda entry: entry[1], reverse=True)
        self._open_aborts: set[int] = set()
        self._position = 0
        self._ready: deque[Record] = deque()

    def take(self, most: int) -> list[Record]:
        """Return at most `most` records; fewer at the end, or before a corrupt batch.

        Raises:
            CorruptRecord: the next batch is corrupt.
        """
        taken: list[Record] = []
        while len(taken) < most:
            try:
                more, _ = self.take_of_epoch(most - len(taken))
            except CorruptRecord:
                if not taken:
                    raise
                break  # it is raised again by the next call
            if not more:
                break
            taken += more
        return taken

    def take_of_epoch(self, most: int) -> tuple[list[Record], int]:
        """Return records of one leader epoch as `take` does, and the epoch.

        Raises:
            CorruptRecord: as `take`.
        """
        taken: list[Record] = []
        leader_epoch = self.leader_epoch
        while len(taken) < most:
            try:
                if not self._fill():
                    break
            except CorruptRecord:
                if not taken:
                    raise
                break
            if not taken:
                leader_epoch = self.leader_epoch
            elif self.leader_epoch != leader_epoch:
                break  # the next records have another epoch
            room = most - len(taken)
            if room >= len(self._ready):
                taken.extend(self._ready)
                self._ready.clear()
            else:
                taken.extend(self._ready.popleft() for _ in range(room))
        return taken, leader_epoch

    @property
    def is_exhausted(self) -> bool:
        """Whether every record has been taken; decodes the next batch to find out."""
        try:
            return not self._fill()
        except CorruptRecord:
            return False

    def _fill(self) -> bool:
        """Decode batches until a record is ready; False at the end."""
        while not self._ready:
            if self._position >= len(self._data):
                return False
            header = batch.read_header(self._data, self._position)
            if self._is_readable(header):
                found = records.walk(self._data, pos=self._position)
                if found and found[0].offset < self._start:
                    found = [record for record in found if record.offset >= self._start]
                self._ready.extend(found)
            self._position += header.size_bytes
            self.leader_epoch = header.partition_leader_epoch
        return True

    def _is_readable(self, header: BatchHeader) -> bool:
        while self._aborted and self._aborted[-1][1] <= header.last_offset:
            self._open_aborts.add(self._aborted.pop()[0])
        if header.is_control:
            # The abort marker ends the transaction in the list.
            if header.producer_id in self._open_aborts and self._is_abort(header):
                self._open_aborts.discard(header.producer_id)
            return False
        if header.last_offset < self._start:
            return False
        return not (header.is_transactional and header.producer_id in self._open_aborts)

    def _is_abort(self, header: BatchHeader) -> bool:
        marker = records.walk(self._data, pos=header.position)
        key = marker[0].key if marker else None
        return key is not None and int.from_bytes(key[2:4], "big") == _ABORT
