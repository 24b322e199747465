"""Bytes in, bytes out, through real sockets, a reactor and a control plane."""

import asyncio
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from plog._native.reactor import CLOSED, OPENED, REFUSED, REQUEST, Reactor
from plog.network.control_plane import NO_REPLY
from plog.network.listeners import bind_listeners, listen_on
from plog.settings.definitions import BrokerSettings
from tests.agreement.harness import run_seed
from tests.network.server import Client, Server, correlation_of, echo, request


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"])
def threads(request):
    return request.param


def test_request_sent_byte_by_byte_is_answered(threads):
    with Server(threads=threads) as server:
        client = server.connect()
        for byte in request(7, b"body"):
            client.sendall(bytes([byte]))
        assert client.answer() == request(7, b"body")[4:]


def test_many_requests_in_one_segment_are_answered_in_order():
    with Server() as server:
        client = server.connect()
        client.sendall(b"".join(request(i, bytes([i % 256]) * i) for i in range(300)))
        for i in range(300):
            assert client.answer() == request(i, bytes([i % 256]) * i)[4:]


def test_stream_cut_anywhere_is_answered_whole(threads):
    seed = run_seed()
    rng = random.Random(seed)
    sizes = [0, 1, 3, 100, 5_000, 70_000, 130_000, 300_000, 1_048_000, 1_120_000, 2_500_000]
    bodies = [rng.randbytes(rng.choice(sizes)) for _ in range(60)]
    stream = b"".join(request(i, body) for i, body in enumerate(bodies))
    with Server(threads=threads) as server:
        client = server.connect()

        def send():
            at = 0
            while at < len(stream):
                size = rng.choice([1, 2, 3, 4, 5, 7, 1_000, 65_536, 262_144, 500_000])
                client.sendall(stream[at : at + size])
                at += size

        sender = threading.Thread(target=send)
        sender.start()
        for i, body in enumerate(bodies):
            assert client.answer() == request(i, body)[4:], (seed, i)
        sender.join()
        server.until(lambda: server.reactor.stats().queued_bytes == 0)


def test_pipelined_requests_are_answered_in_order_whatever_each_takes():
    seed = run_seed()
    rng = random.Random(seed)

    async def at_some_time(connection, frame):
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.005]))
        return [bytes(frame)]

    with Server(at_some_time) as server:
        clients = [server.connect() for _ in range(5)]
        for client in clients:
            client.sendall(b"".join(request(i) for i in range(40)))
        for client in clients:
            assert [correlation_of(client.answer()) for _ in range(40)] == list(range(40))


def test_answer_in_pieces_is_sent_as_one():
    def pieces(connection, frame):
        return [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b"", b"g"]

    with Server(pieces) as server:
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == b"abcdefg"


def test_empty_answer_is_a_bare_length():
    with Server(lambda connection, frame: []) as server:
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == b""


def test_frame_is_writable_and_exact():
    seen = []

    def keep(connection, frame):
        seen.append((frame.readonly, frame.nbytes, frame.format, frame.contiguous))
        frame[0] = 0xFF
        return [bytes(frame[:1])]

    with Server(keep) as server:
        client = server.connect()
        client.sendall(request(1, b"x" * 100))
        assert client.answer() == b"\xff"
    assert seen == [(False, 108, "B", True)]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1), "request of negative size -1"),
        (
            struct.pack(">i", 1001) + b"x" * 1001,
            "request of 1001 bytes exceeds socket.request.max.bytes 1000",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "request of 1195725856 bytes exceeds socket.request.max.bytes 1000 (looks like HTTP)",
        ),
        (
            b"\x16\x03\x01\x02\x00\x01\x00",
            "request of 369295618 bytes exceeds socket.request.max.bytes 1000 (looks like TLS)",
        ),
        (b"\xff" * 100, "request of negative size -1"),
        (struct.pack(">i", 7) + b"x" * 7, "request of 7 bytes has no room for a header"),
        (struct.pack(">i", 0), "request of 0 bytes has no room for a header"),
    ],
)
def test_bad_frame_closes_the_connection_with_one_line(sent, reason, caplog):
    with Server(max_request_bytes=1000) as server:
        client = server.connect()
        peer = client.name
        client.sendall(sent)
        assert client.is_closed_by_server()
        other = server.connect()
        other.sendall(request(1))
        assert other.answer() == request(1)[4:]
        other.close()
        server.until(lambda: server.reactor.stats().connections == 0)
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert lines == [f"closing connection from {peer} on PLAINTEXT: {reason}"]


