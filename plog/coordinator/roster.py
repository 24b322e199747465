"""The members of a classic group, their instances and their common assignors.

Owns the table of members and the choice of the leader. Decides nothing about time or generations
and sends no response: `classic_group` does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from sys import getsizeof

from plog.coordinator.group_events import NO_MEMBER, Join, MemberView, Protocol, Token
from plog.coordinator.member_sizes import size_of
from plog.errors import ErrorCode


@dataclass(slots=True)
class Member:
    """A member; `joining` and `syncing` are its waiting requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    joining: Token | None = None
    syncing: Token | None = None

    @classmethod
    def of(cls, join: Join, member_id: str) -> Member:
        """Create a member from a JoinGroup request."""
        return cls(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=join.session_timeout_ms,
            protocols=join.protocols,
        )

    def renew(self, join: Join) -> None:
        """Update a rejoining member from its request."""
        self.protocols = join.protocols
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.session_timeout_ms = join.session_timeout_ms

    @property
    def size(self) -> int:
        """Approximate memory of the member in bytes."""
        return size_of(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.assignment,
            protocols=self.protocols,
        )

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for an assignor; empty if it does not support that."""
        return next((found.metadata for found in self.protocols if found.name == protocol), b"")


@dataclass(slots=True)
class Roster:
    """The members in order of joining; one of them leads, if there are any.

    `size` is their approximate memory in bytes.
    """

    leader: str = NO_MEMBER
    size: int = 0
    _members: dict[str, Member] = field(default_factory=dict)
    _instances: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over a copy of the members, which may be removed meanwhile."""
        return iter(list(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        """Return whether this is a member."""
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        """Return a member. Raises KeyError."""
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        """Return a member, or None."""
        return self._members.get(member_id)

    def of_instance(self, instance_id: str | None) -> Member | None:
        """Return the static member with this instance id, or None."""
        return None if instance_id is None else self.get(self._instances.get(instance_id, ""))

    def refusal(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return why this is not a member; NONE if it is."""
        known = self.of_instance(instance_id)
        if known is not None and known.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self or (instance_id is not None and known is None):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        self._members[member.member_id] = member
        self.size += member.size
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if self.leader == NO_MEMBER:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, the oldest one leads next."""
        del self._members[member.member_id]
        self.size -= member.size
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), NO_MEMBER)

    def renew(self, member: Member, join: Join) -> None:
        """Update a rejoining member from its request."""
        before = member.size
        member.renew(join)
        self.size += member.size - before

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Set every member's assignment; empty if it is not named."""
        for member in self:
            before = getsizeof(member.assignment)
            member.assignment = assignments.get(member.member_id, b"")
            self.size += getsizeof(member.assignment) - before

    def size_with(self, join: Join) -> int:
        """Return the `size` after a join or rejoin."""
        before = self.get(join.member_id) or self.of_instance(join.instance_id)
        after = Member.of(join, join.member_id or join.new_member_id)
        if before is None:
            return self.size + after.size
        after.assignment = before.assignment
        return self.size + after.size - before.size

    def size_with_assignments(self, assignments: Mapping[str, bytes]) -> int:
        """Return the `size` with these assignments."""
        return self.size + sum(
            getsizeof(assignments.get(member.member_id, b"")) - getsizeof(member.assignment)
            for member in self
        )

    def supports(self, protocols: tuple[Protocol, ...]) -> bool:
        """Return whether these assignors include one that all members support."""
        common = self._common_protocols()
        return any(not self._members or protocol.name in common for protocol in protocols)

    def elect_protocol(self) -> str | None:
        """Return the assignor that most members prefer, among those that all support.

        In a tie the first one voted for; None without members.
        """
        common = self._common_protocols()
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in common)
            for member in self
        )
        return max(votes, key=votes.__getitem__, default=None)

    def _common_protocols(self) -> set[str]:
        named = [{protocol.name for protocol in member.protocols} for member in self]
        return set.intersection(*named) if named else set()

    def rebalance_timeout_ms(self) -> int:
        """Return the maximum rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def views(self, protocol: str | None) -> tuple[MemberView, ...]:
        """Return the members for the leader's response."""
        return tuple(
            MemberView(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self
        )
