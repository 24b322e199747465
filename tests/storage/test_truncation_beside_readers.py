"""Truncations while readers read, and while responses are on their way.

A reader sees what the log held at one moment, below the end of that moment: no zeroes, no records
of the next leader at positions of before, and no records of open transactions.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog.storage.log import Log
from plog.storage.producer_state import Marker
from plog.storage.segment_verdict import Known

from .storage_logs import NEVER, NOW_MS, FaultyFilesystem, append_verified, batch, open_log

BATCHES = 8
VALUE_BYTES = 3000
CUT = 5
PRODUCER = 7


def append(log: Log, count: int, value: bytes) -> None:
    for _ in range(count):
        log.append_as_leader(batch(value=value * VALUE_BYTES), now_ms=NOW_MS)


def part_from_next_leader(log: Log, offset: int, *, epoch: int) -> None:
    """Truncate as a follower, and take the records of another leader."""
    log.become_follower(epoch)
    assert log.truncate_to(offset)
    log.become_leader(epoch, sole_replica=True)
    append(log, BATCHES, b"n")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path / "t-0")
    append(log, BATCHES, b"o")
    yield log
    log.drop()


@pytest.mark.parametrize("offset", [0, CUT, BATCHES - 1])
def test_range_keeps_its_bytes(log: Log, offset: int) -> None:
    found = log.read(0, 1 << 20, NEVER, True)
    assert found is not None
    before = found.read()
    assert len(scan(before)) == BATCHES
    part_from_next_leader(log, offset, epoch=1)
    assert found.read() == before


@pytest.mark.parametrize("offset", [0, 100])
def test_range_keeps_its_bytes_when_the_log_restarts(log: Log, offset: int) -> None:
    found = log.read(0, 1 << 20, NEVER, True)
    assert found is not None
    before = found.read()
    log.become_follower(1)
    log.restart_at(offset)
    log.become_leader(1, sole_replica=True)
    append(log, BATCHES, b"n")
    assert found.read() == before


def test_bytes_in_socket_buffers_stay(log: Log) -> None:
    """The broker has sent them, and has let go of the file; the socket still has its pages."""
    (segment,) = log.native.segments
    before = segment.read(0, segment.size_bytes)
    del segment
    receiver, sender = _tcp_pair()
    with receiver, sender, open(log.directory / f"{0:020d}.log", "rb") as file:
        assert os.sendfile(sender.fileno(), file.fileno(), 0, len(before)) == len(before)
        file.close()
        part_from_next_leader(log, CUT, epoch=1)
        assert receiver.recv(len(before), socket.MSG_WAITALL) == before


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = socket.create_connection(server.getsockname())
        sender, _ = server.accept()
    receiver.settimeout(30)
    return receiver, sender


def test_log_without_readers_is_cut_in_place(log: Log) -> None:
    """The usual case after a restart; a copy would need time and space."""
    log.close()
    follower = open_log(log.directory, leader=False)
    inode = (log.directory / f"{0:020d}.log").stat().st_ino
    assert follower.truncate_to(CUT)
    found = (log.directory / f"{0:020d}.log").stat()
    assert (found.st_ino, found.st_size) == (inode, follower.size_bytes)
    follower.drop()


def test_nothing_is_copied_at_a_segments_end(log: Log) -> None:
    inode = (log.directory / f"{0:020d}.log").stat().st_ino
    log.roll()
    append(log, 1, b"o")
    log.become_follower(1)
    assert log.truncate_to(BATCHES)
    assert (log.directory / f"{0:020d}.log").stat().st_ino == inode


class WatchedFilesystem(FaultyFilesystem):
    """Looks at a log before each operation that changes a file."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Log | None = None
        self.seen: set[tuple[int, int, bytes]] = set()

    def before(self, name: str) -> None:
        if self.log is not None:
            self.seen.add(view(self.log))


def view(log: Log) -> tuple[int, int, bytes]:
    """Return the log end, the last stable offset, and what a committed read finds."""
    state = log.native.state()
    found = log.read(state.log_start_offset, 1 << 20, state.last_stable_offset, True)
    return state.log_end_offset, state.last_stable_offset, found.read() if found else b""


def abort_transaction(log: Log) -> None:
    data = batch(producer_id=PRODUCER, epoch=0, sequence=0, transactional=True)
    append_verified(log, data)
    marker = Marker(abort=True, coordinator_epoch=0)
    log.transactions.append_marker(PRODUCER, 0, marker, now_ms=NOW_MS)


@pytest.mark.parametrize("has_led", [False, True], ids=["in place", "copied"])
def test_every_moment_of_a_truncation_is_before_or_after_it(tmp_path: Path, has_led: bool) -> None:
    """Above all no last stable offset past a transaction whose marker has been cut off."""
    fs = WatchedFilesystem()
    log = open_log(tmp_path / "t-0", fs=fs)
    append(log, 2, b"o")
    abort_transaction(log)
    log.close()
    log = open_log(tmp_path / "t-0", fs=fs, known=Known(clean_shutdown=True), leader=has_led)
    log.native.advance_high_watermark(4)
    log.become_follower(1)
    before = view(log)
    assert before[:2] == (4, 4)
    fs.log = log
    assert log.truncate_to(3)
    fs.log = None
    after = view(log)
    assert after[:2] == (3, 2)
    assert fs.seen == {before, after}
    log.drop()


def test_readers_in_a_loop_see_the_log_of_one_moment(log: Log) -> None:
    """Each range is read again when the log has been truncated and filled again."""
    stop = threading.Event()
    problems: list[str] = []
    read_again = [0, 0]

    def read_once(*, is_committed: bool) -> None:
        native = log.native
        truncations = native.truncations
        upper = native.last_stable_offset if is_committed else native.high_watermark
        found = native.read(0, 1 << 20, upper, True)
        if found is None:
            return
        data = found.read()
        if native.truncations == truncations:
            headers = scan(data)
            ended = {one.producer_id for one in headers if one.is_control}
            begun = {one.producer_id for one in headers if one.is_transactional}
            if is_committed and begun != ended:
                problems.append(f"undecided below {upper}: {headers}")
        while native.truncations < truncations + 2 and not stop.is_set():
            stop.wait(0.0001)
        if found.read() != data:
            problems.append("the bytes of a range have changed")
        read_again[is_committed] += 1

    def read(*, is_committed: bool) -> None:
        try:
            while not stop.is_set():
                read_once(is_committed=is_committed)
        except Exception as error:  # noqa: BLE001 - reported by the test
            problems.append(repr(error))

    readers = [
        threading.Thread(target=read, kwargs={"is_committed": is_committed})
        for is_committed in (False, True)
    ]
    for one in readers:
        one.start()
    epoch = 0
    try:
        while min(read_again) < 20 and not problems and epoch < 4000:
            end = log.log_end_offset
            abort_transaction(log)
            for offset in (end + 1, max(end - 1, 0)):  # the marker, then the transaction
                epoch += 1
                log.become_follower(epoch)
                assert log.truncate_to(offset)
                log.become_leader(epoch, sole_replica=True)
            append(log, 2, b"%d" % (epoch % 10))
            if log.log_end_offset > 20:
                log.become_follower(epoch)
                assert log.truncate_to(2)
                log.become_leader(epoch, sole_replica=True)
    finally:
        stop.set()
        for one in readers:
            one.join()
    assert problems == []
    assert min(read_again) >= 20