def test_answers_before_a_bad_frame_are_still_sent():
    with Server(max_request_bytes=1000) as server:
        client = server.connect()
        client.sendall(request(1) + request(2) + struct.pack(">i", -5))
        assert [correlation_of(client.answer()) for _ in range(2)] == [1, 2]
        assert client.is_closed_by_server()


def test_largest_request_is_taken_and_one_more_byte_refused():
    with Server(max_request_bytes=1 << 20) as server:
        client = server.connect()
        body = random.Random(1).randbytes((1 << 20) - 8)
        client.sendall(request(1, body))
        assert client.answer() == request(1, body)[4:]
        client.sendall(request(1, body + b"x")[:100])
        assert client.is_closed_by_server()


def test_announced_size_alone_takes_no_memory():
    with Server() as server:
        clients = [server.connect() for _ in range(50)]
        for client in clients:
            client.sendall(struct.pack(">i", 100_000_000) + b"x" * 1000)
        server.until(lambda: server.reactor.stats().bytes_in == 50 * 1004)
        assert server.reactor.stats().queued_bytes <= 50 * 4096


def test_memory_grows_with_bytes_that_came_and_is_given_back():
    with Server() as server:
        client = server.connect()
        client.sendall(struct.pack(">i", 3_000_000) + b"x" * 1_000_000)
        server.until(lambda: server.reactor.stats().bytes_in == 1_000_004)
        assert 1_000_000 <= server.reactor.stats().queued_bytes <= 2_500_000
        client.sendall(b"x" * 2_000_000)
        assert len(client.answer()) == 3_000_000
        server.until(lambda: server.reactor.stats().queued_bytes == 0)


@pytest.mark.parametrize("sent", [100, 20_000, 200_000, 300_000, 700_000, 999_990])
@pytest.mark.parametrize("before", [0, 1], ids=["first", "after another"])
def test_request_that_is_half_there_holds_memory_for_what_has_come(sent, before):
    whole = request(7, bytes(1_000_000))
    with Server() as server:
        client = server.connect()
        client.sendall(whole * before + whole[:sent])
        for _ in range(before):
            assert client.answer() == whole[4:]
        server.until(lambda: server.reactor.stats().bytes_in == before * len(whole) + sent)
        assert sent <= server.reactor.stats().queued_bytes <= 4 * sent + 4_096
        client.sendall(whole[sent:])
        assert client.answer() == whole[4:]
        server.until(lambda: server.reactor.stats().queued_bytes == 0)


def test_slow_reader_holds_back_its_own_requests_only():
    answer = os.urandom(1 << 20)
    handled = []

    def big(connection, frame):
        handled.append(correlation_of(frame))
        return [bytes(frame), answer]

    with Server(big) as server:
        slow = server.connect(receive_buffer=4096)
        slow.sendall(b"".join(request(i) for i in range(64)))
        server.until(lambda: handled, "the first request is handled")
        quick = server.connect()
        for i in range(100, 110):
            quick.sendall(request(i))
            assert quick.answer() == request(i)[4:] + answer
        # The kernel's send buffer takes some answers; the rest must not be made up in advance.
        assert len([i for i in handled if i < 64]) < 32
        for i in range(64):
            assert slow.answer() == request(i)[4:] + answer
    assert sorted(handled) == [*range(64), *range(100, 110)]


def test_peer_that_resets_in_the_middle_of_an_answer_is_forgotten():
    answer = bytes(8 << 20)
    with Server(lambda connection, frame: [answer]) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1) + request(2))
        client.receive_exactly(1000)
        client.reset()
        server.until(lambda: server.reactor.stats().connections == 0)
        other = server.connect()
        other.sendall(request(3))
        assert other.answer() == answer


@pytest.mark.parametrize("leave", [Client.reset, Client.close, Client.half_close])
def test_peer_that_leaves_while_its_request_waits_cancels_the_handler(leave):
    started = threading.Event()
    cancelled = threading.Event()

    async def wait_for_ever(connection, frame):
        started.set()
        try:
            with connection.while_open():
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with Server(wait_for_ever) as server:
        client = server.connect()
        client.sendall(request(1))
        assert started.wait(10)
        leave(client)
        assert cancelled.wait(10)
        server.until(lambda: server.control_plane.waiting == 0)
        server.until(lambda: server.reactor.stats().connections == 0)


