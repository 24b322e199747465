"""Features: what every broker of a cluster supports, and may therefore use (KIP-584).

Owns the levels that this broker supports, the finalized levels that /feature holds, and the rules
for changing them. The code that uses a feature decides what its levels mean.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from plog.cluster.registered_brokers import read_registered_brokers
from plog.cluster.store import BadVersion, NodeExists, NoNode, Stat, Store
from plog.cluster.store_follower import StoreFollower
from plog.cluster.znodes import FEATURES, BrokerNode, FeaturesNode, MalformedNode
from plog.errors import ConfigError, InvalidRequest, InvalidUpdateVersion

log = logging.getLogger(__name__)

NO_LEVEL: Final = 0

TRANSACTION_VERSION: Final = "transaction.version"
"""1: records of __transaction_state may say more than Kafka 3.9 knows; 2: each transaction has an
epoch of its own, and clients leave it to their writes to join it (KIP-890)."""

GROUP_VERSION: Final = "group.version"
"""1: groups may use the consumer rebalance protocol (KIP-848); 0: heartbeats are refused."""


class Supported(NamedTuple):
    """The levels of a feature that this broker supports."""

    lowest: int
    highest: int


SUPPORTED: Final[Mapping[str, Supported]] = {
    TRANSACTION_VERSION: Supported(NO_LEVEL, 2),
    GROUP_VERSION: Supported(NO_LEVEL, 1),
}

IMPLIED: Final[Mapping[str, int]] = {GROUP_VERSION: 1}
"""Levels of features that /feature does not mention.

Earlier releases supported consumer groups without a feature, so a store that they wrote must not
turn the groups off. Level 0 of these features is therefore stored explicitly; earlier releases
ignore a level of 0.
"""


class Finalized(NamedTuple):
    """The finalized levels, without those at `NO_LEVEL`. The epoch grows with each change."""

    levels: Mapping[str, int]
    epoch: int


class Direction(IntEnum):
    """Which way a level may go, as UpdateFeatures says it."""

    UP = 1
    DOWN_SAFELY = 2
    DOWN = 3


class Change(NamedTuple):
    """What one feature's level is to be."""

    feature: str
    level: int
    direction: Direction


