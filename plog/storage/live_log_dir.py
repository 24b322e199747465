"""A log directory in use: its checkpoints, its durable ends, its commit thread.

Owns what the partitions of one directory share, how a partition directory of it is
loaded, made and put away, and which errors of its files mean that its disk has failed.
Never knows the other directories, and never decides which directory a partition belongs
in, or what becomes of the logs of a failed one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import NamedTuple

from plog._native.disk_room import DiskRoom
from plog.errors import KafkaStorageError, LogDamaged
from plog.runtime.clock import Clock
from plog.settings.definitions import TopicSettings
from plog.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    OFFSET_GAPS_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    CheckpointDamaged,
    OffsetCheckpoint,
    decode_partition_metadata,
    store_topic_id,
)
from plog.storage.durable_ends import DURABLE_ENDS_FILE, DurableEnds, SlotKey
from plog.storage.file_errors import is_path_fault_of_partition, is_refusal
from plog.storage.filesystem import SPACE_BYTES, Filesystem, Space
from plog.storage.group_commit import GroupCommit
from plog.storage.incomplete_mark import Lack, lack_of, mark_incomplete
from plog.storage.log import COMPACT, Log
from plog.storage.log_dir import LogDir
from plog.storage.log_opening import open_log
from plog.storage.log_owner import LogOwner
from plog.storage.recovery import recover
from plog.storage.segment import KEPT_DESCRIPTORS, SEGMENT_DESCRIPTORS
from plog.storage.segment_files import (
    DELETE_DIRECTORY,
    FUTURE_DIRECTORY,
    LOG,
    PartitionDirectory,
    leaving_directory_name,
    parse_directory_name,
    parse_file_name,
)
from plog.storage.segment_verdict import ANY_OFFSET, Known
from plog.storage.shutdown_record import PartitionRecord, ShutdownRecord, read_kept
from plog.types import TopicPartition

DAMAGED_PARTITIONS_FILE = "damaged-partitions"
"""In the checkpoints' format, offsets 0: partitions that went offline for damage."""

_log = logging.getLogger(__name__)


class FoundPartition(NamedTuple):
    """A partition directory found at start."""

    directory: Path
    topic_partition: TopicPartition


def slot_key(topic_partition: TopicPartition, topic_id: uuid.UUID | None) -> SlotKey:
    """Return whose durable end a partition's is; a topic without an id goes by its name."""
    if topic_id is None:
        topic_id = uuid.uuid5(uuid.NAMESPACE_OID, topic_partition.topic)
    return SlotKey(topic_id, topic_partition.partition)