def test_requests_sent_before_leaving_are_all_handled():
    """A producer with acks=0 sends and closes."""
    handled = []

    async def slow(connection, frame):
        await asyncio.sleep(0.001)
        handled.append(correlation_of(frame))
        return NO_REPLY

    with Server(slow) as server:
        client = server.connect()
        client.sendall(b"".join(request(i, bytes(2000)) for i in range(200)))
        client.close()
        server.until(lambda: len(handled) == 200, "all, though nobody is there")
    assert handled == list(range(200))


def test_requests_sent_before_leaving_are_handled_however_long_they_take():
    handled = []

    async def slow(connection, frame):
        await asyncio.sleep(0.7)
        handled.append(correlation_of(frame))
        return NO_REPLY

    with Server(slow, idle_timeout_ms=200) as server:
        client = server.connect()
        client.sendall(request(1) + request(2) + request(3))
        client.close()
        server.until(lambda: len(handled) == 3, "all, though the connection is idle")
        half = server.connect()
        half.sendall(request(4) + request(5)[:-1])
        half.close()
        server.until(lambda: server.reactor.stats().connections == 0, "no half request is owed")


def test_half_closed_peer_gets_the_answers_already_given():
    answer = bytes(4 << 20)
    given = threading.Event()

    def big(connection, frame):
        given.set()
        return [answer]

    with Server(big) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        assert given.wait(10)
        client.receive_exactly(4)
        client.shutdown(socket.SHUT_WR)
        assert client.receive_exactly(len(answer)) == answer
        assert client.is_closed_by_server()


def test_no_reply_reads_on():
    seen = []

    def every_third(connection, frame):
        seen.append(correlation_of(frame))
        return [bytes(frame)] if len(seen) % 3 == 0 else NO_REPLY

    with Server(every_third) as server:
        client = server.connect()
        client.sendall(b"".join(request(i) for i in range(30)))
        assert [correlation_of(client.answer()) for _ in range(10)] == list(range(2, 30, 3))


def test_five_hundred_connections_are_served(threads):
    with Server(threads=threads) as server:
        clients = [server.connect() for _ in range(500)]
        for i, client in enumerate(clients):
            client.sendall(request(i) + request(i + 1000))
        for i, client in enumerate(clients):
            assert client.answer() == request(i)[4:]
            assert client.answer() == request(i + 1000)[4:]
        assert server.reactor.stats().connections == 500
        server.until(lambda: server.reactor.stats().queued_bytes == 0, "idle ones hold no memory")


def test_connection_over_max_connections_is_refused(caplog):
    with Server(max_connections=3) as server:
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request(1))
            client.answer()
        extra = server.connect()
        assert extra.is_closed_by_server()
        assert server.reactor.stats().refused == 1
        clients[0].close()
        server.until(lambda: server.reactor.stats().connections == 2)
        again = server.connect()
        again.sendall(request(2))
        assert again.answer() == request(2)[4:]
        server.until(lambda: "max.connections (3) reached" in caplog.text)


def test_address_over_its_cap_is_refused_and_others_are_not(caplog):
    with Server(max_connections_per_ip=2) as server:
        clients = [server.connect() for _ in range(2)]
        for client in clients:
            client.sendall(request(1))
            client.answer()
        assert server.connect().is_closed_by_server()
        neighbour = socket.create_connection(
            server.address, timeout=10, source_address=("127.0.0.2", 0)
        )
        neighbour.sendall(request(2))
        assert neighbour.recv(100) == request(2)
        neighbour.close()
        clients.pop().reset()
        server.until(lambda: server.reactor.stats().connections == 1)
        again = server.connect()
        again.sendall(request(3))
        assert again.answer() == request(3)[4:]
        server.until(lambda: "max.connections.per.ip (2) reached" in caplog.text)


def exempt_address(server: Server) -> tuple[str, int]:
    """Open one more listener, to which the limits for clients do not apply."""
    settings = BrokerSettings({"listeners": "PLAINTEXT://127.0.0.1:0"})
    (bound,) = bind_listeners(settings.parsed_listeners())
    listen_on(bound, backlog=10)
    address = bound.socket.getsockname()
    server.in_loop(lambda: server.control_plane.add_listener(bound, is_exempt=True))
    bound.socket.close()
    return address


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
def test_exempt_connection_is_let_in_beyond_the_caps_and_counted(limit):
    with Server(**{limit: 2}) as server:
        address = exempt_address(server)
        clients = [server.connect() for _ in range(2)]
        brokers = [Client(address) for _ in range(3)]
        server.clients += brokers
        for one in (*clients, *brokers):
            one.sendall(request(1))
            assert one.answer() == request(1)[4:]
        assert server.reactor.stats().connections == 5
        assert server.connect().is_closed_by_server()


