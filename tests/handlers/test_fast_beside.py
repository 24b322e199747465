"""Large compressed Produces: threads beside the reactor expand them, and all keep their order."""

from __future__ import annotations

import errno
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from plog._native import compression
from plog._native.crc32c import crc32c
from plog._native.faults import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.produce import ProduceRequest, ProduceResponse
from plog.protocol.schema import Struct
from tests.handlers.running import Running, ask_in_one_go, decoded, end_of, faults, framed
from tests.handlers.test_fast_disks import make_slow, partitions_by_disk
from tests.handlers.test_fast_rounds import VERSION, told, values_of
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    eventually,
    fetch_request,
    flat,
    make_batch,
    produce_request,
)
from tests.planes import Plane

LARGE_BYTES = 100_000
"""Of noise, which lz4 makes no smaller: more than the reactor expands itself."""


def value(number: int, size: int = LARGE_BYTES) -> bytes:
    return b"%d " % number + random.Random(number).randbytes(size)


def large(
    number: int,
    *,
    acks: int = -1,
    index: int = 0,
    size: int = LARGE_BYTES,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> ProduceRequest:
    batch = make_batch([value(number, size)], codec=compression.LZ4, producer=producer)
    return produce_request([("t", index, batch)], acks=acks)


def small(
    number: int,
    *,
    acks: int = -1,
    index: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> ProduceRequest:
    batch = make_batch([b"%d " % number], producer=producer)
    return produce_request([("t", index, batch)], acks=acks)


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


def test_one_flush_is_for_all_that_wait_for_it(led: Running) -> None:
    place = str(led.directory / "t-0")
    with faults(
        Fault("fdatasync", delay_us=3_000_000, times=1, path_prefix=place),
        Fault("fdatasync", after=1, errno=errno.EIO, path_prefix=place),  # there is no third
    ):
        for number in range(1, 22):
            led.send(small(number), VERSION)
            led.until_waiting(number)  # all but the first: for the flush after its slow one
        assert answered(led, 21) == [(0, number) for number in range(1, 22)]


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
    assert led.callouts["unusual batch"] == 1


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


def test_large_ones_of_one_connection_are_expanded_at_once(fast: Running) -> None:
    create_topic(fast.wire, "t", max_message_bytes=30_000_000)
    # Of 20 MB each takes some milliseconds, and is 180 KB on the wire.
    batch = make_batch([bytes(20_000_000), value(1)], codec=compression.LZ4)
    requests = [(produce_request([("t", 0, batch)], acks=1), VERSION)] * 6
    most = 0
    for _ in range(20):
        asking = threading.Thread(target=ask_in_one_go, args=(fast, *requests))
        asking.start()
        while asking.is_alive():
            most = max(most, fast.broker.reactor_stats.waiting)
        if most > 1:
            break
    assert 1 < most <= 4
    assert fast.callouts["unusual batch"] == 0


def test_many_bombs_in_one_small_request_are_not_the_reactors(fast: Running) -> None:
    create_topic(fast.wire, "t")
    batch = make_batch([bytes(1_000_000)], codec=compression.ZSTD)
    request = produce_request([("t", 0, batch)] * 200, acks=1)
    assert len(framed(request, VERSION, 1)) < 64 * 1024
    most = 0
    for _ in range(20):
        asking = threading.Thread(target=fast.ask, args=(request, VERSION))
        asking.start()
        while asking.is_alive():
            most = max(most, fast.broker.reactor_stats.waiting)
        if most > 0:
            break
    assert most == 1
    assert sum(fast.callouts[why] for why in ("unusual batch", "unusual append")) == 0


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_is_done_in_its_order(led: Running, seed: int) -> None:
    rng = random.Random(seed)
    sequences = dict.fromkeys(range(71, 75), 0)
    frames, expected, end = b"", [], 1
    for number in range(1, 60):
        acks = rng.choice((-1, 0, 1, 1))
        kind = rng.choice(("large", "large", "small", "numbered", "damaged"))
        if kind == "damaged":
            request = damaged(number)
            expected.append((ErrorCode.CORRUPT_MESSAGE, -1))
        else:
            producer = (-1, -1, -1)
            if kind == "numbered":  # of whom the first is Python's
                producer_id = rng.choice(list(sequences))
                producer = (producer_id, 0, sequences[producer_id])
                sequences[producer_id] += 1
            make = rng.choice((large, small))
            request = make(number, acks=acks, producer=producer)
            if acks:
                expected.append((0, end))
            end += 1
        frames += framed(request, VERSION, number)
    sender = threading.Thread(target=led.socket.sendall, args=(frames,))
    sender.start()
    assert answered(led, len(expected)) == expected
    sender.join()
    eventually(lambda: end_of(led, "t") == end, "all is appended")
    found = order(led)  # as much as one answer holds
    assert found == sorted(found)


def test_new_producer_whose_first_batches_are_large(led: Running) -> None:
    with one_slow_flush(led):
        led.send(small(1), VERSION)
        for sequence in range(3):
            led.send(large(2 + sequence, producer=(72, 0, sequence)), VERSION)
        assert answered(led, 4) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert order(led) == [0, 1, 2, 3, 4]
    # From its second batch on the producer is the fast path's.
    assert led.callouts["unusual append"] == 1


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


def test_large_ones_for_a_slow_disk_keep_nobody_from_another(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with ExitStack() as clients:
        clients.enter_context(faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)))
        for number in range(4):  # more than there are threads that expand
            client = clients.enter_context(socket.create_connection(("127.0.0.1", two_disks.port)))
            client.sendall(framed(large(number, acks=1, index=slow), VERSION, 1))
        two_disks.until_waiting(4)
        for number in range(5):
            two_disks.wire.ask(large(number, acks=1, index=quick), VERSION)
        assert two_disks.broker.reactor_stats.waiting >= 1


def test_what_is_not_written_says_nothing_of_a_disk(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    for sequence in range(2):
        two_disks.ask(small(sequence, index=slow, producer=(71, 0, sequence)), VERSION)
    make_slow(two_disks, disk, slow)
    for _ in range(100):
        duplicate = small(1, index=slow, producer=(71, 0, 1), acks=1)
        assert told(two_disks.ask(duplicate, VERSION))[0].base_offset == 1
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)):
        two_disks.send(small(3, index=slow, acks=1), VERSION)
        two_disks.until_waiting()
        two_disks.wire.ask(small(4, index=quick), VERSION)
        assert two_disks.broker.reactor_stats.waiting == 1
        two_disks.receive()


