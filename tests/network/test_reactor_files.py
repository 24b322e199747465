"""Responses with stretches of segment files in them: sendfile, pins, and what disks do wrong."""

import errno
import os
import struct
import threading

import pytest

from plog._native.faults import Fault, inject
from plog._native.fetch_callout import Found
from plog._native.fetch_sessions import SessionCache
from plog._native.served import ServedPartitions
from plog._native.work_queue import WorkThread
from plog.network.control_plane import Decided
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tests.descriptors import open_at
from tests.network.server import Server
from tests.storage.partition_logs import Directory
from tests.storage.storage_logs import NEVER, NOW_MS, batch, open_log

FETCH, VERSION = FetchRequest.api.key, 4
LARGEST = (1 << 31) - 1

SIZES = [200, 70_000, 3_000_000]


@pytest.fixture(params=[True, False], ids=["sendfile", "pread"])
def use_sendfile(request):
    return request.param


class Segments:
    """A log of a few batches of random bytes, and ranges of it."""

    def __init__(self, path):
        self.directory = Directory(path)
        segment = self.directory.written(
            0, [(i, 1, size) for i, size in enumerate(SIZES)], next_offset=len(SIZES)
        )
        with open(self.directory.file(0, "log"), "r+b") as file:
            at = 0
            for size in SIZES:
                file.seek(at + 61)
                file.write(os.urandom(size - 61))
                at += size
        self.bytes = self.directory.data(0)
        self.log = self.directory.log([segment], high_watermark=len(SIZES))

    def range(self, offset, size):
        """From the batch of `offset`, `size` bytes."""
        found = self.log.read(offset, size, len(SIZES), False)
        assert len(found) == size
        return found

    def expected(self, offset, size):
        start = sum(SIZES[:offset])
        return self.bytes[start : start + size]

    def descriptors_open(self):
        return len(open_at(self.directory.file(0, "log")))

    def close(self):
        self.log.close()


@pytest.fixture
def segments(tmp_path):
    made = Segments(tmp_path / "log")
    yield made
    inject([])
    made.close()


WHOLE = sum(SIZES)


class FetchServer(Server):
    """A server that asks `answer` for the ranges of each Fetch, one for each partition of it."""

    def __init__(self, answer, *, use_sendfile=True):
        async def decide(connection, callout):
            ranges = answer(callout)
            return Decided([Found(0, found, WHOLE, WHOLE, 0, None) for found in ranges], ())

        super().__init__(
            decide=decide,
            served=ServedPartitions(WorkThread()),
            sessions=SessionCache(1),
            use_sendfile=use_sendfile,
        )


def fetch(correlation, partitions=1):
    """A Fetch of partitions that no reactor knows, as the wire has it."""
    asked = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=LARGEST)
        for index in range(partitions)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=LARGEST,
        topics=[FetchTopic(topic="t", partitions=asked)],
    )
    header = framing.encode_request_header(FETCH, VERSION, correlation, "c")
    body = header + codec.encode(request, VERSION)
    return struct.pack(">i", len(body)) + body


def records_in(frame):
    _, at = framing.decode_response_header(FETCH, VERSION, frame)
    response, end = codec.decode(FetchResponse, VERSION, frame, at)
    assert end == len(frame)
    return [bytes(one.records) for one in response.responses[0].partitions]


def test_ranges_arrive_in_order(segments, use_sendfile):
    def answer(callout):
        return [
            segments.range(0, 200),
            b"",
            segments.range(1, 70_000),
            segments.range(0, WHOLE),
        ]

    expected = [
        segments.expected(0, 200),
        b"",
        segments.expected(1, 70_000),
        segments.expected(0, WHOLE),
    ]
    with FetchServer(answer, use_sendfile=use_sendfile) as server:
        clients = [server.connect(), server.connect(receive_buffer=4096)]
        for client in clients:
            client.sendall(fetch(1, 4) + fetch(2, 4))
        for client in clients:
            assert records_in(client.answer()) == expected
            assert records_in(client.answer()) == expected


