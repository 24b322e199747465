"""Requests that have come whole are handled, however their client leaves or is closed.

Linux keeps what came before a reset, and gives it before the error, so nothing needs to be lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from plog.network.control_plane import NO_REPLY, CloseConnection
from tests.network.server import Client, Server, correlation_of, request

BEHIND = 20
LARGE = bytes(16 << 20)
"""An answer that no socket takes at once."""


class Held:
    """Answers every request with its bytes; `held` waits until `release` is set."""

    def __init__(self, held: int, answer: bytes = b"") -> None:
        self.handled: list[int] = []
        self.began = threading.Event()
        self.release = threading.Event()
        self._held = held
        self._answer = answer

    async def __call__(self, connection, frame):
        number = correlation_of(frame)
        if number == self._held:
            self.began.set()
            while not self.release.is_set():
                await asyncio.sleep(0.005)
        self.handled.append(number)
        return [self._answer or bytes(frame)]


def leave_with_an_answer_unread(client: Client) -> None:
    assert client.recv(1)
    client.close()


def leave_after_reading(client: Client) -> None:
    """Close: the first answer to come makes the client's kernel send a reset."""
    client.answer()
    client.close()


def leave_by_reset(client: Client) -> None:
    client.answer()
    client.reset()


def leave_in_the_middle_of_a_request(client: Client) -> None:
    client.sendall(request(99, bytes(2000))[:-1])
    client.reset()


def leave_half(client: Client) -> None:
    client.half_close()


LEAVES = [
    leave_with_an_answer_unread,
    leave_after_reading,
    leave_by_reset,
    leave_in_the_middle_of_a_request,
    leave_half,
]


def hold_one_back(server: Server, handler: Held) -> Client:
    """Have request 0 answered, request 1 in a handler's hands, and the others behind it."""
    client = server.connect()
    client.sendall(request(0) + request(1))
    assert handler.began.wait(10)
    client.sendall(b"".join(request(2 + i, bytes(2000)) for i in range(BEHIND)))
    return client


@pytest.mark.parametrize("leave", LEAVES)
def test_whole_requests_are_handled_however_their_client_leaves(
    leave: Callable[[Client], None],
) -> None:
    handler = Held(1)
    with Server(handler) as server:
        client = hold_one_back(server, handler)
        leave(client)
        # The event that says so has been seen when this other client has been answered.
        other = server.connect()
        other.sendall(request(50))
        other.answer()
        handler.release.set()
        server.until(lambda: len(handler.handled) == BEHIND + 3)
        if leave is leave_half:
            client.close()
        other.close()
        server.until(lambda: server.reactor.stats().connections == 0)
    assert sorted(handler.handled) == [*range(BEHIND + 2), 50]
    assert [n for n in handler.handled if n != 50] == list(range(BEHIND + 2))


@pytest.mark.parametrize(
    "leave", [leave_with_an_answer_unread, leave_by_reset, leave_in_the_middle_of_a_request]
)
def test_wait_for_a_client_that_has_left_ends_and_what_is_behind_it_is_handled(
    leave: Callable[[Client], None],
) -> None:
    handled = []
    waits = threading.Event()

    async def wait(connection, frame):
        number = correlation_of(frame)
        if number in (1, 3):
            waits.set()
            with connection.while_open():
                await asyncio.get_running_loop().create_future()
        handled.append(number)
        return [bytes(frame)]

    with Server(wait) as server:
        client = server.connect()
        client.sendall(request(0) + request(1))
        assert waits.wait(10)
        client.sendall(b"".join(request(n) for n in range(2, 6)))
        leave(client)
        server.until(lambda: server.reactor.stats().closed == 1)
        server.until(lambda: server.control_plane.waiting == 0)
    assert handled == [0, 2, 4, 5]


def test_requests_of_a_client_that_takes_no_answers_are_handled_before_it_is_closed_as_idle() -> (
    None
):
    handler = Held(-1, LARGE)
    with Server(handler, idle_timeout_ms=200) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(b"".join(request(n) for n in range(10)))
        server.until(lambda: server.reactor.stats().closed == 1)
    assert handler.handled == list(range(10))


def test_requests_of_the_slowest_reader_are_handled_before_it_is_closed(caplog) -> None:
    handler = Held(-1, LARGE)
    with Server(handler, answers_max_bytes=1_000_000) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(b"".join(request(n) for n in range(10)))
        server.until(lambda: "response memory exhausted" in caplog.text)
    assert handler.handled == list(range(10))


def test_client_that_takes_no_answers_and_sends_without_end_is_closed() -> None:
    """What the kernel holds is read, and no more."""
    stop = threading.Event()
    sent = request(1, bytes(2000)) * 20

    def send_on(client: Client) -> None:
        try:
            while not stop.is_set():
                client.sendall(sent)
        except OSError:
            pass

    def answer(connection, frame):
        return [LARGE] if correlation_of(frame) == 0 else NO_REPLY

    with Server(answer, idle_timeout_ms=200) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(0))
        sender = threading.Thread(target=send_on, args=(client,))
        sender.start()
        try:
            server.until(lambda: server.reactor.stats().closed == 1)
        finally:
            stop.set()
            sender.join()


def test_muted_connection_with_a_request_is_not_idle() -> None:
    def throttle(connection, frame):
        connection.throttle_ms = 800 if correlation_of(frame) == 1 else 0
        return [bytes(frame)]

    with Server(throttle, idle_timeout_ms=200) as server:
        client = server.connect()
        client.sendall(request(1) + request(2))
        assert [correlation_of(client.answer()) for _ in range(2)] == [1, 2]


def test_connection_whose_request_waits_for_memory_is_not_idle() -> None:
    handler = Held(1)
    with Server(handler, queued_max_bytes=100_000, idle_timeout_ms=200) as server:
        holder, other = server.connect(), server.connect()
        holder.sendall(request(1, bytes(150_000)))
        assert handler.began.wait(10)
        other.sendall(request(2, bytes(20_000)))
        server.until(lambda: server.reactor.stats().queued_bytes >= 150_000)
        threading.Event().wait(0.8)  # four times what an idle connection has
        handler.release.set()
        assert correlation_of(other.answer()) == 2
        assert correlation_of(holder.answer()) == 1


@pytest.mark.parametrize("last", ["frame", "handler"])
def test_requests_before_the_one_that_closes_are_handled_and_those_behind_it_are_not(
    last: str,
) -> None:
    """As in Kafka: a broker that closes a connection for a request reads no further one."""
    handled = []

    async def refuse(connection, frame):
        await asyncio.sleep(0.001)
        number = correlation_of(frame)
        if number == 10 and last == "handler":
            raise CloseConnection("refused")
        handled.append(number)
        return [bytes(frame)]

    closing = request(10) if last == "handler" else b"\xff" * 4
    with Server(refuse) as server:
        client = server.connect()
        client.sendall(b"".join(map(request, range(10))) + closing + request(11))
        assert [correlation_of(client.answer()) for _ in range(10)] == list(range(10))
        assert client.is_closed_by_server()
    assert handled == list(range(10))


def test_requests_that_stop_finds_read_are_answered_and_others_are_left() -> None:
    """As in Kafka: a broker that stops reads no further request."""
    handler = Held(1)
    with Server(handler) as server:
        client = hold_one_back(server, handler)
        stopping = threading.Thread(target=server.stop, args=(5000, 5000))
        stopping.start()
        server.until(lambda: not server.control_plane._taking)
        handler.release.set()
        stopping.join()
        assert [correlation_of(client.answer()) for _ in range(2)] == [0, 1]
        assert client.is_closed_by_server()
    assert handler.handled == [0, 1]
