from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog._native.files import NO_RESOURCES
from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.full_log_dirs import LOOK_MS
from plog.storage.late_recovery import MOST_WAIT_MS, LateRecovery
from plog.storage.live_log_dir import LiveLogDir
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition

from .log_managers import A0, B0, ID_A, ID_B, SETTINGS, Start, abandon, fill, lead


def test_foreign_directories_and_files_are_left_alone(start: Start, dirs: list[Path]) -> None:
    for path in dirs:
        path.mkdir()
        (path / "lost+found").mkdir()
        (path / "notes.txt").write_text("mine")
    manager = start()
    manager.create(A0, ID_A, SETTINGS)
    manager.shutdown()
    assert all((path / "notes.txt").read_text() == "mine" for path in dirs)


def test_partition_in_two_directories_is_offline(start: Start, dirs: list[Path]) -> None:
    manager = start()
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 5)
    manager.create(B0, ID_B, SETTINGS)
    manager.shutdown()
    shutil.copytree(dirs[0] / "a-0", dirs[1] / "a-0")
    again = start()
    assert f"{dirs[0]}/a-0 and in {dirs[1]}/a-0" in again.offline[A0]
    assert again.get(B0) is not None


@pytest.mark.parametrize("number", sorted(NO_RESOURCES))
def test_start_that_cannot_look_into_one_of_two_directories_takes_neither(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    manager = start()
    made = lead(manager.create(A0, ID_A, SETTINGS))
    fill(made, 5)
    end = made.log_end_offset
    manager.shutdown()
    (dirs[1] / "a-0").mkdir()

    def lacks(*_: object) -> bool:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(LiveLogDir, "is_unused", lacks)
        with pytest.raises(KafkaStorageError, match=os.strerror(number)):
            start()
    again = start()
    assert not again.offline
    assert (log := again.get(A0)) is not None
    assert log.log_end_offset == end > 0


@pytest.fixture
def unclean(start: Start, dirs: list[Path]) -> Path:
    """A log directory with A0, whose index is to be built anew, and B0, as a kill leaves them."""
    manager = start([dirs[0]])
    for tp in (A0, B0):
        fill(lead(manager.create(tp, ID_A, SETTINGS)), 20)
    manager.shutdown()
    for name in (".kafka_cleanshutdown", "boot-id"):
        (dirs[0] / name).unlink()
    for path in (dirs[0] / "a-0").glob("*.index"):
        path.unlink()
    return dirs[0]


def fill_disk(log_dir: Path) -> None:
    """Let recovery find no space for A0; what asks for free space finds some all the same."""
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(log_dir / "a-0"))])


def look_again(manager: LogManager, clock: ManualClock, after_ms: int = LOOK_MS) -> None:
    """Let time pass, and what is begun then come to its end."""
    clock.advance(after_ms)
    manager.scheduler.run_due()
    manager.late_recovery.wait()


def test_disk_full_in_recovery_costs_that_partition_alone(start: Start, unclean: Path) -> None:
    fill_disk(unclean)
    again = start([unclean])
    faults.inject([])
    assert again.live_log_dirs == [unclean]
    assert "no space" in again.offline[A0]
    assert again.get(B0).log_end_offset == 200
    again.shutdown()
    # It has not been recovered: the next start must not take it for cleanly closed.
    assert not (unclean / ".kafka_cleanshutdown").exists()
    assert start([unclean]).get(A0).log_end_offset == 200


