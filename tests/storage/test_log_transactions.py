"""Transactions as one log has them: who may begin one, how it ends, and what a crash leaves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plog._native.batch import read_header
from plog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    NotLeaderOrFollower,
    TransactionCoordinatorFenced,
)
from plog.storage.log import Log
from plog.storage.producer_state import Marker
from plog.storage.transaction_index import AbortedTransaction
from tests.agreement.harness import run_seed
from tests.storage.storage_logs import approved

from .storage_logs import NOW_MS, FaultyFilesystem, Settings, append_verified, batch, open_log

COMMIT, ABORT = Marker(abort=False, coordinator_epoch=1), Marker(abort=True, coordinator_epoch=1)


def part(sequence: int, count: int = 1, *, producer_id: int = 5, epoch: int = 0) -> bytearray:
    return batch(count, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)


def end(log: Log, marker: Marker, *, producer_id: int = 5, epoch: int = 0) -> int:
    return log.transactions.append_marker(producer_id, epoch, marker, now_ms=NOW_MS).base_offset


def aborted(log: Log) -> list[AbortedTransaction]:
    return log.transactions.aborted_between(0, log.log_end_offset)


def test_later_epoch_goes_on_with_what_is_open_until_a_marker_comes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_verified(log, part(0))
    append_verified(log, part(0, epoch=1))
    plain = batch(1, producer_id=5, epoch=2, sequence=0)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(plain, now_ms=NOW_MS)
    assert log.transactions.has_open(5)
    assert log.last_stable_offset == 0
    end(log, ABORT, epoch=1)
    assert not log.transactions.has_open(5)
    assert not log.transactions.has_open(6)
    assert log.last_stable_offset == log.log_end_offset == 3
    log.close()


# -- beginning -------------------------------------------------------------------------------------


def test_batch_begins_a_transaction_with_a_guard_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(part(0), now_ms=NOW_MS)
    guard = approved(log, part(0))
    assert guard is not None
    assert approved(log, part(0)) == guard
    log.append_as_leader(part(0), now_ms=NOW_MS, guard=guard)
    assert approved(log, part(1)) is None
    log.append_as_leader(part(1), now_ms=NOW_MS)
    assert (log.last_stable_offset, log.log_end_offset) == (0, 2)
    log.close()


def test_guard_is_of_one_producer_and_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = approved(log, part(0))
    for other in (part(0, producer_id=6), part(0, epoch=1)):
        with pytest.raises(InvalidTxnState):
            log.append_as_leader(other, now_ms=NOW_MS, guard=guard)
    log.append_as_leader(part(0), now_ms=NOW_MS, guard=guard)
    log.close()


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
def test_marker_takes_the_guard_away(tmp_path: Path, marker: Marker) -> None:
    log = open_log(tmp_path)
    guard = approved(log, part(0))
    end(log, marker)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(part(0), now_ms=NOW_MS, guard=guard)
    assert append_verified(log, part(0)) == 1
    log.close()


def test_marker_of_its_own_epoch_leaves_the_guard_of_the_next_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_verified(log, part(0))
    late = approved(log, part(0, producer_id=6))
    guard = approved(log, part(0, epoch=1), from_zero=True)
    end(log, COMMIT._replace(has_own_epoch=True), epoch=1)
    log.append_as_leader(part(0, epoch=1), now_ms=NOW_MS, guard=guard)
    end(log, COMMIT._replace(has_own_epoch=True), epoch=1, producer_id=6)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(part(0, producer_id=6, epoch=1), now_ms=NOW_MS, guard=late)
    log.close()


def test_earlier_epoch_takes_no_guard_away(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = approved(log, part(0, epoch=1))
    late = approved(log, part(0))
    assert late is not None
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(part(0), now_ms=NOW_MS, guard=late)
    log.transactions.refuse(late)
    log.append_as_leader(part(0, epoch=1), now_ms=NOW_MS, guard=guard)
    log.close()


def test_batch_of_an_earlier_epoch_ends_no_guard_of_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = approved(log, part(0))
    second = log.transactions.guard_for(read_header(part(0, epoch=1)), from_zero=True)
    assert second is not None
    log.append_as_leader(part(0), now_ms=NOW_MS, guard=first)
    end(log, ABORT._replace(has_own_epoch=True), epoch=1)
    log.transactions.approve(second)
    log.append_as_leader(part(0, epoch=1), now_ms=NOW_MS, guard=second)
    assert log.transactions.has_begun(5, 1)
    log.close()


def test_guard_that_two_ask_for_is_kept_by_the_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guards = [approved(log, part(0)) for _ in range(2)]
    assert guards[0] == guards[1]
    log.transactions.refuse(guards[0])
    log.append_as_leader(part(0), now_ms=NOW_MS, guard=guards[1])
    log.close()


def test_guard_that_is_refused_lets_nothing_begin(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = approved(log, part(0))
    assert guard is not None
    log.transactions.refuse(guard)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(part(0), now_ms=NOW_MS, guard=guard)
    log.close()


def test_guard_of_the_log_before_is_to_be_asked_for_again(tmp_path: Path) -> None:
    before = open_log(tmp_path)
    guard = approved(before, part(0))
    own = before.transactions.guard_for_producer(6, 0)
    before.close()
    log = open_log(tmp_path)
    with pytest.raises(NotLeaderOrFollower, match="a log that was replaced"):
        log.append_as_leader(part(0), now_ms=NOW_MS, guard=guard)
    with pytest.raises(NotLeaderOrFollower, match="a log that was replaced"):
        log.transactions.append_for_coordinator(part(-1, producer_id=6), now_ms=NOW_MS, guard=own)
    assert append_verified(log, part(0)) == 0
    log.close()


def test_repeated_batch_needs_no_guard(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_verified(log, part(0))
    end(log, COMMIT)
    assert approved(log, part(0)) is None
    assert log.append_as_leader(part(0), now_ms=NOW_MS).base_offset == 0
    assert log.log_end_offset == 2
    log.close()


def test_coordinator_writes_without_numbers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    own = log.transactions.append_for_coordinator
    with pytest.raises(InvalidTxnState):
        own(part(-1), now_ms=NOW_MS, guard=None)
    guard = log.transactions.guard_for_producer(5, 0)
    assert guard is not None
    log.transactions.approve(guard)
    for _ in range(3):
        own(part(-1), now_ms=NOW_MS, guard=guard)
    assert log.transactions.guard_for_producer(5, 0) is None
    (entry,) = log.native.producers()
    assert {(b.first_sequence, b.last_sequence) for b in entry.batches} == {(-1, -1)}
    end(log, COMMIT)
    end(log, COMMIT, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        own(part(-1), now_ms=NOW_MS, guard=None)
    assert log.last_stable_offset == log.log_end_offset == 5
    log.close()


# -- ending ----------------------------------------------------------------------------------------


def test_older_producers_and_coordinators_end_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_verified(log, part(0, epoch=3))
    with pytest.raises(InvalidProducerEpoch):
        end(log, ABORT, epoch=2)
    assert end(log, Marker(abort=True, coordinator_epoch=9), epoch=3) == 1
    append_verified(log, part(1, epoch=3))
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, COMMIT, epoch=3)
    assert log.last_stable_offset == 2
    assert aborted(log) == [AbortedTransaction(5, 0, 1, 2)]
    log.close()


def test_refused_marker_leaves_the_aborted_ones_as_they_were(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_verified(log, part(0, epoch=3))
    with pytest.raises(InvalidProducerEpoch):
        end(log, ABORT, epoch=2)
    assert aborted(log) == []
    end(log, COMMIT, epoch=3)
    assert aborted(log) == []
    log.close()


def test_index_is_of_the_segment_that_holds_the_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_verified(log, part(0))
    log.roll()
    append_verified(log, part(0, producer_id=6))
    end(log, ABORT)
    expected = [AbortedTransaction(5, 0, 2, 1)]
    assert aborted(log) == expected
    assert [path.name for path in tmp_path.glob("*.txnindex")] == [f"{1:020d}.txnindex"]
    log.drop()
    log = open_log(tmp_path)
    assert aborted(log) == expected
    assert log.last_stable_offset == 1
    log.close()
    log = open_log(tmp_path)
    assert aborted(log) == expected
    log.drop()


def test_aborted_ones_go_with_their_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, Settings(retention_bytes=1, retention_ms=-1))
    for number in range(4):
        append_verified(log, part(number))
        end(log, ABORT)
        log.roll()
    assert len(aborted(log)) == 4
    append_verified(log, part(4))
    log.apply_retention(NOW_MS)
    assert aborted(log) == []
    log.close()


# -- random lives ----------------------------------------------------------------------------------


class Life:
    """A log, and what it has to say of its transactions."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._directory, self.chance = directory, chance
        self.log = open_log(directory)
        self.open: dict[int, int] = {}  # by producer id, where its transaction begins
        self.sequences: dict[int, int] = {}
        self.aborted: list[AbortedTransaction] = []

    def append(self) -> None:
        producer_id = self.chance.randrange(4)
        sequence = self.sequences.get(producer_id, 0)
        count = self.chance.randint(1, 3)
        offset = append_verified(self.log, part(sequence, count, producer_id=producer_id))
        self.sequences[producer_id] = sequence + count
        self.open.setdefault(producer_id, offset)

    def end(self) -> None:
        producer_id = self.chance.randrange(4)
        aborts = self.chance.random() < 0.5
        offset = end(self.log, ABORT if aborts else COMMIT, producer_id=producer_id)
        first = self.open.pop(producer_id, None)
        if aborts and first is not None:
            stable = min(self.open.values(), default=offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, offset, stable))

    def reopen(self) -> None:
        """End as a broker does, or as one does that is killed."""
        if self.chance.random() < 0.3:
            self.log.flush()
        if self.chance.random() < 0.3:
            self.log.recovery_point()
        if self.chance.random() < 0.5:
            self.log.close()
        else:
            self.log.drop()
        self.log = open_log(self._directory)

    def check(self) -> None:
        log, end_offset = self.log, self.log.log_end_offset
        assert aborted(log) == self.aborted
        assert log.last_stable_offset == min(self.open.values(), default=end_offset)
        start = self.chance.randrange(end_offset + 1)
        upper = self.chance.randint(start, end_offset)
        found = set(log.transactions.aborted_between(start, upper))
        needed = {
            one for one in self.aborted if one.first_offset < upper and one.last_offset >= start
        }
        assert found == needed


