"""The events and effects of a classic group's machine.

Plain values without behaviour, so that a scenario can write and compare them.
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
"""Identifies a request that waits for its response."""


class Protocol(NamedTuple):
    """An assignor that a member supports, with the member's metadata for it."""

    name: str
    metadata: bytes


class MemberView(NamedTuple):
    """A member in the leader's response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. `new_member_id` is the id for a member without one.

    Args:
        must_know_id: a member without an id first gets one, and joins again (v4, KIP-394).
        can_skip_assignment: the response can tell a leader to keep its assignment (v9, KIP-814).
        capacity: maximum number of members of the group (`group.max.size`).
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
    """A member of LeaveGroup; a static member may be named by its instance alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup."""

    token: Token
    members: tuple[Leaving, ...]


# --- other events ---------------------------------------------------------------------------------


class TimerKind(Enum):
    """The purpose of a group's timer."""

    SESSION = "session"
    """A member's session has expired."""
    PENDING = "pending member"
    """A client with a new member id did not join."""
    JOIN = "join"
    """The time for members to join again is over."""
    SYNC = "sync"
    """The time for members to send SyncGroup is over."""
    REVOKE = "revocation"
    """The time for a member of a consumer group (KIP-848) to give up partitions is over."""


class Timer(NamedTuple):
    """A timer of a group; setting it again moves it."""

    kind: TimerKind
    member_id: str = NO_MEMBER


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer has expired."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of `StoreGroup`."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE


Event: TypeAlias = Join | Sync | Heartbeat | Leave | TimerFired | Stored


# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The response to a Join."""

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
    """The response to a Sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Left:
    """The response to a Leave: an error for each named member, in order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """The response to a Beat; `assigned` has all partitions of the member, or None if unchanged."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Partitions | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Respond to a request; to a Heartbeat with an error code only."""

    token: Token
    answer: JoinAnswer | SyncAnswer | Left | ErrorCode | BeatAnswer


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set or reset a timer, which reports `TimerFired`."""

    timer: Timer
    after_ms: int


@dataclass(frozen=True, slots=True)
class StopTimer:
    """Stop a timer; it does not have to be set."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Store the group with its new assignments, and report `Stored` with the ticket.

    Args:
        assignments: the members' assignments, which the group applies once they are committed.
    """

    ticket: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Rebalancing:
    """A rebalance starts; logged once for each."""

    generation: int
    reason: str


Effect: TypeAlias = Answer | SetTimer | StopTimer | StoreGroup | Rebalancing
