"""Moves logs from one log directory to another (AlterReplicaLogDirs, KIP-113).

Owns which moves are under way, and the steps by which a copy takes the log's place so
that a crash finds the one or the other. How bytes are copied is `replica_copy`'s.
Never decides what moves where, and knows no queue: `move` returns when it is done.

A deletion removes the copies of its partition before the log's own directory. Otherwise
the next start would take a copy without its log for an unfinished move, and adopt it.

Locks: `_lock` guards `moving` only. The log manager's `placement_lock` is held while a
copy takes its log's place, and the log's own within it. It guards `_copies` too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from plog.errors import (
    KafkaStorageError,
    LogDamaged,
    LogDirNotFound,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.storage.durable_ends import SlotKey
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import FoundPartition, LiveLogDir, slot_key
from plog.storage.log import Log
from plog.storage.log_checkpoints import moved_starts
from plog.storage.log_manager import LogManager
from plog.storage.replica_copy import ReplicaCopy
from plog.types import TopicPartition

_log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """A copy that has not taken its log's place."""

    topic_partition: TopicPartition
    slot: SlotKey
    target: LiveLogDir


class LogMoves:
    """The moves between the directories of a log manager. Safe from any thread."""

    def __init__(self, logs: LogManager, fs: Filesystem) -> None:
        self._logs = logs
        self._fs = fs
        self._lock = threading.Lock()
        self._moving: dict[TopicPartition, Path] = {}
        self._copies: dict[Path, _Copy] = {}  # by directory; of failed moves too, until removed
        self._callbacks: list[Callable[[Log, Log], None]] = []
        self._lines = BoundedLines(_log, "%d further logs moved", least_level=logging.INFO)
        logs.before_deletion(self._remove_copies)

    @property
    def moving(self) -> Mapping[TopicPartition, Path]:
        """Where partitions are being moved to."""
        return MappingProxyType(self._moving)

    def on_log_moved(self, callback: Callable[[Log, Log], None]) -> None:
        """Call back, on the thread of `move`, with each log that has moved, and its successor.

        The partition may have been deleted by then, and created again.
        """
        self._callbacks.append(callback)

    def move(self, tp: TopicPartition, log_dir: Path) -> None:
        """Move a partition to another of the log directories; returns when it is there.

        Clients go on writing until the last few megabytes; then appends are refused for a
        moment, retriably. Callbacks of `on_log_moved` get the old log and the one in its place.

        Raises:
            LogDirNotFound: not one of the directories that work.
            UnknownTopicOrPartition: the partition is not here, or offline.
            KafkaStorageError: the copy failed; the partition is where it was.
        """
        target = self._logs.dirs.get(log_dir)
        if target is None or target.failure is not None:
            raise LogDirNotFound(f"{log_dir} is not a log directory that works")
        log = self._logs.get(tp)
        if log is None:
            raise UnknownTopicOrPartition(f"this broker has no log of {tp}")
        if log.log_dir == log_dir:
            return
        if target.room.left < log.size_bytes:
            raise KafkaStorageError(
                f"{tp} cannot be moved: {log_dir} has not enough space for its"
                f" {log.size_bytes} bytes"
            )
        with self._lock:
            if tp in self._moving:
                raise ReassignmentInProgress(f"{tp} is being moved to {self._moving[tp]}")
            self._moving[tp] = log_dir
        try:
            # What is copied must not be replaced meanwhile.
            with self._logs.cleaner.paused(tp):
                self._move(log, target)
        finally:
            with self._lock:
                del self._moving[tp]

    def _move(self, log: Log, target: LiveLogDir) -> None:
        tp = log.topic_partition
        source = self._logs.dirs[log.log_dir]
        copy = ReplicaCopy(self._fs, log, target.future_directory(tp), target.room)
        self._make_directory(copy, log, target)
        try:
            copy.begin()
            with self._logs.placement_lock, log.standing_still() as role:
                self._check_served(log)
                log.finish_changes()
                copy.finish()
                # The old log may still be flushed, and must not look for a directory by then.
                log.sync_names()
                moved = self._swap(log, source, copy, target)
                moved.succeed(log, role)
                log.retire()
                del self._copies[copy.target]
                if not self._logs.replace(log, moved, target):
                    raise KafkaStorageError(f"{tp} has moved to {target.path}, which has failed")
        except OSError as error:
            if not self._is_kept(copy):
                raise KafkaStorageError(
                    f"{tp} was deleted or went offline during its move"
                ) from error
            target.note(error)
            self._discard(copy, log, target)
            raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
        except KafkaStorageError:
            self._discard(copy, log, target)
            raise
        self._lines.info("moved %s from %s to %s", tp, source.path, target.path)
        # The old log can still be read until everybody has the new one. Without the locks: whom
        # the callbacks call may be waiting for the log.
        try:
            for callback in self._callbacks:
                callback(log, moved)
        finally:
            # For those who wait until the old log is durable; the copy is already.
            with suppress(KafkaStorageError):
                log.flush()
            log.drop()
            # Only now, because a flush of the old log writes to its slot.
            self._logs.forget_left(source, tp, slot_key(tp, log.topic_id))

    def _make_directory(self, copy: ReplicaCopy, log: Log, target: LiveLogDir) -> None:
        """Make the directory of a copy, which a deletion of the log removes from now on."""
        tp = log.topic_partition
        with self._logs.placement_lock:
            self._check_served(log)
            try:
                copy.make_directory()
            except OSError as error:
                target.note(error)
                raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
            self._copies[copy.target] = _Copy(tp, slot_key(tp, log.topic_id), target)

    def _check_served(self, log: Log) -> None:
        tp = log.topic_partition
        if self._logs.get(tp) is not log:
            raise KafkaStorageError(f"{tp} was deleted or went offline during its move")

    def _swap(self, log: Log, source: LiveLogDir, copy: ReplicaCopy, target: LiveLogDir) -> Log:
        """Put the copy in the log's place. A crash before the first rename undoes the move;
        one after it leaves a -future directory alone, which the next start adopts."""
        tp = log.topic_partition
        starts = moved_starts([log])
        clean_to = source.cleaner_offsets.stored.get(tp)
        target.expect(tp, log.log_end_offset, log.high_watermark, starts.get(tp), clean_to)
        target.gaps.put(tp, min(log.gaps_legal_below, log.log_end_offset))
        try:
            leaving = source.put_away(log.directory, tp)
        except OSError as error:
            source.note(error)
            raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
        try:
            found = target.adopt(FoundPartition(copy.target, tp))
            moved = target.load(found, log.settings, self._logs, clean_shutdown=False)
        except (OSError, LogDamaged) as error:
            self._undo(log, leaving, copy, target)
            raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
        self._logs.remove_tree_later(source, leaving, log.settings.file_delete_delay_ms)
        return moved

    def _undo(self, log: Log, leaving: Path, copy: ReplicaCopy, target: LiveLogDir) -> None:
        """Give the copy its own name back, and the log's directory its name.

        Renames take neither space nor a descriptor. A crash between them leaves the copy alone, as
        one before. `_discard` comes next.
        """
        tp = log.topic_partition
        try:
            try:
                target.withdraw(FoundPartition(copy.target, tp))
            finally:
                self._fs.rename(leaving, log.directory)
        except OSError as error:
            # The next start would remove later records, or refuse to choose.
            self._logs.on_damage(log, f"a move to {target.path} cannot be undone: {error}")
        target.guarded(target.sync_names)

    def _discard(self, copy: ReplicaCopy, log: Log, target: LiveLogDir) -> None:
        """Remove a copy, unless it may be all that a crash leaves: the next start knows."""
        source = self._logs.dirs[log.log_dir]
        if not self._is_kept(copy) or not self._fs.is_directory(log.directory):
            return
        if source.guarded(source.sync_names):  # the log may have just got its name back
            self._logs.do_later(target, partial(self._remove, copy.target), 0)

    def _is_kept(self, copy: ReplicaCopy) -> bool:
        """Return whether no deletion has removed a copy. Waits for one that is under way."""
        with self._logs.placement_lock:
            return copy.target in self._copies

    def _remove(self, directory: Path) -> None:
        """Remove a copy, unless a deletion has. Raises OSError."""
        with self._logs.placement_lock:
            if directory not in self._copies:
                return
            tp, slot, target = self._copies[directory]
            if not self._fs.is_directory(directory):  # it was removed by hand
                del self._copies[directory]
                return
            leaving = target.put_away(directory, tp)
            del self._copies[directory]
        self._logs.remove_tree_later(target, leaving, 0)
        self._logs.forget_left(target, tp, slot)

    def _remove_copies(self, tp: TopicPartition) -> None:
        """Remove the copies of a partition that is about to be deleted.

        A directory that has failed keeps its copy. Raises KafkaStorageError.
        """
        for directory, copy in list(self._copies.items()):
            if copy.topic_partition != tp or copy.target.failure is not None:
                continue
            if not copy.target.guarded(self._remove, directory) and copy.target.failure is None:
                raise KafkaStorageError(f"{tp} cannot be deleted: its copy {directory} remains")
