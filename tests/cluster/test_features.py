"""Features: levels that the store keeps, and the rules by which they change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plog.cluster.features import (
    GROUP_VERSION,
    SUPPORTED,
    TRANSACTION_VERSION,
    Change,
    Direction,
    Features,
)
from plog.cluster.store import Store
from plog.cluster.znodes import FEATURES, FeaturesNode
from plog.errors import ErrorCode, KafkaError
from tests.waiting import until

HIGHEST = SUPPORTED[TRANSACTION_VERSION].highest


@pytest.fixture
def features(store: Store) -> Iterator[Features]:
    made = Features(store)
    yield made
    made.stop()


def to(level: int, direction: Direction = Direction.UP) -> Change:
    return Change(TRANSACTION_VERSION, level, direction)


def test_new_cluster_begins_with_the_highest_levels(store: Store, features: Features) -> None:
    assert features.finalized == ({TRANSACTION_VERSION: HIGHEST, GROUP_VERSION: 1}, 0)
    assert store.get(FEATURES)[0] == (
        b'{"version":2,"status":1,"features":{"transaction.version":2,"group.version":1}}'
    )


@pytest.mark.parametrize(
    ("data", "levels"),
    [
        (b'{"version":2,"status":1,"features":{}}', {GROUP_VERSION: 1}),
        (b'{"version":2,"status":1,"features":{"group.version":0}}', {}),
        (
            b'{"version":2,"status":1,"features":{"transaction.version":1}}',
            {TRANSACTION_VERSION: 1, GROUP_VERSION: 1},
        ),
        (b'{"version":2,"status":0,"features":{"transaction.version":1}}', {}),
        (
            b'{"version":1,"status":1,"features":{"transaction.version":'
            b'{"min_version_level":1,"max_version_level":2}}}',
            {TRANSACTION_VERSION: 2, GROUP_VERSION: 1},
        ),
        (b"nonsense", {GROUP_VERSION: 1}),
    ],
)
def test_what_the_store_says_is_in_force(store: Store, data: bytes, levels: dict[str, int]) -> None:
    store.create(FEATURES, data)
    features = Features(store)
    assert features.finalized.levels == levels
    features.stop()


def test_levels_go_down_where_that_is_said(store: Store, features: Features) -> None:
    with pytest.raises(KafkaError) as refused:
        features.update(to(1))
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    features.update(to(1, Direction.DOWN_SAFELY))
    assert features.finalized == ({TRANSACTION_VERSION: 1, GROUP_VERSION: 1}, 1)
    features.update(to(0, Direction.DOWN))
    assert features.finalized == ({GROUP_VERSION: 1}, 2)
    features.update(to(HIGHEST))
    assert features.finalized == ({TRANSACTION_VERSION: HIGHEST, GROUP_VERSION: 1}, 3)


def test_level_0_of_groups_survives_other_changes_and_restarts(
    store: Store, features: Features
) -> None:
    features.update(Change(GROUP_VERSION, 0, Direction.DOWN))
    features.update(to(1, Direction.DOWN))
    assert features.finalized == ({TRANSACTION_VERSION: 1}, 2)
    again = Features(store)
    assert again.finalized == ({TRANSACTION_VERSION: 1}, 2)
    again.update(Change(GROUP_VERSION, 1, Direction.UP))
    assert again.finalized == ({TRANSACTION_VERSION: 1, GROUP_VERSION: 1}, 3)
    again.stop()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (to(HIGHEST + 1), ErrorCode.INVALID_UPDATE_VERSION),
        (to(HIGHEST + 1, Direction.DOWN), ErrorCode.INVALID_UPDATE_VERSION),
        (to(-1, Direction.DOWN), ErrorCode.INVALID_UPDATE_VERSION),
        (Change("metadata.version", 1, Direction.UP), ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_levels_that_cannot_be(features: Features, change: Change, code: ErrorCode) -> None:
    for ask in (features.check, features.update):
        with pytest.raises(KafkaError) as refused:
            ask(change)
        assert refused.value.code == code
    assert features.finalized.epoch == 0


def test_feature_that_is_not_in_force_cannot_be_removed(features: Features) -> None:
    features.update(to(0, Direction.DOWN))
    with pytest.raises(KafkaError) as refused:
        features.check(to(0, Direction.DOWN))
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_what_another_broker_changes_is_heard_of(store: Store, features: Features) -> None:
    store.set(FEATURES, FeaturesNode({TRANSACTION_VERSION: 1}).encode())
    until(lambda: features.finalized.levels == {TRANSACTION_VERSION: 1, GROUP_VERSION: 1})
    other = Features(store)
    other.update(to(2))
    until(lambda: features.finalized.levels == {TRANSACTION_VERSION: 2, GROUP_VERSION: 1})
    other.stop()
