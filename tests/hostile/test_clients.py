"""Clients that are slow, never read, never speak, come by the thousand or go in the middle."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from plog.errors import ErrorCode
from plog.network.control_plane import CLOSINGS_AT_ONCE, CLOSINGS_PER_S
from plog.protocol.messages.api_versions import ApiVersionsRequest
from tests.handlers.test_every_version import REQUESTS, Target
from tests.handlers.wire import (
    create_topic,
    eventually,
    fetch_request,
    make_batch,
    produce,
    produce_request,
    speak,
)
from tests.hostile.conftest import Besiege
from tests.hostile.frames import INT_MAX, UNKNOWN_ID, framed
from tests.hostile.sockets import answers, connect, crowd, is_closed, reset
from tests.hostile.watch import MIB, descriptors, memory
from tests.planes import Plane
from tests.servers import BrokerProcess

VERSIONS = framed(ApiVersionsRequest(client_software_name="h", client_software_version="1"), 3)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Allow this process, and the brokers it starts, as many as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 12_000, f"5,000 connections need more descriptors than {hard} (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("said", "of_one"),
    [(b"", 4 << 10), (VERSIONS[:5], 4 << 10), (VERSIONS, 8 << 10)],
    ids=["silent", "half a header", "after an answer"],
)
def test_five_thousand_idle_connections_cost_little_and_others_are_served(
    own_broker: Callable[..., BrokerProcess],
    besiege: Besiege,
    many_descriptors: None,
    record_property: Callable[[str, object], None],
    said: bytes,
    of_one: int,
) -> None:
    count = 5000
    broker = own_broker()
    with besiege(broker, growth=count * of_one + 8 * MIB) as under:
        before_open = descriptors(broker)
        before = memory(broker, "VmRSS")
        with crowd(broker.port, count, said) as hoard:
            eventually(lambda: descriptors(broker) >= before_open + count, "all are in")
            under.bystander.go_on(20)
            each = (memory(broker, "VmRSS") - before) / count
            # Whoever speaks at last is answered.
            hoard[0].sendall(VERSIONS[len(said) % len(VERSIONS) :])
            assert len(hoard[0].recv(4)) == 4
        record_property("figures", f"  {count} connections, {said!r}: {each:.0f} bytes each")
        eventually(lambda: descriptors(broker) <= before_open + 4, "all are gone")
    assert not under.lines.grave()


SLOW = {
    "silent": b"",
    "a byte": VERSIONS[:1],
    "a length": VERSIONS[:4],
    "half a header": VERSIONS[:9],
    "all but a byte": VERSIONS[:-1],
    "a large one begun": struct.pack(">i", 50 * MIB) + b"x" * 3000,
}


def test_half_requests_end_with_connections_max_idle_ms(
    own_broker: Callable[..., BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker(connections_max_idle_ms=1500)
    with besiege(broker, growth=40 * MIB) as under:
        before = descriptors(broker)
        hoard = []
        for _ in range(100):
            for said in SLOW.values():
                sock = connect(broker.port)
                sock.sendall(said)
                hoard.append(sock)
        for sock in hoard:
            assert is_closed(sock)
            sock.close()
        eventually(lambda: descriptors(broker) <= before + 3, "all are gone")
        # To say nothing breaks no rule; who leaves off in the middle is told of, up to a rate.
        under.lines.expect_closings(100 * (len(SLOW) - 1), "in the middle of a request")
    told = under.lines.closings()
    assert all(
        line.endswith("idle for longer than 1500 ms in the middle of a request") for line in told
    )
    assert len(told) <= CLOSINGS_AT_ONCE + CLOSINGS_PER_S * 60


def test_request_that_comes_byte_by_byte_is_served_and_keeps_nobody(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    with besiege(broker) as under, crowd(broker.port, 100, b"") as hoard:
        for at in range(len(VERSIONS)):
            for sock in hoard:
                sock.sendall(VERSIONS[at : at + 1])
            under.bystander.go_on(1)
        for sock in hoard:
            assert struct.unpack(">i", sock.recv(4))[0] > 0
    assert not under.lines.grave()


def test_half_requests_of_many_take_what_has_come_and_no_more(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    sent = 20_000
    count = 500
    with (
        besiege(broker, growth=4 * count * sent + 16 * MIB) as under,
        crowd(broker.port, count, struct.pack(">i", 50 * MIB) + bytes(sent)),
    ):
        under.bystander.go_on(20)
    assert not under.lines.grave()


@contextlib.contextmanager
def dribbling(port: int, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Clients that begin, and go on by a byte every half second; yields those that are closed."""
    closed: list[socket.socket] = []
    stop = threading.Event()

    def dribble(sock: socket.socket) -> None:
        try:
            sock.sendall(first)
            while not stop.wait(0.5):
                sock.sendall(b"x")
        except ConnectionError:
            closed.append(sock)

    with crowd(port, count, b"") as hoard:
        threads = [threading.Thread(target=dribble, args=(sock,)) for sock in hoard]
        for thread in threads:
            thread.start()
        try:
            yield closed
        finally:
            stop.set()
            for sock in hoard:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def test_half_requests_that_dribble_give_way_while_memory_is_short(
    own_broker: Callable[..., BrokerProcess], besiege: Besiege
) -> None:
    """Each byte is activity: by that alone they would keep the memory, and all others waiting."""
    largest, count = 2 * MIB, 8
    broker = own_broker(queued_max_request_bytes=2 * largest, socket_request_max_bytes=largest)
    begun = struct.pack(">i", largest - 4) + bytes(MIB - 4)
    with (
        besiege(broker, growth=12 * MIB) as under,
        dribbling(broker.port, count, begun) as closed,
    ):
        # For two of them there is memory, and they may stay.
        eventually(lambda: len(under.lines.closings()) >= count - 2, "enough give way")
        eventually(lambda: len(closed) >= len(under.lines.closings()), "they are told")
        under.bystander.go_on(20)
    # They have 10 s; whoever waits for them waits as long.
    assert under.bystander.longest_s < 5
    told = under.lines.closings()
    assert count - 2 <= len(told) <= count
    assert all("request memory exhausted" in line for line in told), told
    assert under.lines.grave() == told


