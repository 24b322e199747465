from __future__ import annotations

from collections import Counter

import pytest

from plog.client.partitioner import StickyPartitioner, partition_for_key, round_robin


@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    # From Kafka's own murmur2 values (275646681, -1563381124, 479470107, -790332482).
    [(b"", 1, 0), (b"", 1000, 681), (b"a", 1000, 524), (b"abc", 1000, 107), (b"foobar", 1000, 166)],
)
def test_key_has_the_partition_of_the_java_client(key, partitions, partition):
    assert partition_for_key(key, partitions) == partition
    assert StickyPartitioner()("t", key, partitions) == partition


def test_records_without_key_stay_until_the_batch_is_closed():
    partitioner = StickyPartitioner(seed=1)
    before = None
    used = Counter()
    for _ in range(300):
        first = partitioner("t", None, 5)
        assert {partitioner("t", None, 5) for _ in range(10)} == {first}
        assert first != before
        used[first] += 1
        partitioner.batch_closed("t", first)
        before = first
    assert set(used) == set(range(5))


def test_batch_of_a_key_that_is_closed_moves_nobody():
    partitioner = StickyPartitioner(seed=1)
    first = partitioner("t", None, 5)
    partitioner.batch_closed("t", (first + 1) % 5)
    partitioner.batch_closed("other", first)
    assert partitioner("t", None, 5) == first


def test_topics_are_apart_and_single_partitions_work():
    partitioner = StickyPartitioner(seed=1)
    assert partitioner("one", None, 1) == 0
    partitioner.batch_closed("one", 0)
    assert partitioner("one", None, 1) == 0
    assert partitioner("two", None, 3) in range(3)


def test_fewer_partitions_than_before_are_respected():
    partitioner = StickyPartitioner(seed=3)
    for _ in range(50):
        at = partitioner("t", None, 100)
        assert partitioner("t", None, 2) in range(2)
        partitioner.batch_closed("t", at)
        assert partitioner("t", None, 2) in range(2)


def test_round_robin_goes_through_the_partitions_of_each_topic():
    choose = round_robin()
    assert [choose("t", b"k", 3) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert choose("u", None, 3) == 0
