"""Compacts the logs of a broker in the background, the dirtiest first, at a limited rate.

Owns the threads, the choice of the next log, the waits, and the checkpoints with each log's clean
offset. Never decides which part is dirty (`compaction`) or which records stay (`cleaner`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from plog.errors import PlogError
from plog.runtime.clock import Clock
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings
from plog.storage.checkpoints import OffsetCheckpoint
from plog.storage.cleaner import Abandoned, Cleaner, Cleaning
from plog.storage.compaction import DirtyRange
from plog.storage.filesystem import Filesystem
from plog.storage.log import COMPACT, Log
from plog.storage.pace import Pace
from plog.types import TopicPartition

_log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1
"""Interval at which `paused` checks whether the log is free."""
FAILED_PAUSE_MS = 300_000
"""How long a log is skipped after compaction has failed."""


class _Turn(NamedTuple):
    log: Log
    dirty: DirtyRange
    now_ms: int
    overdue: bool


class LogCleaner:
    """The cleaner's threads.

    Args:
        trusted_time: the time for the age of records and tombstones.
        settings: returns the broker's current settings.
        logs: returns every online log.
        checkpoint_of: returns the checkpoint of the log directory that a log is in.
        guarded: makes a call, and handles a failed disk.
    """

    def __init__(
        self,
        fs: Filesystem,
        clock: Clock,
        trusted_time: TrustedTime,
        *,
        settings: Callable[[], BrokerSettings],
        logs: Callable[[], Sequence[Log]],
        checkpoint_of: Callable[[Log], OffsetCheckpoint],
        guarded: Callable[[Log, Callable[[], object]], bool],
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._trusted_time = trusted_time
        self._settings = settings
        self._logs = logs
        self._checkpoint_of = checkpoint_of
        self._guarded = guarded
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._is_off = False
        self._at_work: set[TopicPartition] = set()
        self._paused: dict[TopicPartition, int] = {}
        self._not_before_ms: dict[TopicPartition, tuple[Log, int]] = {}
        self._pace = Pace(clock)

    def start(self) -> None:
        """Run as many threads as the settings require; surplus threads sleep.

        Call it after a change of the settings, which then also apply to waiting threads.
        """
        settings = self._settings()
        wanted = settings.log_cleaner_threads if settings.log_cleaner_enable else 0
        if settings.log_cleaner_enable and not wanted and not self._is_off:
            _log.warning("no log is compacted: log.cleaner.threads=0")
        self._is_off = not wanted
        with self._lock:
            for number in range(len(self._threads), wanted):
                thread = threading.Thread(
                    target=self._run, args=[number], name=f"log cleaner {number}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._lock.notify_all()

    def stop(self) -> None:
        """Abandon the current compactions, and end the threads."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def paused(self, at: TopicPartition) -> Iterator[None]:
        """Stop compacting a partition's log within a block, for example to move its files."""
        with self._lock:
            self._paused[at] = self._paused.get(at, 0) + 1
            if at in self._at_work:
                self._lock.notify_all()
            while at in self._at_work:
                self._lock.wait(LOOK_AGAIN_S)
        try:
            yield
        finally:
            with self._lock:
                self._paused[at] -= 1
                if not self._paused[at]:
                    del self._paused[at]

    def clean_now(self) -> int:
        """Compact all due logs in the caller's thread; return their number."""
        count = 0
        while (turn := self._take_turn()) is not None:
            self._clean(turn)
            count += 1
        return count

    # -- threads -------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    return
            settings = self._settings()
            is_at_work = settings.log_cleaner_enable and number < settings.log_cleaner_threads
            try:
                if is_at_work and (turn := self._take_turn()) is not None:
                    self._clean(turn)
                    continue
            except Exception:  # noqa: BLE001 - the thread must continue
                _log.exception("a log cleaner thread failed with an internal error and continues")
            with self._lock:
                if not self._stopping:
                    self._lock.wait(settings.log_cleaner_backoff_ms / 1000)

    def _take_turn(self) -> _Turn | None:
        """Return the dirtiest of the due logs."""
        now_ms = self._trusted_time.now_ms()
        due = [turn for log in self._logs() if (turn := self._due(log, now_ms)) is not None]
        for turn in sorted(due, key=lambda one: (one.overdue, one.dirty.ratio), reverse=True):
            at = turn.log.topic_partition
            with self._lock:
                if self._stopping or at in self._at_work or at in self._paused:
                    continue
                self._at_work.add(at)
            again = None
            try:
                # Another thread may have compacted it, or failed to, since the check.
                again = self._due(turn.log, now_ms)
            finally:
                if again is None:
                    self._let_go(at)
            if again is not None:
                return again
        return None

    def _due(self, log: Log, now_ms: int) -> _Turn | None:
        settings = log.settings
        if COMPACT not in settings.cleanup_policy or self._failed_lately(log):
            return None
        if not (dirty := self._dirty(log, now_ms)):
            return None
        lag_ms = settings.max_compaction_lag_ms
        if not dirty.is_due(
            min_ratio=settings.min_cleanable_dirty_ratio, max_lag_ms=lag_ms, now_ms=now_ms
        ):
            return None
        overdue = dirty.is_overdue(max_lag_ms=lag_ms, now_ms=now_ms)
        return _Turn(log, dirty, now_ms, overdue)

    def _let_go(self, at: TopicPartition) -> None:
        with self._lock:
            self._at_work.discard(at)
            self._lock.notify_all()

    def _failed_lately(self, log: Log) -> bool:
        with self._lock:  # other threads read and postpone logs, too
            failed, until_ms = self._not_before_ms.get(log.topic_partition, (None, 0))
            if failed is None:
                return False
            if failed is log and self._clock.monotonic_ms() < until_ms:
                return True
            del self._not_before_ms[log.topic_partition]
            return False

    def _dirty(self, log: Log, now_ms: int) -> DirtyRange | None:
        try:
            checkpoint = self._checkpoint_of(log).stored.get(log.topic_partition)
            return log.dirty_range(checkpoint, now_ms)
        except PlogError as failure:
            _log.warning("%s is not compacted: %s", log.topic_partition, failure)
            return None

    def _clean(self, turn: _Turn) -> None:
        log, at = turn.log, turn.log.topic_partition
        begun = time.monotonic()
        try:
            settings = self._settings()
            cleaner = Cleaner(
                self._fs,
                key_memory_bytes=settings.log_cleaner_dedupe_buffer_size
                // settings.log_cleaner_threads,
                load_factor=settings.log_cleaner_io_buffer_load_factor,
            )
            done = cleaner.clean(
                log, turn.dirty, now_ms=turn.now_ms, throttle=self._throttle_for(at)
            )
            # While this thread still holds the log: a deleted log must not get a checkpoint.
            self._guarded(log, lambda: self._checkpoint_of(log).put(at, done.end))
        except Abandoned:
            return
        except PlogError as failure:
            self._put_off(log, str(failure))
            return
        except Exception as failure:  # noqa: BLE001 - the other logs need the thread
            self._put_off(log, repr(failure))
            _log.debug("%s was not compacted", at, exc_info=True)
            return
        finally:
            self._let_go(at)
        _tell(at, done, time.monotonic() - begun)

    def _put_off(self, log: Log, why: str) -> None:
        # Retry later: it would fail again at once, but a full disk may get space.
        at = log.topic_partition
        with self._lock:
            self._not_before_ms[at] = log, self._clock.monotonic_ms() + FAILED_PAUSE_MS
        _log.error("%s is not compacted for %d s: %s", at, FAILED_PAUSE_MS // 1000, why)

    def _throttle_for(self, at: TopicPartition) -> Callable[[int], None]:
        def throttle(size: int) -> None:
            with self._lock:
                told = self._pace.tell(size)
                while not self._stopping and at not in self._paused:
                    # Read under the lock, so that no change is missed before the wait.
                    rate = self._settings().log_cleaner_io_max_bytes_per_second
                    left_ms = self._pace.left_ms(told, rate)
                    if not left_ms:
                        return
                    self._lock.wait(left_ms / 1000)
                raise Abandoned(str(at))

        return throttle


def _tell(at: TopicPartition, done: Cleaning, took_s: float) -> None:
    _log.info(
        "%s is compacted up to offset %d: %d of %d records are left, %.1f of %.1f MB, %d keys,"
        " in %.1f s",
        at,
        done.end,
        done.kept_records,
        done.records,
        done.written_bytes / 1e6,
        done.read_bytes / 1e6,
        done.keys,
        took_s,
    )
