"""The followers of a leader's partition: the high watermark follows from their positions."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog._native import partition_followers
from plog._native.change_bell import ChangeBell
from plog._native.partition_followers import (
    MAY_JOIN,
    NOTED,
    UNKNOWN,
    FollowerState,
    are_enough,
    count_follower,
    followers_of,
    note_follower,
    set_followers,
)
from plog._native.partition_log import ACK_SAFE, PartitionLog
from plog.cluster.replication.isr import Follower, InSyncSet, Outcome

from .partition_logs import Directory, make_batch

NOW_MS = 1_700_000_000_000
EPOCH = 4
BROKER_EPOCH = 70
LAG_TIME_MS = 100
WAIT_S = 5
"""Until another thread is taken for one that cannot go on."""


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """A leader's log of ten records, none of them committed. Its epoch began before them."""
    made = Directory(tmp_path / "t-0").log()
    made.set_leader(EPOCH, writable=True, sole_replica=False)
    made.append(make_batch(10, 100), NOW_MS)
    assert (made.high_watermark, made.log_end_offset) == (0, 10)
    return made


def set_(
    log: PartitionLog,
    *counted: int,
    others: tuple[int, ...] = (),
    least: int = 1,
    leader_epoch: int = EPOCH,
) -> None:
    is_counted = dict.fromkeys(counted, True) | dict.fromkeys(others, False)
    set_followers(log, is_counted, leader_epoch=leader_epoch, least_in_sync=least, now_ms=0)


def note(log: PartitionLog, broker_id: int, position: int, **options: int) -> int:
    known = {"broker_epoch": BROKER_EPOCH, "leader_epoch": EPOCH, "log_start_offset": 0}
    given = {**known, "now_ms": 0, **options}
    return note_follower(log, broker_id, position, **given)


def counts(log: PartitionLog, broker_id: int, leader_epoch: int = EPOCH) -> bool:
    return count_follower(log, broker_id, leader_epoch=leader_epoch)


def test_high_watermark_is_the_smallest_position_of_those_that_count(log: PartitionLog) -> None:
    set_(log, 1, 2, others=(3,))
    assert note(log, 1, 7) == NOTED
    assert log.high_watermark == 0, "broker 2 has not fetched yet"
    assert note(log, 2, 4) == NOTED
    assert log.high_watermark == 4
    assert note(log, 3, 1) == NOTED
    assert log.high_watermark == 4, "broker 3 does not count"
    assert note(log, 2, 10) == NOTED
    assert log.high_watermark == 7
    assert note(log, 1, 99) == NOTED
    assert log.high_watermark == 10, "not above the log's end"


def test_high_watermark_never_goes_back(log: PartitionLog) -> None:
    set_(log, 1)
    note(log, 1, 7)
    note(log, 1, 2)
    assert log.high_watermark == 7
    set_(log, 1, 2)
    assert log.high_watermark == 7


def test_high_watermark_stands_still_with_too_few_in_sync(log: PartitionLog) -> None:
    set_(log, 1, others=(2,), least=3)
    note(log, 1, 10)
    assert log.high_watermark == 0
    set_(log, 1, 2, least=3)
    note(log, 2, 9)
    assert log.high_watermark == 9


def test_leader_without_others_that_count_commits_what_it_has(log: PartitionLog) -> None:
    set_(log, others=(1,))
    assert log.high_watermark == 10
    log.append(make_batch(2, 100), NOW_MS)
    assert log.high_watermark == 12


def test_start_of_a_followers_log_is_known_and_its_change_is_reported(log: PartitionLog) -> None:
    set_(log, 1)
    bell = ChangeBell(log, os.eventfd(0))
    note(log, 1, 0)
    assert bell.take(), "it has fetched"
    note(log, 1, 0)
    assert not bell.take()
    note(log, 1, 0, log_start_offset=3)
    assert bell.take()
    (one,) = followers_of(log)
    assert one.log_start_offset == 3
    set_(log, 1, 2)
    assert [one.log_start_offset for one in followers_of(log)] == [3, -1]
    bell.close()


