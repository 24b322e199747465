from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog.errors import KafkaStorageError
from plog.storage.live_log_dir import LiveLogDir
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


def test_disk_full_in_recovery_costs_that_partition_alone(start: Start, dirs: list[Path]) -> None:
    manager = start([dirs[0]])
    for tp in (A0, B0):
        fill(lead(manager.create(tp, ID_A, SETTINGS)), 20)
    manager.shutdown()
    (dirs[0] / ".kafka_cleanshutdown").unlink()
    for path in (dirs[0] / "a-0").glob("*.index"):
        path.unlink()  # to be built anew
    faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(dirs[0] / "a-0"))])
    again = start([dirs[0]])
    faults.inject([])
    assert again.live_log_dirs == [dirs[0]]
    assert "no space" in again.offline[A0]
    assert again.get(B0).log_end_offset == 200
    again.shutdown()
    # It has not been recovered: the next start must not take it for cleanly closed.
    assert not (dirs[0] / ".kafka_cleanshutdown").exists()
    assert start([dirs[0]]).get(A0).log_end_offset == 200


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
