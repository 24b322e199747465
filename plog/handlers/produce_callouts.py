"""The unusual partitions of a Produce: appends their batches, or refuses them.

Owns the checks that come before the log. Offsets, sequences and order are the log's. The reactor
waits until the batches are safe, and responds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from plog._native import batch, partition_log
from plog._native.partition_guards import TxnGuard
from plog._native.produce_callout import ProduceCallout, Refusal, Written
from plog.cluster.partition import Partition
from plog.cluster.topic_admin import INTERNAL_TOPICS
from plog.coordinator.txn_connections import Way
from plog.coordinator.txn_events import Producer
from plog.errors import (
    ErrorCode,
    InvalidRequiredAcks,
    InvalidTopic,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from plog.handlers.context import Context
from plog.handlers.leader_hints import NO_HINT, endpoints_of, hint_of
from plog.handlers.produced_batches import (
    LOG_APPEND_TIME,
    RecordsRefused,
    check_header,
    is_compressed,
    is_transactional,
    made_ready,
)
from plog.handlers.registry import decides
from plog.handlers.transactional_writes import Permission, permission_to_begin
from plog.network.control_plane import CloseConnection, Decided
from plog.protocol.messages.produce import ProduceRequest, refusal_text
from plog.storage.log import Log
from plog.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition

T = TypeVar("T")
Outcome = Written | Refusal

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
WITHOUT_LOG_START = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Other refusals of a batch that has come as far as the log say where the log begins."""
LEADER_HINTS_SINCE = 10
ABORTABLE_SINCE = 11
"""From this version on TRANSACTION_ABORTABLE is understood (KIP-890)."""
JOINS_SINCE = 12
"""From this version on a transaction's write has its partition join, and its epoch is its own."""
LARGE_REQUEST_BYTES = 256 * 1024
"""Batches above this size are checked beside the event loop, and appended in pieces of this size,
so that no other request waits for them."""
ADMIN_CLIENT = "__admin_client"
"""The client id under which Kafka's own tools may write to the brokers' topics."""


class Asked(NamedTuple):
    """One partition. `permission` lets a batch begin a transaction, or refuses it."""

    at: TopicPartition
    records: bytearray | memoryview | None
    permission: Permission | None = None


class Checked(NamedTuple):
    """A batch that may be appended as it is.

    With `log_append_time` its time is stamped then: the setting is that of the check, because other
    rules hold for the batch under another one.
    """

    partition: Partition
    records: bytearray | memoryview
    log_append_time: bool
    acks: int
    guard: TxnGuard | None = None


@decides(ProduceRequest, versions="3-12", advertised_min=0)
async def decide(ctx: Context, callout: ProduceCallout) -> Decided:
    """Append what may be appended; one partition's error leaves the others alone.

    Record batches v2 came with version 3; versions below carry old message sets. They are
    advertised all the same, because clients take an absent version 0 for a broker without
    compression, and refused by closing the connection, as Kafka 4 does.

    Raises:
        CloseConnection: one is refused, and the client wants no response.
    """
    asked = [Asked(TopicPartition(one.topic, one.partition), one.records) for one in callout.asked]
    await ctx.until_roles_are_known([one.at for one in asked], callout.timeout_ms)
    asked = await _with_permission(ctx, callout, asked)
    outcomes = await append_all(ctx, callout.acks, asked)
    refusals = [one for one in outcomes if isinstance(one, Refusal)]
    if callout.acks == ACKS_NONE and refusals:
        raise CloseConnection(f"produce with acks=0 failed: {_text(refusals[0])}")
    return Decided(outcomes, endpoints_of(ctx, (one.leader_id for one in refusals)))


async def append_all(ctx: Context, acks: int, asked: list[Asked]) -> list[Outcome]:
    """Append the batches in the order of the request, each where no other request waits for it.

    The threads that expand batches never wait for a disk: those of other disks are among them. For
    a disk that is known to be slow its thread expands them, one at a time, so that batches that
    were made for it do not pile up before it.
    """
    replicas = ctx.services.replicas

    def log_of(one: Asked) -> Log | None:
        return _log_of(replicas.get(one.at))

    any_slow = any(
        log is not None and replicas.disks.is_slow(log.log_dir) for log in map(log_of, asked)
    )
    if any_slow or not _is_large(asked):
        return await _append_in_turn(ctx, asked, log_of, partial(_check_and_append, ctx, acks))
    found: list[Outcome] = []
    rest = iter(asked)
    while len(found) < len(asked):
        piece = await ctx.in_expander(_check_some, ctx, acks, rest)
        found += await _append_in_turn(ctx, piece, _log_of_checked, partial(_append, ctx))
    return found


async def _append_in_turn(
    ctx: Context,
    todo: Iterable[T],
    log_of: Callable[[T], Log | None],
    append: Callable[[T], Outcome],
) -> list[Outcome]:
    found: list[Outcome] = []
    for one in todo:
        log = log_of(one)  # only now: it may have moved while the one before was appended
        found.append(append(one) if log is None else await ctx.at_log(log, append, one))
    return found


