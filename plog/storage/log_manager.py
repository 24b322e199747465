"""Every log of the broker, over all its log directories.

Owns which logs there are and where, why a partition is offline, the start and the clean
shutdown; it is the owner that the logs call back. How a start finds and loads them is
`log_loading`'s (and when again what a full disk kept from it, `late_recovery`'s), the periodic
work `housekeeping`'s and `log_checkpoints`', a move to another directory `log_moves`'. Never
touches a log's bytes: that is the log's.

Locks: `_lock` guards the maps only; no log is called while it is held, because logs
call back (as `LogOwner`) with their own lock held. `placement_lock` is held while a
partition is made, deleted, or takes another directory's place.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from plog._native.files import NO_RESOURCES
from plog.errors import (
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    UnknownTopicOrPartition,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.clock import Clock
from plog.runtime.partition_lines import log_partitions
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.storage.absent_replicas import AbsentReplicas
from plog.storage.durable_ends import SlotKey
from plog.storage.file_errors import is_path_fault_of_partition, is_refusal
from plog.storage.filesystem import DEV_NULL, Filesystem
from plog.storage.flush_retries import FlushRetries
from plog.storage.full_log_dirs import LOOK_MS, FullLogDirs, share_rooms
from plog.storage.group_commit import Done
from plog.storage.housekeeping import Housekeeping
from plog.storage.late_recovery import LateRecovery
from plog.storage.live_log_dir import FoundPartition, LiveLogDir, slot_key
from plog.storage.log import Log
from plog.storage.log_checkpoints import LogCheckpoints
from plog.storage.log_cleaner import LogCleaner
from plog.storage.log_dir import LogDir, check_named_once
from plog.storage.log_loading import LATE_KEEPS, LogLoading, open_log_dirs
from plog.storage.log_owner import report_nothing
from plog.storage.scheduler import Scheduler
from plog.storage.segment import KEPT_DESCRIPTORS
from plog.types import TopicPartition, counted

_log = logging.getLogger(__name__)

SAY_AGAIN_MS = 60_000
"""How often a want of descriptors is logged, however many requests it refuses."""

LOADING_KEEPS = 16
"""A start opens logs only while so many descriptors are left, and two for each network thread: for
what the broker opens after them, and for its first clients."""

TELL_LATE_MS = 200
"""For so long partitions that are recovered after the start are collected: all replicas of the
broker are looked at when it tells of any."""

LogDirFailure = Callable[[Path, str], None]


class NewPartition(NamedTuple):
    """A partition to be made by `LogManager.create_all`."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    settings: TopicSettings
    leader_epoch: int = 0
    is_late: bool = False  # it should be here already: descriptors are left for clients
    is_incomplete: bool = False  # it was here, and may not lead before it has been copied


