"""A reactor that asks, a client of it, and Python's side of both."""

from __future__ import annotations

import gc
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plog._native.fetch_sessions import SessionCache
from plog._native.reactor import CALLOUT, Event, Reactor
from plog._native.served import ServedPartitions
from plog._native.work_queue import WorkThread
from plog.protocol import codec, framing
from plog.protocol.schema import Struct
from tests.network.server import WAIT_S, Client


class Asking:
    """A reactor, a client, and Python's side of both."""

    def __init__(self, served: ServedPartitions) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.reactor = Reactor(served=served, sessions=SessionCache(10))
        self.reactor.add_listener(listening.fileno(), 0)
        self.reactor.start()
        self.client = Client(listening.getsockname())
        listening.close()
        self.events: list[Event] = []
        self.number = 0

    def event(self, kind: int) -> Event:
        """Return the next event of a kind."""
        while True:
            while self.events:
                event = self.events.pop(0)
                if event.kind == kind:
                    return event
            readable, _, _ = select.select([self.reactor.wake_fd], [], [], WAIT_S)
            assert readable
            self.events += self.reactor.take()

    def callout(self) -> Any:
        """Return the next question."""
        callout = self.event(CALLOUT).callout
        assert callout is not None
        return callout

    def send(self, request: Struct, version: int, client: str | None = "c") -> None:
        """Send a request."""
        self.number += 1
        self.send_body(type(request).api.key, codec.encode(request, version), version, client)

    def send_body(self, key: int, body: bytes, version: int, client: str | None = "c") -> None:
        """Send these bytes as the body of a request."""
        header = framing.encode_request_header(key, version, self.number, client)
        self.client.sendall(struct.pack(">i", len(header + body)) + header + body)

    def response(self, cls: type[Struct], version: int) -> Any:
        """Return the response to the last request."""
        frame = self.client.answer()
        number, at = framing.decode_response_header(cls.api.key, version, frame)
        assert number == self.number
        response, end = codec.decode(cls, version, frame, at)
        assert end == len(frame)
        return response


@contextmanager
def asking(served: ServedPartitions | None = None) -> Iterator[Asking]:
    """A reactor that serves no partition, unless it is said."""
    one = Asking(served or ServedPartitions(WorkThread()))
    yield one
    one.client.close()
    one.reactor.stop()
    one.events.clear()
    gc.collect()
    assert one.reactor.stats().queued_bytes == 0
