"""The coordinator's assignors: what every assignment must be, over whatever members may want."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator.assignors import (
    ASSIGNORS,
    IdPartition,
    Partitions,
    Sizes,
    Wish,
    Wishes,
    range_,
    uniform,
)

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
GONE = uuid.UUID(int=9)
MEMBERS = ["a", "b", "c", "d", "e"]
SIZES = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))
WANTED = st.frozensets(st.sampled_from(TOPICS))
GIVEN = st.frozensets(
    st.builds(IdPartition, st.sampled_from([*TOPICS, GONE]), st.integers(0, 9)), max_size=8
)
WISHES = st.dictionaries(st.sampled_from(MEMBERS), st.builds(Wish, WANTED, GIVEN))


def alike(wanted: frozenset[uuid.UUID]) -> st.SearchStrategy[dict[str, Wish]]:
    """Members who all want the same."""
    wish = st.builds(Wish, st.just(wanted), GIVEN)
    return st.dictionaries(st.sampled_from(MEMBERS), wish, min_size=1)


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(wishes=WISHES, sizes=SIZES)
def test_every_wanted_partition_is_given_once_to_who_wants_it(
    assign: Callable[[Wishes, Sizes], dict[str, Partitions]], wishes: Wishes, sizes: Sizes
) -> None:
    found = assign(wishes, sizes)
    assert found.keys() == wishes.keys()
    given_out = [at for partitions in found.values() for at in partitions]
    assert len(given_out) == len(set(given_out))
    wanted = {topic for wish in wishes.values() for topic in wish.topics}
    assert set(given_out) == {
        IdPartition(topic, index)
        for topic in wanted & sizes.keys()
        for index in range(sizes[topic])
    }
    for member, partitions in found.items():
        assert {at.topic_id for at in partitions} <= wishes[member].topics


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(wishes=WISHES, sizes=SIZES)
def test_assigning_again_changes_nothing(
    assign: Callable[[Wishes, Sizes], dict[str, Partitions]], wishes: Wishes, sizes: Sizes
) -> None:
    once = assign(wishes, sizes)
    again = {member: Wish(wish.topics, once[member]) for member, wish in wishes.items()}
    assert assign(again, sizes) == once


@given(wishes=WANTED.flatmap(alike), sizes=SIZES)
def test_uniform_gives_equal_members_the_same_number_or_one_more(
    wishes: Wishes, sizes: Sizes
) -> None:
    numbers = [len(partitions) for partitions in uniform(wishes, sizes).values()]
    assert max(numbers) - min(numbers) <= 1


@given(wishes=WISHES, sizes=SIZES)
def test_uniform_leaves_no_move_that_would_make_it_more_even(wishes: Wishes, sizes: Sizes) -> None:
    found = uniform(wishes, sizes)
    for giver, partitions in found.items():
        for taker, wish in wishes.items():
            if any(at.topic_id in wish.topics for at in partitions):
                assert len(partitions) - len(found[taker]) <= 1, (giver, taker)


@given(count=st.integers(1, 6), size=st.integers(1, 20))
def test_uniform_moves_only_what_a_new_member_gets(count: int, size: int) -> None:
    wanted, sizes = frozenset(TOPICS[:1]), {TOPICS[0]: size}
    before = uniform({f"m{n}": Wish(wanted) for n in range(count)}, sizes)
    wishes = {member: Wish(wanted, has) for member, has in before.items()}
    after = uniform({**wishes, "new": Wish(wanted)}, sizes)
    assert len(after["new"]) == size // (count + 1)
    assert all(after[member] <= before[member] for member in before)


@given(count=st.integers(2, 6), size=st.integers(1, 20))
def test_uniform_moves_only_what_a_gone_member_had(count: int, size: int) -> None:
    wanted, sizes = frozenset(TOPICS[:1]), {TOPICS[0]: size}
    before = uniform({f"m{n}": Wish(wanted) for n in range(count)}, sizes)
    wishes = {member: Wish(wanted, has) for member, has in before.items() if member != "m0"}
    after = uniform(wishes, sizes)
    assert all(after[member] >= before[member] for member in after)


@given(wishes=WANTED.flatmap(alike), size=st.integers(1, 9))
def test_range_gives_neighbours_and_the_same_numbers_of_topics_of_one_size(
    wishes: Wishes, size: int
) -> None:
    wanted = next(iter(wishes.values())).topics
    found = range_(wishes, dict.fromkeys(TOPICS, size))
    for partitions in found.values():
        by_topic = [
            sorted(at.partition for at in partitions if at.topic_id == topic) for topic in wanted
        ]
        assert all(numbers == by_topic[0] for numbers in by_topic)
        if by_topic and by_topic[0]:
            low, high = by_topic[0][0], by_topic[0][-1]
            assert by_topic[0] == list(range(low, high + 1))


def test_uniform_of_many_members_and_partitions_is_even() -> None:
    wanted = frozenset(TOPICS)
    wishes = {f"m{n}": Wish(wanted) for n in range(100)}
    found = uniform(wishes, dict.fromkeys(TOPICS, 250))
    assert {len(partitions) for partitions in found.values()} == {10}
