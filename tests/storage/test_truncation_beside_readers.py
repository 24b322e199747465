"""Truncations while readers read, and while responses are on their way.

A reader sees what the log held at one moment, below the end of that moment: no zeroes, no records
of the next leader at positions of before, and no records of open transactions.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog.storage.log import Log

from .storage_logs import NEVER, NOW_MS, batch, open_log

BATCHES = 8
VALUE_BYTES = 3000
CUT = 5


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


def test_log_that_nobody_has_read_is_cut_in_place(log: Log) -> None:
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
