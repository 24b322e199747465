"""When the record of a clean shutdown counts, and when it is void."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plog.storage.checkpoints import LOG_START_OFFSET_FILE
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import CLEAN_SHUTDOWN_FILE
from plog.storage.shutdown_record import SHUTDOWN_RECORD_FILE, ShutdownRecord

from .log_managers import A0, Start, with_one_log
from .storage_logs import Crash, FaultyFilesystem


@pytest.fixture
def stopped(start: Start, dirs: list[Path]) -> Path:
    """Return a directory after a clean stop, of a log that begins at offset 5."""
    manager, log = with_one_log(start, 10, log_dirs=[dirs[0]])
    log.flush()
    log.delete_records_before(5)
    manager.shutdown()
    return dirs[0]


def test_record_goes_with_the_marker_at_a_start(start: Start, stopped: Path) -> None:
    assert (stopped / SHUTDOWN_RECORD_FILE).exists()
    start([stopped])
    assert not (stopped / SHUTDOWN_RECORD_FILE).exists()
    assert not (stopped / CLEAN_SHUTDOWN_FILE).exists()


def test_lost_log_start_offset_is_put_back(start: Start, stopped: Path) -> None:
    (stopped / LOG_START_OFFSET_FILE).unlink()
    log = start([stopped]).get(A0)
    assert log is not None
    assert log.log_start_offset == 5
    assert f"{A0.topic} 0 5" in (stopped / LOG_START_OFFSET_FILE).read_text()


def test_record_of_another_shutdown_is_void(start: Start, stopped: Path) -> None:
    """Kafka or an older release has served the directory: its checkpoints count."""
    marker = stopped / CLEAN_SHUTDOWN_FILE
    at = marker.stat().st_mtime_ns + 5_000_000
    os.utime(marker, ns=(at, at))
    (stopped / LOG_START_OFFSET_FILE).write_text(f"0\n1\n{A0.topic} 0 7\n")
    log = start([stopped]).get(A0)
    assert log is not None
    assert log.log_start_offset == 7


def test_record_without_its_marker_is_void(start: Start, stopped: Path) -> None:
    """A start has removed the marker and was killed."""
    (stopped / CLEAN_SHUTDOWN_FILE).unlink()
    (stopped / LOG_START_OFFSET_FILE).write_text(f"0\n1\n{A0.topic} 0 7\n")
    log = start([stopped]).get(A0)
    assert log is not None
    assert log.log_start_offset == 7
    assert not (stopped / SHUTDOWN_RECORD_FILE).exists()


def test_kill_during_the_write_leaves_no_record_or_a_whole_one(stopped: Path) -> None:
    marker, record = stopped / CLEAN_SHUTDOWN_FILE, stopped / SHUTDOWN_RECORD_FILE
    outcomes = []
    for step in range(100):
        record.unlink(missing_ok=True)
        try:
            ShutdownRecord(FaultyFilesystem(step, crash=True), stopped).store(
                marker, [(A0, stopped / str(A0))]
            )
        except Crash:
            pass
        else:
            break
        read = ShutdownRecord(Filesystem(), stopped)
        read.take(marker)
        outcomes.append(read.of(A0) is not None)
    assert sorted(outcomes) == outcomes, "a record was there, and is not any more"
    assert set(outcomes) == {False, True}
