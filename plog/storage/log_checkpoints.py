"""The checkpoints of all log directories, as they are written while logs are served.

Owns what is collected from the logs, and what a checkpoint goes on saying of partitions
that are offline. The files' format is `checkpoints`'; each directory has its own
(`LiveLogDir`). Never flushes a log: a recovery point is what is durable already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from plog.settings.definitions import BrokerSettings
from plog.storage.checkpoints import OffsetCheckpoint
from plog.storage.live_log_dir import LiveLogDir
from plog.storage.log import Log
from plog.storage.scheduler import Scheduler
from plog.types import TopicPartition

Offsets = Mapping[TopicPartition, int]


class LogCheckpoints:
    """Written by the scheduler's thread now and then, and once more when the broker stops.

    Args:
        live: returns the directories that work.
        logs_in: returns the logs of one that are online.
        offline_among: returns what is said of partitions that are offline, out of more.
    """

    def __init__(
        self,
        live: Callable[[], Sequence[LiveLogDir]],
        logs_in: Callable[[LiveLogDir], Sequence[Log]],
        offline_among: Callable[[Offsets], Offsets],
    ) -> None:
        self._live = live
        self._logs_in = logs_in
        self._offline_among = offline_among

    def plan(self, scheduler: Scheduler, settings: BrokerSettings) -> None:
        """Have each written at its interval."""
        every = scheduler.every
        every(settings.log_flush_offset_checkpoint_interval_ms, self.store_recovery_points)
        every(settings.log_flush_start_offset_checkpoint_interval_ms, self.store_log_start_offsets)
        every(settings.replica_high_watermark_checkpoint_interval_ms, self.store_high_watermarks)

    def store_recovery_points(self) -> None:
        """Write down from where a crash makes each log be read again."""
        for live in self._live():
            live.guarded(self._store_recovery_points, live)

    def _store_recovery_points(self, live: LiveLogDir) -> None:
        live.durable_ends.sync()
        live.recovery_points.lift_ceilings()
        self._store(
            live.recovery_points,
            {log.topic_partition: log.recovery_point() for log in self._logs_in(live)},
        )

    def store_high_watermarks(self) -> None:
        """Write down the high watermarks."""
        for live in self._live():
            live.guarded(self._store, live.high_watermarks, _high_watermarks(self._logs_in(live)))

    def store_log_start_offsets(self, only: Path | None = None) -> None:
        """Write down the log start offsets that DeleteRecords has moved into a segment.

        In all log directories, or in one `only`.
        """
        for live in self._live():
            if only in (None, live.path):
                live.guarded(self._store, live.log_start_offsets, moved_starts(self._logs_in(live)))

    def _store(self, checkpoint: OffsetCheckpoint, offsets: Offsets) -> None:
        """Write a checkpoint of the live logs, and what it said of those that are offline.

        Forgetting an offline partition would make its next recovery believe that nothing was
        promised, and truncate what is damaged. Raises OSError.
        """
        checkpoint.store({**self._offline_among(checkpoint.stored), **offsets})

    def close_logs(self, live: LiveLogDir) -> bool:
        """Flush and close a directory's logs and write where they end; tell whether all went well.

        Only then is the shutdown clean.
        """
        logs = self._logs_in(live)
        starts = moved_starts(logs)
        closed = [live.guarded(log.close) for log in logs]
        if not all(closed):
            return False
        ends = {log.topic_partition: log.native.durable_end for log in logs}
        return (
            live.guarded(live.durable_ends.sync)
            and live.guarded(self._store, live.recovery_points, ends)
            and live.guarded(self._store, live.high_watermarks, _high_watermarks(logs))
            and live.guarded(self._store, live.log_start_offsets, starts)
        )


def _high_watermarks(logs: Sequence[Log]) -> Offsets:
    return {log.topic_partition: log.high_watermark for log in logs}


def moved_starts(logs: Sequence[Log]) -> dict[TopicPartition, int]:
    """Return the log start offsets that the segments' names do not tell."""
    starts = {}
    for log in logs:
        start, segments = log.log_start_offset, log.native.segments
        if segments and start > segments[0].base_offset:
            starts[log.topic_partition] = start
    return starts
