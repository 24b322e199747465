"""Writes the checkpoints of all log directories while the broker runs.

Owns collecting the values from the logs, and keeping the entries of offline partitions. The module
`checkpoints` has the files' format; each directory has its own files (`LiveLogDir`). Never flushes
a log: a recovery point covers only durable bytes.
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
    """Writes them at intervals on the scheduler's thread, and when the broker stops.

    Args:
        live: returns the working directories.
        logs_in: returns the online logs of a directory.
        offline_among: filters entries for those of offline partitions.
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
        """Schedule each checkpoint at its interval."""
        every = scheduler.every
        every(settings.log_flush_offset_checkpoint_interval_ms, self.store_recovery_points)
        every(settings.log_flush_start_offset_checkpoint_interval_ms, self.store_log_start_offsets)
        every(settings.replica_high_watermark_checkpoint_interval_ms, self.store_high_watermarks)

    def store_recovery_points(self) -> None:
        """Write the recovery points, and the damage that could not be written down before."""
        for live in self._live():
            live.guarded(live.store_damage)
            live.guarded(self._store_recovery_points, live)

    def _store_recovery_points(self, live: LiveLogDir) -> None:
        live.durable_ends.sync()
        live.recovery_points.lift_ceilings()
        self._store(
            live.recovery_points,
            {log.topic_partition: log.recovery_point() for log in self._logs_in(live)},
        )

    def store_high_watermarks(self) -> None:
        """Write the high watermarks."""
        for live in self._live():
            live.guarded(self._store, live.high_watermarks, _high_watermarks(self._logs_in(live)))

    def store_log_start_offsets(self, only: Path | None = None) -> None:
        """Write the log start offsets that DeleteRecords has moved into a segment.

        In all log directories, or in one `only`.
        """
        for live in self._live():
            if only in (None, live.path):
                live.guarded(self._store, live.log_start_offsets, moved_starts(self._logs_in(live)))

    def _store(self, checkpoint: OffsetCheckpoint, offsets: Offsets) -> None:
        """Write a checkpoint with the live logs and the previous entries of offline ones.

        Without its entry, the next recovery of an offline partition would assume that nothing was
        acknowledged, and truncate damaged records. Raises OSError.
        """
        checkpoint.store({**self._offline_among(checkpoint.stored), **offsets})

    def close_logs(self, live: LiveLogDir) -> bool:
        """Flush and close a directory's logs, and write their ends; return whether all succeeded.

        Otherwise the shutdown is not clean.
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
    """Return the log start offsets that differ from the first segment's base offset."""
    starts = {}
    for log in logs:
        start, segments = log.log_start_offset, log.native.segments
        if segments and start > segments[0].base_offset:
            starts[log.topic_partition] = start
    return starts
