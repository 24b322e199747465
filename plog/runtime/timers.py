"""Named timers in the event loop, made to be moved: most are put off long before they fire.

Owns deadlines and one handle of the loop for each name. A heartbeat only writes a new
deadline down; the handle that is under way looks at it when its time comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """Calls back with a timer's name once its time has come. For the event loop's thread.

    Args:
        fired: called with the name; the timer is not set any more then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fired: Callable[[Key], object]) -> None:
        self._loop = loop
        self._fired = fired
        self._deadlines: dict[Key, float] = {}
        self._handles: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Return how many are set."""
        return len(self._deadlines)

    def set(self, key: Key, after_ms: int) -> None:
        """Have a timer fire after so long, and not at the time that was set before."""
        deadline = self._deadlines[key] = self._loop.time() + after_ms / 1000
        handle = self._handles.get(key)
        if handle is not None:
            if handle.when() <= deadline:
                return
            handle.cancel()
        self._handles[key] = self._loop.call_at(deadline, self._look, key)

    def stop(self, key: Key) -> None:
        """Have a timer not fire; one that is not set may be stopped."""
        self._deadlines.pop(key, None)
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Stop all."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
        self._deadlines.clear()

    def _look(self, key: Key) -> None:
        deadline = self._deadlines[key]
        if deadline > self._handles[key].when():
            self._handles[key] = self._loop.call_at(deadline, self._look, key)
            return
        del self._handles[key], self._deadlines[key]
        self._fired(key)
