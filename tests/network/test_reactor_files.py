"""Answers with stretches of segment files in them: sendfile, pins, and what disks do wrong."""

import errno
import os
import threading

import pytest

from plog._native.faults import Fault, inject
from tests.descriptors import open_at
from tests.network.server import Server, request
from tests.storage.partition_logs import Directory

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


def test_ranges_and_bytes_arrive_in_order(segments, use_sendfile):
    def answer(connection, frame):
        return [
            b"head",
            segments.range(0, 200),
            segments.range(1, 70_000),
            b"middle",
            bytearray(b"more"),
            segments.range(0, WHOLE),
            b"tail",
        ]

    expected = b"".join(
        [
            b"head",
            segments.expected(0, 200),
            segments.expected(1, 70_000),
            b"middlemore",
            segments.expected(0, WHOLE),
            b"tail",
        ]
    )
    with Server(answer, use_sendfile=use_sendfile) as server:
        clients = [server.connect(), server.connect(receive_buffer=4096)]
        for client in clients:
            client.sendall(request(1) + request(2))
        for client in clients:
            assert client.answer() == expected
            assert client.answer() == expected


def test_answer_may_begin_and_end_with_a_range(segments, use_sendfile):
    with Server(lambda c, f: [segments.range(1, 70_000)], use_sendfile=use_sendfile) as server:
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == segments.expected(1, 70_000)


def test_queued_range_outlives_its_deleted_segment(segments, use_sendfile):
    answered = threading.Event()

    def answer(connection, frame):
        answered.set()
        return [segments.range(0, WHOLE)]

    with Server(answer, use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        assert answered.wait(10)
        client.receive_exactly(4)
        segments.close()
        segments.directory.file(0, "log").unlink()
        assert segments.descriptors_open() == 1
        assert client.receive_exactly(WHOLE) == segments.bytes
        server.until(lambda: segments.descriptors_open() == 0)


def test_pins_are_given_back_when_the_peer_leaves_in_the_middle(segments, use_sendfile):
    answered = threading.Event()

    def answer(connection, frame):
        answered.set()
        return [segments.range(0, WHOLE) for _ in range(5)]

    with Server(answer, use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        assert answered.wait(10)
        client.receive_exactly(1000)
        client.reset()
        server.until(lambda: server.reactor.stats().connections == 0)
        segments.close()
        server.until(lambda: segments.descriptors_open() == 0)


def test_pins_are_given_back_by_stop(segments, use_sendfile):
    answered = threading.Event()

    def answer(connection, frame):
        answered.set()
        return [segments.range(0, WHOLE) for _ in range(5)]

    with Server(answer, use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
        assert answered.wait(10)
        server.stop()
        segments.close()
        assert segments.descriptors_open() == 0


def test_answer_to_nobody_gives_its_pins_back(segments):
    with Server() as server:
        server.reactor.respond(12345, [b"x", segments.range(0, WHOLE)])
        client = server.connect()
        client.sendall(request(1))
        client.answer()
        segments.close()
        server.until(lambda: segments.descriptors_open() == 0)


def test_file_that_ends_early_closes_the_connection(segments, use_sendfile, caplog):
    answered = threading.Event()

    def answer(connection, frame):
        answered.set()
        return [segments.range(0, WHOLE) for _ in range(5)]

    with Server(answer, use_sendfile=use_sendfile) as server:
        client = server.connect(receive_buffer=4096)
        client.sendall(request(1))
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

    def answer(connection, frame):
        asked.append(1)
        if len(asked) > 1:
            return [bytes(frame)]
        found = segments.range(0, WHOLE)
        inject([Fault(call, errno=error, times=1)])
        return [found]

    with Server(answer, use_sendfile=use_sendfile) as server:
        client = server.connect()
        client.sendall(request(1))
        assert client.is_closed_by_server()
        server.until(lambda: f"sending failed: {os.strerror(error)}" in caplog.text)
        other = server.connect()
        other.sendall(request(2))
        assert other.answer() == request(2)[4:]


@pytest.mark.parametrize(
    "fault",
    [{"short_bytes": 1000, "times": 200}, {"errno": errno.EINTR, "times": 5}, {"delay_us": 2000}],
    ids=str,
)
def test_short_and_interrupted_reads_go_on(segments, use_sendfile, fault):
    def answer(connection, frame):
        found = segments.range(0, WHOLE)
        inject([Fault("sendfile" if use_sendfile else "pread", **fault)])
        return [found]

    with Server(answer, use_sendfile=use_sendfile) as server:
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == segments.bytes
