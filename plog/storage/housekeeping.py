"""What every log needs now and then: retention, flushes, forgotten producers, scrub.

Owns when each of them comes to which log. Never decides what goes (the log and its
settings do), and writes no checkpoints (`log_checkpoints` does).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from plog.errors import KafkaStorageError
from plog.runtime.clock import Clock
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings
from plog.storage.log import Log
from plog.storage.log_owner import LogOwner, report_nothing
from plog.storage.scheduler import Scheduler
from plog.storage.scrub import Scrub
from plog.types import counted

_log = logging.getLogger(__name__)

SCRUB_STEP_MS = 1_000
MOST_FLUSH_CHECK_MS = 1_000
"""log.flush.scheduler.interval.ms is "never" by default, but flush.ms may be set for a topic."""


class Housekeeping:
    """The periodic work on the logs that `logs` returns; their owner flushes them."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        trusted_time: TrustedTime,
        logs: Callable[[], Sequence[Log]],
        owner: LogOwner,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._trusted_time = trusted_time
        self._logs = logs
        self._owner = owner
        self._scrub = Scrub(logs, owner.on_damage)

    def plan(self, scheduler: Scheduler) -> None:
        """Have each kind of work done at its interval."""
        settings = self._settings
        every = scheduler.every
        every(
            min(settings.log_flush_scheduler_interval_ms, MOST_FLUSH_CHECK_MS), self.flush_due_logs
        )
        every(settings.producer_id_expiration_check_interval_ms, self.expire_producers)
        every(
            settings.log_retention_check_interval_ms,
            self.apply_retention,
            first_ms=settings.log_initial_task_delay_ms,
        )
        if settings.log_scrub_bytes_per_second > 0:
            every(SCRUB_STEP_MS, self._scrub_step)

    def apply_retention(self) -> int:
        """Apply retention to every log; return how many rules found segments to delete."""
        by_topic: dict[str, list[list[str]]] = {}
        now_ms = self._trusted_time.now_ms()
        logs = self._logs()
        try:
            for log in logs:
                try:
                    lines = log.apply_retention(now_ms)
                except KafkaStorageError as error:
                    _log.error("retention of %s: %s", log.topic_partition, error)
                    continue
                if lines:
                    by_topic.setdefault(log.topic_partition.topic, []).append(lines)
        finally:  # a bug in one log does not hide the deletions in others
            self._log_deletions(by_topic)
        _log.debug("retention has checked %s", counted(len(logs), "partition"))
        return sum(len(lines) for several in by_topic.values() for lines in several)

    @staticmethod
    def _log_deletions(by_topic: Mapping[str, list[list[str]]]) -> None:
        for topic, several in by_topic.items():
            if len(several) > 1:
                of = counted(len(several), "partition")
                _log.info("%s: retention deleted segments of %s", topic, of)
            for line in chain.from_iterable(several):
                _log.log(logging.DEBUG if len(several) > 1 else logging.INFO, "%s", line)

    def expire_producers(self) -> None:
        """Forget the producers that have been silent for long."""
        now_ms = self._trusted_time.now_ms()
        for log in self._logs():
            log.expire_producers(now_ms, self._settings.producer_id_expiration_ms)

    def flush_due_logs(self) -> None:
        """Ask for a flush of every log for which flush.messages or flush.ms say so."""
        now_ms = self._clock.monotonic_ms()
        for log in self._logs():
            if log.is_flush_due(now_ms):
                log.last_flush_ms = now_ms
                self._owner.commit(log, report_nothing)

    def _scrub_step(self) -> None:
        budget = self._settings.log_scrub_bytes_per_second * SCRUB_STEP_MS // 1000
        self._scrub.step(budget, self._clock.monotonic_ms())
