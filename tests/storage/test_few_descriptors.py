"""Logs with few file descriptors: nothing goes offline for ever, and nothing is lost.

The first sweep fails every file call of Python's and of the kernels with EMFILE and ENFILE, the
second gives the process so many descriptors and no more. `tests/hosts/test_descriptors.py` does the
same to a broker.
"""

from __future__ import annotations

import errno
import random
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog._native.files import NO_DESCRIPTORS, NO_RESOURCES
from plog.errors import KafkaError, KafkaStorageError
from plog.storage.checkpoints import OffsetCheckpoint
from plog.storage.file_errors import REFUSALS
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import DAMAGED_PARTITIONS_FILE
from plog.storage.log import Log
from plog.storage.segment import SEGMENT_DESCRIPTORS
from plog.storage.segment_files import OFFSET_INDEX, path_of
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.descriptors import few_descriptors, open_at

from .failing_files import FailingFilesystem
from .log_managers import A0, ID_B, abandon, lead
from .test_failed_steps import (
    CHANGE_ROLE,
    COMPACTED,
    RESTARTS,
    STEPS,
    Stage,
    check_deleted,
    deletes,
    moves,
    prepared,
    recovers_damaged,
    repeats,
    rolls,
)

KERNEL_CALLS = ("open_directory", "pwritev", "pread", "ftruncate")
"""Those of the table that a step makes. A failed sync is final whatever its errno."""
LONG = [pytest.mark.long, pytest.mark.timeout(3000)]
CI_CASES = 12
CI_LIMITS = 12


def test_errors_of_a_want_of_descriptors_are_named_once() -> None:
    assert {errno.EMFILE, errno.ENFILE} == NO_DESCRIPTORS
    assert NO_DESCRIPTORS < NO_RESOURCES < REFUSALS


# -- every call fails ------------------------------------------------------------------------------


def check_files(log: Log) -> None:
    """Check that a log's files are open once: that no failed try to open it has left any."""
    files = SEGMENT_DESCRIPTORS * len(log.native.segments)
    assert len(open_at(log.directory)) == files


def goes_on(stage: Stage, restarts: bool, step: Callable[[Stage], None]) -> None:
    """Check that the log takes records when there are descriptors, and serves all of them."""
    stage.settle()
    manager = stage.manager
    assert manager.offline_log_dirs == []
    assert {at: why for at, why in manager.offline.items() if at == A0} == {}
    stage.check_one_directory()
    if step is deletes:
        check_deleted(stage)
    if step is recovers_damaged:
        check_files(stage.log)
    if restarts:
        lead(stage.log)
    stage.put(3)
    stage.log.flush()
    repeats(stage, step)
    aborted = stage.aborted()
    manager.shutdown()
    again = stage.start(Filesystem())
    try:
        assert dict(again.offline) == {}
        assert stage.aborted() == aborted
        start = stage.log.log_start_offset
        assert stage.served() == [one for one in stage.acknowledged if one >= start]
    finally:
        abandon(again)


def restarted(stage: Stage) -> bool:
    """Start again what a step has stopped, or could not start."""
    manager = stage.manager
    if manager._dirs and manager.logs():
        return False
    if not manager.offline:
        abandon(manager)
        stage.start()
    return True


def try_call(home: Path, step: Callable[[Stage], None], error: int, at: int, lasting: bool) -> bool:
    """Fail one of Python's operations of a step; False: there are not so many."""
    fs = FailingFilesystem(at, error, lasting=lasting, everything=True)
    stage = prepared(home, fs, step)
    with fs.armed():
        step(stage)
    restarts = restarted(stage) or step in (*RESTARTS, *CHANGE_ROLE)
    goes_on(stage, restarts, step)
    return bool(fs.failed)


def try_kernel_call(home: Path, step: Callable[[Stage], None], fault: Fault) -> None:
    stage = prepared(home, Filesystem(), step)
    faults.inject([fault])
    try:
        step(stage)
    finally:
        faults.inject([])
    restarts = restarted(stage) or step in (*RESTARTS, *CHANGE_ROLE)
    goes_on(stage, restarts, step)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("form", ["few", pytest.param("all", marks=LONG)])