def test_flood_of_refused_connections_is_told_of_once_a_second():
    listening = socket.create_server(("127.0.0.1", 0), backlog=200)
    reactor = Reactor(max_connections=0)
    reactor.add_listener(listening.fileno(), 4)
    reactor.start()
    for _ in range(100):
        Client(listening.getsockname()).close()
    deadline = time.monotonic() + 60
    while reactor.stats().refused < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    events = reactor.take(1000)
    assert 1 <= len(events) <= 3
    assert {(e.kind, e.connection_id, e.listener_id) for e in events} == {(REFUSED, 0, 4)}
    assert events[0].peer.startswith("127.0.0.1:")
    reactor.stop()
    assert reactor.stats().refused == 100
    listening.close()


def test_idle_connection_is_closed_and_a_busy_one_is_not():
    release = threading.Event()

    async def wait(connection, frame):
        while not release.is_set():
            await asyncio.sleep(0.02)
        return [bytes(frame)]

    with Server(wait, idle_timeout_ms=200) as server:
        idle = server.connect()
        waiting = server.connect()
        waiting.sendall(request(1))
        began = time.monotonic()
        assert idle.is_closed_by_server()
        assert time.monotonic() - began > 0.15
        time.sleep(0.3)
        release.set()
        assert waiting.answer() == request(1)[4:]


@pytest.mark.parametrize("sent", [0, 1, 4, 9, -1])
def test_half_request_that_is_given_up_is_told_and_silence_is_not(sent, caplog):
    with Server(idle_timeout_ms=200) as server:
        client = server.connect()
        client.sendall(request(1) + request(2)[:sent])
        assert client.answer() == request(1)[4:]
        assert client.is_closed_by_server()
        server.until(lambda: server.reactor.stats().closed == 1)
    told = [one for one in caplog.records if "in the middle of a request" in one.getMessage()]
    assert [one.levelname for one in told] == ["WARNING"] * (sent != 0)


def test_peer_that_does_not_take_its_answer_is_closed_as_idle():
    with Server(lambda c, f: [bytes(16 << 20)], idle_timeout_ms=200) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        server.until(lambda: server.reactor.stats().closed == 1)


def test_muted_connection_is_read_again_after_its_time():
    def throttle(connection, frame):
        connection.throttle_ms = 300 if correlation_of(frame) == 1 else 0
        return [bytes(frame)]

    with Server(throttle) as server:
        client = server.connect()
        other = server.connect()
        began = time.monotonic()
        client.sendall(request(1) + request(2))
        assert client.answer() == request(1)[4:]
        assert time.monotonic() - began < 0.25
        other.sendall(request(5))
        assert other.answer() == request(5)[4:]
        assert time.monotonic() - began < 0.25
        assert client.answer() == request(2)[4:]
        assert 0.29 < time.monotonic() - began < 2


def test_parked_connection_does_not_delay_others():
    release = None

    async def park_first(connection, frame):
        nonlocal release
        if correlation_of(frame) == 0:
            release = asyncio.get_running_loop().create_future()
            await release
        return [bytes(frame)]

    with Server(park_first) as server:
        parked = server.connect()
        parked.sendall(request(0) + request(1))
        other = server.connect()
        for i in range(2, 200):
            other.sendall(request(i))
            assert other.answer() == request(i)[4:]
        assert server.control_plane.waiting == 1
        server.in_loop(release.set_result, None)
        assert [correlation_of(parked.answer()) for _ in range(2)] == [0, 1]


def test_connection_that_sends_without_end_does_not_starve_others():
    with Server() as server:
        flood = server.connect()
        stop = threading.Event()

        def send():
            chunk = b"".join(request(i, bytes(200)) for i in range(500))
            try:
                while not stop.is_set():
                    flood.sendall(chunk)
            except OSError:
                assert stop.is_set()

        def take():
            try:
                while flood.recv(1 << 20):
                    pass
            except OSError:
                assert stop.is_set()

        workers = [threading.Thread(target=work) for work in (send, take)]
        for worker in workers:
            worker.start()
        other = server.connect()
        worst = 0.0
        for i in range(100):
            began = time.monotonic()
            other.sendall(request(i))
            assert other.answer() == request(i)[4:]
            worst = max(worst, time.monotonic() - began)
        stop.set()
        flood.shutdown(socket.SHUT_RDWR)
        for worker in workers:
            worker.join(10)
        assert worst < 2


