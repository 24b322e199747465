"""A client by hand of several brokers: it sends each request to the broker that answers it."""

from __future__ import annotations

from typing import Any

from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.group_admin import DescribeGroupsRequest
from plog.protocol.messages.groups import FindCoordinatorRequest
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.offsets import OffsetFetchRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.messages.producers import DescribeProducersRequest, InitProducerIdRequest
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from plog.protocol.schema import Struct
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.coordinator.conftest import GROUP, TRANSACTION
from tests.handlers.wire import Speaker, speak
from tests.waiting import until

NO_BROKER = -1


class Routed:
    """Stands in for a `Speaker`. It has a connection for each broker, and asks first who it is.

    Args:
        home: the broker that it asks for coordinators and leaders, if this one runs.
    """

    def __init__(self, brokers: Brokers, home: int = 0) -> None:
        self.brokers = brokers
        self._home = home
        self._speakers: dict[int, Speaker] = {}

    def ask(self, request: Struct, version: int | None = None, wait_ms: int = 0) -> Any:
        return self.to(self._broker_of(request)).ask(request, version, wait_ms)

    def version_for(self, request: type[Struct], *, at_most: int | None = None) -> int:
        return self.to(self.home).version_for(request, at_most=at_most)

    @property
    def home(self) -> int:
        """A running broker, always the same one while it runs."""
        count = len(self.brokers.brokers)
        order = [(self._home + n) % count for n in range(count)]
        return next(number for number in order if self.brokers[number].is_running)

    def to(self, broker_id: int) -> Speaker:
        """Return the connection to a broker."""
        speaker = self._speakers.get(broker_id)
        if speaker is None or not speaker.is_usable:
            if speaker is not None:
                speaker.close()
            speaker = self._speakers[broker_id] = speak(self.brokers[broker_id].port)
        return speaker

    def coordinator(self, kind: int, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id, once there is one."""
        found = NO_BROKER

        def is_found() -> bool:
            nonlocal found
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            (answer,) = self.to(self.home).ask(request, 4).coordinators
            found = answer.node_id
            return bool(answer.error_code == ErrorCode.NONE)

        until(is_found, f"the coordinator of {key}")
        return found

    def leader(self, at: TopicPartition) -> int:
        """Return the leader of a partition, once there is one."""
        found = NO_BROKER

        def is_led() -> bool:
            nonlocal found
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=at.topic)], allow_auto_topic_creation=False
            )
            (topic,) = self.to(self.home).ask(request, 12).topics
            leaders = {one.partition_index: one.leader_id for one in topic.partitions}
            found = leaders.get(at.partition, NO_BROKER)
            return found != NO_BROKER

        until(is_led, f"the leader of {at}")
        return found

    def name_on(self, kind: int, broker_id: int, prefix: str) -> str:
        """Return a group, or a transactional id, that a broker coordinates."""
        names = (f"{prefix}-{number}" for number in range(1000))
        return next(name for name in names if self.coordinator(kind, name) == broker_id)

    def close(self) -> None:
        for speaker in self._speakers.values():
            speaker.close()

    def _broker_of(self, request: Struct) -> int:
        match request:
            case InitProducerIdRequest() | EndTxnRequest() | AddOffsetsToTxnRequest():
                return self.coordinator(TRANSACTION, request.transactional_id or "")
            case AddPartitionsToTxnRequest():
                return self.coordinator(TRANSACTION, request.v3_and_below_transactional_id)
            case DescribeTransactionsRequest():
                return self.coordinator(TRANSACTION, request.transactional_ids[0])
            case TxnOffsetCommitRequest():
                return self.coordinator(GROUP, request.group_id)
            case DescribeGroupsRequest():
                return self.coordinator(GROUP, request.groups[0])
            case OffsetFetchRequest():
                return self.coordinator(GROUP, request.groups[0].group_id)
            case ProduceRequest():
                topic = request.topic_data[0]
                return self.leader(TopicPartition(topic.name, topic.partition_data[0].index))
            case FetchRequest():
                fetched = request.topics[0]
                return self.leader(TopicPartition(fetched.topic, fetched.partitions[0].partition))
            case DescribeProducersRequest():
                described = request.topics[0]
                return self.leader(TopicPartition(described.name, described.partition_indexes[0]))
            case WriteTxnMarkersRequest():
                marked = request.markers[0].topics[0]
                return self.leader(TopicPartition(marked.name, marked.partition_indexes[0]))
        return self.home
