"""In-sync sets over real structs: followers join and leave, and records are committed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from plog._native.partition_followers import MAY_JOIN, NOTED, are_enough, note_follower
from plog._native.partition_log import PartitionLog
from plog.cluster.leadership import Leadership
from plog.cluster.replication.alter_partition import RETRY_MS, Batch, Found, Written
from plog.cluster.replication.in_sync_keeper import InSyncKeeper
from plog.cluster.replication.isr import fresh_within_ms
from plog.cluster.replication.led_replicas import LedReplicas
from plog.errors import ErrorCode, NetworkException
from plog.runtime.clock import ManualClock
from plog.types import TopicPartition
from tests.storage.partition_logs import Directory, make_batch
from tests.waiting import until

AT = TopicPartition("t", 0)
EPOCH = 3
LAG_TIME_MS = 10_000
FRESH_WITHIN_MS = 3_000
NOW_MS = 1_700_000_000_000
Answer = Future[Mapping[TopicPartition, Found]]


class Stage:
    """A keeper of one partition that broker 0 leads. The controller answers when a test does."""

    def __init__(self, directory: Path, isr: tuple[int, ...], least_in_sync: int = 1) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[Batch, Answer]] = []
        self.changes: list[tuple[int, ...]] = []
        self.log = Directory(directory).log()
        self.log.set_leader(EPOCH, writable=True, sole_replica=False)
        self.keeper = InSyncKeeper(
            0,
            lag_time_ms=LAG_TIME_MS,
            fresh_within_ms=FRESH_WITHIN_MS,
            clock=self.clock,
            ask=self._ask,
            changed=lambda at, replicas: self.changes.append(replicas.isr),
        )
        self.replicas = self.lead(isr, least_in_sync)

    def lead(
        self,
        isr: tuple[int, ...],
        least_in_sync: int = 1,
        leader_epoch: int = EPOCH,
        replicas: tuple[int, ...] = (0, 1, 2),
    ) -> LedReplicas:
        leadership = Leadership(0, leader_epoch, isr, replicas, 5, 1)
        led = self.keeper.lead(AT, self.log, leadership, least_in_sync=least_in_sync)
        self.keeper.run_due()
        return led

    def _ask(self, batch: Batch) -> Answer:
        self.asked.append((batch, Answer()))
        return self.asked[-1][1]

    def append(self, count: int) -> None:
        self.log.append(make_batch(count, 100), NOW_MS)

    def fetch(self, broker_id: int, position: int | None = None) -> None:
        """A fetch of a follower comes, by default of all that there is."""
        at = self.log.log_end_offset if position is None else position
        now_ms = self.clock.since_boot_ms()
        status = note(self.log, broker_id, at, now_ms)
        assert status in (NOTED, MAY_JOIN)
        if status == MAY_JOIN:
            self.keeper.hint(AT, broker_id)
        self.keeper.run_due()

    def pass_(self, ms: int, *, fetching: tuple[int, ...] = ()) -> None:
        """Let time pass; some go on fetching."""
        for _ in range(ms // 500):
            self.clock.advance(500)
            for broker_id in fetching:
                self.fetch(broker_id)
            self.keeper.run_due()

    @property
    def counts(self) -> tuple[int, int]:
        return self.keeper.shrinks, self.keeper.expands

    def proposed(self) -> list[set[int]]:
        return [set(batch[AT].isr) for batch, _ in self.asked]

    def answer(self, found: Found) -> None:
        self.asked[-1][1].set_result({AT: found})
        self.keeper.run_due()

    def accept(self) -> None:
        batch, _ = self.asked[-1]
        one = batch[AT]
        self.answer(Written(one.leader_epoch, tuple(sorted(one.isr)), one.partition_epoch + 1))


def test_follower_that_has_caught_up_counts_before_the_controller_is_asked(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1))
    stage.append(5)
    stage.fetch(1)
    stage.fetch(2, 4)
    assert (stage.log.high_watermark, stage.asked) == (5, [])
    stage.fetch(2)
    assert stage.proposed() == [{0, 1, 2}]
    assert stage.asked[0][0][AT].members == ((0, -1), (1, 7), (2, 7))
    stage.append(5)
    stage.fetch(1)
    assert stage.log.high_watermark == 5, "what 2 lacks is not committed, though it may not be in"
    stage.accept()
    assert (stage.changes, stage.replicas.partition_epoch) == ([(0, 1, 2)], 6)
    stage.fetch(2)
    assert stage.log.high_watermark == 10


def test_late_follower_counts_until_the_controller_has_agreed(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1, 2))
    stage.append(5)
    stage.pass_(LAG_TIME_MS, fetching=(1,))
    assert stage.asked == []
    stage.pass_(LAG_TIME_MS, fetching=(1,))
    assert stage.proposed() == [{0, 1}]
    assert stage.log.high_watermark == 0
    stage.accept()
    assert (stage.changes, stage.log.high_watermark) == ([(0, 1)], 5)


def test_question_without_an_answer_is_asked_again_and_the_follower_counts_meanwhile(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path / "t-0", (0,))
    stage.fetch(1)
    assert stage.proposed() == [{0, 1}]
    stage.asked[-1][1].set_exception(NetworkException("lost"))
    stage.keeper.run_due()
    stage.append(5)
    assert stage.log.high_watermark == 0
    stage.clock.advance(RETRY_MS)
    stage.keeper.run_due()
    assert stage.proposed() == [{0, 1}] * 2
    stage.asked[-1][1].set_exception(RuntimeError("a bug"))
    stage.keeper.run_due()
    stage.clock.advance(2 * RETRY_MS)
    stage.keeper.run_due()
    stage.accept()
    assert stage.changes == [(0, 1)]


def test_refused_joiner_does_not_count(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0,))
    stage.fetch(1)
    stage.append(5)
    assert stage.log.high_watermark == 0
    stage.answer(ErrorCode.INELIGIBLE_REPLICA)
    assert (stage.changes, stage.log.high_watermark) == ([], 5)


def test_pause_of_the_process_makes_no_follower_late(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1, 2))
    stage.append(5)
    stage.clock.advance(10 * LAG_TIME_MS)
    stage.keeper.run_due()
    assert stage.asked == []
    stage.pass_(LAG_TIME_MS, fetching=(1, 2))
    assert stage.asked == []
    assert stage.log.high_watermark == 5


def test_too_few_in_sync_refuse_acks_all_until_one_joins(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0,), least_in_sync=2)
    assert not are_enough(stage.log)
    stage.fetch(1)
    assert are_enough(stage.log)
    stage.append(5)
    assert stage.log.high_watermark == 0
    stage.accept()
    stage.fetch(1)
    assert stage.log.high_watermark == 5
    stage.replicas.set_least_in_sync(3)
    assert not are_enough(stage.log)


def test_answer_of_an_earlier_epoch_changes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0,))
    stage.fetch(1)
    stage.log.set_leader(EPOCH + 1, writable=True, sole_replica=False)
    stage.lead((0, 2), leader_epoch=EPOCH + 1)
    stage.accept()
    assert stage.changes == []
    stage.append(5)
    assert stage.log.high_watermark == 0, "2 counts, as the later epoch has it"
    stage.clock.advance(RETRY_MS)
    stage.keeper.run_due()
    assert len(stage.asked) == 1


def test_broker_that_leads_no_more_asks_no_more(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0,))
    stage.fetch(1)
    stage.asked[-1][1].set_exception(NetworkException("lost"))
    stage.keeper.cease(AT)
    stage.keeper.hint(AT, 2)
    stage.keeper.run_due()
    stage.pass_(3 * LAG_TIME_MS)
    assert len(stage.asked) == 1


def test_log_that_moved_to_another_directory_waits_for_its_followers(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1))
    stage.append(5)
    stage.fetch(1)
    moved: PartitionLog = Directory(tmp_path / "moved").log()
    moved.set_leader(EPOCH, writable=True, sole_replica=False)
    moved.append(make_batch(5, 100), NOW_MS)
    stage.replicas.move_to(moved)
    stage.log = moved
    assert moved.high_watermark == 0
    stage.fetch(1)
    assert moved.high_watermark == 5


def test_changes_are_counted_once_the_controller_has_agreed(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1))
    stage.fetch(2)
    assert stage.counts == (0, 0)
    stage.accept()
    assert stage.counts == (0, 1)
    stage.append(5)
    stage.pass_(2 * LAG_TIME_MS, fetching=(1,))
    assert stage.counts == (0, 1)
    stage.accept()
    assert stage.counts == (1, 1)
    stage.fetch(2)
    stage.answer(ErrorCode.INELIGIBLE_REPLICA)
    assert stage.counts == (1, 1)


def test_changes_by_the_controller_are_counted(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1, 2))
    for number, (isr, counts) in enumerate(
        [((0, 2), (1, 0)), ((0, 2), (1, 0)), ((0, 1), (2, 1)), ((0, 1, 2), (2, 2))], 1
    ):
        stage.log.set_leader(EPOCH + number, writable=True, sole_replica=False)
        stage.lead(isr, leader_epoch=EPOCH + number)
        assert stage.counts == counts
    stage.keeper.cease(AT)
    stage.log.set_leader(EPOCH + 9, writable=True, sole_replica=False)
    stage.lead((0,), leader_epoch=EPOCH + 9)
    assert stage.counts == (2, 2), "what other leaders have done is theirs"


def test_replica_that_is_moved_away_has_not_left(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1, 2))
    stage.log.set_leader(EPOCH + 1, writable=True, sole_replica=False)
    stage.lead((0, 1), leader_epoch=EPOCH + 1, replicas=(0, 1))
    assert stage.counts == (0, 0)


def test_leader_is_fresh_while_all_that_count_follow_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1, 2))
    replicas = stage.replicas
    stage.fetch(1)
    stage.fetch(2)
    assert not replicas.is_fresh, "these may have waited in a socket since before another led"
    stage.fetch(1)
    assert not replicas.is_fresh
    stage.fetch(2)
    assert replicas.is_fresh
    stage.pass_(FRESH_WITHIN_MS, fetching=(1,))
    assert replicas.is_fresh
    stage.pass_(500, fetching=(1,))
    assert not replicas.is_fresh, "broker 2 may lead by now"


def test_leader_that_was_stopped_is_fresh_once_all_have_asked_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1))
    for _ in range(2):
        stage.fetch(1)
    assert stage.replicas.is_fresh
    stage.clock.suspend(FRESH_WITHIN_MS + 1)
    assert not stage.replicas.is_fresh
    stage.fetch(1)
    assert not stage.replicas.is_fresh, "sent before the stop, read after it"
    stage.fetch(1)
    assert stage.replicas.is_fresh


def test_leader_is_fresh_only_by_fetches_in_its_epoch(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0, 1))
    for _ in range(2):
        stage.fetch(1)
    assert stage.replicas.is_fresh
    stage.log.set_leader(EPOCH + 1, writable=True, sole_replica=False)
    assert not stage.replicas.is_fresh, "the struct has no followers for a moment"
    assert not stage.lead((0, 1), leader_epoch=EPOCH + 1).is_fresh


def test_leader_without_others_in_sync_is_fresh(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0,))
    assert stage.replicas.is_fresh, "no other broker can be elected"
    stage.fetch(1)
    assert stage.asked
    assert not stage.replicas.is_fresh, "broker 1 may be in sync by now, and elected"
    stage.fetch(1)
    assert stage.replicas.is_fresh


@pytest.mark.parametrize(
    ("lag_time_ms", "session_ms", "fetch_wait_ms", "within_ms"),
    [(30_000, 18_000, 500, 9_000), (4_000, 18_000, 500, 4_000), (30_000, 1_000, 500, 2_000)],
)
def test_fetches_are_fresh_for_less_than_an_election_takes(
    lag_time_ms: int, session_ms: int, fetch_wait_ms: int, within_ms: int
) -> None:
    assert fresh_within_ms(lag_time_ms, session_ms, fetch_wait_ms) == within_ms


def note(log: PartitionLog, broker_id: int, position: int, now_ms: int) -> int:
    return note_follower(
        log,
        broker_id,
        position,
        broker_epoch=7,
        leader_epoch=EPOCH,
        log_start_offset=0,
        now_ms=now_ms,
    )


def test_thread_does_the_same(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "t-0", (0,))
    stage.keeper.start()
    try:
        note(stage.log, 1, 0, now_ms=0)
        stage.keeper.hint(AT, 1)
        until(lambda: stage.asked)
        stage.asked[0][1].set_result({AT: Written(EPOCH, (0, 1), 6)})
        until(lambda: stage.changes)
    finally:
        stage.keeper.stop()
    assert stage.changes == [(0, 1)]
