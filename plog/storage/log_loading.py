"""Opens the log directories at a start, and loads every log in them.

Owns the handling of a start's findings: partitions in one or two directories, unfinished moves
between directories, and directories to remove. Never judges damage (recovery does), and keeps no
log: it passes each one to the log manager.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from plog._native.files import NO_RESOURCES
from plog.errors import InconsistentLogDirs, KafkaStorageError, LogDamaged
from plog.runtime.partition_lines import log_partitions
from plog.settings.definitions import TopicSettings
from plog.storage.file_errors import is_path_fault_of_partition, is_refusal
from plog.storage.live_log_dir import FoundPartition, LiveLogDir
from plog.storage.log import Log
from plog.storage.log_dir import DIRECTORY_ID
from plog.storage.log_owner import LogOwner
from plog.storage.segment import KEPT_DESCRIPTORS
from plog.storage.shutdown_record import SHUTDOWN_RECORD_FILE
from plog.types import TopicPartition, counted, uuid_to_text

_log = logging.getLogger(__name__)

LATE_KEEPS = 8
"""Number of descriptors that opening a log after the start must leave for clients."""


class Register(LogOwner, Protocol):
    """The log manager, as its start sees it."""

    def add_loaded(self, log: Log) -> None:
        """Add a loaded log."""

    def quarantine(
        self, topic_partition: TopicPartition, log_dir: Path, reason: str, *, log: bool = True
    ) -> None:
        """Register an offline partition."""

    def load_later(self, live: LiveLogDir, partition: FoundPartition) -> None:
        """Call `LogLoading.load_late` once there are space and descriptors."""

    def remove_tree_later(self, live: LiveLogDir, directory: Path, delay_ms: int) -> None:
        """Remove a directory that belongs to no partition."""


def open_log_dirs(
    dirs: Mapping[Path, LiveLogDir],
    unmounted: Mapping[Path, uuid.UUID],
    *,
    broker_id: int,
    cluster_id: str,
) -> None:
    """Open every directory; set `failure` if its disk has failed or is not mounted.

    Closes all of them on an error.

    Raises:
        InconsistentLogDirs: a directory is in use, or belongs to another broker.
        KafkaStorageError: no file descriptor or memory is left to open one.
    """
    try:
        for live in dirs.values():
            try:
                if live.path in unmounted:
                    raise _not_mounted(live.path, unmounted[live.path])
                live.open(broker_id, cluster_id)
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    raise _no_descriptor(live.path, error) from error
                live.note_failure(error)
                _log.error("log directory %s is offline: %s", live.path, error)
    except (InconsistentLogDirs, KafkaStorageError):
        for live in dirs.values():
            live.close()
        raise


def _no_descriptor(path: Path, error: OSError) -> KafkaStorageError:
    """Return the error of a start without descriptors or memory; the disk has not failed."""
    return KafkaStorageError(f"log directory {path} cannot be read: {error}")


def _not_mounted(path: Path, directory_id: uuid.UUID) -> OSError:
    return OSError(
        f"it is empty, but {DIRECTORY_ID} {uuid_to_text(directory_id)} was there before. Mount its"
        f" disk and restart; if it is lost, run `plog log-dirs --forget {path} PROPERTIES` with the"
        " broker's properties file"
    )


class LogLoading:
    """The loading of one start. `abandon` is for other threads.

    Args:
        register: gets every log, and every offline partition.
        topic_settings: returns the effective settings of a topic.
        threads: number of logs to load in parallel.
        keep_free: number of descriptors that `load` leaves to the rest of the broker.
    """

    def __init__(
        self,
        register: Register,
        topic_settings: Callable[[str], TopicSettings],
        *,
        threads: int,
        keep_free: int = KEPT_DESCRIPTORS,
    ) -> None:
        self._register = register
        self._topic_settings = topic_settings
        self._threads = threads
        self._keep_free = keep_free
        self._abandoned = False
        self._found = 0
        self._left = 0
        # Because their directory failed; logged together.
        self._not_loaded: list[tuple[LiveLogDir, TopicPartition]] = []

    @property
    def progress(self) -> tuple[int, int]:
        """Numbers of logs started to load, and of all logs; (0, 0) before any was found."""
        return self._found - self._left, self._found

    def abandon(self) -> None:
        """Stop `load` after the current partitions."""
        self._abandoned = True

    def load(self, dirs: Collection[LiveLogDir], *, is_one_missing: bool = False) -> None:
        """Load every log of the working directories.

        Args:
            is_one_missing: whether a log directory is missing from `dirs`.

        Raises:
            KafkaStorageError: a partition cannot be loaded for a reason other than its files, a
                directory cannot be listed for want of a descriptor or memory, or `abandon` was
                called.
        """
        self._load_in_threads(self._find(dirs, is_one_missing))
        if self._abandoned:
            raise KafkaStorageError("the start was abandoned while logs were loaded")

    def _find(
        self, dirs: Collection[LiveLogDir], is_one_missing: bool
    ) -> list[tuple[LiveLogDir, FoundPartition]]:
        found: list[tuple[LiveLogDir, FoundPartition]] = []
        for live in _working(dirs):
            try:
                partitions, leaving = live.find_partitions()
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    raise _no_descriptor(live.path, error) from error
                live.fail(error)
                continue
            found += [(live, partition) for partition in partitions]
            _announce_check(live, partitions)
            for directory in leaving:
                self._register.remove_tree_later(live, directory, 0)
        found += self._finish_moves(
            dirs,
            {partition.topic_partition for _, partition in found},
            is_one_missing or len(_working(dirs)) < len(dirs),
        )
        for tp, count in Counter(p.topic_partition for _, p in found).items():
            if count > 1:
                same = [one for one in found if one[1].topic_partition == tp]
                found = [one for one in found if one not in same]
                found += self._one_of(tp, same)
        return found

    def _one_of(
        self, tp: TopicPartition, same: list[tuple[LiveLogDir, FoundPartition]]
    ) -> list[tuple[LiveLogDir, FoundPartition]]:
        """Choose the directory of a partition that is in several ones; return [] if unclear.

        A failed creation can leave an empty replica if the disk could not even rename it, while the
        partition was created in another directory. Removes the empty replica.

        Raises:
            KafkaStorageError: no file descriptor or memory is left to look into one.
        """
        try:
            used = [(live, one) for live, one in same if not live.is_unused(one)] or same[:1]
            if len(used) == 1:
                for live, one in same:
                    if (live, one) not in used:
                        leaving = live.put_away(one.directory, tp)
                        self._register.remove_tree_later(live, leaving, 0)
                return used
            reason = ""
        except OSError as error:
            if error.errno in NO_RESOURCES:
                raise _no_descriptor(same[0][0].path, error) from error
            reason = f" ({error})"
        where = " and in ".join(str(one.directory) for _, one in same)
        self._register.quarantine(tp, same[0][0].path, f"it is in {where}{reason}")
        return []

    def _finish_moves(
        self, dirs: Collection[LiveLogDir], present: set[TopicPartition], is_one_missing: bool
    ) -> list[tuple[LiveLogDir, FoundPartition]]:
        """Adopt moved replicas whose originals are gone; remove the others.

        If a directory is missing, the original may be in it, and the copy here may be incomplete.
        Then nothing is adopted yet.
        """
        adopted = []
        for live in _working(dirs):
            try:
                for future in live.find_future_replicas():
                    if future.topic_partition in present:
                        self._register.remove_tree_later(live, future.directory, 0)
                    elif not is_one_missing and (found := self._adopt(live, future)) is not None:
                        adopted.append((live, found))
                        present.add(future.topic_partition)
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    raise _no_descriptor(live.path, error) from error
                live.fail(error)
        return adopted

    def _adopt(self, live: LiveLogDir, future: FoundPartition) -> FoundPartition | None:
        """Adopt a moved replica; return None if its name is in use. Raises OSError."""
        try:
            return live.adopt(future)
        except OSError as error:
            if not is_path_fault_of_partition(error, live.path):
                raise
            self._register.quarantine(future.topic_partition, live.path, str(error))
            return None

    def _load_in_threads(self, found: list[tuple[LiveLogDir, FoundPartition]]) -> None:
        queue = list(reversed(found))
        self._found = self._left = len(queue)
        unexpected: list[tuple[TopicPartition, Exception]] = []

        def work() -> None:
            while not self._abandoned and not unexpected:
                try:
                    live, partition = queue.pop()
                    self._left = len(queue)
                except IndexError:
                    return
                try:
                    self._load(live, partition)
                except Exception as error:  # noqa: BLE001 - raised again after the threads have ended
                    unexpected.append((partition.topic_partition, error))

        threads = [
            threading.Thread(target=work, name="load logs", daemon=True)
            for _ in range(min(self._threads, len(found)) - 1)
        ]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        self._log_not_loaded()
        if unexpected:
            # The broker would create a skipped partition again, empty.
            tp, error = unexpected[0]
            raise KafkaStorageError(f"{tp} cannot be loaded: {error!r}") from error

    def _log_not_loaded(self) -> None:
        for live in {live for live, _ in self._not_loaded}:
            partitions = [tp for of, tp in self._not_loaded if of is live]
            single, plural = "%s is offline: %s", "%s are offline: %s"
            log_partitions(
                _log, logging.ERROR, single, partitions, _is_offline(live), plural=plural
            )

    def load_late(self, live: LiveLogDir, partition: FoundPartition) -> bool:
        """Load a log of `load_later`; return False if space or descriptors are lacking again."""
        tp = partition.topic_partition
        try:
            return self._try_to_load(live, partition, LATE_KEEPS) is None
        except Exception as error:  # noqa: BLE001 - the other logs continue, like the scheduler's tasks
            _log.exception("%s cannot be loaded", tp)
            self._on_damage(live, tp, f"it cannot be loaded: {error!r}")
            return True

    def _load(self, live: LiveLogDir, partition: FoundPartition) -> None:
        tp = partition.topic_partition
        if live.failure is not None:
            self._register.quarantine(tp, live.path, _is_offline(live), log=False)
            self._not_loaded.append((live, tp))
        elif (refusal := self._try_to_load(live, partition, self._keep_free)) is not None:
            # The other logs work, and retention can free space.
            live.unrecovered = True
            lacking = (
                "no memory or no file descriptor is left to open it; retrying"
                if refusal.errno in NO_RESOURCES
                else "no space to recover it; retrying when space is free"
            )
            self._register.quarantine(tp, live.path, f"{lacking}: {refusal}")
            self._register.load_later(live, partition)

    def _try_to_load(
        self, live: LiveLogDir, partition: FoundPartition, keep_free: int
    ) -> OSError | None:
        """Load a log, or register it as offline; return an error if it can be loaded later."""
        tp = partition.topic_partition
        try:
            log = live.load(
                partition, self._topic_settings(tp.topic), self._register, keep_free=keep_free
            )
        except LogDamaged as error:
            self._on_damage(live, tp, str(error))
        except OSError as error:
            if is_refusal(error):
                return error
            if is_path_fault_of_partition(error, live.path):
                self._on_damage(live, tp, str(error))
                return None
            live.fail(error)
            reason = f"log directory {live.path} is offline: {error}"
            self._register.quarantine(tp, live.path, reason)
        else:
            self._register.add_loaded(log)
        return None

    def _on_damage(self, live: LiveLogDir, tp: TopicPartition, reason: str) -> None:
        self._register.quarantine(tp, live.path, reason)
        live.guarded(live.remember_damage, tp)


def _announce_check(live: LiveLogDir, partitions: Collection[FoundPartition]) -> None:
    """Log that a start reads much more than others: the first one of a release with records."""
    try:
        size_bytes = live.bytes_to_check(partitions)
    except OSError:
        return  # the load of the partition reports it
    if size_bytes:
        _log.info(
            "log directory %s has no %s: checking the indexes of %s against %.1f GB of batches",
            live.path,
            SHUTDOWN_RECORD_FILE,
            counted(len(partitions), "partition"),
            size_bytes / 1e9,
        )


def _is_offline(live: LiveLogDir) -> str:
    return f"log directory {live.path} is offline"


def _working(dirs: Collection[LiveLogDir]) -> list[LiveLogDir]:
    return [live for live in dirs if live.failure is None]
