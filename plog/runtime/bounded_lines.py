"""Log lines that any client can cause, and as often as it likes: some of them, and how many more.

Owns how many there may be. What they say is said by whoever logs them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

TELL_REST_S: Final = 1.0
AT_ONCE: Final = 200
PER_S: Final = 20
"""So many lines there are of one kind, where nothing speaks for other numbers."""


class Handle(Protocol):
    """A call that is to come."""

    def cancel(self) -> object:
        """Have it not come."""
        ...


class Timing(Protocol):
    """Tells the time and calls back: an event loop, for lines of its thread, or `Threads`."""

    def time(self) -> float:
        """Return seconds since some moment."""
        ...

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> Handle:
        """Call once after so many seconds."""
        ...


class Threads:
    """For lines of any thread: whoever is called back is called on one of its own."""

    def time(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> Handle:
        """Call once after so many seconds."""
        timer = threading.Timer(delay, callback)
        timer.daemon = True  # a process that ends does not wait for it
        timer.start()
        return timer


class BoundedLines:
    """Lines of one kind in the log: `at_once` together, and `per_s` a second in the long run.

    Those of `least_level` and above that find no room are counted, and their number is told by a
    line of its own, `rest`, once a second while there are any. Safe from any thread, unless
    `timing` is an event loop.
    """

    def __init__(
        self,
        log: logging.Logger,
        rest: str,
        *,
        at_once: int = AT_ONCE,
        per_s: int = PER_S,
        least_level: int = logging.WARNING,
        timing: Timing | None = None,
    ) -> None:
        self._log = log
        self._rest = rest
        self._most = at_once
        self._per_s = per_s
        self._least_level = least_level
        self._timing = timing or Threads()
        self._lock = threading.Lock()
        self._room = float(at_once)
        self._room_at = self._timing.time()
        self._untold = 0
        self._telling: Handle | None = None

    def log(
        self, level: int, text: str, *arguments: object, exc_info: BaseException | None = None
    ) -> None:
        """Log a line if there is room for it; those below `least_level` take none."""
        if level < self._least_level or self._finds_room():
            self._log.log(level, text, *arguments, exc_info=exc_info)

    def info(self, text: str, *arguments: object) -> None:
        """Log what happened."""
        self.log(logging.INFO, text, *arguments)

    def warning(self, text: str, *arguments: object) -> None:
        """Log what somebody may want to look into."""
        self.log(logging.WARNING, text, *arguments)

    def error(self, text: str, *arguments: object) -> None:
        """Log what somebody has to look into."""
        self.log(logging.ERROR, text, *arguments)

    def tell_rest(self) -> None:
        """Say how many lines there were no room for since this was last said."""
        with self._lock:
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None
            untold, self._untold = self._untold, 0
        if untold:
            self._log.log(self._least_level, self._rest, untold)

    def _finds_room(self) -> bool:
        with self._lock:
            now = self._timing.time()
            self._room = min(self._most, self._room + (now - self._room_at) * self._per_s)
            self._room_at = now
            if self._room >= 1:
                self._room -= 1
                return True
            self._untold += 1
            if self._telling is None:
                self._telling = self._timing.call_later(TELL_REST_S, self.tell_rest)
            return False
