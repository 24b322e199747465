"""ListGroups, DescribeGroups, DeleteGroups: groups as administrators see them."""

from __future__ import annotations

from functools import partial

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_shard import Group
from plog.coordinator.group_states import GroupState
from plog.coordinator.subscriptions import CONSUMER_PROTOCOL
from plog.errors import ErrorCode, GroupIdNotFound, KafkaError, error_for
from plog.handlers.context import Context
from plog.handlers.operations import ALL_OF_GROUP, NOT_ASKED
from plog.handlers.registry import handles
from plog.protocol.messages.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

CLASSIC, CONSUMER = "classic", "consumer"
"""The types of groups, by the protocol that they use (KIP-848)."""
NOT_FOUND_SINCE = 6
"""From this version on, DescribeGroups reports GROUP_ID_NOT_FOUND (KIP-1043)."""
MOST_SHOWN = 300
"""Characters of a group's id in a message."""
UNDELETABLE = {
    ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
    ErrorCode.NON_EMPTY_GROUP: "has members",
}
"""Why a group is not deleted, in words."""


@handles(ListGroupsRequest, versions="0-5")
async def list_groups(ctx: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups that this broker keeps, of the states and types asked for."""
    groups = ctx.services.groups
    states = {state.casefold() for state in request.states_filter}
    types = {kind.casefold() for kind in request.types_filter}
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if groups.is_loading else ErrorCode.NONE

    def listed(group: Group) -> ListedGroup | None:
        state, kind = group.machine.state.value, _type(group)
        if (states and state.casefold() not in states) or (types and kind not in types):
            return None
        return ListedGroup(
            group_id=group.group_id,
            protocol_type=_protocol_type(group),
            group_state=state,
            group_type=kind,
        )

    found = await ctx.each(listed, groups.groups())
    return ListGroupsResponse(error_code=error, groups=[one for one in found if one is not None])


def _type(group: Group) -> str:
    return CLASSIC if isinstance(group.machine, ClassicGroup) else CONSUMER


def _protocol_type(group: Group) -> str:
    if isinstance(group.machine, ClassicGroup):
        return group.machine.protocol_type or ""
    return CONSUMER_PROTOCOL


@handles(DescribeGroupsRequest, versions="0-6")
def describe_groups(ctx: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe classic groups; any other is dead, which is an error from version 6 on."""
    described = [_describe(ctx, group_id) for group_id in request.groups]
    for one in described:
        asked = request.include_authorized_operations and one.error_code == ErrorCode.NONE
        one.authorized_operations = ALL_OF_GROUP if asked else NOT_ASKED
    return DescribeGroupsResponse(groups=described)


def _describe(ctx: Context, group_id: str) -> DescribedGroup:
    try:
        found = ctx.services.groups.find(group_id)
    except KafkaError as refusal:
        return _undescribed(group_id, refusal)
    if found is not None and isinstance(found.machine, ClassicGroup):
        return _described(found.machine)
    is_what = "does not exist" if found is None else "is not a classic group"
    not_found = GroupIdNotFound(f"group {group_id[:MOST_SHOWN]!r} {is_what}")
    described = _undescribed(group_id, not_found if ctx.version >= NOT_FOUND_SINCE else None)
    described.group_state = GroupState.DEAD.value
    return described


def _undescribed(group_id: str, refusal: KafkaError | None) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else str(refusal),
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _described(classic: ClassicGroup) -> DescribedGroup:
    # What was told for an assignor, and who got what, stands only once it has been chosen.
    is_stable = classic.state is GroupState.STABLE
    name = classic.protocol_name if is_stable else None
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=classic.group_id,
        group_state=classic.state.value,
        protocol_type=classic.protocol_type or "",
        protocol_data=name or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in classic.roster
        ],
    )


@handles(DeleteGroupsRequest, versions="0-3")
async def delete_groups(ctx: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups that nobody is in."""
    names = list(dict.fromkeys(request.groups_names))
    return DeleteGroupsResponse(results=await ctx.together(partial(_delete, ctx), names))


async def _delete(ctx: Context, group_id: str) -> DeletableGroupResult:
    try:
        error = await ctx.services.groups.endings.delete(group_id)
        if error is not ErrorCode.NONE:
            why = UNDELETABLE.get(error, "cannot be deleted yet")
            raise error_for(error, f"group {group_id[:MOST_SHOWN]!r} {why}")
    except KafkaError as refusal:
        return DeletableGroupResult(
            group_id=group_id, error_code=refusal.code, error_message=str(refusal)
        )
    return DeletableGroupResult(group_id=group_id, error_code=error)
