"""The arithmetic of streams: JSON, shares of a limit, delays, what a batch reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.errors import ConfigError
from plog.spark.stream_offsets import (
    Delay,
    Piece,
    between,
    from_json,
    limited,
    share,
    to_json,
    waiting,
)
from plog.types import TopicPartition

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "t.x", "Z"]), st.integers(0, 120))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**62), max_size=30)
SIZES = st.dictionaries(
    PARTITIONS, st.one_of(st.integers(1, 5), st.integers(1, 2**62)), min_size=1, max_size=30
)


# -- JSON


@given(OFFSETS)
def test_offsets_survive_their_json(offsets):
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@given(OFFSETS, st.randoms())
def test_equal_offsets_make_equal_texts_with_sorted_keys(offsets, random):
    items = list(offsets.items())
    random.shuffle(items)
    text = json.dumps(to_json(dict(items)))
    assert text == json.dumps(to_json(offsets), sort_keys=True)


def test_offsets_are_written_as_sparks_kafka_source_writes_them():
    assert json.dumps(to_json({T1: 0, T0: 23})) == '{"t": {"0": 23, "1": 0}}'
    assert from_json(json.loads('{"t":{"1":0,"0":23}}')) == {T0: 23, T1: 0}
    assert to_json({}) == {}


@pytest.mark.parametrize(
    "told", [{"offset": 3}, {"t": [1]}, [], {"t": {"x": 1}}, {"t": {"0": None}}]
)
def test_offsets_of_another_source_are_refused(told):
    with pytest.raises(ConfigError, match="use the checkpoint of this query"):
        from_json(told)


# -- limits


@given(SIZES, st.integers(1, 2**63), st.integers(0, 100))
def test_all_of_a_limit_is_shared_out(sizes, limit, turn):
    shares = share(sizes, limit, turn)
    assert sum(shares.values()) == min(limit, sum(sizes.values()))
    assert all(0 < shares[p] <= sizes[p] for p in shares)
    if limit >= len(sizes):
        assert shares.keys() == sizes.keys()


@given(SIZES, st.integers(1, 2**63))
def test_shares_are_in_proportion(sizes, limit):
    shares = share(sizes, limit)
    total = sum(sizes.values())
    if limit < len(sizes):
        return
    for partition, size in sizes.items():
        # As Spark's, but for the ones that keep small partitions going.
        exact = limit * size / total
        assert shares[partition] >= min(size, 1)
        assert shares[partition] <= exact + 2 + exact * 1e-9
        assert shares[partition] >= (exact - len(sizes) - 2) * (1 - 1e-9) or limit >= total


def test_shares_of_a_plain_case_are_those_of_spark():
    assert share({T0: 1000, T1: 500, T2: 500}, 700) == {T0: 350, T1: 175, T2: 175}


@given(SIZES, st.integers(1, 10), st.integers(0, 50))
def test_partitions_take_turns_where_a_limit_is_too_small_for_all(sizes, limit, first):
    reached = set()
    for turn in range(first, first + -(-len(sizes) // limit)):
        reached |= share(sizes, limit, turn).keys()
    assert reached == sizes.keys()


@given(OFFSETS, st.integers(1, 1000), st.data())
def test_batches_of_a_limit_reach_the_end(starts, limit, data):
    ends = {p: s + data.draw(st.integers(0, 300)) for p, s in starts.items()}
    at, batches = dict(starts), 0
    total = sum(waiting(starts, ends).values())
    while at != ends:
        after = limited(at, ends, limit, batches)
        assert all(at[p] <= after[p] <= ends[p] for p in ends)
        assert sum(waiting(at, after).values()) == min(limit, sum(waiting(at, ends).values()))
        at, batches = after, batches + 1
    assert batches == -(-total // limit)


def test_limit_leaves_what_goes_back_alone():
    assert limited({T0: 50, T1: 0}, {T0: 0, T1: 10}, 4) == {T0: 0, T1: 4}


def test_first_batch_is_not_held_back_and_later_ones_until_enough_or_late():
    delay = Delay(100, 10_000)
    assert delay.left_s(1, 1000.0) == 0
    assert delay.left_s(1, 1000.5) == 9.5
    assert delay.left_s(99, 1009.0) == 1.0
    assert delay.left_s(100, 1009.5) == 0
    assert delay.left_s(99, 1010.0) == 9.5
    assert delay.left_s(1, 1019.5) == 0


# -- ranges


def test_batch_reads_what_is_between_its_offsets():
    start = {T0: 5, T1: 7}
    assert between(start, {T0: 9, T1: 7, T2: 3}) == [Piece(T0, 5, 9), Piece(T2, None, 3)]
    assert between(start, {T0: 2}) == []  # records were lost, and the next batch begins at 2


@given(OFFSETS, OFFSETS)
def test_order_of_what_a_batch_reads_is_always_the_same(start, end):
    backwards = dict(reversed(list(end.items())))
    assert between(start, end) == between(start, backwards)
