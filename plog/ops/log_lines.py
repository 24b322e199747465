"""Formats log lines on stderr, with a time unless systemd's journal adds it.

Owns the format of a line: one event is one line, even if it quotes text from a client. The journal
keeps the time of every line; a terminal and a file do not.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TextIO

from plog.printable import printable

PLAIN = "%(levelname)s %(name)s: %(message)s"


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


def log_to_stderr() -> None:
    """Write log lines of INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    in_journal = is_journal(sys.stderr, os.environ)
    handler.setFormatter(LineFormatter() if in_journal else TimedFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a stream is connected to systemd's journal.

    systemd names the socket in JOURNAL_STREAM, as device:inode. The variable alone is not enough: a
    shell of the service inherits it, and may redirect its children's output.
    """
    named = environment.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # closed, or not a file
        return False
    return named == f"{status.st_dev}:{status.st_ino}"
