"""The events and effects of a consumer group (KIP-848), besides those of classic groups.

Plain values without behaviour, so that a scenario can write and compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from plog.coordinator.assignors import Partitions
from plog.coordinator.consumer_table import NO_TIMEOUT, Record, Resolved
from plog.coordinator.group_events import (
    Answer,
    Heartbeat,
    Join,
    Leave,
    SetTimer,
    StopTimer,
    Sync,
    TimerFired,
    Token,
)


class GroupState(Enum):
    """Kafka's states of a consumer group, with their names in responses."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for consumer groups, from the settings.

    Args:
        assignors: supported assignors; the first one is the default.
        may_downgrade: whether a group becomes classic when its last member of the consumer protocol
            leaves, unless it has more than `classic_max_size` members.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    may_downgrade: bool = True
    classic_max_size: int = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Beat:
    """ConsumerGroupHeartbeat; None fields have not changed."""

    token: Token
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the request is full, and so needs a full response."""
        return (
            self.rebalance_timeout_ms != NO_TIMEOUT
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of `Resolve`: the topics that each expression matches."""

    regexes: Mapping[str, Resolved]


ConsumerEvent: TypeAlias = Beat | Resolution | Join | Sync | Heartbeat | Leave | TimerFired


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """Commit records, all or none; later responses wait for that."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """The group starts a rebalance; logged once for each group epoch."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resolve:
    """Match topics against these expressions; report `Resolution`."""

    regexes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Downgrade:
    """No member of the consumer protocol is left: make it a classic group."""

    reason: str


ConsumerEffect: TypeAlias = (
    Answer | SetTimer | StopTimer | StoreRecords | NewEpoch | Resolve | Downgrade
)
