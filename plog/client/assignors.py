"""How the leader of a group assigns partitions: range, roundrobin, sticky, cooperative-sticky.

Owns the four assignors that Kafka's clients know by these names, and the encoding of their
subscriptions and assignments, so that members with other clients may join the same group. Pure: its
input are the members' subscriptions and the partition counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from plog.errors import InvalidRequest
from plog.protocol import codec
from plog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    StickyUserData,
    TopicPartitions,
)
from plog.types import TopicPartition

SUBSCRIPTION_VERSION, ASSIGNMENT_VERSION = 2, 0
NO_GENERATION = -1

Assignment: TypeAlias = "dict[str, list[TopicPartition]]"

_VERSION, _GENERATION = struct.Struct(">h"), struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of a member, and the partitions it has had since which generation."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None


class Assignor(NamedTuple):
    """An assignor by its name. With `is_cooperative` members keep the partitions that stay."""

    name: str
    assign: Callable[[Mapping[str, Subscription], Mapping[str, int]], Assignment]
    is_cooperative: bool = False


# -- subscriptions and assignments -----------------------------------------------------------------


def encode_subscription(subscription: Subscription, assignor: Assignor) -> bytes:
    """Encode a member's subscription for an assignor."""
    user_data: bytes | None = None
    if assignor is STICKY and subscription.owned:
        # The member gives all partitions up before it joins, and names those it wants back here.
        previous = StickyUserData(
            previous_assignment=_wire(subscription.owned), generation=subscription.generation
        )
        user_data = codec.encode(previous, 1)
    elif assignor is COOPERATIVE_STICKY:
        user_data = _GENERATION.pack(subscription.generation)
    value = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=user_data,
        owned_partitions=_wire(subscription.owned if assignor.is_cooperative else ()),
        generation_id=subscription.generation if assignor.is_cooperative else NO_GENERATION,
    )
    return _VERSION.pack(SUBSCRIPTION_VERSION) + codec.encode(value, SUBSCRIPTION_VERSION)


