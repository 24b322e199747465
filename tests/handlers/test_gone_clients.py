"""Clients that ask and go: what they asked for is done, and no wait is kept up for them."""

from __future__ import annotations

import errno
import logging
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog._native import compression
from plog._native.faults import Fault
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
)
from tests.handlers.running import Running, end_of, faults, framed, receive
from tests.handlers.wire import (
    create_topic,
    eventually,
    fetch_request,
    make_batch,
    produce,
    produce_request,
)
from tests.planes import Plane

Start = Callable[..., tuple[Running, str]]


@pytest.fixture
def start(plane: Plane, tmp_path: Path) -> Iterator[Start]:
    """Start a broker of the plane with a topic; it stops cleanly afterwards."""
    started: list[Running] = []

    def begin(**settings: object) -> tuple[Running, str]:
        started.append(Running(tmp_path, **settings))
        topic, _ = create_topic(started[-1].wire)
        return started[-1], topic

    yield begin
    for running in started:
        running.stop()


def all_have_come_and_gone(running: Running, clients: int, others: int) -> None:
    def look() -> bool:
        stats = running.broker.reactor_stats
        return stats.accepted >= clients + others and stats.connections == others

    eventually(look, "all are closed")


@pytest.mark.parametrize("before", ["nothing", "metadata"])
def test_client_that_asks_and_goes_at_once_leaves_nothing_behind(start: Start, before: str) -> None:
    running, topic = start()
    sent = framed(fetch_request((topic, 0, 0), max_wait_ms=2**31 - 1), 12, 1)
    if before == "metadata":  # Python's: the Fetch is read when it has been answered
        sent = framed(MetadataRequest(topics=[]), 9, 0) + sent
    others = running.broker.reactor_stats.connections
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", running.port)) as gone:
            gone.sendall(sent)
    all_have_come_and_gone(running, 100, others)
    assert running.broker.reactor_stats.waiting == 0


def test_client_that_goes_in_the_middle_of_a_request_is_idle_while_one_waits(start: Start) -> None:
    running, topic = start(connections_max_idle_ms=500)
    with socket.create_connection(("127.0.0.1", running.port)) as gone:
        gone.sendall(framed(fetch_request((topic, 0, 0), max_wait_ms=2**31 - 1), 12, 1) + b"\0")
    eventually(lambda: running.broker.reactor_stats.connections == 0, "all are closed")


def leader_of(running: Running, topic: str) -> int:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    (found,) = running.wire.ask(asked, 9).topics
    return int(found.partitions[0].leader_id)


def test_wait_for_what_may_never_come_ends_with_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b")
    topic, _ = create_topic(running.wire)
    (place,) = tmp_path.glob(f"*/{topic}-0")
    others = running.broker.reactor_stats.connections
    broken = str(place.parent)
    with faults(
        *(Fault(call, errno=errno.EIO, path_prefix=broken) for call in ("fdatasync", "fsync"))
    ):
        assert produce(running.wire, topic, make_batch(), acks=-1).error_code != 0
        eventually(lambda: leader_of(running, topic) == -1, "offline")
        # Its replica is on a disk that is gone: the name is not free again before that is back.
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=2**31 - 1)
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", running.port)) as gone:
                gone.sendall(framed(request, 5, 1))
        all_have_come_and_gone(running, 10, others)
        with caplog.at_level(logging.WARNING):
            running.stop()
    assert "cancelled" not in caplog.text


def test_all_steps_of_a_request_are_done_though_its_client_goes(tmp_path: Path) -> None:
    running = Running(tmp_path)
    topics = [create_topic(running.wire)[0] for _ in range(20)]
    grown = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in topics]
    with socket.create_connection(("127.0.0.1", running.port)) as gone:
        gone.sendall(
            framed(
                CreatePartitionsRequest(topics=grown, timeout_ms=10_000, validate_only=False), 3, 1
            )
        )

    def counts() -> set[int]:
        found = running.wire.ask(MetadataRequest(topics=None), 9)
        return {len(topic.partitions) for topic in found.topics}

    eventually(lambda: counts() == {3}, "all have three partitions")
    running.stop()


