"""In which order a consumer group's records are written."""

from __future__ import annotations

import random

import pytest

from plog.cluster.own_appends import Pair
from plog.coordinator.consumer_log import decode_key
from plog.coordinator.consumer_store import Batch, in_order
from plog.coordinator.consumer_table import EPOCH, TARGET_EPOCH, TOPICS, Key, Kind, Record
from plog.coordinator.consumer_table import Subscriber as Member

REMOVED = [
    Record(key, None)
    for key in (
        Key(Kind.REGEX, "x.*"),
        Key(Kind.CURRENT, "m"),
        Key(Kind.TARGET, "m"),
        TARGET_EPOCH,
        Key(Kind.MEMBER, "m"),
        TOPICS,
        EPOCH,
    )
]
ADDED = [
    Record(EPOCH, 1),
    Record(Key(Kind.MEMBER, "n"), Member()),
    Record(TARGET_EPOCH, 1),
    Record(Key(Kind.TARGET, "n"), frozenset()),
]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_inside_is_removed_first_and_added_last(seed: int) -> None:
    records = [*REMOVED[:3], *ADDED]
    random.Random(seed).shuffle(records)
    assert list(in_order(records)) == [*REMOVED[:3], *ADDED]
    random.Random(seed).shuffle(records)
    assert list(in_order([*records, *REMOVED])) == [
        *REMOVED[:3],
        *(one for one in REMOVED[3:]),
        *(one for one in ADDED if one.key not in {gone.key for gone in REMOVED}),
    ]


def test_the_last_record_of_a_key_counts() -> None:
    assert list(in_order([Record(EPOCH, 1), Record(EPOCH, None), Record(EPOCH, 3)])) == [
        Record(EPOCH, 3)
    ]


def test_a_group_is_removed_before_it_is_of_another_type() -> None:
    gone, come = Pair(b"classic", None), Pair(b"classic", b"group")
    upgraded = Batch(ADDED, [gone]).pairs("g")
    assert upgraded[0] == gone
    assert [decode_key(pair.key).key for pair in upgraded[1:]] == [one.key for one in ADDED]
    downgraded = Batch(REMOVED, [come]).pairs("g")
    assert downgraded[-1] == come
    assert [decode_key(pair.key).key for pair in downgraded[:-1]] == [one.key for one in REMOVED]
