"""How simulated brokers reach each other: connections that are slow or break.

`OrderQueue` decides which order of a controller is sent, and when again, as in `PeerChannel`.
Markers of transactions are sent once, as by `Peers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from plog.cluster.control_requests import ControlRequest, ControlResponse
from plog.cluster.controller_context import LiveBroker
from plog.cluster.order_queue import OnResponse, OrderQueue
from plog.errors import RequestTimedOut

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process
    from tests.cluster.simulation.sim_replicas import SimFetch
    from tests.cluster.simulation.transactions import SentMarkers

RESPONSE_IS_LOST = 0.05
MAX_SLOW_MS = 8_000
SLOW_MARKERS, MAX_SLOW_MARKER_MS = 0.3, 30_000
TIMEOUT_MS = 200, 3_000
AGAIN_MS = 500
"""When a host sends again what another one does not acknowledge."""


Request: TypeAlias = "ControlRequest | SentMarkers | SimFetch"


class Connection:
    """A connection from one process to another.

    A request still arrives if its sender has given the connection up, as from a socket's buffer.
    """

    def __init__(self, sender: Process, target: Process) -> None:
        self._sender = sender
        self._target = target
        self._scheduler = sender.scheduler
        self._number = target.accept()
        self._wire = f"wire {sender.owner} {target.owner} {self._number}"
        self.is_usable = True

    @classmethod
    def made(cls, sender: Process, to: int, before: Connection | None) -> Connection | None:
        """Return a connection to a broker, the one before if that is usable; None: none is made."""
        if before is not None and before.is_usable:
            return before
        target = sender.cluster.brokers[to].process
        if target is None or not target.is_listening or not sender.reaches(target):
            return None
        return cls(sender, target)

    def call(
        self,
        request: Request,
        on_response: Callable[[Any], None],
        slow: float,
        at_most_ms: int = MAX_SLOW_MS,
    ) -> None:
        """Send a request. Without a response the connection is of no more use.

        Args:
            slow: how often it waits in the other broker's socket, for `at_most_ms`.
        """
        random = self._scheduler.random
        delay_ms = random.randint(0, at_most_ms if random.random() < slow else 20)
        self._after(delay_ms, lambda: self._arrive(request, on_response))

    def _after(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._scheduler.after(delay_ms, self._wire, event)

    def _arrive(self, request: Request, on_response: Callable[[Any], None]) -> None:
        if not self._target.is_alive:
            self.is_usable = False
        elif not self._target.is_running() or not self._sender.reaches(self._target):
            self._after(AGAIN_MS, lambda: self._arrive(request, on_response))
        else:
            self._target.arrive(request, self._number, lambda one: self._respond(one, on_response))

    def _respond(self, response: object, on_response: Callable[[Any], None]) -> None:
        if response is None or self._scheduler.random.random() < RESPONSE_IS_LOST:
            self.is_usable = False
        else:
            self._scheduler.soon(self._wire, lambda: self._answer(response, on_response))

    def _answer(self, response: object, on_response: Callable[[Any], None]) -> None:
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

    @property
    def is_answered(self) -> bool:
        """See `BrokerChannel.is_answered`."""
        return self._orders.is_empty

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
        self._connection = connection = Connection.made(self._sender, self._to, self._connection)
        if connection is None:
            self._fail(attempt)
            return
        timeout_ms = self._scheduler.random.randint(*TIMEOUT_MS)
        cluster = self._sender.cluster
        slow = 1.0 if self._to in cluster.slow_brokers else cluster.slow_orders
        connection.call(order, lambda response: self._answered(attempt, response), slow)
        self._scheduler.after(timeout_ms, self._owner, lambda: self._fail(attempt))

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


class SimLink:
    """The requests for markers to one broker: one at a time, each sent once, as by `Peers`."""

    def __init__(self, sender: Process, to: int) -> None:
        self._sender = sender
        self._to = to
        self._scheduler = sender.scheduler
        self._owner = f"markers {sender.owner} {to}"
        self._waiting: deque[tuple[SentMarkers, Future[Any]]] = deque()
        self._connection: Connection | None = None
        self._under_way: Future[Any] | None = None

    def ask(self, request: SentMarkers) -> Future[Any]:
        """Send a request after those before it. The future gets its response, or an error."""
        future: Future[Any] = Future()
        self._waiting.append((request, future))
        self._call_next()
        return future

    def _call_next(self) -> None:
        if self._under_way is not None or not self._waiting:
            return
        request, future = self._waiting.popleft()
        self._under_way = future
        self._connection = connection = Connection.made(self._sender, self._to, self._connection)
        if connection is not None:
            answer = partial(self._end, future)
            connection.call(request, answer, SLOW_MARKERS, MAX_SLOW_MARKER_MS)
        timeout_ms = self._scheduler.random.randint(*TIMEOUT_MS) if connection else 0
        self._scheduler.after(timeout_ms, self._owner, lambda: self._time_out(future))

    def _time_out(self, future: Future[Any]) -> None:
        if future is not self._under_way or not self._sender.is_alive:
            return
        if self._sender.is_running():
            if self._connection is not None:
                self._connection.is_usable = False
            self._end(future, RequestTimedOut("no response"))
        else:
            self._scheduler.after(AGAIN_MS, self._owner, lambda: self._time_out(future))

    def _end(self, future: Future[Any], outcome: object) -> None:
        if future is self._under_way:
            self._under_way = None
            if isinstance(outcome, RequestTimedOut):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
            self._sender.cluster.transactions.run()
            self._call_next()