def test_want_of_a_descriptor_at_any_call_is_no_failed_disk(
    tmp_path: Path, step: Callable[[Stage], None], form: str
) -> None:
    fs = FailingFilesystem(-1, errno.EMFILE, everything=True)
    stage = prepared(tmp_path / "count", fs, step)
    with fs.armed():
        step(stage)
    abandon(stage.manager)
    python = [
        (error, at, lasting)
        for error in sorted(NO_RESOURCES)
        for at in range(fs.count)
        for lasting in (False, True)
    ]
    kernel = [
        (call, error, after, times)
        for call in KERNEL_CALLS
        for error in sorted(NO_RESOURCES)
        for after in range(40)
        for times in (1, -1)
    ]
    if form == "few":
        chance = random.Random(run_seed())
        python = chance.sample(python, min(CI_CASES, len(python)))
        kernel = chance.sample(kernel, CI_CASES // 2)
    failed: list[str] = []
    for number, (error, at, lasting) in enumerate(python):
        try:
            try_call(tmp_path / f"p{number}", step, error, at, lasting)
        except Exception as fault:  # noqa: BLE001 - all that fail are listed together
            failed.append(f"{error} at {at}, {lasting}: {type(fault).__name__}: {fault}"[:400])
    for number, (call, error, after, times) in enumerate(kernel):
        rule = Fault(call, errno=error, after=after, times=times, path_prefix=str(tmp_path))
        try:
            try_kernel_call(tmp_path / f"k{number}", step, rule)
        except Exception as fault:  # noqa: BLE001 - all that fail are listed together
            line = f"{call} {error} after {after}, {times}: {type(fault).__name__}: {fault}"
            failed.append(line[:400])
    assert failed == [], f"{len(failed)} of {len(python) + len(kernel)}"


def test_log_whose_damage_cannot_be_forgotten_yet_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = prepared(tmp_path, Filesystem(), recovers_damaged)
    drop = OffsetCheckpoint.drop

    def fail(checkpoint: OffsetCheckpoint, tp: TopicPartition) -> None:
        if checkpoint.path.name == DAMAGED_PARTITIONS_FILE:
            raise OSError(errno.EMFILE, "Too many open files", str(checkpoint.path))
        drop(checkpoint, tp)

    directory = next(path for path in tmp_path.glob("*/a-0"))
    with monkeypatch.context() as patched:
        patched.setattr(OffsetCheckpoint, "drop", fail)
        stage.start()
        assert list(stage.manager.offline) == [A0]
        assert open_at(directory) == []
    stage.settle()
    check_files(stage.log)
    abandon(stage.manager)


def test_too_many_mapped_files_are_no_failed_disk(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Filesystem(), COMPACTED)
    stage.log.flush()
    stage.manager.shutdown()
    stage.start()
    lead(stage.log)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), before[1]))
    try:
        with pytest.raises(KafkaStorageError, match="Cannot allocate memory"):
            stage.log.read(stage.log.log_end_offset - 1, 100, stage.log.log_end_offset, True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    goes_on(stage, restarts=False, step=rolls)


@pytest.mark.parametrize("error", sorted(NO_RESOURCES))
@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_no_failed_sync_is_tried_again(tmp_path: Path, call: str, error: int) -> None:
    file = tmp_path / "file"
    fs = Filesystem()
    with fs.opened(file, create=True) as fd:
        faults.inject([Fault(call, errno=error, path_prefix=str(tmp_path))])
        try:
            with pytest.raises(OSError, match="sync") as caught:
                getattr(fs, call)(fd)
        finally:
            faults.inject([])
    assert caught.value.errno == errno.EIO


# -- so many, and no more --------------------------------------------------------------------------


def works(stage: Stage) -> None:
    """Create, roll, compact, snapshot, delete, as far as descriptors allow."""
    manager = stage.manager
    for number in range(12):
        with suppress(KafkaStorageError):
            lead(manager.create(TopicPartition("many", number), ID_B, COMPACTED))
    if manager.get(A0) is None:
        return
    for _ in range(12):
        with suppress(KafkaStorageError):
            stage.put(1)
    manager.scheduler.run_due()
    with suppress(KafkaStorageError):
        stage.log.flush()
    manager.cleaner.clean_now()
    if manager.get(TopicPartition("many", 0)) is not None:
        manager.delete(TopicPartition("many", 0))
    stage.clock.advance(1000)
    manager.scheduler.run_due()


def try_limit(home: Path, more: int) -> bool:
    """Work, stop, and start again with so many descriptors; False: too few for a start."""
    stage = Stage(home, Filesystem(), COMPACTED)
    stage.manager.shutdown()
    started, refusals = 0, list[str]()
    with few_descriptors(more):
        for _ in range(2):
            try:
                stage.start()
            except (KafkaError, OSError) as error:
                refusals.append(str(error))
                break
            started += 1
            manager = stage.manager
            manager.broker_started()
            stage.settle()
            assert manager.offline_log_dirs == []
            assert all("no file descriptor is left" in why for why in manager.offline.values())
            if manager.get(A0) is not None:
                lead(stage.log)
            works(stage)
            assert manager.offline_log_dirs == []
            manager.shutdown()
    assert started in (0, 2)
    assert all("Too many open files" in refusal for refusal in refusals)
    again = stage.start(Filesystem())
    try:
        stage.settle()
        assert dict(again.offline) == {}
        assert stage.served() == stage.acknowledged
    finally:
        abandon(again)
    return bool(started)


@pytest.mark.parametrize("form", ["few", pytest.param("all", marks=LONG)])
def test_logs_with_any_number_of_descriptors_serve_what_they_can(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = list(range(300))
    if form == "few":
        chance = random.Random(run_seed())
        limits = [
            *chance.sample(range(40), CI_LIMITS // 2),
            *chance.sample(range(40, 140), CI_LIMITS // 2),
        ]
    started = [try_limit(tmp_path / str(more), more) for more in limits]
    assert any(started)
    assert "a task failed" not in caplog.text
    assert "is offline with" not in caplog.text


# -- a file that is no file ------------------------------------------------------------------------


def turn_into_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def turn_into_loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def file_of(directory: Path, kind: str) -> Path:
    """Return the newest file of a kind in a partition's directory; its name, if there is none."""
    found = sorted(directory.glob(f"*{kind}"))
    return found[-1] if found else path_of(directory, 0, kind)


TURNS = pytest.mark.parametrize("turn", [turn_into_directory, turn_into_loop])
KINDS = pytest.mark.parametrize(
    "kind", [".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"]
)


@TURNS
@KINDS
def test_file_that_has_become_something_else_takes_its_own_partition_offline(
    tmp_path: Path, turn: Callable[[Path], None], kind: str
) -> None:
    stage = Stage(tmp_path, Filesystem(), COMPACTED)
    other = TopicPartition("other", 0)
    lead(stage.manager.create(other, ID_B, COMPACTED))
    directory = stage.log.directory
    stage.manager.shutdown()
    turn(file_of(directory, kind))
    again = stage.start(Filesystem())
    try:
        assert again.offline_log_dirs == []
        assert list(again.offline) == [A0]
        assert again.get(other) is not None
    finally:
        abandon(again)


@TURNS
@KINDS
def test_file_that_has_become_something_else_blames_no_disk_in_a_move(
    tmp_path: Path, turn: Callable[[Path], None], kind: str
) -> None:
    stage = Stage(tmp_path, Filesystem(), COMPACTED)
    other = TopicPartition("other", 0)
    lead(stage.manager.create(other, ID_B, COMPACTED))
    turn(file_of(stage.log.directory, kind))
    moves(stage)
    stage.settle()
    assert stage.manager.offline_log_dirs == []
    assert list(stage.manager.offline) == ([A0] if kind == ".txnindex" else [])
    assert stage.manager.get(other) is not None
    assert list(tmp_path.rglob("*-future")) == []
    abandon(stage.manager)


def test_path_that_is_wrong_while_a_log_is_served_takes_its_own_partition_offline(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, Filesystem(), COMPACTED)
    path_of(stage.log.directory, stage.log.log_end_offset, OFFSET_INDEX).mkdir()
    with pytest.raises(KafkaStorageError):
        stage.log.roll()
    stage.settle()
    assert stage.manager.offline_log_dirs == []
    assert list(stage.manager.offline) == [A0]
    abandon(stage.manager)
