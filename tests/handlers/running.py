"""A broker in the tests' own process, whose counters and disks the tests can see and disturb."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plog._native.faults import Fault, inject
from plog.broker import Broker
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.schema import Struct
from plog.settings.definitions import BrokerSettings
from tests.handlers.wire import WAIT_MS, eventually, fetch_request, speak
from tests.oracle.broker import OracleBroker
from tests.planes import Plane, broker_settings, plane_or_default
from tests.servers import free_port


class Running:
    """A broker in this process, on an event loop of its own."""

    def __init__(self, directory: Path, *, plane: Plane | None = None, **settings: object) -> None:
        self.directory = directory
        self.port = free_port()
        given = {key.replace("_", "."): value for key, value in settings.items()}
        texts = broker_settings(self.port, str(directory), given)
        make = Broker if plane_or_default(plane) is Plane.FAST else OracleBroker
        self.broker = make(BrokerSettings({key: str(value) for key, value in texts.items()}))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self.broker.start())
        self._ids = itertools.count(1)
        self.wire = speak(self.port)
        self.socket = self.connect()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_MS / 1000)

    def _call(self, coroutine) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    @contextmanager
    def python_busy(self) -> Iterator[None]:
        """Keep the event loop from its work for a while."""
        release = threading.Event()
        self._loop.call_soon_threadsafe(release.wait, 60)
        try:
            yield
        finally:
            release.set()

    def stop_broker(self) -> None:
        self._call(self.broker.stop())

    def stop(self) -> None:
        self.wire.close()
        self.socket.close()
        self.stop_broker()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def fast_requests(self) -> int:
        return self.broker.reactor_stats.fast_requests

    @property
    def callouts(self) -> dict[str, int]:
        return self.broker.reactor_stats.callouts

    def until_waiting(self, count: int = 1) -> None:
        """Wait until so many requests are parked in the reactor."""
        until = time.monotonic() + WAIT_MS / 1000
        while self.broker.reactor_stats.waiting != count:
            assert time.monotonic() < until, self.broker.reactor_stats
            time.sleep(0.001)

    @property
    def requests(self) -> int:
        """How many have been read, whoever answers them."""
        return self.broker.reactor_stats.requests

    def until_read(self, requests: int) -> None:
        """Wait until that is their number."""
        eventually(lambda: self.requests >= requests, f"{requests} requests are read")

    def until_responded(self, responses: int) -> None:
        """Wait until the reactor has queued that many responses."""
        eventually(
            lambda: self.broker.reactor_stats.responses >= responses, f"{responses} responses"
        )

    def send(self, request: Struct, version: int) -> None:
        self.socket.sendall(framed(request, version, next(self._ids)))

    def receive(self) -> bytes:
        return receive(self.socket)

    def ask(self, request: Struct, version: int) -> bytes:
        self.send(request, version)
        return self.receive()


def receive(client: socket.socket) -> bytes:
    """Return the next answer, without its length."""
    (size,) = struct.unpack(">i", _read(client, 4))
    return _read(client, size)


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


def framed(request: Struct, version: int, correlation_id: int) -> bytes:
    key = type(request).api.key
    header = framing.encode_request_header(key, version, correlation_id, "twins")
    body = codec.encode(request, version)
    return struct.pack(">i", len(header) + len(body)) + header + body


def decoded(response: type, version: int, frame: bytes):
    _, pos = framing.decode_response_header(response.api.key, version, memoryview(frame))
    return codec.decode(response, version, memoryview(frame), pos)[0]


def ask_in_one_go(running: Running, *requests: tuple[Struct, int]) -> list[bytes]:
    """Send all at once; return the answers, which have to come in the same order."""
    first = 7000
    running.socket.sendall(
        b"".join(
            framed(request, version, first + n) for n, (request, version) in enumerate(requests)
        )
    )
    frames = []
    for n, (request, _) in enumerate(requests):
        if getattr(request, "acks", 1) != 0:
            frames.append(running.receive())
            assert struct.unpack_from(">i", frames[-1])[0] == first + n
    return frames


def records_of(frame: bytes) -> int:
    """Return how many bytes of records an answer to a Fetch of one partition holds."""
    return len(decoded(FetchResponse, 12, frame).responses[0].partitions[0].records)


def end_of(running: Running, topic: str, index: int = 0) -> int:
    answer = decoded(FetchResponse, 12, running.ask(fetch_request((topic, index, 0)), 12))
    return answer.responses[0].partitions[0].high_watermark


@contextmanager
def faults(*injected: Fault) -> Iterator[None]:
    inject(list(injected))
    try:
        yield
    finally:
        inject([])
