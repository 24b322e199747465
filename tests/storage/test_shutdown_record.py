"""When the record of a clean shutdown counts, and when it is void."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from plog.storage.checkpoints import LOG_START_OFFSET_FILE
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import DAMAGED_PARTITIONS_FILE
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


@pytest.mark.parametrize("has_record", [True, False])
def test_start_without_a_record_says_how_much_it_reads(
    start: Start, stopped: Path, has_record: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not has_record:
        (stopped / SHUTDOWN_RECORD_FILE).unlink()
    with caplog.at_level("INFO"):
        assert start([stopped]).get(A0) is not None
    announced = [line for line in caplog.messages if "GB of batches" in line]
    due = f"log directory {stopped} has no {SHUTDOWN_RECORD_FILE}: checking the indexes of 1 part"
    assert [line[: len(due)] for line in announced] == ([] if has_record else [due])


def test_record_without_its_marker_is_void(start: Start, stopped: Path) -> None:
    """A start has removed the marker and was killed."""
    (stopped / CLEAN_SHUTDOWN_FILE).unlink()
    (stopped / LOG_START_OFFSET_FILE).write_text(f"0\n1\n{A0.topic} 0 7\n")
    log = start([stopped]).get(A0)
    assert log is not None
    assert log.log_start_offset == 7
    assert not (stopped / SHUTDOWN_RECORD_FILE).exists()


class NoNotes(Filesystem):
    """Has no descriptor to write `damaged-partitions`, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def open_file(self, path: Path, **options: bool) -> int:
        if path.name == f"{DAMAGED_PARTITIONS_FILE}.tmp" and self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return super().open_file(path, **options)


@pytest.mark.parametrize("refused", [0, 1, 2], ids="{} notes refused".format)
@pytest.mark.parametrize("loss", ["nothing", "deleted", "emptied", "flipped"])
def test_damage_is_found_again_after_a_clean_stop(
    start: Start, dirs: list[Path], refused: int, loss: str
) -> None:
    """Whether the note of the damage was refused, or is lost, or both."""
    manager, log = with_one_log(start, 10, fs=NoNotes(refused), log_dirs=[dirs[0]])
    log.flush()
    file = min(log.directory.glob("*.log"))
    data = bytearray(file.read_bytes())
    data[70] ^= 1
    file.write_bytes(data)
    manager.on_damage(log, "found by the scrub")
    manager.scheduler.run_due()
    if refused == 1:
        manager.checkpoints.store_recovery_points()
    noted = dirs[0] / DAMAGED_PARTITIONS_FILE
    assert noted.exists() == (refused < 2)
    manager.shutdown()
    assert (dirs[0] / CLEAN_SHUTDOWN_FILE).exists() == (refused < 2)
    if noted.exists():
        match loss:
            case "deleted":
                noted.unlink()
            case "emptied":
                os.truncate(noted, 0)
            case "flipped":
                noted.write_bytes(noted.read_bytes().replace(b"a 0", b"b 0"))
    again = start([dirs[0]])
    assert again.get(A0) is None
    assert "CRC" in again.offline[A0]


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
