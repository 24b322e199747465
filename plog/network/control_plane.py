"""Between the reactor and the handlers: takes requests, runs their handlers, gives answers back.

Owns one `Connection` object per client connection and the tasks of handlers
that wait. Never touches a socket, never parses a request, and runs in the event
loop's thread only. That answers leave in the order of requests is the reactor's
doing: it hands over a connection's next request after the answer to the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from plog._native.reactor import (
    CALLOUT,
    CLOSED,
    LEFT,
    MAY_JOIN,
    OPENED,
    REFUSED,
    REQUEST,
    Event,
    Reactor,
)
from plog.network.connections import Connection, Work
from plog.network.listeners import BoundListener
from plog.runtime.bounded_lines import BoundedLines
from plog.settings.listeners import Listener, SecurityProtocol

if TYPE_CHECKING:
    from plog._native.callout import LeaderEndpoint
    from plog._native.fetch_callout import FetchCallout, Found
    from plog._native.produce_callout import ProduceCallout, Refusal, Written

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 8
"""API key, API version and correlation id: what every Kafka request begins with."""


EVENTS_AT_ONCE: Final = 256

CLOSINGS_AT_ONCE: Final = 100
CLOSINGS_PER_S: Final = 10
BUGS_AT_ONCE: Final = 10
BUGS_PER_S: Final = 1
"""Lines of the log that clients can cause: so many together, and so many a second in the long run.
The rest is told in numbers."""


class _NoReply(Enum):
    NO_REPLY = "no reply"


NO_REPLY: Final = _NoReply.NO_REPLY
"""What a handler returns when the request wants no answer (Produce with acks=0)."""

Reply: TypeAlias = "Sequence[bytes | bytearray | memoryview] | _NoReply | Decided"
"""The pieces of one answer, without its length prefix, or NO_REPLY; or the answer to a callout."""
Dispatch: TypeAlias = Callable[["Connection", memoryview], "Reply | Awaitable[Reply]"]


Callout: TypeAlias = "ProduceCallout | FetchCallout"


class Decided(NamedTuple):
    """What becomes of a request's unusual partitions, and where the leaders are that it names."""

    outcomes: Sequence[Written | Refusal] | Sequence[Found]
    endpoints: Sequence[LeaderEndpoint]


Decide: TypeAlias = Callable[["Connection", "Callout"], Coroutine[Any, Any, Decided]]


class CloseConnection(Exception):
    """Raised by a handler: there is no answer to this, close the connection. The text says why."""


class _Started(Coroutine[Any, Any, Any]):
    """A coroutine that has run to its first await, for a task to go on with.

    A task would step the coroutine anew and lose what it waits for; this hands
    the task that first awaitable, and passes everything after it through. An
    exception (a cancellation before the task's first step) goes to the coroutine
    where it stands.
    """

    __slots__ = ("_coroutine", "_first", "_pending")

    def __init__(self, coroutine: CoroutineType[Any, Any, Any], first: Any) -> None:
        self._coroutine = coroutine
        self._first = first
        self._pending = True

    def send(self, value: Any) -> Any:
        if self._pending:
            self._pending = False
            first, self._first = self._first, None
            return first
        return self._coroutine.send(value)

    def throw(
        self,
        typ: Any,
        val: Any = None,
        tb: TracebackType | None = None,
    ) -> Any:
        self._pending = False
        self._first = None
        # Tasks give one argument; that coroutines take three is deprecated since Python 3.12.
        thrown = typ if val is None else val
        try:
            return self._coroutine.throw(thrown if tb is None else thrown.with_traceback(tb))
        finally:
            # The exception's traceback holds this frame: without a cycle the request's memory is
            # free once the exception is.
            del typ, val, tb, thrown

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return (yield from self._coroutine.__await__())