class LiveLogDir:
    """One of the broker's log directories, locked by this process.

    `failure` is set once its disk has failed; nothing is written to it from then on.

    Args:
        on_failure: told of each error that means a failed disk; sets `failure`.
        log_dir: the same directory, if the caller has locked it already.
    """

    def __init__(
        self,
        fs: Filesystem,
        clock: Clock,
        path: Path,
        on_failure: Callable[[Path, OSError], None],
        log_dir: LogDir | None = None,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._on_failure = on_failure
        self.path = path
        self.failure: OSError | None = None
        self.clean_shutdown = False
        self.was_served = False  # by plog
        self.machine_restarted = False  # since a broker last wrote here, cleanly ended or not
        # With partitions that the next start must recover, as if this one had not been.
        self.unrecovered = False
        self.log_dir = log_dir or LogDir(fs, path)
        self.durable_ends = DurableEnds(fs, path / DURABLE_ENDS_FILE)
        self.recovery_points = OffsetCheckpoint(fs, path / RECOVERY_POINT_FILE)
        self.high_watermarks = OffsetCheckpoint(fs, path / HIGH_WATERMARK_FILE)
        self.log_start_offsets = OffsetCheckpoint(fs, path / LOG_START_OFFSET_FILE)
        self.cleaner_offsets = OffsetCheckpoint(fs, path / CLEANER_OFFSET_FILE)
        self.gaps = OffsetCheckpoint(fs, path / OFFSET_GAPS_FILE)
        self._damaged = OffsetCheckpoint(fs, path / DAMAGED_PARTITIONS_FILE)
        self._damage_due: set[TopicPartition] = set()  # not in that file yet
        self._unmade: set[Path] = set()  # directories of partitions whose creation failed
        self._shutdown_record = ShutdownRecord(fs, path)
        self.group_commit = GroupCommit(f"commit {path}")
        self.room = DiskRoom()  # for clients' records; with others on the same disk
        self.refused_writes = 0  # for want of it

    def open(self, broker_id: int, cluster_id: str) -> None:
        """Lock the directory, check whose it is, and read what it says of its partitions.

        Raises:
            InconsistentLogDirs: in use, or another broker's.
            OSError: the disk has failed.
        """
        self.log_dir.open()
        self.was_served = self.log_dir.was_served()
        self.log_dir.claim(broker_id, cluster_id)
        self.machine_restarted = self.log_dir.machine_restarted()
        self._shutdown_record.take(self.log_dir.clean_shutdown_file)
        self.clean_shutdown = self.log_dir.take_clean_shutdown()
        self.durable_ends.open()
        for checkpoint in (
            self.recovery_points,
            self.high_watermarks,
            self.log_start_offsets,
            self.cleaner_offsets,
            self.gaps,
            self._damaged,
        ):
            try:
                checkpoint.load()
            except CheckpointDamaged as error:
                # Starting from nothing only makes recovery read more.
                _log.warning("checkpoint ignored: %s", error)

    # -- start -------------------------------------------------------------------------------

    def find_partitions(self) -> tuple[list[FoundPartition], list[Path]]:
        """Return the partition directories, and those that await removal. Raises OSError.

        A replica that was being moved here (-future) is kept only if the one it replaces is
        gone: then the move was at its last step.
        """
        parsed: dict[str, PartitionDirectory] = {}
        for name in self._fs.list_directory(self.path):
            found = parse_directory_name(name)
            if found is not None and self._fs.is_directory(self.path / name):
                parsed[name] = found
        partitions = [
            FoundPartition(self.path / name, found.topic_partition)
            for name, found in parsed.items()
            if not found.suffix
        ]
        leaving = [
            self.path / name for name, found in parsed.items() if found.suffix == DELETE_DIRECTORY
        ]
        return partitions, leaving

    def bytes_to_check(self, partitions: Iterable[FoundPartition]) -> int:
        """Return the bytes of log files whose indexes no shutdown record vouches for.

        0 unless the last stop was clean. Raises OSError.
        """
        if not self.clean_shutdown or self._shutdown_record.was_found:
            return 0
        size_bytes = 0
        for found in partitions:
            for name in self._fs.list_directory(found.directory):
                parsed = parse_file_name(name)
                if parsed is not None and parsed.kind == LOG:
                    with self._fs.opened(found.directory / name) as fd:
                        size_bytes += self._fs.size_bytes(fd)
        return size_bytes

    def is_unused(self, found: FoundPartition) -> bool:
        """Tell whether a partition has never held a record. Raises OSError."""
        for name in self._fs.list_directory(found.directory):
            parsed = parse_file_name(name)
            if parsed is None or parsed.kind != LOG:
                continue
            if parsed.base_offset or parsed.suffix:
                return False
            with self._fs.opened(found.directory / name) as fd:
                if self._fs.size_bytes(fd):
                    return False
        return True

    def find_future_replicas(self) -> list[FoundPartition]:
        """Return the directories of replicas that were being moved here. Raises OSError."""
        found = []
        for name in self._fs.list_directory(self.path):
            parsed = parse_directory_name(name)
            if parsed is not None and parsed.suffix == FUTURE_DIRECTORY:
                found.append(FoundPartition(self.path / name, parsed.topic_partition))
        return found

    def adopt(self, future: FoundPartition) -> FoundPartition:
        """Make a moved replica the partition's. Raises OSError."""
        directory = self.path / str(future.topic_partition)
        self._fs.rename(future.directory, directory)
        self.sync_names()
        return FoundPartition(directory, future.topic_partition)

    def withdraw(self, future: FoundPartition) -> None:
        """Undo `adopt`, if it got as far as the rename. The caller syncs the names.

        Raises OSError.
        """
        if not self._fs.is_directory(future.directory):
            self._fs.rename(self.path / str(future.topic_partition), future.directory)

    def future_directory(self, tp: TopicPartition) -> Path:
        """Return a new name for a replica that is being moved here."""
        return self.path / leaving_directory_name(tp, FUTURE_DIRECTORY, uuid.uuid4())

    def expect(
        self,
        tp: TopicPartition,
        end: int,
        high_watermark: int,
        log_start_offset: int | None,
        clean_to: int | None,
    ) -> None:
        """Make durable what the checkpoints should say of a replica about to be adopted.

        None: nothing, also where an earlier replica has left an entry. Raises OSError.
        """
        self.recovery_points.put(tp, end)
        self.high_watermarks.put(tp, high_watermark)
        for checkpoint, offset in (
            (self.log_start_offsets, log_start_offset),
            (self.cleaner_offsets, clean_to),
        ):
            if offset is None:
                checkpoint.drop(tp)
            else:
                checkpoint.put(tp, offset)
        self._forget_damage(tp)

    def load(
        self,
        found: FoundPartition,
        settings: TopicSettings,
        owner: LogOwner,
        *,
        clean_shutdown: bool | None = None,
        keep_free: int = KEPT_DESCRIPTORS,
    ) -> Log:
        """Recover and open one partition.

        Args:
            clean_shutdown: whether its log was closed; None: as the directory says.
            keep_free: the descriptors that the process must have left; EMFILE if it would have
                fewer.

        Raises:
            LogDamaged: it cannot be served; its files are as they were found.
            OSError: the disk has failed.
        """
        tp = found.topic_partition
        record = self._shutdown_record.of(tp)
        try:
            topic_id = self._topic_id(found.directory, record)
        except CheckpointDamaged as error:
            raise LogDamaged(str(error)) from error
        key = slot_key(tp, topic_id)
        if clean_shutdown is None:
            clean_shutdown = self.clean_shutdown
        is_damaged = self._was_offline(tp)
        clean_shutdown = clean_shutdown and not is_damaged
        known = Known(
            clean_shutdown=clean_shutdown,
            read_whole=is_damaged,
            # What went offline for damage is not explained by a restart that came later.
            machine_restarted=self.machine_restarted and not is_damaged,
            starts_with_its_epochs=self.was_served,
            recovery_point=self.recovery_points.stored.get(tp, 0),
            durable_end=self.durable_ends.durable_end(key) or 0,
            log_start_offset=self.log_start_offsets.stored.get(tp, 0),
            gaps_legal_below=self._gaps_legal_below(tp, settings),
            record=record if clean_shutdown else None,
        )
        log = self._open(
            tp, topic_id, found.directory, known, settings, owner,
            high_watermark=self.high_watermarks.stored.get(tp, 0), keep_free=keep_free,
        )  # fmt: skip
        try:
            self._forget_damage(tp)
            if self.machine_restarted and not clean_shutdown and not settings.flush_before_ack:
                self._mark_unclean(log)
        except OSError:
            log.drop()
            raise
        self._shutdown_record.forget(tp)
        return log

    def _mark_unclean(self, log: Log) -> None:
        """Note that a log may lack records of the page cache. Raises OSError.

        On a full disk the mark lasts as long as this process.
        """
        if lack_of(self._fs, log.directory) is not None:
            return
        try:
            mark_incomplete(self._fs, log.directory, Lack.UNCLEAN_STOP)
            self._fs.sync_directory(log.directory)
        except OSError as error:
            if not is_refusal(error):
                raise
            _log.warning("%s cannot be marked as incomplete: %s", log.topic_partition, error)
        log.lack = Lack.UNCLEAN_STOP

    def _was_offline(self, tp: TopicPartition) -> bool:
        """Tell whether a partition was offline for damage when the broker stopped."""
        if tp in self._damaged.stored:
            return True
        if self.clean_shutdown and self._shutdown_record.lacks(tp):
            _log.warning("%s was not closed by the clean shutdown of %s: reading it", tp, self.path)
            return True
        return False

    def _topic_id(self, directory: Path, record: PartitionRecord | None) -> uuid.UUID | None:
        path = directory / PARTITION_METADATA_FILE
        kept = None if record is None else record.texts.get(PARTITION_METADATA_FILE)
        text = read_kept(self._fs, path, kept)
        return None if text is None else decode_partition_metadata(text, str(path))

    def _gaps_legal_below(self, tp: TopicPartition, settings: TopicSettings) -> int:
        """Return below which offset batches may be missing, whatever the policy is by now.

        Who served the directory before (Kafka, or a plog that did not write it down) may have
        begun to compact a log, and stopped, without a trace.
        """
        if COMPACT in settings.cleanup_policy or not self.was_served:
            return ANY_OFFSET
        return max(self.gaps.stored.get(tp, 0), self.cleaner_offsets.stored.get(tp, 0))

    def note_gaps(self, logs: Iterable[Log]) -> None:
        """Write down what is taken for a gap in logs that may have any: once the policy is
        another, the next start would take it for a loss. Raises OSError."""
        self.gaps.raise_all(
            {
                log.topic_partition: (
                    # Compaction ends before the active segment; a follower of Kafka's copied
                    # gaps into that one, too.
                    log.native.segments[-1].base_offset if self.was_served else log.log_end_offset
                )
                for log in logs
                if log.gaps_legal_below == ANY_OFFSET
            }
        )

    def _open(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID | None,
        directory: Path,
        known: Known,
        settings: TopicSettings,
        owner: LogOwner,
        *,
        high_watermark: int,
        keep_free: int = KEPT_DESCRIPTORS,
    ) -> Log:
        recovered = recover(
            self._fs, directory, known, index_interval_bytes=settings.index_interval_bytes
        )
        for line in recovered.reports:
            _log.warning("recovered %s: %s", tp, line)
        log = open_log(
            recovered,
            topic_partition=tp,
            topic_id=topic_id,
            directory=directory,
            settings=settings,
            high_watermark=high_watermark,
            owner=owner,
            fs=self._fs,
            monotonic_ms=self._clock.monotonic_ms(),
            keep_free=keep_free,
        )
        log.native.set_room(self.room)
        key = slot_key(tp, topic_id)
        try:
            log.native.set_durable_slot(
                self.durable_ends.fd, self.durable_ends.position_for(key), key.encode()
            )
        except OSError:
            log.drop()
            raise
        return log

    def remember_boot(self) -> None:
        """Say that every log here has been recovered from what the machine's start left.

        Raises OSError.
        """
        self.log_dir.remember_boot()
        self.machine_restarted = False

    def forget_slots_but(self, kept: Iterable[SlotKey]) -> None:
        """Free the slots of partitions that are not here (any more). Raises OSError."""
        for key in set(self.durable_ends.keys()) - set(kept):
            self.durable_ends.release(key)

    # -- partitions come and go --------------------------------------------------------------

    def create(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID | None,
        settings: TopicSettings,
        owner: LogOwner,
        *,
        keep_free: int = KEPT_DESCRIPTORS,
        is_incomplete: bool = False,
    ) -> Log:
        """Make the directory of a new partition and open its log.

        Its name is durable after `sync_names`, and no record may be taken before that. The
        directory of a creation that fails is to be removed: `unmake` gives it another name.
        The checkpoints may still speak of a deleted partition of the same name: after a crash
        its offsets would be taken for the new one's, so that goes first, durably.

        Raises OSError.
        """
        for checkpoint in (
            self.recovery_points,
            self.log_start_offsets,
            self.high_watermarks,
            self.cleaner_offsets,
            self.gaps,
        ):
            if tp in checkpoint.stored:
                checkpoint.drop(tp)
        self._forget_damage(tp)
        directory = self.path / str(tp)
        if directory in self._unmade:
            self._fs.remove_tree(directory)
            self._unmade.discard(directory)
        self._fs.make_directory(directory)
        try:
            if is_incomplete:
                mark_incomplete(self._fs, directory)
            return self._create_in(directory, tp, topic_id, settings, owner, keep_free)
        except OSError:
            self._unmade.add(directory)
            raise

    def unmake(self, tp: TopicPartition, made: Log | None = None) -> Path | None:
        """Put away the directory of a partition that is not served yet; return its new name.

        Left in place it would be taken for a partition by the next start, also after its topic has
        been deleted. None: there is nothing to remove, or the next creation has to remove it.

        Args:
            made: the log that was made there, which is closed; None: `create` has failed.
        """
        directory = self.path / str(tp)
        if made is not None:
            made.drop()
            self._unmade.add(directory)
        if directory not in self._unmade:
            return None
        try:
            leaving = self.put_away(directory, tp)  # takes no descriptor, as its removal does
        except OSError as error:
            _log.error("cannot remove %s yet, which a failed creation left: %s", directory, error)
            return None
        self._unmade.discard(directory)
        return leaving

    def _create_in(
        self,
        directory: Path,
        tp: TopicPartition,
        topic_id: uuid.UUID | None,
        settings: TopicSettings,
        owner: LogOwner,
        keep_free: int,
    ) -> Log:
        if topic_id is not None:
            store_topic_id(self._fs, directory, topic_id)
        return self._open(
            tp, topic_id, directory, Known(clean_shutdown=True), settings, owner,
            high_watermark=0, keep_free=keep_free,
        )  # fmt: skip

    def sync_names(self) -> None:
        """Make the names of partitions durable. Needs no further descriptor. Raises OSError."""
        self.log_dir.sync_names()

    def put_away(self, directory: Path, tp: TopicPartition) -> Path:
        """Rename a partition directory so that it is no partition's; return its new name.

        Raises:
            OSError: it cannot be renamed, and has its old name.
        """
        leaving = self._rename_away(directory, tp)
        try:
            self.sync_names()
        except OSError:
            self._fs.rename(leaving, directory)
            raise
        return leaving

    def _rename_away(self, directory: Path, tp: TopicPartition) -> Path:
        leaving = self.path / leaving_directory_name(tp, DELETE_DIRECTORY, uuid.uuid4())
        self._fs.rename(directory, leaving)
        return leaving

    def remove_tree(self, directory: Path) -> None:
        """Remove what was put away. Raises OSError."""
        self._fs.remove_tree(directory)

    def remember_damage(self, tp: TopicPartition) -> None:
        """Make the next start read a damaged partition whole, whatever else it is told.

        Otherwise a clean shutdown of the others would let its bytes pass unread. Raises OSError;
        `store_damage` tries again.
        """
        self._damage_due.add(tp)
        self.store_damage()

    def store_damage(self) -> None:
        """Write down the damaged partitions that are not written down yet. Raises OSError."""
        for tp in list(self._damage_due):
            self._damaged.put(tp, 0)
            self._damage_due.discard(tp)

    def _forget_damage(self, tp: TopicPartition) -> None:
        self._damage_due.discard(tp)
        if tp in self._damaged.stored:
            self._damaged.drop(tp)

    # -- the disk fails ----------------------------------------------------------------------

    def note_failure(self, error: OSError) -> None:
        """Remember why nothing can be written any more."""
        # Without its traceback, which would keep the files open of whoever met it.
        self.failure = copy(error)

    def fail(self, error: OSError) -> None:
        """Take the directory offline, and its partitions with it. Safe from any thread."""
        self._on_failure(self.path, error)

    def note(self, error: OSError) -> None:
        """Take the directory offline if an error means that its disk has failed; log it if not."""
        if is_refusal(error) or is_path_fault_of_partition(error, self.path):
            _log.error("log directory %s: %s", self.path, error)
        else:
            self.fail(error)

    def slot_of(self, tp: TopicPartition) -> SlotKey | None:
        """Return whose slot an offline partition has; None if its topic id cannot be read."""
        try:
            return slot_key(tp, self._topic_id(self.path / str(tp), None))
        except (CheckpointDamaged, OSError):
            return None

    def forget(self, tp: TopicPartition, slot: SlotKey | None) -> None:
        """Free the slot of a partition that has left, and forget how far it was compacted.

        Can be called again after an error, as long as the partition is not back. Raises OSError.

        Args:
            slot: None if the partition's topic id is unknown.
        """
        if slot is not None:
            self.durable_ends.release(slot)
        for checkpoint in (self.cleaner_offsets, self.gaps):
            if tp in checkpoint.stored:
                checkpoint.drop(tp)

    def guarded(self, task: Callable[..., object], *args: object) -> bool:
        """Run a task on the directory's files, unless it is offline; tell whether it was done.

        An error takes the directory offline, except those that do not mean a failed disk.
        """
        if self.failure is not None:
            return False
        try:
            task(*args)
        except OSError as error:
            self.note(error)
            return False
        except KafkaStorageError as error:
            _log.error("%s", error)
            return False
        return True

    def space(self) -> Space:
        """Return how much is free here.

        Raises:
            OSError: that cannot be told, or another directory, or none, is where this one was.
        """
        self.log_dir.check_place()
        return self._fs.space(self.path)

    def has_space(self) -> bool:
        """Tell whether a log could be opened here: the reserve, too, counts as free space."""
        try:
            return self.space().free_bytes >= SPACE_BYTES and self._fs.has_descriptors(
                SEGMENT_DESCRIPTORS + KEPT_DESCRIPTORS
            )
        except OSError as error:
            self.note(error)
            return False

    def mark_clean_shutdown(self, broker_epoch: int, logs: Iterable[Log]) -> None:
        """Say that these logs, all that are online, were flushed and closed. Raises OSError."""
        self.store_damage()
        self.log_dir.mark_clean_shutdown(broker_epoch)
        closed = [(log.topic_partition, log.directory) for log in logs]
        self._shutdown_record.store(self.log_dir.clean_shutdown_file, closed)

    def close(self) -> None:
        """Give the directory back; every log must be closed."""
        self.group_commit.stop()
        self.durable_ends.close()
        self.log_dir.unlock()
