"""Serves one page over HTTP, at one path of a listening socket.

Owns the sockets and the small part of HTTP that metrics readers use: one GET or HEAD request per
connection. Knows nothing about the contents of the page. One thread does everything and never
blocks on a client: each connection has one deadline, the oldest is closed when there are too many,
and pages are created one after another.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from plog._native.files import NO_RESOURCES

log = logging.getLogger(__name__)

READERS = 16
READER_TIMEOUT_S = 10.0
STOP_S = 2.0
"""How long `stop` waits for a page that is being created."""
HEAD_BYTES = 8192
REST_S = 0.1
"""Pause of accepting when no descriptors are left and no connection can be closed."""
SHORT_OF = NO_RESOURCES | {errno.ENOBUFS}
NOT_HTTP = "not an HTTP request\n"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Page = Callable[[Collection[str]], str]
"""Creates the page with the named metrics only; with all if none is named."""


class _Reader:
    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self.socket = connected
        self.deadline_s = deadline_s
        self.head = b""
        self.unsent: memoryview | None = None
        """Unsent part of the response; None while the request head is incomplete."""


class PageServer:
    """Serves a page from `start` to `stop`.

    Args:
        listening: the server closes it.
    """

    def __init__(
        self,
        listening: socket.socket,
        path: str,
        page: Page,
        *,
        most_readers: int = READERS,
        timeout_s: float = READER_TIMEOUT_S,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._path, self._page = path, page
        self._most_readers, self._timeout_s = most_readers, timeout_s
        self._readers: dict[socket.socket, _Reader] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="metrics page", daemon=True)

    def start(self) -> None:
        """Start serving the page, in its own thread."""
        self._thread.start()

    def stop(self) -> None:
        """Close all sockets after the current page; wait at most STOP_S for that."""
        self._stopping = True
        with suppress(OSError):  # stopped before
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping:
            self._turn()
        for reader in list(self._readers.values()):
            self._close(reader)
        self._selector.close()
        self._listening.close()

    def _turn(self) -> None:
        oldest = next(iter(self._readers.values()), None)
        wait_s = None if oldest is None else max(0.0, oldest.deadline_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listening:
                self._accept()
                continue
            reader = key.data
            if reader.socket in self._readers:  # not closed meanwhile for another one
                try:
                    self._go_on(reader)
                except BlockingIOError:
                    pass
                except OSError:
                    self._close(reader)
        now_s = time.monotonic()
        for reader in [one for one in self._readers.values() if one.deadline_s <= now_s]:
            self._close(reader)

    def _accept(self) -> None:
        try:
            connected, _ = self._listening.accept()
        except OSError as error:
            if error.errno in SHORT_OF and not self._close_oldest():
                time.sleep(REST_S)
            return
        connected.setblocking(False)
        if len(self._readers) == self._most_readers:
            self._close_oldest()
        reader = _Reader(connected, time.monotonic() + self._timeout_s)
        self._readers[connected] = reader
        self._selector.register(connected, selectors.EVENT_READ, reader)

    def _close_oldest(self) -> bool:
        for reader in self._readers.values():
            self._close(reader)
            return True
        return False

    def _close(self, reader: _Reader) -> None:
        del self._readers[reader.socket]
        self._selector.unregister(reader.socket)
        reader.socket.close()

    def _go_on(self, reader: _Reader) -> None:
        if reader.unsent:
            self._send(reader)
            return
        received = reader.socket.recv(HEAD_BYTES)
        if not received:
            self._close(reader)
        elif reader.unsent is None:
            reader.head += received
            is_whole = b"\r\n\r\n" in reader.head or b"\n\n" in reader.head
            if is_whole or len(reader.head) >= HEAD_BYTES:
                reader.unsent = memoryview(self._respond(reader.head if is_whole else b""))
                self._selector.modify(reader.socket, selectors.EVENT_WRITE, reader)
                self._send(reader)

    def _send(self, reader: _Reader) -> None:
        assert reader.unsent is not None
        reader.unsent = reader.unsent[reader.socket.send(reader.unsent) :]
        if not reader.unsent:
            reader.unsent = memoryview(b"")  # frees the response
            # Read until the client closes: an earlier close could reset the connection, and the
            # client could lose the response.
            reader.socket.shutdown(socket.SHUT_WR)
            self._selector.modify(reader.socket, selectors.EVENT_READ, reader)

    def _respond(self, head: bytes) -> bytes:
        words = head.partition(b"\n")[0].decode("latin-1").rstrip("\r").split(" ")
        try:
            method, target, version = words
            asked = urlsplit(target)
        except ValueError:
            return _response(HTTPStatus.BAD_REQUEST, NOT_HTTP)
        if not version.startswith("HTTP/"):
            return _response(HTTPStatus.BAD_REQUEST, NOT_HTTP)
        if asked.path != self._path:
            return _response(HTTPStatus.NOT_FOUND, f"the page is at {self._path}\n")
        if method not in ("GET", "HEAD"):
            allowed = "Allow: GET, HEAD\r\n"
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "use GET\n", more=allowed)
        try:
            text = self._page(parse_qs(asked.query).get("name[]", ()))
        except Exception as error:  # noqa: BLE001 - a bug must not end the server
            log.error("cannot create the page %s: %r", self._path, error)
            return _response(
                HTTPStatus.INTERNAL_SERVER_ERROR, "cannot create the page; see the broker's log\n"
            )
        return _response(HTTPStatus.OK, text, has_body=method == "GET")


def _response(status: HTTPStatus, text: str, *, more: str = "", has_body: bool = True) -> bytes:
    body = text.encode(errors="replace")
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + body if has_body else head.encode()
