"""What the control plane makes of handlers: at once, later, never, wrongly."""

import asyncio
import gc
import logging
import threading

import pytest

from plog.network.connections import MOST_BYTES_AT_WORK
from plog.network.control_plane import CLOSINGS_AT_ONCE, NO_REPLY, CloseConnection
from plog.runtime.purgatory import Purgatory
from tests.bounded import counted, told
from tests.network.server import MOST_AT_WORK, Server, correlation_of, request


async def at_once(connection, frame):
    return [bytes(frame)]


async def after_yielding(connection, frame):
    await asyncio.sleep(0)
    return [bytes(frame)]


async def after_sleeping(connection, frame):
    await asyncio.sleep(0.001)
    await asyncio.sleep(0.001)
    return [bytes(frame)]


async def after_a_future(connection, frame):
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(0.001, future.set_result, bytes(frame))
    return [await future]


async def after_a_done_future(connection, frame):
    future = asyncio.get_running_loop().create_future()
    future.set_result(bytes(frame))
    return [await future]


async def after_a_thread(connection, frame):
    return [await asyncio.to_thread(bytes, frame)]


async def after_others(connection, frame):
    first, second = await asyncio.gather(after_sleeping(connection, frame), asyncio.sleep(0, b""))
    return [*first, second]


async def after_catching(connection, frame):
    failing = asyncio.get_running_loop().create_future()
    failing.get_loop().call_soon(failing.set_exception, ValueError("expected"))
    try:
        await failing
    except ValueError:
        await asyncio.sleep(0)
    return [bytes(frame)]


async def after_a_timeout(connection, frame):
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(10)
    except TimeoutError:
        return [bytes(frame)]
    return [b"late"]


def as_future(connection, frame):
    return asyncio.ensure_future(after_sleeping(connection, frame))


def as_tuple(connection, frame):
    return (bytes(frame[:4]), frame[4:])


@pytest.mark.parametrize(
    "handler",
    [
        at_once,
        after_yielding,
        after_sleeping,
        after_a_future,
        after_a_done_future,
        after_a_thread,
        after_others,
        after_catching,
        after_a_timeout,
        as_future,
        as_tuple,
    ],
)
def test_handler_answers_however_it_waits(handler):
    with Server(handler) as server:
        client = server.connect()
        client.sendall(request(1, b"a") + request(2, b"b"))
        assert client.answer() == request(1, b"a")[4:]
        assert client.answer() == request(2, b"b")[4:]
        assert server.control_plane.waiting == 0


def test_handler_that_finishes_at_once_costs_no_task():
    made = []
    with Server(at_once) as server:
        server.in_loop(
            server.loop.set_task_factory,
            lambda loop, coro, **kw: made.append(coro) or asyncio.Task(coro, loop=loop, **kw),
        )
        client = server.connect()
        for i in range(20):
            client.sendall(request(i))
            client.answer()
        server.in_loop(server.loop.set_task_factory, None)
    assert [coro for coro in made if "in_loop" not in coro.__qualname__] == []


class Bug(Exception):
    pass


def raises_at_once(connection, frame):
    raise Bug("at once")


async def raises_in_first_step(connection, frame):
    raise Bug("first step")


async def raises_later(connection, frame):
    await asyncio.sleep(0.001)
    raise Bug("later")


async def cancels_itself(connection, frame):
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def returns_nothing(connection, frame):
    return None


async def returns_text(connection, frame):
    return ["text"]


async def returns_text_later(connection, frame):
    await asyncio.sleep(0)
    return ["text"]


