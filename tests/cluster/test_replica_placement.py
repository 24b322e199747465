"""Where replicas go: everywhere alike, on different brokers, in different racks."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from plog.cluster.replica_placement import Candidate, place_replicas
from plog.errors import InvalidReplicationFactor
from tests.agreement.harness import run_seed


@pytest.mark.parametrize("brokers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partitions", [1, 7, 40])
def test_replicas_are_distinct_and_leaders_even(brokers: int, partitions: int) -> None:
    seed = run_seed()
    for factor in range(1, brokers + 1):
        placed = place_replicas(
            [Candidate(one) for one in range(brokers)], partitions, factor, random.Random(seed)
        )
        assert sorted(placed) == list(range(partitions))
        assert all(len(set(replicas)) == factor for replicas in placed.values())
        leaders = Counter(replicas[0] for replicas in placed.values())
        counts = [leaders[one] for one in range(brokers)]
        assert max(counts) - min(counts) <= 1


def test_a_lost_brokers_leads_spread_over_all_others() -> None:
    placed = place_replicas([Candidate(one) for one in range(5)], 100, 3, random.Random(3))
    heirs = Counter(replicas[1] for replicas in placed.values() if replicas[0] == 2)
    assert set(heirs) == {0, 1, 3, 4}


def test_replicas_are_in_different_racks_while_there_are_any() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    candidates = [Candidate(one, rack) for one, rack in racks.items()]
    for factor in range(1, 7):
        placed = place_replicas(candidates, 30, factor, random.Random(factor))
        for replicas in placed.values():
            used = Counter(racks[one] for one in replicas)
            assert len(used) == min(factor, 3)
            assert max(used.values()) - min(used.values()) <= 1
        leaders = Counter(replicas[0] for replicas in placed.values())
        assert set(leaders.values()) == {5}


def test_where_a_rack_is_unknown_racks_do_not_count() -> None:
    candidates = [Candidate(0, "a"), Candidate(1, "a"), Candidate(2)]
    placed = place_replicas(candidates, 9, 2, random.Random(1))
    assert any({0, 1} == set(replicas) for replicas in placed.values())


def test_added_partitions_go_on_round_the_ring() -> None:
    candidates = [Candidate(one) for one in range(3)]
    placed = place_replicas(candidates, 4, 1, random.Random(1), first_partition=2, start=1)
    assert placed == {2: (0,), 3: (1,), 4: (2,), 5: (0,)}


@pytest.mark.parametrize(
    ("brokers", "factor", "says"),
    [
        (0, 1, "are only 0$"),
        (1, 2, "is only 1$"),
        (2, 3, "of 3 needs as many live brokers, and there are only 2$"),
        (2, 0, "at least 1, not 0$"),
        (2, -1, "at least 1, not -1$"),
    ],
)
def test_a_factor_that_can_not_be_had_is_refused(brokers: int, factor: int, says: str) -> None:
    with pytest.raises(InvalidReplicationFactor, match=says):
        place_replicas([Candidate(one) for one in range(brokers)], 1, factor, random.Random(1))
