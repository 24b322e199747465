"""The vocabulary of a consumer group (KIP-848), beside that of the classic one.

Plain values, so that a scenario can write them down and compare them. No behaviour.
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
    """Kafka's states of a consumer group, by the names that clients are told."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say about consumer groups.

    Args:
        assignors: the first is used where members prefer none.
        may_downgrade: whether a group whose last member of the consumer protocol has gone becomes
            a classic one, unless it is larger than `classic_max_size`.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    may_downgrade: bool = True
    classic_max_size: int = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Beat:
    """ConsumerGroupHeartbeat; what is None has not changed."""

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
        """Whether the member tells everything, and wants to be told everything."""
        return (
            self.rebalance_timeout_ms != NO_TIMEOUT
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class Resolution:
    """What `Resolve` asked for: the topics that each expression matches."""

    regexes: Mapping[str, Resolved]


ConsumerEvent: TypeAlias = Beat | Resolution | Join | Sync | Heartbeat | Leave | TimerFired


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """Make records durable, all or none; what is answered from now on is told once they are."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """The group rebalances: for the log, once for each epoch of the group."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find out which topics match these expressions, and feed back `Resolution`."""

    regexes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Nobody is left who speaks the consumer protocol: make it a classic group."""

    reason: str


ConsumerEffect: TypeAlias = (
    Answer | SetTimer | StopTimer | StoreRecords | NewEpoch | Resolve | Downgrade
)
