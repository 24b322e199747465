"""Plans of where replicas go: what stays, what moves, and what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from plog.ops.reassign_plan import Partition, Plan, Planner, Room, shortages
from plog.types import TopicPartition


def at(index: int) -> TopicPartition:
    return TopicPartition("t", index)


def planner(
    *replicas: tuple[int, ...],
    sizes: tuple[int, ...] = (),
    brokers: tuple[int, ...] = (0, 1, 2),
    racks: dict[int, str] | None = None,
    chosen: tuple[int, ...] | None = None,
) -> Planner:
    partitions = {
        at(index): Partition(one, sizes[index] if sizes else 100)
        for index, one in enumerate(replicas)
    }
    rooms = {one: Room((racks or {}).get(one)) for one in brokers}
    numbers = range(len(replicas)) if chosen is None else chosen
    return Planner(partitions, rooms, [at(one) for one in numbers])


def after(plan: Plan) -> dict[int, tuple[int, ...]]:
    return {move.partition.partition: move.after for move in plan.moves}


def test_nothing_moves_without_a_reason() -> None:
    made = planner((0, 1), (1, 2), (2, 0))
    made.vacate()
    made.set_factor(2)
    made.balance()
    assert made.plan().moves == ()


def test_drained_broker_loses_all_and_the_emptiest_get_them() -> None:
    made = planner((0, 1), (1, 2), (2, 0), brokers=(0, 1, 3))
    made.vacate()
    plan = made.plan()
    assert after(plan) == {1: (1, 3), 2: (3, 0)}
    assert plan.bytes_after == {0: 200, 1: 200, 2: 0, 3: 200}
    assert plan.copied_bytes == {3: 200}


def test_too_few_brokers_are_left() -> None:
    made = planner((0, 1, 2), brokers=(0, 1))
    with pytest.raises(InvalidReplicaAssignment, match="t-0 has 3 replicas, and 2 brokers"):
        made.vacate()


def test_drained_broker_is_not_replaced_where_fewer_replicas_are_wanted() -> None:
    made = planner((2, 0, 1), (0, 1, 2), brokers=(0, 1))
    made.set_factor(2)
    made.vacate()
    assert {index: {*one} for index, one in after(made.plan()).items()} == {0: {0, 1}, 1: {0, 1}}


def test_replacement_takes_every_place() -> None:
    made = planner((0, 1), (1, 2), brokers=(0, 2, 3))
    made.replace(1, 3)
    assert after(made.plan()) == {0: (0, 3), 1: (3, 2)}


@pytest.mark.parametrize(("new", "why"), [(9, "not in the cluster"), (0, "on both broker 1 and 0")])
def test_replacement_that_cannot_be(new: int, why: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=why):
        planner((0, 1)).replace(1, new)


def test_more_and_fewer_replicas() -> None:
    made = planner((0,), (1,), (2,))
    made.set_factor(2)
    assert {len(one) for one in after(made.plan()).values()} == {2}
    assert made.plan().bytes_after == {0: 200, 1: 200, 2: 200}
    made.set_factor(1)
    assert made.plan().moves == ()


@pytest.mark.parametrize("factor", [0, 4])
def test_factor_that_cannot_be(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor):
        planner((0,)).set_factor(factor)


def test_racks_stay_different() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    made = planner((0,), (1,), (2,), brokers=(0, 1, 2, 3), racks=racks)
    made.set_factor(2)
    for replicas in after(made.plan()).values():
        assert {racks[one] for one in replicas} == {"a", "b"}


def test_new_broker_gets_its_share() -> None:
    made = planner(*[(0,)] * 4, *[(1,)] * 4, brokers=(0, 1, 2))
    made.balance()
    plan = made.plan()
    assert max(plan.bytes_after.values()) - min(plan.bytes_after.values()) <= 100
    assert sum(plan.copied_bytes.values()) == plan.copied_bytes[2]


def test_only_chosen_partitions_move() -> None:
    made = planner((2,), (2,), brokers=(0, 1), chosen=(1,))
    made.vacate()
    assert [*after(made.plan())] == [1]


def test_leaders_are_spread_where_the_first_has_gone() -> None:
    made = planner((0, 1), (0, 1), (0, 1), (0, 1), brokers=(1, 2))
    made.vacate()
    firsts = [replicas[0] for replicas in after(made.plan()).values()]
    assert sorted(firsts) == [1, 1, 2, 2]


def test_disks_that_are_too_small() -> None:
    made = planner((0,), sizes=(500,), brokers=(1, 2))
    made.vacate()
    plan = made.plan()
    assert shortages(plan, {1: Room(free_bytes=499), 2: Room()}) == {1: (500, 499)}
    assert shortages(plan, {1: Room(free_bytes=500), 2: Room()}) == {}
    assert shortages(plan, {1: Room(), 2: Room()}) == {}


BROKERS = st.integers(0, 5)
REPLICAS = st.lists(BROKERS, min_size=1, max_size=3, unique=True).map(tuple)


@given(
    st.lists(st.tuples(REPLICAS, st.integers(0, 1000)), max_size=20),
    st.lists(BROKERS, min_size=3, unique=True),
    st.booleans(),
)
def test_plan_keeps_the_number_of_replicas_and_uses_allowed_brokers(
    found: list[tuple[tuple[int, ...], int]], brokers: list[int], is_balanced: bool
) -> None:
    made = planner(
        *(one for one, _ in found), sizes=tuple(size for _, size in found), brokers=tuple(brokers)
    )
    made.vacate()
    if is_balanced:
        made.balance()
    plan = made.plan()
    moved = {move.partition: move.after for move in plan.moves}
    sizes = dict.fromkeys([*range(6)], 0)
    for index, (replicas, size) in enumerate(found):
        now = moved.get(at(index), replicas)
        assert len(set(now)) == len(now) == len(replicas)
        assert set(now) <= set(brokers)
        stays = set(replicas) & set(brokers)
        assert is_balanced or stays <= set(now)
        for one in now:
            sizes[one] += size
    assert {one: size for one, size in plan.bytes_after.items() if size} == {
        one: size for one, size in sizes.items() if size
    }
