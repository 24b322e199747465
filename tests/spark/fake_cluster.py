"""A cluster without sockets, whose every answer can be a fault: for what the range reader does.

Stands in for `plog.client.metadata.Cluster` and for the functions of fetches and offsets.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from plog.client.fetcher import Ask, Fetched, Limits, whole_batches
from plog.client.metadata import PartitionInfo, TopicInfo
from plog.client.offsets import OffsetAndTimestamp
from plog.errors import (
    KafkaError,
    NetworkException,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from plog.spark import range_reader
from plog.spark.bounds import EARLIEST
from plog.spark.offsets import OffsetRange
from plog.types import TopicPartition

TOPIC_ID = uuid.UUID(int=77)


@dataclass
class FakeLog:
    """Batches by rising offsets, perhaps with gaps; `end` is the log end offset."""

    batches: list[tuple[int, int, bytes]]  # first offset, next offset, bytes
    end: int
    start: int = 0
    leader: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = bytearray()
        for _, after, records in self.batches:
            if after > offset:
                if found and len(found) + len(records) > max_bytes:
                    break
                found += records
        return bytes(found)


class FakeConnection:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.asked: deque[list[Ask]] = deque()
        self.open = True


class FakeCluster:
    """`fault(what)` is called before each step and may raise, or change the logs."""

    def __init__(
        self,
        logs: dict[TopicPartition, FakeLog],
        fault: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.logs = logs
        self.fault = fault
        self.topic_id = TOPIC_ID
        self.topics: dict[str, TopicInfo] = {}
        self.connections: dict[int, FakeConnection] = {}
        self.asks: list[int] = []  # partitions of each fetch

    def patch(self, monkeypatch) -> FakeCluster:
        monkeypatch.setattr(range_reader, "send_fetch", self.send_fetch)
        monkeypatch.setattr(range_reader, "receive_fetch", self.receive_fetch)
        monkeypatch.setattr(range_reader, "list_offsets", self.list_offsets)
        return self

    # -- Cluster

    def refresh(self, names: Iterable[str]) -> None:
        self.fault("refresh")
        for name in names:
            infos = {
                partition.partition: PartitionInfo(log.leader, 5, [0], [0], 0)
                for partition, log in self.logs.items()
                if partition.topic == name
            }
            if infos:
                self.topics[name] = TopicInfo(name, self.topic_id, False, infos)

    def topic(self, name: str) -> TopicInfo:
        if name not in self.topics:
            self.refresh([name])
        if name not in self.topics:
            raise UnknownTopicOrPartition(name)
        return self.topics[name]

    def leader(self, partition: TopicPartition) -> PartitionInfo:
        self.fault("leader")
        return self.topic(partition.topic).partitions[partition.partition]

    def forget(self, name: str) -> None:
        self.topics.pop(name, None)

    def connection(self, node_id: int) -> FakeConnection:
        self.fault("connect")
        return self.connections.setdefault(node_id, FakeConnection(node_id))

    def close(self) -> None:
        for connection in self.connections.values():
            connection.open = False
        self.connections.clear()

    # -- fetcher and offsets

    def send_fetch(self, connection: FakeConnection, asks: Iterable[Ask], limits: Limits) -> None:
        assert connection.open
        assert not connection.asked, "two fetches on their way"
        self.fault("send")
        connection.asked.append(list(asks))
        self.asks.append(len(connection.asked[0]))
        self.limits = limits

    def receive_fetch(self, connection: FakeConnection, asked: dict, names: dict) -> list[Fetched]:
        assert connection.open
        self.fault("receive")
        asks = connection.asked.popleft()
        assert {ask.partition: ask.offset for ask in asks} == asked
        assert {ask.topic_id: ask.partition.topic for ask in asks} == names
        return [self.answer(connection, *ask) for ask in asks]

    def answer(
        self,
        connection: FakeConnection,
        partition: TopicPartition,
        offset: int,
        _leader_epoch: int,
        topic_id: uuid.UUID,
    ) -> Fetched:
        empty = memoryview(b"")
        error: KafkaError | None = None
        try:
            self.fault(f"partition {partition.partition}")
        except NetworkException:
            raise
        except KafkaError as fault:
            error = fault
        log = self.logs.get(partition)
        if log is None:
            error = UnknownTopicOrPartition(str(partition))
        elif topic_id != self.topic_id:
            error = UnknownTopicId(str(partition))
        elif not log.start <= offset <= log.end:
            error = OffsetOutOfRange(f"{partition} {offset}")
        elif log.leader != connection.node_id:
            error = NotLeaderOrFollower(str(partition))
        if error is not None or log is None:
            return Fetched(partition, empty, offset, -1, -1, -1, [], error)
        records, after = whole_batches(
            memoryview(log.read(offset, self.limits.partition_max_bytes)), offset
        )
        return Fetched(partition, records, after, log.end, log.end, log.start, log.aborted)

    def list_offsets(self, _cluster, times: dict, *, timeout_ms: int) -> dict:
        assert not any(connection.asked for connection in self.connections.values())
        self.fault("list")
        return {
            partition: OffsetAndTimestamp(
                self.logs[partition].start if time == EARLIEST else self.logs[partition].end, -1, 5
            )
            for partition, time in times.items()
        }


def whole_range(partition: TopicPartition, log: FakeLog) -> OffsetRange:
    return OffsetRange(partition, log.start, log.end, TOPIC_ID)
