"""UpdateFeatures beside Kafka 4.1: both begin with each feature at its highest level.

Every case leaves them there, because the other cases rely on it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plog.cluster.features import GROUP_VERSION, TRANSACTION_VERSION
from plog.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.compat.against_kafka.group_steps import listed
from tests.compat.against_kafka.pair import Case, Step, Topic
from tests.compat.against_kafka_4.steps import beat, described, join, leave
from tests.handlers.wire import WAIT_MS

UP, SAFELY, DOWN = 1, 2, 3
HIGHEST = 2


def change(
    level: int, way: int = UP, *, feature: str = TRANSACTION_VERSION, lower: bool = False
) -> FeatureUpdateKey:
    """Args: lower: version 0's word for any other way than up."""
    return FeatureUpdateKey(
        feature=feature, max_version_level=level, upgrade_type=way, allow_downgrade=lower
    )


def update(*changes: FeatureUpdateKey, version: int = 2, only: bool = False) -> Step:
    """Args: only: validate only."""

    def make(side: object) -> UpdateFeaturesRequest:
        return UpdateFeaturesRequest(
            timeout_ms=WAIT_MS, feature_updates=list(changes), validate_only=only
        )

    return Step(make, version)


UNKNOWN = change(1, feature="no.such.feature")
BAD_CHANGES = {
    "unknown-feature": [UNKNOWN],
    "unknown-feature-removed": [change(0, DOWN, feature="no.such.feature")],
    "empty-name": [change(1, feature="")],
    "above-the-highest": [change(HIGHEST + 1)],
    "far-above": [change(32767)],
    "negative": [change(-1, DOWN)],
    "lower-without-leave": [change(1)],
    "removed-without-leave": [change(0)],
    "higher-by-way-of-down": [change(HIGHEST + 1, DOWN)],
    "way-0": [change(1, 0)],
    "way-4": [change(1, 4)],
    "nothing": [],
    "twice": [change(HIGHEST), change(HIGHEST)],
    "good-and-unknown": [change(HIGHEST), UNKNOWN],
    "two-that-are-unknown": [UNKNOWN, change(1, feature="nor.this")],
}
ALSO_IN_VERSION_1 = ("unknown-feature", "lower-without-leave", "good-and-unknown", "nothing")
"""Others would only say once more how it answers for each feature."""
CASES = {
    f"UpdateFeatures/{name}": Case(steps, {})
    for name, steps in {
        **{f"{name}-{version}": [update(*changes, version=version)]
            for name, changes in BAD_CHANGES.items()
            for version in ((1, 2) if name in ALSO_IN_VERSION_1 else (2,))},
        **{f"as-it-is-{version}": [update(change(HIGHEST, lower=lower), version=version)
            for lower in (False, version == 0)] for version in range(3)},
        **{f"{name}-0": [update(*changes, version=0)] for name, changes in {
            "unknown-feature": [UNKNOWN],
            "lower-without-leave": [change(1)],
        }.items()},
        **{f"validated-{name}-{version}": [update(*changes, version=version, only=True),
            update(change(HIGHEST), version=version)]
            for version, changes_by_name in {1: {"lower": [change(1, DOWN)]}, 2: {
                "as-it-is": [change(HIGHEST)],
                "as-it-is-by-way-of-down": [change(HIGHEST, DOWN)],
                "lower": [change(1, DOWN)],
                "lower-safely": [change(1, SAFELY)],
                "removed": [change(0, DOWN)],
                "removed-safely": [change(0, SAFELY)],
                "above-the-highest": [change(HIGHEST + 1)],
                "unknown-feature": [UNKNOWN],
            }}.items() for name, changes in changes_by_name.items()},
        "lowered-and-raised": [update(change(1, DOWN)), update(change(1, DOWN)), update(change(1)),
            update(change(HIGHEST))],
        "lowered-and-raised-0": [update(change(1, lower=True), version=0), update(change(1)),
            update(change(HIGHEST))],
        "removed-and-raised": [update(change(0, DOWN)), update(change(0, DOWN)),
            update(change(HIGHEST))],
    }.items()
}  # fmt: skip

GROUPS_OFF = update(change(0, DOWN, feature=GROUP_VERSION))
GROUPS_ON = update(change(1, feature=GROUP_VERSION))
CASES |= {
    f"UpdateFeatures/groups-{name}": Case(steps, topics)
    for name, steps, topics in (
        ("as-they-are", [GROUPS_ON], {}),
        ("above-the-highest", [update(change(2, feature=GROUP_VERSION))], {}),
        ("lower-without-leave", [update(change(0, feature=GROUP_VERSION))], {}),
        ("lowered-safely", [update(change(0, SAFELY, feature=GROUP_VERSION)), GROUPS_ON], {}),
        ("off", [GROUPS_OFF, join("a"), described(), GROUPS_ON], {"t": Topic()}),
        ("off-with-members",
            [join("a"), GROUPS_OFF, beat("a"), described(), listed(), leave("a"), GROUPS_ON,
                beat("a", owned=[("t", [0])]), described(), leave("a")], {"t": Topic()}),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
