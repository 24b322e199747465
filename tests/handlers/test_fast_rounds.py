"""Produces that come together are written together: one write for each partition, or none."""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
import time
from pathlib import Path

import pytest

from plog._native.faults import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchRequest, FetchResponse
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from plog.protocol.schema import Struct
from tests.handlers.running import (
    Running,
    ask_in_one_go,
    decoded,
    end_of,
    faults,
    framed,
)
from tests.handlers.test_fast_disks import partitions_by_disk
from tests.handlers.wire import (
    NOW_MS,
    WAIT_MS,
    create_topic,
    eventually,
    fetch_request,
    flat,
    make_batch,
    produce_request,
    walk_all,
)
from tests.planes import Plane

VERSION = 9


def produce(*values: bytes, index: int = 0, acks: int = 1, topic: str = "t") -> ProduceRequest:
    return produce_request([(topic, index, make_batch([value])) for value in values], acks=acks)


def told(frame: bytes) -> list[PartitionProduceResponse]:
    return flat(decoded(ProduceResponse, VERSION, frame))


def together(running: Running, *requests: Struct) -> list[list[tuple[int, int]]]:
    """Send Produces in one go; return (error code, base offset) of each answer's partitions."""
    frames = ask_in_one_go(running, *((request, VERSION) for request in requests))
    return [[(part.error_code, part.base_offset) for part in told(frame)] for frame in frames]


def values_of(running: Running, index: int = 0, topic: str = "t") -> list[bytes | None]:
    frame = running.ask(fetch_request((topic, index, 0)), 12)
    (part,) = decoded(FetchResponse, 12, frame).responses[0].partitions
    return [record.value for record in walk_all(part.records)]


@pytest.mark.parametrize("acks", [1, -1])
def test_requests_of_a_round_share_a_write(fast: Running, acks: int) -> None:
    create_topic(fast.wire, "t")
    fast.ask(produce(b"first"), VERSION)
    before = fast.fast_requests
    with faults(
        Fault("pwritev", errno=errno.EIO, after=1, path_prefix=str(fast.directory / "t-0"))
    ):
        found = together(fast, *(produce(b"%d" % n, acks=acks) for n in range(20)))
    assert found == [[(0, 1 + n)] for n in range(20)]
    assert values_of(fast) == [b"first", *(b"%d" % n for n in range(20))]
    assert fast.fast_requests >= before + 20


def test_batches_of_a_round_are_more_than_one_call_may_write(fast: Running) -> None:
    create_topic(fast.wire, "t")
    values = [bytes([n % 256]) * (n * 37 % 9_000) for n in range(150)]
    found = together(fast, *(produce(value) for value in values))
    assert found == [[(0, n)] for n in range(150)]
    assert values_of(fast) == values


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_round_whose_write_fails_is_told_as_the_handlers_tell_it(
    tmp_path: Path, error: int
) -> None:
    answers = []
    for plane in Plane:
        one = Running(tmp_path / plane.value, plane=plane)
        create_topic(one.wire, "t")
        one.ask(produce(b"first"), VERSION)
        with faults(Fault("pwritev", errno=error, path_prefix=str(tmp_path / plane.value / "t-0"))):
            answers.append(together(one, *(produce(b"%d" % n) for n in range(5))))
        one.stop()
    assert answers[0] == answers[1] == [[(ErrorCode.KAFKA_STORAGE_ERROR, -1)]] * 5


@pytest.mark.parametrize("acks", [1, -1])
def test_round_whose_write_fails_once_is_appended_once_and_in_order(
    fast: Running, acks: int
) -> None:
    create_topic(fast.wire, "t")
    producer = [make_batch([b"%d" % n], producer=(71, 0, n)) for n in range(5)]
    fast.ask(produce_request([("t", 0, producer[0])]), VERSION)
    with faults(
        Fault("pwritev", errno=errno.EIO, times=1, path_prefix=str(fast.directory / "t-0"))
    ):
        requests = [produce_request([("t", 0, batch)], acks=acks) for batch in producer[1:]]
        found = together(fast, *requests, produce(b"plain", acks=acks))
    assert found == [[(0, n)] for n in range(1, 6)]
    assert values_of(fast) == [b"0", b"1", b"2", b"3", b"4", b"plain"]
    # The fast path knows where the producer stands.
    before = fast.fast_requests
    more = produce_request([("t", 0, make_batch([b"5"], producer=(71, 0, 5)))])
    assert together(fast, more) == [[(0, 6)]]
    assert fast.fast_requests == before + 1


