"""The partitions of transactions, wherever their leaders are: markers, and whether one is open.

Owns which broker is asked, and the requests: WriteTxnMarkers and DescribeProducers. Never retries;
the coordinator does, for as long as it leads its shard. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from plog.cluster.led_transactions import LedTransactions
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.peers import Peers
from plog.coordinator.peer_batches import PeerBatches
from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode, KafkaError, NotLeaderOrFollower, error_for
from plog.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from plog.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from plog.storage.producer_state import Marker
from plog.types import TopicPartition

OWN_EPOCH_VERSION, SHARED_EPOCH_VERSION = 2, 0
"""Transaction versions: with an epoch for each transaction (KIP-890), and before."""

WriteHere = Callable[[TopicPartition, Producer, Marker], Awaitable[None]]


class DueMarker(NamedTuple):
    """A marker that a partition is to get."""

    partition: TopicPartition
    producer: Producer
    marker: Marker


class TxnPartitions:
    """The partitions of this coordinator's transactions.

    Args:
        led: the transactions in the partitions that this broker leads.
        peers: to the brokers that lead the others.
    """

    def __init__(
        self, broker_id: int, *, led: LedTransactions, metadata: MetadataCache, peers: Peers
    ) -> None:
        self._broker_id = broker_id
        self._led = led
        self._metadata = metadata
        self._peers = peers
        self._markers: PeerBatches[DueMarker, ErrorCode] = PeerBatches(self._send_markers)

    async def write_marker(
        self, at: TopicPartition, producer: Producer, marker: Marker, here: WriteHere
    ) -> None:
        """Write a marker to a partition's leader; `here` does if this broker leads it.

        Raises as `OwnAppends.append_marker`, and RequestTimedOut: it may be written or not.
        """
        leader = self._leader_of(at)
        if leader == self._broker_id:
            await here(at, producer, marker)
            return
        code = await self._markers.ask(leader, DueMarker(at, producer, marker))
        if code is not ErrorCode.NONE:
            raise error_for(code, f"broker {leader} refuses the marker of {at}")

    async def has_open(self, at: TopicPartition, producer_id: int) -> bool:
        """Return whether a producer has a transaction of any epoch open in a partition.

        Raises:
            KafkaError: it is unknown.
        """
        leader = self._leader_of(at)
        if leader == self._broker_id:
            return self._led.has_open(at, producer_id)
        topics = [TopicRequest(name=at.topic, partition_indexes=[at.partition])]
        asked = self._peers.ask(
            leader, DescribeProducersRequest(topics=topics), DescribeProducersResponse
        )
        response = await asyncio.wrap_future(asked)
        (found,) = response.topics[0].partitions
        if found.error_code != ErrorCode.NONE:
            raise error_for(found.error_code, f"broker {leader} does not describe {at}")
        return any(
            one.producer_id == producer_id and one.current_txn_start_offset >= 0
            for one in found.active_producers
        )

    def _leader_of(self, at: TopicPartition) -> int:
        if self._led.leads(at):
            return self._broker_id
        leader = self._metadata.leader(at)
        if leader is None or leader.leader_id == self._broker_id:
            raise NotLeaderOrFollower(f"no broker is known to lead {at}")
        return leader.leader_id

    async def _send_markers(
        self, broker_id: int, due: Sequence[DueMarker]
    ) -> list[ErrorCode | KafkaError]:
        markers: dict[tuple[Producer, Marker], dict[str, list[int]]] = {}
        for at, producer, marker in due:
            topics = markers.setdefault((producer, marker), {})
            topics.setdefault(at.topic, []).append(at.partition)
        request = WriteTxnMarkersRequest(
            markers=[_encoded(*key, topics) for key, topics in markers.items()]
        )
        asked = self._peers.ask(broker_id, request, WriteTxnMarkersResponse)
        response = await asyncio.wrap_future(asked)
        codes = {
            (key, TopicPartition(topic.name, one.partition_index)): ErrorCode(one.error_code)
            for key, result in zip(markers, response.markers, strict=True)
            for topic in result.topics
            for one in topic.partitions
        }
        return [codes[(producer, marker), at] for at, producer, marker in due]


def _encoded(producer: Producer, marker: Marker, topics: dict[str, list[int]]) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=not marker.abort,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=OWN_EPOCH_VERSION if marker.has_own_epoch else SHARED_EPOCH_VERSION,
    )
