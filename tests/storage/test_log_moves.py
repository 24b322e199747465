from __future__ import annotations

import errno
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.batch import scan
from plog._native.faults import Fault
from plog._native.partition_log import DUPLICATE, Segment
from plog.errors import (
    KafkaStorageError,
    LogDirNotFound,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from plog.runtime.clock import ManualClock
from plog.storage.durable_ends import DURABLE_ENDS_FILE, DurableEnds
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import LiveLogDir, slot_key
from plog.storage.log import Log
from plog.storage.log_manager import SAY_AGAIN_MS, LogManager
from plog.storage.log_moves import LogMoves
from plog.storage.replica_copy import ReplicaCopy
from plog.storage.segment_files import TRANSACTION_INDEX, path_of
from tests.descriptors import open_at
from tests.waiting import until

from .log_managers import (
    A0,
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
from .storage_logs import (
    NOW_MS,
    Crash,
    FaultyFilesystem,
    Settings,
    batch,
    broker_settings,
    read_all,
)


def test_directory_that_fails_as_a_log_moves_there_takes_it_offline(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    moves = LogMoves(manager, Filesystem())
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 3)
    load = LiveLogDir.load

    def fails_then(self, *args, **options):
        log = load(self, *args, **options)
        manager.fail_log_dir(self.path, OSError(errno.EIO, "gone"))
        return log

    monkeypatch.setattr(LiveLogDir, "load", fails_then)
    with pytest.raises(KafkaStorageError, match="which has failed"):
        moves.move(A0, dirs[1])
    assert manager.get(A0) is None
    assert "is offline" in manager.offline[A0]
    assert (dirs[1] / "a-0").is_dir()


def test_old_log_is_read_until_everybody_has_the_moved_one(start: Start, dirs: list[Path]) -> None:
    manager, log = with_one_log(start, 20)
    moves = LogMoves(manager, Filesystem())
    data = read_all(log)
    seen: list[bytes] = []

    def on_moved(old: Log, moved: Log) -> None:
        seen.append(read_all(log))
        with pytest.raises(NotLeaderOrFollower):
            fill(log, 1)
        with pytest.raises(KafkaStorageError, match="has moved"):
            log.become_leader(5, sole_replica=True)
        fill(moved, 1, 20)

    moves.on_log_moved(on_moved)
    moves.move(A0, dirs[1])
    assert seen == [data]
    assert manager.get(A0).log_end_offset == 210
    with pytest.raises(KafkaStorageError):
        read_all(log)


def test_old_log_is_flushed_where_its_directory_has_another_name(
    start: Start, dirs: list[Path]
) -> None:
    manager, log = with_one_log(start, 1, Settings())
    moves = LogMoves(manager, Filesystem())
    ends: list[int] = []

    def on_moved(old: Log, moved: Log) -> None:
        assert not log.directory.exists()
        log.directory.mkdir()  # as if another of its name had been made
        ends.append(log.durable_end)
        ends.append(log.flush())

    moves.on_log_moved(on_moved)
    moves.move(A0, dirs[1])
    assert ends == [0, 10]
    assert manager.live_log_dirs == dirs


def test_old_log_does_not_write_to_the_slot_of_a_new_one(start: Start, dirs: list[Path]) -> None:
    manager, _ = with_one_log(start, 3, Settings())
    moves = LogMoves(manager, Filesystem())

    def on_moved(old: Log, moved: Log) -> None:
        new = lead(manager.create(B0, ID_B, SETTINGS))
        assert new.log_dir == dirs[0]
        fill(new, 2)
        new.flush()

    moves.on_log_moved(on_moved)
    moves.move(A0, dirs[1])
    abandon(manager)
    ends = [DurableEnds(Filesystem(), path / DURABLE_ENDS_FILE) for path in dirs]
    for one in ends:
        one.open()
        one.close()
    assert ends[0].ends() == [(slot_key(B0, ID_B), 20)]
    assert ends[1].ends() == [(slot_key(A0, ID_A), 30)]


@pytest.mark.parametrize(("error", "failed"), [(errno.EIO, 1), (errno.EMFILE, 0)])
def test_move_that_cannot_sync_the_names_it_leaves_is_refused(
    start: Start, dirs: list[Path], error: int, failed: int
) -> None:
    manager, log = with_one_log(start, 1, Settings())
    moves = LogMoves(manager, Filesystem())
    faults.inject([Fault("open_directory", errno=error, times=1, path_prefix=str(dirs[0]))])
    with pytest.raises(KafkaStorageError):
        moves.move(A0, dirs[1])
    assert manager.offline_log_dirs == dirs[:failed]
    manager.scheduler.run_due()
    # The copy stays until the next start if the disk of the log has failed: it may be needed.
    assert len(list(dirs[1].glob("a-0*"))) == failed
    if not failed:
        fill(log, 1, 1)
        assert log.flush() == 20
        moves.move(A0, dirs[1])
        assert manager.get(A0).durable_end == 20


def test_what_is_left_to_do_of_a_log_that_has_moved_harms_nobody(
    start: Start, dirs: list[Path]
) -> None:
    # Segments roll, and the snapshots of the rolls wait for the scheduler, as the move does not.
    manager, log = with_one_log(start, 20, log_retention_bytes=3000)
    moves = LogMoves(manager, Filesystem())
    done: list[str] = []

    def on_moved(old: Log, moved: Log) -> None:
        # The old log's directory has another name by now, and the log is not closed yet.
        manager.scheduler.run_due()
        assert log.apply_retention(NOW_MS + 10**12) == []
        with pytest.raises(KafkaStorageError, match="has moved"):
            log.delete_records_before(15)
        with pytest.raises(KafkaStorageError, match="has moved"):
            log.roll()
        log.faults.disk_failed(OSError(errno.ENOENT, "no such file"))
        done.append("moved")

    moves.on_log_moved(on_moved)
    moves.move(A0, dirs[1])
    assert done == ["moved"]
    assert manager.live_log_dirs == dirs
    assert manager.get(A0).log_end_offset == 200


def test_moved_partition_is_the_same_in_another_directory(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start()
    moves = LogMoves(manager, Filesystem())
    moved: list[tuple[Log, Log]] = []
    moves.on_log_moved(lambda old, new: moved.append((old, new)))
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 40)
    log.delete_records_before(57)
    data, start_offset = read_all(log), log.log_start_offset
    old_names = {path.name for path in log.directory.iterdir()}
    moves.move(A0, dirs[1])
    again = manager.get(A0)
    assert moved == [(log, again)]
    assert again.log_dir == dirs[1]
    assert (read_all(again), again.log_start_offset) == (data, start_offset)
    assert {path.name for path in again.directory.iterdir()} >= {
        name for name in old_names if not name.endswith(".snapshot")
    }
    # it leads as before, and remembers its producers
    assert (
        again.append_as_leader(
            batch(10, producer_id=4, epoch=0, sequence=360), now_ms=NOW_MS
        ).status
        == DUPLICATE
    )
    fill(again, 5, 40)
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch(1), now_ms=NOW_MS)
    assert committed(manager, again) is None
    moves.move(A0, dirs[1])  # already there
    clock.advance(1000)
    manager.scheduler.run_due()
    assert not list(dirs[0].glob("a-0*"))
    abandon(manager)
    restarted = start()
    assert restarted.get(A0).log_end_offset == 450
    assert restarted.get(A0).log_dir == dirs[1]
    assert restarted.get(A0).log_start_offset == start_offset


def test_move_while_clients_write_loses_nothing(start: Start, dirs: list[Path]) -> None:
    manager = start()
    moves = LogMoves(manager, Filesystem())
    lead(manager.create(A0, ID_A, Settings(segment_bytes=50_000)))
    stop = threading.Event()
    # So many appends for each move: a slow move must not run out of files.
    allowed = threading.Semaphore(0)
    acknowledged: list[int] = []

    def write() -> None:
        sequence = 0
        while allowed.acquire() and not stop.is_set():
            data = batch(5, producer_id=7, epoch=0, sequence=sequence)
            try:
                appended = manager.get(A0).append_as_leader(data, now_ms=NOW_MS)
            except (NotLeaderOrFollower, KafkaStorageError):
                allowed.release()
                continue  # retriable: the log stood still, or this was the old one
            acknowledged.append(appended.base_offset)
            sequence += 5

    writer = threading.Thread(target=write)
    writer.start()
    for target in (dirs[1], dirs[0], dirs[1]):
        allowed.release(5000)
        moves.move(A0, target)
    stop.set()
    allowed.release()
    writer.join()
    assert acknowledged == [5 * n for n in range(len(acknowledged))]
    headers = scan(read_all(manager.get(A0)))
    assert [h.base_offset for h in headers] == acknowledged


@pytest.mark.parametrize("more", [0, 3])
def test_log_that_is_truncated_and_filled_again_during_its_move(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """The copy has bytes of before, perhaps fewer than the log has now."""
    manager, log = with_one_log(start, 3, Settings())
    begin = ReplicaCopy.begin

    def begin_and_lose_the_end(copy: ReplicaCopy) -> None:
        begin(copy)
        log.become_follower(1)
        assert log.truncate_to(10)
        log.become_leader(1, sole_replica=True)
        for _ in range(2 + more):
            log.append_as_leader(batch(10, value=b"w" * 20), now_ms=NOW_MS)

    monkeypatch.setattr(ReplicaCopy, "begin", begin_and_lose_the_end)
    moved: list[bytes] = []
    moves = LogMoves(manager, Filesystem())
    moves.on_log_moved(lambda old, new: moved.extend((read_all(old), read_all(new))))
    moves.move(A0, dirs[1])
    before, after = moved
    assert len(scan(before)) == 3 + more
    assert after == before


def test_move_is_refused_where_it_makes_no_sense(start: Start, dirs: list[Path]) -> None:
    manager = start()
    moves = LogMoves(manager, Filesystem())
    manager.create(A0, ID_A, SETTINGS)
    with pytest.raises(LogDirNotFound):
        moves.move(A0, dirs[0] / "elsewhere")
    with pytest.raises(UnknownTopicOrPartition):
        moves.move(B0, dirs[1])
    manager.fail_log_dir(dirs[1], OSError(errno.EIO, "gone"))
    with pytest.raises(LogDirNotFound):
        moves.move(A0, dirs[1])


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_leader_epoch_without_records_moves_with_its_log(
    start: Start, dirs: list[Path], crash: bool
) -> None:
    manager, log = with_one_log(start, 3)
    log.become_leader(7, sole_replica=True)
    LogMoves(manager, Filesystem()).move(A0, dirs[1])
    moved = manager.get(A0)
    assert moved is not None
    fill(moved, 1, 3)
    moved.flush()
    manager.checkpoints.store_recovery_points()
    if crash:
        abandon(manager)
    else:
        manager.shutdown()
    again = start().get(A0)
    assert again is not None
    assert [(epoch, at) for epoch, at in again.leader_epochs.entries] == [(0, 0), (7, 30)]


def test_file_that_cannot_be_read_takes_its_own_directory_offline(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = with_one_log(start, 3)
    path_of(log.directory, 0, TRANSACTION_INDEX).touch()
    read_bytes = Filesystem.read_bytes

    def read(fs: Filesystem, path: Path) -> bytes:
        if path.suffix == TRANSACTION_INDEX:
            raise OSError(errno.EIO, "cannot be read")  # a read knows no path
        return read_bytes(fs, path)

    monkeypatch.setattr(Filesystem, "read_bytes", read)
    with pytest.raises(KafkaStorageError):
        LogMoves(manager, Filesystem()).move(A0, dirs[1])
    assert manager.offline_log_dirs == [dirs[0]]
    with pytest.raises(KafkaStorageError):
        fill(log, 1, 3)


def test_log_is_not_taken_for_as_clean_as_another_of_its_name_was(
    start: Start, dirs: list[Path]
) -> None:
    manager, _ = with_one_log(start, 20)
    target = manager.dirs[dirs[1]]
    target.cleaner_offsets.put(A0, 150)
    LogMoves(manager, Filesystem()).move(A0, dirs[1])
    assert A0 not in target.cleaner_offsets.stored


@pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])
def test_move_stopped_at_any_operation_keeps_the_partition(
    dirs: list[Path], clock: ManualClock, crash: bool
) -> None:
    data = b""
    for fail_at in range(300):
        for path in dirs:
            shutil.rmtree(path, ignore_errors=True)
        fs = FaultyFilesystem(crash=crash)
        manager = LogManager(
            broker_settings(dirs), lambda topic: SETTINGS, cluster_id="cluster", clock=clock, fs=fs
        )
        manager.start(background=False)
        moves = LogMoves(manager, fs)
        log = lead(manager.create(A0, ID_A, SETTINGS))
        fill(log, 20)
        assert committed(manager, log) is None
        data = read_all(log)
        fs.fail_at = fs.operations + fail_at
        try:
            moves.move(A0, dirs[1])
        except (KafkaStorageError, Crash):
            done = False
        else:
            done = manager.offline_log_dirs == []
        fs.fail_at = -1
        if not crash and manager.get(A0) is not None:
            assert read_all(manager.get(A0)) == data
        abandon(manager)
        again = LogManager(
            broker_settings(dirs), lambda topic: SETTINGS, cluster_id="cluster", clock=clock
        )
        again.start(background=False)
        assert dict(again.offline) == {}
        found = again.get(A0)
        assert found is not None
        assert read_all(found) == data
        again.scheduler.run_due()
        assert len([name for path in dirs for name in path.glob("a-0*")]) == 1
        abandon(again)
        if done:
            break
    else:
        pytest.fail("a move takes more operations than this test tries")
    assert fail_at > 20


class FailingRenames(Filesystem):
    """Fails to undo a move, or ends the process, where the log is to get its name back."""

    error: BaseException | None = None

    def rename(self, source: Path, target: Path) -> None:
        if self.error is not None and source.name.endswith("-delete"):
            raise self.error
        super().rename(source, target)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "gone"), Crash()], ids=["error", "crash"])
