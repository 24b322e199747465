"""Serves a few pages over HTTP on a listening socket.

Owns the sockets and the small part of HTTP that readers of metrics and health checks use: one GET
or HEAD request per connection. Knows nothing about the contents of the pages. One thread serves all
sockets and never blocks on a client: each connection has one deadline, and the oldest is closed
when there are too many. Each page has a thread that creates it, so a page that takes long delays no
other. Requests for the same page are answered one after another.
"""

from __future__ import annotations

import errno
import io
import logging
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from plog._native.files import NO_RESOURCES

log = logging.getLogger(__name__)

READERS = 16
READER_TIMEOUT_S = 10.0
STOP_S = 2.0
"""How long `stop` waits for the thread that serves the sockets."""
HEAD_BYTES = 8192
REST_S = 0.1
"""Pause of accepting when no descriptors are left and no connection can be closed."""
SHORT_OF = NO_RESOURCES | {errno.ENOBUFS}
NOT_HTTP = "not an HTTP request\n"
TEXT = "text/plain; charset=utf-8"


class Request(NamedTuple):
    """What a reader asks of a page.

    Attributes:
        names: values of `name[]` in the query.
        accept: the Accept header; empty if there is none.
    """

    names: Collection[str] = ()
    accept: str = ""


class Page(NamedTuple):
    """The response to a request."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[Request], Page]]
"""Creates pages, by path. Each function has its own thread and may block."""


class _Reader:
    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self.socket = connected
        self.deadline_s = deadline_s
        self.head = b""
        self.is_waiting = False
        """Whether its page is being created, or is about to be."""
        self.unsent: memoryview | None = None
        """Unsent part of the response; None before there is one."""


class _Asked(NamedTuple):
    reader: _Reader
    request: Request
    has_body: bool


class _Creator:
    """Creates one page in a thread, one request after another."""

    def __init__(
        self,
        path: str,
        create: Callable[[Request], Page],
        is_open: Callable[[_Reader], bool],
        done: Callable[[_Reader, bytes], None],
    ) -> None:
        self._path, self._create = path, create
        self._is_open, self._done = is_open, done
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"page {path}", daemon=True)
        self._thread.start()

    def ask(self, asked: _Asked) -> None:
        """Create the page for a reader soon."""
        self._asked.put(asked)

    def stop(self) -> None:
        """End after the pages that were asked for; do not wait."""
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            if self._is_open(asked.reader):
                self._done(asked.reader, self._response(asked))

    def _response(self, asked: _Asked) -> bytes:
        try:
            page = self._create(asked.request)
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread
            log.error("cannot create the page %s: %r", self._path, error)
            text = "cannot create the page; see the broker's log\n"
            page = Page(text.encode(), TEXT, HTTPStatus.INTERNAL_SERVER_ERROR)
        return _encode(page, has_body=asked.has_body)


class PageServer:
    """Serves pages from `start` to `stop`.

    Args:
        listening: the server closes it.
    """

    def __init__(
        self,
        listening: socket.socket,
        pages: Pages,
        *,
        max_readers: int = READERS,
        timeout_s: float = READER_TIMEOUT_S,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._pages = pages
        self._creators: dict[str, _Creator] = {}
        self._created: deque[tuple[_Reader, bytes]] = deque()
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._max_readers, self._timeout_s = max_readers, timeout_s
        self._readers: dict[socket.socket, _Reader] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)

    def start(self) -> None:
        """Start serving the pages, in threads."""
        self._creators = {
            path: _Creator(path, create, self._is_open, self._done)
            for path, create in self._pages.items()
        }
        self._thread.start()

    def stop(self) -> None:
        """Close all sockets; pages that are being created are dropped."""
        self._stopping = True
        for creator in self._creators.values():
            creator.stop()
        self._knock()
        self._thread.join(STOP_S)

    def _knock(self) -> None:
        with suppress(OSError):  # it is full, or the server has stopped
            self._waker.send(b"\0")

    # -- called by the threads that create pages

    def _is_open(self, reader: _Reader) -> bool:
        return reader.socket in self._readers

    def _done(self, reader: _Reader, response: bytes) -> None:
        self._created.append((reader, response))
        self._knock()

    # -- the sockets

    def _run(self) -> None:
        while not self._stopping:
            self._turn()
        for reader in list(self._readers.values()):
            self._close(reader)
        self._selector.close()
        for ours in (self._listening, self._wake, self._waker):
            ours.close()

    def _turn(self) -> None:
        oldest = next(iter(self._readers.values()), None)
        wait_s = None if oldest is None else max(0.0, oldest.deadline_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listening:
                self._accept()
                continue
            if key.fileobj is self._wake:
                self._wake.recv(HEAD_BYTES)
                continue
            reader = key.data
            if reader.socket in self._readers:  # not closed meanwhile for another one
                self._guard(reader, self._go_on)
        while self._created:
            reader, response = self._created.popleft()
            if reader.socket in self._readers:
                reader.unsent = memoryview(response)
                self._selector.modify(reader.socket, selectors.EVENT_WRITE, reader)
                self._guard(reader, self._send)
        now_s = time.monotonic()
        for reader in [one for one in self._readers.values() if one.deadline_s <= now_s]:
            self._close(reader)

    def _guard(self, reader: _Reader, step: Callable[[_Reader], None]) -> None:
        try:
            step(reader)
        except BlockingIOError:
            pass
        except OSError:
            self._close(reader)

    def _accept(self) -> None:
        try:
            connected, _ = self._listening.accept()
        except OSError as error:
            if error.errno in SHORT_OF and not self._close_oldest():
                time.sleep(REST_S)
            return
        connected.setblocking(False)
        if len(self._readers) == self._max_readers:
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
        elif reader.unsent is None and not reader.is_waiting:
            reader.head += received
            is_whole = b"\r\n\r\n" in reader.head or b"\n\n" in reader.head
            if is_whole or len(reader.head) >= HEAD_BYTES:
                reader.is_waiting = True
                self._respond(reader, reader.head if is_whole else b"")

    def _send(self, reader: _Reader) -> None:
        assert reader.unsent is not None
        reader.unsent = reader.unsent[reader.socket.send(reader.unsent) :]
        if not reader.unsent:
            reader.unsent = memoryview(b"")  # frees the response
            # Read until the client closes: an earlier close could reset the connection, and the
            # client could lose the response.
            reader.socket.shutdown(socket.SHUT_WR)
            self._selector.modify(reader.socket, selectors.EVENT_READ, reader)

    def _respond(self, reader: _Reader, head: bytes) -> None:
        line, _, rest = head.partition(b"\n")
        words = line.decode("latin-1").rstrip("\r").split(" ")
        try:
            method, target, version = words
            asked = urlsplit(target)
            headers = parse_headers(io.BytesIO(rest))
        except (ValueError, HTTPException):
            version = ""
        if not version.startswith("HTTP/"):
            self._refuse(reader, HTTPStatus.BAD_REQUEST, NOT_HTTP)
        elif asked.path not in self._creators:
            places = ", ".join(self._pages)
            self._refuse(reader, HTTPStatus.NOT_FOUND, f"no such page; the pages are {places}\n")
        elif method not in ("GET", "HEAD"):
            allowed = "Allow: GET, HEAD\r\n"
            self._refuse(reader, HTTPStatus.METHOD_NOT_ALLOWED, "use GET\n", more=allowed)
        else:
            names = parse_qs(asked.query).get("name[]", ())
            request = Request(names, ",".join(headers.get_all("Accept", ())))
            self._creators[asked.path].ask(_Asked(reader, request, method == "GET"))

    def _refuse(self, reader: _Reader, status: HTTPStatus, text: str, *, more: str = "") -> None:
        page = Page(text.encode(), TEXT, status)
        self._created.append((reader, _encode(page, more=more)))


def _encode(page: Page, *, more: str = "", has_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Date: {formatdate(usegmt=True)}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + page.body if has_body else head.encode()
