"""Every log of the broker, over all its log directories.

Owns which logs there are and where, why a partition is offline, the background tasks
(retention, checkpoints, flushes, scrub, removals) and the clean shutdown. Never
touches a log's bytes: that is the log's.

Locks: `_lock` guards the maps only; no log is called while it is held, because logs
call back (as `LogOwner`) with their own lock held.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from plog.errors import (
    InconsistentLogDirs,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    LogDamaged,
    LogDirNotFound,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from plog.runtime.clock import Clock
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.storage.checkpoints import OffsetCheckpoint
from plog.storage.filesystem import Filesystem, has_space
from plog.storage.group_commit import Done
from plog.storage.live_log_dir import FoundPartition, LiveLogDir, slot_key
from plog.storage.log import DISK_FULL, NO_DESCRIPTORS, Log
from plog.storage.log_dir import LogDir
from plog.storage.replica_move import ReplicaCopy
from plog.storage.scheduler import Scheduler
from plog.storage.scrub import Scrub
from plog.types import TopicPartition, counted

_log = logging.getLogger(__name__)

LogDirFailure = Callable[[Path, str], None]

FIRST_RETENTION_MS = 30_000
"""Kafka's log.initial.task.delay.ms: a start is busy enough without it."""

SCRUB_STEP_MS = 1_000
FULL_CHECK_MS = 1_000
MOST_FLUSH_CHECK_MS = 1_000
"""log.flush.scheduler.interval.ms is "never" by default, but flush.ms may be set for a topic."""


