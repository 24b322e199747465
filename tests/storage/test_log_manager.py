from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.batch import scan
from plog._native.faults import Fault
from plog._native.partition_log import DUPLICATE
from plog.errors import (
    InconsistentLogDirs,
    InconsistentTopicId,
    KafkaStorageError,
    UnknownTopicOrPartition,
)
from plog.runtime.bounded_lines import AT_ONCE
from plog.runtime.clock import ManualClock
from plog.storage.durable_ends import DurableEnds, SlotKey
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import DAMAGED_PARTITIONS_FILE, LiveLogDir
from plog.storage.log import Log
from plog.storage.log_dir import LogDir
from plog.storage.log_files import LogFiles
from plog.storage.log_manager import SAY_AGAIN_MS, LogManager, NewPartition
from plog.storage.shutdown_record import SHUTDOWN_RECORD_FILE
from plog.types import TopicPartition
from tests.bounded import MANY, counted, stand_still, told
from tests.descriptors import open_at
from tests.waiting import until

from .log_managers import (
    A0,
    A1,
    B0,
    ID_A,
    ID_B,
    SETTINGS,
    Start,
    abandon,
    committed,
    fill,
    lead,
    with_one_log,
)
from .storage_logs import NEVER, NOW_MS, Settings, batch, broker_settings, read_all

# -- start, stop, restart --------------------------------------------------------------------------


def test_partitions_go_where_there_are_fewest(start: Start, dirs: list[Path]) -> None:
    manager = start()
    for n in range(6):
        manager.create(TopicPartition("a", n), ID_A, SETTINGS)
    assert {path: len(list(path.glob("a-*"))) for path in dirs} == dict.fromkeys(dirs, 3)
    assert manager.live_log_dirs == dirs
    assert manager.offline_log_dirs == []


def test_clean_shutdown_is_found_by_the_next_start(start: Start, dirs: list[Path]) -> None:
    manager = start()
    for tp in (A0, A1, B0):
        fill(lead(manager.create(tp, ID_A, SETTINGS)), 20)
    lead(manager.get(A1)).delete_records_before(57)
    manager.shutdown(broker_epoch=9)
    for path in dirs:
        marker = path / ".kafka_cleanshutdown"
        assert marker.read_bytes() == b'{"version":0,"brokerEpoch":9}'
    again = start()
    assert not list(dirs[0].glob(".kafka_clean*"))
    for tp in (A0, A1, B0):
        log = again.get(tp)
        assert log is not None
        assert (log.log_end_offset, log.durable_end, log.high_watermark) == (200, 200, 200)
        assert log.topic_id == ID_A
        assert (
            lead(log)
            .append_as_leader(batch(10, producer_id=4, epoch=0, sequence=160), now_ms=NOW_MS)
            .status
            == DUPLICATE
        )
    assert again.get(A1).log_start_offset == 57
    assert again.get(TopicPartition("a", 5)) is None
    assert dict(again.offline) == {}


def test_killed_broker_loses_nothing_that_was_written(start: Start, dirs: list[Path]) -> None:
    manager = start()
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 20)
    assert committed(manager, manager.get(A0)) is None
    fill(manager.get(A0), 5, 20)
    data = read_all(manager.get(A0))
    abandon(manager)
    again = start()
    log = again.get(A0)
    assert read_all(log) == data
    # what was past the durable end is flushed by the start itself
    assert committed(again, log) is None
    assert log.durable_end == 250


def test_two_brokers_on_one_directory_are_refused(start: Start, dirs: list[Path]) -> None:
    start()
    with pytest.raises(InconsistentLogDirs, match="in use"):
        start([dirs[1]])