def test_move_that_is_half_undone_keeps_the_partition(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    fs = FailingRenames()
    manager = start(fs=fs)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    data = read_all(log)

    def load(*_: object, **__: object) -> Log:
        fs.error = error
        raise OSError(errno.EIO, "gone")

    with monkeypatch.context() as patched:
        patched.setattr(LiveLogDir, "load", load)
        with pytest.raises((KafkaStorageError, Crash)):
            LogMoves(manager, fs).move(A0, dirs[1])
    abandon(manager)
    again = start()
    again.scheduler.run_due()
    found = again.get(A0)
    assert found is not None
    assert read_all(found) == data


def test_copy_that_cannot_be_loaded_is_removed(
    start: Start, dirs: list[Path], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = with_one_log(start, 3)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(LiveLogDir, "load", fail)
        patched.setattr(Filesystem, "remove_tree", fail)
        with pytest.raises(KafkaStorageError):
            LogMoves(manager, Filesystem()).move(A0, dirs[1])
        manager.scheduler.run_due()
    clock.advance(SAY_AGAIN_MS)
    manager.scheduler.run_due()
    assert not list(dirs[1].glob("a-0*"))
    assert A0 not in manager.dirs[dirs[1]].gaps.stored
    fill(log, 1, 3)


def test_copy_keeps_no_segment_open_that_is_deleted_meanwhile(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = with_one_log(start, 60)
    looked: list[int] = []
    copy = ReplicaCopy._copy

    def stale_beside(segment: Segment) -> list[str]:
        bases = {f"{one.base_offset:020d}" for one in (*log.native.segments, segment)}
        return [name for name in open_at(log.directory) if name.partition(".")[0] not in bases]

    def copies_while_retention_runs(self, segment, size):
        if not looked:
            log.update_settings(
                Settings(segment_bytes=3000, retention_bytes=1, file_delete_delay_ms=0)
            )
            log.apply_retention(NOW_MS)
        until(lambda: not stale_beside(segment), "closed by the flushes that had them")
        looked.append(segment.base_offset)
        return copy(self, segment, size)

    monkeypatch.setattr(ReplicaCopy, "_copy", copies_while_retention_runs)
    LogMoves(manager, Filesystem()).move(A0, dirs[1])
    assert len(looked) > 1
    assert manager.get(A0).log_dir == dirs[1]


def test_source_that_fails_behind_a_move_does_not_undo_it(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = with_one_log(start, 3)
    data = read_all(log)

    def gone(*_: object) -> None:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(DurableEnds, "release", gone)
    LogMoves(manager, Filesystem()).move(A0, dirs[1])
    moved = manager.get(A0)
    assert moved is not None
    assert (moved.log_dir, read_all(moved)) == (dirs[1], data)
    assert manager.offline_log_dirs == [dirs[0]]
    fill(moved, 1, 3)


def call_in_copy(patched: pytest.MonkeyPatch, moment: str, change: Callable[[], object]) -> None:
    """Have the next move call `change` before it makes its copy, in it, or after most of it."""
    owner = LiveLogDir if moment == "future_directory" else ReplicaCopy
    method = getattr(owner, moment)
    called: list[bool] = []

    def calls(*args: object) -> object:
        is_first, is_late = not called, moment == "begin"
        called.append(True)
        result = method(*args) if is_late else None
        if is_first:
            change()
        return result if is_late else method(*args)

    patched.setattr(owner, moment, calls)


@pytest.mark.parametrize("is_again", [False, True], ids=["deleted", "created again"])
@pytest.mark.parametrize("moment", ["future_directory", "_copy", "begin"])
def test_copy_of_a_log_that_is_deleted_meanwhile_goes(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch, moment: str, is_again: bool
) -> None:
    manager, _ = with_one_log(start, 20)
    other_id = uuid.UUID(int=99)

    def delete() -> None:
        manager.delete(A0)
        assert not list(dirs[1].glob("a-0*-future"))
        if is_again:
            manager.create(A0, other_id, SETTINGS)

    with monkeypatch.context() as patched:
        call_in_copy(patched, moment, delete)
        with pytest.raises(KafkaStorageError, match="deleted or went offline during its move"):
            LogMoves(manager, Filesystem()).move(A0, dirs[1])
    assert manager.live_log_dirs == dirs
    assert not list(dirs[1].glob("a-0*-future"))
    abandon(manager)
    found = start().get(A0)
    assert (found and found.topic_id) == (other_id if is_again else None)


@pytest.mark.parametrize("moment", ["future_directory", "_copy", "begin"])
@pytest.mark.parametrize("error", [None, errno.EMFILE, errno.ENOSPC], ids=["crash", "fd", "full"])
def test_deletion_during_a_move_stopped_at_any_operation_is_done_or_not(
    dirs: list[Path],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    error: int | None,
) -> None:
    for fail_at in range(30):
        for path in dirs:
            shutil.rmtree(path, ignore_errors=True)
        fs = FaultyFilesystem(crash=error is None, error=error or 0)
        manager = LogManager(
            broker_settings(dirs), lambda topic: SETTINGS, cluster_id="cluster", clock=clock, fs=fs
        )
        manager.start(background=False)
        log = lead(manager.create(A0, ID_A, SETTINGS))
        fill(log, 20)
        data = read_all(log)

        done: list[bool] = []

        def delete(fs=fs, fail_at=fail_at, manager=manager, done=done) -> None:
            fs.fail_at = fs.operations + fail_at
            manager.delete(A0)
            if fs.operations <= fs.fail_at:
                done.append(True)
            raise Crash

        with monkeypatch.context() as patched:
            call_in_copy(patched, moment, delete)
            with pytest.raises((KafkaStorageError, Crash)):
                LogMoves(manager, fs).move(A0, dirs[1])
        is_deleted = not (dirs[0] / "a-0").exists()
        abandon(manager)
        again = LogManager(
            broker_settings(dirs), lambda topic: SETTINGS, cluster_id="cluster", clock=clock
        )
        again.start(background=False)
        found = again.get(A0)
        assert (found is None) == is_deleted
        assert found is None or read_all(found) == data
        again.scheduler.run_due()
        assert len([name for path in dirs for name in path.glob("a-0*")]) == (found is not None)
        abandon(again)
        if done:
            assert is_deleted
            break
    else:
        pytest.fail("a deletion takes more operations than this test tries")
    assert fail_at >= 2


def test_copy_that_awaits_its_removal_goes_with_its_log(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = with_one_log(start, 3)
    finish = ReplicaCopy.finish

    def fail(copy: ReplicaCopy) -> None:
        finish(copy)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(ReplicaCopy, "finish", fail)
    with pytest.raises(KafkaStorageError, match="full"):
        LogMoves(manager, Filesystem()).move(A0, dirs[1])
    assert len(list(dirs[1].glob("a-0*-future"))) == 1
    manager.delete(A0)
    abandon(manager)
    again = start()
    assert again.get(A0) is None
    again.scheduler.run_due()
    assert not [name for path in dirs for name in path.glob("a-0*")]


def test_deletion_waits_for_a_copy_that_cannot_be_removed(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = with_one_log(start, 3)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    def delete() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(manager.dirs[dirs[1]], "put_away", fail)
            with pytest.raises(KafkaStorageError, match="cannot be deleted"):
                manager.delete(A0)

    with monkeypatch.context() as patched:
        call_in_copy(patched, "begin", delete)
        LogMoves(manager, Filesystem()).move(A0, dirs[1])
    moved = manager.get(A0)
    assert moved is not None
    assert moved.log_end_offset == log.log_end_offset
    manager.delete(A0)
    abandon(manager)
    assert start().get(A0) is None


def test_copy_that_was_removed_by_hand_does_not_delay_the_deletion(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = with_one_log(start, 3)

    def remove_copy(copy: ReplicaCopy) -> None:
        shutil.rmtree(copy.target)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(ReplicaCopy, "finish", remove_copy)
    with pytest.raises(KafkaStorageError, match="cannot be moved"):
        LogMoves(manager, Filesystem()).move(A0, dirs[1])
    manager.delete(A0)
    assert manager.get(A0) is None
    assert not (dirs[0] / "a-0").exists()


def test_copy_in_a_failed_directory_does_not_delay_the_deletion(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = with_one_log(start, 3)

    def fail_and_delete() -> None:
        manager.fail_log_dir(dirs[1], OSError(errno.EIO, "gone"))
        manager.delete(A0)

    call_in_copy(monkeypatch, "begin", fail_and_delete)
    with pytest.raises(KafkaStorageError, match="deleted or went offline during its move"):
        LogMoves(manager, Filesystem()).move(A0, dirs[1])
    assert not (dirs[0] / "a-0").exists()