def large_topic(broker: BrokerProcess, mib: int) -> str:
    with contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire, max_message_bytes=4 * MIB)
        for _ in range(mib):
            batch = make_batch([bytes(MIB)])
            assert ErrorCode(produce(wire, topic, batch).error_code) is ErrorCode.NONE
    return topic


@pytest.mark.parametrize("kind", ["Fetch", "DescribeConfigs"])
def test_client_that_never_reads_its_answers_is_held_back(
    plane: Plane, broker: BrokerProcess, besiege: Besiege, kind: str
) -> None:
    topic = large_topic(broker, 16)
    # The responses would have gigabytes.
    fetches = framed(fetch_request((topic, 0, 0), partition_max_bytes=INT_MAX), 12) * 2000
    # 6 MB for each client, of which the kernel takes 3 MB. The broker makes all of them, even when
    # the clients have gone.
    describes = framed(REQUESTS[32](Target(topic, UNKNOWN_ID, True), 4), 4) * 1000
    asked, growth = {"Fetch": (fetches, 100 * MIB), "DescribeConfigs": (describes, 20 * MIB)}[kind]
    if kind == "Fetch" and plane is Plane.PLAIN:
        growth = 20 * 24 * MIB  # the oracle makes each response in memory
    # Twenty clients ask, and read nothing.
    with besiege(broker, growth=growth) as under:
        hoard = [connect(broker.port, receive_buffer=4096) for _ in range(20)]
        for sock in hoard:
            sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                sock.sendall(asked)
        under.bystander.go_on(50)
        for sock in hoard:
            reset(sock)
        under.bystander.go_on(20)
    assert not [line for line in under.lines.grave() if "closing connection" not in line]


def test_clients_that_reset_in_the_middle_of_answers_harm_nobody(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    topic = large_topic(broker, 8)
    asked = framed(fetch_request((topic, 0, 0), partition_max_bytes=INT_MAX), 12)
    with besiege(broker, growth=64 * MIB):
        before = descriptors(broker)
        for n in range(300):
            sock = connect(broker.port, receive_buffer=4096)
            sock.sendall(asked * 3)
            if n % 3:
                sock.recv(1 + n)
            reset(sock)
        eventually(lambda: descriptors(broker) <= before + 4, "all are gone")


def test_pipelined_flood_of_small_requests_keeps_nobody_waiting(
    broker: BrokerProcess, besiege: Besiege
) -> None:
    count = 5_000
    with besiege(broker, growth=64 * MIB) as under:
        sock = connect(broker.port)

        def send() -> None:
            sock.sendall(VERSIONS * count)

        sender = threading.Thread(target=send)
        sender.start()
        under.bystander.go_on(10)
        data, found = bytearray(), 0
        while found < count:
            more = sock.recv(1 << 20)
            assert more
            data += more
            whole = 0
            for answer in answers(bytes(data)):
                found += 1
                whole += 4 + len(answer)
            del data[:whole]
        sender.join()
        sock.close()


def test_waits_without_end_go_with_their_clients(broker: BrokerProcess, besiege: Besiege) -> None:
    with contextlib.closing(speak(broker.port)) as wire:
        topic, _ = create_topic(wire)
    asked = framed(
        fetch_request((topic, 0, 0), max_wait_ms=INT_MAX, min_bytes=INT_MAX, session=(0, 0)), 12
    )
    with besiege(broker, growth=64 * MIB) as under:
        before = descriptors(broker)
        for leave in (socket.socket.close, reset):
            hoard = [connect(broker.port) for _ in range(300)]
            for sock in hoard:
                sock.sendall(asked)
            under.bystander.go_on(5)
            for sock in hoard:
                leave(sock)
        eventually(lambda: descriptors(broker) <= before + 4, "all are gone")
        produced = framed(produce_request([(topic, 0, make_batch())]), 9)
        sock = connect(broker.port)
        sock.sendall(produced)
        assert sock.recv(4)
        sock.close()
    assert not under.lines.grave()
