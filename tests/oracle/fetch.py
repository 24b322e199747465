"""Fetch: hands out pinned ranges of segment files, waiting for bytes where the client asks for it.

Owns the order and the budget of a request (KIP-74), its checks (KIP-320), the
long poll and where a disk is waited for; sessions are `fetch_sessions`, reading is the log's.
The partition knows its followers and their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from plog._native.partition_log import FileRange
from plog._native.topic_traffic import TopicTraffic
from plog.cluster.partition import Partition
from plog.errors import (
    ErrorCode,
    InconsistentTopicId,
    InvalidFetchSessionEpoch,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnsupportedCompressionType,
)
from plog.handlers.context import Context
from plog.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from plog.storage.log import ColdRead, Log
from plog.types import NO_EPOCH, NO_OFFSET, TopicPartition
from tests.oracle.fetch_followers import Follower
from tests.oracle.fetch_sessions import (
    Fetch,
    FetchedPartition,
    FetchSessions,
    PartitionKey,
    Partitions,
    Told,
)
from tests.oracle.waiting import until

READ_COMMITTED = 1
CONSUMER, DEBUGGING_CONSUMER = -1, -2
"""As replica ids; 0 and above are followers. A debugging consumer reads past the high watermark."""
ZSTD, ZSTD_SINCE = "zstd", 10
TOPIC_IDS_SINCE = 13
INITIAL_EPOCH = 0
"""Of a request that opens a session."""
NOT_READ = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)
"""Errors of partitions whose logs are not looked at; their answers have no aborted transactions."""
REPLICA_STATE_SINCE = 15
LEADER_HINTS_SINCE = 16
NO_LEADER = -1


@dataclass(slots=True)
class Read:
    """What one partition gave."""

    data: PartitionData
    size_bytes: int = 0
    traffic: TopicTraffic | None = None


Reads = dict[PartitionKey, Read]


async def fetch(sessions: FetchSessions, ctx: Context, request: FetchRequest) -> FetchResponse:
    """Read every partition asked for; wait for `min_bytes` at most `max_wait_ms`."""
    try:
        plan = _begin(sessions, ctx, request)
    except KafkaError as refusal:
        return FetchResponse(error_code=refusal.code, responses=[])
    clock = ctx.services.clock
    until_ms = clock.monotonic_ms() + request.max_wait_ms
    watched = _resolved(ctx, plan.partitions)
    known = sessions.known_high_watermarks(plan)
    reading = Reading(ctx, request, plan.partitions, known)
    await until(ctx, reading.look, watched, request.max_wait_ms)
    if reading.cold_dir is not None:
        with ctx.connection.while_open():
            await ctx.services.replicas.disks.in_thread(reading.cold_dir, reading.read_through)
        if not reading.is_enough():
            await until(ctx, reading.look, watched, until_ms - clock.monotonic_ms())
    try:
        return _response(sessions, ctx, plan, reading.reads)
    except InvalidFetchSessionEpoch as overtaken:
        return FetchResponse(error_code=overtaken.code, responses=[])


class Reading:
    """What a request finds each time it looks at its partitions.

    It waits for a disk once at most, beside the event loop (`read_through`); what a later look
    finds has been read then, or has just been written.
    """

    def __init__(
        self,
        ctx: Context,
        request: FetchRequest,
        partitions: Partitions,
        known: dict[PartitionKey, int],
    ) -> None:
        self._ctx = ctx
        self._request = request
        self._partitions = partitions
        self._follower = Follower.of(ctx, request, _replica_id(ctx, request), known)
        self._max_bytes = min(request.max_bytes, ctx.services.settings.broker().fetch_max_bytes)
        # More than the answer may hold would never come.
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self.reads: Reads = {}
        self.cold_dir: Path | None = None
        """A log directory whose disk must be asked, or has been."""

    def look(self) -> bool:
        """Read everything; tell whether there is nothing to wait for but a disk."""
        try:
            self._read(may_wait=self.cold_dir is not None)
        except ColdRead as cold:
            self.cold_dir = cold.log_dir
            return True
        return self.is_enough()

    def is_enough(self) -> bool:
        """Tell whether what was read can be answered at once."""
        if self._follower is not None and self._follower.has_news(
            {key: read.data.high_watermark for key, read in self.reads.items()}
        ):
            return True
        return not self.reads or _must_answer(self.reads, self._min_bytes)

    def read_through(self) -> None:
        """Read everything, however long it takes, and have its pages where they are sent from."""
        self._read(may_wait=True)
        for read in self.reads.values():
            found = read.data.records
            if isinstance(found, FileRange) and not found.is_resident():
                found.read_through()

    def _read(self, *, may_wait: bool) -> None:
        self.reads = _read_all(
            self._ctx,
            self._request,
            self._follower,
            self._partitions,
            self._max_bytes,
            may_wait,
        )


def _begin(sessions: FetchSessions, ctx: Context, request: FetchRequest) -> Fetch:
    return sessions.begin(
        request.session_id,
        request.session_epoch,
        _asked(request),
        _forgotten(request),
        uses_topic_ids=ctx.version >= TOPIC_IDS_SINCE,
        now_ms=ctx.services.clock.monotonic_ms(),
    )


def _asked(request: FetchRequest) -> Partitions:
    asked: Partitions = {}
    for topic in request.topics:
        for part in topic.partitions:
            key = PartitionKey(topic.topic, topic.topic_id, part.partition)
            asked[key] = FetchedPartition(
                fetch_offset=part.fetch_offset,
                max_bytes=part.partition_max_bytes,
                current_leader_epoch=max(part.current_leader_epoch, NO_EPOCH),
                last_fetched_epoch=max(part.last_fetched_epoch, NO_EPOCH),
                log_start_offset=part.log_start_offset,
            )
    return asked


def _forgotten(request: FetchRequest) -> list[PartitionKey]:
    return [
        PartitionKey(gone.topic, gone.topic_id, index)
        for gone in request.forgotten_topics_data
        for index in gone.partitions
    ]


def _resolve(ctx: Context, key: PartitionKey) -> TopicPartition:
    """Return the partition that a key names.

    Raises:
        UnknownTopicId: no topic has the id.
    """
    by_id = ctx.version >= TOPIC_IDS_SINCE
    return TopicPartition(ctx.topic_of_id(key.topic_id) if by_id else key.topic, key.partition)


def _resolved(ctx: Context, keys: Iterable[PartitionKey]) -> list[TopicPartition]:
    """Return what to wait for; an unknown id is answered at once."""
    if ctx.version < TOPIC_IDS_SINCE:
        return [TopicPartition(key.topic, key.partition) for key in keys]
    names = ctx.services.metadata.snapshot.topic_names
    return [
        TopicPartition(names[key.topic_id], key.partition) for key in keys if key.topic_id in names
    ]


def _must_answer(reads: Reads, min_bytes: int) -> bool:
    """Tell whether to answer at once: enough bytes, or something the client must hear now."""
    return sum(read.size_bytes for read in reads.values()) >= min_bytes or any(
        read.data.error_code != ErrorCode.NONE or read.data.diverging_epoch.epoch != NO_EPOCH
        for read in reads.values()
    )


def _read_all(
    ctx: Context,
    request: FetchRequest,
    follower: Follower | None,
    partitions: Partitions,
    max_bytes: int,
    may_wait: bool,
) -> Reads:
    reads: Reads = {}
    first = True
    budget = max(max_bytes, 0)
    for key, wanted in partitions.items():
        # The first bytes of an answer are never refused for their size, or one large
        # batch would stop its consumer for ever (KIP-74).
        try:
            read = _read_partition(ctx, request, follower, key, wanted, budget, first, may_wait)
        except KafkaError as refusal:
            read = Read(_refused(ctx, key, refusal))
        if read.size_bytes > 0:
            first = False
            budget = max(budget - read.size_bytes, 0)
        reads[key] = read
    return reads


def _read_partition(
    ctx: Context,
    request: FetchRequest,
    follower: Follower | None,
    key: PartitionKey,
    wanted: FetchedPartition,
    budget: int,
    first: bool,
    may_wait: bool,
) -> Read:
    topic_partition = _resolve(ctx, key)
    partition = ctx.services.replicas.leader(topic_partition, wanted.current_leader_epoch)
    if ctx.version >= TOPIC_IDS_SINCE and partition.topic_id != key.topic_id:
        raise InconsistentTopicId(
            f"{topic_partition} has topic id {partition.topic_id} on this broker"
        )
    if follower is not None:
        follower.check(partition, wanted)
    elif (replica_id := _replica_id(ctx, request)) > CONSUMER:
        raise _not_a_follower(replica_id, topic_partition, wanted)
    limit = min(max(wanted.max_bytes, 0), budget)
    while True:
        log = partition.log
        try:
            if follower is not None:
                return _read_for_follower(follower, key, partition, wanted, limit, first, may_wait)
            return _read_log(ctx, request, partition, log, wanted, limit, first, may_wait)
        except KafkaStorageError:
            if partition.hosted_log is log:
                raise
            # It has just moved to another directory.


def _read_log(
    ctx: Context,
    request: FetchRequest,
    partition: Partition,
    log: Log,
    wanted: FetchedPartition,
    size_limit: int,
    first: bool,
    may_wait: bool,
) -> Read:
    if ctx.version < ZSTD_SINCE and log.settings.compression_type == ZSTD:
        # As in Kafka, the topic's setting decides alone. Batches that producers compressed go to
        # every client: old versions of the protocol do not mean that a client knows no zstd.
        raise UnsupportedCompressionType(f"zstd topics need Fetch v{ZSTD_SINCE} or newer")
    read_committed = request.isolation_level == READ_COMMITTED
    upper = partition.readable_end(read_committed=read_committed)
    if _replica_id(ctx, request) == DEBUGGING_CONSUMER:
        upper = log.log_end_offset
    diverging = _diverging_epoch(partition, wanted)

    def read() -> FileRange | None:
        if diverging is not None:
            return None
        return log.read(wanted.fetch_offset, size_limit, upper, first, may_wait)

    found, aborted = _read_committed(log, read, wanted, upper) if read_committed else (read(), None)
    data = PartitionData(
        partition_index=partition.topic_partition.partition,
        error_code=ErrorCode.NONE,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        # None for read_uncommitted, an empty list for none: clients tell the two apart.
        aborted_transactions=aborted,
        records=b"" if found is None else found,
    )
    if diverging is not None:
        data.diverging_epoch = diverging
    return Read(data, 0 if found is None else len(found), partition.traffic)


def _read_for_follower(
    follower: Follower,
    key: PartitionKey,
    partition: Partition,
    wanted: FetchedPartition,
    size_limit: int,
    first: bool,
    may_wait: bool,
) -> Read:
    """Read up to the end of the log, if the follower's has not parted from it."""
    log = partition.log
    diverging = _diverging_epoch(partition, wanted)
    found = None
    if diverging is None:
        follower.note(key, partition, wanted)
        found = log.read(wanted.fetch_offset, size_limit, log.log_end_offset, first, may_wait)
    data = PartitionData(
        partition_index=partition.topic_partition.partition,
        error_code=ErrorCode.NONE,
        high_watermark=partition.shown_to_followers,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=None,
        records=b"" if found is None else found,
    )
    if diverging is not None:
        data.diverging_epoch = diverging
    return Read(data, 0 if found is None else len(found))


