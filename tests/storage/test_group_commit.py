from __future__ import annotations

import errno
import threading

from plog.errors import KafkaStorageError
from plog.storage.group_commit import GroupCommit


class SlowLog:
    """A log whose flush waits until it is let go."""

    def __init__(self) -> None:
        self.flushes = 0
        self.begun = threading.Event()
        self.go = threading.Event()

    def flush(self) -> int:
        self.flushes += 1
        self.begun.set()
        assert self.go.wait(10)
        return 0


class FailingLog:
    def flush(self) -> int:
        raise KafkaStorageError("no") from OSError(errno.EIO, "disk")


def test_wishes_during_a_flush_share_the_next_one() -> None:
    group = GroupCommit("test")
    log = SlowLog()
    answers: list[OSError | None] = []
    done = threading.Semaphore(0)

    def answer(error: OSError | None) -> None:
        answers.append(error)
        done.release()

    group.commit(log, answer)
    assert log.begun.wait(10)
    for _ in range(100):
        group.commit(log, answer)
    log.go.set()
    for _ in range(101):
        assert done.acquire(timeout=10)
    assert log.flushes == 2
    assert answers == [None] * 101
    group.stop()


def test_failed_flush_is_told_to_all_who_wait() -> None:
    group = GroupCommit("test")
    answers: list[OSError | None] = []
    group.commit(FailingLog(), answers.append)
    group.stop()
    (error,) = answers
    assert error is not None
    assert error.errno == errno.EIO


def test_stop_flushes_what_is_queued_and_refuses_more() -> None:
    group = GroupCommit("test")
    first, second = SlowLog(), SlowLog()
    first.go.set()
    second.go.set()
    answers: list[OSError | None] = []
    group.commit(first, answers.append)
    group.commit(second, answers.append)
    group.stop()
    assert answers == [None, None]
    group.commit(first, answers.append)
    assert answers[-1] is not None
    assert answers[-1].errno == errno.ESHUTDOWN
    group.stop()


def test_directory_that_is_never_written_needs_no_thread() -> None:
    before = threading.active_count()
    group = GroupCommit("test")
    assert threading.active_count() == before
    group.stop()
