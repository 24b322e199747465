"""A log that was made in place of a lost one leads only once everything has been copied into it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from plog.errors import KafkaStorageError
from plog.storage import log_opening
from plog.storage.filesystem import Filesystem
from plog.storage.incomplete_mark import Lack
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.log_moves import LogMoves
from tests.descriptors import open_at

from .log_managers import A0, B0, ID_A, ID_B, SETTINGS, Start, abandon, lead
from .storage_logs import NOW_MS, batch


def incomplete(manager: LogManager) -> Log:
    return manager.create(A0, ID_A, SETTINGS, is_late=True, is_incomplete=True)


def copy_something(log: Log) -> None:
    log.become_follower(3)
    data = batch(5)
    data[12:16] = (3).to_bytes(4, "big")  # its leader epoch
    log.append_as_follower(data, leader_epoch=3, now_ms=NOW_MS)


def refuses_to_lead(log: Log) -> bool:
    try:
        log.become_leader(4, sole_replica=False)
    except KafkaStorageError as refusal:
        return "lost its log" in str(refusal)
    return False


def test_other_logs_may_lead(start: Start) -> None:
    manager = start()
    incomplete(manager)
    assert not refuses_to_lead(manager.create(B0, ID_B, SETTINGS))


@pytest.mark.parametrize("is_killed", [True, False])
def test_mark_outlives_a_restart_and_goes_for_good(start: Start, is_killed: bool) -> None:
    manager = start()
    copy_something(incomplete(manager))

    def restarted() -> Log:
        nonlocal manager
        if is_killed:
            abandon(manager)
        else:
            manager.shutdown()
        manager = start()
        log = manager.get(A0)
        assert log is not None
        return log

    log = restarted()
    assert log.log_end_offset == 5
    assert refuses_to_lead(log)
    log.become_follower(4)
    log.complete()
    assert not (log.directory / Lack.LOST_LOG.value).exists()
    assert not refuses_to_lead(log)
    assert not refuses_to_lead(restarted())


def test_mark_moves_with_the_log(start: Start, dirs: list[Path]) -> None:
    manager = start()
    log = incomplete(manager)
    copy_something(log)
    target = next(one for one in dirs if one != log.log_dir)
    LogMoves(manager, Filesystem()).move(A0, target)
    moved = manager.get(A0)
    assert moved is not None
    assert moved.log_dir == target
    assert refuses_to_lead(moved)


def test_mark_says_what_it_means(start: Start) -> None:
    log = incomplete(start())
    assert (
        (log.directory / Lack.LOST_LOG.value).read_text().startswith("This replica lost its log.")
    )
    with pytest.raises(KafkaStorageError, match="has not copied all records of a leader since"):
        lead(log)


def test_mark_that_cannot_be_read_leaves_no_file_open(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    lead(manager.create(A0, ID_A, SETTINGS))
    manager.shutdown()

    def fail(fs: Filesystem, directory: Path) -> Lack | None:
        raise OSError(errno.EMFILE, "Too many open files", str(directory))

    monkeypatch.setattr(log_opening, "lack_of", fail)
    assert start().get(A0) is None
    assert [file for one in dirs for file in open_at(one / str(A0))] == []
