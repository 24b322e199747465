"""The assignors: known shares, and what holds for any group."""

from __future__ import annotations

import struct
from typing import Any

import aiokafka.coordinator.assignors.sticky.sticky_assignor as aiokafka
import kafka.coordinator.assignors.sticky.sticky_assignor as kafka_python
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.cooperative_sticky import (
    CooperativeStickyAssignor as KafkaPythonCooperative,
)
from kafka.structs import TopicPartition as KafkaPythonPartition

from plog.client.assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    NO_GENERATION,
    RANGE,
    ROUND_ROBIN,
    STICKY,
    Assignor,
    Subscription,
    by_topic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from plog.errors import InvalidRequest
from plog.types import TopicPartition

A = [TopicPartition("a", n) for n in range(6)]
B = [TopicPartition("b", n) for n in range(3)]
BOTH = ("a", "b")


def shares(assignor: Assignor, members: dict[str, Subscription], **counts: int) -> dict:
    return {
        member: [f"{at.topic}{at.partition}" for at in found]
        for member, found in assignor.assign(members, counts).items()
    }


def test_ranges_are_those_of_kafkas_example() -> None:
    members = {"c0": Subscription(BOTH), "c1": Subscription(BOTH)}
    assert shares(RANGE, members, a=3, b=3) == {
        "c0": ["a0", "a1", "b0", "b1"],
        "c1": ["a2", "b2"],
    }


def test_static_members_keep_their_ranges_under_new_ids() -> None:
    members = {
        "x": Subscription(("a",), instance_id="one"),
        "b": Subscription(("a",), instance_id="two"),
    }
    assert shares(RANGE, members, a=2) == {"x": ["a0"], "b": ["a1"]}


def test_round_robin_deals_out_to_who_wants() -> None:
    members = {
        "c0": Subscription(("a",)),
        "c1": Subscription(("a", "b")),
        "c2": Subscription(("a", "b", "c")),
    }
    assert shares(ROUND_ROBIN, members, a=1, b=2, c=3) == {
        "c0": ["a0"],
        "c1": ["b0"],
        "c2": ["b1", "c0", "c1", "c2"],
    }


def test_sticky_keeps_what_members_had_when_one_leaves() -> None:
    members = {
        "c0": Subscription(("a",), tuple(A[0:2]), 4),
        "c1": Subscription(("a",), tuple(A[2:4]), 4),
    }
    found = STICKY.assign(members, {"a": 6})
    assert set(A[0:2]) <= set(found["c0"])
    assert set(A[2:4]) <= set(found["c1"])
    assert [len(found[one]) for one in found] == [3, 3]


def test_of_two_claims_the_newer_generation_wins() -> None:
    members = {
        "old": Subscription(("a",), (A[0],), 3),
        "new": Subscription(("a",), (A[0],), 4),
    }
    assert STICKY.assign(members, {"a": 2})["new"] == [A[0]]


@pytest.mark.parametrize("names", [("old", "new"), ("new", "old")])
def test_cooperatively_of_two_claims_the_newer_generation_wins(names: tuple[str, str]) -> None:
    generations = {"old": 3, "new": 4}
    members = {name: Subscription(("a",), (A[0],), generations[name]) for name in names}
    found = COOPERATIVE_STICKY.assign(members, {"a": 2})
    assert found == {"new": [A[0]], "old": [A[1]]}


@pytest.mark.parametrize("names", [("c0", "c1"), ("c1", "c0")])
def test_cooperatively_of_two_claims_of_a_generation_the_first_wins(names: tuple[str, str]) -> None:
    members = {name: Subscription(("a",), (A[0],), 4) for name in names}
    assert COOPERATIVE_STICKY.assign(members, {"a": 2}) == {"c0": [A[0]], "c1": [A[1]]}


def test_cooperatively_nothing_moves_before_it_was_given_up() -> None:
    members = {"c0": Subscription(("a",), tuple(A), 4), "c1": Subscription(("a",), (), -1)}
    first = COOPERATIVE_STICKY.assign(members, {"a": 6})
    assert len(first["c0"]) == 3
    assert first["c1"] == []
    members["c0"] = Subscription(("a",), tuple(first["c0"]), 5)
    second = COOPERATIVE_STICKY.assign(members, {"a": 6})
    assert second["c0"] == first["c0"]
    assert set(second["c1"]) == set(A) - set(first["c0"])


TOPICS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Subscription], dict[str, int]]:
    counts = draw(TOPICS)
    members = {}
    every = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
    for n in range(draw(st.integers(1, 6))):
        topics = draw(st.lists(st.sampled_from(sorted(counts)), unique=True))
        owned = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
        members[f"c{n}"] = Subscription(tuple(topics), tuple(owned), draw(st.integers(-1, 3)))
    return members, counts


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda one: one.name)
@given(group=groups())
def test_everything_that_is_wanted_is_somebodys_once(
    assignor: Assignor, group: tuple[dict[str, Subscription], dict[str, int]]
) -> None:
    members, counts = group
    found = assignor.assign(members, counts)
    assert found.keys() == members.keys()
    given_out = [at for assigned in found.values() for at in assigned]
    assert len(given_out) == len(set(given_out))
    assert all(at.topic in members[one].topics for one, some in found.items() for at in some)
    wanted = {
        TopicPartition(topic, n)
        for one in members.values()
        for topic in one.topics
        for n in range(counts.get(topic, 0))
    }
    if assignor.is_cooperative:
        still_owned = {at for one in members.values() for at in one.owned}
        assert wanted - still_owned <= set(given_out) <= wanted
    else:
        assert set(given_out) == wanted


