"""Members of the classic protocol in a consumer group (KIP-848): their requests, translated.

JoinGroup acts as a full heartbeat. Its generation is the member's epoch, there is no leader, and
SyncGroup returns the coordinator's assignment. A member joins again for each of its next steps:
when the group has a new epoch, when it has given up partitions, and when the partitions that it
waits for are free. This requires members that send their topics in Kafka's own format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plog.coordinator.assignors import IdPartition, Partitions
from plog.coordinator.consumer_table import ClassicSide, Subscriber
from plog.coordinator.group_events import (
    NO_MEMBER,
    Answer,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Leaving,
    Left,
    SetTimer,
    StopTimer,
    Sync,
    SyncAnswer,
    Timer,
    TimerKind,
)
from plog.coordinator.reconciliation import MemberState
from plog.coordinator.subscriptions import (
    CONSUMER_PROTOCOL,
    encode_assignment,
    read_subscription,
)
from plog.errors import ErrorCode, KafkaError, error_for
from plog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

if TYPE_CHECKING:
    from plog.coordinator.consumer_core import GroupCore


# -- JoinGroup -------------------------------------------------------------------------------------


def on_join(group: GroupCore, join: Join) -> None:
    """Add a member, or let it take its next step."""
    try:
        answer = _join(group, join)
    except KafkaError as refusal:
        answer = JoinAnswer(ErrorCode(refusal.code), join.member_id)
    group.do(Answer(join.token, answer))


def _join(group: GroupCore, join: Join) -> JoinAnswer:
    if group.is_dead:
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    static = group.member_of_instance(join.instance_id)
    if static is None and join.member_id not in group.table.members:
        group.check_room()
    told = _subscription(group, join)
    if join.member_id == NO_MEMBER and join.instance_id is None and join.must_know_id:
        return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, join.new_member_id)
    member_id = join.member_id or join.new_member_id
    if join.instance_id is not None and join.member_id != NO_MEMBER and static != join.member_id:
        known = ErrorCode.UNKNOWN_MEMBER_ID if static is None else ErrorCode.FENCED_INSTANCE_ID
        raise error_for(known)
    if static is not None and static != member_id:
        group.replace(static, member_id)
    group.rejoining.discard(member_id)
    group.follow(
        member_id,
        Subscriber(
            instance_id=join.instance_id,
            rack_id=told.rack_id,
            client_id=join.client_id,
            client_host=join.client_host,
            topics=frozenset(told.topics),
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            classic=ClassicSide(join.session_timeout_ms, join.protocols),
        ),
    )
    current = group.reconcile(member_id, _owned(group, told))
    group.start_session(member_id)
    group.do(
        StopTimer(Timer(TimerKind.JOIN, member_id)),
        SetTimer(Timer(TimerKind.SYNC, member_id), join.rebalance_timeout_ms),
    )
    if static is not None and static != member_id:
        group.maybe_downgrade(f"static member {join.instance_id} returned to the classic protocol")
    return JoinAnswer(
        ErrorCode.NONE,
        member_id,
        current.epoch,
        CONSUMER_PROTOCOL,
        join.protocols[0].name,
    )


def _subscription(group: GroupCore, join: Join) -> ConsumerProtocolSubscription:
    """Return a member's subscription, if it is compatible with the others. Raises KafkaError."""
    named = {protocol.name for protocol in join.protocols}
    for member_id, member in group.table.members.items():
        if member.classic is not None and member_id != join.member_id:
            named &= {protocol.name for protocol in member.classic.protocols}
    told = read_subscription(join.protocols[0].metadata) if named else None
    if join.protocol_type != CONSUMER_PROTOCOL or told is None:
        raise error_for(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return told


def _owned(group: GroupCore, told: ConsumerProtocolSubscription) -> Partitions:
    known = group.cluster.topics
    return frozenset(
        IdPartition(known[topic.topic].topic_id, number)
        for topic in told.owned_partitions
        if topic.topic in known
        for number in topic.partitions
    )


# -- SyncGroup -------------------------------------------------------------------------------------


def on_sync(group: GroupCore, sync: Sync) -> None:
    """Respond with a member's assignment."""
    try:
        answer = _sync(group, sync)
    except KafkaError as refusal:
        answer = SyncAnswer(ErrorCode(refusal.code))
    group.do(Answer(sync.token, answer))


def _sync(group: GroupCore, sync: Sync) -> SyncAnswer:
    member = _member(group, sync.member_id, sync.instance_id)
    classic = member.classic
    assert classic is not None
    name = classic.protocols[0].name
    if sync.protocol_type not in (None, CONSUMER_PROTOCOL) or sync.protocol_name not in (
        None,
        name,
    ):
        raise error_for(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _check_generation(group, sync.member_id, sync.generation)
    current = group.table.current(sync.member_id)
    is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
    if current.epoch < group.table.epoch and not is_revoking:
        _have_join_again(group, sync.member_id, member)
        raise error_for(ErrorCode.REBALANCE_IN_PROGRESS)
    group.do(StopTimer(Timer(TimerKind.SYNC, sync.member_id)))
    group.start_session(sync.member_id)
    by_name: dict[str, list[int]] = {}
    for topic_id, number in sorted(current.assigned):
        topic = group.cluster.topic_names.get(topic_id)
        if topic is not None:
            by_name.setdefault(topic, []).append(number)
    return SyncAnswer(
        ErrorCode.NONE,
        CONSUMER_PROTOCOL,
        name,
        encode_assignment(by_name, like=classic.protocols[0].metadata),
    )


# -- Heartbeat, LeaveGroup -------------------------------------------------------------------------


def on_heartbeat(group: GroupCore, beat: Heartbeat) -> None:
    """Respond whether a member has to join again."""
    try:
        member = _member(group, beat.member_id, beat.instance_id)
        _check_generation(group, beat.member_id, beat.generation)
    except KafkaError as refusal:
        group.do(Answer(beat.token, ErrorCode(refusal.code)))
        return
    group.start_session(beat.member_id)
    group.look()  # without a leader, the coordinator checks for changed topics
    error = ErrorCode.NONE
    if _has_to_join(group, beat.member_id):
        error = ErrorCode.REBALANCE_IN_PROGRESS
        _have_join_again(group, beat.member_id, member)
    group.do(Answer(beat.token, error))


def _has_to_join(group: GroupCore, member_id: str) -> bool:
    current = group.table.current(member_id)
    if current.epoch < group.table.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return current.state is MemberState.UNRELEASED_PARTITIONS and all(
        group.table.holder(at) in (None, member_id)
        for at in group.table.target(member_id) - current.assigned
    )


def _have_join_again(group: GroupCore, member_id: str, member: Subscriber) -> None:
    """Start a member's timeout to join again, unless it is running."""
    if member_id not in group.rejoining:
        group.rejoining.add(member_id)
        group.do(SetTimer(Timer(TimerKind.JOIN, member_id), member.rebalance_timeout_ms))


def on_leave(group: GroupCore, leave: Leave) -> None:
    """Remove members."""
    gone: list[str] = []
    errors = tuple(_leave(group, leaving, gone) for leaving in leave.members)
    if gone:
        group.remove(gone, f"members left: {', '.join(gone)}")
    group.do(Answer(leave.token, Left(errors)))


def _leave(group: GroupCore, leaving: Leaving, gone: list[str]) -> ErrorCode:
    member_id = leaving.member_id
    static = group.member_of_instance(leaving.instance_id)
    if member_id == NO_MEMBER and static is not None:
        member_id = static  # of either protocol: administrators remove members this way
    else:
        try:
            _member(group, member_id, leaving.instance_id)
        except KafkaError as refusal:
            return ErrorCode(refusal.code)
    if member_id in gone:
        return ErrorCode.UNKNOWN_MEMBER_ID
    gone.append(member_id)
    return ErrorCode.NONE


# -- helpers -----------------------------------------------------------------------------------


def _member(group: GroupCore, member_id: str, instance_id: str | None) -> Subscriber:
    """Return a member of the classic protocol. Raises KafkaError."""
    if group.is_dead:
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    static = group.member_of_instance(instance_id)
    if static is not None and static != member_id:
        raise error_for(ErrorCode.FENCED_INSTANCE_ID)
    member = group.table.members.get(member_id)
    if member is None or member.classic is None or (instance_id is not None and static is None):
        raise error_for(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _check_generation(group: GroupCore, member_id: str, generation: int) -> None:
    if generation != group.table.current(member_id).epoch:
        raise error_for(ErrorCode.ILLEGAL_GENERATION)
