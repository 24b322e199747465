"""What the tests of log managers share: partitions, logs that lead, and ends as of a kill."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition

from .storage_logs import NOW_MS, Settings, batch

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ID_A, ID_B = uuid.UUID(int=10 << 64), uuid.UUID(int=11 << 64)
SETTINGS = Settings(segment_bytes=3000, index_interval_bytes=500, file_delete_delay_ms=1000)

Start = Callable[..., LogManager]
"""The fixture `start`."""


def abandon(manager: LogManager) -> None:
    """Leave everything as a killed process would: locks free, nothing flushed or written."""
    manager._give_up_spare()
    for log in manager.logs():
        log.drop()  # or its files stay open until the garbage collector comes
    for live in manager._dirs.values():
        live.group_commit.stop()
        live.durable_ends.close()
        live.log_dir.unlock()
    manager._dirs.clear()


def lead(log: Log) -> Log:
    log.become_leader(max(log.leader_epochs.latest, 0), sole_replica=True)
    return log


def fill(log: Log, batches: int, start: int = 0) -> None:
    for n in range(start, start + batches):
        data = batch(
            10, timestamp=NOW_MS + n, value=b"v" * 20, producer_id=4, epoch=0, sequence=10 * n
        )
        log.append_as_leader(data, now_ms=NOW_MS)


def with_one_log(
    start: Start, batches: int, settings: Settings = SETTINGS, **options: object
) -> tuple[LogManager, Log]:
    """Start a log manager and make A0, which leads and holds so many batches of `fill`."""
    manager = start(**options)
    log = lead(manager.create(A0, ID_A, settings))
    fill(log, batches)
    return manager, log


def committed(manager: LogManager, log: Log) -> OSError | None:
    answered = threading.Event()
    answers: list[OSError | None] = []

    def done(error: OSError | None) -> None:
        answers.append(error)
        answered.set()

    manager.commit(log, done)
    assert answered.wait(10)
    return answers[0]
