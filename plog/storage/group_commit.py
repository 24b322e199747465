"""Group commit: one thread for each log directory turns many wishes into few fdatasyncs.

Owns the queue of logs to flush and who waits for them. A log asked for while another
is being flushed is flushed once for all who asked meanwhile. Never decides what a
failed flush means: the log has told its owner when `done` hears of it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Protocol

from plog.errors import KafkaStorageError

Done = Callable[[OSError | None], None]


class Flushable(Protocol):
    """What a log is to group commit."""

    def flush(self) -> int:
        """Make everything appended so far durable. Raises KafkaStorageError."""


class GroupCommit:
    """The commit thread of one log directory."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._condition = threading.Condition()
        self._waiting: dict[Flushable, list[Done]] = {}
        self._stopped = False
        self._thread: threading.Thread | None = None

    def commit(self, log: Flushable, done: Done) -> None:
        """Flush `log` soon, then call `done` on the commit thread; it must not raise.

        After `stop` the answer is an error at once.
        """
        with self._condition:
            if not self._stopped:
                self._waiting.setdefault(log, []).append(done)
                self._condition.notify()
                if self._thread is None:
                    # Only a directory that is written to needs one.
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                return
        done(OSError(errno.ESHUTDOWN, "the log directory is closed"))

    def stop(self) -> None:
        """Flush what is queued, and end the thread."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting:
                    if self._stopped:
                        return
                    self._condition.wait()
                batch, self._waiting = self._waiting, {}
            for log, waiting in batch.items():
                error = _flush(log)
                for done in waiting:
                    done(error)


def _flush(log: Flushable) -> OSError | None:
    try:
        log.flush()
    except KafkaStorageError as error:
        cause = error.__cause__
        return cause if isinstance(cause, OSError) else OSError(errno.EIO, str(error))
    return None
