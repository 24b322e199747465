"""Produce: validates batches, appends them, and answers when `acks` says they are safe.

Owns the checks that come before the log and the wait that comes after it.
Offsets, sequences and order are the log's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from plog._native import batch, partition_log
from plog._native.partition_guards import TxnGuard
from plog.cluster.acks_all import AckWait
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
from plog.network.control_plane import CloseConnection
from plog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
    refusal_text,
)
from plog.storage.log import Log
from plog.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from tests.oracle.produced_batches import (
    LOG_APPEND_TIME,
    RecordsRefused,
    check_header,
    is_compressed,
    is_transactional,
    made_ready,
)
from tests.oracle.transactional_writes import Permission, permission_to_begin
from tests.oracle.waiting import until

T = TypeVar("T")

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
WITHOUT_LOG_START = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Other refusals of a batch that has come as far as the log tell where the log begins."""
LEADER_HINTS_SINCE = 10
ABORTABLE_SINCE = 11
"""From this version on TRANSACTION_ABORTABLE is understood (KIP-890)."""
JOINS_SINCE = 12
"""From this version on a transaction's write has its partition join, and its epoch is its own."""
LARGE_REQUEST_BYTES = 256 * 1024
"""What is larger is checked beside the event loop, and appended in pieces of this size, so that
nobody else waits for it. Order is kept: a connection's next request is handed over after this one's
answer."""
ADMIN_CLIENT = "__admin_client"
"""The client id under which Kafka's own tools may write to the brokers' topics."""
NO_LEADER = -1


class Asked(NamedTuple):
    """One partition of a request. `permission` lets a batch begin a transaction, or refuses it."""

    at: TopicPartition
    records: bytearray | memoryview | None
    permission: Permission | None = None


class Checked(NamedTuple):
    """A batch that may be appended as it is.

    With `log_append_time` its time is stamped then: by the setting under which it was checked, for
    by another one's rules it may be wrong.
    """

    partition: Partition
    records: bytearray | memoryview
    log_append_time: bool
    acks: int
    guard: TxnGuard | None = None


@dataclass(slots=True)
class Appended:
    """One partition of a request: the response so far, and what acks=all waits for.

    `wait` is None once the response is final: the batch is safe, was refused, or is lost. `done` is
    None for a batch that was refused.
    """

    response: PartitionProduceResponse
    wait: AckWait | None = None
    done: partition_log.Appended | None = None

    def refuse(self, refusal: KafkaError) -> None:
        """Respond with an error."""
        self.response = _refused(self.response.index, refusal)
        self.wait = self.done = None

    def is_settled(self) -> bool:
        """Tell whether acks=all can be answered: safe on every in-sync replica, or lost.

        The first such answer is kept, whatever becomes of the partition while others still wait.
        """
        try:
            if self.wait is not None and self.wait.is_safe():
                self.wait = None
        except KafkaError as refusal:
            self.refuse(refusal)
        return self.wait is None


async def produce(ctx: Context, request: ProduceRequest) -> ProduceResponse | None:
    """Append every batch; one partition's error leaves the others alone.

    Record batches v2 came with version 3; versions below carry old message sets. They are
    advertised all the same, because clients take an absent version 0 for a broker without
    compression, and refused by closing the connection, as Kafka 4 does.
    """
    asked = [
        Asked(TopicPartition(topic.name, data.index), data.records)
        for topic in request.topic_data
        for data in topic.partition_data
    ]
    await ctx.until_roles_are_known([one.at for one in asked], request.timeout_ms)
    parts = await append_all(ctx, request.acks, request.transactional_id, asked)
    if request.acks == ACKS_ALL:
        await _wait_until_safe(ctx, parts, request.timeout_ms)
    if request.acks == ACKS_NONE:
        close_on_error(parts)
        return None
    answers = (part.response for part in parts)
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=list(islice(answers, len(topic.partition_data))),
            )
            for topic in request.topic_data
        ],
        node_endpoints=node_endpoints(ctx, parts),
    )


async def append_all(
    ctx: Context, acks: int, transactional_id: str | None, asked: list[Asked]
) -> list[Appended]:
    """Append the batches, each where it keeps nobody waiting: in the order of the request.

    The threads that expand batches never wait for a disk: those of other disks are among them. Who
    waits for a disk that is known to be slow expands in its thread, one at a time, so that batches
    that were made for it do not pile up before it.
    """
    asked = await _with_permission(ctx, transactional_id, asked)
    todo = [(_log_of(ctx.services.replicas.get(one.at)), one) for one in asked]
    is_slow = ctx.services.replicas.disks.is_slow
    any_slow = any(log is not None and is_slow(log.log_dir) for log, _ in todo)
    if any_slow or not _is_large(asked):
        return await _append_in_turn(ctx, todo, partial(_check_and_append, ctx, acks))
    found: list[Appended] = []
    rest = iter(asked)
    while len(found) < len(asked):
        piece = await ctx.in_expander(_check_some, ctx, acks, rest)
        checked = [
            (_log_of(one.partition) if isinstance(one, Checked) else None, one) for one in piece
        ]
        found += await _append_in_turn(ctx, checked, partial(_append, ctx))
    return found


async def _append_in_turn(
    ctx: Context, todo: Iterable[tuple[Log | None, T]], append: Callable[[T], Appended]
) -> list[Appended]:
    return [append(one) if log is None else await ctx.at_log(log, append, one) for log, one in todo]


