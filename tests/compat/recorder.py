"""A proxy that writes down what clients and one broker say to each other.

Clients have to be told of it by the broker (`advertised.listeners`), or they would go past it
after their first answer. It changes nothing and holds nothing back: a frame is passed on when it
is whole.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import RequestHeader


@dataclass(slots=True)
class Exchange:
    """A request, and what came of it; frames are without their lengths."""

    connection: int
    header: RequestHeader
    request: bytes
    sent: int
    """Its place among all requests and answers, in the order in which the proxy saw them."""
    answer: bytes = b""
    answered: int = -1


def body_of(exchange: Exchange, request: type) -> Any:
    """Return what a request of this class says."""
    _, body = framing.decode_request_header(exchange.request)
    version = exchange.header.api_version
    return codec.decode(request, version, memoryview(exchange.request), body)[0]


class Recorder:
    """Listens on a port of its own from the beginning; passes on to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.exchanges: list[Exchange] = []
        self._target_port = target_port
        self._places = itertools.count()
        self._connections = itertools.count()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._closing = False
        self.failures: list[str] = []
        self._start(self._accept)

    def close(self) -> None:
        """End every connection; afterwards `exchanges` does not change any more."""
        self._closing = True
        # Closing a socket does not wake who waits for it; shutting it down does.
        for one in [self._listener, *self._sockets]:
            shut_down(one)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for one in [self._listener, *self._sockets]:
            one.close()

    def answered(self) -> list[Exchange]:
        """Return what was answered: each connection's in order, and the connections merged.

        A Produce stands where it was sent, anything else where it was answered: then no Fetch
        comes before the records that it was answered with.
        """
        latest: dict[int, int] = {}
        places: list[tuple[int, Exchange]] = []
        for one in sorted(self.exchanges, key=lambda one: one.sent):
            if one.answered < 0:
                continue
            place = one.sent if one.header.api_key == ApiKey.PRODUCE else one.answered
            place = latest[one.connection] = max(place, latest.get(one.connection, 0))
            places.append((place, one))
        return [one for _, one in sorted(places, key=lambda pair: (pair[0], pair[1].sent))]

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._target_port), 10)
            except OSError:  # the broker does not run
                client.close()
                continue
            broker.settimeout(None)
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, broker]
            if self._closing:
                shut_down(client)
                shut_down(broker)
            waiting: deque[Exchange] = deque()
            self._start(self._pass_requests, next(self._connections), client, broker, waiting)
            self._start(self._pass_answers, client, broker, waiting)

    def _pass_requests(
        self,
        connection: int,
        client: socket.socket,
        broker: socket.socket,
        waiting: deque[Exchange],
    ) -> None:
        for frame in _frames(client):
            header, _ = framing.decode_request_header(frame)
            with self._lock:
                exchange = Exchange(connection, header, frame, next(self._places))
                self.exchanges.append(exchange)
                waiting.append(exchange)
            if not self._pass(client, broker, exchange):
                return
        shut_down(broker)

    def _pass(self, client: socket.socket, broker: socket.socket, exchange: Exchange) -> bool:
        """Pass a request on; False takes the connection over: no more is read of it."""
        send(broker, exchange.request)
        return True

    def _pass_answers(
        self, client: socket.socket, broker: socket.socket, waiting: deque[Exchange]
    ) -> None:
        for frame in _frames(broker):
            (correlation_id,) = struct.unpack_from(">i", frame)
            with self._lock:
                # Answers come in the order of the requests. Those of acks=0 have none.
                while waiting and waiting[0].header.correlation_id != correlation_id:
                    waiting.popleft()
                if not waiting:
                    self.failures.append(f"an answer to nothing: {frame[:64].hex()}")
                    break
                exchange = waiting.popleft()
                exchange.answer, exchange.answered = frame, next(self._places)
            self._pass_back(client, exchange)
        shut_down(client)

    def _pass_back(self, client: socket.socket, exchange: Exchange) -> None:
        """Pass an answer on."""
        send(client, exchange.answer)


def _frames(source: socket.socket) -> Iterator[bytes]:
    while (head := _read(source, 4)) is not None:
        frame = _read(source, struct.unpack(">i", head)[0])
        if frame is None:
            return
        yield frame


def _read(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            more = source.recv(min(size - len(data), 1 << 20))
        except OSError:
            return None
        if not more:
            return None
        data += more
    return bytes(data)


def send(target: socket.socket, frame: bytes) -> None:
    try:
        target.sendall(struct.pack(">i", len(frame)) + frame)
    except OSError:
        return  # it has gone; reading from the other side ends too


def shut_down(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was already
