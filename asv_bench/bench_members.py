"""Members of classic groups without a client around them: requests, their answers, heartbeats.

Many of them share a connection, or one has a connection of its own, as a request that waits (a
JoinGroup, a SyncGroup) keeps back those behind it. What they tell is what Java's consumer tells.
Owns no measuring.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

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
from plog.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
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
VERSIONS: dict[type[Struct], int] = {
    FindCoordinatorRequest: 4,
    JoinGroupRequest: 9,
    SyncGroupRequest: 5,
    HeartbeatRequest: 4,
    LeaveGroupRequest: 5,
}
"""As today's clients speak."""
PATIENCE_S = 60.0
TICK_S = 0.002
LOOK_AGAIN_S = 0.02
# While the partition of a group, which was just made, has no leader that has read it.
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

_SIZE = struct.Struct(">i")
R = TypeVar("R", bound=Struct)
Heard = Callable[[bytes | None], None]
"""Told an answer, or None once there will be none."""


def frame_of(request: Struct, client_id: str, correlation_id: int) -> bytes:
    """Return a request as it is sent."""
    kind = type(request)
    version = VERSIONS[kind]
    head = framing.encode_request_header(kind.api.key, version, correlation_id, client_id)
    body = codec.encode(request, version)
    return _SIZE.pack(len(head) + len(body)) + head + body


class Wire(asyncio.Protocol):
    """A connection to the broker; answers come in the order of their requests."""

    def __init__(self) -> None:
        self._due: deque[Heard] = deque()
        self._read = bytearray()
        self._sent = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Wire:
        _, wire = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return wire

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        while self._due:
            self._due.popleft()(None)

    def data_received(self, data: bytes) -> None:
        self._read += data
        at = 0
        while len(self._read) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._read, at)
            end = at + _SIZE.size + size
            if len(self._read) < end:
                break
            self._due.popleft()(bytes(self._read[at + _SIZE.size : end]))
            at = end
        del self._read[:at]

    def send(self, frame: bytes, heard: Heard) -> None:
        """Send a frame, and tell what comes back."""
        assert self._transport is not None
        if self._transport.is_closing():
            heard(None)
            return
        self._due.append(heard)
        self._transport.write(frame)

    async def ask(self, request: Struct, answer: type[R], client_id: str) -> R:
        """Send a request and return its answer.

        Raises:
            LoadError: there is none, or it makes no sense.
        """
        self._sent += 1
        correlation_id = self._sent
        waiting: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def heard(frame: bytes | None) -> None:
            if not waiting.done():  # whoever waited may have given up
                waiting.set_result(frame)

        self.send(frame_of(request, client_id, correlation_id), heard)
        frame = await waiting
        if frame is None:
            raise LoadError("the broker closed a member's connection")
        version = VERSIONS[type(request)]
        answered, at = framing.decode_response_header(type(request).api.key, version, frame)
        if answered != correlation_id:
            raise LoadError(f"answer {answered} came where {correlation_id} was due")
        found, _ = codec.decode(answer, version, frame, at)
        return found


async def find_coordinator(wire: Wire, group_id: str) -> None:
    """Wait until a group has its coordinator: the first who asks has the topic made."""
    deadline = time.monotonic() + PATIENCE_S
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
    while True:
        answer = await wire.ask(request, FindCoordinatorResponse, "bench")
        error = answer.coordinators[0].error_code
        if error == ErrorCode.NONE:
            return
        if error not in NOT_YET or time.monotonic() > deadline:
            raise refused("FindCoordinator", error)
        await asyncio.sleep(LOOK_AGAIN_S)


def refused(what: str, error_code: int) -> LoadError:
    return LoadError(f"{what} is refused: {ErrorCode(error_code).name}")


class Member:
    """One member of a group."""

    def __init__(self, wire: Wire, group_id: str, number: int) -> None:
        self._wire = wire
        self.group_id = group_id
        self.client_id = f"consumer-{group_id}-{number}"
        self.member_id = ""
        self.generation = -1
        self._beat: tuple[bytes, bytes] | None = None

    async def join(self) -> JoinGroupResponse:
        """Join, and return what the generation is; the first time the member gets its id so.

        Raises:
            LoadError: as `Wire.ask`, or the member is refused.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = await self._wire.ask(self._join_request(), JoinGroupResponse, self.client_id)
            if answer.error_code in NOT_YET and time.monotonic() < deadline:
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
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
        """Join and have an assignment."""
        while not await self.sync(await self.join()):
            pass

    async def leave(self) -> None:
        """Leave the group. Raises LoadError."""
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

    def beat(self, heard: Callable[[bool], None]) -> None:
        """Send a heartbeat, and tell whether all is well; costs little beside the broker's part."""
        if self._beat is None:
            key, version = HeartbeatRequest.api.key, VERSIONS[HeartbeatRequest]
            well = framing.encode_response_header(key, version, 0) + codec.encode(
                HeartbeatResponse(error_code=ErrorCode.NONE), version
            )
            self._beat = frame_of(self._heartbeat(), self.client_id, 0), well
        frame, well = self._beat
        self._wire.send(frame, lambda answer: heard(answer == well))

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id
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