class LogManager:
    """The logs of a broker. `start` first, `shutdown` last.

    Args:
        settings: `log.dirs` and the intervals of the background tasks.
        topic_settings: returns the effective settings of a topic.
        cluster_id: whose the directories must be, or become.
        broker_id: the same; None for that of `settings`.
        locked: directories that the caller has locked already; they are given back at the end.
        unmounted: directories of `log.dirs` whose disk is not there: they are offline, and nothing
            is written in them.
        missing: log directories that are in none of `log.dirs`, and where they were; those that
            should be in the unmounted ones too.
        broker_settings: returns the broker's settings as they are at any time, for what may change
            while it runs; None for `settings`.
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
        unmounted: Mapping[Path, uuid.UUID] = MappingProxyType({}),
        missing: Mapping[uuid.UUID, Path] = MappingProxyType({}),
        has_forgotten: bool = False,
        broker_settings: Callable[[], BrokerSettings] | None = None,
    ) -> None:
        self._settings = settings
        self._broker_id = settings.broker_id if broker_id is None else broker_id
        self._locked = {log_dir.path: log_dir for log_dir in locked}
        self._unmounted = unmounted
        self._absent = AbsentReplicas(missing, has_forgotten=has_forgotten)
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
        self._damage_callbacks: list[Callable[[TopicPartition, str], None]] = []
        self._deletion_callbacks: list[Callable[[TopicPartition], None]] = []
        self._late_callbacks: list[Callable[[Collection[TopicPartition]], None]] = []
        self._recovered_late: list[TopicPartition] = []  # which they are to be told of
        self._said_no_descriptor_ms: int | None = None
        self._lines = BoundedLines(_log, "%d further topics got new logs", least_level=logging.INFO)
        self._spare_fd = -1
        # Also of logs that are made while the broker starts, until `broker_started`.
        self._keep_free = LOADING_KEEPS + 2 * settings.num_network_threads
        self.placement_lock = threading.RLock()
        self.scheduler = Scheduler(clock, "storage tasks")
        self._full = FullLogDirs(settings.log_dir_reserve_bytes)
        self._flush_retries = FlushRetries(self.scheduler, self.commit)
        self.checkpoints = LogCheckpoints(self._live, self._logs_in, self._offline_among)
        self.trusted_time = TrustedTime(clock)
        """The broker's own: whatever goes for its age goes by it."""
        self._housekeeping = Housekeeping(settings, clock, self.trusted_time, self.logs, self)
        self.cleaner = LogCleaner(
            self._fs,
            clock,
            self.trusted_time,
            settings=broker_settings or (lambda: settings),
            logs=self.logs,
            checkpoint_of=lambda log: self._dirs[log.log_dir].cleaner_offsets,
            guarded=lambda log, task: self._dirs[log.log_dir].guarded(task),
        )
        self._loading = LogLoading(
            self,
            topic_settings,
            threads=settings.num_recovery_threads_per_data_dir * max(1, len(settings.log_dirs)),
            keep_free=self._keep_free,
        )
        self.late_recovery = LateRecovery(clock, self._load_late, self._on_recovered_all)

    # -- start -------------------------------------------------------------------------------

    def start(self, *, background: bool = True) -> None:
        """Lock the directories, load every log, start the background tasks.

        Raises:
            InconsistentLogDirs: a directory is in use, another broker's, or named twice.
            KafkaStorageError: no directory can be used, a partition cannot be loaded for no
                reason of its files, or `abandon_start` was called.
        """
        paths = [Path(text).absolute() for text in self._settings.log_dirs]
        check_named_once(paths)
        for path in paths:
            self._dirs[path] = LiveLogDir(
                self._fs, self._clock, path, self.fail_log_dir, self._locked.get(path)
            )
        open_log_dirs(
            self._dirs, self._unmounted, broker_id=self._broker_id, cluster_id=self._cluster_id
        )
        share_rooms(self._live(), self._fs)
        self._look_at_space()
        self._require_live_dir()
        self._load_all()
        self._require_live_dir()
        self.scheduler.every(LOOK_MS, self._look_at_space)
        self.scheduler.every(LOOK_MS, self.late_recovery.look)
        # Logs are closed one by one, and each has to write: with this descriptor, if none is left.
        with suppress(OSError):
            self._spare_fd = self._fs.open_file(DEV_NULL)
        self.checkpoints.plan(self.scheduler, self._settings)
        self._housekeeping.plan(self.scheduler)
        if background:
            self.scheduler.start()
            self.cleaner.start()

    @property
    def loading_progress(self) -> tuple[int, int]:
        """How many logs are loaded by now, and of how many. From any thread."""
        return self._loading.progress

    def broker_started(self) -> None:
        """Let new logs have the descriptors that were kept for the rest of the broker's start."""
        self._keep_free = KEPT_DESCRIPTORS

    def abandon_start(self) -> None:
        """Have `start` give up after the partitions it is at. From another thread.

        The next start finds everything as this one did.
        """
        self._loading.abandon()

    def _require_live_dir(self) -> None:
        if self.live_log_dirs:
            return
        self._close_all()
        raise KafkaStorageError(
            "no log directory can be used: "
            + "; ".join(f"{path}: {live.failure}" for path, live in self._dirs.items())
        )

    def _close_all(self) -> None:
        for log in self.logs():
            log.drop()
        for live in self._dirs.values():
            live.close()

    def _load_all(self) -> None:
        try:
            self._loading.load(self._dirs.values(), is_one_missing=self._absent.misses_a_log_dir)
        except KafkaStorageError:
            self._close_all()
            raise
        for live in self._live():
            # First: who has not served it before cannot tell gaps from what is lost.
            noted = live.guarded(live.note_gaps, self._logs_in(live))
            if noted and not live.unrecovered:
                live.guarded(live.remember_boot)
        self._forget_slots()
        for log in self.logs():
            self._flush_recovered(log)

    def _flush_recovered(self, log: Log) -> None:
        # What recovery kept past the durable end is only in the page cache.
        if log.native.durable_end < log.native.log_end_offset:
            self.commit(log, report_nothing)

    def _forget_slots(self) -> None:
        """Free the durable-end slots of partitions that are elsewhere, or had nothing to lose.

        Of those that are nowhere `reason_absent` tells. Offline ones keep theirs.
        """
        if self._offline:
            return  # their topic ids may be among what could not be read
        found = {slot_key(log.topic_partition, log.topic_id) for log in self.logs()}
        for live in self._live():
            here = {slot_key(log.topic_partition, log.topic_id) for log in self._logs_in(live)}
            lost = {key: end for key, end in live.durable_ends.ends() if key not in found and end}
            live.guarded(live.forget_slots_but, here | lost.keys())
            self._absent.remember(live.path, lost)

    def reason_absent(
        self, tp: TopicPartition, topic_id: uuid.UUID, *, is_only: bool
    ) -> str | None:
        """Say why a replica without a log is not to be made anew; None: nothing is known of it.

        To be asked only of one that should be here. `is_only`: it has no other replicas.
        """
        if (reason := self._absent.reason(tp, topic_id, is_only=is_only)) is not None:
            return reason
        return f"{tp} is not in any log directory that works" if self.offline_log_dirs else None

    def was_never_made(self, tp: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether a replica that is not here was not here before, either: no record is lost."""
        is_known = self.reason_absent(tp, topic_id, is_only=True) is not None
        return not (is_known or self._absent.has_forgotten)

    def log_dir_ids(self) -> dict[uuid.UUID, Path]:
        """Return the ids of the directories that work, which are on their disks."""
        return {
            live.log_dir.directory_id: live.path
            for live in self._live()
            if live.log_dir.directory_id is not None
        }

    def add_loaded(self, log: Log) -> None:
        """Take in a log that has been loaded, unless its directory has failed meanwhile."""
        if not self._take_in(log, self._dirs[log.log_dir]):
            reason = f"log directory {log.log_dir} is offline"
            self.quarantine(log.topic_partition, log.log_dir, reason)

    def load_later(self, live: LiveLogDir, partition: FoundPartition) -> None:
        """Have a partition loaded when its disk has space and the process has descriptors."""
        self.late_recovery.add(live, partition)

    def on_late_recovery(self, callback: Callable[[Collection[TopicPartition]], None]) -> None:
        """Call back, on the scheduler's thread, when partitions are recovered after the start.

        Together, if several are within TELL_LATE_MS.
        """
        self._late_callbacks.append(callback)

    def _load_late(self, live: LiveLogDir, partition: FoundPartition) -> bool:
        is_over = self._loading.load_late(live, partition)
        tp = partition.topic_partition
        if (log := self.get(tp)) is not None:
            self._flush_recovered(log)
            with self._lock:
                self._recovered_late.append(tp)
                is_first = len(self._recovered_late) == 1
            if is_first:
                self.scheduler.after(TELL_LATE_MS, self._tell_recovered)
        return is_over

    def _tell_recovered(self) -> None:
        with self._lock:
            recovered, self._recovered_late = self._recovered_late, []
        log_partitions(_log, logging.INFO, "%s recovered and online", recovered)
        for callback in self._late_callbacks:
            callback(recovered)

    def _on_recovered_all(self, live: LiveLogDir) -> None:
        if live.unrecovered and live.guarded(live.remember_boot):
            live.unrecovered = False

    def quarantine(
        self, topic_partition: TopicPartition, log_dir: Path, reason: str, *, log: bool = True
    ) -> None:
        """Take note that a partition is offline, and why; its files stay where they are."""
        with self._lock:
            self._offline[topic_partition] = reason
            self._offline_dirs[topic_partition] = log_dir
        if log:
            _log.error("%s is offline: %s", topic_partition, reason)

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
    def missing_log_dirs(self) -> Mapping[uuid.UUID, Path]:
        """The log directories that were there once and were not at the start, and where."""
        return self._absent.missing

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

    @property
    def dirs(self) -> Mapping[Path, LiveLogDir]:
        """Every log directory, those that have failed too."""
        return MappingProxyType(self._dirs)

    def has_space_for(self, tp: TopicPartition) -> bool:
        """Tell whether a partition could be written to, or made: space and descriptors are left."""
        log = self._logs.get(tp)
        dirs = self._live() if log is None else [self._dirs[log.log_dir]]
        return bool(dirs) and all(live.has_space() for live in dirs)

    def _look_at_space(self) -> None:
        for live in self._live():
            self._full.look(live)

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
        *,
        is_late: bool = False,
        is_incomplete: bool = False,
    ) -> Log:
        """Return the partition's log, made in the live directory with the fewest partitions.

        A full directory is taken only when every one is.

        Raises:
            InconsistentTopicId: the log that is here belongs to another topic of this name.
            KafkaStorageError: the partition is offline, or no directory works.
        """
        (log,) = self.create_all(
            [NewPartition(tp, topic_id, settings, leader_epoch, is_late, is_incomplete)]
        )
        if isinstance(log, KafkaError):
            raise log
        return log

    def create_all(self, wanted: Sequence[NewPartition]) -> list[Log | KafkaError]:
        """`create` for many, with one wait for each directory's names.

        Returns a log for each, or what `create` would raise.
        """
        made: dict[NewPartition, Log | KafkaError] = {}
        missing = wanted
        with self.placement_lock:
            while missing:
                fresh: dict[LiveLogDir, list[Log]] = {}
                counts = self._partition_counts()
                for one in missing:
                    try:
                        made[one] = self._create(one, counts, fresh)
                    except (InconsistentTopicId, KafkaStorageError) as error:
                        made[one] = error
                for live, logs in fresh.items():
                    refusal = self._serve(live, logs)
                    if refusal is not None:
                        for one in missing:
                            if made[one] in logs:
                                made[one] = self._refused(one.topic_partition, refusal)
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
                    f"{tp} has topic id {log.topic_id} here, not {wanted.topic_id}"
                )
            return log
        if tp in self._offline:
            raise KafkaStorageError(f"{tp} is offline: {self._offline[tp]}")
        while True:
            live = self._roomiest(counts)
            try:
                # What a late one leaves, the logs that are still to be loaded may have.
                keep_free = max(self._keep_free, 2 * LATE_KEEPS if wanted.is_late else 0)
                log = live.create(
                    tp,
                    wanted.topic_id,
                    wanted.settings,
                    self,
                    keep_free=keep_free,
                    is_incomplete=wanted.is_incomplete,
                )
            except OSError as error:
                self._unmake(live, tp)
                if is_refusal(error) or is_path_fault_of_partition(error, live.path):
                    raise self._refused(tp, error) from error
                self.fail_log_dir(live.path, error)
                continue
            log.become_follower(wanted.leader_epoch)
            counts[live.path] += 1
            fresh.setdefault(live, []).append(log)
            return log

    def _serve(self, live: LiveLogDir, logs: Sequence[Log]) -> OSError | None:
        """Have new logs of one directory served, once their names are on its disk.

        An error is returned that does not mean a failed disk: the logs are removed then.
        """
        try:
            live.sync_names()
        except OSError as error:
            if is_refusal(error):
                for log in logs:
                    self._unmake(live, log.topic_partition, log)
                return error
            for log in logs:
                self._unmake(live, log.topic_partition, log)  # they are made in another one
            self.fail_log_dir(live.path, error)
        taken = [log.topic_partition for log in logs if self._take_in(log, live)]
        log_partitions(self._lines, logging.INFO, "created %s in %s", taken, live.path)
        return None

    def _unmake(self, live: LiveLogDir, tp: TopicPartition, made: Log | None = None) -> None:
        if (leaving := live.unmake(tp, made)) is not None:
            self.remove_tree_later(live, leaving, 0)

    def _refused(self, tp: TopicPartition, error: OSError) -> KafkaStorageError:
        """Return the answer to a creation that may be tried again; its cause says why."""
        failure = KafkaStorageError(f"{tp}: {error}")
        failure.__cause__ = error
        return failure

    def _is_served(self, log: Log) -> bool:
        return self._logs.get(log.topic_partition) is log

    def _take_in(self, log: Log, live: LiveLogDir) -> bool:
        """Have a log served, unless its directory has failed while it was made."""
        with self._lock:
            if live.failure is None:
                self._logs[log.topic_partition] = log
                self._offline.pop(log.topic_partition, None)
                self._offline_dirs.pop(log.topic_partition, None)
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
        return min(live, key=lambda one: (one.room.left <= 0, counts[one.path]))

    def delete(self, tp: TopicPartition) -> None:
        """Remove a partition: at once for everyone, from the disk after file.delete.delay.ms.

        An offline partition can be deleted too, unless its directory's disk has failed. The caller
        logs the deletion, once for all partitions of a topic.

        Raises:
            UnknownTopicOrPartition: there is none.
            KafkaStorageError: its directory cannot be renamed, or a callback refuses.
        """
        with self.cleaner.paused(tp), self.late_recovery.without(tp), self.placement_lock:
            for callback in self._deletion_callbacks:
                callback(tp)
            with self._lock:
                log = self._logs.pop(tp, None)
                offline_dir = self._offline_dirs.pop(tp, None)
                self._offline.pop(tp, None)
            if log is None and offline_dir is None:
                raise UnknownTopicOrPartition(f"this broker has no log of {tp}")
            delay_ms = 0
            if log is not None:
                log.drop()
                offline_dir = log.log_dir
                delay_ms = log.settings.file_delete_delay_ms
            live = self._dirs[offline_dir] if offline_dir is not None else None
            if live is None or live.failure is not None:
                return
            slot = live.slot_of(tp) if log is None else slot_key(tp, log.topic_id)
            try:
                leaving = live.put_away(live.path / str(tp), tp)
            except OSError as error:
                if is_refusal(error) or is_path_fault_of_partition(error, live.path):
                    # Its files are where they were, and the deletion can be asked for again.
                    self.quarantine(tp, live.path, f"it cannot be deleted: {error}")
                else:
                    self.fail_log_dir(live.path, error)
                raise KafkaStorageError(f"{tp}: {error}") from error
            self.forget_left(live, tp, slot)
        self.remove_tree_later(live, leaving, delay_ms)
        _log.debug("deleted %s from %s", tp, live.path)

    def before_deletion(self, callback: Callable[[TopicPartition], None]) -> None:
        """Call back, with `placement_lock` held, before each deletion.

        A KafkaStorageError of a callback refuses the deletion, which has changed nothing yet.
        """
        self._deletion_callbacks.append(callback)

    def replace(self, old: Log, moved: Log, target: LiveLogDir) -> bool:
        """Have a log that has moved served in the old one's place.

        False, and the partition offline, when its new directory has failed meanwhile.
        """
        if self._take_in(moved, target):
            return True
        # The old one was given up.
        tp = old.topic_partition
        with self._lock:
            self._logs.pop(tp, None)
        old.drop()
        self.quarantine(tp, target.path, f"log directory {target.path} is offline")
        return False

    def forget_left(self, live: LiveLogDir, tp: TopicPartition, slot: SlotKey | None) -> None:
        """Free what a directory keeps for a partition that has left it, unless it is back.

        Without a descriptor or space this is tried again.
        """
        with self.placement_lock:
            done = self._is_in(live, tp) or live.guarded(live.forget, tp, slot)
        if not done and live.failure is None:
            self.scheduler.after(SAY_AGAIN_MS, partial(self.forget_left, live, tp, slot))

    def _is_in(self, live: LiveLogDir, tp: TopicPartition) -> bool:
        with self._lock:
            log = self._logs.get(tp)
            path = self._offline_dirs.get(tp) if log is None else log.log_dir
        return path == live.path

    def remove_tree_later(self, live: LiveLogDir, directory: Path, delay_ms: int) -> None:
        """Remove a directory that is no partition's any more, after a delay, as `do_later`."""
        self.do_later(live, partial(live.remove_tree, directory), delay_ms)

    def do_later(self, live: LiveLogDir, task: Callable[[], object], delay_ms: int) -> None:
        """Run a task on a directory's files on the scheduler's thread, after a delay.

        What cannot be done now (the broker's log says why) is tried again.
        """

        def run() -> None:
            done = live.guarded(task)
            if not done and live.failure is None:  # no descriptor was left, or no space
                self.do_later(live, task, SAY_AGAIN_MS)

        self.scheduler.after(delay_ms, run)

    # -- LogOwner ----------------------------------------------------------------------------

    def commit(self, log: Log, done: Done) -> None:
        """Flush `log` soon on its directory's commit thread, then call `done` from there.

        While there is no descriptor for it, it is tried again.
        """
        self._dirs[log.log_dir].group_commit.commit(log, partial(self._on_flushed, log, done))

    def _on_flushed(self, log: Log, done: Done, error: OSError | None) -> None:
        if error is not None and error.errno in NO_RESOURCES:
            self._flush_retries.add(log, done, error)
        else:
            done(error)

    def soon(self, log: Log, task: Callable[[], None]) -> None:
        """Run a log's task on the scheduler's thread."""
        self.scheduler.soon(task)

    def remove_later(self, log: Log, paths: Sequence[Path], delay_ms: int) -> None:
        """Unlink a log's `.deleted` files after a delay; a partition deleted meanwhile is fine."""
        live = self._dirs[log.log_dir]

        def remove() -> None:
            for path in paths:
                self._fs.unlink(path, missing_ok=True)

        self.scheduler.after(delay_ms, partial(live.guarded, remove))

    def lower_recovery_point(self, log: Log, offset: int) -> None:
        """Make durable that the log may end at `offset`. Raises OSError."""
        self._dirs[log.log_dir].recovery_points.lower(log.topic_partition, offset)

    def allow_gaps(self, log: Log, end: int) -> None:
        """Make durable that batches may be missing below an offset. Raises OSError."""
        self._dirs[log.log_dir].gaps.raise_to(log.topic_partition, end)

    def on_io_error(self, log: Log, error: OSError) -> None:
        """Take the log's directory offline."""
        self.fail_log_dir(log.log_dir, error)

    def on_disk_full(self, log: Log, error: OSError) -> None:
        """Say once that the directory takes no writes, and later that it does again."""
        self._full.on_refused_write(self._dirs[log.log_dir], error)

    def on_no_descriptor(self, log: Log) -> None:
        """Log that an operation was refused because no descriptor is left, once in a while."""
        self._say_no_descriptor(log.topic_partition)

    def _say_no_descriptor(self, of: object) -> None:
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            silent = self._said_no_descriptor_ms
            is_due = silent is None or now_ms - silent >= SAY_AGAIN_MS
            if is_due:
                self._said_no_descriptor_ms = now_ms
        if is_due:
            _log.error(
                "%s: no memory or no file descriptor is left; operations that need one are refused"
                " (here and elsewhere)",
                of,
            )

    def on_damage(self, log: Log, reason: str) -> None:
        """Take one partition offline; its files stay as they are."""
        with self._lock:
            if self._logs.get(log.topic_partition) is not log:
                return
            # Under one lock: a deletion in between would find no partition.
            del self._logs[log.topic_partition]
            self._offline[log.topic_partition] = reason
            self._offline_dirs[log.topic_partition] = log.log_dir
        log.go_offline()
        _log.error("%s is offline: %s", log.topic_partition, reason)
        self.scheduler.soon(log.drop)
        live = self._dirs[log.log_dir]
        remember = partial(self._remember_damage, live, log.topic_partition)
        self.scheduler.soon(partial(live.guarded, remember))
        for callback in self._damage_callbacks:
            self.scheduler.soon(partial(callback, log.topic_partition, reason))

    def _remember_damage(self, live: LiveLogDir, tp: TopicPartition) -> None:
        """Remember damage, unless the partition was deleted since. Raises OSError."""
        with self.placement_lock:
            if self._offline_dirs.get(tp) == live.path:
                live.remember_damage(tp)

    def on_partition_damage(self, callback: Callable[[TopicPartition, str], None]) -> None:
        """Call back, on the scheduler's thread, when a partition turns out to be damaged.

        It may have been deleted by then, and created again: then it is not in `offline`.
        """
        self._damage_callbacks.append(callback)

    # -- failed directories ------------------------------------------------------------------

    def on_log_dir_failure(self, callback: LogDirFailure) -> None:
        """Call back, on the scheduler's thread, with each directory that fails, and why."""
        self._failure_callbacks.append(callback)

    def fail_log_dir(self, path: Path, error: OSError) -> None:
        """Take a log directory offline, and its partitions with it. Safe from any thread.

        A want of descriptors or memory never does: the caller can try again.
        """
        if error.errno in NO_RESOURCES:
            self._say_no_descriptor(f"log directory {path}")
            return
        live = self._dirs[path]
        with self._lock:
            if live.failure is not None:
                return
            live.note_failure(error)
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

    # -- the end -----------------------------------------------------------------------------

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flush and close every log, write the checkpoints, mark the shutdown clean."""
        self.cleaner.stop()
        self.scheduler.stop()
        self.late_recovery.stop()
        for live in self._live():
            live.group_commit.stop()
        self._give_up_spare()
        for live in self._live():
            if self.checkpoints.close_logs(live) and not live.unrecovered:
                live.guarded(live.mark_clean_shutdown, broker_epoch, self._logs_in(live))
        for live in self._dirs.values():
            live.close()
        with self._lock:
            self._logs.clear()

    def _give_up_spare(self) -> None:
        if self._spare_fd >= 0:
            spare_fd, self._spare_fd = self._spare_fd, -1
            self._fs.close(spare_fd)

    def _offline_among(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        with self._lock:
            return {tp: offset for tp, offset in offsets.items() if tp in self._offline}