def test_other_threads_use_a_partition_while_its_followers_are_listed(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waited for its lock, and kept the interpreter's, would end all progress."""
    set_(log, 1, 2)
    known = followers_of(log)
    states: list[object] = []

    def make(*fields: object) -> FollowerState:
        other = threading.Thread(target=lambda: states.append(log.state()))
        other.start()
        other.join(WAIT_S)
        return FollowerState(*fields)

    monkeypatch.setattr(partition_followers, "FollowerState", make)
    listed = followers_of(log)
    assert (listed, len(states)) == (known, 2)


def test_unknown_follower_is_refused(log: PartitionLog) -> None:
    set_(log, 1)
    assert note(log, 2, 5) == UNKNOWN
    assert note(log, 1, 5, leader_epoch=EPOCH - 1) == UNKNOWN
    assert note(log, 1, 5, leader_epoch=EPOCH + 1) == UNKNOWN
    assert log.high_watermark == 0
    assert followers_of(log) == [FollowerState(1, True, -1, -1, -1, 0, 0, 0, -1)]


def test_fetch_of_an_earlier_life_says_nothing(log: PartitionLog) -> None:
    """It came late: the follower has restarted since, and may have lost what it had (KIP-903)."""
    set_(log, 1)
    assert note(log, 1, 2, broker_epoch=BROKER_EPOCH + 1) == NOTED
    assert note(log, 1, 9) == UNKNOWN
    assert log.high_watermark == 2


def test_follower_may_join_with_all_that_is_committed(log: PartitionLog) -> None:
    set_(log, 1, others=(2,))
    note(log, 1, 7)
    assert note(log, 2, 6) == NOTED
    assert not counts(log, 2)
    assert note(log, 2, 7) == MAY_JOIN
    assert note(log, 1, 8) == NOTED
    assert not counts(log, 2), "more was committed since"
    assert note(log, 2, 8) == MAY_JOIN
    assert not counts(log, 2, EPOCH - 1)
    assert counts(log, 2)
    assert note(log, 1, 10) == NOTED
    assert log.high_watermark == 8, "it counts at once"
    assert note(log, 2, 9) == NOTED
    assert not counts(log, 2), "it counts already"
    assert log.high_watermark == 9


def test_follower_may_not_join_below_the_start_of_the_leader_epoch(log: PartitionLog) -> None:
    """What the leader before has committed may lie above this one's high watermark (KAFKA-7128)."""
    log.set_leader(EPOCH + 1, writable=True, sole_replica=False)
    set_(log, 1, others=(2,), leader_epoch=EPOCH + 1)
    assert note(log, 2, 9, leader_epoch=EPOCH + 1) == NOTED
    assert not counts(log, 2, EPOCH + 1)
    assert note(log, 2, 10, leader_epoch=EPOCH + 1) == MAY_JOIN
    assert counts(log, 2, EPOCH + 1)


def test_acks_all_is_refused_while_too_few_count(log: PartitionLog) -> None:
    set_(log, others=(1,), least=2)
    assert not are_enough(log)
    note(log, 1, 10)
    assert counts(log, 1)
    assert are_enough(log)
    set_(log, others=(1,), least=2)
    assert not are_enough(log)


@pytest.mark.parametrize(
    "role",
    [
        {"leader_epoch": EPOCH + 1, "writable": False, "leads": False},
        {"leader_epoch": EPOCH + 1, "writable": True},
    ],
    ids=["it follows", "another epoch"],
)
def test_followers_are_those_of_one_leader_epoch(log: PartitionLog, role: dict) -> None:
    set_(log, 1)
    note(log, 1, 5)
    log.set_leader(**role, sole_replica=False)
    assert followers_of(log) == []
    assert log.high_watermark == 5
    set_(log, 1)
    assert followers_of(log) == [], "a decision of an earlier epoch changes nothing"
    set_(log, 1, leader_epoch=EPOCH + 1)
    assert len(followers_of(log)) == bool(role["writable"]), "only a leader has followers"


def test_role_that_is_given_again_leaves_to_the_followers_whether_they_are_enough(
    log: PartitionLog,
) -> None:
    """A log stands still for a moment, or refuses appends, under the role it was given once."""
    epoch = 9

    def lead(*, enough: bool, leader_epoch: int = epoch, writable: bool = True) -> None:
        log.set_leader(
            leader_epoch, leads=True, writable=writable, sole_replica=False, enough_in_sync=enough
        )

    lead(enough=False)
    set_(log, 1, least=2, leader_epoch=epoch)
    done = log.append(make_batch(1, 100), NOW_MS)
    note(log, 1, 11, leader_epoch=epoch)
    for writable in (False, True):
        lead(enough=False, writable=writable)
        assert are_enough(log)
        assert log.ack_status(done, must_be_durable=False) == ACK_SAFE
    set_(log, others=(1,), least=2, leader_epoch=epoch)
    for writable in (False, True):
        lead(enough=True, writable=writable)
        assert not are_enough(log), "acks=all is refused at once"
    lead(enough=True, leader_epoch=epoch + 1)
    assert are_enough(log), "it has no followers yet"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(
            st.just("fetch"), st.integers(1, 3), st.integers(0, 40), st.sampled_from([1, 1, 1, 2])
        ),
        st.tuples(st.just("join"), st.integers(1, 3)),
        st.tuples(st.just("tick"), st.integers(1, 2)),
        st.tuples(st.just("answer"), st.sampled_from([Outcome.ACCEPTED, Outcome.INELIGIBLE])),
    ),
    max_size=60,
)