@pytest.mark.parametrize("acks", [0, 1])
def test_all_requests_before_the_end_of_a_stream_are_done(start: Start, acks: int) -> None:
    """Large and compressed: each is looked at beside the reactor before the next is read."""
    running, topic = start()
    batch = make_batch([random.Random(1).randbytes(100_000)], codec=compression.GZIP)
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        for number in range(6):
            client.sendall(framed(produce_request([(topic, 0, batch)], acks=acks), 9, number))
        # An answer to a closed socket would reset the connection, and what is unread with it.
        client.shutdown(socket.SHUT_WR)
        eventually(lambda: end_of(running, topic) == 6, "all are appended")
    eventually(lambda: running.broker.reactor_stats.connections == 2, "it is closed")


def reset_with_an_answer_unread(client: socket.socket) -> None:
    assert client.recv(1)
    client.close()


def reset_by_linger(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def close_before_the_answers(client: socket.socket) -> None:
    """The first answer makes the client's kernel send a reset."""
    receive(client)
    client.close()


LEAVES = [reset_with_an_answer_unread, reset_by_linger, close_before_the_answers]
FOR_EVER_MS = 2**31 - 1
EXPANDS_BESIDE = 1_000_000
"""Bytes of a compressed record that another thread expands."""


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("size", [10, 20_000, EXPANDS_BESIDE])
def test_records_that_had_come_are_appended_however_their_client_leaves(
    start: Start, leave: Callable[[socket.socket], None], acks: int, size: int
) -> None:
    """Behind them all the answers, and a Fetch that would wait for ever."""
    running, topic = start()
    value = random.Random(2).randbytes(size) if size < EXPANDS_BESIDE else bytes(size)
    batches = [make_batch([value[:20_000]]), make_batch([value] * 2, codec=compression.GZIP)]
    fetch = fetch_request((topic, 0, 1), max_wait_ms=FOR_EVER_MS)
    first = running.requests
    client = running.connect()
    # Else the client's kernel may hold back requests behind another, and drop them at the reset.
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    metadata = framed(MetadataRequest(topics=[]), 9, 0)
    client.sendall(metadata)
    assert client.recv(1, socket.MSG_PEEK)
    with running.python_busy():
        client.sendall(metadata)  # what is behind it is not read before it is answered
        running.until_read(first + 2)
        client.sendall(
            framed(produce_request([(topic, 0, batches[0])], acks=acks), 9, 1)
            + framed(fetch, 12, 2)
            + framed(produce_request([(topic, 0, batches[1])], acks=acks), 9, 3)
            + framed(produce_request([(topic, 0, batches[0])], acks=acks), 9, 4)
        )
        leave(client)
    eventually(lambda: end_of(running, topic) == 4, "all are appended")
    eventually(lambda: running.broker.reactor_stats.connections == 2, "it is closed")
    assert running.broker.reactor_stats.waiting == 0


def test_fetch_that_waits_behind_an_unsent_response_holds_up_no_other_client(start: Start) -> None:
    running, topic = start(num_network_threads=1)
    produce(running.wire, topic, make_batch([b"v" * 60_000]))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", running.port))
        sent = running.broker.reactor_stats.bytes_out
        for n in range(300):  # until the kernel takes no more
            responses = running.broker.reactor_stats.responses
            client.sendall(framed(fetch_request((topic, 0, 0)), 12, n))
            running.until_responded(responses + 1)
            before, sent = sent, running.broker.reactor_stats.bytes_out
            if n > 1 and sent - before < 60_000:
                break
        read = running.requests
        client.sendall(framed(fetch_request((topic, 0, 1), max_wait_ms=100), 12, 999))
        running.until_read(read + 1)
        client.shutdown(socket.SHUT_WR)
        until = time.monotonic() + 0.3  # beyond the wait's deadline
        while time.monotonic() < until:
            assert produce(running.wire, topic, make_batch()).error_code == 0
