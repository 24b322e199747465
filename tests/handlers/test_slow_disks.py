"""The handlers on disks that are slow, with the fast path beside them and without.

What is asked here is never the fast path's: its own slow disks are `test_fast_disks`'.
"""

from __future__ import annotations

import errno
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plog._native.faults import Fault
from plog.handlers import fetch_callouts
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.produce import ProduceRequest, ProduceResponse
from plog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.handlers.running import Running, decoded, end_of, faults, framed
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    eventually,
    fetch_request,
    flat,
    make_batch,
    produce_request,
)
from tests.oracle import fetch as oracle
from tests.planes import Plane

PRODUCE, FETCH = 9, 12
LARGE = make_batch([b"v" * 100_000])
producer_ids = itertools.count(1000)


@pytest.fixture
def two_disks(plane: Plane, tmp_path: Path) -> Iterator[Running]:
    """A broker with two log directories, of which topic "t" has a partition each."""
    one = Running(tmp_path, log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}")
    create_topic(one.wire, "t", 2)
    yield one
    one.stop()


def disk_of(running: Running, index: int, topic: str = "t") -> str:
    (path,) = running.directory.glob(f"disk*/{topic}-{index}")
    return str(path.parent)


def unusual(index: int, values: list[bytes] | None = None):
    """Return a Produce of a producer that is new: the handler's business."""
    data = make_batch(values or [b"v"], producer=(next(producer_ids), 0, 0))
    return produce_request([("t", index, data)], acks=1)


def cold_fetch(offset: int, **options: int):
    """Return a debugging consumer's Fetch: Python's business."""
    return fetch_request(("t", 0, offset), replica_id=-2, **options)


def make_slow(running: Running, index: int) -> None:
    """Have the broker find out that a disk is slow: a write that takes 30 ms."""
    with faults(Fault("pwritev", delay_us=30_000, path_prefix=disk_of(running, index))):
        running.ask(unusual(index), PRODUCE)


def make_fast(running: Running, index: int) -> None:
    """Have it known that a disk is not slow, as after some writes."""
    assert running.broker._replicas is not None
    for _ in range(64):
        running.broker._replicas.disks.note_append(Path(disk_of(running, index)), 0)


def require_unanswered(client: socket.socket) -> None:
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(WAIT_MS / 1000)


def is_slow(running: Running, index: int) -> bool:
    replicas = running.broker._replicas
    return replicas is not None and replicas.disks.is_slow(Path(disk_of(running, index)))