def test_cold_reads_keep_no_produce_waiting(fast: Running) -> None:
    create_topic(fast.wire, "t")
    for number in range(60):  # more than what is taken to be in the page cache
        fast.ask(produce_request([("t", 0, make_batch([value(number)]))], acks=1), VERSION)
    with faults(
        Fault("is_resident", errno=errno.EAGAIN), Fault("pread", delay_us=300_000, times=5)
    ):
        fast.send(fetch_request(("t", 0, 3), partition_max_bytes=1), 12)
        fast.until_waiting()
        fast.receive()
        fast.send(fetch_request(("t", 0, 4), partition_max_bytes=1), 12)
        fast.until_waiting()
        for number in range(10):
            fast.wire.ask(small(number, acks=1), VERSION)
        assert fast.broker.reactor_stats.waiting == 1
        fast.receive()


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
@pytest.mark.parametrize("what", ["new producer", "roll"])
def test_record_without_acks_is_appended_though_its_client_goes(
    tmp_path: Path, served_by: Plane, what: str
) -> None:
    running = Running(tmp_path, plane=served_by, log_segment_bytes=250_000)
    create_topic(running.wire, "t", partitions=3)
    for index in range(3):
        running.ask(small(0, index=index), VERSION)
    if what == "roll":
        for number in range(2):
            running.ask(large(number), VERSION)
    producer = (77, 0, 0) if what == "new producer" else (-1, -1, -1)
    end = end_of(running, "t")
    with ExitStack() as busy:
        # So many that the threads are not free at once.
        for number in range(8):
            sock = busy.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            sock.sendall(
                framed(large(number, acks=1, index=1 + number % 2, size=200_000), VERSION, 1)
            )
        with socket.create_connection(("127.0.0.1", running.port)) as gone:
            gone.sendall(framed(large(9, acks=0, producer=producer), VERSION, 1))
        eventually(lambda: end_of(running, "t") == end + 1, "the record is there")
    running.stop()


def test_what_has_come_whole_is_appended_though_the_end_is_read_behind_it(led: Running) -> None:
    """The end of a stream may be read before any event tells of it."""
    clients, sent = 400, framed(large(1, acks=0), VERSION, 1)
    for _ in range(clients):
        with socket.create_connection(("127.0.0.1", led.port)) as gone:
            gone.sendall(sent[:60_000])
            time.sleep(0.002)  # so that the rest is read by another turn
            gone.sendall(sent[60_000:])
    eventually(lambda: led.broker.reactor_stats.connections == 2, "all have gone")
    eventually(lambda: end_of(led, "t") == clients + 1, "all are appended")


def bytes_of_what_waits(fast: Running, request: Struct) -> int:
    """Return what a Produce takes while it waits for the disk, which is slow until it was seen."""
    for delay_us in (1_000_000, 5_000_000, 25_000_000):
        with faults(Fault("fdatasync", delay_us=delay_us, times=1)):
            fast.send(request, VERSION)
            fast.until_waiting()
            # The frame goes once the request is appended.
            eventually(lambda: fast.broker.reactor_stats.queued_bytes < 150_000, "it is appended")
            found = fast.broker.reactor_stats.queued_bytes
            still_waits = fast.broker.reactor_stats.waiting == 1
            fast.receive()
            if still_waits:
                return found
    raise AssertionError("nobody saw it wait")


def test_memory_of_what_waits_is_counted_whoever_has_read_it(fast: Running) -> None:
    create_topic(fast.wire, "t", partitions=300)
    counted = []
    for codec in (compression.NONE, compression.LZ4):
        parts = [("t", index, make_batch([value(index, 300)], codec=codec)) for index in range(300)]
        fast.ask(produce_request(parts), VERSION)
        counted.append(bytes_of_what_waits(fast, produce_request(parts)))
    assert counted[0] == counted[1] > 300 * 100


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
@pytest.mark.parametrize("acks", [1, -1])
def test_nonsense_behind_a_produce_takes_no_answer_away(
    tmp_path: Path, served_by: Plane, acks: int
) -> None:
    running = Running(tmp_path, plane=served_by)
    create_topic(running.wire, "t")
    for request in (small(0, acks=acks), large(1, acks=acks)):
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.settimeout(WAIT_MS / 1000)
            sock.sendall(framed(request, VERSION, 1) + b"\xff\xff\xff\xff")
            (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
            assert told(sock.recv(size, socket.MSG_WAITALL))[0].error_code == 0
            assert sock.recv(1) == b""
    running.stop()
