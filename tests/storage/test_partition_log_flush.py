"""The durable end of one partition's log: what is synced, in which order, how it fails."""

from __future__ import annotations

import errno
import os
import resource
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog._native.partition_log import APPENDED, NOT_WRITABLE
from plog.errors import KafkaStorageError
from tests.descriptors import open_at

from .partition_logs import Directory, crc32c, make_batch

KEY = bytes(range(20))


@pytest.fixture(autouse=True)
def real_calls() -> Iterator[None]:
    yield
    faults.inject([])
    faults.record_durability("")


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "t-0")


def slot_of(path: Path, position: int) -> tuple[bytes, int]:
    with path.open("rb") as slots:
        slots.seek(position)
        data = slots.read(32)
    key, end, crc = struct.unpack(">20sqI", data)
    assert crc == crc32c(data[:28])
    return key, end


def test_flush_makes_all_appended_durable(directory: Directory) -> None:
    log = directory.log()
    assert log.flush() == 0
    log.append(make_batch(3), 0)
    assert (log.durable_end, log.high_watermark) == (0, 3)
    assert log.flush() == log.durable_end == 3


def test_flush_syncs_in_the_order_of_the_log(directory: Directory, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    log = directory.log()
    faults.record_durability(str(journal))

    def synced() -> list[str]:
        lines = [line.split() for line in journal.read_text().splitlines()]
        journal.write_text("")
        return [
            "directory" if line[0] == "dir" else f"{Path(line[-1]).name} {line[3]}"
            for line in lines
        ]

    name = "{:020d}.log"
    log.append(make_batch(1, 100), 0)
    log.flush()
    assert synced() == ["directory", name.format(0) + " 100"]
    log.append(make_batch(1, 100), 0)
    log.flush()
    assert synced() == [name.format(0) + " 200"]
    log.flush()
    assert synced() == []  # nothing new
    log.append(make_batch(1, 100), 0)
    directory.roll(log)  # at 3
    log.append(make_batch(1, 100), 0)
    directory.roll(log)  # at 4
    log.append(make_batch(1, 100), 0)
    log.flush()
    assert synced() == [
        name.format(0) + " 300",
        "directory",
        name.format(3) + " 100",
        name.format(4) + " 100",
    ]
    directory.roll(log)  # at 5, empty
    log.flush()
    assert synced() == []
    log.append(make_batch(1, 100), 0)
    log.flush()
    assert synced() == ["directory", name.format(5) + " 100"]


@pytest.mark.parametrize("synced", [0, 1, 2])
def test_failed_sync_leaves_a_durable_prefix(directory: Directory, synced: int) -> None:
    log = directory.log()
    for _ in range(3):
        log.append(make_batch(2, 100), 0)
        directory.roll(log)
    faults.inject([Fault("fdatasync", errno=errno.EIO, after=synced, times=1)])
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    assert log.durable_end == synced * 2
    # Final: the pages that were not written may be gone, whatever a second sync says.
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    assert log.append(make_batch(), 0)[::5] == (NOT_WRITABLE, errno.EIO)
    with pytest.raises(KafkaStorageError):
        log.read(0, 1000, 6, True)


def test_failed_directory_sync_is_final_too(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(2, 100), 0)
    log.flush()
    directory.roll(log)
    log.append(make_batch(2, 100), 0)
    faults.inject([Fault("fsync", errno=errno.EIO, times=1)])
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    assert log.durable_end == 2
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()


def test_partition_takes_three_descriptors(directory: Directory) -> None:
    log = directory.log()
    active = [f"{0:020d}.{kind}" for kind in ("index", "log", "timeindex")]
    assert open_at(directory.path) == active
    log.append(make_batch(2, 100), 0)
    log.flush()
    assert open_at(directory.path) == active
    directory.roll(log)
    log.append(make_batch(2, 100), 0)
    log.flush()
    assert len(open_at(directory.path)) == 6
    faults.inject([Fault("fsync", errno=errno.EIO, times=1)])
    directory.roll(log)
    log.append(make_batch(2, 100), 0)
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    assert len(open_at(directory.path)) == 9
    log.close()
    del log
    assert open_at(directory.path) == []


@pytest.mark.parametrize("call", ["flush", "sync_names"])
def test_directory_that_cannot_be_opened_is_as_one_not_synced(
    directory: Directory, call: str
) -> None:
    log = directory.log()
    log.append(make_batch(2, 100), 0)
    faults.inject(
        [
            Fault("open_directory", errno=errno.EIO, path_prefix=str(directory.path / "elsewhere")),
            Fault("open_directory", errno=errno.EINTR, times=2),
        ]
    )
    assert log.flush() == 2
    directory.roll(log)
    log.append(make_batch(2, 100), 0)
    faults.inject([Fault("open_directory", errno=errno.EIO, path_prefix=str(directory.path))])
    with pytest.raises(OSError, match="Input/output error"):
        getattr(log, call)()
    assert log.durable_end == 2
    faults.inject([])
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    assert log.durable_end == 2
    assert log.append(make_batch(), 0)[::5] == (NOT_WRITABLE, errno.EIO)


@pytest.mark.parametrize("call", ["flush", "sync_names"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_want_of_descriptors_fails_a_flush_and_not_the_log(
    directory: Directory, error: int, call: str
) -> None:
    log = directory.log()
    log.append(make_batch(2, 100), 0)
    directory.roll(log)
    log.append(make_batch(2, 100), 0)
    faults.inject([Fault("open_directory", errno=error, times=2)])
    for _ in range(2):
        with pytest.raises(OSError, match="Too many open files"):
            getattr(log, call)()
        assert log.durable_end == 0
    assert log.append(make_batch(2, 100), 0).status == APPENDED
    assert log.flush() == log.durable_end == 6


def test_no_descriptor_left_is_no_durable_end(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(2, 100), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.durable_end == 0
    assert log.flush() == 2


def test_directory_may_be_renamed_once_its_names_are_synced(
    directory: Directory, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    log = directory.log()
    log.append(make_batch(2, 100), 0)
    faults.record_durability(str(journal))
    log.sync_names()
    log.sync_names()  # nothing new
    assert journal.read_text() == f"dir {directory.path}\n"
    directory.path.rename(tmp_path / "t-0-delete")
    assert log.flush() == 2
    log.append(make_batch(2, 100), 0)
    assert log.flush() == 4
    log.close()
    log.sync_names()  # nothing left to sync


def test_directory_that_is_not_where_it_was_fails_the_flush(
    directory: Directory, tmp_path: Path
) -> None:
    log = directory.log()
    log.append(make_batch(2, 100), 0)
    directory.path.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        log.flush()
    assert log.durable_end == 0


def test_slot_says_the_durable_end(directory: Directory, tmp_path: Path) -> None:
    path = tmp_path / "durable-ends"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        log = directory.log()
        log.append(make_batch(3), 0)
        log.set_durable_slot(fd, 64, KEY)
        assert slot_of(path, 64) == (KEY, 0)
        log.flush()
        assert slot_of(path, 64) == (KEY, 3)
        log.append(make_batch(4), 0)
        assert slot_of(path, 64) == (KEY, 3)
        log.flush()
        assert slot_of(path, 64) == (KEY, 7)
        log.truncate([directory.segment(0, size_bytes=61, next_offset=3)], 3)
        assert slot_of(path, 64) == (KEY, 3)
        log.set_durable_slot(-1, 0, b"")
        log.append(make_batch(4), 0)
        log.flush()
        assert slot_of(path, 64) == (KEY, 3)
        assert path.read_bytes()[:64] == bytes(64)
        with pytest.raises(ValueError, match="key of 19 bytes"):
            log.set_durable_slot(fd, 64, KEY[:19])
    finally:
        os.close(fd)


def test_end_is_not_told_before_its_slot_is_written(directory: Directory, tmp_path: Path) -> None:
    path = tmp_path / "durable-ends"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        log = directory.log()
        log.set_durable_slot(fd, 0, KEY)
        log.append(make_batch(3), 0)
        faults.inject([Fault("pwritev", errno=errno.EIO, fd=fd, times=1)])
        with pytest.raises(OSError, match="Input/output error"):
            log.flush()
        assert (log.durable_end, slot_of(path, 0)) == (0, (KEY, 0))
        assert log.flush() == 3
        assert slot_of(path, 0) == (KEY, 3)
        faults.inject([Fault("fdatasync", errno=errno.EIO, fd=fd, times=1)])
        with pytest.raises(OSError, match="Input/output error"):
            log.truncate([directory.segment(0)], 0)
        assert log.log_end_offset == log.durable_end == 3
    finally:
        os.close(fd)


def longest_pause(call: Callable[[], None], thread: threading.Thread) -> float:
    """Repeat `call` while the thread runs, and return the longest time that one took, in s."""
    longest = 0.0
    thread.start()
    while thread.is_alive():
        started = time.monotonic()
        call()
        longest = max(longest, time.monotonic() - started)
    thread.join()
    return longest


def test_slow_sync_holds_up_neither_appends_nor_reads(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(1, 100), 0)
    faults.inject([Fault("fdatasync", delay_us=1_000_000, times=1)])
    ends: list[int] = []

    def use() -> None:
        assert log.append(make_batch(1, 100), 0).status == APPENDED
        assert log.read(0, 100, log.high_watermark, True) is not None

    assert longest_pause(use, threading.Thread(target=lambda: ends.append(log.flush()))) < 0.7
    # What came while the sync ran is not promised by it.
    assert log.durable_end == ends[0] < log.log_end_offset


def test_slow_write_does_not_hold_up_reads(directory: Directory) -> None:
    log = directory.log()
    log.append(make_batch(1, 100), 0)
    faults.inject([Fault("pwritev", delay_us=1_000_000, times=1)])

    def use() -> None:
        assert log.state().log_end_offset in (1, 2)
        assert log.read(0, 100, 1, True) is not None
        assert log.flush() >= 1

    appender = threading.Thread(target=lambda: log.append(make_batch(1, 100), 0))
    assert longest_pause(use, appender) < 0.7
    assert log.log_end_offset == 2


def test_indexes_are_synced_when_asked(directory: Directory, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    log = directory.log()
    faults.record_durability(str(journal))
    log.segments[0].sync_indexes()
    names = [Path(line.split()[-1]).suffix for line in journal.read_text().splitlines()]
    assert names == [".index", ".timeindex"]
    faults.inject([Fault("fdatasync", errno=errno.EIO, times=1)])
    with pytest.raises(OSError, match="Input/output error"):
        log.segments[0].sync_indexes()
