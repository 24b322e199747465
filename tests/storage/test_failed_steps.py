"""Every step of a roll, a compaction, a move, a recovery and others fails at each operation.

Then records are appended, the step is done again, the broker stops cleanly and starts on a disk
that works: nothing that a failed step has left is taken for damage, and every acknowledged record
is served, under its leader epoch. A want of descriptors and a full disk take nothing offline, not
even until then.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from plog._native.batch import scan
from plog._native.records import build_batch, walk
from plog.errors import KafkaError
from plog.runtime.clock import ManualClock
from plog.settings.definitions import TopicSettings
from plog.storage.filesystem import Filesystem
from plog.storage.full_log_dirs import LOOK_MS
from plog.storage.late_recovery import MOST_WAIT_MS
from plog.storage.live_log_dir import slot_key
from plog.storage.log import Log
from plog.storage.log_manager import SAY_AGAIN_MS, LogManager
from plog.storage.log_moves import LogMoves
from plog.storage.producer_state import Marker
from plog.storage.transaction_index import AbortedTransaction
from plog.types import TopicPartition
from tests.agreement.harness import run_seed

from .failing_files import ERRNOS, FailingFilesystem
from .log_managers import A0, A1, ID_A, abandon, lead
from .storage_logs import NOW_MS, Settings, append_verified, batch, broker_settings, read_all

REFUSALS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
RENAMES_WORK = REFUSALS - {errno.ENOMEM}
"""Errors that leave most operations alone; EIO and ENOMEM fail any of them."""
LONG = [pytest.mark.long, pytest.mark.timeout(3000)]
CI_CASES = 16
"""So many cases of each step in a run of CI; the long form tries all."""

COMPACTED = Settings(
    cleanup_policy="compact",
    segment_bytes=1000,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0,
    file_delete_delay_ms=1000,
)
LARGER = Settings(
    cleanup_policy="compact",
    segment_bytes=100_000,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0,
    file_delete_delay_ms=1000,
)
PRODUCERS = (50, 51)
ABORT = Marker(abort=True, coordinator_epoch=1)
UNBOUNDED = Settings(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=1000)
BOUNDED = Settings(
    retention_bytes=2000, segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=1000
)


class Case(NamedTuple):
    """Which operation of a step fails, with what, and what comes after it."""

    error: int
    fail_at: int
    lasting: bool
    settings_change: bool
    repeated: bool


class Stage:
    """A broker's logs on two directories, one of whose operations fails."""

    def __init__(self, home: Path, fs: Filesystem, settings: TopicSettings) -> None:
        self.dirs = [home / "one", home / "two"]
        self.fs = fs
        self.clock = ManualClock(NOW_MS)
        self.settings = settings
        self.acknowledged: list[int] = []
        self.manager = self.start()
        lead(self.manager.create(A0, ID_A, settings))
        self.put(22)
        self.settle()

    def manager_of(self, fs: Filesystem) -> LogManager:
        return LogManager(
            broker_settings(self.dirs, num_recovery_threads_per_data_dir=1),
            lambda topic: self.settings,
            cluster_id="cluster",
            clock=self.clock,
            fs=fs,
        )

    def start(self, fs: Filesystem | None = None) -> LogManager:
        self.manager = self.manager_of(fs or self.fs)
        self.manager.start(background=False)
        return self.manager

    @property
    def log(self) -> Log:
        log = self.manager.get(A0)
        assert log is not None
        return log

    def add_cleaned(self, tp: TopicPartition) -> None:
        """Create another partition, and compact it."""
        log = lead(self.manager.create(tp, ID_A, self.settings))
        for number in range(22):
            data = build_batch([(NOW_MS, b"%d" % number, b"v" * 100, ())])
            log.append_as_leader(bytearray(data), now_ms=NOW_MS)
        log.roll()
        log.flush()
        self.manager.cleaner.clean_now()
        assert tp in self.manager.dirs[log.log_dir].cleaner_offsets.stored

    def put(self, count: int) -> None:
        for _ in range(count):
            number = len(self.acknowledged)
            data = build_batch([(NOW_MS, b"%d" % number, b"v" * 100, ())])
            self.log.append_as_leader(bytearray(data), now_ms=NOW_MS)
            self.acknowledged.append(number)

    def count_records(self) -> None:
        """Expect the records that the log has, after a truncation."""
        if self.manager.get(A0) is not None:
            self.acknowledged = list(range(self.log.log_end_offset))

    def aborted(self) -> list[AbortedTransaction]:
        return self.log.transactions.aborted_between(0, self.log.log_end_offset)

    def settle(self) -> None:
        """Let everything be done that is due by itself."""
        for wait_ms in (LOOK_MS, SAY_AGAIN_MS, MOST_WAIT_MS):
            self.clock.advance(wait_ms)
            self.manager.scheduler.run_due()
            self.manager.late_recovery.look()
            self.manager.late_recovery.wait()

    def check_one_directory(self) -> None:
        """Check that neither a copy nor an original is left of a move."""
        (found,) = (found for path in self.dirs for found in path.glob(f"{A0}*"))
        assert found == self.log.directory

    def served(self) -> list[int]:
        """Return the keys of all records, after a check of their leader epochs."""
        data = read_all(self.log)
        headers = scan(data)
        for header in headers:
            listed = self.log.epoch_at(header.base_offset)
            # -1: retention forgets the epoch of a segment before it removes it.
            assert listed in (header.partition_leader_epoch, -1)
        return [
            int(record.key or b"")
            for header in headers
            if header.records_count and not header.is_transactional
            for record in walk(data[header.position : header.position + header.size_bytes])
        ]


