"""Metrics of log directories, appends and flushes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.metrics_core import Metric

from plog._native.log_append import appended
from plog._native.log_flush import flush_times
from plog.ops.metrics.families import Collector, Family, Row, TimesFamily, label
from plog.storage.log_manager import LogManager

APPENDED_RECORDS = Family("plog_appended_records_total", "Records appended to logs.")
APPENDED_BYTES = Family("plog_appended_bytes_total", "Bytes of batches appended to logs.")
FLUSHES = TimesFamily("plog_flush_duration_seconds", "Duration of fdatasync calls for logs.")
LOG_DIR = ("log_dir",)
ONLINE = Family("plog_log_dir_online", "1 while the log directory works.", LOG_DIR)
FREE = Family("plog_log_dir_free_bytes", "Free space on its file system.", LOG_DIR)
REFUSING = Family(
    "plog_log_dir_refusing", "1 while writes are refused for lack of disk space.", LOG_DIR
)
REFUSED = Family(
    "plog_log_dir_refused_writes_total", "Writes refused for lack of disk space.", LOG_DIR
)
SLOW = Family("plog_log_dir_slow", "1 while the disk is treated as slow.", LOG_DIR)
MISSING = Family(
    "plog_missing_log_dirs", "Log directories of the broker that were missing at its start."
)
OFFLINE = Family("plog_offline_partitions", "Partitions that are offline.")


class Disks(Collector):
    """The log directories.

    Args:
        counts_as_slow: returns whether a log directory's disk is treated as slow.
    """

    families = (
        APPENDED_RECORDS,
        APPENDED_BYTES,
        FLUSHES,
        ONLINE,
        FREE,
        REFUSING,
        REFUSED,
        SLOW,
        MISSING,
        OFFLINE,
    )

    def __init__(self, logs: LogManager, counts_as_slow: Callable[[Path], bool]) -> None:
        self._logs = logs
        self._counts_as_slow = counts_as_slow

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        records, size = appended()
        yield APPENDED_RECORDS.one(records)
        yield APPENDED_BYTES.one(size)
        flushes = FLUSHES.of([((), flush_times())])
        if flushes.samples:
            yield flushes
        online: list[Row] = []
        free: list[Row] = []
        refusing: list[Row] = []
        refused: list[Row] = []
        slow: list[Row] = []
        for path, live in list(self._logs.dirs.items()):
            labels = (label(path),)
            online.append((labels, live.failure is None))
            refused.append((labels, live.refused_writes))
            if live.failure is None:
                refusing.append((labels, live.room.left <= 0))
                slow.append((labels, self._counts_as_slow(path)))
                with suppress(OSError):  # it is lost; the next write reports that
                    free.append((labels, shutil.disk_usage(path).free))
        for family, rows in (
            (ONLINE, online),
            (FREE, free),
            (REFUSING, refusing),
            (REFUSED, refused),
            (SLOW, slow),
        ):
            if rows:
                yield family.of(rows)
        yield MISSING.one(len(self._logs.missing_log_dirs))
        yield OFFLINE.one(len(self._logs.offline))
