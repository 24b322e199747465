"""The log of a broker process: its lines go to stderr, in the format and levels of the settings.

Owns the handler on stderr, and the hooks for errors that no code catches: these are log lines too.
Never touches other handlers of the root logger.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from plog.ops.log_lines import JournalFormatter, JsonFormatter, LineFormatter, TimedFormatter
from plog.runtime.loggers import ROOT, set_level

if TYPE_CHECKING:
    from plog.settings.definitions import BrokerSettings

log = logging.getLogger("plog")

TEXT, JSON = "text", "json"


class StderrHandler(logging.StreamHandler[TextIO]):
    """The handler of the process's log lines; there is one at most."""


def log_to_stderr(settings: BrokerSettings) -> None:
    """Write log lines to stderr as the settings say, from the next line on."""
    start_log(settings.log_format)
    set_level(ROOT, settings.log_level)
    for logger, level in settings.log_levels:
        set_level(logger, level)


def start_log(form: str) -> None:
    """Write log lines of INFO and above to stderr, and errors that no code catches.

    Args:
        form: `text` or `json`. Anything else counts as text: the settings are not checked yet.
    """
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(_formatter(form, in_journal=is_journal(sys.stderr, os.environ)))
    for former in list(logging.root.handlers):
        if isinstance(former, StderrHandler):
            logging.root.removeHandler(former)
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_uncaught_in_thread


def is_for_people(form: str) -> bool:
    """Return whether stderr takes plain lines: text that the journal does not read."""
    return form != JSON and not is_journal(sys.stderr, os.environ)


def log_failure(text: str) -> None:
    """Log why the process ends, a line for each of the text's."""
    for line in text.split("\n"):
        log.critical("%s", line)


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


def _formatter(form: str, *, in_journal: bool) -> logging.Formatter:
    if form == JSON:
        lines: logging.Formatter = JsonFormatter()
    else:
        lines = LineFormatter() if in_journal else TimedFormatter()
    return JournalFormatter(lines) if in_journal else lines


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("ended by an internal error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = "unknown" if args.thread is None else args.thread.name
    log.error(
        "thread %r ended by an internal error",
        name,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is None:
        return
    log.error(
        "%s: %r",
        args.err_msg or "ignored an exception",
        args.object,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
