from __future__ import annotations

import os
from pathlib import Path

from plog.runtime.clock import ManualClock
from plog.storage.checkpoints import OffsetCheckpoint
from plog.storage.filesystem import Filesystem
from plog.storage.producer_state import Marker

from .log_managers import A0, A1, ID_A, SETTINGS, Start, committed, fill, lead
from .storage_logs import Settings, append_verified, batch


def test_background_tasks_come_at_their_intervals(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 20)
    log.update_settings(Settings(segment_bytes=3000, retention_bytes=1, file_delete_delay_ms=0))

    def pass_s(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1000)
            manager.scheduler.run_due()

    pass_s(29)
    assert log.log_start_offset == 0
    pass_s(1)
    assert log.log_start_offset == 180
    fill(log, 20, start=20)
    pass_s(299)
    assert log.log_start_offset == 180
    assert OffsetCheckpoint(Filesystem(), dirs[0] / "replication-offset-checkpoint").load() == {
        A0: 400
    }
    assert "recovery-point-offset-checkpoint" in os.listdir(dirs[0])
    pass_s(2)
    assert log.log_start_offset == 360
    assert [path.name for path in sorted((dirs[0] / "a-0").glob("*.log*"))] == [
        "00000000000000000360.log"
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


def test_producers_are_forgotten_after_their_time_but_for_those_in_a_transaction(
    start: Start, clock: ManualClock
) -> None:
    manager = start(producer_id_expiration_ms=5000, producer_id_expiration_check_interval_ms=1000)
    log = lead(manager.create(A0, ID_A, SETTINGS))
    silent, writing, open_ = 4, 5, 6
    for producer_id in (silent, writing, open_):
        append_verified(
            log,
            batch(producer_id=producer_id, epoch=0, sequence=0, transactional=producer_id == open_),
        )

    def pass_s(seconds: int) -> set[int]:
        for _ in range(seconds):
            clock.advance(1000)
            manager.scheduler.run_due()
        return {one.producer_id for one in log.native.producers()}

    assert pass_s(4) == {silent, writing, open_}
    now = batch(producer_id=writing, epoch=0, sequence=1, timestamp=clock.now_ms())
    append_verified(log, now)
    assert pass_s(1) == {writing, open_}
    assert pass_s(3) == {writing, open_}
    assert pass_s(1) == {open_}
    assert pass_s(60) == {open_}
    ends = Marker(abort=False, coordinator_epoch=0)
    log.transactions.append_marker(open_, 0, ends, now_ms=clock.now_ms())
    assert pass_s(4) == {open_}
    assert pass_s(1) == set()
    manager.shutdown()
