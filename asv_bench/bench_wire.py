"""A connection to a broker as groups' members have it: requests, and their answers in order.

Many members share one, or each has its own. Owns no member.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from plog.errors import ErrorCode
from plog.ops.load import LoadError
from plog.protocol import codec, framing
from plog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from plog.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from plog.protocol.schema import Struct

VERSIONS: dict[type[Struct], int] = {
    FindCoordinatorRequest: 4,
    JoinGroupRequest: 9,
    SyncGroupRequest: 5,
    HeartbeatRequest: 4,
    LeaveGroupRequest: 5,
    ConsumerGroupHeartbeatRequest: 1,
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
