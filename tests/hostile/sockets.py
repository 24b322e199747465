"""Senders of hostile bytes: whole streams on connections of their own, many at once."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence

from tests.handlers.wire import WAIT_MS

Address = tuple[str, int]


def address(port: int) -> Address:
    return ("127.0.0.1", port)


def prefixed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def connect(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(WAIT_MS / 1000)
    sock.connect(address(port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextlib.contextmanager
def crowd(port: int, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have said something, and say no more; gone at the end."""
    hoard: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = connect(port)
            hoard.append(sock)
            if first:
                sock.sendall(first)
        yield hoard
    finally:
        for sock in hoard:
            sock.close()


def is_closed(sock: socket.socket) -> bool:
    """Read up to the end of the stream, which must come."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def answers(data: bytes) -> Iterator[bytes]:
    """Yield the whole frames of what was received."""
    at = 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if at + 4 + size > len(data):
            return
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


class Outcome:
    """What came of one stream."""

    __slots__ = ("data", "ended")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        """By the broker, before the sender had closed."""


def send_streams(
    port: int,
    streams: Iterable[bytes],
    *,
    at_once: int = 32,
    frames: Sequence[int] | None = None,
    half_close: bool = False,
    patience_s: float = WAIT_MS / 1000,
) -> list[Outcome]:
    """Send each stream on a connection of its own, and read until the broker closes it.

    `frames`: how many answers to wait for at most, of each; then the sender closes. `half_close`:
    it closes its sending side behind the stream, so the broker has to come to an end.
    """
    given = list(streams)
    outcomes = [Outcome() for _ in given]
    selector = selectors.DefaultSelector()
    waiting = list(range(len(given)))[::-1]
    unsent: dict[int, memoryview] = {}
    deadline = time.monotonic() + patience_s
    open_now = 0

    def begin(number: int) -> None:
        nonlocal open_now
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address(port))
        unsent[number] = memoryview(given[number])
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
        open_now += 1

    def end(sock: socket.socket, number: int, *, by_broker: bool) -> None:
        nonlocal open_now
        outcomes[number].ended = by_broker
        selector.unregister(sock)
        sock.close()
        unsent.pop(number, None)
        open_now -= 1

    while waiting or open_now:
        while waiting and open_now < at_once:
            begin(waiting.pop())
        ready = selector.select(1)
        if ready:
            deadline = time.monotonic() + patience_s
        assert time.monotonic() < deadline, (
            f"{open_now} connections are neither answered nor closed: "
            f"{[bytes(given[key.data]).hex() for key in selector.get_map().values()]}"
        )
        for key, mask in ready:
            sock, number = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            try:
                if mask & selectors.EVENT_WRITE and number in unsent:
                    rest = unsent[number]
                    rest = rest[sock.send(rest[: 1 << 20]) :] if rest else rest
                    unsent[number] = rest
                    if not rest:
                        del unsent[number]
                        if half_close:
                            sock.shutdown(socket.SHUT_WR)
                        selector.modify(sock, selectors.EVENT_READ, number)
                if mask & selectors.EVENT_READ:
                    more = sock.recv(1 << 16)
                    if not more:
                        end(sock, number, by_broker=True)
                        continue
                    outcomes[number].data += more
                    wanted = 1 if frames is None else frames[number]
                    if len(list(answers(bytes(outcomes[number].data)))) >= wanted:
                        end(sock, number, by_broker=False)
            except BlockingIOError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                end(sock, number, by_broker=True)
    selector.close()
    return outcomes
