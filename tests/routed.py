"""A connection to several brokers: each request goes to the broker that a client would ask.

Suites that speak the protocol by hand open one connection (`tests/handlers/wire.py: speak`). On
several brokers the leader of a partition and the coordinator of a group or of a transactional id
are different brokers. `ListGroups` and `ListTransactions` are sent to all.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, TypeVar

from plog.client.connection import Connection
from plog.errors import ErrorCode
from plog.protocol.messages import consumer_groups, group_admin, groups, offsets, transactions
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from plog.protocol.messages.list_offsets import ListOffsetsRequest
from plog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.messages.producers import DescribeProducersRequest, InitProducerIdRequest
from plog.protocol.messages.topics import CreateTopicsRequest, DeleteRecordsRequest
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests.handlers.wire import WAIT_MS, Speaker
from tests.waiting import until

R = TypeVar("R", bound=Struct)
GROUP, TRANSACTION = 0, 1
"""What a coordinator is asked for."""
OF_LEADERS = (
    ProduceRequest,
    FetchRequest,
    ListOffsetsRequest,
    DeleteRecordsRequest,
    DescribeProducersRequest,
    offsets.OffsetForLeaderEpochRequest,
)
OF_COORDINATORS: dict[type[Struct], tuple[int, Callable[[Any], Sequence[str | None]]]] = {
    **dict.fromkeys(
        (
            groups.JoinGroupRequest,
            groups.SyncGroupRequest,
            groups.HeartbeatRequest,
            groups.LeaveGroupRequest,
            offsets.OffsetCommitRequest,
            offsets.OffsetDeleteRequest,
            consumer_groups.ConsumerGroupHeartbeatRequest,
            transactions.TxnOffsetCommitRequest,
        ),
        (GROUP, lambda request: [request.group_id]),
    ),
    offsets.OffsetFetchRequest: (
        GROUP,
        lambda request: [one.group_id for one in request.groups] or [request.group_id],
    ),
    group_admin.DescribeGroupsRequest: (GROUP, lambda request: request.groups),
    group_admin.DeleteGroupsRequest: (GROUP, lambda request: request.groups_names),
    consumer_groups.ConsumerGroupDescribeRequest: (GROUP, lambda request: request.group_ids),
    **dict.fromkeys(
        (
            InitProducerIdRequest,
            transactions.AddOffsetsToTxnRequest,
            transactions.EndTxnRequest,
        ),
        (TRANSACTION, lambda request: [request.transactional_id]),
    ),
    transactions.AddPartitionsToTxnRequest: (
        TRANSACTION,
        lambda request: (
            [one.transactional_id for one in request.transactions]
            or [request.v3_and_below_transactional_id]
        ),
    ),
    transactions.DescribeTransactionsRequest: (
        TRANSACTION,
        lambda request: request.transactional_ids,
    ),
}
OF_ALL = {
    group_admin.ListGroupsRequest: "groups",
    transactions.ListTransactionsRequest: "transaction_states",
}
"""Requests to every broker, and the lists in which their responses are joined."""


class Routed(Speaker):
    """Connections to brokers 0, 1, ... of a cluster, opened when they are needed.

    A request for the leaders of partitions is divided among them. One for coordinators, or with
    markers, is for a single broker.
    """

    def __init__(self, ports: Sequence[int], *, client_id: str) -> None:
        super().__init__("127.0.0.1", ports[0], client_id=client_id, timeout_ms=WAIT_MS)
        self._ports = ports
        self._others: dict[int, Speaker] = {}

    def close(self) -> None:
        super().close()
        for one in getattr(self, "_others", {}).values():  # a refused connection has none
            one.close()

    def call(
        self, request: Struct, response: type[R], *, version: int | None = None, wait_ms: int = 0
    ) -> R:
        def answers(broker: int) -> R:
            return self._ask_one(broker, request, response, version=version, wait_ms=wait_ms)

        if joined := OF_ALL.get(type(request)):
            answer, *others = map(answers, range(len(self._ports)))
            for one in others:
                getattr(answer, joined).extend(getattr(one, joined))
            return answer
        if isinstance(request, OF_LEADERS):
            return self._ask_leaders(request, response, version=version, wait_ms=wait_ms)
        answer = answers(self._broker_for(request))
        if isinstance(request, CreateTopicsRequest):
            self._await_topics([one.name for one in answer.topics if one.error_code == 0])
        return answer

    def _to(self, broker: int) -> Speaker:
        if broker == 0:
            return self
        if broker not in self._others or not self._others[broker].is_usable:
            self._others[broker] = Speaker(
                "127.0.0.1", self._ports[broker], client_id=self._client_id, timeout_ms=WAIT_MS
            )
        return self._others[broker]

    def _ask_one(self, broker: int, request: Struct, response: type[R], **options: Any) -> R:
        return Connection.call(self._to(broker), request, response, **options)

    def _ask_leaders(self, request: Struct, response: type[R], **options: Any) -> R:
        places = list(partitions_of(request))
        leaders = {at: max(self._leader(*at), 0) for at in places}
        answers = [
            self._ask_one(
                broker,
                _with_parts(request, {at for at in places if leaders[at] == broker}),
                response,
                **options,
            )
            for broker in sorted(set(leaders.values()))
        ]
        if not answers:
            return self._ask_one(0, request, response, **options)
        return answers[0] if len(answers) == 1 else _joined(answers, places)

    def _broker_for(self, request: Struct) -> int:
        found: set[int] = set()
        if isinstance(request, transactions.WriteTxnMarkersRequest):
            places = [at for marker in request.markers for at in partitions_of(marker)]
            found = {self._leader(*at) for at in places}
        elif type(request) in OF_COORDINATORS:
            kind, keys_of = OF_COORDINATORS[type(request)]
            found = {self._coordinator(kind, key) for key in keys_of(request) if key}
        found.discard(-1)
        assert len(found) <= 1, f"for brokers {found}: {request}"
        return found.pop() if found else 0

    def _coordinator(self, kind: int, key: str) -> int:
        """Return the broker, -1 if there is none."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        answer = Connection.call(self, request, FindCoordinatorResponse, version=4)
        (one,) = answer.coordinators
        return int(one.node_id) if one.error_code == ErrorCode.NONE else -1

    def _leader(self, topic: str | uuid.UUID, partition: int) -> int:
        """Return the broker, as soon as there is one; -1 for a partition that does not exist."""
        leader = -1

        def is_known() -> bool:
            nonlocal leader
            leaders = self._leaders(topic)
            leader = leaders.get(partition, -1)
            return leader >= 0 or partition not in leaders

        until(is_known, f"a leader of {topic}-{partition} known")
        return leader

    def _leaders(self, topic: str | uuid.UUID) -> dict[int, int]:
        by_id = isinstance(topic, uuid.UUID)
        asked = MetadataRequestTopic(
            topic_id=topic if by_id else ZERO_UUID, name=None if by_id else topic
        )
        (found,) = self._metadata(self, [asked]).topics
        return {int(part.partition_index): int(part.leader_id) for part in found.partitions}

    def _metadata(self, speaker: Connection, topics: list[MetadataRequestTopic]) -> Any:
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return Connection.call(speaker, request, MetadataResponse, version=12)

    def _await_topics(self, names: list[str]) -> None:
        """Wait until every broker knows new topics, and the leader of each partition."""
        asked = [MetadataRequestTopic(name=name) for name in names]

        def are_known(broker: int) -> bool:
            found = self._metadata(self._to(broker), asked).topics
            return all(
                topic.error_code == ErrorCode.NONE
                and all(part.error_code == ErrorCode.NONE for part in topic.partitions)
                for topic in found
            )

        for broker in range(len(self._ports)):
            until(lambda broker=broker: are_known(broker), f"{names} known to broker {broker}")


