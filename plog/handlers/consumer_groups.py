"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: the groups of KIP-848.

The rules are the group's (`coordinator.consumer_group`); here requests become its events, and what
it says an answer.
"""

from __future__ import annotations

import uuid

from plog.cluster.features import GROUP_VERSION, NO_LEVEL
from plog.coordinator.assignors import Partitions
from plog.coordinator.consumer_events import Beat
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.consumer_log import by_topic, partitions_of
from plog.coordinator.group_events import BeatAnswer
from plog.errors import (
    ErrorCode,
    GroupIdNotFound,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
)
from plog.handlers.context import Context
from plog.handlers.group_ids import check_group_id
from plog.handlers.operations import ALL_OF_GROUP, NOT_ASKED
from plog.handlers.registry import handles
from plog.protocol.messages.consumer_groups import (
    AssignedPartitions,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupMember,
    DescribedConsumerGroup,
    NamedTopicPartitions,
)
from plog.settings.definitions import BrokerSettings

NAMES_ITSELF_SINCE = 1
"""From this version of ConsumerGroupHeartbeat on a member brings its id (KIP-1082)."""
LEAST_EPOCH = -2
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def _is_on(settings: BrokerSettings) -> bool:
    return settings.serves_consumer_protocol


def _check_is_on(ctx: Context) -> None:
    """Check that groups may use the consumer protocol. Raises UnsupportedVersion."""
    if not _is_on(ctx.services.settings.broker()):
        raise UnsupportedVersion("group.coordinator.rebalance.protocols does not name consumer")
    if GROUP_VERSION not in ctx.services.features.finalized.levels:
        raise UnsupportedVersion(f"{GROUP_VERSION} is at level {NO_LEVEL}")


# -- ConsumerGroupHeartbeat ------------------------------------------------------------------------


@handles(ConsumerGroupHeartbeatRequest, versions="0-1", is_on=_is_on)
async def consumer_group_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Answer once whatever the heartbeat has changed is safe."""
    try:
        _check_is_on(ctx)
        _check(ctx, request)
        with ctx.connection.aside():
            answer = await ctx.services.groups.beat_as_consumer(
                request.group_id, _beat(ctx, request)
            )
    except KafkaError as refusal:
        answer = BeatAnswer(ErrorCode(refusal.code), str(refusal))
    assigned = answer.assigned
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=(
            None if assigned is None else AssignedPartitions(topic_partitions=by_topic(assigned))
        ),
    )


def _check(ctx: Context, request: ConsumerGroupHeartbeatRequest) -> None:
    """Check what a member must and must not tell. Raises KafkaError."""
    epoch = request.member_epoch
    if not request.group_id.strip():
        raise InvalidRequest("the group id must not be empty")
    for name, text in (("group instance id", request.instance_id), ("rack id", request.rack_id)):
        if text is not None and not text.strip():
            raise InvalidRequest(f"the {name} is empty")
    if epoch < LEAST_EPOCH:
        raise InvalidRequest(f"invalid member epoch {epoch}")
    if not request.member_id.strip() and (epoch != 0 or ctx.version >= NAMES_ITSELF_SINCE):
        raise InvalidRequest("the member id is empty")
    if epoch == LEAST_EPOCH and request.instance_id is None:
        raise InvalidRequest("a member that leaves with epoch -2 must have a group instance id")
    if epoch != 0:
        return
    if request.rebalance_timeout_ms < 0:
        raise InvalidRequest("a joining member must send its rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("a joining member must send an empty list of owned partitions")
    # None so far, where the client matches names by itself and has found none, is an answer too.
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest("a joining member must send the topics it subscribes to")


def _beat(ctx: Context, request: ConsumerGroupHeartbeatRequest) -> Beat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return Beat(
        token=ctx.services.groups.token(),
        member_id=request.member_id or str(uuid.uuid4()),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else partitions_of(owned),
        client_id=ctx.header.client_id or "",
        client_host=f"/{ctx.connection.host}",
    )


# -- ConsumerGroupDescribe -------------------------------------------------------------------------


@handles(ConsumerGroupDescribeRequest, versions="0-1", is_on=_is_on)
def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each; a group of the classic protocol is not found."""
    described = [_describe(ctx, group_id) for group_id in request.group_ids]
    for one in described:
        asked = request.include_authorized_operations and one.error_code == ErrorCode.NONE
        one.authorized_operations = ALL_OF_GROUP if asked else NOT_ASKED
    return ConsumerGroupDescribeResponse(groups=described)


def _describe(ctx: Context, group_id: str) -> DescribedConsumerGroup:
    try:
        _check_is_on(ctx)
        check_group_id(group_id)
        found = ctx.services.groups.find(group_id)
        if found is None or not isinstance(found.machine, ConsumerGroup):
            raise GroupIdNotFound(f"consumer group {group_id} not found")
    except KafkaError as refusal:
        return DescribedConsumerGroup(
            error_code=refusal.code, error_message=str(refusal), group_id=group_id
        )
    return _described(ctx, found.machine)


def _described(ctx: Context, group: ConsumerGroup) -> DescribedConsumerGroup:
    table = group.table
    names = ctx.services.metadata.snapshot.topic_names

    def named(partitions: Partitions) -> Assignment:
        return Assignment(
            topic_partitions=[
                NamedTopicPartitions(
                    topic_id=topic.topic_id,
                    topic_name=names[topic.topic_id],
                    partitions=topic.partitions,
                )
                for topic in by_topic(partitions)
                if topic.topic_id in names
            ]
        )

    return DescribedConsumerGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=table.epoch,
        assignment_epoch=table.target_epoch,
        assignor_name=group.assignor,
        members=[
            ConsumerGroupMember(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=table.current(member_id).epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
                subscribed_topic_regex=member.regex or "",  # not null, as from Kafka
                assignment=named(table.current(member_id).assigned),
                target_assignment=named(table.target(member_id)),
                member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
            )
            for member_id, member in table.members.items()
        ],
    )
