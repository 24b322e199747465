"""The controller's way to another broker: requests in order, each until it is answered.

Owns the thread. A request without a response is sent again for as long as the channel is open;
epochs make it harmless to obey it twice. Never decides which requests are sent, or when the broker
is gone: the controller closes the channel then.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller_context import LiveBroker
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

log = logging.getLogger(__name__)

RESPONSES: dict[type[ControlRequest], type[ControlResponse]] = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0

OnResponse = Callable[[ControlResponse], None]


class PeerChannel:
    """A `BrokerChannel` to a broker in another process.

    Args:
        link: to the listener between brokers; the channel closes it.
    """

    def __init__(self, broker: LiveBroker, link: PeerLink) -> None:
        self._broker = broker
        self._link = link
        self._queue: queue.SimpleQueue[tuple[ControlRequest, OnResponse] | None] = (
            queue.SimpleQueue()
        )
        self._closed = threading.Event()
        self._lines = BoundedLines(log, "%d further failures of requests to brokers")
        threading.Thread(target=self._run, name=f"to broker {broker.id}", daemon=True).start()

    def send(self, request: ControlRequest, on_response: OnResponse) -> None:
        """See `BrokerChannel.send`."""
        self._queue.put((request, on_response))

    def close(self) -> None:
        """See `BrokerChannel.close`. The thread ends by itself, soon."""
        self._closed.set()
        self._queue.put(None)
        self._link.interrupt()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._closed.is_set():
            request, on_response = item
            response = self._answered(request)
            if response is not None and not self._closed.is_set():
                on_response(response)
        self._link.close()

    def _answered(self, request: ControlRequest) -> ControlResponse | None:
        """Send until there is a response; None: the channel is closed."""
        pause_s = PAUSE_S
        while not self._closed.is_set():
            try:
                return self._link.call(request, RESPONSES[type(request)])
            except Exception as error:  # noqa: BLE001 - the orders behind it have to go out
                if not self._closed.is_set():
                    text = "no response from broker %d, trying again: %s"
                    self._lines.log(logging.WARNING, text, self._broker.id, error)
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        return None
