"""The orders to one broker that have no response yet: one at a time, each until it is answered.

Owns their order, and how long a sender waits before it repeats one. Pure: `peer_channel` has the
thread and the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from plog.cluster.control_requests import ControlRequest, ControlResponse

PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 1.0

OnResponse = Callable[[ControlResponse], None]


class OrderQueue:
    """Orders in the order in which they are sent."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ControlRequest, OnResponse]] = deque()
        self._pause_s = PAUSE_S
        self.is_closed = False

    @property
    def first(self) -> ControlRequest | None:
        """The order to send now; None: there is none, or the queue is closed."""
        return None if self.is_closed or not self._waiting else self._waiting[0][0]

    def put(self, order: ControlRequest, on_response: OnResponse) -> None:
        """Append an order."""
        self._waiting.append((order, on_response))

    def note_failure(self) -> float:
        """Return for how many seconds the first order waits before it is sent again: it doubles."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        return pause_s

    def note_response(self, response: ControlResponse) -> None:
        """Report the response to the first order. A closed queue reports none."""
        if not self.is_closed:
            _, on_response = self._waiting.popleft()
            self._pause_s = PAUSE_S
            on_response(response)

    def close(self) -> None:
        """Forget the orders."""
        self.is_closed = True
        self._waiting.clear()