@pytest.mark.parametrize(
    "handler",
    [
        raises_at_once,
        raises_in_first_step,
        raises_later,
        returns_nothing,
        returns_text,
        returns_text_later,
    ],
)
def test_bug_costs_the_connection_is_logged_with_its_traceback_and_no_more(handler, caplog):
    wrong = [True]

    def dispatch(connection, frame):
        return handler(connection, frame) if wrong.pop() else [bytes(frame)]

    with Server(dispatch) as server:
        client = server.connect()
        peer = client.name
        client.sendall(request(1))
        assert client.is_closed_by_server()
        wrong[:] = [False]
        other = server.connect()
        other.sendall(request(2))
        assert other.answer() == request(2)[4:]
        (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert line.getMessage() == (
            f"closing connection from {peer} on PLAINTEXT: "
            "its request failed with an internal error"
        )
        assert line.exc_info is not None
        assert line.exc_info[1] is not None
        line.exc_info = None  # the traceback holds the request


def test_handler_whose_future_was_cancelled_costs_the_connection(caplog):
    with Server(cancels_itself) as server, caplog.at_level(logging.INFO):
        client = server.connect()
        peer = client.name
        client.sendall(request(1))
        assert client.is_closed_by_server()
        (line,) = caplog.records
        assert line.getMessage().startswith(f"closing connection from {peer} on PLAINTEXT: ")
        line.exc_info = None


async def refuses_later(connection, frame):
    await asyncio.sleep(0)
    raise CloseConnection("no such version")


def refuses(connection, frame):
    raise CloseConnection("no such version")


@pytest.mark.parametrize("handler", [refuses, refuses_later])
def test_close_connection_closes_with_one_line(handler, caplog):
    with Server(handler) as server:
        client = server.connect()
        peer = client.name
        client.sendall(request(1) + request(2))
        assert client.is_closed_by_server()
        server.until(lambda: server.reactor.stats().closed == 1)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
    assert lines == [f"closing connection from {peer} on PLAINTEXT: no such version"]


def test_close_after_reply_sends_the_reply_first(caplog):
    def dispatch(connection, frame):
        connection.close_after_reply = "authentication failed"
        return [bytes(frame)]

    with Server(dispatch) as server, caplog.at_level(logging.INFO):
        client = server.connect()
        client.sendall(request(1) + request(2))
        assert client.answer() == request(1)[4:]
        assert client.is_closed_by_server()
    assert "on PLAINTEXT: authentication failed" in caplog.text


def test_connection_is_one_object_with_what_handlers_put_there():
    seen = []

    def dispatch(connection, frame):
        seen.append(connection)
        count = connection.attributes["count"] = connection.attributes.get("count", 0) + 1
        return [b"%d" % count]

    with Server(dispatch) as server:
        one, two = server.connect(), server.connect()
        names = [one.name, two.name]
        for client, expected in [(one, b"1"), (one, b"2"), (two, b"1"), (one, b"3")]:
            client.sendall(request(1))
            assert client.answer() == expected
        assert len(server.control_plane.connections) == 2
        assert [c.peer for c in dict.fromkeys(seen)] == names
        assert {c.listener_name for c in seen} == {"PLAINTEXT"}
        assert all(c.received_us > 0 and c.principal is None for c in seen)
        one.close()
        server.until(lambda: len(server.control_plane.connections) == 1)


def test_raw_tokens_may_be_shorter_than_a_header():
    def dispatch(connection, frame):
        connection.raw_tokens = True
        return [bytes(frame)]

    with Server(dispatch) as server:
        client = server.connect()
        client.sendall(request(1) + b"\0\0\0\3abc" + b"\0\0\0\0")
        assert client.answer() == request(1)[4:]
        assert client.answer() == b"abc"
        assert client.answer() == b""


def test_handler_cancelled_before_its_task_ran_sees_the_cancellation():
    """CLOSED may come in the same batch of events as the request."""
    seen = []

    async def dispatch(connection, frame):
        try:
            with connection.while_open():
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("finally")

    with Server(dispatch) as server:
        entered, leave = threading.Event(), threading.Event()

        def hold_the_loop():
            entered.set()
            leave.wait(10)

        client = server.connect()
        server.until(lambda: len(server.control_plane.connections) == 1)
        server.loop.call_soon_threadsafe(hold_the_loop)
        assert entered.wait(10)
        client.sendall(request(1))
        server.until(lambda: server.reactor.stats().requests == 1)
        client.close()
        server.until(lambda: server.reactor.stats().closed == 1)
        leave.set()
        server.until(lambda: len(seen) == 2)
    assert seen == ["cancelled", "finally"]


def test_cancelled_handler_may_take_its_time_to_clean_up():
    cleaned = threading.Event()
    started = threading.Event()

    async def dispatch(connection, frame):
        started.set()
        try:
            with connection.while_open():
                await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    with Server(dispatch) as server:
        client = server.connect()
        client.sendall(request(1))
        assert started.wait(10)
        client.close()
        assert cleaned.wait(10)


def test_handler_whose_client_has_gone_is_run_up_to_what_only_the_client_waits_for(caplog):
    started, gone = threading.Event(), threading.Event()
    steps = []

    async def dispatch(connection, frame):
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, gone.wait, 10)
        steps.append("one")
        await asyncio.sleep(0)
        steps.append("two")
        with connection.while_open():
            steps.append("wait")
        return [bytes(frame)]

    with Server(dispatch) as server, caplog.at_level(logging.INFO):
        client = server.connect()
        client.sendall(request(1))
        assert started.wait(10)
        client.close()
        server.until(lambda: server.control_plane.connections == [])
        gone.set()
        server.until(lambda: server.control_plane.waiting == 0)
        assert steps == ["one", "two"]
    assert caplog.messages == []


