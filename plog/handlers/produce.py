"""Produce: validates batches, appends them, and answers when `acks` says they are safe.

Owns the checks that come before the log and the wait that comes after it.
Offsets, sequences and order are the log's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plog._native import batch, partition_log, validation
from plog._native.batch import BatchHeader
from plog._native.compression import DEFAULT_LEVEL
from plog.cluster.partition import Partition
from plog.cluster.topic_admin import INTERNAL_TOPICS
from plog.errors import (
    CorruptRecord,
    ErrorCode,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    RequestTimedOut,
    UnsupportedCompressionType,
)
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.network.control_plane import CloseConnection
from plog.protocol import record_batch
from plog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
    refusal_text,
)
from plog.settings.definitions import TopicSettings
from plog.types import NO_OFFSET, NO_TIMESTAMP, Buffer, TopicPartition

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
ZSTD_SINCE = 7
AT_MAGIC, OLD_MAGICS = 16, (0, 1)
"""Where a batch says its format, and those of message sets, as before 0.11."""
AT_CODEC, CODEC_MASK = 22, 7
"""The lower byte of a batch's attributes."""
WITHOUT_LOG_START = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Other refusals of a batch that has come as far as the log tell where the log begins."""
LEADER_HINTS_SINCE = 10
LARGE_REQUEST_BYTES = 256 * 1024
"""What is larger is validated beside the event loop, so that nobody else waits for it. Order is
kept: a connection's next request is handed over after this one's answer."""
ADMIN_CLIENT = "__admin_client"
"""The client id under which Kafka's own tools may write to the brokers' topics."""
NO_LEADER = -1
GZIP_DEFAULT_LEVEL = -1
"""In compression.gzip.level: zlib's own default."""


@dataclass(slots=True)
class Appended:
    """One partition of a request: the answer so far, and what acks=all waits for.

    `partition` is None once the answer stands: the batch was refused, or is lost again.
    """

    response: PartitionProduceResponse
    partition: Partition | None = None
    last_offset: int = NO_OFFSET
    must_be_durable: bool = False

    def refuse(self, refusal: KafkaError) -> None:
        """Make an error the answer."""
        self.response = _refused(self.response.index, refusal)
        self.partition = None

    def is_settled(self, flush_errors: Mapping[TopicPartition, OSError]) -> bool:
        """Tell whether acks=all can be answered: safe on every in-sync replica, or lost."""
        if self.partition is None:
            return True
        try:
            self.partition.check_leader()
            log = self.partition.log
        except KafkaError as refusal:
            self.refuse(refusal)
            return True
        safe_end = log.high_watermark
        if self.must_be_durable:
            safe_end = min(safe_end, log.durable_end)
        if safe_end > self.last_offset:
            return True
        error = flush_errors.get(self.partition.topic_partition)
        if error is not None:
            self.refuse(KafkaStorageError(f"the records are not on disk: {error}"))
        return error is not None


@handles(ProduceRequest, versions="3-11", advertised_min=0)
async def produce(ctx: Context, request: ProduceRequest) -> ProduceResponse | None:
    """Append every batch; one partition's error leaves the others alone.

    Record batches v2 came with version 3; versions below carry old message sets. They are
    advertised all the same, because clients take an absent version 0 for a broker without
    compression, and refused by closing the connection, as Kafka 4 does.
    """
    slow = _slow_log_dir(ctx, request)
    if slow is not None:
        topics = await ctx.at_disk(slow, _append_all, ctx, request)
    elif _is_large(request):
        topics = await ctx.in_expander(_append_all, ctx, request)
    else:
        topics = _append_all(ctx, request)
    parts = [part for _, topic_parts in topics for part in topic_parts]
    if request.acks == ACKS_ALL:
        await _wait_until_safe(ctx, parts, request.timeout_ms)
    if request.acks == ACKS_NONE:
        _close_on_error(parts)
        return None
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name, partition_responses=[part.response for part in topic_parts]
            )
            for name, topic_parts in topics
        ],
        node_endpoints=_node_endpoints(ctx, parts),
    )


def _is_large(request: ProduceRequest) -> bool:
    """Tell whether validation may take long; how far a batch expands shows only then."""
    found = [
        asked.records
        for topic in request.topic_data
        for asked in topic.partition_data
        if asked.records is not None
    ]
    return sum(map(len, found)) > LARGE_REQUEST_BYTES or any(map(_is_compressed, found))


