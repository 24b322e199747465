"""How the orders of simulated controllers reach other brokers: connections that are slow or break.

`OrderQueue` decides which order is sent, and when again, as in `PeerChannel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller_context import LiveBroker
from plog.cluster.order_queue import OnResponse, OrderQueue

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process

RESPONSE_IS_LOST = 0.05
MAX_SLOW_MS = 8_000
AGAIN_MS = 500
"""When a host sends again what another one does not acknowledge."""


class Connection:
    """A connection from one process to another.

    An order still arrives if its sender has given the connection up, as from a socket's buffer.
    """

    def __init__(self, sender: Process, target: Process) -> None:
        self._sender = sender
        self._target = target
        self._scheduler = sender.scheduler
        self._number = target.accept()
        self._wire = f"wire {sender.owner} {target.owner} {self._number}"
        self.is_usable = True

    def call(self, order: ControlRequest, on_response: Callable[[ControlResponse], None]) -> None:
        """Send an order. Without a response the connection is of no more use."""
        random = self._scheduler.random
        slow = random.random() < self._sender.cluster.slow_orders
        delay_ms = random.randint(0, MAX_SLOW_MS if slow else 20)
        self._after(delay_ms, lambda: self._arrive(order, on_response))

    def _after(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._scheduler.after(delay_ms, self._wire, event)

    def _arrive(
        self, order: ControlRequest, on_response: Callable[[ControlResponse], None]
    ) -> None:
        if not self._target.is_alive:
            self.is_usable = False
        elif not self._target.is_running() or not self._sender.reaches(self._target):
            self._after(AGAIN_MS, lambda: self._arrive(order, on_response))
        else:
            self._target.arrive(order, self._number, lambda one: self._respond(one, on_response))

    def _respond(
        self, response: ControlResponse | None, on_response: Callable[[ControlResponse], None]
    ) -> None:
        if response is None or self._scheduler.random.random() < RESPONSE_IS_LOST:
            self.is_usable = False
        else:
            self._scheduler.soon(self._wire, lambda: self._answer(response, on_response))

    def _answer(
        self, response: ControlResponse, on_response: Callable[[ControlResponse], None]
    ) -> None:
        if not self._sender.is_alive or not self.is_usable:
            return
        if self._sender.is_running() and self._sender.reaches(self._target):
            on_response(response)
        else:
            self._after(AGAIN_MS, lambda: self._answer(response, on_response))


class SimChannel:
    """A `BrokerChannel` to a broker in another process, as `PeerChannel` is one."""

    def __init__(self, sender: Process, to: LiveBroker) -> None:
        self._sender = sender
        self._to = to.id
        self._scheduler = sender.scheduler
        self._owner = f"channel {sender.owner} {to.id}"
        self._orders = OrderQueue()
        self._connection: Connection | None = None
        self._is_calling = False
        self._attempts = 0

    def send(self, request: ControlRequest, on_response: OnResponse) -> None:
        """See `BrokerChannel.send`."""
        self._sender.cluster.invariants.check_sender(request, self._sender)
        self._orders.put(request, on_response)
        self._call_next()

    def close(self) -> None:
        """See `BrokerChannel.close`."""
        self._orders.close()

    def _call_next(self) -> None:
        order = self._orders.first
        if order is None or self._is_calling:
            return
        self._is_calling = True
        self._attempts += 1
        attempt = self._attempts
        connection = self._connected()
        if connection is None:
            self._fail(attempt)
            return
        timeout_ms = self._scheduler.random.randint(200, 3000)
        connection.call(order, lambda response: self._answered(attempt, response))
        self._scheduler.after(timeout_ms, self._owner, lambda: self._fail(attempt))

    def _connected(self) -> Connection | None:
        if self._connection is None or not self._connection.is_usable:
            target = self._sender.cluster.brokers[self._to].process
            if target is None or not target.is_listening or not self._sender.reaches(target):
                return None
            self._connection = Connection(self._sender, target)
        return self._connection

    def _fail(self, attempt: int) -> None:
        if attempt == self._attempts and self._is_calling and not self._orders.is_closed:
            if self._connection is not None:
                self._connection.is_usable = False
            pause_ms = round(1000 * self._orders.note_failure())
            self._scheduler.after(pause_ms, self._owner, self._call_again)

    def _call_again(self) -> None:
        if not self._sender.is_alive:
            return
        if self._sender.is_running():
            self._is_calling = False
            self._call_next()
        else:
            self._scheduler.after(AGAIN_MS, self._owner, self._call_again)

    def _answered(self, attempt: int, response: ControlResponse) -> None:
        if attempt == self._attempts and self._is_calling:
            self._is_calling = False
            self._orders.note_response(response)
            self._call_next()
