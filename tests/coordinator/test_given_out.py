"""Ids that nobody has come back with: the oldest go when there are too many."""

from __future__ import annotations

from plog.coordinator.given_out import EACH_BYTES, GivenOut, Key
from plog.coordinator.group_events import Timer, TimerKind


def key(member_id: str, group_id: str = "g") -> Key:
    return group_id, Timer(TimerKind.PENDING, member_id)


def test_the_oldest_go() -> None:
    ids = GivenOut(3 * (EACH_BYTES + 2))
    assert [ids.add(key(name)) for name in "abc"] == [[], [], []]
    assert ids.add(key("d")) == [key("a")]
    ids.drop(key("b"))
    assert ids.add(key("e")) == []
    assert ids.add(key("f")) == [key("c")]
    assert len(ids) == 3


def test_long_names_take_the_place_of_several() -> None:
    ids = GivenOut(3 * (EACH_BYTES + 2))
    for name in "abc":
        ids.add(key(name))
    assert ids.add(key("d" * 2 * EACH_BYTES)) == [key("a"), key("b"), key("c")]
    assert ids.add(key("e")) == [key("d" * 2 * EACH_BYTES)]
    assert ids.add(key("f", group_id="h" * 9 * EACH_BYTES)) == [key("e")]
    assert len(ids) == 1  # who asks alone is told an id, whatever its name


def test_one_that_is_given_out_again_is_the_newest() -> None:
    ids = GivenOut(2 * (EACH_BYTES + 2))
    for name in "aba":
        assert ids.add(key(name)) == []
    assert ids.add(key("c")) == [key("b")]
    ids.drop(key("nobody"))
    assert len(ids) == 2