class NewPartition(NamedTuple):
    """A partition to be made by `LogManager.create_all`."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    settings: TopicSettings
    leader_epoch: int = 0


class LogManager:
    """The logs of a broker. `start` first, `shutdown` last.

    Args:
        settings: `log.dirs` and the intervals of the background tasks.
        topic_settings: returns the effective settings of a topic.
        cluster_id: whose the directories must be, or become.
        broker_id: the same; None for that of `settings`.
        locked: directories that the caller has locked already; they are given back at the end.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        topic_settings: Callable[[str], TopicSettings],
        *,
        cluster_id: str,
        clock: Clock,
        fs: Filesystem | None = None,
        broker_id: int | None = None,
        locked: Sequence[LogDir] = (),
    ) -> None:
        self._settings = settings
        self._broker_id = settings.broker_id if broker_id is None else broker_id
        self._locked = {log_dir.path: log_dir for log_dir in locked}
        self._abandoned = False
        self._topic_settings = topic_settings
        self._cluster_id = cluster_id
        self._clock = clock
        self._fs = fs or Filesystem()
        self._lock = threading.Lock()
        self._dirs: dict[Path, LiveLogDir] = {}
        self._logs: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, str] = {}
        # Where offline partitions are; those of a failed directory stay there.
        self._offline_dirs: dict[TopicPartition, Path] = {}
        self._failure_callbacks: list[LogDirFailure] = []
        self._moving: dict[TopicPartition, Path] = {}
        # Directories whose disk is full, and those where that was noticed since the last look.
        self._full: set[Path] = set()
        self._refused: set[Path] = set()
        # With partitions that the next start must recover, as if this one had not been.
        self._unrecovered: set[Path] = set()
        self._move_callbacks: list[Callable[[TopicPartition, Log], None]] = []
        self._damage_callbacks: list[Callable[[TopicPartition, str], None]] = []
        self.scheduler = Scheduler(clock, "storage tasks")
        self._scrub = Scrub(self.logs, self.on_damage)
        self._create_lock = threading.Lock()

    # -- start -------------------------------------------------------------------------------

    def start(self, *, background: bool = True) -> None:
        """Lock the directories, load every log, start the background tasks.

        Raises:
            InconsistentLogDirs: a directory is in use, another broker's, or named twice.
            KafkaStorageError: no directory can be used, a partition cannot be loaded for no
                reason of its files, or `abandon_start` was called.
        """
        paths = [Path(text).absolute() for text in self._settings.log_dirs]
        twice = [path for path, count in Counter(p.resolve() for p in paths).items() if count > 1]
        if twice:
            raise InconsistentLogDirs(f"log.dirs names {twice[0]} twice")
        try:
            for path in paths:
                self._open_dir(LiveLogDir(self._fs, self._clock, path, self._locked.get(path)))
        except InconsistentLogDirs:
            for live in self._dirs.values():
                live.close()
            raise
        self._require_live_dir()
        self._load_all()
        self._require_live_dir()
        self._plan_tasks()
        if background:
            self.scheduler.start()

    def _require_live_dir(self) -> None:
        if self.live_log_dirs:
            return
        self._close_all()
        raise KafkaStorageError(
            "no log directory can be used: "
            + "; ".join(f"{path}: {live.failure}" for path, live in self._dirs.items())
        )

    def _open_dir(self, live: LiveLogDir) -> None:
        self._dirs[live.path] = live
        try:
            live.open(self._broker_id, self._cluster_id)
        except OSError as error:
            live.failure = error
            _log.error("log directory %s is offline: %s", live.path, error)

    def abandon_start(self) -> None:
        """Have `start` give up after the partitions it is at. From another thread.

        The next start finds everything as this one did.
        """
        self._abandoned = True

    def _close_all(self) -> None:
        for log in self.logs():
            log.drop()
        for live in self._dirs.values():
            live.close()

    def _load_all(self) -> None:
        found: list[tuple[LiveLogDir, FoundPartition]] = []
        for live in self._live():
            try:
                partitions, leaving = live.find_partitions()
            except OSError as error:
                self.fail_log_dir(live.path, error)
                continue
            found += [(live, partition) for partition in partitions]
            for directory in leaving:
                self._remove_tree_later(live, directory, 0)
        found += self._finish_moves({partition.topic_partition for _, partition in found})
        for tp, count in Counter(p.topic_partition for _, p in found).items():
            if count > 1:
                where = [str(p.directory) for _, p in found if p.topic_partition == tp]
                self._quarantine(tp, Path(where[0]).parent, f"it is in {' and in '.join(where)}")
                found = [(live, p) for live, p in found if p.topic_partition != tp]
        self._load_in_threads(found)
        if self._abandoned:
            self._close_all()
            raise KafkaStorageError("the start was abandoned while logs were loaded")
        for live in self._live():
            if live.path not in self._unrecovered:
                self._guarded(live, live.remember_boot)
        self._forget_slots()
        for log in self.logs():
            # What recovery kept past the durable end is only in the page cache.
            if log.native.durable_end < log.native.log_end_offset:
                self.commit(log, _report_nothing)

    def _forget_slots(self) -> None:
        """Free the durable-end slots whose partitions are gone; offline ones keep theirs."""
        if self._offline:
            return  # their topic ids may be among what could not be read
        for live in self._live():
            kept = [slot_key(log.topic_partition, log.topic_id) for log in self._logs_in(live)]
            self._guarded(live, live.forget_slots_but, kept)

    def _finish_moves(
        self, present: set[TopicPartition]
    ) -> list[tuple[LiveLogDir, FoundPartition]]:
        adopted = []
        for live in self._live():
            try:
                for future in live.find_future_replicas():
                    if future.topic_partition in present:
                        self._remove_tree_later(live, future.directory, 0)
                    else:
                        adopted.append((live, live.adopt(future)))
                        present.add(future.topic_partition)
            except OSError as error:
                self.fail_log_dir(live.path, error)
        return adopted

    def _load_in_threads(self, found: list[tuple[LiveLogDir, FoundPartition]]) -> None:
        queue = list(reversed(found))
        unexpected: list[tuple[TopicPartition, Exception]] = []

        def work() -> None:
            while not self._abandoned and not unexpected:
                try:
                    live, partition = queue.pop()
                except IndexError:
                    return
                try:
                    self._load(live, partition)
                except Exception as error:  # noqa: BLE001 - raised when the threads have ended
                    unexpected.append((partition.topic_partition, error))

        wanted = self._settings.num_recovery_threads_per_data_dir * max(1, len(self._dirs))
        threads = [
            threading.Thread(target=work, name="load logs", daemon=True)
            for _ in range(min(wanted, len(found)) - 1)
        ]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if unexpected:
            # A partition left out without a word would be made anew, and empty.
            tp, error = unexpected[0]
            self._close_all()
            raise KafkaStorageError(f"{tp} cannot be loaded: {error!r}") from error

    def _load(self, live: LiveLogDir, partition: FoundPartition) -> None:
        tp = partition.topic_partition
        if live.failure is not None:
            self._quarantine(tp, live.path, f"log directory {live.path} is offline")
            return
        try:
            log = live.load(partition, self._topic_settings(tp.topic), self)
        except LogDamaged as error:
            self._quarantine(tp, live.path, str(error))
            self._guarded(live, live.remember_damage, tp)
        except OSError as error:
            if error.errno in DISK_FULL:
                # What needs no space can still be served, and retention make room.
                self._unrecovered.add(live.path)
                self._quarantine(tp, live.path, f"no space to recover it: {error}")
                return
            self.fail_log_dir(live.path, error)
            self._quarantine(tp, live.path, f"log directory {live.path} is offline: {error}")
        else:
            with self._lock:
                self._logs[tp] = log

    def _quarantine(self, tp: TopicPartition, log_dir: Path, reason: str) -> None:
        with self._lock:
            self._offline[tp] = reason
            self._offline_dirs[tp] = log_dir
        _log.error("%s is offline: %s", tp, reason)

    # -- what there is -----------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Log | None:
        """Return a partition's log; None when there is none, or it is offline."""
        return self._logs.get(tp)

    def logs(self) -> list[Log]:
        """Return every log that is online."""
        with self._lock:
            return list(self._logs.values())

    def largest_producer_id(self) -> int:
        """Return the largest producer id that any log knows; -1 when there is none."""
        return max(
            (entry.producer_id for log in self.logs() for entry in log.native.producers()),
            default=-1,
        )

    @property
    def offline(self) -> Mapping[TopicPartition, str]:
        """Why each offline partition is offline."""
        return MappingProxyType(self._offline)

    @property
    def live_log_dirs(self) -> list[Path]:
        """The log directories that work."""
        return [live.path for live in self._live()]

    @property
    def offline_log_dirs(self) -> list[Path]:
        """The log directories that have failed."""
        return [path for path, live in self._dirs.items() if live.failure is not None]

    def _live(self) -> list[LiveLogDir]:
        return [live for live in self._dirs.values() if live.failure is None]

    def _logs_in(self, live: LiveLogDir) -> list[Log]:
        return [log for log in self.logs() if log.log_dir == live.path]

    # -- partitions come and go --------------------------------------------------------------

    def create(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID | None,
        settings: TopicSettings,
        leader_epoch: int = 0,
    ) -> Log:
        """Return the partition's log, made in the live directory with the fewest partitions.

        Raises:
            InconsistentTopicId: the log that is here belongs to another topic of this name.
            KafkaStorageError: the partition is offline, or no directory works.
        """
        (log,) = self.create_all([NewPartition(tp, topic_id, settings, leader_epoch)])
        if isinstance(log, KafkaError):
            raise log
        return log

    def create_all(self, wanted: Sequence[NewPartition]) -> list[Log | KafkaError]:
        """`create` for many, with one wait for each directory's names.

        Returns a log for each, or what `create` would raise.
        """
        made: dict[NewPartition, Log | KafkaError] = {}
        missing = wanted
        with self._create_lock:
            while missing:
                fresh: dict[LiveLogDir, list[Log]] = {}
                counts = self._partition_counts()
                for one in missing:
                    try:
                        made[one] = self._create(one, counts, fresh)
                    except (InconsistentTopicId, KafkaStorageError) as error:
                        made[one] = error
                for live, logs in fresh.items():
                    self._serve(live, logs)
                # What was in a directory that has just failed is made in another.
                gone = [log for logs in fresh.values() for log in logs if not self._is_served(log)]
                missing = [one for one in missing if made[one] in gone]
        return [made[one] for one in wanted]

    def _create(
        self,
        wanted: NewPartition,
        counts: Counter[Path],
        fresh: dict[LiveLogDir, list[Log]],
    ) -> Log:
        tp = wanted.topic_partition
        log = self._logs.get(tp)
        if log is not None:
            if None not in (wanted.topic_id, log.topic_id) and wanted.topic_id != log.topic_id:
                raise InconsistentTopicId(
                    f"{tp} is here with topic id {log.topic_id}, not {wanted.topic_id}"
                )
            return log
        if tp in self._offline:
            raise KafkaStorageError(f"{tp} is offline: {self._offline[tp]}")
        while True:
            live = self._roomiest(counts)
            try:
                log = live.create(tp, wanted.topic_id, wanted.settings, self)
            except OSError as error:
                refused = error.errno in DISK_FULL | NO_DESCRIPTORS
                if refused or isinstance(error, FileExistsError):
                    raise KafkaStorageError(f"{tp}: {error}") from error
                self.fail_log_dir(live.path, error)
                continue
            log.become_follower(wanted.leader_epoch)
            counts[live.path] += 1
            fresh.setdefault(live, []).append(log)
            return log

    def _serve(self, live: LiveLogDir, logs: Sequence[Log]) -> None:
        """Have new logs of one directory served, once their names are on its disk."""
        try:
            live.sync_names()
        except OSError as error:
            self.fail_log_dir(live.path, error)
        for log in logs:
            if self._take_in(log, live):
                _log.info("created %s in %s", log.topic_partition, live.path)

    def _is_served(self, log: Log) -> bool:
        return self._logs.get(log.topic_partition) is log

    def _take_in(self, log: Log, live: LiveLogDir) -> bool:
        """Have a log served, unless its directory has failed while it was made."""
        with self._lock:
            if live.failure is None:
                self._logs[log.topic_partition] = log
                return True
        log.drop()
        return False

    def _partition_counts(self) -> Counter[Path]:
        counts = Counter(log.log_dir for log in self.logs())
        with self._lock:
            counts.update(self._offline_dirs.values())
        return counts

    def _roomiest(self, counts: Counter[Path]) -> LiveLogDir:
        live = self._live()
        if not live:
            raise KafkaStorageError("every log directory is offline")
        return min(live, key=lambda candidate: counts[candidate.path])

    def delete(self, tp: TopicPartition) -> None:
        """Remove a partition: at once for everyone, from the disk after file.delete.delay.ms.

        An offline partition can be deleted too, unless its directory's disk has failed.

        Raises:
            UnknownTopicOrPartition: there is none.
            KafkaStorageError: its directory cannot be renamed.
        """
        with self._create_lock:
            with self._lock:
                log = self._logs.pop(tp, None)
                offline_dir = self._offline_dirs.pop(tp, None)
                self._offline.pop(tp, None)
            if log is None and offline_dir is None:
                raise UnknownTopicOrPartition(f"{tp} is not here")
            delay_ms = 0
            if log is not None:
                log.drop()
                offline_dir = log.log_dir
                delay_ms = log.settings.file_delete_delay_ms
            live = self._dirs[offline_dir] if offline_dir is not None else None
            if live is None or live.failure is not None:
                return
            try:
                leaving = live.put_away(live.path / str(tp), tp)
                if log is not None:
                    live.durable_ends.release(slot_key(tp, log.topic_id))
            except OSError as error:
                self.fail_log_dir(live.path, error)
                raise KafkaStorageError(f"{tp}: {error}") from error
        self._remove_tree_later(live, leaving, delay_ms)
        _log.info("deleted %s from %s", tp, live.path)

    def _remove_tree_later(self, live: LiveLogDir, directory: Path, delay_ms: int) -> None:
        self.scheduler.after(
            delay_ms, partial(self._guarded, live, self._fs.remove_tree, directory)
        )

    def move(self, tp: TopicPartition, log_dir: Path) -> None:
        """Move a partition to another of the log directories; returns when it is there.

        Clients go on writing until the last few megabytes; then appends are refused for a
        moment, retriably. Callbacks of `on_log_moved` get the log that takes the old one's place.

        Raises:
            LogDirNotFound: not one of the directories that work.
            UnknownTopicOrPartition: the partition is not here, or offline.
            KafkaStorageError: the copy failed; the partition is where it was.
        """
        target = self._dirs.get(log_dir)
        if target is None or target.failure is not None:
            raise LogDirNotFound(f"{log_dir} is not a log directory that works")
        log = self._logs.get(tp)
        if log is None:
            raise UnknownTopicOrPartition(f"{tp} is not here")
        if log.log_dir == log_dir:
            return
        with self._lock:
            if tp in self._moving:
                raise ReassignmentInProgress(f"{tp} is being moved to {self._moving[tp]}")
            self._moving[tp] = log_dir
        try:
            self._move(log, target)
        finally:
            with self._lock:
                del self._moving[tp]

    def _move(self, log: Log, target: LiveLogDir) -> None:
        tp = log.topic_partition
        source = self._dirs[log.log_dir]
        copy = ReplicaCopy(self._fs, log, target.future_directory(tp))
        try:
            copy.begin()
            with self._create_lock, log.standing_still() as role:
                if self._logs.get(tp) is not log:
                    raise KafkaStorageError(f"{tp} went away while it was moved")
                copy.finish()
                moved = self._swap(log, source, copy, target)
                moved.succeed(role)
                log.retire()
                if not self._take_in(moved, target):
                    self._lose_moved(log, target)
                    raise KafkaStorageError(f"{tp} has moved to {target.path}, which has failed")
        except OSError as error:
            if error.errno not in DISK_FULL | NO_DESCRIPTORS:
                self.fail_log_dir(target.path, error)
            self._discard(copy, log, target)
            raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
        except KafkaStorageError:
            self._discard(copy, log, target)
            raise
        _log.info("moved %s from %s to %s", tp, source.path, target.path)
        # The old log can still be read until everybody has the new one. Without the locks: whom
        # the callbacks call may be waiting for the log.
        try:
            for callback in self._move_callbacks:
                callback(tp, moved)
        finally:
            # For those who wait until the old log is durable; the copy is already.
            with suppress(KafkaStorageError):
                log.flush()
            log.drop()

    def _lose_moved(self, old: Log, target: LiveLogDir) -> None:
        """Take a partition offline whose new directory failed when the old one was given up."""
        tp = old.topic_partition
        with self._lock:
            self._logs.pop(tp, None)
        old.drop()
        self._quarantine(tp, target.path, f"log directory {target.path} is offline")

    def _swap(self, log: Log, source: LiveLogDir, copy: ReplicaCopy, target: LiveLogDir) -> Log:
        """Put the copy in the log's place. A crash before the first rename undoes the move;
        one after it leaves a -future directory alone, which the next start adopts."""
        tp = log.topic_partition
        starts = _moved_starts([log])
        target.expect(tp, log.log_end_offset, log.high_watermark, starts.get(tp))
        try:
            leaving = source.put_away(log.directory, tp)
        except OSError as error:
            self.fail_log_dir(source.path, error)
            raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
        try:
            found = target.adopt(FoundPartition(copy.target, tp))
            moved = target.load(found, log.settings, self, clean_shutdown=False)
        except (OSError, LogDamaged) as error:
            target.withdraw(tp)
            self._fs.rename(leaving, log.directory)
            raise KafkaStorageError(f"{tp} cannot be moved: {error}") from error
        source.durable_ends.release(slot_key(tp, log.topic_id))
        self._remove_tree_later(source, leaving, log.settings.file_delete_delay_ms)
        return moved

    def _discard(self, copy: ReplicaCopy, log: Log, target: LiveLogDir) -> None:
        """Remove a copy, unless it may be all there is."""
        if self._fs.exists(log.directory) and self._fs.exists(copy.target):
            self._guarded(target, self._fs.remove_tree, copy.target)

    @property
    def moving(self) -> Mapping[TopicPartition, Path]:
        """Where partitions are being moved to."""
        return MappingProxyType(self._moving)

    def on_log_moved(self, callback: Callable[[TopicPartition, Log], None]) -> None:
        """Call back, on the thread of `move`, with each log that has taken another's place."""
        self._move_callbacks.append(callback)

    # -- LogOwner ----------------------------------------------------------------------------

    def commit(self, log: Log, done: Done) -> None:
        """Flush `log` soon on its directory's commit thread, then call `done` from there."""
        self._dirs[log.log_dir].group_commit.commit(log, done)

    def soon(self, log: Log, task: Callable[[], None]) -> None:
        """Run a log's task on the scheduler's thread."""
        self.scheduler.soon(task)

    def remove_later(self, log: Log, paths: Sequence[Path], delay_ms: int) -> None:
        """Unlink a log's `.deleted` files after a delay; a partition deleted meanwhile is fine."""
        live = self._dirs[log.log_dir]

        def remove() -> None:
            for path in paths:
                self._fs.unlink(path, missing_ok=True)

        self.scheduler.after(delay_ms, partial(self._guarded, live, remove))

    def lower_recovery_point(self, log: Log, offset: int) -> None:
        """Make durable that the log may end at `offset`. Raises OSError."""
        self._dirs[log.log_dir].recovery_points.lower(log.topic_partition, offset)

    def on_io_error(self, log: Log, error: OSError) -> None:
        """Take the log's directory offline."""
        self.fail_log_dir(log.log_dir, error)

    def on_disk_full(self, log: Log, error: OSError) -> None:
        """Say once that the directory takes no writes, and later that it does again."""
        path = log.log_dir
        with self._lock:
            begins = path not in self._full
            self._full.add(path)
            self._refused.add(path)
        if begins:
            _log.error("log directory %s is full, writes are refused: %s", path, error)
            self.scheduler.after(FULL_CHECK_MS, partial(self._look_whether_full, path))

    def _look_whether_full(self, path: Path) -> None:
        live = self._dirs[path]
        if live.failure is not None:
            return
        with self._lock:
            refused = path in self._refused
            self._refused.discard(path)
        if not refused and self._has_space(live):
            with self._lock:
                self._full.discard(path)
            _log.info("log directory %s has space again, no writes are refused", path)
        else:
            self.scheduler.after(FULL_CHECK_MS, partial(self._look_whether_full, path))

    def has_space_for(self, tp: TopicPartition) -> bool:
        """Tell whether a partition could be written to, or made, as far as space goes."""
        log = self._logs.get(tp)
        dirs = self._live() if log is None else [self._dirs[log.log_dir]]
        return bool(dirs) and all(self._has_space(live) for live in dirs)

    def _has_space(self, live: LiveLogDir) -> bool:
        try:
            return has_space(live.path)
        except OSError as error:
            self.fail_log_dir(live.path, error)
            return False

    def on_damage(self, log: Log, reason: str) -> None:
        """Take one partition offline; its files stay as they are."""
        with self._lock:
            if self._logs.get(log.topic_partition) is not log:
                return
            del self._logs[log.topic_partition]
        log.go_offline()
        self._quarantine(log.topic_partition, log.log_dir, reason)
        self.scheduler.soon(log.drop)
        live = self._dirs[log.log_dir]
        self.scheduler.soon(partial(self._guarded, live, live.remember_damage, log.topic_partition))
        for callback in self._damage_callbacks:
            self.scheduler.soon(partial(callback, log.topic_partition, reason))

    def on_partition_damage(self, callback: Callable[[TopicPartition, str], None]) -> None:
        """Call back, on the scheduler's thread, when a partition turns out to be damaged."""
        self._damage_callbacks.append(callback)

    # -- failed directories ------------------------------------------------------------------

    def on_log_dir_failure(self, callback: LogDirFailure) -> None:
        """Call back, on the scheduler's thread, with each directory that fails, and why."""
        self._failure_callbacks.append(callback)

    def fail_log_dir(self, path: Path, error: OSError) -> None:
        """Take a log directory offline, and its partitions with it. Safe from any thread."""
        live = self._dirs[path]
        with self._lock:
            if live.failure is not None:
                return
            live.failure = error
            gone = [log for log in self._logs.values() if log.log_dir == path]
            for log in gone:
                del self._logs[log.topic_partition]
                self._offline[log.topic_partition] = f"log directory {path} is offline: {error}"
                self._offline_dirs[log.topic_partition] = path
        for log in gone:
            log.go_offline()
        _log.error(
            "log directory %s is offline with %s: %s", path, counted(len(gone), "partition"), error
        )

        def finish() -> None:
            # Here and not above: the caller may hold a log's lock.
            for log in gone:
                log.drop()
            for callback in self._failure_callbacks:
                callback(path, str(error))

        self.scheduler.soon(finish)

    def _guarded(self, live: LiveLogDir, task: Callable[..., object], *args: object) -> bool:
        """Run a task on a directory's files, unless it is offline; an error takes it there.

        But not a full disk: what could not be written is tried again, and what is there serves.
        """
        if live.failure is not None:
            return False
        try:
            task(*args)
        except OSError as error:
            if error.errno in DISK_FULL | NO_DESCRIPTORS:
                _log.error("log directory %s: %s", live.path, error)
            else:
                self.fail_log_dir(live.path, error)
            return False
        except KafkaStorageError as error:
            _log.error("%s", error)
            return False
        return True

    # -- background --------------------------------------------------------------------------

    def _plan_tasks(self) -> None:
        settings = self._settings
        every = self.scheduler.every
        every(settings.log_flush_offset_checkpoint_interval_ms, self.checkpoint_recovery_points)
        every(
            settings.log_flush_start_offset_checkpoint_interval_ms,
            self.checkpoint_log_start_offsets,
        )
        every(
            settings.replica_high_watermark_checkpoint_interval_ms, self.checkpoint_high_watermarks
        )
        every(
            min(settings.log_flush_scheduler_interval_ms, MOST_FLUSH_CHECK_MS), self.flush_due_logs
        )
        every(settings.producer_id_expiration_check_interval_ms, self.expire_producers)
        self.scheduler.after(
            FIRST_RETENTION_MS,
            partial(every, settings.log_retention_check_interval_ms, self.apply_retention),
        )
        if settings.log_scrub_bytes_per_second > 0:
            every(SCRUB_STEP_MS, self._scrub_step)

    def apply_retention(self) -> int:
        """Apply retention to every log; return how many rules found segments to delete."""
        count = 0
        for log in self.logs():
            try:
                lines = log.apply_retention(self._clock.now_ms())
            except KafkaStorageError as error:
                _log.error("retention of %s: %s", log.topic_partition, error)
                continue
            for line in lines:
                _log.info("%s", line)
            count += len(lines)
        return count

    def expire_producers(self) -> None:
        """Forget the producers that have been silent for long."""
        now_ms = self._clock.now_ms()
        for log in self.logs():
            log.expire_producers(now_ms, self._settings.producer_id_expiration_ms)

    def flush_due_logs(self) -> None:
        """Ask for a flush of every log for which flush.messages or flush.ms say so."""
        now_ms = self._clock.now_ms()
        for log in self.logs():
            if log.is_flush_due(now_ms):
                log.last_flush_ms = now_ms
                self.commit(log, _report_nothing)

    def _scrub_step(self) -> None:
        budget = self._settings.log_scrub_bytes_per_second * SCRUB_STEP_MS // 1000
        self._scrub.step(budget, self._clock.monotonic_ms())

    def checkpoint_recovery_points(self) -> None:
        """Write down from where a crash makes each log be read again."""
        for live in self._live():
            self._guarded(live, self._store_recovery_points, live)

    def _store_recovery_points(self, live: LiveLogDir) -> None:
        live.durable_ends.sync()
        live.recovery_points.lift_ceilings()
        self._store(
            live.recovery_points,
            {log.topic_partition: log.recovery_point() for log in self._logs_in(live)},
        )

    def checkpoint_high_watermarks(self) -> None:
        """Write down the high watermarks."""
        for live in self._live():
            self._guarded(
                live,
                self._store,
                live.high_watermarks,
                {log.topic_partition: log.high_watermark for log in self._logs_in(live)},
            )

    def checkpoint_log_start_offsets(self) -> None:
        """Write down the log start offsets that DeleteRecords has moved into a segment."""
        for live in self._live():
            self._guarded(
                live, self._store, live.log_start_offsets, _moved_starts(self._logs_in(live))
            )

    def _store(self, checkpoint: OffsetCheckpoint, offsets: Mapping[TopicPartition, int]) -> None:
        """Write a checkpoint of the live logs, and what it said of those that are offline.

        Forgetting an offline partition would make its next recovery believe that nothing was
        promised, and truncate what is damaged. Raises OSError.
        """
        checkpoint.store({**self._kept(checkpoint.stored), **offsets})

    def _kept(self, stored: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        with self._lock:
            return {tp: offset for tp, offset in stored.items() if tp in self._offline}

    # -- the end -----------------------------------------------------------------------------

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flush and close every log, write the checkpoints, mark the shutdown clean."""
        self.scheduler.stop()
        for live in self._live():
            live.group_commit.stop()
        for live in self._live():
            self._close_logs(live, broker_epoch)
        for live in self._dirs.values():
            live.close()
        with self._lock:
            self._logs.clear()

    def _close_logs(self, live: LiveLogDir, broker_epoch: int) -> None:
        logs = self._logs_in(live)
        starts = _moved_starts(logs)
        closed = [self._guarded(live, log.close) for log in logs]
        if not all(closed):
            return
        ends = {log.topic_partition: log.native.durable_end for log in logs}
        watermarks = {log.topic_partition: log.high_watermark for log in logs}
        stored = (
            self._guarded(live, live.durable_ends.sync)
            and self._guarded(live, self._store, live.recovery_points, ends)
            and self._guarded(live, self._store, live.high_watermarks, watermarks)
            and self._guarded(live, self._store, live.log_start_offsets, starts)
        )
        if stored and live.path not in self._unrecovered:
            self._guarded(live, live.log_dir.mark_clean_shutdown, broker_epoch)


def _moved_starts(logs: Sequence[Log]) -> dict[TopicPartition, int]:
    """Return the log start offsets that the segments' names do not tell."""
    starts = {}
    for log in logs:
        start, segments = log.log_start_offset, log.native.segments
        if segments and start > segments[0].base_offset:
            starts[log.topic_partition] = start
    return starts


def _report_nothing(error: OSError | None) -> None:
    """For flushes that nobody waits for: the failed directory is reported by itself."""
