"""What the handlers' tests say to a broker: one request at a time, at chosen versions."""

from __future__ import annotations

import itertools
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from plog._native import records
from plog._native.records import Record
from plog.client.connection import Connection
from plog.errors import ErrorCode
from plog.protocol import framing
from plog.protocol.messages import fetch as fetching
from plog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from plog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from plog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from plog.protocol.schema import Struct
from plog.types import ZERO_UUID
from tests import several_brokers

if TYPE_CHECKING:
    from tests.routed import Routed

NOW_MS = int(time.time() * 1000)
WAIT_MS = 60_000
UNKNOWN_TOPIC = uuid.UUID(int=12345)
"""The id of no topic."""

names = itertools.count()


def fresh_name() -> str:
    return f"h{next(names)}"


class Speaker(Connection):
    """A connection that finds the response class by itself."""

    def ask(self, request: Struct, version: int | None = None, wait_ms: int = 0) -> Any:
        response = framing.response_class(type(request).api.key)
        assert response is not None
        return self.call(request, response, version=version, wait_ms=wait_ms)


def speak(port: int, *, client_id: str = "test", timeout_ms: int = WAIT_MS) -> Speaker | Routed:
    ports = several_brokers.ports_of(port)
    if len(ports) > 1:
        from tests.routed import Routed  # it imports this module

        return Routed(ports, client_id=client_id, timeout_ms=timeout_ms)
    return Speaker("127.0.0.1", port, client_id=client_id, timeout_ms=timeout_ms)


# -- records


def make_batch(
    values: Sequence[bytes | None] = (b"v",),
    *,
    key: bytes | None = None,
    timestamps: Sequence[int] | None = None,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """Return one batch v2; `producer` is id, epoch and first sequence."""
    times = timestamps if timestamps is not None else [NOW_MS] * len(values)
    producer_id, producer_epoch, base_sequence = producer
    return records.build_batch(
        [(at, key, value, ()) for at, value in zip(times, values, strict=True)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def walk_all(data: Any) -> list[Record]:
    """Return the records of every whole batch."""
    view, found = memoryview(bytes(data or b"")), []
    pos = 0
    while pos + 61 <= len(view):
        size = 12 + struct.unpack_from(">i", view, pos + 8)[0]
        if pos + size > len(view):
            break
        found += records.walk(bytes(view[pos : pos + size]))
        pos += size
    return found


# -- requests


def produce_request(
    parts: Iterable[tuple[str, int, bytes | None]], *, acks: int = -1, timeout_ms: int = WAIT_MS
) -> ProduceRequest:
    """Return a request; neighbours of one topic share its entry."""
    topics: list[TopicProduceData] = []
    for topic, index, data in parts:
        if not topics or topics[-1].name != topic:
            topics.append(TopicProduceData(name=topic, partition_data=[]))
        topics[-1].partition_data.append(PartitionProduceData(index=index, records=data))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def flat(answer: ProduceResponse) -> list[PartitionProduceResponse]:
    return [part for topic in answer.responses for part in topic.partition_responses]


def produce(
    connection: Speaker,
    topic: str,
    data: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = 9,
    timeout_ms: int = WAIT_MS,
) -> PartitionProduceResponse:
    request = produce_request([(topic, partition, data)], acks=acks, timeout_ms=timeout_ms)
    (part,) = flat(connection.ask(request, version))
    return part


def fetch_request(
    *parts: tuple[str | uuid.UUID, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**31 - 1,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    forgotten: Iterable[tuple[str | uuid.UUID, int]] = (),
    isolation_level: int = 0,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    replica_id: int = -1,
) -> fetching.FetchRequest:
    """Return a request for (topic or topic id, partition, offset)s."""
    topics: list[fetching.FetchTopic] = []
    for topic, index, offset in parts:
        name, topic_id = _named(topic)
        if not topics or (topics[-1].topic, topics[-1].topic_id) != (name, topic_id):
            topics.append(fetching.FetchTopic(topic=name, topic_id=topic_id, partitions=[]))
        topics[-1].partitions.append(
            fetching.FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                current_leader_epoch=leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
            )
        )
    return fetching.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=[
            fetching.ForgottenTopic(topic=name, topic_id=topic_id, partitions=[index])
            for topic, index in forgotten
            for name, topic_id in [_named(topic)]
        ],
    )


def _named(topic: str | uuid.UUID) -> tuple[str, uuid.UUID]:
    return (topic, ZERO_UUID) if isinstance(topic, str) else ("", topic)


def fetched(answer: fetching.FetchResponse) -> dict[tuple[Any, int], fetching.PartitionData]:
    """Return partitions by (topic or topic id, index), in the order of the answer."""
    return {
        (topic.topic or topic.topic_id, part.partition_index): part
        for topic in answer.responses
        for part in topic.partitions
    }


def fetch_one(
    connection: Speaker, topic: str | uuid.UUID, offset: int, *, version: int = 12, **options: Any
) -> fetching.PartitionData:
    request = fetch_request((topic, 0, offset), **options)
    (part,) = fetched(connection.ask(request, version)).values()
    return part


def create_topic(
    connection: Speaker, name: str | None = None, partitions: int = 1, **configs: object
) -> tuple[str, uuid.UUID]:
    name = name or fresh_name()
    request = create_topic_request(name, partitions, **configs)
    answer: CreateTopicsResponse = connection.ask(request, 7)
    (result,) = answer.topics
    assert result.error_code == ErrorCode.NONE, result
    return name, result.topic_id


def create_topic_request(name: str, partitions: int = 1, **configs: object) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[
                    CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                    for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=WAIT_MS,
    )


def id_of(connection: Speaker, topic: str) -> uuid.UUID:
    """Return the id of a topic; an id of no topic for one that does not exist."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    answer: MetadataResponse = connection.ask(request, 12)
    (found,) = answer.topics
    return UNKNOWN_TOPIC if found.topic_id == ZERO_UUID else found.topic_id


# -- below requests


def exchange(port: int, frame: bytes, timeout_s: float = WAIT_MS / 1000) -> bytes | None:
    """Send a frame's content on a connection of its own; return the answer's, None if closed.

    The broker has closed the connection too when this returns, and holds none of its memory.
    """
    with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        head = _read(sock, 4)
        if head is None:
            return None
        answer = _read(sock, struct.unpack(">i", head)[0])
        if answer is not None:
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b"", "the broker sent more than one answer"
        return answer


def _read(sock: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            piece = sock.recv(size - len(data))
        except ConnectionResetError:
            return None
        if not piece:
            return None
        data += piece
    return data


def eventually(ready: Callable[[], bool], what: str, timeout_s: float = WAIT_MS / 1000) -> None:
    """Ask again and again; for effects that Kafka too shows only soon after the answer."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, f"not {what} in {timeout_s} s"
        time.sleep(0.01)
