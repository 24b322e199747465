from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.log_manager import LogManager

from .log_managers import A0, ID_A, SETTINGS, abandon, committed, fill, lead
from .storage_logs import Crash, FaultyFilesystem, broker_settings, read_all


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
