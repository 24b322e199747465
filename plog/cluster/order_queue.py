"""The orders to one broker that have no response yet: one at a time, each until it is answered.

Owns their order, and how long a sender waits before it repeats one. Pure: `peer_channel` has the
thread and the connection.

An order that waits is merged with a later one of its kind: a broker that cannot be reached, and is
registered still, collects no more than there are partitions, and StopReplicas for deletions. These
rules keep the order:

- The first order may have been sent: it stays as it is.
- Nothing overtakes a StopReplica, or an UpdateMetadata that names all topics.
- A LeaderAndIsr that has a leader drain stays by itself.
- UpdateMetadata may overtake LeaderAndIsr, but not the reverse: LeaderAndIsr needs the brokers and
  topics of the updates before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from plog.cluster.control_requests import DRAIN, FULL, ControlRequest, ControlResponse
from plog.cluster.merged_orders import merged_leader_and_isr, merged_metadata
from plog.protocol.messages.replication import LeaderAndIsrRequest, UpdateMetadataRequest

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

    @property
    def is_empty(self) -> bool:
        """Whether every order has its response."""
        return not self._waiting

    def put(self, order: ControlRequest, on_response: OnResponse) -> None:
        """Append an order, or merge it with one that waits; that one's `on_response` is dropped."""
        for place in range(len(self._waiting) - 1, 0, -1):
            earlier = self._waiting[place][0]
            if (merged := _merged(earlier, order)) is not None:
                self._waiting[place] = merged, on_response
                return
            if not _may_overtake(order, earlier):
                break
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


def _merged(earlier: ControlRequest, later: ControlRequest) -> ControlRequest | None:
    """Return one order for two; None: they stay two."""
    if _epochs(earlier) != _epochs(later):
        return None
    match earlier, later:
        case LeaderAndIsrRequest(), LeaderAndIsrRequest() if DRAIN not in (
            earlier.type,
            later.type,
        ):
            return merged_leader_and_isr(earlier, later)
        case UpdateMetadataRequest(), UpdateMetadataRequest() if FULL not in (
            earlier.type,
            later.type,
        ):
            return merged_metadata(earlier, later)
    return None


def _epochs(order: ControlRequest) -> tuple[int, int, int]:
    return order.controller_id, order.controller_epoch, order.broker_epoch


def _may_overtake(later: ControlRequest, earlier: ControlRequest) -> bool:
    return isinstance(later, UpdateMetadataRequest) and isinstance(earlier, LeaderAndIsrRequest)