@pytest.mark.parametrize("seed", range(20))
def test_random_lives(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, random.Random(run_seed() + seed))
    for _ in range(150):
        kind = life.chance.random()
        if kind < 0.6:
            life.append()
        elif kind < 0.9:
            life.end()
        elif kind < 0.96:
            life.log.roll()
        else:
            life.reopen()
        life.check()
    life.log.close()


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_truncation_never_lets_readers_pass_an_open_transaction(
    tmp_path: Path, has_snapshot: bool
) -> None:
    """The marker is cut off, the records stay: at every operation they are undecided."""
    stable: list[int] = []

    class Watching(FaultyFilesystem):
        def before(self, name: str) -> None:
            if watched:
                stable.append(watched[0].last_stable_offset)

    watched: list[Log] = []
    log = open_log(tmp_path / "t-0", fs=Watching())
    append_verified(log, part(0))
    if has_snapshot:
        log.roll()
    marker = end(log, Marker(abort=True, coordinator_epoch=0))
    assert (marker, log.last_stable_offset) == (1, 2)
    log.become_follower(1)
    watched.append(log)
    changes = log.native.change_count
    assert log.truncate_to(marker)
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    assert len(stable) > 3
    # Until the step that lowers the end the marker was there; after it nothing is past.
    assert set(stable) == {2, 0}
    assert stable == sorted(stable, reverse=True)
    assert log.native.change_count == changes + 1  # one step, no reader sees half of it
    watched.clear()
    log.close()
