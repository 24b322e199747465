"""All groups of a cluster with their members, committed offsets and lag.

Owns the requests about many groups: one for the members and one for the offsets of all groups of a
coordinator, one for the log ends of a leader. An error of a broker, a group or a partition does not
hide the others. Keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from plog.client.connection import Connection
from plog.client.group_descriptions import (
    CLASSIC,
    CONSUMER,
    DEAD,
    GroupDescription,
    ListedGroup,
    consumer_description,
    description,
)
from plog.client.group_lag import PartitionLag, measure_groups
from plog.client.metadata import Cluster, Node
from plog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    KafkaError,
)
from plog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from plog.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from plog.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from plog.types import NO_OFFSET, TopicPartition

T = TypeVar("T")
Committed = dict[TopicPartition, int]

OFFSETS_TOPIC = "__consumer_offsets"
MAX_GROUPS = 500
"""Groups in one request."""
FIRST_OF_MANY, LAST_OF_MANY = 8, 9
"""Versions of OffsetFetch for many groups; later ones require topic ids (KIP-848)."""
KNOWN_TYPES = {CLASSIC, CONSUMER, ""}
"""Types with members and committed offsets; old brokers send ""."""


class SurveyedGroup(NamedTuple):
    """A group with its offsets and lag.

    Attributes:
        description: None with a fault, and for types without members such as share groups.
        offsets: of partitions with a committed offset, and None for other assigned ones.
        fault: why the members or the offsets are not known.
    """

    listed: ListedGroup
    description: GroupDescription | None
    offsets: dict[TopicPartition, int | None]
    lags: dict[TopicPartition, PartitionLag]
    fault: KafkaError | None

    @property
    def total(self) -> TotalLag:
        """The lag of all partitions together."""
        return total_lag(self.offsets, self.lags)


class TotalLag(NamedTuple):
    """The lag of partitions together; None if the lag of none is known.

    Attributes:
        records: the sum over the partitions.
        age_ms: the age of the oldest record that is not read yet.
        unknown: number of partitions whose lag is not known.
        uncommitted: those of them that are assigned and have no committed offset.
    """

    records: int | None
    age_ms: int | None
    unknown: int
    uncommitted: int


def total_lag(
    offsets: Mapping[TopicPartition, int | None], lags: Mapping[TopicPartition, PartitionLag]
) -> TotalLag:
    """Return the lag of partitions together. A log that ends before the offset counts as 0."""
    records = [max(lag.records, 0) for lag in lags.values() if lag.records is not None]
    ages = [lag.age_ms for lag in lags.values() if lag.age_ms is not None]
    return TotalLag(
        sum(records) if records else None,
        max(ages) if ages else None,
        len(offsets) - len(records),
        sum(offset is None for offset in offsets.values()),
    )


class Survey(NamedTuple):
    """The groups by name, and the errors of brokers and partitions that gave no answer.

    `without_ages` are the groups with a smaller lag whose ages were not looked up.
    """

    groups: list[SurveyedGroup]
    faults: list[KafkaError]
    without_ages: set[str]


class _Members(NamedTuple):
    """A group before its lag is measured."""

    listed: ListedGroup
    description: GroupDescription | None
    committed: Committed
    fault: KafkaError | None

    @property
    def offsets(self) -> dict[TopicPartition, int | None]:
        members = [] if self.description is None else self.description.members
        offsets: dict[TopicPartition, int | None] = {
            at: None for member in members for at in member.assigned or ()
        }
        offsets.update(self.committed)
        return offsets


class GroupSurvey:
    """Asks about all groups.

    Args:
        list_groups: returns the groups of a broker, by node id.
        describe: returns one group, waiting for its coordinator if necessary.
        committed: returns the offsets of one group in the same way.
    """

    def __init__(
        self,
        cluster: Cluster,
        list_groups: Callable[[int], list[ListedGroup]],
        describe: Callable[[str], GroupDescription],
        committed: Callable[[str], Committed],
    ) -> None:
        self._cluster = cluster
        self._list_groups = list_groups
        self._describe = describe
        self._committed = committed

    def take(self, now_ms: int) -> Survey:
        """Return all groups.

        Args:
            now_ms: the time from which the ages of records count, in ms since 1970.

        Raises:
            KafkaError: no broker answers.
        """
        self._cluster.refresh([])
        faults: list[KafkaError] = []
        found: dict[str, _Members] = {}
        for node in sorted(self._cluster.nodes.values()):
            try:
                listed = self._list_groups(node.node_id)
                connection = self._cluster.connection(node.node_id)
                found.update(self._of_coordinator(connection, node, listed))
            except KafkaError as fault:
                faults.append(fault)
        faults += self._missing_groups()
        offsets = {group_id: one.offsets for group_id, one in sorted(found.items())}
        measured = measure_groups(self._cluster, offsets, now_ms)
        faults += measured.errors
        groups = [
            SurveyedGroup(
                found[group_id].listed,
                found[group_id].description,
                its,
                measured.lags[group_id],
                found[group_id].fault,
            )
            for group_id, its in offsets.items()
        ]
        return Survey(groups, faults, measured.without_ages)

    def _missing_groups(self) -> list[KafkaError]:
        """Return the error for groups in partitions that no broker leads, so that none lists."""
        self._cluster.refresh([OFFSETS_TOPIC])
        topic = self._cluster.topics.get(OFFSETS_TOPIC)
        partitions = [] if topic is None else list(topic.partitions.values())
        lost = sum(one.leader_id < 0 for one in partitions)
        if not lost:
            return []
        return [
            CoordinatorNotAvailable(
                f"no leader for {lost} of {len(partitions)} partitions of {OFFSETS_TOPIC}: their"
                " groups are missing (see the brokers' logs)"
            )
        ]

    def _of_coordinator(
        self, connection: Connection, node: Node, listed: Iterable[ListedGroup]
    ) -> dict[str, _Members]:
        """Return the groups of one coordinator; without those that are deleted meanwhile."""
        found = {one.group_id: _Members(one, None, {}, None) for one in listed}
        known = [one.listed for one in found.values() if one.listed.group_type in KNOWN_TYPES]
        descriptions = _describe_many(connection, node, known)
        committed = _committed_by_many(connection, known)
        for listed_group in known:
            group_id = listed_group.group_id
            try:
                found[group_id] = _Members(
                    listed_group,
                    descriptions.get(group_id) or self._describe(group_id),
                    _or(committed.get(group_id), self._committed, group_id),
                    None,
                )
            except GroupIdNotFound:
                del found[group_id]
            except KafkaError as fault:
                found[group_id] = _Members(listed_group, None, {}, fault)
        return found


def _or(known: T | None, ask: Callable[[str], T], group_id: str) -> T:
    return ask(group_id) if known is None else known


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), MAX_GROUPS):
        yield list(names[start : start + MAX_GROUPS])


def _describe_many(
    connection: Connection, node: Node, listed: Iterable[ListedGroup]
) -> dict[str, GroupDescription]:
    """Describe the groups of a coordinator; leave out those with an error."""
    found: dict[str, GroupDescription] = {}
    classic = [one.group_id for one in listed if one.group_type != CONSUMER]
    for names in _chunks(classic):
        answer = connection.call(DescribeGroupsRequest(groups=names), DescribeGroupsResponse)
        for group in answer.groups:
            if group.error_code == ErrorCode.NONE and group.group_state != DEAD:
                found[group.group_id] = description(group, node)
    consumer = [one.group_id for one in listed if one.group_type == CONSUMER]
    for names in _chunks(consumer):
        described = connection.call(
            ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=False),
            ConsumerGroupDescribeResponse,
        )
        for one in described.groups:
            if one.error_code == ErrorCode.NONE:
                found[one.group_id] = consumer_description(one, node)
    return found


def _committed_by_many(
    connection: Connection, listed: Iterable[ListedGroup]
) -> dict[str, Committed]:
    """Return the offsets of a coordinator's groups; leave out groups with an error.

    A broker before Kafka 3.0 gives none: it answers about one group in each request.
    """
    version = connection.version_for(OffsetFetchRequest, at_most=LAST_OF_MANY)
    found: dict[str, Committed] = {}
    if version < FIRST_OF_MANY:
        return found
    for names in _chunks([one.group_id for one in listed]):
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        )
        answer = connection.call(request, OffsetFetchResponse, version=version)
        for group in answer.groups:
            offsets = _offsets(group)
            if offsets is not None:
                found[group.group_id] = offsets
    return found


def _offsets(group: OffsetFetchResponseGroup) -> Committed | None:
    """Return a group's offsets; None if one has an error."""
    parts = [
        (TopicPartition(topic.name, part.partition_index), part)
        for topic in group.topics
        for part in topic.partitions
    ]
    if group.error_code or any(part.error_code for _, part in parts):
        return None
    return {at: part.committed_offset for at, part in parts if part.committed_offset != NO_OFFSET}