async def _with_permission(
    ctx: Context, transactional_id: str | None, asked: list[Asked]
) -> list[Asked]:
    """Ask the coordinator about batches that would begin a transaction in their partition."""
    if not any(map(_is_transactional, asked)):
        return asked
    if transactional_id is None:
        # Whoever leaves its name out may write nothing with it: as Kafka, of the whole request.
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
            # Also if the log is there again by the time of the append: nobody was asked.
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
            transactional_id,
            producer,
            partitions,
            way=Way.PRODUCE,
            joins=joins,
            may_abort=ctx.version >= ABORTABLE_SINCE,
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


# -- one partition


def _check_and_append(ctx: Context, acks: int, asked: Asked) -> Appended:
    return _append(ctx, _check(ctx, acks, asked))


def _check_some(ctx: Context, acks: int, rest: Iterator[Asked]) -> list[Checked | Appended]:
    """Check until there is enough to be appended in one go; that much is held in memory."""
    found: list[Checked | Appended] = []
    size = 0
    for one in rest:
        checked = _check(ctx, acks, one)
        found.append(checked)
        if isinstance(checked, Checked):
            size += len(checked.records)
        if size >= LARGE_REQUEST_BYTES:
            break
    return found


def _check(ctx: Context, acks: int, asked: Asked) -> Checked | Appended:
    """Check one partition's batch; what is refused has its answer at once."""
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
        response = PartitionProduceResponse(
            index=asked.at.partition,
            error_code=found.error,
            base_offset=NO_OFFSET,
            log_start_offset=_log_start(partition, found.error),
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
                for at, text in found.record_errors
            ],
            error_message=found.message,
        )
        return Appended(response)
    except KafkaError as refusal:
        return _refuse(ctx, asked.at, refusal, partition)


def _append(ctx: Context, checked: Checked | Appended) -> Appended:
    if isinstance(checked, Appended):
        return checked
    partition, now_ms = checked.partition, ctx.services.clock.now_ms()
    try:
        if checked.log_append_time:
            batch.restamp_append_time(checked.records, now_ms)
        done = partition.append(
            checked.records, acks=checked.acks, now_ms=now_ms, guard=checked.guard
        )
    except KafkaError as refusal:
        return _refuse(ctx, partition.topic_partition, refusal, partition)
    if done.status == partition_log.APPENDED:
        count = done.last_offset - done.base_offset + 1
        partition.traffic.received(count, len(checked.records))
    append_time_ms = NO_TIMESTAMP
    if checked.log_append_time:
        # A duplicate was appended when its first copy was.
        append_time_ms = now_ms if done.timestamp == NO_TIMESTAMP else done.timestamp
    return _appended(partition, done, append_time_ms)


def _appended(partition: Partition, done: partition_log.Appended, append_time_ms: int) -> Appended:
    response = PartitionProduceResponse(
        index=partition.topic_partition.partition,
        error_code=ErrorCode.NONE,
        base_offset=done.base_offset,
        log_append_time_ms=append_time_ms,
        log_start_offset=done.log_start_offset,
    )
    return Appended(response, AckWait(partition, done), done)


def _refuse(
    ctx: Context, at: TopicPartition, refusal: KafkaError, partition: Partition | None
) -> Appended:
    """Refuse a batch; `partition` is given once the batch has come as far as the log."""
    response = _refused(at.partition, refusal)
    response.log_start_offset = _log_start(partition, refusal.code)
    hint = ctx.services.metadata.leader(at)
    if (
        hint is not None
        and refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        and ctx.version >= LEADER_HINTS_SINCE
    ):
        response.current_leader = LeaderIdAndEpoch(
            leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
        )
    return Appended(response)


def _log_start(partition: Partition | None, error: int) -> int:
    log = None if partition is None else partition.hosted_log
    return NO_OFFSET if log is None or error in WITHOUT_LOG_START else log.log_start_offset


# -- the answer


async def _wait_until_safe(ctx: Context, parts: Sequence[Appended], timeout_ms: int) -> None:
    """Wait until every in-sync replica has the records, durably; refuse those that are not safe.

    Each partition is one of the purgatory's keys: the commit thread touches it after a flush, the
    partition itself when its high watermark moves or it goes away.
    """
    waits = [part.wait for part in parts if part.wait is not None]
    for wait in waits:
        wait.start_flush(ctx.services.logs, ctx.services.purgatory)

    def all_settled() -> bool:
        # Each part is asked, also those behind one that still waits.
        return sum(part.is_settled() for part in parts) == len(parts)

    await until(ctx, all_settled, [wait.topic_partition for wait in waits], timeout_ms)
    for part in parts:
        if not part.is_settled() and part.wait is not None:
            part.refuse(part.wait.timed_out())


def _refused(index: int, refusal: KafkaError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=refusal.code, base_offset=NO_OFFSET, error_message=str(refusal)
    )


def close_on_error(parts: Iterable[Appended]) -> None:
    """Tell a client that wants no answer of an error, in the only way there is.

    Raises:
        CloseConnection: there is one.
    """
    for part in parts:
        code = ErrorCode(part.response.error_code)
        if code != ErrorCode.NONE:
            raise CloseConnection(
                f"produce with acks=0 failed: {code.name}: {_text(part.response)}"
            )


def _text(part: PartitionProduceResponse) -> str:
    errors = [(error.batch_index, error.batch_index_error_message) for error in part.record_errors]
    return refusal_text(part.error_code, part.error_message, errors)


def node_endpoints(ctx: Context, parts: Iterable[Appended]) -> list[NodeEndpoint]:
    """Return where the leaders that the responses name are to be reached."""
    named = {part.response.current_leader.leader_id for part in parts} - {NO_LEADER}
    return [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in (ctx.nodes() if named else ())
        if node.id in named
    ]
