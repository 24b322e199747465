"""How log lines look: on stderr, with a time wherever nobody else keeps it.

Owns the form of a line. What is logged is everybody's own; the journal keeps the
time of every line by itself, a terminal and a file do not.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TextIO

PLAIN = "%(levelname)s %(name)s: %(message)s"


class TimedFormatter(logging.Formatter):
    """Lines that begin with their time: ISO 8601 in UTC, with milliseconds."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(f"%(asctime)s {PLAIN}")


def log_to_stderr() -> None:
    """Write log lines of INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    in_journal = is_journal(sys.stderr, os.environ)
    handler.setFormatter(logging.Formatter(PLAIN) if in_journal else TimedFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether what is written to a stream goes to systemd's journal.

    systemd names the socket in JOURNAL_STREAM, as device:inode. The variable alone says nothing:
    a shell of the service inherits it, and may send its children's output elsewhere.
    """
    named = environment.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # closed, or no file at all
        return False
    return named == f"{status.st_dev}:{status.st_ino}"
