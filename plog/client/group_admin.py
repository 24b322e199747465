"""Administrative requests about consumer groups: their members, and their committed offsets.

Owns only its connections. Each call asks the group's coordinator, or for all groups each broker. It
asks again while a coordinator is elected, loads or moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial

from plog.client import coordinators
from plog.client.administration import Administration
from plog.client.connection import Connection
from plog.client.coordinators import Coordinators, KeyType
from plog.client.group_descriptions import (
    DEAD,
    GroupDescription,
    ListedGroup,
    consumer_description,
    description,
)
from plog.client.group_lag import PartitionLag, measure
from plog.client.group_survey import GroupSurvey, Survey
from plog.client.metadata import Node
from plog.client.offsets import EARLIEST, LATEST, list_offsets
from plog.errors import ErrorCode, GroupIdNotFound, KafkaError, NonEmptyGroup, error_for
from plog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from plog.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from plog.types import NO_OFFSET, TopicPartition

ELECTION_MS = 2000
"""How long a change of offsets waits for the leader of a partition that has none."""
HINTS: Mapping[int, str] = {
    **coordinators.HINTS,
    ErrorCode.GROUP_ID_NOT_FOUND: "it does not exist",
    ErrorCode.NON_EMPTY_GROUP: "it has members; stop its consumers first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "its members consume the topic; stop them first",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "no such topic or partition",
}
"""What a code means here, if the brokers send no message with it."""


class GroupAdmin(Administration):
    """Administers the consumer groups of a cluster. Its arguments are those of `Administration`."""

    @cached_property
    def _coordinators(self) -> Coordinators:
        return Coordinators(self._cluster, KeyType.GROUP, timeout_ms=self._timeout_ms)

    # -- groups --------------------------------------------------------------------------------

    def groups(self, states: Iterable[str] = ()) -> list[ListedGroup]:
        """Return every broker's groups by name, in these states (Kafka's names) or in all."""
        self._cluster.refresh([])
        found: dict[str, ListedGroup] = {}
        for node_id in sorted(self._cluster.nodes):
            found.update((group.group_id, group) for group in self._list(node_id, states))
        return [group for _, group in sorted(found.items())]

    def survey(self, now_ms: int, states: Iterable[str] = ()) -> Survey:
        """Return every broker's groups with members, offsets and lag, in these states or in all.

        Asks about many groups in each request.

        Args:
            now_ms: the time from which the ages of records count, in ms since 1970.

        Raises:
            KafkaError: no broker answers.
        """
        list_groups = partial(self._list, states=states)
        return GroupSurvey(self._cluster, list_groups, self.describe, self.committed).take(now_ms)

    def describe(self, group_id: str) -> GroupDescription:
        """Return a group with its members.

        Raises:
            GroupIdNotFound: it does not exist.
        """

        def ask(coordinator: Node, connection: Connection) -> GroupDescription:
            answer = connection.call(
                DescribeGroupsRequest(groups=[group_id]), DescribeGroupsResponse
            )
            (group,) = answer.groups
            # Version 6 reports a group of another type as GROUP_ID_NOT_FOUND (KIP-1043).
            if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                _check(group.error_code, _named(group_id))
            if group.error_code == ErrorCode.NONE and group.group_state != DEAD:
                return description(group, coordinator)
            if not connection.serves(ConsumerGroupDescribeRequest):
                _check(ErrorCode.GROUP_ID_NOT_FOUND, _named(group_id))
            request = ConsumerGroupDescribeRequest(
                group_ids=[group_id], include_authorized_operations=False
            )
            (found,) = connection.call(request, ConsumerGroupDescribeResponse).groups
            _check(found.error_code, _named(group_id))
            return consumer_description(found, coordinator)

        return self._coordinators.ask(group_id, ask)

    def delete(self, group_id: str) -> None:
        """Delete a group with its committed offsets.

        Raises:
            GroupIdNotFound: it does not exist.
            NonEmptyGroup: it has members.
        """

        def ask(_: Node, connection: Connection) -> None:
            answer = connection.call(
                DeleteGroupsRequest(groups_names=[group_id]), DeleteGroupsResponse
            )
            for group in answer.results:
                _check(group.error_code, _named(group_id))

        self._coordinators.ask(group_id, ask)

    # -- offsets -------------------------------------------------------------------------------

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition of a group.

        A group that does not exist has none.
        """

        def ask(_: Node, connection: Connection) -> dict[TopicPartition, int]:
            request = OffsetFetchRequest(group_id=group_id, topics=None)
            answer = connection.call(request, OffsetFetchResponse)
            _check(answer.error_code, _named(group_id))
            found: dict[TopicPartition, int] = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    at = TopicPartition(topic.name, part.partition_index)
                    _check(part.error_code, f"offset of group {group_id!r} in {at}")
                    if part.committed_offset != NO_OFFSET:
                        found[at] = part.committed_offset
            return dict(sorted(found.items()))

        return self._coordinators.ask(group_id, ask)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members; create the group if it does not exist.

        Raises:
            NonEmptyGroup: it has members; nothing was committed.
            UnknownTopicOrPartition: no such partition; the others were committed.
        """
        request = OffsetCommitRequest(
            group_id=group_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=at.partition,
                            committed_offset=offsets[at],
                            committed_metadata="",
                        )
                        for at in partitions
                    ],
                )
                for topic, partitions in _by_topic(offsets).items()
            ],
        )

        def ask(_: Node, connection: Connection) -> None:
            answer = connection.call(request, OffsetCommitResponse)
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                        # The error for a commit from outside while the group has members.
                        _check(ErrorCode.NON_EMPTY_GROUP, _named(group_id))
                    at = TopicPartition(topic.name, part.partition_index)
                    _check(part.error_code, f"offset of group {group_id!r} in {at}")

        self._coordinators.ask(group_id, ask)

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete a group's committed offsets of these partitions.

        Raises:
            GroupIdNotFound: it does not exist.
            NonEmptyGroup: it has members whose subscriptions are not known.
            KafkaError: GROUP_SUBSCRIBED_TO_TOPIC, its members consume the topic; the offsets of
                other topics are deleted.
        """
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=at.partition) for at in some
                    ],
                )
                for topic, some in _by_topic(partitions).items()
            ],
        )

        def ask(_: Node, connection: Connection) -> None:
            answer = connection.call(request, OffsetDeleteResponse)
            _check(answer.error_code, _named(group_id))
            for topic in answer.topics:
                for part in topic.partitions:
                    at = TopicPartition(topic.name, part.partition_index)
                    _check(part.error_code, f"offset of group {group_id!r} in {at}")

        self._coordinators.ask(group_id, ask)

    # -- logs ----------------------------------------------------------------------------------

    def lags(
        self, offsets: Mapping[TopicPartition, int | None], now_ms: int
    ) -> dict[TopicPartition, PartitionLag]:
        """Return the lag of partitions from these offsets (None: no committed offset).

        Args:
            now_ms: the time from which the ages of records count, in ms since 1970.
        """
        return self.measure_lags(offsets, now_ms)[0]

    def measure_lags(
        self, offsets: Mapping[TopicPartition, int | None], now_ms: int
    ) -> tuple[dict[TopicPartition, PartitionLag], list[KafkaError]]:
        """Return the lag of partitions as `lags`, and the errors of those without an answer."""
        return measure(self._cluster, offsets, now_ms)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the start and the end of each partition's log.

        Raises:
            UnknownTopicOrPartition: no such partition.
            LeaderNotAvailable: a partition has no leader, also after an election.
            KafkaError: no leader answers in request_timeout_ms.
        """
        wanted = list(partitions)
        starts, ends = self._at(wanted, EARLIEST), self._at(wanted, LATEST)
        return {partition: (starts[partition], ends[partition]) for partition in wanted}

    def offsets_at(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition at or after a time, NO_OFFSET for none.

        Raises: as `bounds`.
        """
        return self._at(list(partitions), time_ms)

    def _at(self, partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        times = dict.fromkeys(partitions, time_ms)
        found = list_offsets(
            self._cluster, times, timeout_ms=self._timeout_ms, election_ms=ELECTION_MS
        )
        return {partition: at.offset for partition, at in found.items()}

    def _list(self, node_id: int, states: Iterable[str]) -> list[ListedGroup]:
        """Return the groups of a broker, which may still load them."""
        request = ListGroupsRequest(states_filter=list(states), types_filter=[])

        def ask() -> ListGroupsResponse:
            answer = self._cluster.connection(node_id).call(request, ListGroupsResponse)
            _check(answer.error_code, f"groups of broker {node_id}")
            return answer

        return [
            ListedGroup(group.group_id, group.group_state, group.protocol_type, group.group_type)
            for group in self._coordinators.settled(ask, f"the groups of broker {node_id}").groups
        ]


_named = KeyType.GROUP.named


def _check(code: int, what: str) -> None:
    if code == ErrorCode.NONE:
        return
    text = f"{what}: {HINTS.get(code) or error_for(code)}"
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise GroupIdNotFound(text)
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise NonEmptyGroup(text)
    raise error_for(code, text)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition)
    return topics
