"""Where requests wait for something to happen to a key: bytes to fetch, acknowledgements.

Owns the waits of one event loop. Never polls, and never says what readiness
means: each waiter brings its own question, which is asked when one of its keys
is touched.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class _Waiter:
    __slots__ = ("error", "future", "ready")

    def __init__(self, future: asyncio.Future[bool], ready: Callable[[], bool]) -> None:
        self.future = future
        self.ready = ready
        self.error: Exception | None = None

    def ask(self) -> None:
        """Complete the wait if its question is answered with yes, or fails."""
        if self.future.done():
            return
        try:
            if self.ready():
                self.future.set_result(True)
        except Exception as error:  # noqa: BLE001 - raised in the waiter, not in whoever touched
            self.error = error
            self.future.set_result(False)

    def expire(self) -> None:
        """Complete the wait, by one last question."""
        self.ask()
        if not self.future.done():
            self.future.set_result(False)


class Purgatory(Generic[Key]):
    """Waits of coroutines for keys, with deadlines.

    All but `touch_threadsafe` must be called in the event loop's thread. Whoever
    changes what a question looks at touches the key afterwards; then no change is
    missed, since question and parking are one step of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Dicts for sets that keep their order: who parked first is asked first.
        self._by_key: dict[Key, dict[_Waiter, None]] = {}
        self._waiting = 0
        self._closed = False
        self._lock = threading.Lock()
        self._touched: dict[Key, None] = {}

    def __len__(self) -> int:
        """Return the number of waits."""
        return self._waiting

    @property
    def keys_watched(self) -> int:
        """Number of keys that someone waits for."""
        return len(self._by_key)

    async def wait(self, keys: Iterable[Key], timeout_ms: int, ready: Callable[[], bool]) -> bool:
        """Wait until `ready()` is true, asked now and whenever one of `keys` is touched.

        Returns:
            What `ready()` said last: False when `timeout_ms` passed, or the purgatory was closed.

        Raises:
            Exception: whatever `ready` raises.
        """
        if ready():
            return True
        if timeout_ms <= 0 or self._closed:
            return False
        waiter = _Waiter(self._loop.create_future(), ready)
        parked_at = list(dict.fromkeys(keys))
        for key in parked_at:
            self._by_key.setdefault(key, {})[waiter] = None
        self._waiting += 1
        deadline = self._loop.call_later(timeout_ms / 1000, waiter.expire)
        try:
            outcome = await waiter.future
        finally:
            deadline.cancel()
            self._waiting -= 1
            for key in parked_at:
                waiters = self._by_key[key]
                del waiters[waiter]
                if not waiters:
                    del self._by_key[key]
        error, waiter.error = waiter.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else its traceback, which holds this frame, would hold it too
        return outcome

    def touch(self, key: Key) -> None:
        """Ask everyone who waits for `key`."""
        waiters = self._by_key.get(key)
        if waiters is not None:
            for waiter in list(waiters):
                waiter.ask()

    def touch_threadsafe(self, key: Key) -> None:
        """Do `touch` in the loop's thread, soon; touches until then wake the loop once."""
        with self._lock:
            if self._closed:
                return
            first = not self._touched
            self._touched[key] = None
            # Under the lock, so that close() cannot let the loop end in between.
            if first:
                self._loop.call_soon_threadsafe(self._touch_all)

    def _touch_all(self) -> None:
        with self._lock:
            touched, self._touched = self._touched, {}
        for key in touched:
            self.touch(key)

    def close(self) -> None:
        """End every wait as if its time had passed, and those to come; later touches do nothing."""
        with self._lock:
            self._closed = True
        for waiters in list(self._by_key.values()):
            for waiter in list(waiters):
                waiter.expire()
