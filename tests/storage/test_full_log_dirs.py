from __future__ import annotations

import errno
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock

from .log_managers import A0, ID_A, SETTINGS, Start, fill, lead


def test_full_disk_is_told_once_and_so_is_its_end(
    start: Start, dirs: list[Path], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 1)

    def told() -> list[bool]:
        lines = [record.getMessage() for record in caplog.records]
        return ["is full" in line for line in lines if "writes are refused" in line]

    for expected in ([True], [True, False, True]):
        faults.inject([Fault("pwritev", errno=errno.ENOSPC, path_prefix=str(dirs[0]))])
        for _ in range(3):
            for _ in range(2):
                with pytest.raises(KafkaStorageError):
                    fill(log, 1, 1)
            assert told() == expected
            clock.advance(1000)
            manager.scheduler.run_due()
        faults.inject([])
        assert told() == expected
        clock.advance(1000)
        manager.scheduler.run_due()
        assert told() == [*expected, False]
        clock.advance(1000)
        manager.scheduler.run_due()
    assert told() == [True, False, True, False]
