"""Converts classic groups to consumer groups and back, while clients are upgraded (KIP-848).

Owns the mapping between the two; never decides when to convert. A group stays classic if its
members' subscriptions or its leader's assignments are not in Kafka's own format.
"""

from __future__ import annotations

from plog.cluster.metadata_cache import MetadataSnapshot
from plog.coordinator.assignors import IdPartition, Partitions
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_table import (
    EPOCH,
    TARGET_EPOCH,
    ClassicSide,
    Key,
    Kind,
    Record,
    Subscriber,
    Table,
)
from plog.coordinator.group_states import GroupState
from plog.coordinator.reconciliation import Current
from plog.coordinator.roster import Member, Roster
from plog.coordinator.subscriptions import (
    CONSUMER_PROTOCOL,
    encode_assignment,
    read_assignment,
    read_subscription,
)


def upgraded(classic: ClassicGroup, cluster: MetadataSnapshot) -> Table | None:
    """Convert a classic group to a consumer group; return None if that is impossible.

    The members keep their assignments, and their epoch is the group's generation.
    """
    if classic.protocol_type != CONSUMER_PROTOCOL:
        return None
    table = Table()
    epoch = classic.generation
    table.apply(Record(EPOCH, epoch))
    for member in classic.roster:
        protocol = classic.protocol_name or member.protocols[0].name
        told = read_subscription(member.metadata(protocol) or member.protocols[0].metadata)
        has = _partitions(member.assignment, cluster)
        if told is None or has is None:
            return None
        subscriber = Subscriber(
            instance_id=member.instance_id,
            rack_id=told.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=frozenset(told.topics),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicSide(member.session_timeout_ms, member.protocols),
        )
        # If assignments overlap, the first member keeps the partition.
        has = frozenset(at for at in has if table.holder(at) is None)
        table.apply(Record(Key(Kind.MEMBER, member.member_id), subscriber))
        table.apply(Record(Key(Kind.TARGET, member.member_id), has))
        current = Current(epoch, epoch, assigned=has)
        table.apply(Record(Key(Kind.CURRENT, member.member_id), current))
    table.apply(Record(TARGET_EPOCH, epoch))
    return table


def _partitions(assignment: bytes, cluster: MetadataSnapshot) -> Partitions | None:
    """Decode a member's assignment; return None if it is not in Kafka's format."""
    if not assignment:
        return frozenset()
    found = read_assignment(assignment)
    if found is None:
        return None
    return frozenset(
        IdPartition(cluster.topics[topic.topic].topic_id, number)
        for topic in found.assigned_partitions
        if topic.topic in cluster.topics
        for number in topic.partitions
    )


def downgraded(
    group_id: str, table: Table, cluster: MetadataSnapshot, *, initial_delay_ms: int
) -> ClassicGroup:
    """Convert a consumer group with only classic members to a classic group.

    It is stable, and its generation is the last assignment epoch, which the members know. They have
    their target assignments, and must join again.
    """
    roster = Roster()
    for member_id, member in table.members.items():
        assert member.classic is not None
        by_name: dict[str, list[int]] = {}
        for topic_id, number in sorted(table.target(member_id)):
            if topic_id in cluster.topic_names:
                by_name.setdefault(cluster.topic_names[topic_id], []).append(number)
        roster.add(
            Member(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocols=member.classic.protocols,
                assignment=encode_assignment(by_name, like=member.classic.protocols[0].metadata),
            )
        )
    return ClassicGroup(
        group_id,
        initial_delay_ms,
        GroupState.STABLE,
        table.target_epoch,
        CONSUMER_PROTOCOL,
        roster.elect_protocol(),
        roster,
    )
