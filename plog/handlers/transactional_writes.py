"""Which writes may begin a transaction in a partition (KIP-890).

Owns the question to the transaction's coordinator, which must know the partition before the first
record of a transaction is there: else it would never end. Clients of version 2 leave it to
their writes to join; those before have joined, and are asked about. What the ordinary next batch of
a transaction is, the log knows by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from plog._native.partition_guards import TxnGuard
from plog.coordinator.txn_connections import Sender, Way
from plog.coordinator.txn_events import Producer
from plog.coordinator.txn_verifier import ASK_AGAIN
from plog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    NotEnoughReplicas,
    error_for,
)
from plog.handlers.context import Context
from plog.storage.log import Log
from plog.types import TopicPartition

Permission = TxnGuard | KafkaError
"""The guard to append a write with, or the error that refuses it."""


async def permission_to_begin(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    asked: Mapping[TopicPartition, tuple[Log, TxnGuard]],
    *,
    way: Way,
    joins: bool,
    may_abort: bool,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, Permission]:
    """Ask the coordinator, and return each partition's guard, approved, or why it is refused.

    Args:
        way: which kind of request it is that asks.
        joins: the partitions are to join the transaction; otherwise they must have done so.
        may_abort: the client knows TRANSACTION_ABORTABLE.
        timeout_ms: of the request.
    """
    try:
        found = await _ask(
            ctx, transactional_id, producer, asked, way=way, joins=joins, timeout_ms=timeout_ms
        )
    except BaseException:
        for log, guard in asked.values():
            log.transactions.refuse(guard)
        raise
    found_for: dict[TopicPartition, Permission] = {}
    for at, (log, guard) in asked.items():
        if isinstance(found, KafkaError):
            refusal: KafkaError | None = found
        elif at not in found:
            refusal = None
        elif may_abort:
            refusal = error_for(ErrorCode.TRANSACTION_ABORTABLE, f"{at} is not in the transaction")
        else:
            refusal = InvalidTxnState(f"{at} is not in the transaction")
        if refusal is None:
            log.transactions.approve(guard)
        else:
            log.transactions.refuse(guard)
        found_for[at] = refusal or guard
    return found_for


async def _ask(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    asked: Mapping[TopicPartition, tuple[Log, TxnGuard]],
    *,
    way: Way,
    joins: bool,
    timeout_ms: int | None,
) -> KafkaError | frozenset[TopicPartition]:
    """Return the partitions that are not in the transaction, or why it has none."""
    if not transactional_id:
        return InvalidRequest("the transactional id is empty")
    if joins:
        refusal = await _join(ctx, transactional_id, producer, asked, timeout_ms)
        return refusal or frozenset()
    late = late_of(ctx, transactional_id, producer, way, asked)
    return late or await _missing(ctx, transactional_id, producer, asked, timeout_ms)


def late_of(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    way: Way,
    asked: Iterable[TopicPartition] = (),
) -> KafkaError | None:
    """Return why a request is refused that is of an earlier transaction of the same epoch, if so.

    Its client has given up the connection that it came by (`txn_connections`).

    Args:
        asked: where it would begin its transaction.
    """
    try:
        sender = Sender(way, ctx.sent_by)
        if ctx.services.transactions.takes(transactional_id, producer, sender, asked):
            return None
    except KafkaError:
        return None  # this coordinator does not know the transaction
    return error_for(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer.id} epoch {producer.epoch} of {transactional_id!r}: request"
        " arrived on a stale connection: it belongs to an earlier transaction",
    )


async def _missing(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    asked: Iterable[TopicPartition],
    timeout_ms: int | None,
) -> KafkaError | frozenset[TopicPartition]:
    try:
        with ctx.connection.aside():
            found = await ctx.services.verifier.verify(
                transactional_id, producer, asked, timeout_ms=timeout_ms
            )
    except KafkaError as refusal:
        found = ErrorCode(refusal.code)
    if not isinstance(found, ErrorCode):
        return found
    return _refusal(found, transactional_id, producer, come_again=ASK_AGAIN)


async def _join(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    asked: Iterable[TopicPartition],
    timeout_ms: int | None,
) -> KafkaError | None:
    try:
        with ctx.connection.aside():
            error = await ctx.services.verifier.join(
                transactional_id, producer, asked, timeout_ms=timeout_ms
            )
    except KafkaError as refusal:
        error = ErrorCode(refusal.code)
    if error is ErrorCode.NONE:
        return None
    # A client that joins by writing knows that one transaction may have to wait for another.
    come_again = ASK_AGAIN - {ErrorCode.CONCURRENT_TRANSACTIONS}
    return _refusal(error, transactional_id, producer, come_again=come_again)


def _refusal(
    error: ErrorCode, transactional_id: str, producer: Producer, *, come_again: Set[ErrorCode]
) -> KafkaError:
    who = f"producer {producer.id} epoch {producer.epoch} of {transactional_id!r}"
    if error in come_again:  # Produce never returned these before KIP-890
        return NotEnoughReplicas(f"{who}: the coordinator returned {error.name}")
    if error is ErrorCode.PRODUCER_FENCED:
        return error_for(ErrorCode.INVALID_PRODUCER_EPOCH, who)
    return error_for(error, who)
