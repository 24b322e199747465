"""Leave for writes that begin a transaction in a partition (KIP-890).

Owns the question to the transaction's coordinator, which must know the partition before the first
record of a transaction is there: else nobody would ever end it. What the ordinary next batch of a
transaction is, the log knows by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from plog.coordinator.txn_events import Producer
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
from plog.storage.verification import Verification
from plog.types import TopicPartition

COME_AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What no producer's write has ever been answered: it is told of something else it may retry."""

Leave = Verification | KafkaError
"""What a write is appended with, or why it is not to be."""


def leave_to_write(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    asked: Mapping[TopicPartition, tuple[Log, Verification]],
    *,
    may_abort: bool,
) -> dict[TopicPartition, Leave]:
    """Return for each partition the ticket that it was asked with, or why it is not approved of.

    Args:
        may_abort: the client knows TRANSACTION_ABORTABLE.
    """
    found = _missing(ctx, transactional_id, producer, asked)
    left: dict[TopicPartition, Leave] = {}
    for at, (log, ticket) in asked.items():
        if isinstance(found, KafkaError):
            refusal: KafkaError | None = found
        elif at not in found:
            refusal = None
        elif may_abort:
            refusal = error_for(ErrorCode.TRANSACTION_ABORTABLE, f"{at} is not in the transaction")
        else:
            refusal = InvalidTxnState(f"{at} is not in the transaction")
        if refusal is None:
            left[at] = ticket
        else:
            log.transactions.drop_verification(ticket)
            left[at] = refusal
    return left


def _missing(
    ctx: Context,
    transactional_id: str,
    producer: Producer,
    asked: Mapping[TopicPartition, tuple[Log, Verification]],
) -> KafkaError | frozenset[TopicPartition]:
    if not transactional_id:
        return InvalidRequest("an empty transactional id")
    try:
        found = ctx.services.transactions.verify(transactional_id, producer, asked)
    except KafkaError as refusal:
        found = ErrorCode(refusal.code)
    if not isinstance(found, ErrorCode):
        return found
    who = f"producer {producer.id} epoch {producer.epoch} of {transactional_id!r}"
    if found in COME_AGAIN:
        return NotEnoughReplicas(f"{who}: the coordinator says {found.name}")
    if found is ErrorCode.PRODUCER_FENCED:
        return error_for(ErrorCode.INVALID_PRODUCER_EPOCH, who)
    return error_for(found, who)