def test_stop_sends_what_was_answered():
    answer = os.urandom(8 << 20)
    given = threading.Event()

    def big(connection, frame):
        given.set()
        return [answer]

    with Server(big) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        assert given.wait(10)
        received = []
        reader = threading.Thread(target=lambda: received.append(client.answer()))
        reader.start()
        server.stop(drain_ms=10_000)
        reader.join(10)
        assert received == [answer]
        with pytest.raises(ConnectionRefusedError):
            server.connect()


def test_stop_gives_up_on_a_peer_that_does_not_read():
    given = threading.Event()

    def big(connection, frame):
        given.set()
        return [bytes(16 << 20)]

    with Server(big) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        assert given.wait(10)
        began = time.monotonic()
        server.stop(drain_ms=200)
        assert 0.15 < time.monotonic() - began < 3


def test_stop_waits_for_handlers_and_cancels_the_late_ones(caplog):
    cancelled = []

    async def work(connection, frame):
        try:
            await asyncio.sleep(0.1 if correlation_of(frame) == 1 else 60)
        except asyncio.CancelledError:
            cancelled.append(correlation_of(frame))
            raise
        return [bytes(frame)]

    with Server(work) as server:
        clients = [server.connect(), server.connect()]
        for i, client in enumerate(clients, 1):
            client.sendall(request(i))
        server.until(lambda: server.control_plane.waiting == 2)
        server.stop(handlers_ms=2000, drain_ms=500)
        assert clients[0].answer() == request(1)[4:]
        assert clients[1].is_closed_by_server()
    assert cancelled == [2]
    assert "cancelled 1 requests that had waited for more than 2000 ms" in caplog.text


def reactor_with_client(**options):
    listening = socket.create_server(("127.0.0.1", 0))
    reactor = Reactor(**options)
    reactor.add_listener(listening.fileno(), 9)
    reactor.start()
    client = Client(listening.getsockname())
    listening.close()
    return reactor, client


def events_of(reactor, count):
    """Take events, by the eventfd, until there are `count`."""
    import select

    events = []
    while len(events) < count:
        readable, _, _ = select.select([reactor.wake_fd], [], [], 10)
        assert readable, events
        events += reactor.take()
    return events


def test_request_behind_another_counts_from_its_own_coming():
    reactor, client = reactor_with_client()
    client.sendall(request(1) + request(2))
    _, first = events_of(reactor, 2)
    before_us = time.monotonic_ns() // 1000
    reactor.respond(first.connection_id, [b"12345678"])
    (second,) = events_of(reactor, 1)
    assert correlation_of(second.frame) == 2
    assert second.received_us == first.received_us < before_us
    client.close()
    reactor.stop()


def test_events_tell_a_connections_life_in_order():
    reactor, client = reactor_with_client()
    client.sendall(request(1))
    opened, asked = events_of(reactor, 2)
    assert (opened.kind, opened.listener_id) == (OPENED, 9)
    assert opened.peer == client.name
    assert (asked.kind, asked.connection_id) == (REQUEST, opened.connection_id)
    assert bytes(asked.frame) == request(1)[4:]
    now_us = time.monotonic_ns() // 1000
    assert now_us - 10_000_000 < asked.received_us <= now_us
    reactor.respond(opened.connection_id, [b"12345678"])
    assert client.answer() == b"12345678"
    client.close()
    (closed,) = events_of(reactor, 1)
    assert closed[:3] == (CLOSED, opened.connection_id, 9)
    assert (closed.reason, closed.abnormal) == ("closed by the peer", False)
    reactor.stop()