@given(steps=STEPS, least=st.integers(1, 3))
def test_kernel_agrees_with_the_machine(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], least: int
) -> None:
    log = Directory(tmp_path_factory.mktemp("log") / "t-0").log()
    log.set_leader(EPOCH, writable=True, sole_replica=False)
    machine = InSyncSet(0, LAG_TIME_MS, least)
    machine.lead(
        leader_epoch=EPOCH,
        partition_epoch=0,
        isr=[0, 1],
        replicas=range(4),
        log_end_offset=0,
        high_watermark=0,
        now_ms=0,
    )

    def publish() -> None:
        others = machine.followers
        set_followers(
            log,
            {one: one in machine.maximal for one in others},
            leader_epoch=EPOCH,
            least_in_sync=least,
            now_ms=now_ms,
        )

    now_ms = 0
    publish()
    for what, *values in steps:
        now_ms += 40
        if what == "append":
            log.append(make_batch(values[0], 100), NOW_MS)
            machine.appended(log.log_end_offset)
        elif what == "fetch":
            broker_id, position, broker_epoch = values
            status = note(log, broker_id, position, broker_epoch=broker_epoch, now_ms=now_ms)
            assert machine.fetched(broker_id, broker_epoch, position, now_ms) is (status != UNKNOWN)
        elif what == "join":
            proposed = machine.propose_joiner(values[0], now_ms)
            if proposed is not None:
                assert counts(log, values[0])
        elif what == "tick":
            machine.tick(now_ms, 40 * values[0])
            publish()
        elif machine.proposal is not None:
            isr, version = machine.proposal.isr, machine.partition_epoch + 1
            machine.answered(machine.proposal, values[0], isr, version)
            publish()
        assert log.high_watermark == machine.high_watermark
        assert are_enough(log) is machine.is_enough
        assert machine.followers == {
            one.broker_id: Follower(
                one.broker_epoch,
                one.position,
                one.end_before,
                one.fetched_ms,
                one.caught_up_ms,
                one.confirmed_ms,
            )
            for one in followers_of(log)
        }
        assert {one.broker_id for one in followers_of(log) if one.is_counted} == (
            machine.maximal - {0}
        )
    log.close()
