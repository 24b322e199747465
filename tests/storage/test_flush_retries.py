from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog.runtime.clock import ManualClock
from plog.storage.log_manager import LogManager

from .log_managers import A0, A1, B0, ID_A, ID_B, SETTINGS, Start, committed, fill, lead


def committed_others(manager: LogManager) -> None:
    """Wait until the commit thread has done what it was asked for so far."""
    assert committed(manager, manager.create(A1, ID_A, SETTINGS)) is None


def test_flush_without_a_descriptor_is_tried_until_there_is_one(
    start: Start, dirs: list[Path], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start([dirs[0]])
    logs = [lead(manager.create(at, of, SETTINGS)) for at, of in ((A0, ID_A), (B0, ID_B))]
    answers: list[OSError | None] = []
    answered = threading.Semaphore(0)

    def done(error: OSError | None) -> None:
        answers.append(error)
        answered.release()

    faults.inject([Fault("open_directory", errno=errno.EMFILE)])
    for log in logs:
        fill(log, 1)
        manager.commit(log, done)
    for times in (1, 2, 3):
        committed_others(manager)
        assert sum("cannot be flushed yet" in line for line in caplog.messages) == times
        assert (answers, [log.durable_end for log in logs]) == ([], [0, 0])
        if times == 3:
            faults.inject([])
        clock.advance(1000)
        manager.scheduler.run_due()
    for _ in logs:
        assert answered.acquire(timeout=10)
    assert (answers, [log.durable_end for log in logs]) == ([None, None], [10, 10])
    assert manager.live_log_dirs == [dirs[0]]


def test_log_that_is_gone_is_not_flushed_again(
    start: Start, dirs: list[Path], clock: ManualClock
) -> None:
    manager = start([dirs[0]])
    log = lead(manager.create(A0, ID_A, SETTINGS))
    fill(log, 1)
    answers: list[OSError | None] = []
    faults.inject([Fault("open_directory", errno=errno.EMFILE, times=1)])
    manager.commit(log, answers.append)
    committed_others(manager)
    manager.delete(A0)
    clock.advance(1000)
    manager.scheduler.run_due()
    committed_others(manager)
    (error,) = answers
    assert error is not None
    assert manager.live_log_dirs == [dirs[0]]
