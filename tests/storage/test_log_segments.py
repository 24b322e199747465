from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.log_manager import LogManager
from plog.storage.segment_files import SHORTER
from plog.storage.segment_verdict import Known

from .disks import LosingFilesystem
from .log_managers import A0, ID_A, SETTINGS, abandon, committed, fill, lead
from .storage_logs import Crash, FaultyFilesystem, Owner, broker_settings, open_log, read_all

WAYS = 4
"""How many different states of the disk are tried for each power cut."""


@pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])
@pytest.mark.parametrize("is_read", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("offset", [0, 95, 150])
def test_truncation_stopped_at_any_operation_is_never_damage(
    dirs: list[Path], clock: ManualClock, crash: bool, is_read: bool, offset: int
) -> None:
    for fail_at in range(100):
        shutil.rmtree(dirs[0], ignore_errors=True)
        fs = FaultyFilesystem(crash=crash)
        manager = LogManager(
            broker_settings(dirs[:1]), lambda t: SETTINGS, cluster_id="c", clock=clock, fs=fs
        )
        manager.start(background=False)
        log = lead(manager.create(A0, ID_A, SETTINGS))
        fill(log, 40)
        assert committed(manager, log) is None
        manager.checkpoints.store_recovery_points()
        data = read_all(log)
        if not is_read:
            manager.shutdown()
            manager = LogManager(
                broker_settings(dirs[:1]), lambda t: SETTINGS, cluster_id="c", clock=clock, fs=fs
            )
            manager.start(background=False)
            log = manager.get(A0)
        ends = {offset // 10 * 10, 400, *(one.base_offset for one in log.native.segments)}
        fs.fail_at = fs.operations + fail_at
        try:
            log.truncate_to(offset)
        except (KafkaStorageError, Crash):
            done = False
        else:
            done = True
        abandon(manager)
        again = LogManager(
            broker_settings(dirs[:1]), lambda t: SETTINGS, cluster_id="c", clock=clock
        )
        again.start(background=False)
        assert dict(again.offline) == {}
        found = read_all(again.get(A0))
        assert data.startswith(found)
        assert again.get(A0).log_end_offset >= offset // 10 * 10
        assert again.get(A0).log_end_offset in ends
        assert [path.name for path in again.get(A0).directory.glob("*.tmp")] == []
        if done:
            assert again.get(A0).log_end_offset == offset // 10 * 10
        abandon(again)
        if done:
            break
    else:
        pytest.fail("a truncation takes more operations than this test tries")
    assert fail_at > 5


@pytest.mark.parametrize("is_read", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("offset", [0, 95, 150])
def test_power_cut_at_any_operation_of_a_truncation_loses_only_what_it_removes(
    tmp_path: Path, is_read: bool, offset: int
) -> None:
    chance = random.Random(offset)
    step, is_cut = 0, True
    while is_cut:
        directory = tmp_path / f"{step}"
        log = open_log(directory, SETTINGS)
        fill(log, 40)
        data = read_all(log)
        log.close()
        fs, owner = LosingFilesystem(directory), Owner()
        log = open_log(directory, SETTINGS, known=Known(True), fs=fs, owner=owner, leader=is_read)
        fs.settle()
        fs.fail_at = fs.operations + step
        is_cut = False
        try:
            log.truncate_to(offset)
        except Crash:
            is_cut = True
        log.native.close()
        point = owner.lowered[-1] if owner.lowered else 400
        for way in range(WAYS):
            target = tmp_path / f"{step}-{way}"
            target.mkdir()
            for name, content in fs.left(chance).items():
                (target / name).write_bytes(content)
            known = Known(False, machine_restarted=True, recovery_point=point, durable_end=point)
            log = open_log(target, SETTINGS, known=known, leader=False)
            assert log.log_end_offset >= point
            assert data.startswith(read_all(log))
            log.close()
        step += 1
    assert step > 5


@pytest.mark.parametrize("offset", [0, 95, 150])
def test_truncation_refused_at_any_operation_can_be_repeated(
    dirs: list[Path], clock: ManualClock, offset: int
) -> None:
    """The disk is full. Afterwards the log goes on with other records."""
    whole = offset // 10 * 10
    for fail_at in range(100):
        shutil.rmtree(dirs[0], ignore_errors=True)
        fs = FaultyFilesystem(error=errno.ENOSPC)
        manager = LogManager(
            broker_settings(dirs[:1]), lambda t: SETTINGS, cluster_id="c", clock=clock, fs=fs
        )
        manager.start(background=False)
        log = lead(manager.create(A0, ID_A, SETTINGS))
        fill(log, 40)
        data = read_all(log)
        log.become_follower(1)
        fs.fail_at = fs.operations + fail_at
        is_refused = False
        try:
            log.truncate_to(offset)
        except KafkaStorageError:
            is_refused = True
            assert log.log_end_offset in (whole, 400)
            assert data.startswith(read_all(log))
            if log.log_end_offset == 400:
                assert list(log.directory.glob(f"*{SHORTER}")) == []
        fs.fail_at = -1
        if manager.get(A0) is log:  # a failed sync is final
            log.truncate_to(offset)
            assert log.log_end_offset == whole
            assert [path.name for path in log.directory.glob("*.tmp")] == []
            log.become_leader(1, sole_replica=True)
            fill(log, 3, start=whole // 10)
            assert committed(manager, log) is None
            data = read_all(log)
            abandon(manager)
            manager = LogManager(
                broker_settings(dirs[:1]), lambda t: SETTINGS, cluster_id="c", clock=clock
            )
            manager.start(background=False)
            assert read_all(manager.get(A0)) == data
        abandon(manager)
        if not is_refused:
            break
    else:
        pytest.fail("a truncation takes more operations than this test tries")
    assert fail_at > 5
