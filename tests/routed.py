"""A client by hand of several brokers: each request goes to the broker that a client would ask.

It stands in for the one connection of suites that speak the protocol by hand
(`tests/handlers/wire.py: speak`). On several brokers the leader of a partition and the coordinator
of a group or of a transactional id are different brokers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from typing import Any, TypeVar

from plog.client.connection import BrokerUnreachable
from plog.errors import ErrorCode
from plog.protocol.messages import consumer_groups, group_admin, groups, offsets, transactions
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.groups import FindCoordinatorRequest
from plog.protocol.messages.list_offsets import ListOffsetsRequest
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.messages.producers import DescribeProducersRequest, InitProducerIdRequest
from plog.protocol.messages.topics import CreateTopicsRequest, DeleteRecordsRequest
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests.coordinator.conftest import GROUP, TRANSACTION
from tests.handlers.wire import WAIT_MS, Speaker
from tests.waiting import until

R = TypeVar("R", bound=Struct)
NO_BROKER = -1
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


class Routed:
    """Connections to brokers 0, 1, ... of a cluster, opened when they are needed.

    A request for the leaders of partitions is divided among them. One for coordinators, or with
    markers, is for a single broker. `OF_ALL` are sent to every broker, others to `home`.

    Args:
        ports: those of the brokers, in the order of their ids.
        home: the id of the broker that is asked for coordinators and leaders, if it runs.
        timeout_ms: how long each response may take.
    """

    def __init__(
        self,
        ports: Sequence[int],
        *,
        client_id: str = "test",
        home: int = 0,
        timeout_ms: int = WAIT_MS,
    ) -> None:
        self._ports, self._client_id, self._timeout_ms = ports, client_id, timeout_ms
        self._order = [*range(home, len(ports)), *range(home)]
        self._speakers: dict[int, Speaker] = {}

    def close(self) -> None:
        for speaker in self._speakers.values():
            speaker.close()

    def ask(self, request: Struct, version: int | None = None, wait_ms: int = 0) -> Any:
        def ask_one(broker_id: int, request: Struct = request) -> Any:
            return self.to(broker_id).ask(request, version, wait_ms)

        if joined := OF_ALL.get(type(request)):
            answer, *others = map(ask_one, range(len(self._ports)))
            for one in others:
                getattr(answer, joined).extend(getattr(one, joined))
            return answer
        if isinstance(request, OF_LEADERS):
            return self._ask_leaders(request, ask_one)
        answer = ask_one(self._broker_for(request))
        if isinstance(request, CreateTopicsRequest):
            self._await_topics([one.name for one in answer.topics if one.error_code == 0])
        return answer

    def version_for(self, request: type[Struct], *, at_most: int | None = None) -> int:
        return self.to(self.home).version_for(request, at_most=at_most)

    @property
    def home(self) -> int:
        """The id of the broker that answers what any broker can."""
        for broker_id in self._order:
            with suppress(BrokerUnreachable):
                self.to(broker_id)
                return broker_id
        raise BrokerUnreachable(f"no broker runs at {self._ports}")

    def to(self, broker_id: int) -> Speaker:
        """Return the connection to a broker. Raises BrokerUnreachable."""
        speaker = self._speakers.get(broker_id)
        if speaker is None or not speaker.is_usable:
            if speaker is not None:
                speaker.close()
            speaker = self._speakers[broker_id] = Speaker(
                "127.0.0.1",
                self._ports[broker_id],
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
            )
        return speaker

    def coordinator(self, kind: int, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id, once there is one.

        `NO_BROKER` for a key that none can coordinate.
        """
        found = NO_BROKER

        def is_found() -> bool:
            nonlocal found
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            (answer,) = self.to(self.home).ask(request, 4).coordinators
            found = answer.node_id if answer.error_code == ErrorCode.NONE else NO_BROKER
            return bool(answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE)

        until(is_found, f"the coordinator of {key}")
        return found

    def leader(self, place: Place) -> int:
        """Return the leader of a partition, once there is one.

        `NO_BROKER` for a partition that does not exist.
        """
        topic, partition = place
        by_id = isinstance(topic, uuid.UUID)
        asked = MetadataRequestTopic(
            topic_id=topic if by_id else ZERO_UUID, name=None if by_id else topic
        )
        found = NO_BROKER

        def is_known() -> bool:
            nonlocal found
            (described,) = self._topics(self.home, [asked])
            leaders = {one.partition_index: one.leader_id for one in described.partitions}
            found = leaders.get(partition, NO_BROKER)
            return found != NO_BROKER or partition not in leaders

        until(is_known, f"a leader of {topic}-{partition}")
        return found

    def name_on(self, kind: int, broker_id: int, prefix: str) -> str:
        """Return a group, or a transactional id, that a broker coordinates."""
        names = (f"{prefix}-{number}" for number in range(1000))
        return next(name for name in names if self.coordinator(kind, name) == broker_id)

    def _ask_leaders(self, request: Struct, ask_one: Callable[[int, Struct], Any]) -> Any:
        places = list(partitions_of(request))
        leaders = {place: self._or_home(self.leader(place)) for place in places}
        answers = [
            ask_one(
                broker_id,
                _with_parts(request, {place for place in places if leaders[place] == broker_id}),
            )
            for broker_id in sorted(set(leaders.values()))
        ]
        if not answers:
            return ask_one(self.home, request)
        return answers[0] if len(answers) == 1 else _joined(answers, places)

    def _broker_for(self, request: Struct) -> int:
        found: set[int] = set()
        if isinstance(request, transactions.WriteTxnMarkersRequest):
            places = [place for marker in request.markers for place in partitions_of(marker)]
            found = {self.leader(place) for place in places}
        elif type(request) in OF_COORDINATORS:
            kind, keys_of = OF_COORDINATORS[type(request)]
            found = {self.coordinator(kind, key) for key in keys_of(request) if key}
        found.discard(NO_BROKER)
        assert len(found) <= 1, f"for brokers {found}: {request}"
        return self._or_home(found.pop() if found else NO_BROKER)

    def _or_home(self, broker_id: int) -> int:
        return self.home if broker_id == NO_BROKER else broker_id

    def _topics(self, broker_id: int, asked: list[MetadataRequestTopic]) -> Any:
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        return self.to(broker_id).ask(request, 12).topics

    def _await_topics(self, names: list[str]) -> None:
        """Wait until every broker knows new topics, and the leader of each partition."""
        asked = [MetadataRequestTopic(name=name) for name in names]

        def are_known(broker_id: int) -> bool:
            return all(
                topic.error_code == ErrorCode.NONE
                and all(part.error_code == ErrorCode.NONE for part in topic.partitions)
                for topic in self._topics(broker_id, asked)
            )

        for broker_id in range(len(self._ports)):
            until(lambda number=broker_id: are_known(number), f"{names} at broker {broker_id}")


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