def test_queued_range_outlives_its_deleted_segment(segments, use_sendfile):
    answered = threading.Event()

    def answer(callout):
        answered.set()
        return [segments.range(0, WHOLE)]

    with FetchServer(answer, use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(fetch(1))
        assert answered.wait(10)
        head = client.receive_exactly(4)
        segments.close()
        segments.directory.file(0, "log").unlink()
        assert segments.descriptors_open() == 1
        frame = client.receive_exactly(struct.unpack(">i", head)[0])
        assert records_in(frame) == [segments.bytes]
        server.until(lambda: segments.descriptors_open() == 0)


def test_queued_range_outlives_a_truncation_and_the_next_leaders_records(tmp_path, use_sendfile):
    log = open_log(tmp_path / "t-0")
    for _ in SIZES:
        log.append_as_leader(batch(value=os.urandom(900_000)), now_ms=NOW_MS)
    expected = b"".join(one.read(0, one.size_bytes) for one in log.native.segments)
    answered = threading.Event()

    def answer(callout):
        answered.set()
        return [log.read(0, LARGEST, NEVER, True)]

    with FetchServer(answer, use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(fetch(1))
        assert answered.wait(10)
        head = client.receive_exactly(4)
        log.become_follower(1)
        assert log.truncate_to(1)
        log.become_leader(1, sole_replica=True)
        for _ in SIZES:
            log.append_as_leader(batch(value=os.urandom(900_000)), now_ms=NOW_MS)
        frame = client.receive_exactly(struct.unpack(">i", head)[0])
        assert records_in(frame) == [expected]
        server.until(lambda: len(open_at(log.directory / f"{0:020d}.log")) == 1)
    log.drop()


def five_times(segments, answered):
    def answer(callout):
        answered.set()
        return [segments.range(0, WHOLE) for _ in callout.asked]

    return answer


def test_pins_are_given_back_when_the_peer_leaves_in_the_middle(segments, use_sendfile):
    answered = threading.Event()
    with FetchServer(five_times(segments, answered), use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(fetch(1, 5))
        assert answered.wait(10)
        client.receive_exactly(1000)
        client.reset()
        server.until(lambda: server.reactor.stats().connections == 0)
        segments.close()
        server.until(lambda: segments.descriptors_open() == 0)


def test_pins_are_given_back_when_the_peer_has_gone(segments):
    def answer(callout):
        client.reset()
        return [segments.range(0, WHOLE)]

    with FetchServer(answer) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(fetch(1))
        server.until(lambda: server.reactor.stats().closed == 1)
        segments.close()
        server.until(lambda: segments.descriptors_open() == 0)


def test_pins_are_given_back_by_stop(segments, use_sendfile):
    answered = threading.Event()
    with FetchServer(five_times(segments, answered), use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(fetch(1, 5))
        assert answered.wait(10)
        server.stop()
        segments.close()
        assert segments.descriptors_open() == 0


def test_file_that_ends_early_closes_the_connection(segments, use_sendfile, caplog):
    answered = threading.Event()
    with FetchServer(five_times(segments, answered), use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(fetch(1, 5))
        assert answered.wait(10)
        client.receive_exactly(4)
        os.truncate(segments.directory.file(0, "log"), 100)
        assert client.is_closed_by_server()
        server.until(lambda: "bytes shorter than the response" in caplog.text)
    assert "a segment file is " in caplog.text


@pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL])
def test_disk_error_closes_the_connection_and_no_other(segments, use_sendfile, error, caplog):
    asked = []
    call = "sendfile" if use_sendfile else "pread"

    def answer(callout):
        asked.append(1)
        found = segments.range(0, WHOLE)
        if len(asked) == 1:
            inject([Fault(call, errno=error, times=1)])
        return [found]

    with FetchServer(answer, use_sendfile=use_sendfile) as server:
        client = server.connect()
        client.sendall(fetch(1))
        assert client.is_closed_by_server()
        server.until(lambda: f"sending failed: {os.strerror(error)}" in caplog.text)
        other = server.connect()
        other.sendall(fetch(2))
        assert records_in(other.answer()) == [segments.bytes]


@pytest.mark.parametrize(
    "fault",
    [{"short_bytes": 1000, "times": 200}, {"errno": errno.EINTR, "times": 5}, {"delay_us": 2000}],
    ids=str,
)
def test_short_and_interrupted_reads_go_on(segments, use_sendfile, fault):
    def answer(callout):
        found = segments.range(0, WHOLE)
        inject([Fault("sendfile" if use_sendfile else "pread", **fault)])
        return [found]

    with FetchServer(answer, use_sendfile=use_sendfile) as server:
        client = server.connect()
        client.sendall(fetch(1))
        assert records_in(client.answer()) == [segments.bytes]