def test_answer_to_nothing_is_ignored():
    listening = socket.create_server(("127.0.0.1", 0))
    reactor = Reactor()
    reactor.add_listener(listening.fileno(), 0)
    reactor.start()
    client, *others = (Client(listening.getsockname()) for _ in range(3))
    listening.close()
    opened, *other_events = events_of(reactor, 3)
    other_ids = [event.connection_id for event in other_events]

    def answer_to_nothing():
        reactor.respond(opened.connection_id, [b"unasked"])
        reactor.respond(opened.connection_id + 1000, [b"nobody"])
        reactor.skip(opened.connection_id)
        # Once the reactor has done this, it has done what came before.
        reactor.close(other_ids.pop())
        assert events_of(reactor, 1)[0].kind == CLOSED

    answer_to_nothing()
    client.sendall(request(1))
    events_of(reactor, 1)
    reactor.respond(opened.connection_id, [b"first"])
    assert client.answer() == b"first"
    answer_to_nothing()
    client.sendall(request(2))
    events_of(reactor, 1)
    reactor.respond(opened.connection_id, [b"second"])
    assert client.answer() == b"second"
    for one in [client, *others]:
        one.close()
    reactor.stop()
    reactor.respond(opened.connection_id, [b"after the end"])


def test_answer_after_the_peer_left_is_ignored():
    reactor, client = reactor_with_client()
    client.sendall(request(1))
    opened, _ = events_of(reactor, 2)
    client.close()
    (closed,) = events_of(reactor, 1)
    assert closed.reason == "closed by the peer before its response"
    reactor.respond(opened.connection_id, [bytes(100_000)])
    reactor.close(opened.connection_id, "again")
    reactor.stop()
    assert reactor.take() == []


def test_stop_just_behind_other_orders_is_heard():
    for _ in range(1500):
        reactor, client = reactor_with_client()
        opened, *_ = events_of(reactor, 1)
        client.close()
        events_of(reactor, 1)
        reactor.close(opened.connection_id, "again")
        reactor.stop()


def test_close_waits_for_the_answers_before_it():
    reactor, client = reactor_with_client()
    client.sendall(request(1))
    opened, _ = events_of(reactor, 2)
    reactor.respond(opened.connection_id, [b"goodbye"])
    reactor.close(opened.connection_id, "enough")
    assert client.answer() == b"goodbye"
    assert client.is_closed_by_server()
    (closed,) = events_of(reactor, 1)
    assert closed.reason == "enough"
    reactor.stop()


def test_frame_outlives_its_connection_and_its_reactor():
    reactor, client = reactor_with_client()
    client.sendall(request(1, b"z" * 200_000))
    _, asked = events_of(reactor, 2)
    frame = asked.frame
    client.close()
    reactor.stop()
    assert reactor.stats().queued_bytes >= 200_000
    del reactor, asked
    assert bytes(frame) == request(1, b"z" * 200_000)[4:]


def test_events_beyond_the_limit_keep_the_eventfd_readable():
    reactor, client = reactor_with_client()
    client.sendall(request(1))
    deadline = time.monotonic() + 60
    while reactor.stats().requests < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    import select

    kinds = []
    for _ in range(2):
        readable, _, _ = select.select([reactor.wake_fd], [], [], 10)
        assert readable
        kinds += [event.kind for event in reactor.take(1)]
    assert kinds == [OPENED, REQUEST]
    assert select.select([reactor.wake_fd], [], [], 0)[0] == []
    client.close()
    reactor.stop()


def test_requests_beyond_the_memory_budget_wait_for_earlier_ones():
    held = []
    release = threading.Event()

    async def hold(connection, frame):
        held.append(frame.nbytes)
        while not release.is_set():
            await asyncio.sleep(0.01)
        return [bytes(frame[:8])]

    with Server(hold, queued_max_bytes=4_000_000) as server:
        clients = [server.connect() for _ in range(12)]
        senders = [
            threading.Thread(target=client.sendall, args=(request(i, bytes(1_000_000)),))
            for i, client in enumerate(clients)
        ]
        for sender in senders:
            sender.start()
        server.until(lambda: len(held) >= 2)
        time.sleep(0.3)
        # Beyond the budget goes one request that was half there, and what one read brings.
        assert server.reactor.stats().queued_bytes < 4_000_000 + 2_100_000
        assert len(held) <= 6
        release.set()
        for i, client in enumerate(clients):
            assert correlation_of(client.answer()) == i
        for sender in senders:
            sender.join(10)