async def _with_permission(
    ctx: Context, callout: ProduceCallout, asked: list[Asked]
) -> list[Asked]:
    """Ask the coordinator about batches that would begin a transaction in their partition."""
    if not any(map(_is_transactional, asked)):
        return asked
    if callout.transactional_id is None:
        # A request without the id may write nothing of a transaction: as in Kafka, all is refused.
        refusal = TransactionalIdAuthorizationFailed(
            "a transactional batch needs a transactional id"
        )
        return [one._replace(permission=refusal) for one in asked]
    joins = ctx.version >= JOINS_SINCE
    wanted: dict[Producer, dict[TopicPartition, tuple[Log, TxnGuard]]] = {}
    permissions: dict[TopicPartition, Permission] = {}
    for one in filter(_is_transactional, asked):
        assert one.records is not None
        try:
            log = ctx.services.replicas.leader(one.at).log
        except KafkaError as refusal:
            # Also if the log is there again by the time of the append: it was not asked about.
            permissions[one.at] = refusal
            continue
        try:
            header = batch.read_header(one.records)
        except KafkaError:
            continue  # it is refused for that
        guard = await ctx.at_log(log, log.transactions.guard_for, header, from_zero=joins)
        if guard is not None:
            producer = Producer(header.producer_id, header.producer_epoch)
            wanted.setdefault(producer, {})[one.at] = (log, guard)
    for producer, partitions in wanted.items():
        permissions |= await permission_to_begin(
            ctx,
            callout.transactional_id,
            producer,
            partitions,
            way=Way.PRODUCE,
            joins=joins,
            may_abort=ctx.version >= ABORTABLE_SINCE,
            timeout_ms=callout.timeout_ms,
        )
    return [one._replace(permission=permissions.get(one.at)) for one in asked]


def _is_transactional(asked: Asked) -> bool:
    return asked.records is not None and is_transactional(asked.records)


def _is_large(asked: Iterable[Asked]) -> bool:
    """Tell whether validation may take long; how far a batch expands shows only then."""
    found = [one.records for one in asked if one.records is not None]
    return sum(map(len, found)) > LARGE_REQUEST_BYTES or any(map(is_compressed, found))


def _log_of(partition: Partition | None) -> Log | None:
    return None if partition is None else partition.hosted_log


def _log_of_checked(checked: Checked | Refusal) -> Log | None:
    return _log_of(checked.partition) if isinstance(checked, Checked) else None


# -- one partition


def _check_and_append(ctx: Context, acks: int, asked: Asked) -> Outcome:
    return _append(ctx, _check(ctx, acks, asked))


def _check_some(ctx: Context, acks: int, rest: Iterator[Asked]) -> list[Checked | Refusal]:
    """Check until there is enough to be appended in one go; that much is held in memory."""
    found: list[Checked | Refusal] = []
    size = 0
    for one in rest:
        checked = _check(ctx, acks, one)
        found.append(checked)
        if isinstance(checked, Checked):
            size += len(checked.records)
        if size >= LARGE_REQUEST_BYTES:
            break
    return found


def _check(ctx: Context, acks: int, asked: Asked) -> Checked | Refusal:
    """Check one partition's batch."""
    partition: Partition | None = None
    try:
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise InvalidRequiredAcks(f"acks={acks}")
        if asked.at.topic in INTERNAL_TOPICS and ctx.header.client_id != ADMIN_CLIENT:
            raise InvalidTopic(f"{asked.at.topic} is an internal topic")
        leader = ctx.services.replicas.leader(asked.at)
        if isinstance(asked.permission, KafkaError):
            raise asked.permission
        settings = leader.settings
        records, header = check_header(asked.records, settings, ctx.version)
        partition = leader
        records = made_ready(records, header, settings, ctx.services.clock.now_ms())
        return Checked(
            leader,
            records,
            settings.message_timestamp_type == LOG_APPEND_TIME,
            acks,
            asked.permission,
        )
    except RecordsRefused as refused:
        found = refused.found
        return Refusal(
            found.error, found.message, found.record_errors, _log_start(partition, found.error)
        )
    except KafkaError as refusal:
        return _refusal(ctx, asked.at, refusal, partition)


def _append(ctx: Context, checked: Checked | Refusal) -> Outcome:
    if isinstance(checked, Refusal):
        return checked
    partition, now_ms = checked.partition, ctx.services.clock.now_ms()
    try:
        if checked.log_append_time:
            batch.restamp_append_time(checked.records, now_ms)
        done = partition.append(
            checked.records, acks=checked.acks, now_ms=now_ms, guard=checked.guard
        )
    except KafkaError as refusal:
        return _refusal(ctx, partition.topic_partition, refusal, partition)
    if done.status == partition_log.APPENDED:
        count = done.last_offset - done.base_offset + 1
        partition.traffic.received(count, len(checked.records))
    append_time_ms = NO_TIMESTAMP
    if checked.log_append_time:
        # A duplicate was appended when its first copy was.
        append_time_ms = now_ms if done.timestamp == NO_TIMESTAMP else done.timestamp
    return Written(done, append_time_ms)


def _refusal(
    ctx: Context, at: TopicPartition, refusal: KafkaError, partition: Partition | None
) -> Refusal:
    """Refuse a batch; `partition` is given once the batch has come as far as the log."""
    is_elsewhere = refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    hint = hint_of(ctx, at) if is_elsewhere and ctx.version >= LEADER_HINTS_SINCE else NO_HINT
    return Refusal(refusal.code, str(refusal), (), _log_start(partition, refusal.code), *hint)


def _log_start(partition: Partition | None, error: int) -> int:
    log = None if partition is None else partition.hosted_log
    return NO_OFFSET if log is None or error in WITHOUT_LOG_START else log.log_start_offset


def _text(refusal: Refusal) -> str:
    text = refusal_text(refusal.error, refusal.message, refusal.record_errors)
    return f"{ErrorCode(refusal.error).name}: {text}"
