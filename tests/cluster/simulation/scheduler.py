"""One order of everything that happens, drawn by a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from plog.runtime.clock import ManualClock

START_MS = 1_700_000_000_000


class Scheduler:
    """Events in the order of their times; ties are drawn.

    An event belongs to an owner, a process for example. While one of its events runs, no other of
    the same owner does: but those of others may, wherever the first one calls `interleave`.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(START_MS)
        self._now_ms = 0
        self._heap: list[tuple[int, float, int, Hashable, Callable[[], None]]] = []
        self._count = 0
        self._busy: list[Hashable] = []
        self.is_undivided = False
        """Whether nothing else may happen before the present event has ended."""
        self.log: list[str] = []

    @property
    def now_ms(self) -> int:
        """The time since the beginning."""
        return self._now_ms

    def note(self, text: str) -> None:
        """Write down an event, for the reader of a failed history."""
        self.log.append(f"{self._now_ms:7d} {text}")

    def after(self, delay_ms: int, owner: Hashable, event: Callable[[], None]) -> None:
        """Have an event happen later."""
        self._count += 1
        item = (self._now_ms + delay_ms, self.random.random(), self._count, owner, event)
        heapq.heappush(self._heap, item)

    def soon(self, owner: Hashable, event: Callable[[], None], at_most_ms: int = 20) -> None:
        """Have an event happen after a short time that is drawn."""
        self.after(self.random.randint(0, at_most_ms), owner, event)

    def run(self, duration_ms: int) -> None:
        """Let time go on; events of owners that are busy wait for their turn."""
        until = self._now_ms + duration_ms
        held = []
        while self._heap and self._heap[0][0] <= until:
            item = heapq.heappop(self._heap)
            at, _, _, owner, event = item
            if owner in self._busy:
                held.append(item)
                continue
            self._advance(at)
            self._busy.append(owner)
            try:
                event()
            finally:
                self._busy.remove(owner)
            for waiting in held:
                if waiting[3] not in self._busy:
                    heapq.heappush(self._heap, waiting)
            held = [waiting for waiting in held if waiting[3] in self._busy]
        for waiting in held:
            heapq.heappush(self._heap, waiting)
        self._advance(until)

    def interleave(self) -> None:
        """Let others go on for a moment, in the middle of an event."""
        if len(self._busy) <= 2 and not self.is_undivided and self.random.random() < 0.3:
            self.run(self.random.randint(0, 30))

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Let no others go on, because the caller holds a lock that they might wait for."""
        self.is_undivided = True
        try:
            yield
        finally:
            self.is_undivided = False

    def _advance(self, to_ms: int) -> None:
        if to_ms > self._now_ms:
            self.clock.advance(to_ms - self._now_ms)
            self._now_ms = to_ms