def test_exempt_connection_is_read_while_clients_fill_the_memory():
    release, exempt = threading.Event(), []

    async def hold(connection, frame):
        while connection.listener is not exempt[0] and not release.is_set():
            await asyncio.sleep(0.01)
        return [bytes(frame[:8])]

    with Server(hold, queued_max_bytes=1_000_000) as server:
        broker = Client(exempt_address(server))
        exempt.append(server.control_plane._listeners[-1])
        client, behind = server.connect(), server.connect()
        server.clients.append(broker)
        client.sendall(request(1, bytes(1_500_000)))
        server.until(lambda: server.reactor.stats().queued_bytes >= 1_500_000)
        behind.sendall(request(2, bytes(200_000)))
        large = bytes(900_000)
        broker.sendall(request(3, large))
        assert correlation_of(broker.answer()) == 3
        assert server.reactor.stats().requests == 2  # the other client's waits
        release.set()
        assert correlation_of(behind.answer()) == 2
        assert correlation_of(client.answer()) == 1


def test_half_requests_that_fill_the_memory_budget_are_completed_one_by_one(threads):
    """Were all to wait for memory, none would ever come whole."""
    with Server(queued_max_bytes=1_000_000, threads=threads) as server:
        clients = [server.connect() for _ in range(6)]
        stream = [request(i, bytes(2_000_000)) for i in range(6)]
        for i, client in enumerate(clients):
            client.sendall(stream[i][:400_000])
        senders = [
            threading.Thread(target=client.sendall, args=(stream[i][400_000:],))
            for i, client in enumerate(clients)
        ]
        for sender in senders:
            sender.start()
        for i, client in enumerate(clients):
            assert len(client.answer()) == 2_000_008, i
        for sender in senders:
            sender.join(10)


def stalled_and_waiting(server, asked):
    """A client that has sent half a request larger than the budget, and one that wants in."""
    stalled, waiting = server.connect(), server.connect()
    waiting.sendall(request(1))
    waiting.answer()
    before = server.reactor.stats().bytes_in
    stalled.sendall(request(2, bytes(4_000_000))[:2_000_000])
    server.until(lambda: server.reactor.stats().bytes_in == before + 2_000_000)
    waiting.sendall(asked)
    return stalled, waiting


LARGE = request(3, bytes(100_000))
"""Does not come whole before it is read."""


def test_request_that_waits_for_memory_is_read_when_the_stalled_one_goes():
    with Server(queued_max_bytes=1_000_000) as server:
        stalled, waiting = stalled_and_waiting(server, LARGE)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.15, "it spins"
        assert server.reactor.stats().requests == 1
        stalled.close()
        assert waiting.answer() == LARGE[4:]


def test_stalled_request_is_closed_while_memory_is_short(threads, caplog):
    """Whichever thread it is that is short of it."""
    with Server(queued_max_bytes=1_000_000, threads=threads) as server:
        stalled, waiting = stalled_and_waiting(server, LARGE)
        assert waiting.answer() == LARGE[4:]
        assert stalled.is_closed_by_server()
        server.until(lambda: "request incomplete for 10 s" in caplog.text)


def test_request_whose_rest_is_there_unread_is_not_closed_as_stalled(caplog):
    with Server(queued_max_bytes=1_000_000) as server:
        kept_waiting = server.connect()
        whole = request(1, bytes(1_000_000))
        kept_waiting.sendall(whole[:400_000])
        server.until(lambda: server.reactor.stats().bytes_in == 400_000)
        stalled, _ = stalled_and_waiting(server, whole[:0])
        began = time.monotonic()
        kept_waiting.sendall(whole[400_000:])
        assert kept_waiting.answer() == whole[4:]
        assert time.monotonic() - began > 5, "it waited for the stalled one"
        assert stalled.is_closed_by_server()
        server.until(lambda: caplog.text.count("request incomplete for 10 s") == 1)


def test_small_request_is_served_while_half_ones_use_the_memory_up(threads, caplog):
    with Server(queued_max_bytes=1_000_000, threads=threads) as server:
        _, small = stalled_and_waiting(server, request(3))
        assert small.answer() == request(3)[4:]
        # Sent with the beginning of the next, and in pieces: none of that is read.
        small.sendall(request(4, bytes(20_000)) + LARGE[:20_000])
        assert small.answer() == request(4, bytes(20_000))[4:]
        before = server.reactor.stats().queued_bytes
        for at in range(4, 12):
            server.connect().sendall(LARGE[:at])
        time.sleep(0.2)
        assert server.reactor.stats().queued_bytes <= before
        assert "closing" not in caplog.text


