"""Log lines that any client can cause, and as often as it likes: some of them, and how many more.

Owns how many there may be. What they say is said by whoever logs them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

TELL_REST_S: Final = 1.0


class BoundedLines:
    """Lines of one kind in the log: `at_once` together, and `per_s` a second in the long run.

    Those of `least_level` and above that find no room are counted, and their number is told by a
    line of its own, `rest`, once a second while there are any. For the event loop's thread.
    """

    def __init__(
        self,
        log: logging.Logger,
        loop: asyncio.AbstractEventLoop,
        rest: str,
        *,
        at_once: int,
        per_s: int,
        least_level: int = logging.WARNING,
    ) -> None:
        self._log = log
        self._loop = loop
        self._rest = rest
        self._most = at_once
        self._per_s = per_s
        self._least_level = least_level
        self._room = float(at_once)
        self._room_at = loop.time()
        self._untold = 0
        self._telling: asyncio.TimerHandle | None = None

    def log(
        self, level: int, text: str, *arguments: object, exc_info: BaseException | None = None
    ) -> None:
        """Log a line if there is room for it; those below `least_level` take none."""
        if level >= self._least_level and not self._has_room():
            self._untold += 1
            if self._telling is None:
                self._telling = self._loop.call_later(TELL_REST_S, self.tell_rest)
            return
        self._log.log(level, text, *arguments, exc_info=exc_info)

    def tell_rest(self) -> None:
        """Say how many lines there were no room for since this was last said."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._untold:
            self._log.log(self._least_level, self._rest, self._untold)
            self._untold = 0

    def _has_room(self) -> bool:
        now = self._loop.time()
        self._room = min(self._most, self._room + (now - self._room_at) * self._per_s)
        self._room_at = now
        if self._room < 1:
            return False
        self._room -= 1
        return True
