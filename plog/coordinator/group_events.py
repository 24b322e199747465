"""The vocabulary of a classic group: what happens to its machine, and what it wants done.

Plain values, so that a scenario can write them down and compare them. No behaviour.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from plog.coordinator.assignors import Partitions
from plog.errors import ErrorCode

NO_MEMBER = ""
NO_GENERATION = -1

Token: TypeAlias = Hashable
"""Names a request that waits for its answer."""


class Protocol(NamedTuple):
    """An assignor that a member can use, and what it tells the leader for it."""

    name: str
    metadata: bytes


class MemberView(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. `new_member_id` is the id that a member without one is given.

    Args:
        must_know_id: a member without an id is told one first (v4, KIP-394).
        can_skip_assignment: a leader can be told to keep its assignment (v9, KIP-814).
        capacity: the most members that the group may have (`group.max.size`).
    """

    token: Token
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    must_know_id: bool = True
    can_skip_assignment: bool = True
    capacity: int = (1 << 31) - 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup. Versions before 5 name neither type nor protocol."""

    token: Token
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat."""

    token: Token
    member_id: str
    instance_id: str | None
    generation: int


class Leaving(NamedTuple):
    """One of those that LeaveGroup names: a static member may go by its instance alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup."""

    token: Token
    members: tuple[Leaving, ...]


# --- what else happens ----------------------------------------------------------------------------


class TimerKind(Enum):
    """What a timer of a group is for."""

    SESSION = "session"
    """A member was silent for too long."""
    PENDING = "pending member"
    """A client that was told its id did not come back."""
    JOIN = "join"
    """Members had their time to join again."""
    SYNC = "sync"
    """Members had their time to ask for their assignments."""
    REVOKE = "revocation"
    """A member of a consumer group (KIP-848) had its time to give partitions up."""


class Timer(NamedTuple):
    """A timer of a group; setting it again moves it."""

    kind: TimerKind
    member_id: str = NO_MEMBER


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that was set has run out."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Stored:
    """What `StoreGroup` asked for is safe, or was refused."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE


Event: TypeAlias = Join | Sync | Heartbeat | Leave | TimerFired | Stored


# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """Answers a Join."""

    error: ErrorCode
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    members: tuple[MemberView, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """Answers a Sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Left:
    """Answers a Leave: an error for each that was named, in this order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """Answers a Beat; `assigned` is all that the member may use, None if that has not changed."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Partitions | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request; a Heartbeat by its error alone."""

    token: Token
    answer: JoinAnswer | SyncAnswer | Left | ErrorCode | BeatAnswer


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Have `TimerFired` come after so long, and not at the time that was set before."""

    timer: Timer
    after_ms: int


@dataclass(frozen=True, slots=True)
class StopTimer:
    """Have no `TimerFired` come; one that was not set may be stopped."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Make the group as it will be durable, and feed back `Stored` with the ticket.

    Args:
        assignments: the members' assignments, which the group takes over once they are safe.
    """

    ticket: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Rebalancing:
    """A rebalance begins: for the log, once for each."""

    generation: int
    reason: str


Effect: TypeAlias = Answer | SetTimer | StopTimer | StoreGroup | Rebalancing
