"""A reactor and a control plane on a free port of 127.0.0.1, and a client that speaks raw bytes."""

import asyncio
import gc
import socket
import struct
import threading
import time

from plog._native.reactor import Reactor
from plog.network.control_plane import ControlPlane
from plog.network.listeners import bind_listeners, listen_on
from plog.settings import BrokerSettings

WAIT_S = 40


def request(correlation: int, body: bytes = b"") -> bytes:
    """A request as the wire has it: length, an ApiVersions-like header, body."""
    payload = struct.pack(">hhi", 18, 0, correlation) + body
    return struct.pack(">i", len(payload)) + payload


def correlation_of(frame) -> int:
    return struct.unpack_from(">i", frame, 4)[0]


def echo(connection, frame):
    return [bytes(frame)]


class Client(socket.socket):
    """A blocking socket that reads whole answers."""

    def __init__(self, address, **options):
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.settimeout(WAIT_S)
        if "receive_buffer" in options:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["receive_buffer"])
        self.connect(address)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def name(self) -> str:
        """host:port, as the broker calls its peer."""
        host, port = self.getsockname()
        return f"{host}:{port}"

    def half_close(self) -> None:
        self.shutdown(socket.SHUT_WR)

    def receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)

    def answer(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def is_closed_by_server(self) -> bool:
        """Wait for the end of the stream."""
        try:
            while self.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


MOST_AT_WORK = 20


class Server:
    """Runs the loop in a thread of its own; `stop` checks that nothing is left behind."""

    def __init__(self, dispatch=echo, *, decide=None, **options):
        self.dispatch = dispatch
        self.decide = decide
        self.options = options
        self.clients = []

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="control plane")
        self.thread.start()
        self.reactor = Reactor(**self.options)
        self.control_plane = ControlPlane(
            self.reactor, self.dispatch, self.loop, decide=self.decide, most_at_work=MOST_AT_WORK
        )
        settings = BrokerSettings({"listeners": "PLAINTEXT://127.0.0.1:0"})
        for bound in bind_listeners(settings.parsed_listeners()):
            listen_on(bound, backlog=600)
            self.address = bound.socket.getsockname()
            self.control_plane.add_listener(bound)
            bound.socket.close()
        self.reactor.start()
        self.in_loop(self.control_plane.start)
        self.stopped = False
        return self

    def __exit__(self, *raised):
        for client in self.clients:
            client.close()
        self.stop()
        if raised[0] is None:
            gc.collect()  # exceptions that handlers caught make cycles
            stats = self.reactor.stats()
            assert stats.queued_bytes == 0, stats
            assert stats.connections == 0, stats
            assert stats.accepted == stats.closed + stats.refused, stats

    def stop(self, handlers_ms=0, drain_ms=0):
        if self.stopped:
            return
        self.stopped = True
        asyncio.run_coroutine_threadsafe(
            self.control_plane.stop(handlers_ms, drain_ms), self.loop
        ).result(WAIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()

    def in_loop(self, function, *args):
        """Call in the loop's thread, and return what it returns."""

        async def call():
            return function(*args)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(WAIT_S)

    def connect(self, **options) -> Client:
        client = Client(self.address, **options)
        self.clients.append(client)
        return client

    def until(self, condition, what=""):
        """Wait until `condition()`, which other threads make true, with no event to wait for."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"never came true: {what or condition} {self.reactor.stats()}"
            )
            time.sleep(0.002)
