"""Produces that come together are written together: one write for each partition, or none."""

from __future__ import annotations

import errno
import socket
import struct
import time
from pathlib import Path

import pytest

from plog._native.files import Fault
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
    WAIT_MS,
    create_topic,
    fetch_request,
    flat,
    make_batch,
    produce_request,
    walk_all,
)

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
    for name in ("true", "false"):
        one = Running(tmp_path / name, fast_path_enable=name)
        create_topic(one.wire, "t")
        one.ask(produce(b"first"), VERSION)
        with faults(Fault("pwritev", errno=error, path_prefix=str(tmp_path / name / "t-0"))):
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
    until = time.monotonic() + WAIT_MS / 1000
    while fast.broker.reactor_stats.connections > 2:
        assert time.monotonic() < until
        time.sleep(0.001)
    end = end_of(fast, "t")
    assert (end - 1) % 3 == 0  # all three of a client, or (reset before they were read) none
    assert together(fast, produce(b"last")) == [[(0, end)]]


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
