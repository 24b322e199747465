from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog.storage.log_dir import CLEAN_SHUTDOWN_FILE

from .log_managers import A0, B0, ID_A, ID_B, SETTINGS, Start, committed, fill, lead
from .storage_logs import read_all


def test_checkpoints_are_kafkas(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 20)
    manager.create(B0, ID_B, SETTINGS)
    manager.get(A0).delete_records_before(57)
    assert committed(manager, manager.get(A0)) is None
    manager.checkpoints.store_recovery_points()
    manager.checkpoints.store_high_watermarks()
    manager.checkpoints.store_log_start_offsets()
    texts = {
        name: (dirs[0] / name).read_text()
        for name in (
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "log-start-offset-checkpoint",
        )
    }
    assert texts == {
        "recovery-point-offset-checkpoint": "0\n2\na 0 200\nb 0 0\n",
        "replication-offset-checkpoint": "0\n2\na 0 200\nb 0 0\n",
        "log-start-offset-checkpoint": "0\n1\na 0 57\n",
    }
    assert (dirs[0] / "a-0" / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")


def test_shutdown_without_a_descriptor_is_clean(start: Start, dirs: list[Path]) -> None:
    manager = start()
    for tp, topic_id in ((A0, ID_A), (B0, ID_B)):
        fill(lead(manager.create(tp, topic_id, SETTINGS)), 20)
    assert {log.log_dir for log in manager.logs()} == set(dirs)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(number) for number in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        manager.shutdown()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)
    assert all((log_dir / CLEAN_SHUTDOWN_FILE).exists() for log_dir in dirs)


def test_damaged_checkpoint_only_costs_time(
    start: Start, dirs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start([dirs[0]])
    fill(lead(manager.create(A0, ID_A, SETTINGS)), 20)
    manager.shutdown()
    (dirs[0] / "recovery-point-offset-checkpoint").write_text("junk")
    (dirs[0] / ".kafka_cleanshutdown").unlink()
    again = start([dirs[0]])
    assert again.get(A0).log_end_offset == 200
    assert "checkpoint ignored" in caplog.text


def test_disk_full_at_a_checkpoint_keeps_the_directory(
    start: Start, dirs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 3)
    assert committed(manager, log) is None
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(dirs[0]))])
    manager.checkpoints.store_recovery_points()
    manager.checkpoints.store_high_watermarks()
    # The leader epochs meet it first, as they come before the recovery point.
    assert caplog.text.count("No space left on device") == 3
    assert manager.live_log_dirs == [dirs[0]]
    assert manager.get(A0) is log
    assert len(read_all(log)) > 0
    faults.inject([])
    manager.checkpoints.store_recovery_points()
    assert (dirs[0] / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 30\n"


def test_failed_checkpoint_takes_the_directory_offline(start: Start, dirs: list[Path]) -> None:
    manager = start()
    manager.create(A0, ID_A, SETTINGS)
    faults.inject([Fault("fsync", errno=errno.EIO, path_prefix=str(dirs[0]))])
    manager.checkpoints.store_high_watermarks()
    assert manager.offline_log_dirs == [dirs[0]]
