"""What handlers know of a client's connection, and the bound on what they work on.

Owns the facts of the request in hand. Never touches a socket, and is used in the event loop's
thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from plog.settings.listeners import Listener

if TYPE_CHECKING:
    from plog._native.fetch_callout import FetchCallout
    from plog._native.produce_callout import ProduceCallout

MOST_BYTES_AT_WORK: Final = 4 << 20


class Work:
    """What handlers are at work on: not those that wait for something else, or for their client.

    A disk, the coordination store and other brokers may be away for long.

    There is room for `most` requests, and for more of any size while those at work
    have fewer than `MOST_BYTES_AT_WORK` together: what becomes of a request in Python can
    take fifty times its bytes. `on_room` is called whenever there may be room again.
    """

    __slots__ = ("_bytes", "_most", "_on_room", "count")

    def __init__(self, most: int = 1, on_room: Callable[[], None] = lambda: None) -> None:
        self._most = most
        self._on_room = on_room
        self.count = 0
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether another request may be taken."""
        return self.count < self._most and self._bytes < MOST_BYTES_AT_WORK

    def begin(self, size: int) -> None:
        """One more, of so many bytes."""
        self.count += 1
        self._bytes += size

    def end(self, size: int) -> None:
        """One less."""
        self.count -= 1
        self._bytes -= size
        if self.has_room:
            self._on_room()


class Connection:
    """A client connection as handlers know it.

    A handler may set `throttle_ms`: the connection is muted for so long once its
    answer is given (KIP-219); and `close_after_reply`, the reason to close it when
    the answer has been sent. Both hold for one answer.
    """

    __slots__ = (
        "attributes",
        "callout",
        "client_software_name",
        "client_software_version",
        "close_after_reply",
        "closing",
        "gone",
        "id",
        "listener",
        "peer",
        "principal",
        "raw_tokens",
        "received_us",
        "size",
        "task",
        "throttle_ms",
        "waits_while_open",
        "work",
    )

    def __init__(self, id: int, listener: Listener, peer: str, work: Work | None = None) -> None:
        self.id = id
        self.listener = listener
        self.peer = peer
        """host:port of the client."""
        self.client_software_name = ""
        self.client_software_version = ""
        self.principal: str | None = None
        """The user that the client has proved to be, "User:name"; None before it did."""
        self.attributes: dict[str, Any] = {}
        """Free for handlers: SASL state and the like."""
        self.raw_tokens = False
        """SASL tokens without request headers follow (SaslHandshake v0), of any size."""
        self.callout: ProduceCallout | FetchCallout | None = None
        """The question about the request in hand; None: Python has the whole of it."""
        self.received_us = 0
        """When the last byte of the request in hand was read, by the monotonic clock: before those
        ahead of it were answered, if they came together."""
        self.size = 0
        """Bytes of the request in hand."""
        self.throttle_ms = 0
        self.close_after_reply: str | None = None
        self.closing = False
        self.task: asyncio.Task[Any] | None = None
        """What works on the request in hand, if it waits."""
        self.gone = False
        """No answer reaches the client any more. Handlers go on: what came whole is done."""
        self.waits_while_open = False
        self.work = work or Work()

    @property
    def host(self) -> str:
        """The client's address, without its port."""
        return self.peer.rpartition(":")[0].strip("[]")

    @property
    def listener_name(self) -> str:
        """Name of the listener the client came by."""
        return self.listener.name

    @contextmanager
    def while_open(self) -> Iterator[None]:
        """For a wait whose end is of use to this client alone.

        Raises:
            asyncio.CancelledError: the connection is closed, or will be before the wait has ended.
        """
        if self.gone:
            raise asyncio.CancelledError(f"{self.peer} disconnected")
        self.waits_while_open = True
        try:
            with self.aside():
                yield
        finally:
            self.waits_while_open = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For a wait that must not keep other requests from being taken: it is not work."""
        self.work.end(self.size)
        try:
            yield
        finally:
            self.work.begin(self.size)

    def __repr__(self) -> str:
        return f"Connection({self.id}, {self.peer} on {self.listener.name})"
