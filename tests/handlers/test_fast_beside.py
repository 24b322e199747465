"""Large compressed Produces: threads beside the reactor expand them, and all keep their order."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from plog._native import compression
from plog._native.crc32c import crc32c
from plog._native.files import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.handlers.running import Running, decoded, end_of, faults, framed
from tests.handlers.test_fast_rounds import VERSION, told, values_of
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    eventually,
    flat,
    make_batch,
    produce_request,
)

LARGE_BYTES = 100_000
"""Of noise, which lz4 makes no smaller: more than the reactor expands itself."""


def value(number: int, size: int = LARGE_BYTES) -> bytes:
    return b"%d " % number + random.Random(number).randbytes(size)


def large(
    number: int, *, acks: int = -1, producer: tuple[int, int, int] = (-1, -1, -1)
) -> ProduceRequest:
    batch = make_batch([value(number)], codec=compression.LZ4, producer=producer)
    return produce_request([("t", 0, batch)], acks=acks)


def small(number: int, *, acks: int = -1, **options: object) -> ProduceRequest:
    return produce_request([("t", 0, make_batch([b"%d " % number], **options))], acks=acks)


def damaged(number: int) -> ProduceRequest:
    """Its checksum is right, and its records cannot be expanded."""
    batch = bytearray(make_batch([value(number)], codec=compression.LZ4))
    batch[61:65] = b"none"
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return produce_request([("t", 0, bytes(batch))])


def order(running: Running) -> list[int]:
    return [int(found.split(b" ", 1)[0]) for found in values_of(running) if found is not None]


@contextmanager
def one_slow_flush(running: Running) -> Iterator[None]:
    """Hold the first Produce with acks=all back until the block ends, or for some seconds."""
    with faults(
        Fault("fdatasync", delay_us=3_000_000, times=1, path_prefix=str(running.directory / "t-0"))
    ):
        yield


@pytest.fixture
def led(fast: Running) -> Running:
    """A broker whose fast path leads t-0, with a record of its first flush."""
    create_topic(fast.wire, "t")
    fast.ask(small(0), VERSION)
    return fast


def answered(running: Running, count: int) -> list[tuple[int, int]]:
    return [
        (part.error_code, part.base_offset)
        for _ in range(count)
        for part in told(running.receive())
    ]


def test_large_ones_wait_for_the_disk_together(led: Running) -> None:
    before = led.fast_requests
    with one_slow_flush(led):
        for number in range(1, 5):
            led.send(large(number), VERSION)
        led.send(small(5), VERSION)
        led.send(large(6), VERSION)
        led.until_waiting(6)
        assert answered(led, 6) == [(0, number) for number in range(1, 7)]
    assert led.fast_requests == before + 6
    assert order(led) == list(range(7))


@pytest.mark.parametrize("acks", [0, 1])
def test_large_one_that_waits_for_nothing_keeps_its_place(led: Running, acks: int) -> None:
    with one_slow_flush(led):
        led.send(small(1), VERSION)
        led.send(large(2, acks=acks), VERSION)
        led.send(large(3), VERSION)
        expected = [(0, 1), (0, 2), (0, 3)] if acks else [(0, 1), (0, 3)]
        assert answered(led, len(expected)) == expected
    assert order(led) == [0, 1, 2, 3]


def test_damaged_one_is_refused_in_its_place(led: Running) -> None:
    with one_slow_flush(led):
        for request in (large(1), damaged(2), large(3), small(4)):
            led.send(request, VERSION)
        found = answered(led, 4)
    assert found == [(0, 1), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 2), (0, 3)]
    assert order(led) == [0, 1, 3, 4]
    assert led.handed_over["unusual batch"] == 1


def test_what_comes_behind_one_for_python_is_not_appended_before_it(led: Running) -> None:
    with one_slow_flush(led):
        led.send(small(1), VERSION)
        led.until_waiting(1)
        led.send(small(2, producer=(71, 0, 0)), VERSION)  # a new producer is Python's
        led.until_waiting(2)
        led.send(small(3), VERSION)
        led.send(large(4), VERSION)
        assert answered(led, 4) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert order(led) == [0, 1, 2, 3, 4]


def test_new_producer_whose_first_batches_are_large(led: Running) -> None:
    with one_slow_flush(led):
        led.send(small(1), VERSION)
        for sequence in range(3):
            led.send(large(2 + sequence, producer=(72, 0, sequence)), VERSION)
        assert answered(led, 4) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert order(led) == [0, 1, 2, 3, 4]
    # From its second batch on the producer is the fast path's.
    assert led.handed_over["unusual append"] == 1


def test_clients_that_go_meanwhile_harm_nobody(led: Running) -> None:
    frames = b"".join(framed(large(n % 3), VERSION, n) for n in range(3))

    def come_and_go(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", led.port)) as gone:
                linger = struct.pack("ii", 1, 0)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # ends by a reset
                gone.sendall(frames[: rng.randrange(len(frames))])

    clients = [threading.Thread(target=come_and_go, args=(seed,)) for seed in range(3)]
    for client in clients:
        client.start()
    for number in range(1, 20):
        assert told(led.ask(large(number), VERSION))[0].error_code == 0
    for client in clients:
        client.join()
    led.until_waiting(0)
    eventually(lambda: led.broker.reactor_stats.queued_bytes == 0, "memory is given back")
    end = end_of(led, "t")
    assert told(led.ask(small(1), VERSION))[0].base_offset == end


def test_many_connections_are_expanded_side_by_side(fast: Running) -> None:
    create_topic(fast.wire, "t", partitions=3)
    clients = [socket.create_connection(("127.0.0.1", fast.port)) for _ in range(6)]
    for client in clients:
        client.settimeout(WAIT_MS / 1000)

    def send(number: int, client: socket.socket) -> None:
        for n in range(30):
            batches = [
                ("t", index, make_batch([value(1000 * number + n, 40_000)], codec=compression.LZ4))
                for index in range(3)
            ]
            client.sendall(framed(produce_request(batches), VERSION, n))

    senders = [threading.Thread(target=send, args=each) for each in enumerate(clients)]
    for sender in senders:
        sender.start()
    for client in clients:
        ends = [-1, -1, -1]
        for n in range(30):
            (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
            frame = client.recv(size, socket.MSG_WAITALL)
            assert struct.unpack_from(">i", frame)[0] == n
            parts = flat(decoded(ProduceResponse, VERSION, frame))
            assert [part.error_code for part in parts] == [0, 0, 0]
            assert all(part.base_offset > end for part, end in zip(parts, ends, strict=True))
            ends = [part.base_offset for part in parts]
        client.close()
    for sender in senders:
        sender.join()
    assert end_of(fast, "t") == 180