@given(group=groups())
def test_sticky_shares_are_as_even_as_the_wishes_allow(
    group: tuple[dict[str, Subscription], dict[str, int]],
) -> None:
    members, counts = group
    found = STICKY.assign(members, counts)
    for one, assigned in found.items():
        for at in assigned:
            for other in members:
                if at.topic in members[other].topics:
                    assert len(assigned) <= len(found[other]) + 1, (one, other)


@given(group=groups())
def test_a_sticky_share_that_is_even_stays(
    group: tuple[dict[str, Subscription], dict[str, int]],
) -> None:
    members, counts = group
    first = STICKY.assign(members, counts)
    again = {one: Subscription(members[one].topics, tuple(first[one]), 9) for one in members}
    assert STICKY.assign(again, counts) == first


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda one: one.name)
@given(group=groups())
def test_what_members_tell_is_understood(
    assignor: Assignor, group: tuple[dict[str, Subscription], dict[str, int]]
) -> None:
    for told in group[0].values():
        found = decode_subscription(encode_subscription(told, assignor), assignor, "i")
        assert sorted(found.topics) == sorted(told.topics)
        assert found.instance_id == "i"
        if assignor.is_cooperative or (assignor is STICKY and told.owned):
            assert set(found.owned) == set(told.owned)
            assert found.generation == told.generation
        partitions = list(told.owned)
        assert set(decode_assignment(encode_assignment(partitions))) == set(partitions)
    assert decode_assignment(b"") == []


HAD = (TopicPartition("t4", 2), TopicPartition("t4", 5))
PREVIOUS = "0000000100027434000000020000000200000005"
"""Those two as a list, in what clients tell."""


@pytest.mark.parametrize(
    ("assignor", "told", "is_as_plogs"),
    [
        pytest.param(
            STICKY,
            f"0003 00000001 00027434 00000018{PREVIOUS}00000003 00000000 00000003 ffff",
            True,
            id="sticky-java",
        ),
        pytest.param(
            COOPERATIVE_STICKY,
            f"0003 00000001 00027434 00000004 00000003 {PREVIOUS} 00000003 ffff",
            True,
            id="cooperative-java",
        ),
        # As if it were eager, twice.
        pytest.param(
            COOPERATIVE_STICKY,
            f"0003 00000001 00027434 00000018{PREVIOUS}00000003 {PREVIOUS} 00000003 0000",
            False,
            id="cooperative-librdkafka",
        ),
    ],
)
def test_what_other_clients_told_is_understood(
    assignor: Assignor, told: str, is_as_plogs: bool
) -> None:
    """As kafka-clients 4.4.0 and librdkafka 2.16.1 sent it; 3.9.1 sends the same."""
    data = bytes.fromhex(told)
    found = decode_subscription(data, assignor)
    assert found == Subscription(("t4",), HAD, 3)
    theirs, own = user_data_of(data), user_data_of(encode_subscription(found, assignor))
    assert (theirs == own) == is_as_plogs


def user_data_of(data: bytes) -> bytes:
    """Return what an assignor told beside the topics."""
    (topics,) = struct.unpack_from(">i", data, 2)
    assert topics == 1
    at = 8 + struct.unpack_from(">h", data, 6)[0]
    (size,) = struct.unpack_from(">i", data, at)
    return data[at + 4 : at + 4 + size]


@pytest.mark.parametrize(
    ("theirs", "own", "generation"),
    [
        # It tells version 1, which has no place for one.
        (KafkaPythonCooperative(), COOPERATIVE_STICKY, NO_GENERATION),
        (aiokafka.StickyPartitionAssignor, STICKY, 3),
    ],
    ids=["cooperative-kafka-python", "sticky-aiokafka"],
)
def test_assignors_of_python_clients_and_plogs_understand_each_other(
    monkeypatch: pytest.MonkeyPatch, theirs: Any, own: Assignor, generation: int
) -> None:
    told = Subscription(("t4",), HAD, 3)
    of_theirs, read = tell_each_other(monkeypatch, theirs, told, own)
    assert of_theirs == Subscription(told.topics, told.owned, generation)
    assert [tuple(at) for at in read.partitions] == [tuple(at) for at in HAD]
    assert read.generation == told.generation


def test_sticky_assignors_of_kafka_python_and_plog_take_each_others_members_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kafka-python 3 puts a version before what it tells; Java, aiokafka and its own 2.0 do not."""
    theirs, told = kafka_python.StickyPartitionAssignor(), Subscription(("t4",), HAD, 3)
    of_theirs, read = tell_each_other(monkeypatch, theirs, told, STICKY)
    assert of_theirs == Subscription(told.topics)
    assert (read.partitions, read.generation) == ([], NO_GENERATION)


def tell_each_other(
    monkeypatch: pytest.MonkeyPatch, theirs: Any, told: Subscription, own: Assignor
) -> tuple[Subscription, Any]:
    """Return what plog reads when another assignor tells the same, and what that one reads."""
    had = [KafkaPythonPartition(*at) for at in told.owned]
    monkeypatch.setattr(theirs, "member_assignment", had)
    monkeypatch.setattr(theirs, "generation", told.generation)
    subscription = theirs.metadata(told.topics)
    read = subscription.decode(encode_subscription(told, own))
    return decode_subscription(subscription.encode(), own), theirs.parse_member_metadata(read)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0\0", b"\0\0\0\0\0\1\0\5a"])
def test_what_is_no_subscription_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_subscription(data, RANGE)


def test_partitions_by_topic() -> None:
    assert by_topic([A[1], B[0], A[0]]) == {"a": [1, 0], "b": [0]}
