"""The controller's way to another broker: requests in order, each until it is answered.

Owns the thread. A request without a response is sent again for as long as the channel is open;
epochs make it harmless to obey it twice. Never decides which requests are sent, or when the broker
is gone: the controller closes the channel then. `order_queue` keeps the order.
"""

from __future__ import annotations

import logging
import threading

from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller_context import LiveBroker
from plog.cluster.order_queue import OnResponse, OrderQueue
from plog.cluster.peer_link import PeerLink
from plog.protocol.messages.replication import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from plog.runtime.bounded_lines import BoundedLines
from plog.runtime.repeats import Repeats

log = logging.getLogger(__name__)

RESPONSES: dict[type[ControlRequest], type[ControlResponse]] = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}


class PeerChannel:
    """A `BrokerChannel` to a broker in another process.

    Args:
        link: to the listener between brokers; the channel closes it.
    """

    def __init__(self, broker: LiveBroker, link: PeerLink) -> None:
        self._broker = broker
        self._link = link
        self._orders = OrderQueue()
        self._changed = threading.Condition()
        """Held for each look at the queue, and for each report of a response."""
        self._lines = BoundedLines(log, "%d further failures of requests to brokers")
        self._repeats = Repeats()
        threading.Thread(target=self._run, name=f"to broker {broker.id}", daemon=True).start()

    def send(self, request: ControlRequest, on_response: OnResponse) -> None:
        """See `BrokerChannel.send`."""
        with self._changed:
            self._orders.put(request, on_response)
            self._changed.notify()

    @property
    def is_answered(self) -> bool:
        """See `BrokerChannel.is_answered`."""
        with self._changed:
            return self._orders.is_empty

    def close(self) -> None:
        """See `BrokerChannel.close`. The thread ends by itself, soon."""
        with self._changed:
            self._orders.close()
            self._changed.notify()
        self._link.interrupt()

    def _run(self) -> None:
        while (request := self._next()) is not None:
            try:
                response = self._link.call(request, RESPONSES[type(request)])
            except Exception as error:  # noqa: BLE001 - the orders behind it have to go out
                self._pause_after(error)
            else:
                with self._changed:
                    self._orders.note_response(response)
        self._link.close()

    def _next(self) -> ControlRequest | None:
        """Wait for an order; None: the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders.is_closed or self._orders.first is not None)
            return self._orders.first

    def _pause_after(self, error: Exception) -> None:
        with self._changed:
            if self._orders.is_closed:
                return
            if self._repeats.is_due(str(error)):
                text = "no response from broker %d, trying again: %s"
                self._lines.log(logging.WARNING, text, self._broker.id, error)
            self._changed.wait_for(lambda: self._orders.is_closed, self._orders.note_failure())
