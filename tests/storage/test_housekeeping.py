from __future__ import annotations

import os
from pathlib import Path

from plog.runtime.clock import ManualClock
from plog.storage.checkpoints import OffsetCheckpoint
from plog.storage.filesystem import Filesystem

from .log_managers import A0, A1, ID_A, SETTINGS, Start, committed, fill, lead
from .storage_logs import Settings


def test_background_tasks_come_at_their_intervals(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    log.update_settings(Settings(segment_bytes=3000, retention_bytes=1, file_delete_delay_ms=0))
    for _ in range(120):
        clock.advance(1000)
        manager.scheduler.run_due()
    assert OffsetCheckpoint(Filesystem(), dirs[0] / "replication-offset-checkpoint").load() == {
        A0: 200
    }
    assert "recovery-point-offset-checkpoint" in os.listdir(dirs[0])
    assert log.log_start_offset == 0
    for _ in range(240):
        clock.advance(1000)
        manager.scheduler.run_due()
    assert log.log_start_offset == 180
    assert [path.name for path in sorted((dirs[0] / "a-0").glob("*.log*"))] == [
        "00000000000000000180.log"
    ]


def test_flush_ms_is_obeyed(start: Start, dirs: list[Path], clock: ManualClock) -> None:
    manager = start([dirs[0]])  # one directory, one queue
    log = lead(manager.create(A0, ID_A, SETTINGS))
    log.update_settings(Settings(flush_ms=2000))
    fill(log, 1)
    for _ in range(4):
        clock.advance(1000)
        manager.scheduler.run_due()
    assert committed(manager, manager.create(A1, ID_A, SETTINGS)) is None  # the queue is done
    assert log.durable_end == 10


def test_flush_ms_is_of_time_that_passes_whatever_the_clock_says(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    log.update_settings(Settings(flush_ms=2000))
    clock.jump_to(0)
    fill(log, 1)
    for _ in range(4):
        clock.advance(1000)
        manager.scheduler.run_due()
    assert committed(manager, log) is None  # behind those that were asked for
    assert log.durable_end == 10
    clock.jump_to(1 << 50)
    assert not log.is_flush_due(clock.monotonic_ms())
