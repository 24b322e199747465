"""A thread that reads something from the coordination store again after each change of it.

Owns when it is read: also again after a failure, because a store that several brokers share may be
away for a while. Never decides which nodes are read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from plog.cluster.store import StoreError

log = logging.getLogger(__name__)

PAUSE_S = 1.0


class StoreFollower:
    """Calls `read` in a thread of its own, once for each change or several.

    Args:
        what: is read, for the log.
        read: may raise StoreError; it is then called again after a second.
    """

    def __init__(self, what: str, read: Callable[[], None]) -> None:
        self._what = what
        self._read = read
        self._changed = threading.Event()
        self.is_stopping = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

    def start(self) -> None:
        """Start the thread, which reads at once."""
        self._changed.set()
        self._thread.start()

    def note_change(self, *_: object) -> None:
        """Have it read again. A callback for watches."""
        self._changed.set()

    def stop(self) -> None:
        """End the thread after its present call."""
        self.is_stopping = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._changed.wait():
            # Before anything is read: what changes from here on is another change.
            self._changed.clear()
            if self.is_stopping:
                return
            try:
                self._read()
            except Exception as error:
                if not self._is_failing:
                    is_foreseen = isinstance(error, StoreError)
                    text = "cannot read %s, trying again: %s"
                    log.warning(text, self._what, error, exc_info=not is_foreseen)
                self._is_failing = True
                self._changed.wait(PAUSE_S)
                self._changed.set()
            else:
                if self._is_failing:
                    log.info("%s can be read again", self._what)
                self._is_failing = False