Place = tuple[str | uuid.UUID, int]
"""A topic, by its name or its id, and the number of a partition."""


def partitions_of(request: Struct) -> Iterator[Place]:
    """Yield the partitions in a request, or in a marker."""
    for topic in _topics(request):
        for part in _parts(topic):
            yield _name_of(topic), _number_of(part)


def _with_parts(request: Struct, places: Set[Place]) -> Struct:
    """Return a request for some of its partitions."""
    topics = []
    for topic in _topics(request):
        parts = [part for part in _parts(topic) if (_name_of(topic), _number_of(part)) in places]
        if parts:
            topics.append(_copied(topic, _parts_field(topic), parts))
    return _copied(request, _topics_field(request), topics)


def _joined(answers: Sequence[R], places: Sequence[Place]) -> R:
    """Return one response with the partitions of all, in the order of the request."""
    found: dict[Place, tuple[Struct, Any]] = {
        (_name_of(topic), _number_of(part)): (topic, part)
        for answer in answers
        for topic in _topics(answer)
        for part in _parts(topic)
    }
    topics: list[Struct] = []
    for place in places:
        topic, part = found[place]
        if not topics or _name_of(topics[-1]) != place[0]:
            topics.append(_copied(topic, _parts_field(topic), []))
        _parts(topics[-1]).append(part)
    return _copied(answers[0], _topics_field(answers[0]), topics)


def _copied(struct: R, field: str, value: Any) -> R:
    values = {one.name: getattr(struct, one.name) for one in struct.fields}
    return type(struct)(**{**values, field: value})


def _field_of(struct: Struct, *names: str) -> str:
    return next(one.name for one in struct.fields if one.name in names)


def _topics_field(message: Struct) -> str:
    return _field_of(message, "topics", "topic_data", "responses")


def _parts_field(topic: Struct) -> str:
    names = ("partitions", "partition_data", "partition_indexes", "partition_responses")
    return _field_of(topic, *names)


def _topics(message: Struct) -> list[Struct]:
    found: list[Struct] = getattr(message, _topics_field(message))
    return found


def _parts(topic: Struct) -> list[Any]:
    found: list[Any] = getattr(topic, _parts_field(topic))
    return found


def _name_of(topic: Any) -> str | uuid.UUID:
    named: str = getattr(topic, _field_of(topic, "name", "topic"))
    return named or topic.topic_id


def _number_of(part: Any) -> int:
    is_number = isinstance(part, int)
    return (
        part
        if is_number
        else getattr(part, _field_of(part, "partition_index", "partition", "index"))
    )