def count_threads(running: Running, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list of the directories whose threads have been asked for something, which grows."""
    asked: list[Path] = []
    in_thread = running.broker._replicas.disks.in_thread

    async def counted(log_dir: Path, *call: object) -> object:
        asked.append(log_dir)
        return await in_thread(log_dir, *call)

    monkeypatch.setattr(running.broker._replicas.disks, "in_thread", counted)
    return asked


# -- writes


def test_slow_write_keeps_nobody_from_another_disk(two_disks: Running) -> None:
    make_slow(two_disks, 0)
    slow = disk_of(two_disks, 0)
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=slow, times=1)):
        two_disks.send(unusual(0), PRODUCE)
        for _ in range(20):
            two_disks.wire.ask(unusual(1), PRODUCE)
        require_unanswered(two_disks.socket)
        (part,) = flat(decoded(ProduceResponse, PRODUCE, two_disks.receive()))
    assert (part.error_code, part.base_offset) == (0, 1)
    assert is_slow(two_disks, 0)


def test_request_for_two_disks_waits_once_for_one_that_becomes_slow(
    two_disks: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(two_disks.wire, "u", 16)
    slow = disk_of(two_disks, 0)
    make_fast(two_disks, 0)
    make_fast(two_disks, 1)
    asked = count_threads(two_disks, monkeypatch)
    parts = [("u", index, make_batch(producer=(next(producer_ids), 0, 0))) for index in range(16)]
    with faults(Fault("pwritev", delay_us=30_000, path_prefix=slow)):
        frame = two_disks.ask(produce_request(parts, acks=1), PRODUCE)
    told = flat(decoded(ProduceResponse, PRODUCE, frame))
    assert [(part.error_code, part.base_offset) for part in told] == [(0, 0)] * 16
    later = [index for index in range(16) if disk_of(two_disks, index, "u") == slow][1:]
    assert asked.count(Path(slow)) == len(later) > 1


def test_disk_that_is_slow_from_the_first_write_on_keeps_nobody_from_another(
    two_disks: Running,
) -> None:
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk_of(two_disks, 0))):
        two_disks.send(unusual(0), PRODUCE)
        for _ in range(20):
            two_disks.wire.ask(unusual(1), PRODUCE)
        require_unanswered(two_disks.socket)
        two_disks.receive()


def test_many_slow_writes_keep_nobody_from_another_disk(two_disks: Running) -> None:
    make_slow(two_disks, 0)
    slow = disk_of(two_disks, 0)
    with ExitStack() as clients, faults(Fault("pwritev", delay_us=200_000, path_prefix=slow)):
        sockets = [
            clients.enter_context(socket.create_connection(("127.0.0.1", two_disks.port)))
            for _ in range(120)  # more than there are threads, and than may be at work
        ]
        for client in sockets:
            client.sendall(framed(unusual(0), PRODUCE, 1))
        for _ in range(5):
            # So large that it is validated beside the event loop.
            two_disks.wire.ask(unusual(1, [b"v" * 300_000]), PRODUCE)
        require_unanswered(sockets[-1])


def test_many_that_are_expanded_for_a_slow_disk_keep_nobody_from_another(
    two_disks: Running,
) -> None:
    for topic, index in (("slow", 0), ("quick", 1)):
        create_topic(two_disks.wire, topic, 2, compression_type="zstd")
        assert disk_of(two_disks, index, topic) == disk_of(two_disks, index)
    # Of another codec than the topic's; as many of these are at work as may be, for they are small.
    batch = make_batch([bytes(300_000)], codec=3)

    def request(topic: str, index: int) -> ProduceRequest:
        return produce_request([(topic, index, batch)], acks=1)

    slow = disk_of(two_disks, 0)
    with ExitStack() as clients, faults(Fault("pwritev", delay_us=200_000, path_prefix=slow)):
        sockets = [
            clients.enter_context(socket.create_connection(("127.0.0.1", two_disks.port)))
            for _ in range(90)  # more than there are threads, and fewer than may be at work
        ]
        for client in sockets:
            client.sendall(framed(request("slow", 0), PRODUCE, 1))
        for _ in range(5):
            two_disks.wire.ask(request("quick", 1), PRODUCE)
        require_unanswered(sockets[len(sockets) // 2])


def test_disk_that_is_fast_again_is_written_in_place(
    soon_fast_again: None, two_disks: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_slow(two_disks, 0)
    asked = count_threads(two_disks, monkeypatch)
    for offset in range(1, 101):
        (part,) = flat(decoded(ProduceResponse, PRODUCE, two_disks.ask(unusual(0), PRODUCE)))
        assert (part.error_code, part.base_offset) == (0, offset)
    assert not is_slow(two_disks, 0)
    assert len(asked) == 64


def test_duplicates_say_nothing_of_a_disk(two_disks: Running) -> None:
    request = produce_request([("t", 0, make_batch(producer=(71, 0, 0)))], acks=1)
    two_disks.ask(request, PRODUCE)
    make_slow(two_disks, 0)
    for _ in range(100):
        two_disks.ask(request, PRODUCE)
    assert is_slow(two_disks, 0)


# -- reads


def fill(running: Running) -> None:
    for _ in range(5):
        for index in (0, 1):
            running.ask(produce_request([("t", index, LARGE)], acks=1), PRODUCE)


@pytest.mark.parametrize("cold", ["is_resident", "pread_now"], ids=["records", "header"])
def test_cold_read_keeps_nobody_from_another_disk(two_disks: Running, cold: str) -> None:
    fill(two_disks)
    slow = disk_of(two_disks, 0)
    with faults(
        Fault(cold, errno=errno.EAGAIN, path_prefix=slow),
        Fault("pread", delay_us=1_500_000, path_prefix=slow, times=1),
    ):
        read = two_disks.requests
        two_disks.send(cold_fetch(3, partition_max_bytes=1), FETCH)
        two_disks.until_read(read + 1)
        for _ in range(20):
            two_disks.wire.ask(unusual(1), PRODUCE)
        require_unanswered(two_disks.socket)
        answer = decoded(FetchResponse, FETCH, two_disks.receive())
    parts = [part for topic in answer.responses for part in topic.partitions]
    assert [(part.error_code, len(part.records)) for part in parts] == [(0, len(LARGE))]


# -- searches and deletions


def search(index: int) -> bytes:
    asked = ListOffsetsPartition(partition_index=index, timestamp=1)
    topic = ListOffsetsTopic(name="t", partitions=[asked])
    return framed(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 5, 1)


def delete_records(index: int) -> bytes:
    asked = DeleteRecordsPartition(partition_index=index, offset=1)
    topic = DeleteRecordsTopic(name="t", partitions=[asked])
    return framed(DeleteRecordsRequest(topics=[topic], timeout_ms=WAIT_MS), 2, 1)


@pytest.mark.parametrize(
    ("request_for", "call"),
    [(search, "pread"), (delete_records, "fsync")],
    ids=["ListOffsets", "DeleteRecords"],
)
def test_many_that_wait_for_a_disk_keep_nobody_from_another(
    two_disks: Running, request_for: Callable[[int], bytes], call: str
) -> None:
    fill(two_disks)
    two_disks.ask(unusual(1), PRODUCE)
    slow = disk_of(two_disks, 0)
    with ExitStack() as clients, faults(Fault(call, delay_us=200_000, path_prefix=slow)):
        sockets = [
            clients.enter_context(socket.create_connection(("127.0.0.1", two_disks.port)))
            for _ in range(120)  # more than there are threads, and than may be at work
        ]
        for client in sockets:
            client.sendall(request_for(0))
        for _ in range(5):
            two_disks.socket.sendall(request_for(1))
            two_disks.receive()
        require_unanswered(sockets[-1])


def test_resident_records_are_read_in_place(
    two_disks: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(two_disks)
    asked = count_threads(two_disks, monkeypatch)
    answer = decoded(
        FetchResponse, FETCH, two_disks.ask(cold_fetch(3, partition_max_bytes=1), FETCH)
    )
    assert len(answer.responses[0].partitions[0].records) == len(LARGE)
    assert asked == []


def test_cold_records_that_are_not_enough_are_read_once_and_waited_with(
    two_disks: Running, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(two_disks)
    make_fast(two_disks, 0)
    asked = count_threads(two_disks, monkeypatch)
    looks: list[int] = []
    where, name = (
        (oracle, "_read_all") if plane is Plane.PLAIN else (fetch_callouts._Reading, "read")
    )
    read = getattr(where, name)

    def counted(*args: object, **options: object) -> object:
        looks.append(1)
        return read(*args, **options)

    monkeypatch.setattr(where, name, counted)
    request = cold_fetch(3, min_bytes=3 * len(LARGE), max_wait_ms=WAIT_MS)
    # The handler looks again before it waits. The reactor waits, and asks again when there is more.
    looked, threads = (3, 1) if plane is Plane.PLAIN else (2, 2)
    with faults(Fault("is_resident", errno=errno.EAGAIN), Fault("pread_now", errno=errno.EAGAIN)):
        two_disks.send(request, FETCH)
        eventually(lambda: (len(asked), len(looks)) == (1, looked), "read in the thread")
        require_unanswered(two_disks.socket)
        two_disks.wire.ask(produce_request([("t", 0, LARGE)], acks=1), PRODUCE)
        answer = decoded(FetchResponse, FETCH, two_disks.receive())
    assert len(answer.responses[0].partitions[0].records) == 3 * len(LARGE)
    assert len(asked) == threads


def test_cold_records_that_are_not_enough_in_time_are_answered(two_disks: Running) -> None:
    fill(two_disks)
    request = cold_fetch(3, min_bytes=3 * len(LARGE), max_wait_ms=300)
    with faults(Fault("is_resident", errno=errno.EAGAIN)):
        begun = time.monotonic()
        answer = decoded(FetchResponse, FETCH, two_disks.ask(request, FETCH))
        assert time.monotonic() - begun > 0.25
    assert len(answer.responses[0].partitions[0].records) == 2 * len(LARGE)


def test_cold_header_says_nothing_of_a_failed_disk(two_disks: Running) -> None:
    fill(two_disks)
    with faults(Fault("pread_now", errno=errno.EAGAIN)):
        for offset in range(5):
            two_disks.ask(cold_fetch(offset, partition_max_bytes=1), FETCH)
    assert end_of(two_disks, "t") == 5
