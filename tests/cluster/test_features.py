"""Features: levels that the store keeps, and the rules by which they change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.features import (
    GROUP_VERSION,
    SUPPORTED,
    TRANSACTION_VERSION,
    Change,
    Direction,
    Features,
)
from plog.cluster.store import Store
from plog.cluster.znodes import (
    FEATURES,
    BrokerNode,
    Endpoint,
    FeaturesNode,
    broker_path,
)
from plog.errors import ConfigError, ErrorCode, InvalidUpdateVersion, KafkaError
from tests.waiting import until

HIGHEST = SUPPORTED[TRANSACTION_VERSION].highest


@pytest.fixture
def features(store: Store) -> Iterator[Features]:
    create_persistent_paths(store)
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


def register(store: Store, broker_id: int, levels: dict[str, tuple[int, int]]) -> None:
    node = BrokerNode((Endpoint("PLAINTEXT", "127.0.0.1", 9092),), 0, features=levels)
    store.create(broker_path(broker_id), node.encode(), ephemeral=True)


@pytest.mark.parametrize(
    ("other", "highest"),
    [({TRANSACTION_VERSION: (0, 1)}, 1), ({TRANSACTION_VERSION: (0, 2)}, 2), ({}, 0)],
)
def test_level_is_one_that_every_broker_supports(
    store: Store, features: Features, other: dict[str, tuple[int, int]], highest: int
) -> None:
    features.update(to(0, Direction.DOWN))
    register(store, 1, dict(SUPPORTED))
    register(store, 2, other)
    for level in (1, 2):
        if level <= highest:
            features.update(to(level))
            continue
        for ask in (features.check, features.update):
            with pytest.raises(InvalidUpdateVersion, match=f"broker 2 supports .* 0 to {highest} "):
                ask(to(level))


@pytest.mark.parametrize("levels", [{TRANSACTION_VERSION: HIGHEST + 1}, {"of.tomorrow": 1}])
def test_broker_does_not_join_a_cluster_that_uses_what_it_lacks(
    store: Store, levels: dict[str, int]
) -> None:
    store.create(FEATURES, FeaturesNode(levels).encode())
    with pytest.raises(ConfigError, match=f"the cluster uses feature {next(iter(levels))} at"):
        Features(store)
