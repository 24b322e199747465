"""Copies a log into another log directory (AlterReplicaLogDirs, KIP-113).

Owns the copy: first the segments, then repeatedly the bytes appended meanwhile, then the small rest
while appends are stopped. Reserves disk space for clients' records as it goes. Reads back and
checks every copied batch. Never renames a partition into place: `log_moves` does.
"""

from __future__ import annotations

import weakref
from pathlib import Path

from plog._native.disk_room import DiskRoom
from plog._native.partition_log import Segment
from plog.errors import KafkaStorageError
from plog.storage.checkpoints import store_topic_id
from plog.storage.filesystem import Filesystem
from plog.storage.incomplete_mark import mark_incomplete
from plog.storage.index_files import IndexBuilder, store_indexes
from plog.storage.leader_epochs import LEADER_EPOCH_FILE, encode_leader_epochs
from plog.storage.log import Log
from plog.storage.producer_load import store_snapshot
from plog.storage.segment_files import LOG, SEGMENT, TRANSACTION_INDEX, path_of
from plog.storage.segment_scan import BatchReader, reader_of

COPY_BYTES = 1 << 20
SMALL_REST_BYTES = 4 << 20
"""Maximum size of the rest that is copied while appends are stopped."""
MOST_ROUNDS = 20
"""After this number of rounds the producers are as fast as the copy, so appends are stopped."""


class ReplicaCopy:
    """A copy of `log` in the new directory `target`, on the disk with the space `room`.

    `begin` and `finish` raise KafkaStorageError if the disk is full or `log` cannot be read (its
    faults are reported to its owner), and OSError for the files of `target`.
    """

    def __init__(self, fs: Filesystem, log: Log, target: Path, room: DiskRoom) -> None:
        self._fs = fs
        self._log = log
        self.target = target
        self._room = room
        # By base offset: bytes copied, bytes read back, the indexes of these, and the segments.
        self._copied: dict[int, int] = {}
        self._checked: dict[int, int] = {}
        self._indexes: dict[int, IndexBuilder] = {}
        self._sources: dict[int, weakref.ref[Segment]] = {}

    def make_directory(self) -> None:
        """Make `target`. Raises OSError."""
        self._fs.make_directory(self.target)

    def begin(self) -> None:
        """Copy until the rest is small."""
        if self._log.topic_id is not None:
            store_topic_id(self._fs, self.target, self._log.topic_id)
        if self._log.lack is not None:
            mark_incomplete(self._fs, self.target, self._log.lack)
        for _ in range(MOST_ROUNDS):
            if self._catch_up() <= SMALL_REST_BYTES:
                break
        self._check()

    def finish(self) -> None:
        """Copy the rest. The log must not change."""
        self._catch_up()
        self._check()
        log = self._log
        for segment in log.native.segments:
            base = segment.base_offset
            offsets, times = self._indexes[base].finish()
            self._take(len(offsets) + len(times))
            store_indexes(self._fs, self.target, base, offsets, times)
            aborted = self._read_aborted(base)
            if aborted is not None:
                self._take(len(aborted))
                self._fs.write_bytes(path_of(self.target, base, TRANSACTION_INDEX), aborted)
        store_snapshot(self._fs, self.target, log.log_end_offset, log.native.producers())
        self._fs.replace_text(
            self.target / LEADER_EPOCH_FILE, encode_leader_epochs(log.leader_epochs)
        )
        self._fs.sync_directory(self.target)

    def _read_aborted(self, base: int) -> bytes | None:
        """Return the transaction index of a segment, or None if it has none."""
        path = path_of(self._log.directory, base, TRANSACTION_INDEX)
        with self._log.faults.judged():
            return self._fs.read_bytes(path) if self._fs.exists(path) else None

    def _catch_up(self) -> int:
        """Copy the bytes that are not copied yet; return their number."""
        segments = self._log.native.segments
        bases = {segment.base_offset for segment in segments}
        for base in set(self._copied) - bases:
            self._forget(base)  # deleted by retention
        total = 0
        there = [weakref.ref(segment) for segment in segments]
        del segments
        for found in there:
            # A copy takes minutes, so it must not keep deleted segments.
            if (segment := found()) is None:
                continue
            base, size = segment.base_offset, segment.size_bytes
            if base in self._sources and self._sources[base]() is not segment:
                self._forget(base)  # truncated; other batches may have followed
            self._sources[base] = weakref.ref(segment)
            total += self._copy(segment, size)
            del segment
        return total

    def _copy(self, segment: Segment, size: int) -> int:
        base = segment.base_offset
        start = at = self._copied.get(base, 0)
        if at == size and base in self._copied:
            return 0
        with self._fs.opened(path_of(self.target, base, LOG), create=True) as fd:
            while at < size:
                try:
                    piece = segment.read(at, min(COPY_BYTES, size - at))
                except OSError as error:
                    self._log.faults.disk_failed(error)
                    raise KafkaStorageError(f"{self._log.topic_partition}: {error}") from error
                if not piece:
                    raise KafkaStorageError(f"{self._log.topic_partition}: segment {base} shrank")
                self._take(len(piece))
                self._fs.pwrite(fd, piece, at)
                at += len(piece)
            self._fs.fsync(fd)
        self._copied[base] = at
        return at - start

    def _take(self, size: int) -> None:
        """Reserve space for the next write; the next check of the disk replaces the estimate."""
        if not self._room.take(size):
            raise KafkaStorageError(
                f"{self._log.topic_partition} cannot be moved: not enough space in"
                f" {self.target.parent} for the rest of its {self._log.size_bytes} bytes"
            )

    def _check(self) -> None:
        interval = self._log.settings.index_interval_bytes
        for base, size in self._copied.items():
            self._indexes.setdefault(base, IndexBuilder(base, interval))
            start = self._checked.get(base, 0)
            with self._fs.opened(path_of(self.target, base, LOG)) as fd:
                reader = BatchReader(reader_of(self._fs, fd), start, size)
                for position, header, _ in reader:
                    self._indexes[base].on_batch(position, header)
            if reader.fault is not None:
                raise KafkaStorageError(
                    f"{self._log.topic_partition}: segment {base} at byte {reader.position}:"
                    f" {reader.fault}"
                )
            self._checked[base] = size

    def _forget(self, base: int) -> None:
        self._copied.pop(base, None)
        self._checked.pop(base, None)
        self._indexes.pop(base, None)
        self._sources.pop(base, None)
        for kind in SEGMENT:
            self._fs.unlink(path_of(self.target, base, kind), missing_ok=True)
