"""Members of groups without a client around them: what they say, and what they make of answers.

Many of them share a connection, or one has a connection of its own, as a request that waits (a
JoinGroup, a SyncGroup) keeps back those behind it. What they tell is what Java's consumer tells,
by the classic protocol or by KIP-848's. Owns no measuring.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from bench_wire import (
    LOOK_AGAIN_S,
    NOT_YET,
    PATIENCE_S,
    TICK_S,
    VERSIONS,
    Wire,
    frame_of,
    refused,
)

from plog.client.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from plog.errors import ErrorCode
from plog.ops.load import LoadError
from plog.protocol import codec, framing
from plog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from plog.protocol.schema import Struct
from plog.types import TopicPartition

TOPIC = "bench"
# Java's session.timeout.ms, and max.poll.interval.ms, which is its rebalance timeout.
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 45_000, 300_000
LEAVING_EPOCH = -1
"""A member's that leaves for good (KIP-848)."""

Joined = TypeVar("Joined", JoinGroupResponse, ConsumerGroupHeartbeatResponse)


class Member(ABC):
    """One member of a group."""

    def __init__(self, wire: Wire, group_id: str, number: int) -> None:
        self._wire = wire
        self.group_id = group_id
        self.client_id = f"consumer-{group_id}-{number}"
        self.member_id = ""
        self._beat: tuple[bytes, bytes] | None = None
        """A heartbeat and the answer that all is well, until the member stands elsewhere."""

    @abstractmethod
    async def enter(self) -> None:
        """Join and have an assignment. Raises LoadError."""

    @abstractmethod
    async def leave(self) -> None:
        """Leave the group. Raises LoadError."""

    @abstractmethod
    def _heartbeat(self) -> Struct:
        """Return what a member sends that has nothing to tell."""

    @abstractmethod
    def _all_is_well(self) -> Struct:
        """Return what that is answered where there is nothing to be told."""

    def beat(self, heard: Callable[[bool], None]) -> None:
        """Send a heartbeat, and tell whether all is well; costs little beside the broker's part."""
        if self._beat is None:
            request = self._heartbeat()
            key, version = request.api.key, VERSIONS[type(request)]
            well = framing.encode_response_header(key, version, 0) + codec.encode(
                self._all_is_well(), version
            )
            self._beat = frame_of(request, self.client_id, 0), well
        frame, well = self._beat
        self._wire.send(frame, lambda answer: heard(answer == well))

    async def _ask_once_ready(self, request: Struct, answer: type[Joined]) -> Joined:
        """Ask until the group's coordinator is there, or patience ends."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = await self._wire.ask(request, answer, self.client_id)
            if found.error_code not in NOT_YET or time.monotonic() > deadline:
                return found
            await asyncio.sleep(LOOK_AGAIN_S)


class ClassicMember(Member):
    """A member by the classic protocol, whose leader gives everybody one partition."""

    def __init__(self, wire: Wire, group_id: str, number: int) -> None:
        super().__init__(wire, group_id, number)
        self.generation = -1

    async def join(self) -> JoinGroupResponse:
        """Join, and return what the generation is; the first time the member gets its id so.

        Raises:
            LoadError: as `Wire.ask`, or the member is refused.
        """
        while True:
            answer = await self._ask_once_ready(self._join_request(), JoinGroupResponse)
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                raise refused("JoinGroup", answer.error_code)
            self.member_id = answer.member_id
            if answer.error_code == ErrorCode.NONE:
                self.generation = answer.generation_id
                self._beat = None
                return answer

    def _join_request(self) -> JoinGroupRequest:
        subscription = Subscription((TOPIC,), generation=self.generation)
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(
                    name=one.name, metadata=encode_subscription(subscription, one)
                )
                for one in (RANGE, COOPERATIVE_STICKY)
            ],
        )

    async def sync(self, joined: JoinGroupResponse) -> bool:
        """Wait for the assignment, as its leader after giving everybody one partition.

        Returns False where the group rebalances anew.

        Raises:
            LoadError: as `Wire.ask`, or the member is refused, or gets nothing.
        """
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=one.member_id,
                    assignment=encode_assignment([TopicPartition(TOPIC, number)]),
                )
                for number, one in enumerate(joined.members)  # which only a leader is told
            ],
        )
        answer = await self._wire.ask(request, SyncGroupResponse, self.client_id)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        if answer.error_code != ErrorCode.NONE:
            raise refused("SyncGroup", answer.error_code)
        if not answer.assignment:
            raise LoadError("a member gets no partition")
        return True

    async def enter(self) -> None:
        while not await self.sync(await self.join()):
            pass

    async def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(member_id=self.member_id)]
        )
        answer = await self._wire.ask(request, LeaveGroupResponse, self.client_id)
        if answer.error_code != ErrorCode.NONE:
            raise refused("LeaveGroup", answer.error_code)

    async def hear(self) -> ErrorCode:
        """Send a heartbeat, and return what the member is told. Raises LoadError."""
        answer = await self._wire.ask(self._heartbeat(), HeartbeatResponse, self.client_id)
        return ErrorCode(answer.error_code)

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id
        )

    def _all_is_well(self) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=ErrorCode.NONE)


class ConsumerMember(Member):
    """A member by the consumer protocol (KIP-848), to whom the coordinator assigns.

    It tells in a heartbeat only what has changed, as Java's does.

    Attributes:
        interval_ms: when it is told to come again.
        assigned: what it may use, as it was told.
        owned: what it has told that it owns.
    """

    def __init__(self, wire: Wire, group_id: str, number: int) -> None:
        super().__init__(wire, group_id, number)
        self.member_id = str(uuid.uuid4())  # it names itself (KIP-1082)
        self.epoch = 0
        self.interval_ms = 0
        self.assigned: frozenset[int] = frozenset()
        self.owned: frozenset[int] = frozenset()
        self._topic_id = uuid.UUID(int=0)

    async def join(self) -> None:
        """Join, and hear what it may use, if that is free yet. Raises LoadError."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=0,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[TOPIC],
            topic_partitions=[],
        )
        self._take(await self._ask_once_ready(request, ConsumerGroupHeartbeatResponse))

    async def hear(self) -> bool:
        """Send a heartbeat, and return whether the member is told anything. Raises LoadError."""
        before = self.epoch, self.assigned
        await self._ask(self._heartbeat())
        return (self.epoch, self.assigned) != before

    async def tell(self) -> None:
        """Tell that it owns just what it may use, until it is told of nothing else.

        Raises:
            LoadError: as `Wire.ask`, or the member is refused.
        """
        while self.owned != self.assigned:
            owned = self.assigned
            request = self._heartbeat()
            request.topic_partitions = (
                [TopicPartitions(topic_id=self._topic_id, partitions=sorted(owned))]
                if owned
                else []
            )
            await self._ask(request)
            self.owned = owned

    async def enter(self) -> None:
        await self.join()
        await self.tell()
        if not self.owned:
            raise LoadError("a member gets no partition")

    async def leave(self) -> None:
        request = self._heartbeat()
        request.member_epoch = LEAVING_EPOCH
        await self._ask(request)

    async def _ask(self, request: ConsumerGroupHeartbeatRequest) -> None:
        self._take(await self._wire.ask(request, ConsumerGroupHeartbeatResponse, self.client_id))

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.error_code != ErrorCode.NONE:
            raise refused("ConsumerGroupHeartbeat", answer.error_code)
        self.epoch, self.interval_ms = answer.member_epoch, answer.heartbeat_interval_ms
        self._beat = None
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self.assigned = frozenset(number for topic in topics for number in topic.partitions)
            self._topic_id = topics[0].topic_id if topics else self._topic_id

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch
        )

    def _all_is_well(self) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=self.member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=self.interval_ms,
        )


