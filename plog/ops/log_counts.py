"""Counts the log lines of the process from WARNING up, and shows them on the metrics page."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from plog.ops.metrics.families import Collector, Family

LEVELS = (logging.WARNING, logging.ERROR, logging.CRITICAL)
LINES = Family("plog_log_lines_total", "Log lines of a level.", ("level",))


class LogCounts(logging.Handler):
    """A handler that counts the lines of each level. `emit` is called under the handler's lock."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts = dict.fromkeys(LEVELS, 0)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line under the highest of LEVELS that its level reaches."""
        level = max(level for level in LEVELS if level <= record.levelno)
        self._counts[level] += 1

    @property
    def counts(self) -> dict[str, int]:
        """The number of lines by the name of the level."""
        return {logging.getLevelName(level): self._counts[level] for level in LEVELS}


class LogLines(Collector):
    """The counts, also those that are 0: alarms watch them grow."""

    families = (LINES,)

    def __init__(self, counts: LogCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the family."""
        yield LINES.of(((level,), count) for level, count in self._counts.counts.items())