def _is_compressed(records: Buffer) -> bool:
    return len(records) > AT_CODEC and records[AT_CODEC] & CODEC_MASK != record_batch.NONE


def _slow_log_dir(ctx: Context, request: ProduceRequest) -> Path | None:
    for topic in request.topic_data:
        for asked in topic.partition_data:
            partition = ctx.services.replicas.get(TopicPartition(topic.name, asked.index))
            if partition is not None and (slow := partition.slow_log_dir) is not None:
                return slow
    return None


def _append_all(ctx: Context, request: ProduceRequest) -> list[tuple[str, list[Appended]]]:
    done = iter(ctx.connection.appended)
    return [
        (
            topic.name,
            [
                _append(ctx, request, topic.name, asked, next(done, None))
                for asked in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]


def _append(
    ctx: Context,
    request: ProduceRequest,
    topic: str,
    asked: PartitionProduceData,
    done: partition_log.Appended | None,
) -> Appended:
    """Append one partition's batch, unless that is `done`: then say what the answer is."""
    topic_partition = TopicPartition(topic, asked.index)
    try:
        if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise InvalidRequiredAcks(f"acks={request.acks}")
        _check_topic(ctx, topic)
        partition = ctx.services.replicas.leader(topic_partition)
        if done is not None:
            return _appended(partition, asked.index, done, NO_TIMESTAMP)
        return _append_batch(ctx, request, partition, asked)
    except KafkaError as refusal:
        response = _refused(asked.index, refusal)
        hint = ctx.services.metadata.leader(topic_partition)
        if (
            hint is not None
            and refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and ctx.version >= LEADER_HINTS_SINCE
        ):
            response.current_leader = LeaderIdAndEpoch(
                leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
            )
        return Appended(response)


def _check_topic(ctx: Context, topic: str) -> None:
    if topic in INTERNAL_TOPICS and ctx.header.client_id != ADMIN_CLIENT:
        raise InvalidTopic(f"{topic} is the brokers' own")


def _append_batch(
    ctx: Context, request: ProduceRequest, partition: Partition, asked: PartitionProduceData
) -> Appended:
    records, header = _check_header(ctx, partition.settings, asked.records)
    try:
        return _append_records(ctx, request, partition, asked.index, records, header)
    except KafkaError as refusal:
        if refusal.code in WITHOUT_LOG_START:
            raise
        response = _refused(asked.index, refusal)
        response.log_start_offset = partition.log.log_start_offset
        return Appended(response)


def _append_records(
    ctx: Context,
    request: ProduceRequest,
    partition: Partition,
    index: int,
    records: bytearray | memoryview,
    header: BatchHeader,
) -> Appended:
    settings = partition.settings
    now_ms = ctx.services.clock.now_ms()
    log_append_time = settings.message_timestamp_type == "LogAppendTime"
    expanded_limit = record_batch.decompressed_limit(settings.max_message_bytes)
    found = validation.validate_produced(
        records,
        now_ms=now_ms,
        before_max_ms=settings.message_timestamp_before_max_ms,
        after_max_ms=settings.message_timestamp_after_max_ms,
        log_append_time=log_append_time,
        key_required="compact" in settings.cleanup_policy,
        decompressed_limit=expanded_limit,
    )
    if found.error != ErrorCode.NONE:
        log_start = (
            NO_OFFSET if found.error in WITHOUT_LOG_START else partition.log.log_start_offset
        )
        return Appended(
            PartitionProduceResponse(
                index=index,
                error_code=found.error,
                base_offset=NO_OFFSET,
                log_start_offset=log_start,
                record_errors=[
                    BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
                    for at, text in found.record_errors
                ],
                error_message=found.message,
            )
        )
    if record_batch.must_recompress(header, settings.compression_type):
        records = _recompressed(records, header, settings, expanded_limit)
    if not log_append_time:
        # Some clients leave a stale maximum in the header; indexes and retention rely on it.
        batch.restamp_max_timestamp(records, found.max_timestamp)
    done = partition.append(records, acks=request.acks, now_ms=now_ms)
    append_time_ms = NO_TIMESTAMP
    if log_append_time:
        # A duplicate was appended when its first copy was.
        append_time_ms = now_ms if done.timestamp == NO_TIMESTAMP else done.timestamp
    return _appended(partition, index, done, append_time_ms)


def _appended(
    partition: Partition, index: int, done: partition_log.Appended, append_time_ms: int
) -> Appended:
    response = PartitionProduceResponse(
        index=index,
        error_code=ErrorCode.NONE,
        base_offset=done.base_offset,
        log_append_time_ms=append_time_ms,
        log_start_offset=done.log_start_offset,
    )
    return Appended(response, partition, done.last_offset, partition.settings.flush_before_ack)


def _check_header(
    ctx: Context, settings: TopicSettings, records: bytearray | memoryview | None
) -> tuple[bytearray | memoryview, BatchHeader]:
    """Check what can be said before any record is looked at: one batch, its size, its codec."""
    if not records:
        raise InvalidRecord("the request holds no batch for this partition")
    try:
        header = batch.read_header(records)
    except CorruptRecord as fault:
        # CORRUPT_MESSAGE, after which clients try again, is for what can only be damage.
        if len(records) < batch.HEADER_BYTES or records[AT_MAGIC] in OLD_MAGICS:
            raise InvalidRecord(str(fault)) from fault
        raise
    if header.size_bytes != len(records):
        raise InvalidRecord(
            f"a batch of {header.size_bytes} bytes in {len(records)}: a request holds one batch per"
            " partition, the whole of it and no more"
        )
    _check_size(len(records), settings)
    if header.codec == record_batch.ZSTD and ctx.version < ZSTD_SINCE:
        raise UnsupportedCompressionType(f"zstd batches need Produce v{ZSTD_SINCE} or newer")
    if header.is_transactional:
        raise InvalidTxnState("the partition is in no transaction of this producer")
    return records, header


def _check_size(size: int, settings: TopicSettings) -> None:
    if size > settings.max_message_bytes:
        raise MessageTooLarge(
            f"batch of {size} bytes, max.message.bytes is {settings.max_message_bytes}"
        )


def _recompressed(
    records: bytearray | memoryview, header: BatchHeader, settings: TopicSettings, limit: int
) -> bytearray:
    codec = record_batch.CODECS[settings.compression_type]
    levels = {
        record_batch.GZIP: settings.compression_gzip_level,
        record_batch.LZ4: settings.compression_lz4_level,
        record_batch.ZSTD: settings.compression_zstd_level,
    }
    level = levels.get(codec, DEFAULT_LEVEL)
    if codec == record_batch.GZIP and level == GZIP_DEFAULT_LEVEL:
        level = DEFAULT_LEVEL
    try:
        rewritten = record_batch.recompress(
            records, header, codec, level=level, decompressed_limit=limit
        )
    except ValueError as fault:
        raise InvalidRecord(f"the batch cannot be recompressed: {fault}") from fault
    _check_size(len(rewritten), settings)
    return rewritten


async def _wait_until_safe(ctx: Context, parts: Sequence[Appended], timeout_ms: int) -> None:
    """Wait until every in-sync replica has the records, durably; note who did not make it.

    Each partition is one of the purgatory's keys: the commit thread touches it after a flush, the
    partition itself when its high watermark moves or it goes away.
    """
    purgatory = ctx.services.purgatory
    waiting = {part.partition.topic_partition: part for part in parts if part.partition is not None}
    flush_errors: dict[TopicPartition, OSError] = {}

    def flushed(at: TopicPartition, error: OSError | None) -> None:  # on the commit thread
        if error is not None:
            flush_errors[at] = error
        purgatory.touch_threadsafe(at)

    for at, part in waiting.items():
        log = part.partition.hosted_log if part.partition is not None else None
        if log is not None and part.must_be_durable:
            ctx.services.logs.commit(log, partial(flushed, at))
    await ctx.until(
        lambda: all(part.is_settled(flush_errors) for part in parts), waiting, timeout_ms
    )
    for part in parts:
        if not part.is_settled(flush_errors):
            part.refuse(RequestTimedOut("the records are not safe on every in-sync replica yet"))


def _refused(index: int, refusal: KafkaError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=refusal.code, base_offset=NO_OFFSET, error_message=str(refusal)
    )


def _close_on_error(parts: Iterable[Appended]) -> None:
    """Tell a client that wants no answer of an error, in the only way there is."""
    for part in parts:
        code = ErrorCode(part.response.error_code)
        if code != ErrorCode.NONE:
            raise CloseConnection(
                f"produce with acks=0 failed: {code.name}: {refusal_text(part.response)}"
            )


def _node_endpoints(ctx: Context, parts: Iterable[Appended]) -> list[NodeEndpoint]:
    named = {part.response.current_leader.leader_id for part in parts} - {NO_LEADER}
    return [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in (ctx.nodes() if named else ())
        if node.id in named
    ]
