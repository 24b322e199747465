"""WriteTxnMarkers, DescribeProducers, DescribeTransactions, ListTransactions (KIP-98, KIP-664):
transactions as other brokers and administrators see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from itertools import groupby
from operator import attrgetter

from plog.cluster.partition import Partition
from plog.cluster.peer_link import broker_of
from plog.coordinator.topic_regex import Pattern
from plog.coordinator.txn import EPOCH_PER_TRANSACTION, Txn
from plog.coordinator.txn_events import Producer, TxnValue
from plog.coordinator.txn_states import BY_LABEL
from plog.errors import ErrorCode, InvalidTopic, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.network.control_plane import CloseConnection
from plog.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from plog.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    TransactionState,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from plog.storage.producer_state import Marker
from plog.types import TopicPartition, is_legal_topic_name

NO_SEQUENCE = -1


# -- WriteTxnMarkers -------------------------------------------------------------------------------


@handles(WriteTxnMarkersRequest, versions="0-2")
async def write_txn_markers(
    ctx: Context, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """End transactions in the logs of their partitions; one's error leaves the others alone."""
    if ctx.connection.listener.is_inter_broker and _is_late(ctx):
        raise CloseConnection("its markers were sent again by a later connection")
    with ctx.connection.aside():
        return WriteTxnMarkersResponse(
            markers=await asyncio.gather(*(_write_marker(ctx, one) for one in request.markers))
        )


def _is_late(ctx: Context) -> bool:
    sender = ctx.header.client_id or ""
    if broker_of(sender) is None:
        return False
    return ctx.services.marker_connections.is_late(sender, ctx.connection.id)


async def _write_marker(ctx: Context, asked: WritableTxnMarker) -> WritableTxnMarkerResult:
    producer = Producer(asked.producer_id, asked.producer_epoch)
    marker = Marker(
        abort=not asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        has_own_epoch=asked.transaction_version >= EPOCH_PER_TRANSACTION,
    )

    async def write(at: TopicPartition) -> ErrorCode:
        try:
            await ctx.services.transactions.write_marker(at, producer, marker)
        except KafkaError as refusal:
            return ErrorCode(refusal.code)
        return ErrorCode.NONE

    return WritableTxnMarkerResult(
        producer_id=asked.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                    for index, error in zip(
                        topic.partition_indexes,
                        await asyncio.gather(
                            *(
                                write(TopicPartition(topic.name, index))
                                for index in topic.partition_indexes
                            )
                        ),
                        strict=True,
                    )
                ],
            )
            for topic in asked.topics
        ],
    )


# -- DescribeProducers -----------------------------------------------------------------------------


@handles(DescribeProducersRequest, versions="0-0")
async def describe_producers(
    ctx: Context, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Tell which producers the replica of each partition here knows.

    A coordinator decides by the answer: it gets the leader's, or none.
    """
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    await _producers_of(ctx, TopicPartition(topic.name, index))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _replica(ctx: Context, at: TopicPartition) -> Partition:
    replicas = ctx.services.replicas
    found = None if broker_of(ctx.header.client_id or "") is not None else replicas.get(at)
    return replicas.leader(at) if found is None else found


async def _producers_of(ctx: Context, at: TopicPartition) -> PartitionResponse:
    try:
        if not is_legal_topic_name(at.topic):
            raise InvalidTopic(f"invalid topic name {at.topic[:300]!r}")
        log = _replica(ctx, at).log
        entries = await ctx.at_log(log, log.native.producers)
    except KafkaError as refusal:
        return PartitionResponse(
            partition_index=at.partition,
            error_code=refusal.code,
            error_message=str(refusal),
            active_producers=[],
        )
    return PartitionResponse(
        partition_index=at.partition,
        error_code=ErrorCode.NONE,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for entry in entries
        ],
    )


# -- DescribeTransactions, ListTransactions --------------------------------------------------------


@handles(DescribeTransactionsRequest, versions="0-0")
def describe_transactions(
    ctx: Context, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe transactional ids by name."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(ctx, one) for one in request.transactional_ids]
    )


def _describe(ctx: Context, transactional_id: str) -> TransactionState:
    txn: Txn | None = None
    try:
        if not transactional_id:
            error = ErrorCode.INVALID_REQUEST
        else:
            txn = ctx.services.transactions.find(transactional_id)
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if txn is None else ErrorCode.NONE
    except KafkaError as refusal:
        error = ErrorCode(refusal.code)
    value = None if txn is None else txn.value
    if txn is None or value is None:
        return TransactionState(
            error_code=error,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    return TransactionState(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state=value.state.label,
        transaction_timeout_ms=value.timeout_ms,
        transaction_start_time_ms=value.started_ms,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=[at.partition for at in some])
            for topic, some in groupby(sorted(txn.partitions), attrgetter("topic"))
        ],
    )


@handles(ListTransactionsRequest, versions="0-2")
async def list_transactions(
    ctx: Context, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the transactional ids that this broker keeps and the request's filters accept."""
    transactions = ctx.services.transactions
    if transactions.shards.is_loading:
        return ListTransactionsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            unknown_state_filters=[],
            transaction_states=[],
        )
    now_ms = ctx.services.clock.now_ms()
    matching: Container[str] | None = None
    if request.transactional_id_pattern:
        ids = [txn.transactional_id for txn in transactions.txns()]
        try:
            with ctx.connection.aside():
                matching = await asyncio.to_thread(_matching, request.transactional_id_pattern, ids)
        except KafkaError as refusal:
            return ListTransactionsResponse(
                error_code=refusal.code, unknown_state_filters=[], transaction_states=[]
            )
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[one for one in request.state_filters if one not in BY_LABEL],
        transaction_states=[
            ListedTransaction(
                transactional_id=txn.transactional_id,
                producer_id=txn.value.producer_id,
                transaction_state=txn.value.state.label,
            )
            for txn in transactions.txns()
            if txn.value is not None
            and _is_wanted(txn.value, request, now_ms)
            and (matching is None or txn.transactional_id in matching)
        ],
    )


def _matching(pattern: str, ids: Sequence[str]) -> frozenset[str]:
    return Pattern(pattern).matching(ids)


def _is_wanted(value: TxnValue, request: ListTransactionsRequest, now_ms: int) -> bool:
    if request.producer_id_filters and value.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and value.state.label not in request.state_filters:
        return False
    return request.duration_filter < 0 or now_ms - value.started_ms >= request.duration_filter