def test_part_whose_write_fails_takes_no_other_along(two_disks: Running) -> None:
    disk, broken, whole = partitions_by_disk(two_disks)
    request = produce_request(
        [("t", index, make_batch([b"v"])) for index in sorted((broken, whole))], acks=1
    )
    with faults(Fault("pwritev", errno=errno.EIO, path_prefix=disk + "/t-")):
        found = together(two_disks, request, produce(b"after", index=whole))
    expected = {broken: (ErrorCode.KAFKA_STORAGE_ERROR, -1), whole: (0, 0)}
    assert found == [[expected[index] for index in sorted(expected)], [(0, 1)]]
    assert values_of(two_disks, whole) == [b"v", b"after"]


def test_duplicate_of_a_batch_in_the_same_round_is_one(fast: Running) -> None:
    create_topic(fast.wire, "t")
    first, second = (make_batch([b"%d" % n], producer=(71, 0, n)) for n in range(2))
    fast.ask(produce_request([("t", 0, first)]), VERSION)
    requests = [produce_request([("t", 0, batch)], acks=1) for batch in (second, second, first)]
    assert together(fast, *requests) == [[(0, 1)], [(0, 1)], [(0, 0)]]
    assert values_of(fast) == [b"0", b"1"]


def test_what_is_no_produce_is_answered_in_its_place(fast: Running) -> None:
    create_topic(fast.wire, "t")
    requests: list[tuple[Struct, int]] = []
    for n in range(4):
        requests += [
            (produce(b"a%d" % n), VERSION),
            (fetch_request(("t", 0, 2 * n), partition_max_bytes=1), 12),
            (produce(b"b%d" % n, acks=-1), VERSION),
            (MetadataRequest(topics=None), 9),
        ]
    frames = ask_in_one_go(fast, *requests)
    for (request, _), frame in zip(requests, frames, strict=True):
        if isinstance(request, FetchRequest):
            (part,) = decoded(FetchResponse, 12, frame).responses[0].partitions
            assert [record.value for record in walk_all(part.records)][:1] == [
                b"a%d" % (request.topics[0].partitions[0].fetch_offset // 2)
            ]


def test_client_that_goes_at_once_has_sent_what_has_come(fast: Running) -> None:
    create_topic(fast.wire, "t")
    fast.ask(produce(b"first"), VERSION)
    for n in range(20):
        with socket.create_connection(("127.0.0.1", fast.port)) as gone:
            # It ends by a reset.
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(framed(produce(b"%d" % n), VERSION, 1) * 3)
    eventually(lambda: end_of(fast, "t") == 61, "all three of each client are appended")
    assert together(fast, produce(b"last")) == [[(0, 61)]]


def test_memory_comes_back_from_a_round_of_many_clients(fast: Running) -> None:
    create_topic(fast.wire, "t")
    clients = [socket.create_connection(("127.0.0.1", fast.port)) for _ in range(40)]
    for round_number in range(5):
        for client in clients:
            # One and a half: the rest of the second is to come.
            frame = framed(produce(b"v" * 30_000), VERSION, round_number)
            client.sendall(frame + frame[: len(frame) // 2])
        for client in clients:
            client.sendall(frame[len(frame) // 2 :])
        for client in clients:
            client.settimeout(WAIT_MS / 1000)
            for _ in range(2):
                (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
                (part,) = told(client.recv(size, socket.MSG_WAITALL))
                assert part.error_code == 0
    assert end_of(fast, "t") == 400
    assert fast.broker.reactor_stats.queued_bytes == 0
    for client in clients:
        client.close()


def test_roll_that_a_failed_round_asked_for_is_forgotten(fast: Running) -> None:
    create_topic(fast.wire, "t", segment_bytes=20_000)
    with faults(
        Fault("pwritev", errno=errno.EIO, times=1, path_prefix=str(fast.directory / "t-0"))
    ):
        found = together(fast, produce(b"a" * 12_000), produce(b"b" * 12_000))
    assert found == [[(0, 0)], [(0, 1)]]
    assert end_of(fast, "t") == 2


@pytest.mark.parametrize("pause_s", [0, 0.1])
def test_failed_round_of_a_client_that_has_gone_is_appended(fast: Running, pause_s: float) -> None:
    create_topic(fast.wire, "t")
    fast.ask(produce(b"first"), VERSION)
    there = str(fast.directory / "t-0")
    with faults(
        Fault("pwritev", errno=errno.EIO, times=1, path_prefix=there),
        Fault("pwritev", delay_us=300_000, times=1, path_prefix=there),
    ):
        with socket.create_connection(("127.0.0.1", fast.port)) as gone:
            frames = (framed(produce(b"%d" % n, acks=0), VERSION, n) for n in range(5))
            gone.sendall(b"".join(frames))
            time.sleep(pause_s)
        until = time.monotonic() + WAIT_MS / 1000
        while end_of(fast, "t") < 6:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert values_of(fast) == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_acks_0_goes_on_behind_a_produce_that_waits(fast: Running) -> None:
    for topic in ("t", "u"):
        create_topic(fast.wire, topic)
        fast.ask(produce(b"first", topic=topic), VERSION)
    with faults(Fault("fdatasync", delay_us=2_000_000, path_prefix=str(fast.directory / "t-0"))):
        fast.send(produce(b"waits", acks=-1), VERSION)
        fast.until_waiting()
        frames = (framed(produce(b"v", topic="u", acks=0), VERSION, n) for n in range(200))
        fast.socket.sendall(b"".join(frames))
        until = time.monotonic() + WAIT_MS / 1000
        while True:
            (part,) = fast.wire.ask(fetch_request(("u", 0, 0)), 12).responses[0].partitions
            if part.high_watermark == 201:
                break
            assert time.monotonic() < until, part.high_watermark
        assert fast.broker.reactor_stats.waiting == 1
        fast.receive()


def test_first_slow_write_of_a_disk_keeps_no_other_reactor_waiting(
    soon_fast_again: None, tmp_path: Path
) -> None:
    log_dirs = f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}"
    one = Running(tmp_path, log_dirs=log_dirs, num_network_threads=2)
    create_topic(one.wire, "t", 2)
    disk, slow, quick = partitions_by_disk(one)
    # Connections are given to the reactors in turns, but nobody says which has this one.
    others = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(2)]
    kept_waiting = []
    for other in others:
        other.settimeout(WAIT_MS / 1000)
        for _ in range(80):  # until the disks are taken for fast ones again
            one.ask(produce(b"v", index=slow), VERSION)
            one.ask(produce(b"v", index=quick), VERSION)
        with faults(Fault("pwritev", delay_us=2_000_000, times=1, path_prefix=disk + "/t-")):
            read = one.requests
            both = framed(produce(b"v", index=slow), VERSION, 1)
            one.socket.sendall(both + framed(produce(b"v", index=quick), VERSION, 2))
            one.until_read(read + 2)
            other.sendall(framed(produce(b"v", index=quick), VERSION, 3))
            (size,) = struct.unpack(">i", other.recv(4, socket.MSG_WAITALL))
            other.recv(size, socket.MSG_WAITALL)
            answered, _, _ = select.select([one.socket], [], [], 0)
            kept_waiting.append(bool(answered))
            one.receive()
            one.receive()
        other.close()
    one.stop()
    # One of them shares the reactor that writes to the slow disk.
    assert not all(kept_waiting)


def test_more_than_a_round_takes_in(fast: Running) -> None:
    create_topic(fast.wire, "t", 100)
    for acks in (1, -1):
        # 300 requests, each of four of 100 partitions, 6 MB in all.
        requests = [
            produce_request(
                [("t", (4 * n + k) % 100, make_batch([b"v" * 5_000])) for k in range(4)], acks=acks
            )
            for n in range(300)
        ]
        first = 0 if acks == 1 else 12
        assert together(fast, *requests) == [[(0, first + n // 25)] * 4 for n in range(300)]


def test_indexes_and_segments_are_those_of_single_appends(tmp_path: Path) -> None:
    files = []
    for name in ("together", "alone"):
        one = Running(tmp_path / name)
        create_topic(
            one.wire, "t", segment_bytes=60_000, segment_index_bytes=120, index_interval_bytes=2_000
        )
        rng = random.Random(2013)
        requests = []
        for _ in range(300):
            size, at = rng.choice((10, 1_000, 3_000)), NOW_MS + rng.choice((0, 0, 0, 5, 7, 1_000))
            batch = make_batch([rng.randbytes(size)], timestamps=[at])
            requests.append(produce_request([("t", 0, batch)], acks=1))
        if name == "together":
            together(one, *requests)
        else:
            for request in requests:
                together(one, request)
        one.stop()
        there = tmp_path / name / "t-0"
        files.append({
            path.name: path.read_bytes()
            for path in there.iterdir()
            if path.suffix in (".log", ".index", ".timeindex")
        })  # fmt: skip
    assert len(files[0]) > 9
    assert files[0] == files[1]