class ControlPlane:
    """Runs handlers for what the reactor hands over, and for what it asks.

    `dispatch(connection, frame)` is called in the event loop for each request. It
    returns the answer, or an awaitable of it. `decide(connection, callout)` is the same for a
    callout. A coroutine is run up to its first
    real wait at once, and becomes a task only then; up to there
    `asyncio.current_task()` is None, so `asyncio.timeout` cannot be entered (waits
    with a limit belong in `runtime.purgatory`). `CloseConnection` closes the
    connection; any other exception is a bug, which costs the connection and is
    logged with its traceback. A handler whose client goes is run to its end, but for
    what it awaits within `Connection.while_open`. While handlers are at `Work` on as many
    requests as there is room for (`most_at_work`), no further one is begun: clients
    could otherwise ask for work, go, and leave more of it behind than there is memory.
    Requests for which `is_urgent(connection, frame)` is true do not wait for that.
    """

    def __init__(
        self,
        reactor: Reactor,
        dispatch: Dispatch,
        loop: asyncio.AbstractEventLoop,
        *,
        decide: Decide | None = None,
        is_urgent: Callable[[Connection, memoryview], bool] | None = None,
        most_at_work: int = 100,
        on_may_join: Callable[[int, int], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._decide = decide or _undecided
        self._is_urgent = is_urgent or _never
        self._on_may_join = on_may_join
        self._work = Work(most_at_work, self._on_room)
        self._not_begun: deque[tuple[Connection, Event]] = deque()
        self._dispatch = dispatch
        self._loop = loop
        self._listeners: list[Listener] = []
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._taking = False
        self._closings = BoundedLines(
            log,
            "%d further connections were closed after invalid requests or failures",
            at_once=CLOSINGS_AT_ONCE,
            per_s=CLOSINGS_PER_S,
            timing=loop,
        )
        self._bugs = BoundedLines(
            log,
            "%d further requests failed with an internal error",
            at_once=BUGS_AT_ONCE,
            per_s=BUGS_PER_S,
            timing=loop,
        )

    @property
    def connections(self) -> Sequence[Connection]:
        """Those open now."""
        return list(self._connections.values())

    @property
    def waiting(self) -> int:
        """Number of requests whose handlers wait."""
        return len(self._tasks)

    def add_listener(self, bound: BoundListener, *, is_exempt: bool = False) -> None:
        """Accept connections from a bound listener; its socket may be closed afterwards.

        With `is_exempt`, beyond the limits of connections and of requests' memory.
        """
        self._listeners.append(bound.listener)
        # Where clients have to say who they are, handlers will ask them before the fast path may.
        self._reactor.add_listener(
            bound.socket.fileno(),
            len(self._listeners) - 1,
            may_be_fast=bound.listener.security_protocol is SecurityProtocol.PLAINTEXT,
            is_exempt=is_exempt,
            is_between_brokers=bound.listener.is_inter_broker,
        )

    def start(self) -> None:
        """Take events from now on. The reactor is started by whoever made it."""
        self._taking = True
        self._loop.add_reader(self._reactor.wake_fd, self._on_wake)

    async def stop(self, handlers_ms: int, drain_ms: int) -> None:
        """Take no more requests, let waiting handlers finish, then stop the reactor.

        Handlers that take longer than `handlers_ms` are cancelled and their
        connections closed without an answer; `drain_ms` is for sending what was
        answered.
        """
        if self._taking:
            self._taking = False
            self._loop.remove_reader(self._reactor.wake_fd)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=handlers_ms / 1000)
        late = list(self._tasks)
        for task in late:
            task.cancel()
        if late:
            log.warning(
                "cancelled %d requests that had waited for more than %d ms", len(late), handlers_ms
            )
            await asyncio.wait(late)
        await self._loop.run_in_executor(None, self._reactor.stop, drain_ms)
        self._not_begun.clear()
        while events := self._reactor.take():
            for event in events:
                if event.kind == CLOSED:
                    self._connections.pop(event.connection_id, None)
        self._closings.tell_rest()
        self._bugs.tell_rest()

    # --- events ------------------------------------------------------------------------------

    def _on_wake(self) -> None:
        # One batch per round of the loop; the eventfd stays readable while there is more.
        for event in self._reactor.take(EVENTS_AT_ONCE):
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        kind = event.kind
        if kind in (REQUEST, CALLOUT):
            connection = self._connections[event.connection_id]
            if connection.closing:
                return
            if event.frame is not None and self._is_urgent(connection, event.frame):
                if self._taking:
                    self._begin(connection, event)
                return
            self._not_begun.append((connection, event))
            self._begin_requests()
        elif kind == OPENED:
            self._connections[event.connection_id] = Connection(
                event.connection_id,
                self._listeners[event.listener_id],
                event.peer,
                self._work,
            )
            name = self._listeners[event.listener_id].name
            log.debug("opened connection from %s on %s", event.peer, name)
        elif kind == MAY_JOIN:
            if event.joiner is not None and self._on_may_join is not None:
                self._on_may_join(*event.joiner)
        elif kind == LEFT:
            self._on_left(self._connections[event.connection_id])
        elif kind == CLOSED:
            self._on_closed(event)
        elif kind == REFUSED:
            log.warning(
                "refused connection from %s on %s: %s (%d refused so far)",
                event.peer,
                self._listeners[event.listener_id].name,
                event.reason,
                self._reactor.stats().refused,
            )

    def _on_closed(self, event: Event) -> None:
        connection = self._connections.pop(event.connection_id)
        if not connection.closing:
            connection.closing = True
            self._closings.log(
                logging.WARNING if event.abnormal else logging.DEBUG,
                "closing connection from %s on %s: %s",
                connection.peer,
                connection.listener.name,
                event.reason,
            )
        self._on_left(connection)

    def _on_left(self, connection: Connection) -> None:
        connection.gone = True
        if connection.task is not None and connection.waits_while_open:
            connection.task.cancel()

    def _begin_requests(self) -> None:
        while self._not_begun and self._work.has_room and self._taking:
            self._begin(*self._not_begun.popleft())

    def _on_room(self) -> None:
        # Not within the handler that has made it.
        if self._not_begun:
            self._loop.call_soon(self._begin_requests)

    def _begin(self, connection: Connection, event: Event) -> None:
        connection.received_us = event.received_us
        # The one place that may catch everything: whatever a handler raises is a bug of ours, and
        # must cost the client that met it its connection, but nobody else anything.
        try:
            if event.frame is not None:
                self._begin_request(connection, event.frame)
            elif event.callout is not None:
                self._begin_callout(connection, event.callout)
        except asyncio.CancelledError as error:
            if not connection.gone:
                self._failed(connection, error)
            else:  # it serves its client alone, which left before it began
                self._skip(connection)
        except Exception as error:  # noqa: BLE001
            self._failed(connection, error)

    def _begin_request(self, connection: Connection, frame: memoryview) -> None:
        connection.size = len(frame)
        connection.callout = None
        if len(frame) < HEADER_BYTES and not connection.raw_tokens:
            self._close(connection, f"request of {len(frame)} bytes has no room for a header")
            return
        outcome = self._dispatch(connection, frame)
        if isinstance(outcome, CoroutineType):
            self._run(connection, outcome)
        elif isinstance(outcome, (list, tuple, _NoReply)):
            self._answer(connection, outcome)
        else:
            self._watch(connection, _as_coroutine(cast("Awaitable[Reply]", outcome)))

    def _begin_callout(self, connection: Connection, callout: Callout) -> None:
        connection.size = callout.size
        connection.callout = callout
        decision = self._decide(connection, callout)
        if isinstance(decision, CoroutineType):
            self._run(connection, decision)
        else:
            self._watch(connection, decision)

    # --- handlers ----------------------------------------------------------------------------

    def _run(self, connection: Connection, coroutine: CoroutineType[Any, Any, Reply]) -> None:
        try:
            first = coroutine.send(None)
        except StopIteration as finished:
            self._answer(connection, finished.value)
        else:
            self._watch(connection, _Started(coroutine, first))

    def _watch(self, connection: Connection, coroutine: Coroutine[Any, Any, Reply]) -> None:
        task = self._loop.create_task(coroutine)
        connection.task = task
        self._tasks.add(task)
        self._work.begin(connection.size)
        task.add_done_callback(lambda done: self._on_done(connection, done))

    def _on_done(self, connection: Connection, task: asyncio.Task[Reply]) -> None:
        self._tasks.discard(task)
        self._work.end(connection.size)
        connection.task = None
        if task.cancelled():
            # Because the client has gone, or the broker stops.
            if connection.gone:
                self._skip(connection)  # requests behind it may have come
            elif not connection.closing:
                self._close(connection, "its request was cancelled", logging.INFO)
            else:
                self._give_up(connection)
            return
        error = task.exception()
        if error is not None:
            self._failed(connection, error)
            return
        try:
            self._answer(connection, task.result())
        except Exception as wrong:  # noqa: BLE001 - as in _on_request
            self._failed(connection, wrong)

    def _answer(self, connection: Connection, reply: Reply) -> None:
        if connection.throttle_ms > 0:
            self._reactor.mute(connection.id, connection.throttle_ms)
            connection.throttle_ms = 0
        if isinstance(reply, Decided):
            self._take_callout(connection).answer(*reply)
        elif reply is NO_REPLY:
            self._reactor.skip(connection.id)
        else:
            self._reactor.respond(connection.id, reply)
        if connection.close_after_reply is not None:
            self._close(connection, connection.close_after_reply, logging.INFO)

    def _skip(self, connection: Connection) -> None:
        """Have no response sent to a client that has gone."""
        if connection.callout is None:
            self._reactor.skip(connection.id)
        else:
            self._take_callout(connection).give_up()

    def _take_callout(self, connection: Connection) -> Any:
        callout, connection.callout = connection.callout, None
        assert callout is not None
        return callout

    def _end_request(self, connection: Connection, reason: str) -> None:
        """Close for the request in hand; a question about it is never answered."""
        self._reactor.close(connection.id, reason)
        self._give_up(connection)

    def _give_up(self, connection: Connection) -> None:
        if connection.callout is not None:
            self._take_callout(connection).give_up()

    def _failed(self, connection: Connection, error: BaseException) -> None:
        if isinstance(error, CloseConnection):
            self._close(connection, str(error))
            return
        if not connection.closing:
            self._bugs.log(
                logging.ERROR,
                "closing connection from %s on %s: its request failed with an internal error",
                connection.peer,
                connection.listener.name,
                exc_info=error,
            )
            connection.closing = True
        else:
            self._bugs.log(
                logging.ERROR,
                "a request of %s (disconnected) failed with an internal error",
                connection.peer,
                exc_info=error,
            )
        self._end_request(connection, "internal error")

    def _close(self, connection: Connection, reason: str, level: int = logging.WARNING) -> None:
        """Close after the answers given so far, with one line in the log."""
        if connection.closing:
            self._give_up(connection)
            return
        connection.closing = True
        self._closings.log(
            level,
            "closing connection from %s on %s: %s",
            connection.peer,
            connection.listener.name,
            reason,
        )
        self._end_request(connection, reason)


async def _as_coroutine(awaitable: Awaitable[Reply]) -> Reply:
    return await awaitable


def _never(connection: Connection, frame: memoryview) -> bool:
    return False


async def _undecided(connection: Connection, callout: Callout) -> Decided:
    raise AssertionError("a reactor without partitions asks nothing")
