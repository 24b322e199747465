"""When acks=all can be answered: `PartitionLog.ack_status` against a model that keeps no epochs.

The model follows each append by itself: it is lost by any truncation and by any loss of leadership.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native.partition_log import (
    ACK_NOT_LEADER,
    ACK_OFFLINE,
    ACK_SAFE,
    ACK_TOO_FEW_IN_SYNC,
    ACK_WAITS,
    Appended,
)
from plog.storage.leader_epochs import EpochStart, LeaderEpochs
from plog.storage.log import Log

from .storage_logs import NOW_MS, batch, open_log


class Waiter:
    """An append of the model, and what became of it."""

    def __init__(self, appended: Appended, offset: int) -> None:
        self.appended, self.offset = appended, offset
        self.lost = False


class Life:
    """A log and its model, taken through the same steps."""

    def __init__(self, directory: Path) -> None:
        self.log: Log = open_log(directory, leader=False)
        self.epoch = 0
        self.epochs: list[int] = []  # of each record
        self.waiters: list[Waiter] = []
        self.leads = False
        self.sole = self.enough = False
        self.committed = self.durable = 0
        self.offline = self.closed = False

    @property
    def end(self) -> int:
        return len(self.epochs)

    def lead(self, *, sole: bool = False, enough: bool = True, skipped: int = 0) -> None:
        if self.closed:
            return
        self.epoch += 1 + skipped
        self.log.become_leader(self.epoch, sole_replica=sole, enough_in_sync=enough)
        self.leads, self.sole, self.enough = True, sole, enough
        self._commit()

    def set_in_sync(self, *, sole: bool, enough: bool) -> None:
        if not self.leads or self.closed:
            return
        self.log.become_leader(self.epoch, sole_replica=sole, enough_in_sync=enough)
        self.sole, self.enough = sole, enough
        self._commit()

    def follow(self) -> None:
        if self.closed:
            return
        self.epoch += 1
        self.log.become_follower(self.epoch)
        self.leads = self.sole = False
        self._lose()

    def truncate(self, offset: int) -> None:
        if self.closed or self.leads or offset >= self.end:
            return
        assert self.log.truncate_to(offset)
        del self.epochs[offset:]
        self.committed, self.durable = min(self.committed, offset), min(self.durable, offset)
        self._lose()

    def append(self) -> None:
        if not self.leads or self.closed or self.offline:
            return
        done = self.log.append_as_leader(batch(1), now_ms=NOW_MS)
        self.waiters.append(Waiter(done, self.end))
        assert done.base_offset == self.end
        self.epochs.append(self.epoch)
        self._commit()

    def replicate(self, offset: int) -> None:
        self.log.native.advance_high_watermark(offset)
        self.committed = max(self.committed, min(offset, self.end))

    def flush(self) -> None:
        if not self.offline and not self.closed:
            self.log.flush()
            self.durable = self.end

    def pause(self) -> None:
        """Stand still, as a log that is about to move; all of it holds again after."""
        if not self.closed:
            with self.log.standing_still():
                self.check()
            self._commit()

    def fail(self) -> None:
        if not self.closed:
            self.log.go_offline()
            self.offline = True

    def close(self) -> None:
        self.log.drop()
        self.closed = True

    def _commit(self) -> None:
        if self.sole:
            self.committed = self.end

    def _lose(self) -> None:
        for waiter in self.waiters:
            waiter.lost = True

    def expected(self, waiter: Waiter, *, must_be_durable: bool) -> int:
        if waiter.lost:
            return ACK_NOT_LEADER
        is_safe = waiter.offset < self.committed
        if must_be_durable:
            is_safe = is_safe and waiter.offset < self.durable
        if is_safe:
            return ACK_SAFE if self.enough else ACK_TOO_FEW_IN_SYNC
        if self.offline:
            return ACK_OFFLINE
        return ACK_NOT_LEADER if self.closed else ACK_WAITS

    def check(self) -> None:
        for waiter in self.waiters:
            for must_be_durable in (False, True):
                status = self.log.native.ack_status(
                    waiter.appended, must_be_durable=must_be_durable
                )
                assert status == self.expected(waiter, must_be_durable=must_be_durable), (
                    waiter.appended,
                    self.log.native.state(),
                )
        if not self.closed:
            self.check_epochs()

    def check_epochs(self) -> None:
        """Every record is listed under the leader epoch that wrote it."""
        for offset, epoch in enumerate(self.epochs):
            assert self.log.epoch_at(offset) == epoch


Step = Callable[[Life], None]

lead: Step = Life.lead
follow: Step = Life.follow
append: Step = Life.append
flush: Step = Life.flush


def replicate(offset: int) -> Step:
    return lambda life: life.replicate(offset)


def truncate(offset: int) -> Step:
    return lambda life: life.truncate(offset)


def too_few(life: Life) -> None:
    life.set_in_sync(sole=False, enough=False)


def enough(life: Life) -> None:
    life.set_in_sync(sole=False, enough=True)


TABLE: dict[str, tuple[Sequence[Step], int]] = {
    # name: what happens after a record was appended at offset 0 under two replicas; the status
    "nothing": ([], ACK_WAITS),
    "replicated, not durable": ([replicate(1)], ACK_WAITS),
    "durable, not replicated": ([flush], ACK_WAITS),
    "both": ([replicate(1), flush], ACK_SAFE),
    "deposed": ([follow], ACK_NOT_LEADER),
    "deposed when it was safe": ([replicate(1), flush, follow], ACK_NOT_LEADER),
    "leads again": ([follow, lead, replicate(1), flush], ACK_NOT_LEADER),
    "truncated": ([follow, truncate(0)], ACK_NOT_LEADER),
    "truncated and refilled": (
        [follow, truncate(0), lead, append, replicate(1), flush],
        ACK_NOT_LEADER,
    ),
    "next epoch": ([lead], ACK_WAITS),
    "next epoch, then safe": ([lead, replicate(1), flush], ACK_SAFE),
    "several epochs": ([lead, lead, append, lead, replicate(2), flush], ACK_SAFE),
    "too few in sync, not committed": ([too_few, flush], ACK_WAITS),
    "too few in sync after the commit": ([replicate(1), flush, too_few], ACK_TOO_FEW_IN_SYNC),
    "enough again": ([replicate(1), flush, too_few, enough], ACK_SAFE),
    "offline": ([Life.fail], ACK_OFFLINE),
    "offline once it was safe": ([replicate(1), flush, Life.fail], ACK_SAFE),
    "closed": ([Life.close], ACK_NOT_LEADER),
    "closed once it was safe": ([replicate(1), flush, Life.close], ACK_SAFE),
    "stands still": ([Life.pause], ACK_WAITS),
    "stands still, then safe": ([Life.pause, replicate(1), flush], ACK_SAFE),
}


@pytest.mark.parametrize("name", TABLE)
def test_status_after(tmp_path: Path, name: str) -> None:
    steps, wanted = TABLE[name]
    life = Life(tmp_path / "t-0")
    life.lead()
    life.append()
    for step in steps:
        step(life)
        life.check()
    appended = life.waiters[0].appended
    assert life.log.native.ack_status(appended, must_be_durable=True) == wanted
    life.log.drop()


def test_append_of_another_log_is_lost(tmp_path: Path) -> None:
    one, other = Life(tmp_path / "t-0"), Life(tmp_path / "t-1")
    for life in (one, other):
        life.lead(sole=True)
        life.append()
        life.flush()
    appended = one.waiters[0].appended
    assert one.log.native.ack_status(appended, must_be_durable=True) == ACK_SAFE
    assert other.log.native.ack_status(appended, must_be_durable=True) == ACK_NOT_LEADER
    one.log.drop()
    other.log.drop()


def test_lone_replica_below_the_minimum_commits_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path / "t-0")
    life.lead(sole=False, enough=False)
    life.append()
    life.flush()
    assert life.log.high_watermark == 0
    life.set_in_sync(sole=True, enough=True)
    assert life.log.high_watermark == 1
    life.check()
    life.log.drop()


def test_leader_that_stays_accepts_appends_all_the_time(tmp_path: Path) -> None:
    """At no operation on a file is an append refused, or a waiting one taken for deposed."""
    life = Life(tmp_path / "t-0")
    life.lead()
    life.append()
    store, seen = life.log._segments._files.store_epochs, []

    def watched(*arguments: object, **options: object) -> None:
        seen.append(life.log.native.append(batch(1), NOW_MS).status)
        store(*arguments, **options)  # type: ignore[arg-type]

    life.log._segments._files.store_epochs = watched  # type: ignore[method-assign]
    life.lead()
    assert seen == []  # a change of leadership writes nothing
    assert life.log.leader_epochs == LeaderEpochs([EpochStart(1, 0), EpochStart(2, 1)])
    life.append()
    life.flush()
    assert life.log.recovery_point() == 2
    assert seen == [0]
    life.log.drop()


steps = st.one_of(
    st.just(append),
    st.just(append),
    st.just(flush),
    st.just(follow),
    st.builds(
        lambda sole, plenty, skipped: (
            lambda life: life.lead(sole=sole and plenty, enough=plenty, skipped=skipped)
        ),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
    ),
    st.builds(
        lambda sole, plenty: lambda life: life.set_in_sync(sole=sole and plenty, enough=plenty),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(truncate, st.integers(0, 6)),
    st.builds(replicate, st.integers(0, 8)),
    st.just(Life.pause),
    st.sampled_from([append, append, append, Life.fail, Life.close]),
)


def check_life(taken: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory) / "t-0")
        life.lead()
        for step in taken:
            step(life)
            life.check()
        life.log.drop()


@settings(max_examples=100)
@given(st.lists(steps, max_size=25))
def test_status_agrees_with_the_model(taken: list[Step]) -> None:
    check_life(taken)


@pytest.mark.long
@settings(max_examples=3_000)
@given(st.lists(steps, max_size=60))
def test_status_agrees_with_the_model_in_long_lives(taken: list[Step]) -> None:
    check_life(taken)