def rolls(stage: Stage) -> None:
    with suppress(KafkaError):
        stage.put(8)
    stage.manager.scheduler.run_due()


def compacts(stage: Stage) -> None:
    stage.manager.cleaner.clean_now()


def moves(stage: Stage) -> None:
    target = next(path for path in stage.dirs if path != stage.log.log_dir)
    with suppress(KafkaError):
        LogMoves(stage.manager, stage.fs).move(A0, target)
    stage.manager.scheduler.run_due()


def recovers(stage: Stage) -> None:
    abandon(stage.manager)
    with suppress(KafkaError):
        stage.start()


def recovers_damaged(stage: Stage) -> None:
    with suppress(KafkaError):
        stage.start()


def stops(stage: Stage) -> None:
    stage.manager.shutdown()


def creates(stage: Stage) -> None:
    with suppress(KafkaError):
        lead(stage.manager.create(A1, ID_A, stage.settings))
    stage.manager.scheduler.run_due()


def deletes(stage: Stage) -> None:
    with suppress(KafkaError):
        stage.manager.delete(A1)


def check_deleted(stage: Stage) -> None:
    """Check that a deletion that was refused can be asked for again, and leaves nothing."""
    manager = stage.manager
    if A1 in manager.offline:
        manager.delete(A1)
        stage.settle()
    assert [found for path in stage.dirs for found in path.glob(f"{A1}*")] == []
    for live in manager.dirs.values():
        assert A1 not in {**live.cleaner_offsets.stored, **live.gaps.stored}
        assert slot_key(A1, ID_A) not in set(live.durable_ends.keys())
    lead(manager.create(A1, ID_A, stage.settings))


def retains(stage: Stage) -> None:
    with suppress(KafkaError):
        stage.log.apply_retention(NOW_MS)
    stage.manager.scheduler.run_due()


def checkpoints(stage: Stage) -> None:
    stage.manager.checkpoints.store_recovery_points()
    stage.manager.checkpoints.store_high_watermarks()


def leads(stage: Stage) -> None:
    with suppress(KafkaError):
        stage.log.become_leader(stage.log.leader_epochs.latest + 1, sole_replica=True)
        stage.put(1)
        stage.log.flush()
    stage.manager.checkpoints.store_recovery_points()  # before that the epoch is on disk


def truncates(stage: Stage) -> None:
    follow(stage, lambda log: log.truncate_to(12))


def begins_elsewhere(stage: Stage) -> None:
    """Remove all records. Tried with errors of RENAMES_WORK only.

    A flush can make the new start durable while the old segment, empty by then, is still there.
    Recovery after a crash at that moment takes the gap for damage.
    """
    follow(stage, lambda log: log.restart_at(100))


def follow(stage: Stage, change: Callable[[Log], object]) -> None:
    log = stage.log
    log.become_follower(log.leader_epochs.latest + 1)
    with suppress(KafkaError):
        change(log)
    stage.count_records()


def aborts(stage: Stage) -> None:
    log = stage.log
    for producer in PRODUCERS:
        with suppress(KafkaError):
            log.transactions.append_marker(producer, 0, ABORT, now_ms=NOW_MS)


STEPS = [
    rolls,
    compacts,
    moves,
    recovers,
    recovers_damaged,
    stops,
    creates,
    deletes,
    retains,
    checkpoints,
    leads,
    truncates,
    begins_elsewhere,
    aborts,
]
RESTARTS = (recovers, recovers_damaged, stops)
TRUNCATE = [truncates, begins_elsewhere]
CHANGE_ROLE = [leads, *TRUNCATE]
REPEATED = [rolls, compacts, moves, retains, checkpoints, aborts, *CHANGE_ROLE]
"""The steps that a running broker does again after a failure."""


def repeats(stage: Stage, step: Callable[[Stage], None]) -> None:
    """Append some segments, and do a failed step again; on a disk that works."""
    if step in REPEATED:
        stage.put(12)
        stage.log.flush()
        step(stage)


