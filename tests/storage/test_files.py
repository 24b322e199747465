"""The table of file and clock calls: what it does, and what the faults make of it."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import faults, files
from plog._native.faults import Fault
from tests.agreement.harness import fork


@pytest.fixture(autouse=True)
def real_calls() -> Iterator[None]:
    yield
    faults.inject([])
    faults.shift_clock(0)
    faults.record_durability("")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_written_bytes_are_read_back(fd: int) -> None:
    files.pwrite(fd, b"0123456789", 0)
    files.pwrite(fd, memoryview(b"abc"), 4)
    assert files.pread(fd, 100, 0) == b"0123abc789"
    assert files.pread(fd, 3, 5) == b"bc7"
    assert files.pread(fd, 3, 10) == b""


def test_truncation_cuts_and_extends(fd: int) -> None:
    files.pwrite(fd, b"0123456789", 0)
    files.ftruncate(fd, 4)
    files.ftruncate(fd, 6)
    assert files.pread(fd, 100, 0) == b"0123\0\0"


def test_bad_descriptor_is_an_os_error() -> None:
    for call in (
        lambda: files.pwrite(-1, b"x", 0),
        lambda: files.pread(-1, 1, 0),
        lambda: files.fdatasync(-1),
        lambda: files.fsync(-1),
        lambda: files.ftruncate(-1, 0),
    ):
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_negative_size_is_refused(fd: int) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        files.pread(fd, -1, 0)


@pytest.mark.parametrize("at_most", [1, 2, 3, 9])
def test_short_writes_and_reads_are_finished(fd: int, at_most: int) -> None:
    faults.inject([Fault("pwritev", short_bytes=at_most), Fault("pread", short_bytes=at_most)])
    files.pwrite(fd, b"0123456789", 2)
    assert files.pread(fd, 20, 0) == b"\0\x000123456789"


def test_interrupted_calls_are_made_again(fd: int) -> None:
    faults.inject(
        [Fault("pwritev", errno=errno.EINTR, times=3), Fault("pread", errno=errno.EINTR, times=3)]
    )
    files.pwrite(fd, b"abc", 0)
    assert files.pread(fd, 3, 0) == b"abc"


def test_write_of_nothing_fails_instead_of_hanging(fd: int) -> None:
    faults.inject([Fault("pwritev", short_bytes=0)])
    with pytest.raises(OSError, match="Input/output error"):
        files.pwrite(fd, b"abc", 0)


def test_full_disk_may_take_a_part(fd: int) -> None:
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, short_bytes=4)])
    with pytest.raises(OSError, match="No space left") as caught:
        files.pwrite(fd, b"0123456789", 0)
    assert caught.value.errno == errno.ENOSPC
    faults.inject([])
    assert files.pread(fd, 100, 0) == b"0123"


@pytest.mark.parametrize("call", ["fdatasync", "fsync", "ftruncate", "pread", "pwritev"])
def test_fault_fails_its_call_only(fd: int, call: str) -> None:
    made = {
        "fdatasync": lambda: files.fdatasync(fd),
        "fsync": lambda: files.fsync(fd),
        "ftruncate": lambda: files.ftruncate(fd, 3),
        "pread": lambda: files.pread(fd, 1, 0),
        "pwritev": lambda: files.pwrite(fd, b"x", 0),
    }
    faults.inject([Fault(call, errno=errno.EIO)])
    for name, make in made.items():
        if name == call:
            with pytest.raises(OSError, match="Input/output error"):
                make()
        else:
            make()


def test_fault_waits_and_ends_as_told(fd: int) -> None:
    faults.inject([Fault("fdatasync", errno=errno.EIO, after=2, times=1)])
    outcomes = []
    for _ in range(5):
        try:
            files.fdatasync(fd)
            outcomes.append("done")
        except OSError:
            outcomes.append("failed")
    assert outcomes == ["done", "done", "failed", "done", "done"]


def test_fault_finds_its_descriptor_or_path(tmp_path: Path, fd: int) -> None:
    below = tmp_path / "below"
    below.mkdir()
    other = os.open(below / "data", os.O_RDWR | os.O_CREAT)
    try:
        faults.inject([Fault("fsync", errno=errno.EIO, path_prefix=str(below))])
        files.fsync(fd)
        with pytest.raises(OSError, match="Input/output error"):
            files.fsync(other)
        faults.inject([Fault("fsync", errno=errno.EIO, fd=fd)])
        files.fsync(other)
        with pytest.raises(OSError, match="Input/output error"):
            files.fsync(fd)
    finally:
        os.close(other)


def test_first_matching_fault_acts(fd: int) -> None:
    faults.inject(
        [
            Fault("fsync", errno=errno.EIO, times=1),
            Fault("fsync", errno=errno.EDQUOT, times=1),
        ]
    )
    for expected in (errno.EIO, errno.EDQUOT):
        with pytest.raises(OSError, match=r".") as caught:
            files.fsync(fd)
        assert caught.value.errno == expected
    files.fsync(fd)


def test_delay_holds_the_call_up(fd: int) -> None:
    faults.inject([Fault("pread", delay_us=30_000, times=1)])
    started = time.monotonic()
    files.pread(fd, 1, 0)
    assert time.monotonic() - started >= 0.03


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fault("open"), "no call 'open'"),
        (lambda: Fault("pread", path_prefix="x" * 2000), "path prefix"),
        (lambda: faults.inject([Fault("pread")] * 65), "at most 64"),
    ],
)
def test_impossible_fault_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_clock_runs_ahead_by_its_shift() -> None:
    faults.shift_clock(3_600_000)
    assert 3_599_000 < files.now_ms() - time.time() * 1000 < 3_601_000
    faults.shift_clock(0)
    assert abs(files.now_ms() - time.time() * 1000) < 1000


def test_journal_says_what_was_synced(tmp_path: Path, fd: int) -> None:
    journal = tmp_path / "journal"
    faults.record_durability(str(journal))
    files.pwrite(fd, b"0123456789", 0)
    files.fdatasync(fd)
    files.pwrite(fd, b"0123456789", 10)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        files.fsync(directory)
    finally:
        os.close(directory)
    files.fsync(fd)
    faults.record_durability("")
    files.fsync(fd)
    status = os.stat(tmp_path / "data")
    name = f"{status.st_dev} {status.st_ino}"
    assert journal.read_text().splitlines() == [
        f"sync {name} 10 {tmp_path}/data",
        f"dir {tmp_path}",
        f"sync {name} 20 {tmp_path}/data",
    ]


def test_failed_or_unlinked_sync_is_not_in_the_journal(tmp_path: Path, fd: int) -> None:
    journal = tmp_path / "journal"
    faults.record_durability(str(journal))
    faults.inject([Fault("fdatasync", errno=errno.EIO, times=1)])
    with pytest.raises(OSError, match="Input/output error"):
        files.fdatasync(fd)
    (tmp_path / "data").unlink()
    files.fdatasync(fd)
    assert journal.read_text() == ""


def test_journal_survives_a_kill(tmp_path: Path, fd: int) -> None:
    journal = tmp_path / "journal"
    child = fork()
    if child == 0:
        faults.record_durability(str(journal))
        files.pwrite(fd, b"abc", 0)
        files.fdatasync(fd)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert journal.read_text().startswith("sync ")
    assert journal.read_text().endswith(f" 3 {tmp_path}/data\n")
