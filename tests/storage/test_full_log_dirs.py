from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.filesystem import Filesystem, Space
from plog.storage.full_log_dirs import ENOUGH_BYTES, LOOK_MS
from plog.storage.log_moves import LogMoves
from plog.storage.replica_copy import ReplicaCopy
from plog.types import Buffer

from .log_managers import A0, A1, B0, ID_A, ID_B, SETTINGS, Start, fill, lead

RESERVE = 1 << 20
DISK = 100 << 20
ENOUGH = RESERVE + ENOUGH_BYTES


class SmallDisk(Filesystem):
    """Has as much space as a test says, for one log directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.free_bytes = self.total_bytes = DISK

    def device(self, path: Path) -> int:
        return -1 if path == self.path else super().device(path)

    def space(self, path: Path) -> Space:
        return (
            Space(self.free_bytes, self.total_bytes) if path == self.path else super().space(path)
        )


@pytest.fixture
def disk(dirs: list[Path]) -> SmallDisk:
    return SmallDisk(dirs[0])


def told(caplog: pytest.LogCaptureFixture) -> list[bool]:
    """Return which of the lines about writes say that a directory is full."""
    lines = [record.getMessage() for record in caplog.records]
    return ["is full" in line for line in lines if "writes are refused" in line]


def test_full_disk_is_told_once_and_so_is_its_end(
    start: Start, dirs: list[Path], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 1)
    for expected in ([True], [True, False, True]):
        faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(dirs[0]))])
        for _ in range(3):
            for _ in range(2):
                with pytest.raises(KafkaStorageError):
                    fill(log, 1, 1)
            assert told(caplog) == expected
            clock.advance(LOOK_MS)
            manager.scheduler.run_due()
        faults.inject([])
        assert told(caplog) == expected
        clock.advance(LOOK_MS)
        manager.scheduler.run_due()
        assert told(caplog) == [*expected, False]
        clock.advance(LOOK_MS)
        manager.scheduler.run_due()
    assert told(caplog) == [True, False, True, False]


def test_records_leave_the_reserve_free_and_what_makes_room_may_use_it(
    start: Start,
    dirs: list[Path],
    disk: SmallDisk,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    manager = start(fs=disk, log_dir_reserve_bytes=RESERVE)
    log, other = lead(manager.create(A0, ID_A, SETTINGS)), lead(manager.create(A1, ID_A, SETTINGS))
    assert [one.log_dir for one in (log, other)] == dirs
    fill(log, 10)
    # Somebody else takes the rest of the disk.
    disk.free_bytes = RESERVE + 2000
    clock.advance(LOOK_MS)
    manager.scheduler.run_due()
    before = log.size_bytes
    with pytest.raises(KafkaStorageError, match="No space left"):
        fill(log, 10, 10)  # nobody looks meanwhile
    assert before < log.size_bytes <= before + 2000
    end, size = log.log_end_offset, log.size_bytes
    for free_bytes in (RESERVE, 0, RESERVE - 1, ENOUGH - 1):
        disk.free_bytes = free_bytes
        clock.advance(LOOK_MS)
        manager.scheduler.run_due()
        with pytest.raises(KafkaStorageError):
            fill(log, 1, end // 10)
        # A repeated batch is there already, and is no write.
        fill(log, 1, end // 10 - 1)
        fill(other, 1, other.log_end_offset // 10)
        log.become_follower(1 + log.leader_epochs.latest)
        log.become_leader(1 + log.leader_epochs.latest, sole_replica=True)
        log.delete_records_before(log.log_start_offset + 1)
        log.roll()
        assert (log.log_end_offset, log.size_bytes) == (end, size)
    assert told(caplog) == [True]
    disk.free_bytes = ENOUGH
    for expected in ([True], [True, False]):  # something was refused in the second before
        clock.advance(LOOK_MS)
        manager.scheduler.run_due()
        fill(log, 1, log.log_end_offset // 10)
        assert told(caplog) == expected


class OneDisk(Filesystem):
    """Every log directory is on one file system, with as much space as a test says."""

    free_bytes = DISK

    def space(self, path: Path) -> Space:
        return Space(self.free_bytes, DISK)


def test_directories_of_one_file_system_share_its_room(
    start: Start, dirs: list[Path], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    disk = OneDisk()
    manager = start(fs=disk, log_dir_reserve_bytes=RESERVE)
    logs = [lead(manager.create(A0, ID_A, SETTINGS)), lead(manager.create(A1, ID_A, SETTINGS))]
    assert [log.log_dir for log in logs] == dirs
    disk.free_bytes = RESERVE + 3000
    clock.advance(LOOK_MS)
    manager.scheduler.run_due()
    for n in range(100):
        with suppress(KafkaStorageError):
            fill(logs[n % 2], 1, logs[n % 2].log_end_offset // 10)
    assert 2000 < sum(log.size_bytes for log in logs) <= 3000
    assert min(log.size_bytes for log in logs) > 1000
    assert told(caplog) == [True, True]  # each directory is told of
    # One that was refused nothing meanwhile waits for as much as its neighbour.
    for free_bytes, expected in ((ENOUGH - 1, [True] * 2), (ENOUGH, [True] * 2 + [False] * 2)):
        disk.free_bytes = free_bytes
        for _ in range(2):
            clock.advance(LOOK_MS)
            manager.scheduler.run_due()
        assert told(caplog) == expected
        assert manager.dirs[dirs[0]].room.left == (free_bytes - RESERVE) * (free_bytes >= ENOUGH)


def test_directory_keeps_its_neighbour_from_taking_records_until_there_is_enough(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    disk = OneDisk()
    manager = start(fs=disk, log_dir_reserve_bytes=RESERVE)
    logs = [lead(manager.create(A0, ID_A, SETTINGS)), lead(manager.create(A1, ID_A, SETTINGS))]
    for free_bytes, refused in ((RESERVE, [0]), (ENOUGH - 1, [0, 1]), (ENOUGH, [])):
        disk.free_bytes = free_bytes
        clock.advance(LOOK_MS)
        manager.scheduler.run_due()
        for n in refused:
            with pytest.raises(KafkaStorageError):
                fill(logs[n], 1)
    for log in logs:
        fill(log, 1)


def test_reserve_is_a_tenth_of_a_small_disk(start: Start, disk: SmallDisk) -> None:
    disk.total_bytes = disk.free_bytes = 5 << 20
    manager = start(fs=disk)
    assert manager.dirs[disk.path].room.left == (5 << 20) - (5 << 20) // 10


def test_start_below_the_reserve_serves_all_but_records(start: Start, disk: SmallDisk) -> None:
    disk.free_bytes = 10
    manager = start([disk.path], fs=disk)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    with pytest.raises(KafkaStorageError):
        fill(log, 1)


def test_full_directory_gets_no_partition_while_another_is_not(
    start: Start, dirs: list[Path], disk: SmallDisk, clock: ManualClock
) -> None:
    manager = start(fs=disk)
    moving = manager.create(A0, ID_A, SETTINGS)
    assert moving.log_dir == dirs[0]
    disk.free_bytes = 0
    clock.advance(LOOK_MS)
    manager.scheduler.run_due()
    made = [manager.create(*one, SETTINGS) for one in ((A1, ID_A), (B0, ID_B))]
    assert {log.log_dir for log in made} == {dirs[1]}
    fill(lead(made[0]), 1)
    with pytest.raises(KafkaStorageError, match="has not enough space for its"):
        LogMoves(manager, disk).move(A1, dirs[0])
    LogMoves(manager, disk).move(A0, dirs[1])


def test_move_takes_room_as_it_copies(start: Start, dirs: list[Path], disk: SmallDisk) -> None:
    manager = start(fs=disk)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    moves = LogMoves(manager, disk)
    moves.move(A0, dirs[1])
    room = manager.dirs[dirs[0]].room
    room.left = before = 100_000
    moves.move(A0, dirs[0])
    size = manager.get(A0).size_bytes
    indexes = sum(path.stat().st_size for path in (dirs[0] / "a-0").glob("*index"))
    assert indexes
    assert room.left == before - size - indexes


@pytest.mark.parametrize("taken", [1, 2_000, 4_000])
def test_move_that_finds_no_room_on_its_way_is_given_up(
    start: Start,
    dirs: list[Path],
    disk: SmallDisk,
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
) -> None:
    manager = start(fs=disk)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    moves = LogMoves(manager, disk)
    moves.move(A0, dirs[1])
    log = manager.get(A0)
    room = manager.dirs[dirs[0]].room
    room.left = log.size_bytes
    begin = ReplicaCopy.begin
    copied: list[int] = []
    pwrite = disk.pwrite

    def written(fd: int, data: Buffer, offset: int) -> None:
        pwrite(fd, data, offset)
        copied.append(len(data))

    def begin_late(copy: ReplicaCopy) -> None:
        assert room.take(taken)  # an append
        monkeypatch.setattr(disk, "pwrite", written)
        begin(copy)

    monkeypatch.setattr(ReplicaCopy, "begin", begin_late)
    with pytest.raises(KafkaStorageError, match=f"a-0 .* not enough space in {dirs[0]}"):
        moves.move(A0, dirs[0])
    assert room.left >= 0
    assert sum(copied) <= log.size_bytes - taken
    manager.scheduler.run_due()
    assert not list(dirs[0].glob("a-0*-future"))
    assert manager.get(A0) is log
    fill(log, 1, 20)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("harm", ["renamed", "removed"])
def test_directory_that_is_gone_is_offline_in_a_second(
    start: Start, dirs: list[Path], clock: ManualClock, harm: str, replaced: bool
) -> None:
    manager = start()
    log, other = lead(manager.create(A0, ID_A, SETTINGS)), lead(manager.create(A1, ID_A, SETTINGS))
    if harm == "renamed":
        dirs[0].rename(dirs[0].with_name("elsewhere"))
    else:
        Filesystem().remove_tree(dirs[0])
    if replaced:
        dirs[0].mkdir()
    clock.advance(LOOK_MS)
    manager.scheduler.run_due()
    assert manager.offline_log_dirs == [dirs[0]]
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
    fill(other, 1)
    assert not replaced or list(dirs[0].iterdir()) == []
