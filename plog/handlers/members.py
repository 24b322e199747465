"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the life of a member of a classic group.

The rules are the group's (`coordinator.classic_group`); here requests become its events, and what
it says an answer in the version that was asked in.
"""

from __future__ import annotations

import uuid

from plog.coordinator.group_events import (
    Heartbeat,
    Join,
    JoinAnswer,
    Leaving,
    Protocol,
    Sync,
    SyncAnswer,
)
from plog.errors import (
    ErrorCode,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
)
from plog.handlers.context import Context
from plog.handlers.group_ids import check_group_id
from plog.handlers.registry import handles
from plog.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from plog.protocol.schema import LONGEST_STRING

MUST_KNOW_ID_SINCE = 4
"""From this version of JoinGroup on a member is told its id before it is one (KIP-394)."""
CAN_SKIP_SINCE = 9
"""From this version of JoinGroup on a leader can be told to keep its assignment (KIP-814)."""
NULL_PROTOCOL_SINCE = 7
"""From this version of JoinGroup on no protocol can be told as null."""
MUST_NAME_PROTOCOL_SINCE = 5
"""From this version of SyncGroup on a member names the type and the assignor it knows (KIP-559)."""
MANY_LEAVE_SINCE = 3
"""From this version of LeaveGroup on it names many, each with an error of its own."""


@handles(JoinGroupRequest, versions="0-9")
async def join_group(ctx: Context, request: JoinGroupRequest) -> JoinGroupResponse:
    """Answer once the next generation is formed."""
    groups = ctx.services.groups
    try:
        join = _join(ctx, request)
        with ctx.connection.while_open():
            answer = await groups.join(request.group_id, join)
    except KafkaError as refusal:
        answer = JoinAnswer(ErrorCode(refusal.code), request.member_id)
    name = answer.protocol_name
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=name if name is not None or ctx.version >= NULL_PROTOCOL_SINCE else "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ],
    )


def _join(ctx: Context, request: JoinGroupRequest) -> Join:
    settings = ctx.services.settings.broker()
    check_group_id(request.group_id)
    least, most = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not least <= request.session_timeout_ms <= most:
        raise InvalidSessionTimeout(f"{request.session_timeout_ms} is not within {least} .. {most}")
    rebalance_timeout_ms = request.rebalance_timeout_ms
    client_id = ctx.header.client_id or ""
    return Join(
        token=ctx.services.groups.token(),
        member_id=request.member_id,
        new_member_id=_new_member_id(request, client_id),
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=f"/{ctx.connection.host}",
        rebalance_timeout_ms=(
            request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms
        ),
        session_timeout_ms=request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
        must_know_id=ctx.version >= MUST_KNOW_ID_SINCE,
        can_skip_assignment=ctx.version >= CAN_SKIP_SINCE,
        capacity=settings.group_max_size,
        reason=request.reason or "",
    )


def _new_member_id(request: JoinGroupRequest, client_id: str) -> str:
    """Return the id that a member without one is given.

    Raises:
        InvalidRequest: no answer could tell it, to the member or to its group's leader. Clients
            bound an instance's name to 249 bytes, Kafka's coordinator does not.
    """
    # A static member is known by its instance, and its ids tell which one it was (KIP-345).
    prefix = client_id if request.group_instance_id is None else request.group_instance_id
    made = f"{prefix}-{uuid.uuid4()}"
    if not request.member_id and (size := len(made.encode())) > LONGEST_STRING:
        name = "client id" if request.group_instance_id is None else "group.instance.id"
        raise InvalidRequest(f"the {name} would make a member id of {size} bytes")
    return made


@handles(SyncGroupRequest, versions="0-5")
async def sync_group(ctx: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    """Answer once the leader has assigned."""
    groups = ctx.services.groups
    try:
        check_group_id(request.group_id)
        if ctx.version >= MUST_NAME_PROTOCOL_SINCE and None in (
            request.protocol_type,
            request.protocol_name,
        ):
            raise InconsistentGroupProtocol("protocol type and protocol name must not be null")
        sync = Sync(
            token=groups.token(),
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={one.member_id: one.assignment for one in request.assignments},
        )
        with ctx.connection.while_open():
            answer = await groups.sync(request.group_id, sync)
    except KafkaError as refusal:
        answer = SyncAnswer(ErrorCode(refusal.code))
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


@handles(HeartbeatRequest, versions="0-4")
async def heartbeat(ctx: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    """Tell whether the member's generation still stands."""
    groups = ctx.services.groups
    try:
        check_group_id(request.group_id)
        beat = Heartbeat(
            token=groups.token(),
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
        )
        with ctx.connection.aside():
            error = await groups.beat(request.group_id, beat)
        return HeartbeatResponse(error_code=error)
    except KafkaError as refusal:
        # While its groups are read, members are told that all is well, as Kafka does: it soon is.
        if refusal.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse(error_code=ErrorCode.NONE)
        return HeartbeatResponse(error_code=refusal.code)


@handles(LeaveGroupRequest, versions="0-5")
async def leave_group(ctx: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Take members out."""
    many = ctx.version >= MANY_LEAVE_SINCE
    leaving = (
        tuple(
            Leaving(one.member_id, one.group_instance_id, one.reason or "")
            for one in request.members
        )
        if many
        else (Leaving(request.member_id),)
    )
    try:
        check_group_id(request.group_id)
        with ctx.connection.aside():
            errors = await ctx.services.groups.leave(request.group_id, leaving)
    except KafkaError as refusal:
        return LeaveGroupResponse(error_code=refusal.code)
    if not many:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=[
            MemberResponse(
                member_id=one.member_id, group_instance_id=one.instance_id, error_code=error
            )
            for one, error in zip(leaving, errors, strict=True)
        ],
    )