def _replica_id(ctx: Context, request: FetchRequest) -> int:
    is_new_form = ctx.version >= REPLICA_STATE_SINCE
    return request.replica_state.replica_id if is_new_form else request.replica_id


def _read_committed(
    log: Log, read: Callable[[], FileRange | None], wanted: FetchedPartition, upper: int
) -> tuple[FileRange | None, list[AbortedTransaction]]:
    found, entries = log.transactions.read_committed(read, wanted.fetch_offset, upper)
    aborted = [
        AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for entry in entries
    ]
    return found, aborted


def _not_a_follower(
    replica_id: int, topic_partition: TopicPartition, wanted: FetchedPartition
) -> KafkaError:
    text = f"broker {replica_id} is not a replica of {topic_partition}"
    if wanted.current_leader_epoch == NO_EPOCH:
        return NotLeaderOrFollower(text)
    # It agrees with this leader on the epoch, so it may become one that is only not known yet.
    return UnknownLeaderEpoch(text)


def _diverging_epoch(partition: Partition, wanted: FetchedPartition) -> EpochEndOffset | None:
    """Return where the reader's log and this one part, if they do (KIP-595's form of KIP-320)."""
    if wanted.last_fetched_epoch == NO_EPOCH:
        return None
    log = partition.log
    epoch, end_offset = log.epoch_end_offset(wanted.last_fetched_epoch)
    if epoch == NO_EPOCH:
        raise OffsetOutOfRange(
            f"{partition.topic_partition}: unknown leader epoch {wanted.last_fetched_epoch}"
        )
    if wanted.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRange(
            f"{partition.topic_partition}: offset {wanted.fetch_offset} is below the log's start,"
            f" {log.log_start_offset}"
        )
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _refused(ctx: Context, key: PartitionKey, refusal: KafkaError) -> PartitionData:
    data = PartitionData(
        partition_index=key.partition,
        error_code=refusal.code,
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        aborted_transactions=[] if refusal.code in NOT_READ else None,
        records=None if refusal.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE else b"",
    )
    for at in _resolved(ctx, [key]):
        if refusal.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            hint = ctx.services.metadata.leader(at)
            if hint is not None and ctx.version >= LEADER_HINTS_SINCE:
                data.current_leader = LeaderIdAndEpoch(
                    leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
                )
        if refusal.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Clients that reset want to know where the log begins (v5+).
            known = ctx.services.replicas.get(at)
            if known is not None and (log := known.hosted_log) is not None:
                data.log_start_offset = log.log_start_offset
    return data