def test_answer_to_a_client_that_has_gone_is_dropped(caplog):
    started, gone = threading.Event(), threading.Event()

    async def dispatch(connection, frame):
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, gone.wait, 10)
        return [bytes(frame)]

    with Server(dispatch) as server, caplog.at_level(logging.INFO):
        client = server.connect()
        client.sendall(request(1))
        assert started.wait(10)
        client.close()
        server.until(lambda: server.control_plane.connections == [])
        gone.set()
        server.until(lambda: server.control_plane.waiting == 0)
        other = server.connect()
        other.sendall(request(2))
        assert other.answer() == request(2)[4:]
    assert caplog.messages == []


def test_work_is_bounded_whether_or_not_its_clients_are_there():
    begun, gone = [], threading.Event()

    async def dispatch(connection, frame):
        begun.append(correlation_of(frame))
        await asyncio.get_running_loop().run_in_executor(None, gone.wait, 10)
        return [bytes(frame)]

    with Server(dispatch) as server:
        for number in range(100):
            client = server.connect()
            client.sendall(request(number))
            if number % 2:
                client.close()
        server.until(lambda: server.reactor.stats().requests == 100)
        server.until(lambda: server.control_plane.waiting == MOST_AT_WORK)
        assert len(begun) == MOST_AT_WORK
        gone.set()
        server.until(lambda: len(begun) == 100)
        server.until(lambda: server.control_plane.waiting == 0)
        for client in server.clients[::2]:
            assert client.answer()


