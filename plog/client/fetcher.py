"""Fetch requests and their record sets, and a reader of one partition that fetches ahead.

Owns the Fetch requests of partitions that share a leader. Positions move by
batches here; `record_stream` decodes and counts records.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import NamedTuple

from plog._native import batch
from plog.client.connection import Connection
from plog.errors import CorruptRecord, ErrorCode, KafkaError, NetworkException, error_for
from plog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from plog.types import ZERO_UUID, TopicPartition

CONSUMER_REPLICA = -1
SESSIONLESS = (0, -1)
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FIRST_BY_ID, LAST_BY_ID = 13, 17
"""Versions of Fetch that identify topics by id (KIP-516)."""


NO_NAMES: Mapping[uuid.UUID, str] = {}


class Ask(NamedTuple):
    """The offset from which to read one partition.

    With a topic id, a new topic of the same name is never read; see `send_fetch`.
    """

    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    topic_id: uuid.UUID = ZERO_UUID


class Fetched(NamedTuple):
    """The response about one partition.

    `records` are whole batches, or b"" without new records; the first batch may begin before the
    requested offset. `next_offset` is the offset of the next fetch. `aborted` lists (producer id,
    first offset) of aborted transactions among them (read_committed only). With `error`, the other
    fields have no meaning.
    """

    partition: TopicPartition
    records: memoryview
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    error: KafkaError | None = None


class Limits(NamedTuple):
    """Limits of one fetch: its bytes, and its wait at the broker."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    isolation_level: int = READ_UNCOMMITTED


def send_fetch(connection: Connection, asks: Collection[Ask], limits: Limits) -> None:
    """Send one Fetch, outside any session, for partitions that this broker leads.

    The request names topics by id if the broker supports that and every id is given, otherwise by
    name. By id, the broker refuses a topic that was deleted and created again.
    """
    version = connection.version_for(FetchRequest)
    if all(ask.topic_id != ZERO_UUID for ask in asks):
        by_id = connection.version_for(FetchRequest, at_most=LAST_BY_ID)
        version = by_id if by_id >= FIRST_BY_ID else version
    topics: dict[tuple[str, uuid.UUID], list[FetchPartition]] = {}
    for ask in asks:
        topics.setdefault((ask.partition.topic, ask.topic_id), []).append(
            FetchPartition(
                partition=ask.partition.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.offset,
                partition_max_bytes=limits.partition_max_bytes,
            )
        )
    session_id, session_epoch = SESSIONLESS
    connection.send(
        FetchRequest(
            replica_id=CONSUMER_REPLICA,
            replica_state=ReplicaState(),
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=limits.isolation_level,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[
                FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
                for (topic, topic_id), partitions in topics.items()
            ],
            forgotten_topics_data=[],
        ),
        FetchResponse,
        version=version,
        wait_ms=limits.max_wait_ms,
    )


def receive_fetch(
    connection: Connection,
    asked: Mapping[TopicPartition, int],
    names: Mapping[uuid.UUID, str] = NO_NAMES,
) -> list[Fetched]:
    """Read the response to the oldest Fetch in flight.

    Args:
        asked: the requested offset of each partition.
        names: of the topics that were requested by id.

    Raises:
        KafkaError: the broker refused the request as a whole, or the connection was lost.
    """
    answer = connection.receive(FetchResponse)
    if answer.error_code != ErrorCode.NONE:
        raise error_for(answer.error_code, f"fetch from {connection.peer}")
    fetched = []
    for topic in answer.responses:
        for part in topic.partitions:
            name = names.get(topic.topic_id, topic.topic)
            partition = TopicPartition(name, part.partition_index)
            offset = asked.get(partition)
            if offset is None:
                connection.close()
                raise NetworkException(
                    f"{connection.peer} sent {partition}, which was not requested"
                )
            fetched.append(_fetched(partition, offset, part))
    return fetched


def _fetched(partition: TopicPartition, offset: int, part: PartitionData) -> Fetched:
    error: KafkaError | None = None
    records, next_offset = memoryview(b""), offset
    if part.error_code != ErrorCode.NONE:
        what = error_for(part.error_code)
        error = error_for(part.error_code, f"fetch of {partition} at offset {offset}: {what}")
    else:
        try:
            records, next_offset = whole_batches(memoryview(part.records or b""), offset)
        except CorruptRecord as fault:
            error = CorruptRecord(f"fetch of {partition} at offset {offset}: {fault}")
    return Fetched(
        partition,
        records,
        next_offset,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        [(a.producer_id, a.first_offset) for a in part.aborted_transactions or ()],
        error,
    )


def whole_batches(records: memoryview, offset: int) -> tuple[memoryview, int]:
    """Drop the incomplete batch at the end; return the whole batches and the offset after them.

    The result may be empty: only the first partition with records in a response always has a whole
    batch (KIP-74).

    Raises:
        CorruptRecord: a header makes no sense.
    """
    end, next_offset = batch.whole(records, offset)
    return records[:end], next_offset


class PartitionReader:
    """Reads one partition; the next fetch is in flight while the last is decoded.

    Args:
        connection: to the leader; the reader owns it as long as it exists.
        stop: the reader fetches no record at or after this offset.
    """

    def __init__(self, connection: Connection, start: Ask, stop: int, limits: Limits) -> None:
        self._connection = connection
        self._next = start
        self._stop = stop
        self._limits = limits
        if start.offset < stop:
            send_fetch(connection, [start], limits)

    def read(self) -> Fetched | None:
        """Return the next record set (perhaps empty, after max_wait_ms), or None at the end.

        Raises:
            KafkaError: the broker refused the partition or the request, or the connection was lost.
        """
        if self._next.offset >= self._stop:
            return None
        answer = receive_fetch(self._connection, {self._next.partition: self._next.offset})
        if not answer:
            raise NetworkException(
                f"the Fetch response of {self._connection.peer} lacks {self._next.partition}"
            )
        fetched = answer[0]
        if fetched.error is not None:
            raise fetched.error
        self._next = self._next._replace(offset=fetched.next_offset)
        if self._next.offset < self._stop:
            send_fetch(self._connection, [self._next], self._limits)
        return fetched
