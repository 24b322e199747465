"""Steps of the cases about consumer groups (KIP-848): each member has a connection of its own.

A member is called by its connection (`via`), which is its id as well unless the coordinator gave it
one; it says the epoch that it was told last. What a step leaves out has not changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from plog.protocol.messages.configs import ListConfigResourcesRequest
from plog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tests.compat.against_kafka.group_steps import group_id
from tests.compat.against_kafka.pair import Side, Step

JOINING, LEAVING, AWAY = 0, -1, -2
Owned = Sequence[tuple[str, Sequence[int]]]


def beat(
    via: str,
    version: int = 1,
    *,
    group: str = "g",
    member: str | None = None,
    epoch: int | None = None,
    instance: str | None = None,
    rack: str | None = None,
    timeout_ms: int = -1,
    topics: Sequence[str] | None = None,
    regex: str | None = None,
    assignor: str | None = None,
    owned: Owned | None = None,
    until: tuple[str, str] | None = None,
) -> Step:
    """Expressions are of the case's own names: they begin with its prefix."""

    def make(side: Side) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=group_id(side, group) if group.strip() else group,
            member_id=side.members.get(via, via) if member is None else member,
            member_epoch=side.epochs.get(via, JOINING) if epoch is None else epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=timeout_ms,
            subscribed_topic_names=None if topics is None else list(map(side.name, topics)),
            subscribed_topic_regex=side.name(regex) if regex else regex,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                TopicPartitions(topic_id=side.id(name), partitions=list(some))
                for name, some in owned
            ],
        )

    return Step(make, version, via=via, until=until)


def join(via: str, version: int = 1, **changes: object) -> Step:
    told: dict[str, object] = {
        "epoch": JOINING,
        "timeout_ms": 60_000,
        "topics": ["t"],
        "owned": [],
    }
    return beat(via, version, **{**told, **changes})  # type: ignore[arg-type]


def found(via: str, regex: str) -> Step:
    """Have it found out what the expression of a new member matches.

    All is told each time, so that all is answered each time: it comes when it comes.
    """
    return beat(via, timeout_ms=60_000, regex=regex, owned=[], until=("member_epoch", "2"))


def leave(via: str, epoch: int = LEAVING, **changes: object) -> Step:
    return beat(via, epoch=epoch, **changes)  # type: ignore[arg-type]


def described(
    *groups: str,
    version: int = 1,
    operations: bool = False,
    until: tuple[str, str] | None = None,
) -> Step:
    def make(side: Side) -> ConsumerGroupDescribeRequest:
        return ConsumerGroupDescribeRequest(
            group_ids=[group_id(side, group) for group in groups or ("g",)],
            include_authorized_operations=operations,
        )

    return Step(make, version, until=until)


def two(first: str = "a", second: str = "b") -> list[Step]:
    """Have two members share the partitions of `t`, which are two."""
    return [
        join(first),
        join(second),
        beat(first),
        beat(first, owned=[("t", [0])]),
        beat(second),
        beat(second, owned=[("t", [1])]),
    ]


def config_resources(*types: int, version: int = 1) -> Step:
    return Step(lambda side: ListConfigResourcesRequest(resource_types=list(types)), version)