def decode_subscription(
    data: bytes, assignor: Assignor, instance_id: str | None = None
) -> Subscription:
    """Decode a member's subscription. Raises InvalidRequest."""
    version = _version_of(data, ConsumerProtocolSubscription.api.versions.high)
    found, _ = codec.decode(ConsumerProtocolSubscription, version, data, _VERSION.size)
    owned = tuple(_partitions(found.owned_partitions))
    generation = found.generation_id
    if found.user_data and assignor is STICKY:
        owned, generation = _decode_sticky(found.user_data)
    elif assignor is COOPERATIVE_STICKY and generation < 0:
        # Version 1 has no field for it.
        user_data = found.user_data or b""
        if len(user_data) >= _GENERATION.size:
            (generation,) = _GENERATION.unpack_from(user_data)
    return Subscription(tuple(found.topics), owned, generation, instance_id)


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    """Encode a member's assignment."""
    value = ConsumerProtocolAssignment(assigned_partitions=_wire(partitions))
    return _VERSION.pack(ASSIGNMENT_VERSION) + codec.encode(value, ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode a member's assignment; empty if the leader left it out. Raises InvalidRequest."""
    if not data:
        return []
    version = _version_of(data, ConsumerProtocolAssignment.api.versions.high)
    found, _ = codec.decode(ConsumerProtocolAssignment, version, data, _VERSION.size)
    return _partitions(found.assigned_partitions)


def by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, in their order."""
    found: dict[str, list[int]] = {}
    for at in partitions:
        found.setdefault(at.topic, []).append(at.partition)
    return found


def _version_of(data: bytes, newest: int) -> int:
    if len(data) < _VERSION.size:
        raise InvalidRequest(f"{len(data)} bytes are too few for a version")
    version: int = _VERSION.unpack_from(data)[0]
    return min(version, newest)


def _decode_sticky(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    for version in (1, 0):
        try:
            found, _ = codec.decode(StickyUserData, version, data)
        except InvalidRequest:
            continue
        return tuple(_partitions(found.previous_assignment)), found.generation
    return (), NO_GENERATION


def _wire(partitions: Sequence[TopicPartition]) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]


def _partitions(topics: Sequence[TopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, index) for one in topics for index in one.partitions]


# -- the assignments -------------------------------------------------------------------------------


def _in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Return the members in order; static members by instance id, so that they keep their place."""
    return sorted(members, key=lambda one: (members[one].instance_id or one, one))


def _newest_first(members: Mapping[str, Subscription]) -> list[str]:
    """Return the members in the order of their claims: the newest generation first."""
    return sorted(_in_order(members), key=lambda one: members[one].generation, reverse=True)


def assign_ranges(members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> Assignment:
    """Give each member a range of each of its topics; the first members get one more."""
    found: Assignment = {member: [] for member in members}
    ordered = _in_order(members)
    for topic in sorted({topic for one in members.values() for topic in one.topics}):
        wanting = [member for member in ordered if topic in members[member].topics]
        share, more = divmod(partitions.get(topic, 0), len(wanting))
        begin = 0
        for place, member in enumerate(wanting):
            end = begin + share + (place < more)
            found[member] += [TopicPartition(topic, index) for index in range(begin, end)]
            begin = end
    return found


def assign_round_robin(
    members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> Assignment:
    """Give the partitions in turn, topic by topic, to the members that subscribe to them."""
    found: Assignment = {member: [] for member in members}
    ordered = _in_order(members)
    place = 0
    for at in _all(members, partitions):
        while at.topic not in members[ordered[place % len(ordered)]].topics:
            place += 1
        found[ordered[place % len(ordered)]].append(at)
        place += 1
    return found


def assign_sticky(members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> Assignment:
    """Assign evenly, and let members keep as many partitions as that allows."""
    shares = _Shares(members, partitions)
    shares.keep_owned()
    shares.deal_rest()
    shares.balance()
    return {member: sorted(owned) for member, owned in shares.of.items()}


def assign_cooperatively(
    members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> Assignment:
    """Assign as `assign_sticky`, without the partitions that another member still has.

    Their owner gives them up, and the group rebalances once more (KIP-429).
    """
    found = assign_sticky(members, partitions)
    owners: dict[TopicPartition, str] = {}
    for member in _newest_first(members):
        for at in members[member].owned:
            owners.setdefault(at, member)
    return {
        member: [at for at in assigned if owners.get(at, member) == member]
        for member, assigned in found.items()
    }


def _all(
    members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> list[TopicPartition]:
    topics = sorted({topic for one in members.values() for topic in one.topics})
    return [
        TopicPartition(topic, index)
        for topic in topics
        for index in range(partitions.get(topic, 0))
    ]


@dataclass(slots=True)
class _Shares:
    """A sticky assignment while it is computed."""

    members: Mapping[str, Subscription]
    partitions: Mapping[str, int]
    of: dict[str, set[TopicPartition]] = field(default_factory=dict)
    _owner: dict[TopicPartition, str] = field(default_factory=dict)
    _wanting: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ordered = _in_order(self.members)
        self.of = {member: set() for member in ordered}
        for topic in {topic for one in self.members.values() for topic in one.topics}:
            self._wanting[topic] = [one for one in ordered if topic in self.members[one].topics]

    def keep_owned(self) -> None:
        """Let members keep partitions they still subscribe to; of two claims the newer one wins."""
        for member in _newest_first(self.members):
            for at in self.members[member].owned:
                wanted = member in self._wanting.get(at.topic, ())
                if wanted and at not in self._owner and at.partition < self._count(at.topic):
                    self._give(at, member)

    def deal_rest(self) -> None:
        """Give free partitions to the member with the fewest; rarely subscribed ones first."""
        free = [at for at in _all(self.members, self.partitions) if at not in self._owner]
        free.sort(key=lambda at: len(self._wanting[at.topic]))
        for at in free:
            self._give(at, min(self._wanting[at.topic], key=lambda one: len(self.of[one])))

    def balance(self) -> None:
        """Move partitions from members with many to members with few until they are even."""
        moved = True
        while moved:
            moved = False
            for member in sorted(self.of, key=lambda one: len(self.of[one]), reverse=True):
                for at in sorted(self.of[member]):
                    least = min(self._wanting[at.topic], key=lambda one: len(self.of[one]))
                    if len(self.of[member]) > len(self.of[least]) + 1:
                        self.of[member].discard(at)
                        self._give(at, least)
                        moved = True

    def _count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)

    def _give(self, at: TopicPartition, member: str) -> None:
        self._owner[at] = member
        self.of[member].add(at)


RANGE = Assignor("range", assign_ranges)
ROUND_ROBIN = Assignor("roundrobin", assign_round_robin)
STICKY = Assignor("sticky", assign_sticky)
COOPERATIVE_STICKY = Assignor("cooperative-sticky", assign_cooperatively, is_cooperative=True)
ASSIGNORS = {one.name: one for one in (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)}
"""By Kafka's names."""