def test_small_request_waits_for_those_in_work_alone(caplog):
    release = threading.Event()

    async def hold(connection, frame):
        while frame.nbytes > 100_000 and not release.is_set():
            await asyncio.sleep(0.01)
        return [bytes(frame)]

    with Server(hold, queued_max_bytes=1_000_000) as server:
        held = server.connect()
        held.sendall(request(9, bytes(200_000)))
        server.until(lambda: server.reactor.stats().requests == 1)
        _, small = stalled_and_waiting(server, request(3))
        time.sleep(0.3)
        assert server.reactor.stats().requests == 2
        release.set()
        assert small.answer() == request(3)[4:]
        assert "closing" not in caplog.text


def test_answers_that_nobody_takes_are_bounded_over_all_connections(threads, caplog):
    """Each is far below what one connection may leave untaken."""

    def answer(connection, frame):
        return [bytes(frame[:8]), bytes(200_000)]

    with Server(
        answer, answers_max_bytes=1_000_000, threads=threads, send_buffer_bytes=4096
    ) as server:
        clients = [server.connect(receive_buffer=4096) for _ in range(40)]
        for client in clients:
            client.sendall(request(1))
        closed = "response memory exhausted"
        server.until(lambda: caplog.text.count(closed) >= 30)
        # Whoever takes its answers is served all the while.
        reader = server.connect()
        for number in range(20):
            reader.sendall(request(number))
            assert correlation_of(reader.answer()) == number
        server.until(lambda: server.reactor.stats().connections <= 1 + 1_000_000 // 190_000)


def test_request_larger_than_the_whole_memory_budget_is_served():
    with Server(queued_max_bytes=1000) as server:
        client = server.connect()
        client.sendall(request(1, bytes(500_000)))
        assert len(client.answer()) == 500_008


def run_script(script: str) -> str:
    """Run in a fresh process; its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=os.getcwd(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_process_out_of_descriptors_turns_clients_away_and_recovers():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
    output = run_script(
        """
        import resource, socket, time
        from tests.network.server import Client, Server, request
        with Server() as server:
            first = server.connect()
            first.sendall(request(1)); first.answer()
            address = server.address
            hoard = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            import os
            try:
                while True:
                    hoard.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            os.close(hoard.pop())
            before = time.process_time()
            client = Client(address)        # the last descriptor is the client's own
            assert client.is_closed_by_server()
            client.close()
            time.sleep(0.5)
            assert time.process_time() - before < 0.4, "it spins"
            first.sendall(request(2)); assert first.answer() == request(2)[4:]
            for fd in hoard:
                os.close(fd)
            again = server.connect()
            again.sendall(request(3)); assert again.answer() == request(3)[4:]
            print(server.reactor.stats().refused)
        """
    )
    assert output.strip() == "1"


def test_process_that_forgets_to_stop_ends_all_the_same():
    run_script(
        """
        import socket
        from plog._native.reactor import Reactor
        listening = socket.create_server(("127.0.0.1", 0))
        reactor = Reactor(threads=2)
        reactor.add_listener(listening.fileno(), 0)
        reactor.start()
        client = socket.create_connection(listening.getsockname())
        """
    )


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"max_request_bytes": -1},
        {"max_request_bytes": 1 << 31},
    ],
)
def test_impossible_option_is_refused(options):
    with pytest.raises(ValueError, match=r"thread|max_request_bytes"):
        Reactor(**options)


def test_listener_that_is_no_descriptor_is_refused():
    with pytest.raises(OSError, match="Bad file descriptor"):
        Reactor().add_listener(1 << 20, 0)


def test_second_start_is_refused():
    reactor = Reactor()
    reactor.start()
    with pytest.raises(RuntimeError, match="started once"):
        reactor.start()
    reactor.stop()
    reactor.stop()


def test_piece_that_is_no_buffer_is_refused_and_frees_the_rest():
    reactor, client = reactor_with_client()
    with pytest.raises(TypeError):
        reactor.respond(1, [b"fine", "text"])
    client.close()
    reactor.stop()


def test_junk_never_costs_more_than_its_connection():
    seed = run_seed()
    rng = random.Random(seed)
    with Server(max_request_bytes=10_000) as server:
        for _ in range(150):
            junk = rng.randbytes(rng.randrange(1, 400))
            if rng.random() < 0.5:
                junk = struct.pack(">i", rng.randrange(0, 12_000)) + junk
            client = server.connect()
            client.sendall(junk)
            if rng.random() < 0.5:
                client.reset()
            else:
                client.close()
        server.until(lambda: server.reactor.stats().connections == 0)
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == request(1)[4:], seed
        assert server.dispatch is echo
