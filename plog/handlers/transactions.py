"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: the life of a transaction.

The rules are the transactional id's (`coordinator.txn`); here requests become its events, and what
it says an answer in the version that was asked in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.txn import EPOCH_PER_TRANSACTION
from plog.coordinator.txn_events import NO_PRODUCER, Producer, TxnAnswer
from plog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTransactionTimeout,
    KafkaError,
)
from plog.handlers.context import Context
from plog.handlers.group_ids import check_group_id
from plog.handlers.registry import handles
from plog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)
from plog.types import NO_PRODUCER_ID, TopicPartition

FIRST_EPOCH = 0
NO_PRODUCER_EPOCH = -1
FENCED_SINCE: dict[type, int] = {InitProducerIdRequest: 4, AddPartitionsToTxnRequest: 2}
"""From these versions on, and from `FENCED_ELSEWHERE_SINCE`, a fenced producer is told so."""
FENCED_ELSEWHERE_SINCE = 2
MANY_SINCE = 4
"""From this version of AddPartitionsToTxn on brokers ask, for many transactions (KIP-890)."""
EPOCH_RAISED_SINCE = 5
"""From this version of EndTxn on each end gives the producer a new epoch (KIP-890)."""


def _told(ctx: Context, request: type, error: int) -> ErrorCode:
    """Return an error as the client's version knows it."""
    fenced_since = FENCED_SINCE.get(request, FENCED_ELSEWHERE_SINCE)
    if error == ErrorCode.PRODUCER_FENCED and ctx.version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode(error)


def _check_transactional_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")


# -- InitProducerId --------------------------------------------------------------------------------


@handles(InitProducerIdRequest, versions="0-5")
async def init_producer_id(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give an id that nobody has had, or a transactional id's with a higher epoch."""
    try:
        error, producer = await _init(ctx, request)
    except KafkaError as refusal:
        error, producer = ErrorCode(refusal.code), NO_PRODUCER
    return InitProducerIdResponse(
        error_code=_told(ctx, InitProducerIdRequest, error),
        producer_id=producer.id,
        producer_epoch=producer.epoch,
    )


async def _init(ctx: Context, request: InitProducerIdRequest) -> TxnAnswer:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("producer id and producer epoch must be set together")
    if request.transactional_id is None:
        # One that names its id wants to go on after an error it could not resolve (KIP-360). It
        # gets a new id all the same: nobody tracks epochs without a transactional id.
        producer_id = ctx.services.producer_ids.spare()
        if producer_id is None:
            producer_id = await ctx.in_thread(ctx.services.producer_ids.next)
        return TxnAnswer(ErrorCode.NONE, Producer(producer_id, FIRST_EPOCH))
    _check_transactional_id(request.transactional_id)
    longest_ms = ctx.services.settings.broker().transaction_max_timeout_ms
    if not 0 < request.transaction_timeout_ms <= longest_ms:
        raise InvalidTransactionTimeout(
            f"{request.transaction_timeout_ms} is not within 1 .. {longest_ms}"
        )
    was = Producer(request.producer_id, request.producer_epoch)
    with ctx.connection.aside():
        return await ctx.services.transactions.init(
            request.transactional_id,
            request.transaction_timeout_ms,
            None if was == NO_PRODUCER else was,
        )


# -- AddPartitionsToTxn ----------------------------------------------------------------------------

Errors = Mapping[TopicPartition, ErrorCode]


@handles(AddPartitionsToTxnRequest, versions="0-5")
async def add_partitions_to_txn(
    ctx: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Have partitions join transactions, all or none of each; or only look whether they have."""
    if ctx.version < MANY_SINCE:
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        with ctx.connection.aside():
            errors = await _add(ctx, only)
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_results(only.topics, errors)
        )
    found = await ctx.together(partial(_add, ctx), request.transactions)
    return AddPartitionsToTxnResponse(
        error_code=ErrorCode.NONE,
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=_results(one.topics, errors)
            )
            for one, errors in zip(request.transactions, found, strict=True)
        ],
    )


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], errors: Callable[[TopicPartition], ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=errors(TopicPartition(topic.name, index)),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


async def _add(
    ctx: Context, asked: AddPartitionsToTxnTransaction
) -> Callable[[TopicPartition], ErrorCode]:
    """Return what each partition is answered."""
    partitions = [
        TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions
    ]
    producer = Producer(asked.producer_id, asked.producer_epoch)
    try:
        _check_transactional_id(asked.transactional_id)
        unknown = {at for at in partitions if not ctx.services.metadata.contains(at)}
        if unknown:
            return lambda at: (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if at in unknown
                else ErrorCode.OPERATION_NOT_ATTEMPTED
            )
        if asked.verify_only:
            return _verified(ctx, asked.transactional_id, producer, partitions)
        # Brokers ask for producers, who write by connections of their own. A broker's transactions
        # share a response, so one whose markers are late must not delay the others.
        by_broker = ctx.version >= MANY_SINCE
        by = None if by_broker else ctx.sent_by
        error = await ctx.services.transactions.add(
            asked.transactional_id,
            producer,
            partitions,
            client_version=EPOCH_PER_TRANSACTION if by_broker else 0,
            connection=by,
            grants=True,
            awaits_markers=not by_broker,
        )
    except KafkaError as refusal:
        error = ErrorCode(refusal.code)
    error = _told(ctx, AddPartitionsToTxnRequest, error)
    return lambda at: error


def _verified(
    ctx: Context, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
) -> Callable[[TopicPartition], ErrorCode]:
    found = ctx.services.transactions.verify(transactional_id, producer, partitions)
    if isinstance(found, ErrorCode):
        return lambda at: found
    return lambda at: ErrorCode.TRANSACTION_ABORTABLE if at in found else ErrorCode.NONE


# -- AddOffsetsToTxn, EndTxn -----------------------------------------------------------------------


@handles(AddOffsetsToTxnRequest, versions="0-4")
async def add_offsets_to_txn(
    ctx: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Have the partition that keeps a group's offsets join a transaction."""
    try:
        _check_transactional_id(request.transactional_id)
        check_group_id(request.group_id)
        index = ctx.services.groups.shards.index_of(request.group_id)
        with ctx.connection.aside():
            error = await ctx.services.transactions.add(
                request.transactional_id,
                Producer(request.producer_id, request.producer_epoch),
                [TopicPartition(OFFSETS_TOPIC, index)],
                connection=ctx.sent_by,
            )
    except KafkaError as refusal:
        error = ErrorCode(refusal.code)
    return AddOffsetsToTxnResponse(error_code=_told(ctx, AddOffsetsToTxnRequest, error))


@handles(EndTxnRequest, versions="0-5")
async def end_txn(ctx: Context, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort; answered once the outcome stands, before every partition has its marker."""
    answer = TxnAnswer(ErrorCode.NONE)
    raises = ctx.version >= EPOCH_RAISED_SINCE
    try:
        _check_transactional_id(request.transactional_id)
        with ctx.connection.aside():
            answer = await ctx.services.transactions.end(
                request.transactional_id,
                Producer(request.producer_id, request.producer_epoch),
                commit=request.committed,
                connection=ctx.sent_by,
                client_version=EPOCH_PER_TRANSACTION if raises else 0,
            )
    except KafkaError as refusal:
        answer = TxnAnswer(ErrorCode(refusal.code))
    return EndTxnResponse(
        error_code=_told(ctx, EndTxnRequest, answer.error),
        producer_id=answer.producer.id,
        producer_epoch=answer.producer.epoch,
    )
