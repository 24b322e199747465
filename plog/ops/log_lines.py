"""Formats log lines: as text, as JSON, and with the priorities of systemd's journal.

Owns the format of a line: one event is one line, even if it quotes text from a client. The journal
keeps the time of every line; a terminal and a file do not. `stderr_log` chooses the format.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Iterator
from types import TracebackType

from plog.printable import printable, printable_json

PLAIN = "%(levelname)s %(name)s: %(message)s"
PRIORITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
"""Priorities of syslog(3) from each level on; those of lower levels are `DEBUG_PRIORITY`."""
DEBUG_PRIORITY = 7


class LineFormatter(logging.Formatter):
    """Formats each event as one line; a traceback has a line per frame and exception.

    Escapes characters that are not printable, so that text from a client cannot start a line.
    """

    def __init__(self, form: str = PLAIN) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of an event."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Return a traceback; the message of each exception is one line."""
        if ei[1] is None:
            return "NoneType: None"
        return "\n".join(_traceback_lines(ei[1]))


def _traceback_lines(error: BaseException) -> Iterator[str]:
    summary = traceback.TracebackException.from_exception(error)
    _escape_notes(summary)
    for part in summary.format():
        text = part.removesuffix("\n")
        # A frame has two lines: the position and its source.
        for line in text.split("\n") if text.lstrip(" |").startswith("File ") else [text]:
            yield printable(line)


def _escape_notes(summary: traceback.TracebackException) -> None:
    # The traceback module formats each line of a note separately.
    summary.__notes__ = [printable(str(note)) for note in summary.__notes__ or ()]
    for one in (summary.__cause__, summary.__context__, *(summary.exceptions or ())):
        if one is not None:
            _escape_notes(one)


class TimedFormatter(LineFormatter):
    """Starts each line with its time: ISO 8601 in UTC, with milliseconds."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(f"%(asctime)s {PLAIN}")


class JsonFormatter(TimedFormatter):
    """Formats each event as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of an event; a traceback is the text of `exception`."""
        event = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(event, ensure_ascii=False))


class JournalFormatter(logging.Formatter):
    """Starts each line of another format with its priority, `<N>` of sd-daemon(3).

    journald takes the mark off, unless the unit has SyslogLevelPrefix=no.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the marked lines of an event: several, if it has a traceback."""
        mark = f"<{priority(record.levelno)}>"
        return "\n".join(mark + line for line in self._lines.format(record).split("\n"))


def priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of Python's logging."""
    return next((number for least, number in PRIORITIES if level >= least), DEBUG_PRIORITY)