def prepared(home: Path, fs: Filesystem, step: Callable[[Stage], None]) -> Stage:
    settings = {retains: BOUNDED, aborts: UNBOUNDED, **dict.fromkeys(TRUNCATE, UNBOUNDED)}
    stage = Stage(home, fs, settings.get(step, COMPACTED))
    if step is aborts:
        for producer in PRODUCERS:
            data = batch(producer_id=producer, epoch=0, sequence=0, transactional=True)
            append_verified(stage.log, data)
    if step is compacts:
        stage.log.roll()
        stage.log.flush()
    if step is moves:
        stage.log.become_leader(7, sole_replica=True)  # an epoch that has no record yet
    if step is deletes:
        stage.add_cleaned(A1)
    if step is recovers_damaged:
        stage.log.flush()
        stage.manager.on_damage(stage.log, "a test says so")
        stage.settle()
        stage.manager.shutdown()
    if step is retains:
        stage.put(12)
        stage.log.flush()
    return stage


def operations(home: Path, step: Callable[[Stage], None], error: int) -> int:
    """Return how many operations a step has that may fail with an errno."""
    fs = FailingFilesystem(-1, error)
    stage = prepared(home, fs, step)
    with fs.armed():
        step(stage)
    abandon(stage.manager)
    return fs.count


def run(home: Path, step: Callable[[Stage], None], case: Case) -> None:
    fs = FailingFilesystem(case.fail_at, case.error, lasting=case.lasting)
    stage = prepared(home, fs, step)
    with fs.armed():
        step(stage)
    manager = stage.manager
    restarts = step in RESTARTS or not manager.logs()
    if not manager._dirs or not manager.logs():  # the start or the stop was cut short
        with suppress(KafkaError):
            manager.shutdown()
        abandon(manager)
        manager = stage.start()
        if step in TRUNCATE:
            stage.count_records()
    stage.settle()
    if case.error in REFUSALS:
        assert manager.offline_log_dirs == []
        assert {tp for tp in manager.offline if tp != A1} == set()
        if step is deletes:
            check_deleted(stage)
        stage.check_one_directory()
    if manager.get(A0) is not None:
        if case.settings_change:
            stage.log.update_settings(LARGER)
        if restarts or step in CHANGE_ROLE:  # else it is the leader that it was
            lead(stage.log)
        if case.error in REFUSALS:
            stage.put(2)
            stage.log.flush()
            if case.repeated:
                repeats(stage, step)
        else:
            with suppress(KafkaError):
                stage.put(2)
    aborted = stage.aborted() if case.error in REFUSALS else None
    manager.shutdown()
    again = stage.start(Filesystem())
    try:
        assert dict(again.offline) == {}
        log_start_offset = stage.log.log_start_offset
        if step in TRUNCATE and case.error not in REFUSALS:
            stage.count_records()  # a failed disk may have kept some that were to go
        if aborted is not None:
            assert stage.aborted() == aborted
            assert len(aborted) == len(PRODUCERS) or step is not aborts or not case.repeated
        assert stage.served() == [one for one in stage.acknowledged if one >= log_start_offset]
    finally:
        abandon(again)


def all_cases(home: Path, step: Callable[[Stage], None]) -> list[Case]:
    return [
        Case(error, fail_at, lasting, settings_change, repeated)
        for error in ERRNOS
        if error in RENAMES_WORK or step is not begins_elsewhere
        for fail_at in range(operations(home / f"count-{error}", step, error))
        for lasting in (False, True)
        for settings_change in (False, True)
        for repeated in (False, True)[: 1 + (step in REPEATED and error in REFUSALS)]
    ]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("form", ["few", pytest.param("all", marks=LONG)])
def test_nothing_that_a_failed_step_leaves_is_taken_for_damage(
    tmp_path: Path, step: Callable[[Stage], None], form: str
) -> None:
    cases = all_cases(tmp_path, step)
    assert {case.error for case in cases} >= (
        RENAMES_WORK if step is begins_elsewhere else {errno.EIO}
    )
    if form == "few":
        cases = random.Random(run_seed()).sample(cases, min(CI_CASES, len(cases)))
    faults: list[str] = []
    for number, case in enumerate(cases):
        try:
            run(tmp_path / str(number), step, case)
        except Exception as error:  # noqa: BLE001 - all that fail are listed together
            faults.append(f"{case}: {type(error).__name__}: {str(error)[:300]}")
    assert faults == [], f"{len(faults)} of {len(cases)} cases"


@pytest.mark.parametrize("error", sorted(REFUSALS))
def test_recovery_point_does_not_pass_an_aborted_transaction_that_is_not_on_disk(
    tmp_path: Path, error: int
) -> None:
    count = operations(tmp_path / "count", aborts, error)
    assert count > 0
    for fail_at in range(count):
        fs = FailingFilesystem(fail_at, error)
        stage = prepared(tmp_path / str(fail_at), fs, aborts)
        with fs.armed():
            aborts(stage)
        aborts(stage)
        stage.put(12)
        stage.log.flush()
        stage.manager.checkpoints.store_recovery_points()
        aborted = stage.aborted()
        abandon(stage.manager)
        again = stage.start(Filesystem())
        assert [one.producer_id for one in stage.aborted()] == [*PRODUCERS]
        assert stage.aborted() == aborted
        abandon(again)