def test_partition_without_space_to_recover_it_is_there_once_there_is_some(
    start: Start, unclean: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fill_disk(unclean)
    manager = start([unclean])
    recovered: list[TopicPartition] = []
    manager.on_late_recovery(recovered.extend)
    for _ in range(5):
        look_again(manager, clock)
        assert manager.get(A0) is None
        assert not (unclean / "boot-id").exists()
    assert caplog.text.count("a-0 is offline: no space to recover it") == 1
    faults.inject([])
    look_again(manager, clock, MOST_WAIT_MS)
    look_again(manager, clock)
    assert manager.get(A0).log_end_offset == 200
    assert A0 not in manager.offline
    assert recovered == [A0]
    assert "a-0 recovered and online" in caplog.text
    # It is one like the others, for a clean shutdown too.
    assert (unclean / "boot-id").exists()
    fill(lead(manager.get(A0)), 1, start=20)
    manager.shutdown()
    assert (unclean / ".kafka_cleanshutdown").exists()
    assert start([unclean]).get(A0).log_end_offset == 210


def test_full_disk_is_not_asked_for_a_recovery(
    start: Start, unclean: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    monkeypatch.setattr(LiveLogDir, "has_space", lambda _: False)
    look_again(manager, clock, MOST_WAIT_MS)
    assert manager.get(A0) is None
    monkeypatch.undo()
    look_again(manager, clock)
    assert manager.get(A0) is not None


def test_recovery_that_goes_on_failing_is_tried_less_often(
    start: Start, unclean: Path, clock: ManualClock
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    for _ in range(10):
        look_again(manager, clock, MOST_WAIT_MS)
    faults.inject([])
    look_again(manager, clock)
    assert manager.get(A0) is None
    look_again(manager, clock, MOST_WAIT_MS)
    assert manager.get(A0) is not None


def test_partition_without_space_to_recover_it_is_found_damaged_later(
    start: Start, unclean: Path, clock: ManualClock
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    segment = sorted((unclean / "a-0").glob("*.log"))[0]
    segment.write_bytes(bytes(segment.stat().st_size))
    look_again(manager, clock)
    assert manager.get(A0) is None
    assert "no space" not in manager.offline[A0]
    reason = manager.offline[A0]
    look_again(manager, clock, MOST_WAIT_MS)
    assert manager.offline[A0] == reason
    manager.shutdown()
    assert A0 in start([unclean]).offline


@pytest.mark.parametrize("when", ["before", "while"])
def test_partition_deleted_before_it_was_recovered_is_gone(
    start: Start, unclean: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    begun, load = threading.Event(), LiveLogDir.load

    def slow_load(self, found, *args, **options):
        begun.set()
        time.sleep(0.3)
        assert found.directory.is_dir()  # as long as it is recovered
        return load(self, found, *args, **options)

    monkeypatch.setattr(LiveLogDir, "load", slow_load)
    if when == "while":
        clock.advance(LOOK_MS)
        manager.scheduler.run_due()
        assert begun.wait(10)
    manager.delete(A0)
    assert not (unclean / "a-0").exists()
    assert A0 not in manager.offline
    look_again(manager, clock, MOST_WAIT_MS)
    assert manager.get(A0) is None
    assert manager.create(A0, ID_B, SETTINGS).log_end_offset == 0
    assert manager.live_log_dirs == [unclean]
    # Nothing is left that had to be recovered.
    manager.shutdown()
    assert (unclean / ".kafka_cleanshutdown").exists()


def test_end_of_recovery_that_two_threads_see_at_once_is_written_down_once(
    start: Start, unclean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion ends it as the thread at work does; beside each other they fail the directory."""
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    (live,) = manager.dirs.values()
    both, remember_boot, written = threading.Barrier(2), LiveLogDir.remember_boot, []

    def remember_together(self: LiveLogDir) -> None:
        written.append(self)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        remember_boot(self)

    monkeypatch.setattr(LiveLogDir, "remember_boot", remember_together)
    late = manager.late_recovery
    late._waiting.clear()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(late._tell_if_done, [live, live]))
    assert written == [live]
    assert not live.unrecovered
    manager.shutdown()


def test_shutdown_waits_for_a_late_recovery(
    start: Start, unclean: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    load, begun = LiveLogDir.load, threading.Event()

    def slow_load(self, *args, **options):
        begun.set()
        time.sleep(0.3)
        return load(self, *args, **options)

    monkeypatch.setattr(LiveLogDir, "load", slow_load)
    clock.advance(LOOK_MS)
    manager.scheduler.run_due()
    assert begun.wait(60)
    manager.shutdown()
    assert (unclean / ".kafka_cleanshutdown").exists()
    assert start([unclean]).get(A0).log_end_offset == 200


def test_late_recovery_that_a_shutdown_forestalls_is_left_to_the_next_start(
    start: Start, unclean: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    recover, may_begin = LateRecovery._recover, threading.Event()

    def late(self: LateRecovery, live: LiveLogDir) -> None:
        assert may_begin.wait(60)
        recover(self, live)

    monkeypatch.setattr(LateRecovery, "_recover", late)
    clock.advance(LOOK_MS)
    manager.scheduler.run_due()
    with manager.late_recovery._lock:
        manager.late_recovery._stopped = True  # as `stop` does first
    may_begin.set()
    manager.shutdown()
    assert not (unclean / ".kafka_cleanshutdown").exists()
    again = start([unclean])
    assert not again.offline
    assert again.get(A0).log_end_offset == 200


def test_log_directory_that_fails_takes_what_awaits_space(
    start: Start, unclean: Path, clock: ManualClock
) -> None:
    fill_disk(unclean)
    manager = start([unclean])
    faults.inject([])
    manager.fail_log_dir(unclean, OSError(errno.EIO, "broken"))
    look_again(manager, clock, MOST_WAIT_MS)
    assert manager.get(A0) is None
    assert A0 in manager.offline


def test_directory_that_fails_while_it_is_loaded_is_one_line_per_topic(
    start: Start,
    dirs: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = start([dirs[0]])
    for n in range(8):
        manager.create(TopicPartition("a", n), ID_A, SETTINGS)
    manager.shutdown()

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(LiveLogDir, "load", fails)
    with caplog.at_level(logging.INFO):
        again = start(dirs)
    assert len(again.offline) == 8
    lines = [one.getMessage() for one in caplog.records if "offline" in one.getMessage()]
    first = f"is offline: log directory {dirs[0]} is offline: [Errno 5] broken"
    assert [line.partition(" ")[2] for line in lines if line.startswith("a-")] == [first]
    assert f"7 partitions of a are offline: log directory {dirs[0]} is offline" in lines


@pytest.mark.parametrize("threads", [1, 4])
def test_unexpected_error_while_loading_ends_the_start(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    manager = start([dirs[0]])
    for n in range(8):
        manager.create(TopicPartition("a", n), ID_A, SETTINGS)
    manager.shutdown()
    load = LiveLogDir.load

    def fails(self, found, *args, **options):
        if found.topic_partition.partition == 5:
            raise ZeroDivisionError("unexpected")
        return load(self, found, *args, **options)

    monkeypatch.setattr(LiveLogDir, "load", fails)
    with pytest.raises(KafkaStorageError, match=r"a-5 cannot be loaded: ZeroDivisionError"):
        start([dirs[0]], num_recovery_threads_per_data_dir=threads)
    monkeypatch.undo()
    assert len(start([dirs[0]]).logs()) == 8


def test_many_logs_load_in_threads(start: Start, dirs: list[Path]) -> None:
    manager = start()
    wanted = {}
    for n in range(60):
        tp = TopicPartition("many", n)
        log = lead(manager.create(tp, ID_A, SETTINGS))
        fill(log, n % 7)
        wanted[tp] = log.log_end_offset
    abandon(manager)
    again = start(num_recovery_threads_per_data_dir=4)
    assert {tp: again.get(tp).log_end_offset for tp in wanted} == wanted
