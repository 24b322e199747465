"""The page's little HTTP server: what it answers, and that nobody keeps a place or a stop."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from plog.ops.pages.server import HEAD_BYTES, Page, PageServer
from tests.waiting import until

TIMEOUT_S = 60
GET = b"GET /metrics HTTP/1.1\r\n\r\n"
GET_SLOW = b"GET /slow HTTP/1.1\r\n\r\n"
Create = Callable[[Collection[str]], str]


class Served:
    """A server of pages on a free port, and the responses that readers get."""

    def __init__(self, create: Create, slow: Create = lambda _: "", **options: float) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        pages = {
            path: lambda request, create=create: Page(create(request.names).encode())
            for path, create in (("/metrics", create), ("/slow", slow))
        }
        pages["/accept"] = lambda request: Page(request.accept.encode(), "text/odd")
        self.server = PageServer(listening, pages, **options)  # type: ignore[arg-type]
        self.server.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)

    def ask(self, request: bytes) -> bytes:
        with self.connect() as reader:
            reader.sendall(request)
            return rest(reader)


def rest(reader: socket.socket) -> bytes:
    """Return all that comes until the server closes."""
    read = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while received := reader.recv(1 << 16):
            read += received
    return bytes(read)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    started: list[Served] = []

    def serve(create: Create = lambda _: "the page\n", **options: Any) -> Served:
        started.append(Served(create, **options))
        return started[-1]

    yield serve
    for one in started:
        one.server.stop()
    until(lambda: not _threads(), "all threads have ended")


def _threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("page")]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK"),
        (b"GET /metrics?name[]=a HTTP/1.0", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1", b"200 OK"),
        (b"GET http://host/metrics HTTP/1.1", b"200 OK"),
        (b"GET / HTTP/1.1", b"404 Not Found"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200, b"400 Bad Request"),
        (b"GET /metrics/ HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"GET /metrics", b"400 Bad Request"),
        (b"GET http://[/metrics HTTP/1.1", b"400 Bad Request"),
        (b"SSH-2.0-OpenSSH_9.2", b"400 Bad Request"),
        (b"\x16\x03\x01 \xff \xfe", b"400 Bad Request"),
        (b"", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1 " + b"x" * 2 * HEAD_BYTES, b"400 Bad Request"),
    ],
)
def test_status_says_what_was_wrong(serve: Serve, request_line: bytes, status: bytes) -> None:
    served = serve()
    for ends in (b"\r\n\r\n", b"\n\n", b"\r\nHost: x\r\n\r\n"):
        answer = served.ask(request_line + ends)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert body or request_line.startswith(b"HEAD")
        if status == b"200 OK":
            assert b"\r\nContent-Length: 9\r\n" in head
            assert body == (b"" if request_line.startswith(b"HEAD") else b"the page\n")


def test_page_is_asked_for_the_names(serve: Serve) -> None:
    served = serve(lambda names: ",".join(sorted(names)))
    assert served.ask(GET).endswith(b"\r\nConnection: close\r\n\r\n")
    filtered = b"GET /metrics?name[]=b&name%5B%5D=a&other=c HTTP/1.1\r\n\r\n"
    assert served.ask(filtered).endswith(b"\r\n\r\na,b")


def test_request_may_come_in_pieces_and_the_answer_leave_in_pieces(serve: Serve) -> None:
    page = "x" * 20_000_000
    served = serve(lambda _: page)
    with served.connect() as reader:
        for at in range(len(GET)):
            reader.sendall(GET[at : at + 1])
            time.sleep(0.001)
        assert rest(reader).endswith(b"\r\n\r\n" + page.encode())


def test_page_knows_which_formats_its_reader_accepts(serve: Serve) -> None:
    served = serve()
    asked = b"GET /accept HTTP/1.1\r\naccept: a/b;q=1, c/d\r\nAccept: e/f\r\n\r\n"
    head, _, body = served.ask(asked).partition(b"\r\n\r\n")
    assert body == b"a/b;q=1, c/d,e/f"
    assert b"\r\nContent-Type: text/odd\r\n" in head


def test_slow_page_delays_no_other(serve: Serve) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def slow(_: Collection[str]) -> str:
        asked.set()
        assert goes_on.wait(TIMEOUT_S)
        return "slow"

    served = serve(slow=slow)
    with served.connect() as waiting:
        waiting.sendall(GET_SLOW)
        assert asked.wait(TIMEOUT_S)
        assert served.ask(GET).endswith(b"the page\n")
        goes_on.set()
        assert rest(waiting).endswith(b"\r\n\r\nslow")


def test_page_is_not_created_for_a_reader_that_has_left(serve: Serve) -> None:
    created: list[Collection[str]] = []
    asked, goes_on = threading.Event(), threading.Event()

    def slow(names: Collection[str]) -> str:
        created.append(names)
        asked.set()
        assert goes_on.wait(TIMEOUT_S)
        return "slow"

    served = serve(slow=slow)
    with served.connect() as first:
        first.sendall(GET_SLOW)
        assert asked.wait(TIMEOUT_S)
        with served.connect() as second:
            second.sendall(GET_SLOW)
            until(lambda: any(one.is_waiting for one in _readers(served)[1:]), "it has asked")
        until(lambda: len(_readers(served)) == 1, "it has left")
        goes_on.set()
        assert rest(first).endswith(b"slow")
    assert served.ask(b"GET /slow?name[]=last HTTP/1.1\r\n\r\n").endswith(b"slow")
    assert created == [(), ["last"]]


def _readers(served: Served) -> list[Any]:
    return list(served.server._readers.values())


def test_answer_outlives_what_its_reader_sends_besides(serve: Serve) -> None:
    served = serve()
    answer = served.ask(b"POST /metrics HTTP/1.1\r\n\r\n" + b"x" * 1_000_000)
    assert answer.startswith(b"HTTP/1.1 405 ")


def test_reader_that_sends_a_byte_now_and_then_is_closed_at_its_deadline(serve: Serve) -> None:
    served = serve(timeout_s=0.2)
    deadline_s = time.monotonic() + TIMEOUT_S
    with served.connect() as slow, contextlib.suppress(ConnectionError):
        while True:
            assert time.monotonic() < deadline_s, "it is not closed"
            slow.sendall(b"x")
            time.sleep(0.05)


def test_reader_that_does_not_read_is_closed_at_its_deadline(serve: Serve) -> None:
    asked = threading.Event()

    def page(_: Collection[str]) -> str:
        asked.set()
        return "x" * 50_000_000

    served = serve(page, timeout_s=2)
    with served.connect() as idle:
        idle.sendall(GET)
        assert asked.wait(TIMEOUT_S)
        assert idle.recv(1) == b"H"
        until(lambda: not served.server._readers, "it is closed")
        assert len(rest(idle)) < 50_000_000


def test_readers_that_say_nothing_give_way_to_those_that_come(serve: Serve) -> None:
    served = serve(max_readers=3, timeout_s=TIMEOUT_S)
    silent = [served.connect() for _ in range(7)]
    assert served.ask(GET).endswith(b"the page\n")
    assert rest(silent[0]) == b""  # closed: the oldest
    for one in silent:
        one.close()


def test_stop_closes_all_readers_and_waits_for_none(serve: Serve) -> None:
    served = serve(timeout_s=TIMEOUT_S)
    silent = [served.connect() for _ in range(5)]
    assert served.ask(GET).endswith(b"the page\n")
    served.server.stop()
    assert [rest(one) for one in silent] == [b""] * 5
    with pytest.raises(ConnectionRefusedError):
        served.connect()
    for one in silent:
        one.close()


def test_stop_does_not_wait_for_a_page_that_is_never_made() -> None:
    asked, made = threading.Event(), threading.Event()

    def page(_: Collection[str]) -> str:
        asked.set()
        made.wait()
        return ""

    served = Served(page)
    with served.connect() as reader:
        reader.sendall(GET)
        assert asked.wait(TIMEOUT_S)
        stop = threading.Thread(target=served.server.stop, daemon=True)
        stop.start()
        stop.join(TIMEOUT_S)
        assert not stop.is_alive()
        made.set()
        rest(reader)  # closed: the thread has come to its end


def test_page_that_cannot_be_made_is_a_line_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [RuntimeError("dictionary changed size"), MemoryError()]

    def page(_: Collection[str]) -> str:
        if faults:
            raise faults.pop(0)
        return "the page\n"

    served = serve(page)
    with caplog.at_level(logging.INFO):
        assert served.ask(GET).startswith(b"HTTP/1.1 500 ")
        assert served.ask(GET).startswith(b"HTTP/1.1 500 ")
    assert served.ask(GET).endswith(b"the page\n")
    assert [record.getMessage() for record in caplog.records] == [
        "cannot create the page /metrics: RuntimeError('dictionary changed size')",
        "cannot create the page /metrics: MemoryError()",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_want_of_descriptors_takes_the_oldest_reader_and_no_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(timeout_s=TIMEOUT_S)
    with served.connect() as oldest:
        assert served.ask(GET).endswith(b"the page\n")  # and so the oldest has been accepted
        accept = socket.socket.accept
        left = [OSError(24, "Too many open files")]

        def short(listening: socket.socket) -> object:
            if left:
                raise left.pop()
            return accept(listening)

        monkeypatch.setattr(socket.socket, "accept", short)
        assert served.ask(GET).endswith(b"the page\n")
        assert rest(oldest) == b""
