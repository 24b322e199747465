"""The followers of a leader's partition: the high watermark follows from their positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog._native.partition_followers import (
    FollowerState,
    followers_of,
    note_follower,
    set_followers,
)
from plog._native.partition_log import PartitionLog
from plog.cluster import isr

from .partition_logs import Directory, make_batch

NOW_MS = 1_700_000_000_000
EPOCH = 4
BROKER_EPOCH = 70


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """A leader's log of ten records, none of them committed."""
    made = Directory(tmp_path / "t-0").log()
    made.set_leader(EPOCH, writable=True, sole_replica=False)
    made.append(make_batch(10, 100), NOW_MS)
    assert (made.high_watermark, made.log_end_offset) == (0, 10)
    return made


def follower(
    broker_id: int, *, counted: bool = True, broker_epoch: int = BROKER_EPOCH
) -> FollowerState:
    return FollowerState(broker_id, broker_epoch, counted)


def note(log: PartitionLog, broker_id: int, position: int, **options: int) -> bool:
    given = {"broker_epoch": BROKER_EPOCH, "leader_epoch": EPOCH, **options}
    return note_follower(log, broker_id, position, **given)


def test_high_watermark_is_the_smallest_position_of_those_that_count(log: PartitionLog) -> None:
    set_followers(log, [follower(1), follower(2), follower(3, counted=False)], least_in_sync=1)
    assert note(log, 1, 7)
    assert log.high_watermark == 0, "broker 2 has not fetched yet"
    assert note(log, 2, 4)
    assert log.high_watermark == 4
    assert note(log, 3, 1)
    assert log.high_watermark == 4, "broker 3 does not count"
    assert note(log, 2, 10)
    assert log.high_watermark == 7
    assert note(log, 1, 99)
    assert log.high_watermark == 10, "not above the log's end"


def test_high_watermark_never_goes_back(log: PartitionLog) -> None:
    set_followers(log, [follower(1)], least_in_sync=1)
    assert note(log, 1, 7)
    assert note(log, 1, 2)
    assert log.high_watermark == 7
    set_followers(log, [follower(1), follower(2)], least_in_sync=1)
    assert log.high_watermark == 7


def test_high_watermark_stands_still_with_too_few_in_sync(log: PartitionLog) -> None:
    set_followers(log, [follower(1), follower(2, counted=False)], least_in_sync=3)
    assert note(log, 1, 10)
    assert log.high_watermark == 0
    set_followers(log, [follower(1), follower(2)], least_in_sync=3)
    assert note(log, 2, 9)
    assert log.high_watermark == 9


def test_leader_without_others_that_count_commits_what_it_has(log: PartitionLog) -> None:
    set_followers(log, [follower(1, counted=False)], least_in_sync=1)
    assert log.high_watermark == 10
    log.append(make_batch(2, 100), NOW_MS)
    assert log.high_watermark == 12


def test_unknown_follower_is_refused(log: PartitionLog) -> None:
    set_followers(log, [follower(1)], least_in_sync=1)
    assert not note(log, 2, 5)
    assert not note(log, 1, 5, broker_epoch=BROKER_EPOCH + 1)
    assert not note(log, 1, 5, leader_epoch=EPOCH - 1)
    assert log.high_watermark == 0
    assert followers_of(log) == [FollowerState(1, BROKER_EPOCH, True, -1)]


def test_broker_that_has_restarted_has_no_position(log: PartitionLog) -> None:
    set_followers(log, [follower(1)], least_in_sync=1)
    assert note(log, 1, 5)
    set_followers(log, [follower(1), follower(2)], least_in_sync=1)
    assert [one.position for one in followers_of(log)] == [5, -1]
    set_followers(log, [follower(1, broker_epoch=BROKER_EPOCH + 1)], least_in_sync=1)
    assert [one.position for one in followers_of(log)] == [-1]


@pytest.mark.parametrize(
    "role",
    [
        {"leader_epoch": EPOCH + 1, "writable": False, "leads": False},
        {"leader_epoch": EPOCH + 1, "writable": True},
    ],
    ids=["it follows", "another epoch"],
)
def test_followers_are_those_of_one_leader_epoch(log: PartitionLog, role: dict) -> None:
    set_followers(log, [follower(1)], least_in_sync=1)
    assert note(log, 1, 5)
    log.set_leader(**role, sole_replica=False)
    assert followers_of(log) == []
    assert log.high_watermark == 5
    set_followers(log, [follower(1)], least_in_sync=1)
    assert len(followers_of(log)) == bool(role["writable"]), "only a leader has followers"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("fetch"), st.integers(1, 3), st.integers(0, 40)),
        st.tuples(
            st.just("set"),
            st.dictionaries(st.integers(1, 3), st.booleans(), max_size=3),
            st.integers(1, 4),
        ),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_high_watermark_is_that_of_the_rule(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]
) -> None:
    log = Directory(tmp_path_factory.mktemp("log") / "t-0").log()
    log.set_leader(EPOCH, writable=True, sole_replica=False)
    end = mark = 0
    counted: dict[int, bool] = {}
    positions: dict[int, int] = {}
    least = 1
    for what, *given_ in steps:
        if what == "append":
            log.append(make_batch(given_[0], 100), NOW_MS)
            end += given_[0]
        elif what == "fetch":
            broker_id, position = given_
            assert note(log, broker_id, position) is (broker_id in counted)
            if broker_id in counted:
                positions[broker_id] = position
        else:
            counted, least = given_
            positions = {one: at for one, at in positions.items() if one in counted}
            fresh = [follower(one, counted=is_in) for one, is_in in counted.items()]
            set_followers(log, fresh, least_in_sync=least)
        members = [one for one, is_in in counted.items() if is_in]
        if counted and 1 + len(members) >= least:
            mark = isr.committed(mark, end, [positions.get(one, -1) for one in members])
        assert (log.log_end_offset, log.high_watermark) == (end, mark)
    log.close()