def test_work_is_bounded_by_the_bytes_of_its_requests():
    begun, release = [], threading.Event()

    async def dispatch(connection, frame):
        begun.append(correlation_of(frame))
        await asyncio.get_running_loop().run_in_executor(None, release.wait, 10)
        return [b"done"]

    big = bytes(MOST_BYTES_AT_WORK // 4)
    with Server(dispatch) as server:
        clients = [server.connect() for _ in range(12)]
        for number, client in enumerate(clients):
            client.sendall(request(number, big))
        server.until(lambda: server.reactor.stats().requests == 12)
        server.until(lambda: server.control_plane.waiting == 4)
        assert len(begun) == 4
        release.set()
        assert {client.answer() for client in clients} == {b"done"}
        larger = server.connect()
        larger.sendall(request(13, bytes(2 * MOST_BYTES_AT_WORK)))
        assert larger.answer() == b"done", "one of any size has room"


def test_clients_come_and_go_while_there_is_no_room_for_work(caplog):
    begun, gone, release = [], [], threading.Event()

    async def dispatch(connection, frame):
        begun.append(connection)
        if correlation_of(frame) == 0:
            try:
                with connection.while_open():
                    await asyncio.sleep(60)
            finally:
                gone.append(connection)
        await asyncio.get_running_loop().run_in_executor(None, release.wait, 10)
        return [b"done"]

    with Server(dispatch) as server:
        waiting = server.connect()
        waiting.sendall(request(0))
        server.until(lambda: len(begun) == 1)
        clients = [server.connect() for _ in range(MOST_AT_WORK + 1)]
        for number, client in enumerate(clients):
            client.sendall(request(1 + number))
        server.until(lambda: len(begun) == 1 + MOST_AT_WORK)
        late = server.connect()
        late.sendall(request(0))
        for client in (waiting, late):
            client.close()
        server.until(lambda: gone)
        server.until(lambda: len(server.control_plane.connections) == len(clients))
        release.set()
        assert {client.answer() for client in clients} == {b"done"}
        server.until(lambda: len(gone) == 2)
    assert caplog.messages == []


def test_requests_that_were_taken_and_not_begun_end_with_the_broker():
    begun = []

    async def dispatch(connection, frame):
        begun.append(correlation_of(frame))
        await asyncio.sleep(60)
        return [b"done"]

    with Server(dispatch) as server:
        for number in range(3 * MOST_AT_WORK):
            server.connect().sendall(request(number))
        server.until(lambda: server.reactor.stats().requests == 3 * MOST_AT_WORK)
        server.until(lambda: len(begun) == MOST_AT_WORK)
        server.stop(handlers_ms=10)
        assert all(client.is_closed_by_server() for client in server.clients)
        assert len(begun) == MOST_AT_WORK
        assert server.control_plane.connections == []


def test_those_who_wait_while_their_client_does_are_not_at_work():
    waiting = []

    async def dispatch(connection, frame):
        if correlation_of(frame) < 50:
            waiting.append(connection)
            with connection.while_open():
                await asyncio.sleep(60)
        return [bytes(frame)]

    with Server(dispatch) as server:
        clients = [server.connect() for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(request(number))
        server.until(lambda: len(waiting) == 50)
        other = server.connect()
        other.sendall(request(99))
        assert other.answer() == request(99)[4:]
        for client in clients:
            client.close()
        server.until(lambda: server.control_plane.waiting == 0)
        assert waiting[0].work.count == 0


def test_memory_of_a_cancelled_request_needs_no_garbage_collector():
    started = threading.Event()

    async def dispatch(connection, frame):
        started.set()
        with connection.while_open():
            await asyncio.sleep(60)

    gc.disable()
    try:
        with Server(dispatch) as server:
            client = server.connect()
            client.sendall(request(1, bytes(100_000)))
            assert started.wait(10)
            assert server.reactor.stats().queued_bytes >= 100_000
            client.close()
            server.until(lambda: server.reactor.stats().queued_bytes == 0)
    finally:
        gc.enable()


def test_long_poll_waits_in_the_purgatory_for_its_key():
    ends = {"a": 0, "b": 0}
    purgatory = None

    async def dispatch(connection, frame):
        nonlocal purgatory
        if purgatory is None:
            purgatory = Purgatory(asyncio.get_running_loop())
        key = bytes(frame[8:9]).decode()
        wanted = correlation_of(frame)
        with connection.while_open():
            found = await purgatory.wait([key], 5_000, lambda: ends[key] >= wanted)
        return [b"%s %d %d" % (key.encode(), ends[key], found)]

    def produce(key):
        ends[key] += 1
        purgatory.touch_threadsafe(key)

    with Server(dispatch) as server:
        one, two = server.connect(), server.connect()
        one.sendall(request(2, b"a"))
        two.sendall(request(1, b"b"))
        server.until(lambda: purgatory is not None and len(purgatory) == 2)
        produce("a")
        produce("b")
        assert two.answer() == b"b 1 1"
        assert len(purgatory) == 1
        produce("a")
        assert one.answer() == b"a 2 1"
        one.sendall(request(9, b"a"))
        server.until(lambda: len(purgatory) == 1)
        one.close()
        server.until(lambda: (len(purgatory), purgatory.keys_watched) == (0, 0))


def test_no_reply_after_a_wait_reads_on():
    async def dispatch(connection, frame):
        await asyncio.sleep(0)
        return NO_REPLY if correlation_of(frame) == 1 else [bytes(frame)]

    with Server(dispatch) as server:
        client = server.connect()
        client.sendall(request(1) + request(2))
        assert client.answer() == request(2)[4:]


def test_flood_of_hostile_connections_leaves_few_lines_and_their_number(caplog):
    hostile = 3 * CLOSINGS_AT_ONCE
    with Server() as server:
        for _ in range(hostile):
            client = server.connect()
            client.sendall(b"\xff" * 8)
            assert client.is_closed_by_server()
            client.close()
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == request(1)[4:]
        client.close()
    lines = told(caplog, "closing connection from")
    assert CLOSINGS_AT_ONCE <= lines < hostile
    assert lines + counted(caplog, r"(\d+) further connections were closed") == hostile