def test_directory_of_another_broker_or_cluster_is_refused(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    start().shutdown()
    with pytest.raises(InconsistentLogDirs, match="belongs to broker 0, not 5"):
        start(broker_id=5)
    other = LogManager(
        broker_settings(dirs), lambda topic: SETTINGS, cluster_id="other", clock=clock
    )
    with pytest.raises(InconsistentLogDirs, match="cluster cluster, not other"):
        other.start(background=False)
    start().shutdown()  # and the locks were given back


def test_directory_named_twice_is_refused(start: Start, dirs: list[Path]) -> None:
    dirs[0].mkdir()
    dirs[1].symlink_to(dirs[0])
    with pytest.raises(InconsistentLogDirs, match="twice"):
        start()


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_damaged_partition_is_offline_until_it_is_repaired(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    for tp in (A0, B0):
        fill(lead(manager.create(tp, ID_A, SETTINGS)), 20)
        assert committed(manager, manager.get(tp)) is None
    abandon(manager)
    path = dirs[0] / "a-0" / "00000000000000000180.log"
    flip(path, 100)
    harmed = path.read_bytes()
    for _ in range(3):
        again = start([dirs[0]])
        assert again.get(A0) is None
        assert again.get(B0).log_end_offset == 200
        assert list(again.offline) == [A0]
        assert str(path) in again.offline[A0]
        with pytest.raises(KafkaStorageError, match="offline"):
            again.create(A0, ID_A, SETTINGS)
        again.checkpoints.store_recovery_points()
        again.shutdown()  # clean: must not make the damage pass next time
        assert path.read_bytes() == harmed
    flip(path, 100)
    repaired = start([dirs[0]])
    assert repaired.get(A0).log_end_offset == 200
    assert dict(repaired.offline) == {}
    repaired.shutdown()
    assert start([dirs[0]]).get(A0).log_end_offset == 200


def test_damage_in_a_cold_segment_is_remembered_over_a_clean_shutdown(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start([dirs[0]], log_scrub_bytes_per_second=1 << 20)
    told: list[tuple[TopicPartition, str]] = []
    manager.on_partition_damage(lambda tp, reason: told.append((tp, reason)))
    for log in (manager.create(A0, ID_A, SETTINGS), manager.create(B0, ID_B, SETTINGS)):
        fill(lead(log), 20)
        assert committed(manager, log) is None  # only what is durable is looked at
    flip(dirs[0] / "a-0" / "00000000000000000000.log", 700)
    for _ in range(3):
        clock.advance(1000)
        manager.scheduler.run_due()
    assert [tp for tp, _ in told] == [A0]
    assert "00000000000000000000.log at byte" in manager.offline[A0]
    assert manager.get(B0) is not None
    manager.shutdown()
    again = start([dirs[0]])
    assert list(again.offline) == [A0]


def test_damage_is_not_remembered_of_a_partition_created_again(
    start: Start, dirs: list[Path]
) -> None:
    manager, log = with_one_log(start, 3)
    manager.on_damage(log, "made to be damaged")
    manager.delete(A0)
    again = manager.create(A0, ID_B, SETTINGS)
    assert again.log_dir == log.log_dir
    manager.scheduler.run_due()
    assert manager.get(A0) is again
    assert not (dirs[0] / DAMAGED_PARTITIONS_FILE).exists()


def test_partition_is_deleted_and_created_again_as_its_log_goes_offline(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = with_one_log(start, 3)

    def delete_and_create() -> None:
        manager.delete(A0)
        manager.create(A0, ID_B, SETTINGS)

    monkeypatch.setattr(log, "go_offline", delete_and_create)
    manager.on_damage(log, "made to be damaged")
    assert A0 not in manager.offline
    found = manager.get(A0)
    assert found is not None
    assert found.topic_id == ID_B


def test_reader_that_meets_damage_takes_the_partition_offline(
    start: Start, dirs: list[Path]
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 5)
    with (dirs[0] / "a-0" / "00000000000000000000.log").open("r+b") as file:
        file.seek(16)
        file.write(b"\x07")
    with pytest.raises(KafkaStorageError):
        log.read(5, 100, NEVER, True)
    assert manager.get(A0) is None
    assert "no valid batch header" in manager.offline[A0]
    manager.scheduler.run_due()
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch(1), now_ms=NOW_MS)


def test_unreadable_partition_metadata_is_damage(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    manager.create(A0, ID_A, SETTINGS)
    manager.shutdown()
    (dirs[0] / SHUTDOWN_RECORD_FILE).unlink()
    (dirs[0] / "a-0" / "partition.metadata").write_text("version: 7")
    assert "partition.metadata" in start([dirs[0]]).offline[A0]


# -- failed directories ----------------------------------------------------------------------------


def test_failed_disk_takes_its_partitions_offline_and_no_others(
    start: Start, dirs: list[Path]
) -> None:
    manager = start()
    failed: list[tuple[Path, str]] = []
    manager.on_log_dir_failure(lambda path, reason: failed.append((path, reason)))
    first, second = (lead(manager.create(tp, ID_A, SETTINGS)) for tp in (A0, A1))
    assert (first.log_dir, second.log_dir) == tuple(dirs)
    fill(second, 2)
    faults.inject([Fault("pwritev", errno=errno.EIO, path_prefix=str(dirs[0]))])
    with pytest.raises(KafkaStorageError):
        fill(first, 1)
    assert manager.offline_log_dirs == [dirs[0]]
    assert list(manager.offline) == [A0]
    manager.scheduler.run_due()
    assert [path for path, _ in failed] == [dirs[0]]
    assert "Input/output" in failed[0][1]
    fill(second, 1, 2)
    # New partitions go to the disk that works.
    assert manager.create(B0, ID_B, SETTINGS).log_dir == dirs[1]
    error = committed(manager, first)
    assert error is not None
    manager.shutdown()
    assert not (dirs[0] / ".kafka_cleanshutdown").exists()
    assert (dirs[1] / ".kafka_cleanshutdown").exists()
    faults.inject([])
    again = start()
    assert again.get(A0) is not None
    assert again.get(A1).log_end_offset == 30


def test_failed_flush_is_told_and_takes_the_directory_offline(
    start: Start, dirs: list[Path]
) -> None:
    manager, log = with_one_log(start, 1)
    faults.inject([Fault("fdatasync", errno=errno.EIO, path_prefix=str(dirs[0]))])
    error = committed(manager, log)
    assert error is not None
    assert error.errno == errno.EIO
    assert manager.offline_log_dirs == [dirs[0]]


def test_directory_that_cannot_be_opened_is_offline_from_the_start(
    start: Start, dirs: list[Path]
) -> None:
    dirs[0].write_text("a file where a directory should be")
    manager = start()
    assert manager.offline_log_dirs == [dirs[0]]
    assert manager.create(A0, ID_A, SETTINGS).log_dir == dirs[1]


def test_start_without_any_directory_is_refused(start: Start, dirs: list[Path]) -> None:
    dirs[0].write_text("x")
    with pytest.raises(KafkaStorageError, match="no log directory can be used"):
        start([dirs[0]])


def test_last_directory_failing_under_the_start_refuses_it(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    manager.create(A0, ID_A, SETTINGS)
    abandon(manager)
    faults.inject([Fault("pread", errno=errno.EIO, path_prefix=str(dirs[0] / "a-0"))])
    with pytest.raises(KafkaStorageError, match=r"no log directory can be used.*Input/output"):
        start([dirs[0]])


def test_last_directory_failing_refuses_new_partitions(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    manager.fail_log_dir(dirs[0], OSError(errno.EIO, "gone"))
    with pytest.raises(KafkaStorageError, match="every log directory is offline"):
        manager.create(A0, ID_A, SETTINGS)


# -- create and delete -----------------------------------------------------------------------------


def test_create_again_returns_the_log_unless_the_topic_is_another(start: Start) -> None:
    manager = start()
    log = manager.create(A0, ID_A, SETTINGS, leader_epoch=3)
    assert log.native.leader_epoch == 3
    assert manager.create(A0, ID_A, SETTINGS) is log
    with pytest.raises(InconsistentTopicId):
        manager.create(A0, ID_B, SETTINGS)


def test_deleted_partition_is_gone_at_once_and_from_the_disk_later(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    held = log.read(0, 1000, NEVER, True)
    assert held is not None
    manager.delete(A0)
    assert manager.get(A0) is None
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch(1), now_ms=NOW_MS)
    (leaving,) = dirs[0].glob("a-0.*-delete")
    assert held.read()
    clock.advance(999)
    manager.scheduler.run_due()
    assert leaving.exists()
    clock.advance(1)
    manager.scheduler.run_due()
    assert not leaving.exists()
    with pytest.raises(UnknownTopicOrPartition):
        manager.delete(A0)


def test_many_partitions_are_made_with_one_wait_for_their_names(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync_names = LogDir.sync_names

    def counting(log_dir: LogDir) -> None:
        synced.append(log_dir.path)
        sync_names(log_dir)

    monkeypatch.setattr(LogDir, "sync_names", counting)
    manager = start()
    other = NewPartition(TopicPartition("t", 1), ID_B, SETTINGS)
    wanted = [NewPartition(TopicPartition("t", n), ID_A, SETTINGS, 3) for n in range(7)]
    made = manager.create_all([*wanted, other])
    assert [manager.get(one.topic_partition) for one in wanted] == made[:-1]
    assert isinstance(made[-1], KafkaStorageError)  # its directory was being made
    assert isinstance(manager.create_all([other])[0], InconsistentTopicId)
    assert sorted(synced) == dirs
    counts = [len(list(path.glob("t-*"))) for path in dirs]
    assert sum(counts) == 7
    assert max(counts) - min(counts) <= 1
    # A second time they are there.
    assert manager.create_all(wanted) == made[:-1]


def test_directory_that_fails_when_names_are_synced_has_its_partitions_made_elsewhere(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_names = LogDir.sync_names

    def failing(log_dir: LogDir) -> None:
        if log_dir.path == dirs[0]:
            raise OSError(errno.EIO, "gone")
        sync_names(log_dir)

    manager = start()
    monkeypatch.setattr(LogDir, "sync_names", failing)
    wanted = [NewPartition(TopicPartition("t", n), ID_A, SETTINGS) for n in range(4)]
    made = manager.create_all(wanted)
    assert manager.offline_log_dirs == [dirs[0]]
    for one, log in zip(wanted, made, strict=True):
        assert isinstance(log, Log)
        assert log.log_dir != dirs[0]
        assert manager.get(one.topic_partition) is log


def test_recreated_partition_inherits_nothing(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 20)
    manager.get(A0).delete_records_before(57)
    assert committed(manager, manager.get(A0)) is None
    manager.checkpoints.store_recovery_points()
    manager.checkpoints.store_high_watermarks()
    manager.checkpoints.store_log_start_offsets()
    manager.delete(A0)
    log = lead(manager.create(A0, ID_B, SETTINGS))
    log.append_as_leader(batch(3), now_ms=NOW_MS)
    abandon(manager)
    again = start([dirs[0]])
    assert dict(again.offline) == {}
    log = again.get(A0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    ends = DurableEnds(Filesystem(), dirs[0] / "durable-ends")
    ends.open()
    assert ends.keys() == [SlotKey(ID_B, 0)]
    ends.close()


def test_leaving_directories_are_removed_by_the_next_start(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 2)
    manager.delete(A0)
    abandon(manager)
    again = start([dirs[0]])
    assert again.get(A0) is None
    again.scheduler.run_due()
    assert not list(dirs[0].glob("a-0*"))


def test_damaged_partition_can_be_deleted(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 20)
    manager.shutdown()
    flip(dirs[0] / "a-0" / "00000000000000000180.log", 100 + 331)
    (dirs[0] / ".kafka_cleanshutdown").unlink()
    again = start([dirs[0]])
    assert list(again.offline) == [A0]
    again.delete(A0)
    assert dict(again.offline) == {}
    log = lead(again.create(A0, ID_B, SETTINGS))
    assert log.log_end_offset == 0


def test_disk_full_at_creation_refuses_and_keeps_the_directory(
    start: Start, dirs: list[Path]
) -> None:
    manager = start([dirs[0]])
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(dirs[0]))])
    with pytest.raises(KafkaStorageError, match="No space"):
        manager.create(A0, ID_A, SETTINGS)
    faults.inject([])
    assert manager.live_log_dirs == [dirs[0]]
    assert manager.create(A0, ID_A, SETTINGS).log_end_offset == 0


def test_directory_that_fails_while_a_log_is_made_there_does_not_get_it(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    create = LiveLogDir.create

    def fails_then(self, *args, **options):
        log = create(self, *args, **options)
        if self.path == dirs[0]:
            manager.fail_log_dir(dirs[0], OSError(errno.EIO, "gone"))
        return log

    monkeypatch.setattr(LiveLogDir, "create", fails_then)
    log = manager.create(A0, ID_A, SETTINGS)
    assert (log.log_dir, manager.get(A0)) == (dirs[1], log)
    fill(lead(log), 1)


def test_failed_directory_has_no_file_of_a_log_open(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What failed remembers why, and that must not be the traceback with all that it met.
    manager, log = with_one_log(start, 20)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(LogFiles, "create_segment", fails)
    logging.disable(logging.CRITICAL)  # pytest keeps the records, and with them the errors
    try:
        with suppress(KafkaStorageError):
            log.roll()
    finally:
        logging.disable(logging.NOTSET)
    assert manager.offline_log_dirs == [log.log_dir]
    manager.scheduler.run_due()
    assert open_at(log.directory) == []


def test_log_whose_durable_end_has_no_place_is_closed(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(DurableEnds, "position_for", full)
    with suppress(KafkaStorageError):
        manager.create(A0, ID_A, SETTINGS)
    assert [name for one in dirs for name in open_at(one) if name.startswith("0000")] == []


def test_log_that_is_loaded_as_its_directory_fails_is_not_served(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    first = lead(manager.create(A0, ID_A, SETTINGS))
    failing = first.log_dir
    manager.shutdown()
    load = LiveLogDir.load

    def fails_then(self, *args, **options):
        log = load(self, *args, **options)
        self.fail(OSError(errno.EIO, "gone"))
        return log

    monkeypatch.setattr(LiveLogDir, "load", fails_then)
    again = start()
    assert again.get(A0) is None
    assert "is offline" in again.offline[A0]
    again.scheduler.run_due()
    assert open_at(failing / "a-0") == []


class FewDescriptors(Filesystem):
    """Opens so many files more, then refuses one, then opens again."""

    def __init__(self) -> None:
        self.left = -1

    def open_file(self, *args: object, **options: object) -> int:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open_file(*args, **options)  # type: ignore[arg-type]


def test_want_of_descriptors_is_not_the_disks_fault(start: Start, dirs: list[Path]) -> None:
    fs = FewDescriptors()
    manager = start(fs=fs)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    end, refused = 0, 0
    for opened in range(40):
        fs.left = opened
        with suppress(KafkaStorageError):
            manager.create(A1, ID_A, SETTINGS)
            fill(log, 20, end)  # rolls
        refused += fs.left < 0
        end = log.log_end_offset // 10
        manager.scheduler.run_due()
    assert refused > 5
    assert manager.live_log_dirs == dirs
    assert dict(manager.offline) == {}
    assert manager.get(A1) is not None
    fill(log, 20, end)


class NoDescriptors(Filesystem):
    """Opens nothing while `left` is False."""

    left = True

    def open_file(self, *args: object, **options: object) -> int:
        self._take_one()
        return super().open_file(*args, **options)  # type: ignore[arg-type]

    def open_directory(self, path: Path) -> int:
        self._take_one()
        return super().open_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        self._take_one()
        return super().list_directory(path)

    def _take_one(self) -> None:
        if not self.left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_partition_that_no_descriptor_was_left_to_make_is_made_later(
    start: Start, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    fs = NoDescriptors()
    manager = start(fs=fs)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    for _ in range(2):
        fs.left = False
        for _ in range(2):
            with pytest.raises(KafkaStorageError, match="Too many open files"):
                manager.create(A1, ID_A, SETTINGS)
            with pytest.raises(KafkaStorageError, match="Too many open files"):
                fill(log, 20, log.log_end_offset // 10)  # rolls
        fs.left = True
        fill(lead(manager.create(A1, ID_A, SETTINGS)), 1)
        fill(log, 1, log.log_end_offset // 10)
        manager.delete(A1)
        clock.advance(SAY_AGAIN_MS)
    lines = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(lines) == 2
    assert all("a-0: no memory or no file descriptor is left" in line for line in lines)


def test_partition_that_is_deleted_without_a_descriptor_is_removed_later(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    fs = NoDescriptors()
    manager = start(fs=fs)
    manager.create(A0, ID_A, SETTINGS)
    fs.left = False
    manager.delete(A0)
    clock.advance(SETTINGS.file_delete_delay_ms)
    manager.scheduler.run_due()
    assert manager.live_log_dirs == dirs
    (left,) = (path for log_dir in dirs for path in log_dir.glob("a-0*"))
    assert left.name.endswith("-delete")
    fs.left = True
    clock.advance(SAY_AGAIN_MS)
    manager.scheduler.run_due()
    assert not left.exists()


# -- background ------------------------------------------------------------------------------------


def test_empty_start_imports_nothing_heavy() -> None:
    code = (
        "import sys; import plog.storage.log_manager; "
        "print([m for m in ('asyncio', 'concurrent.futures', 'kazoo', 'psutil', 'pyarrow', 'ssl',"
        " 'subprocess', 'sqlite3', 'prometheus_client') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_real_thread_runs_the_tasks_and_stops(dirs: list[Path], clock: ManualClock) -> None:
    manager = LogManager(
        broker_settings(dirs), lambda topic: SETTINGS, cluster_id="cluster", clock=clock
    )
    manager.start()
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    ran = threading.Event()
    manager.scheduler.soon(ran.set)
    assert ran.wait(10)
    manager.shutdown()
    assert all(not path.name.endswith("delete") for path in dirs[0].iterdir())
    assert scan((dirs[0] / "a-0" / "00000000000000000180.log").read_bytes())


def test_new_logs_and_retention_are_one_line_per_topic(
    start: Start, dirs: list[Path], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(dirs[:1])
    expiring = Settings(segment_bytes=3000, index_interval_bytes=500, retention_ms=1000)
    pairs = ((A0, ID_A), (A1, ID_A), (B0, ID_B))
    with caplog.at_level(logging.INFO):
        for log in manager.create_all([NewPartition(tp, id, expiring, 0) for tp, id in pairs]):
            assert isinstance(log, Log)
            fill(lead(log), 20)
        clock.advance(10**9)
        manager._housekeeping.apply_retention()
    found = [one.getMessage() for one in caplog.records]
    created = [f"created {named} in {dirs[0]}" for named in ("2 partitions of a", "b-0")]
    assert [line for line in found if line.startswith("created")] == created
    by_time = "b-0: deleted 3 segments from offset 0 to 199, older than retention.ms"
    assert [line for line in found if "segments" in line] == [
        "a: retention deleted segments of 2 partitions",
        by_time,
    ]


def test_lines_of_new_logs_are_bounded(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch)
    manager = start()
    with caplog.at_level(logging.INFO):
        for n in range(MANY):
            manager.create(TopicPartition("a", n), ID_A, SETTINGS)
        until(
            lambda: counted(caplog, r"(\d+) further topics got new logs") == MANY - AT_ONCE,
            "the rest is told",
        )
    assert told(caplog, "^created a-") == AT_ONCE