class Features:
    """The features of the cluster, in step with the coordination store.

    A new cluster begins with the highest levels. `finalized` is safe from any thread; everything
    else blocks on the store.

    Raises (constructor):
        ConfigError: the cluster uses a level that this broker does not support.
        StoreError: the levels cannot be read or written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begin()
        self._finalized = _finalized(*self._read())
        _check_supported(self._finalized.levels)
        self._follower = StoreFollower("features", self._refresh)
        self._watch = store.watch_data(FEATURES, self._follower.note_change)
        self._follower.start()  # it reads what was written before the watch stood

    @property
    def finalized(self) -> Finalized:
        """What is in force."""
        return self._finalized

    def read_again(self) -> None:
        """Read the levels, soon: a change may have been missed."""
        self._follower.note_change()

    def stop(self) -> None:
        """Stop following changes."""
        self._watch.cancel()
        self._follower.stop()

    def check(self, change: Change) -> None:
        """Check whether a change can be made.

        Raises:
            InvalidRequest: no such feature in force that is to be removed, or no level given.
            InvalidUpdateVersion: the level is not supported by every broker that is registered, or
                goes another way than asked. A level cannot be raised while a registration is
                unreadable.
            StoreError: the registrations cannot be read.
        """
        self._check(change, self._finalized.levels)

    def update(self, change: Change) -> None:
        """Change one feature's level. Raises as `check`, StoreError."""
        self._store.sync()  # what another broker confirmed counts here
        while True:
            node, stat = self._read()
            self._check(change, _finalized(node, stat).levels)
            stored = dict(node.levels) if node.is_enabled else {}
            stored[change.feature] = level = max(change.level, NO_LEVEL)
            levels = {
                name: stored[name] for name in stored if stored[name] > NO_LEVEL or name in IMPLIED
            }
            try:
                self._store.set(FEATURES, FeaturesNode(levels).encode(), stat.version)
            except BadVersion:
                continue  # another broker changed a level
            log.info("feature %s is now finalized at level %d", change.feature, level)
            self._refresh()
            return

    def _check(self, change: Change, levels: Mapping[str, int]) -> None:
        unreadable: list[str] = []
        brokers = read_registered_brokers(
            self._store, lambda path, stat, fault: unreadable.append(f"{path}: {fault}")
        )
        nodes = {broker_id: one.node for broker_id, one in brokers.items()}
        _check(change, levels, nodes)
        if unreadable and change.direction is Direction.UP:
            # It may be that of a broker of an earlier release.
            raise InvalidUpdateVersion(
                f"which levels every broker supports is unknown: {'; '.join(unreadable)}"
            )

    def _begin(self) -> None:
        if self._store.exists(FEATURES) is not None:
            return
        highest = {name: levels.highest for name, levels in SUPPORTED.items()}
        try:
            self._store.create(FEATURES, FeaturesNode(highest).encode())
        except NodeExists:
            log.debug("another broker was first to create %s", FEATURES)

    def _refresh(self) -> None:
        found = _finalized(*self._read())
        if found != self._finalized:
            self._finalized = found

    def _read(self) -> tuple[FeaturesNode, Stat]:
        while True:
            try:
                data, stat = self._store.get(FEATURES)
            except NoNode:
                self._begin()
                continue
            try:
                return FeaturesNode.decode(data), stat
            except MalformedNode as fault:
                log.error("ignoring the finalized features: %s: %s", FEATURES, fault)
                return FeaturesNode({}), stat


def _finalized(node: FeaturesNode, stat: Stat) -> Finalized:
    if not node.is_enabled:
        return Finalized({}, stat.version)
    levels = {**IMPLIED, **node.levels}
    return Finalized(
        {name: level for name, level in levels.items() if level > NO_LEVEL}, stat.version
    )


def _check_supported(levels: Mapping[str, int]) -> None:
    for feature, level in levels.items():
        supported = SUPPORTED.get(feature)
        if supported is None or not supported.lowest <= level <= supported.highest:
            raise ConfigError(
                f"the cluster uses feature {feature} at level {level}, which this release does not"
                " support: install a newer one, or lower the level (`plog features set --lower`)"
            )


def _check(change: Change, levels: Mapping[str, int], brokers: Mapping[int, BrokerNode]) -> None:
    feature, level, direction = change
    supported = SUPPORTED.get(feature)
    if supported is None:
        raise InvalidUpdateVersion(f"unknown feature {feature[:100]!r}")
    if level < NO_LEVEL:
        raise InvalidUpdateVersion(f"{feature} cannot be at level {level}")
    now = levels.get(feature, NO_LEVEL)
    if level == NO_LEVEL and feature not in levels:
        raise InvalidRequest(f"{feature} has no finalized level")
    if level > supported.highest or NO_LEVEL < level < supported.lowest:
        raise InvalidUpdateVersion(
            f"{feature} can be at levels {supported.lowest} to {supported.highest}, not {level}"
        )
    for broker_id, broker in sorted(brokers.items()):
        lowest, highest = broker.features.get(feature, (NO_LEVEL, NO_LEVEL))
        if level > highest or NO_LEVEL < level < lowest:
            raise InvalidUpdateVersion(
                f"broker {broker_id} supports {feature} at levels {lowest} to {highest} only"
            )
    if level < now and direction is Direction.UP:
        raise InvalidUpdateVersion(
            f"{feature} is at level {now}; lowering it to {max(level, NO_LEVEL)}"
            " needs a downgrade (`plog features set --lower`)"
        )
    if level > now and direction is not Direction.UP:
        raise InvalidUpdateVersion(f"{feature} is at level {now}; {level} is not lower")