def _response(sessions: FetchSessions, ctx: Context, plan: Fetch, reads: Reads) -> FetchResponse:
    facts = {key: _told(read) for key, read in reads.items()}
    told = {key: reads[key] for key in sessions.must_tell(plan, facts)}
    responses: list[FetchableTopicResponse] = []
    for key, read in told.items():
        last = responses[-1] if responses else None
        if last is None or (last.topic, last.topic_id) != (key.topic, key.topic_id):
            last = FetchableTopicResponse(topic=key.topic, topic_id=key.topic_id, partitions=[])
            responses.append(last)
        last.partitions.append(read.data)
        _send(read, plan.partitions[key].fetch_offset)
    return FetchResponse(
        error_code=ErrorCode.NONE,
        session_id=0 if plan.session is None else plan.session.session_id,
        responses=responses,
        node_endpoints=node_endpoints(ctx, told.values()),
    )


def _send(read: Read, fetch_offset: int) -> None:
    """Put the bytes of a range in its place."""
    found = read.data.records
    if isinstance(found, FileRange):
        read.data.records = found.read()
        if read.traffic is not None:
            read.traffic.sent(max(found.next_offset() - fetch_offset, 0), len(found))


def _told(read: Read) -> Told:
    return Told(
        has_error=read.data.error_code != ErrorCode.NONE,
        has_records=read.size_bytes > 0,
        diverges=read.data.diverging_epoch.epoch != NO_EPOCH,
        high_watermark=read.data.high_watermark,
        log_start_offset=read.data.log_start_offset,
    )


def node_endpoints(ctx: Context, reads: Iterable[Read]) -> list[NodeEndpoint]:
    """Return where the leaders that the reads name are to be reached."""
    named = {read.data.current_leader.leader_id for read in reads} - {NO_LEADER}
    return [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in (ctx.nodes() if named else ())
        if node.id in named
    ]