class Beats:
    """Heartbeats of many members, each in its turn, spread evenly over the interval."""

    def __init__(self, members: Sequence[Member], interval_s: float) -> None:
        self._members, self._interval_s = members, interval_s
        self._next = 0
        self.sent = 0
        self.told: Counter[bool] = Counter()
        self.waits_s: list[float] = []
        """From when each should have been sent to its answer."""

    async def go_on(self, seconds: float) -> None:
        """Send heartbeats for so long, and wait for all answers.

        Raises:
            LoadError: one is not well, or is not answered.
        """
        step_s = self._interval_s / len(self._members)
        begun = time.monotonic()
        sent, count = 0, round(seconds / step_s)
        while sent < count:
            now = time.monotonic()
            while sent < count and begun + sent * step_s <= now:
                self._send(begun + sent * step_s)
                sent += 1
            await asyncio.sleep(max(begun + sent * step_s - now, TICK_S))
        deadline = time.monotonic() + PATIENCE_S
        while self.told.total() < self.sent:
            if time.monotonic() > deadline:
                raise LoadError(f"{self.sent - self.told.total()} heartbeats are not answered")
            await asyncio.sleep(TICK_S)
        if self.told[False]:
            raise LoadError(f"{self.told[False]} of {self.sent} heartbeats are refused")

    def _send(self, due: float) -> None:
        def heard(well: bool) -> None:
            self.told[well] += 1
            self.waits_s.append(time.monotonic() - due)

        self._members[self._next].beat(heard)
        self._next = (self._next + 1) % len(self._members)
        self.sent += 1
