"""Describe the producers of partitions at their leaders, and write abort markers there (KIP-664).

Owns the grouping by leader, and the wait for a leader that moves (DescribeProducers and
WriteTxnMarkers). Keeps no state.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from plog.client.attempts import retry, wait_for_next
from plog.client.metadata import Cluster
from plog.errors import ErrorCode, KafkaError, NetworkException, RequestTimedOut, error_for
from plog.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from plog.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from plog.types import NO_OFFSET, TopicPartition

SETTLE_S = 3.0
"""How long to wait for a partition whose leader moves."""
FIRST_COORDINATOR_EPOCH = 0
HINTS: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "no such topic or partition",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a later epoch of the producer has written there",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: (
        "a coordinator of a later epoch has ended a transaction of the producer there"
    ),
}
"""What a code means here, if the brokers send no message with it."""


class ActiveProducer(NamedTuple):
    """The state of a producer at the leader of a partition; times in ms since 1970.

    -1 stands for none: `coordinator_epoch` before its first transaction has ended there,
    `txn_start_offset` without an open transaction, `last_sequence` and `last_timestamp` without
    records.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    txn_start_offset: int

    @property
    def marker_epoch(self) -> int:
        """The coordinator epoch with which the leader accepts a marker for the producer."""
        return max(self.coordinator_epoch, FIRST_COORDINATOR_EPOCH)


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition, and the state of its producer there."""

    partition: TopicPartition
    producer: ActiveProducer

    @property
    def identity(self) -> tuple[TopicPartition, int, int, int]:
        """The fields that do not change while the transaction is open."""
        producer = self.producer
        return (
            self.partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.txn_start_offset,
        )


class DescribedProducers(NamedTuple):
    """The producers of partitions, and for the other partitions the error of their leader."""

    producers: dict[TopicPartition, list[ActiveProducer]]
    faults: dict[TopicPartition, KafkaError]

    def update(self, later: DescribedProducers) -> None:
        """Replace the state of some partitions with a later one."""
        self.producers.update(later.producers)
        self.faults.update(later.faults)
        for at in later.producers:
            self.faults.pop(at, None)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the open transactions of these partitions."""
        return [
            OpenTransaction(partition, producer)
            for partition, producers in sorted(self.producers.items())
            for producer in producers
            if producer.txn_start_offset != NO_OFFSET
        ]


def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> DescribedProducers:
    """Ask the leaders of partitions for their producers.

    Waits up to SETTLE_S for a leader that moves. An error of one partition does not affect the
    others.

    Raises:
        NetworkException, RequestTimedOut: no broker answers Metadata.
    """
    deadline = time.monotonic() + SETTLE_S
    left = sorted(set(partitions))
    found = _ask_leaders(cluster, left)
    while True:
        left = [at for at in left if at in found.faults and found.faults[at].retriable]
        if not left or not wait_for_next(deadline):
            return found
        cluster.refresh(sorted({at.topic for at in left}))
        found.update(_ask_leaders(cluster, left))


def _ask_leaders(cluster: Cluster, partitions: Iterable[TopicPartition]) -> DescribedProducers:
    """Ask each leader once."""
    found = DescribedProducers({}, {})
    by_leader: dict[int, list[TopicPartition]] = {}
    for at in partitions:
        try:
            by_leader.setdefault(cluster.leader(at).leader_id, []).append(at)
        except (NetworkException, RequestTimedOut):
            raise  # no broker answers Metadata, for the others either
        except KafkaError as fault:
            found.faults[at] = fault
    for node_id, some in by_leader.items():
        try:
            answered = _ask(cluster, node_id, some)
        except KafkaError as fault:
            found.faults.update(dict.fromkeys(some, fault))
            continue
        for at in some:
            try:
                found.producers[at] = _producers(at, answered.get(at))
            except KafkaError as fault:
                found.faults[at] = fault
    return found


def _ask(
    cluster: Cluster, node_id: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionResponse]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    answer = cluster.connection(node_id).call(
        DescribeProducersRequest(
            topics=[
                TopicRequest(name=topic, partition_indexes=numbers)
                for topic, numbers in topics.items()
            ]
        ),
        DescribeProducersResponse,
    )
    return {
        TopicPartition(topic.name, part.partition_index): part
        for topic in answer.topics
        for part in topic.partitions
    }


def _producers(at: TopicPartition, part: PartitionResponse | None) -> list[ActiveProducer]:
    """Return the producers of a partition. Raises KafkaError."""
    what = f"producers of {at}"
    if part is None:
        raise error_for(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: its leader's response lacks the partition"
        )
    _check(part.error_code, what, part.error_message)
    return [
        ActiveProducer(
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.last_sequence,
            one.last_timestamp,
            one.current_txn_start_offset,
        )
        for one in sorted(part.active_producers, key=lambda one: one.producer_id)
    ]


def write_abort_marker(
    cluster: Cluster,
    partition: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timeout_ms: int,
) -> None:
    """Abort a producer's transaction in one partition, in the place of its coordinator.

    The leader writes the marker even if no transaction is open.

    Args:
        timeout_ms: how long the leader may wait for its replicas.

    Raises:
        UnknownTopicOrPartition: no such partition.
        InvalidProducerEpoch: a later epoch of the producer has written there.
        TransactionCoordinatorFenced: a later coordinator has ended one of its transactions.
        KafkaError: the marker may not have been written.
    """
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=False,
                topics=[
                    WritableTxnMarkerTopic(
                        name=partition.topic, partition_indexes=[partition.partition]
                    )
                ],
                coordinator_epoch=coordinator_epoch,
            )
        ]
    )
    retry(
        lambda: _write(cluster, partition, request, timeout_ms),
        timeout_s=SETTLE_S,
        may_pass=lambda fault: fault.code == ErrorCode.NOT_LEADER_OR_FOLLOWER,
        before_next=lambda _: cluster.refresh([partition.topic]),
    )


def _write(
    cluster: Cluster, partition: TopicPartition, request: WriteTxnMarkersRequest, timeout_ms: int
) -> None:
    connection = cluster.connection(cluster.leader(partition).leader_id)
    answer = connection.call(request, WriteTxnMarkersResponse, wait_ms=timeout_ms)
    codes = [
        part.error_code
        for marker in answer.markers
        for topic in marker.topics
        for part in topic.partitions
    ]
    if not codes:
        raise error_for(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"marker in {partition}: the response of {connection.peer} lacks the partition",
        )
    for code in codes:
        _check(code, f"marker in {partition}")


def _check(code: int, what: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise error_for(code, f"{what}: {HINTS.get(code) or message or error_for(code)}")
