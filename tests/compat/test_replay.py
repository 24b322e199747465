"""What real clients say, said again to the fast path and to the handlers: the answers are the same.

A client's traffic with a broker process is recorded by a proxy, and the very frames are then sent,
one at a time, to two fresh brokers in this process, with and without the fast path. Their answers
must be the same bytes; but for Fetch, whose answers depend on the moment, they must also be what
the client was given. What brokers draw or are told by their surroundings differs, and only that is
made alike: ids of topics, clusters and fetch sessions, and the port in
Metadata and FindCoordinator. Producer ids need
nothing: fresh brokers count them from the same start.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from plog._native.batch import read_header
from plog.protocol import codec
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import decode_request_header, decode_response_header
from plog.protocol.messages.fetch import FetchRequest, FetchResponse
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.types import ZERO_UUID, TopicPartition
from tests.compat import traffic
from tests.compat.programs import FRANZ_GO, JAVA, Program, Run
from tests.compat.recorder import Exchange, Recorder
from tests.compat.traffic import Shape, record
from tests.coordinator.conftest import await_coordinator
from tests.handlers.running import Running, decoded, receive
from tests.handlers.wire import WAIT_MS, create_topic, speak, walk_all
from tests.planes import Plane
from tests.servers import BrokerProcess

SHAPE = Shape(partitions=6, rounds=8, records_per_round=2)
DEFAULTS, OTHERWISE = ("one", "two"), ("three", "four")
"""The topics of a client with its defaults, and with other settings."""

TOPICS = (*DEFAULTS, *OTHERWISE)
PARTITIONS = [TopicPartition(topic, index) for topic in TOPICS for index in range(SHAPE.partitions)]
OFFSETS = set(range(SHAPE.rounds * SHAPE.records_per_round))

LEAST_FAST = {ApiKey.PRODUCE: 1.0, ApiKey.FETCH: 1.0}
"""Which share of a client's requests the fast path answers at least, less the handlers' own."""

SESSIONS_SINCE = 7
REPLICA_ID_UNTIL = 14

Client = Callable[[str], None]
"""Writes and reads, given the bootstrap address."""


def program(built: Program, **otherwise: object) -> Client:
    return lambda bootstrap: built.run(
        bootstrap, SHAPE, Run(DEFAULTS, {}), Run(OTHERWISE, otherwise)
    )


def python(client: type, **otherwise: object) -> Client:
    def run(bootstrap: str) -> None:
        traffic.run(client(), bootstrap, DEFAULTS, SHAPE)
        traffic.run(client(**otherwise), bootstrap, OTHERWISE, SHAPE)

    return run


CLIENTS = {
    **{one.name: program(one, compression_type="lz4", linger_ms=0) for one in JAVA},
    "confluent-kafka": python(
        traffic.Confluent, **{"enable.idempotence": True, "compression.type": "lz4"}
    ),
    "kafka-python": python(traffic.KafkaPython, enable_idempotence=False, compression_type="lz4"),
    "aiokafka": python(traffic.AioKafka, enable_idempotence=True, compression_type="lz4"),
    "franz-go": program(FRANZ_GO, compression_type="lz4", enable_idempotence="false"),
}
PARAMS = [pytest.param(client, id=name) for name, client in CLIENTS.items()]


class Identity(NamedTuple):
    """What one broker has for itself, and its answers show."""

    port: int
    cluster_id: str
    topic_ids: dict[str, bytes]

    def without(self, frame: bytes, api_key: int) -> bytes:
        """Return an answer without it."""
        if api_key in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR):
            host = b"127.0.0.1"
            frame = frame.replace(host + struct.pack(">i", self.port), host + b"port")
            frame = frame.replace(self.cluster_id.encode(), b"cluster")
        if api_key in (ApiKey.METADATA, ApiKey.FETCH):
            for topic, topic_id in self.topic_ids.items():
                frame = frame.replace(topic_id, stand_in(topic))
        return frame


def stand_in(topic: str) -> bytes:
    """Return a topic id that tells the topic."""
    return topic.encode().rjust(16, b"-")


def prepare(port: int, advertised: int) -> Identity:
    """Create the topics."""
    wire = speak(port)
    ids = {topic: create_topic(wire, topic, SHAPE.partitions)[1].bytes for topic in TOPICS}
    cluster_id = wire.ask(MetadataRequest(topics=[]), 9).cluster_id
    await_coordinator(wire, "any")  # who asks for one must not depend on the moment
    wire.close()
    return Identity(advertised, cluster_id, ids)


class Recording(NamedTuple):
    identity: Identity
    exchanges: list[Exchange]


@pytest.fixture
def recorded(plane: Plane, tmp_path: Path, request: pytest.FixtureRequest) -> Recording:
    """Have a client write and read through the proxy."""
    client: Client = request.param
    broker = BrokerProcess(tmp_path)
    proxy = Recorder(broker.port)
    try:
        broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker:
            identity = prepare(broker.port, proxy.port)
            client(f"127.0.0.1:{proxy.port}")
        assert "failed with an internal error" not in broker.log, broker.log
    finally:
        proxy.close()
    assert not proxy.failures, proxy.failures
    return Recording(identity, proxy.answered())


def session_of(answer: bytes, api_version: int) -> tuple[int, int]:
    """Return the session id of an answer to Fetch, and where it is: behind throttling and error."""
    _, body = decode_response_header(ApiKey.FETCH, api_version, memoryview(answer))
    at = body + 6
    return struct.unpack_from(">i", answer, at)[0], at


@dataclass
class Twin:
    """A broker to which a recording is replayed, over as many connections as the client had."""

    running: Running
    recorded: Identity
    identity: Identity
    sockets: dict[int, socket.socket] = field(default_factory=dict)
    sessions: dict[int, int] = field(default_factory=dict)
    """What this broker calls the recorded fetch sessions."""

    def ask(self, exchange: Exchange) -> bytes:
        """Send a recorded request; return the answer, without what is this broker's own."""
        sock = self.sockets.get(exchange.connection)
        if sock is None:
            address = ("127.0.0.1", self.running.port)
            sock = self.sockets[exchange.connection] = socket.create_connection(
                address, WAIT_MS / 1000
            )
        request = self._own_words(exchange)
        sock.sendall(struct.pack(">i", len(request)) + request)
        answer = receive(sock)
        header = exchange.header
        if header.api_key == ApiKey.FETCH and header.api_version >= SESSIONS_SINCE:
            told, _ = session_of(exchange.answer, header.api_version)
            own, at = session_of(answer, header.api_version)
            assert (own == 0) is (told == 0)
            assert self.sessions.setdefault(told, own) == own
            answer = answer[:at] + struct.pack(">i", told) + answer[at + 4 :]
        return self.identity.without(answer, header.api_key)

    def _own_words(self, exchange: Exchange) -> bytes:
        """Return a request in which ids are this broker's, and which waits for nothing."""
        header = exchange.header
        request = exchange.request
        if header.api_key == ApiKey.API_VERSIONS:  # which names the cluster (KIP-1242)
            recorded, own = self.recorded.cluster_id.encode(), self.identity.cluster_id.encode()
            assert len(recorded) == len(own)
            return request.replace(recorded, own)
        if header.api_key not in (ApiKey.FETCH, ApiKey.METADATA):
            return request
        for topic, topic_id in self.recorded.topic_ids.items():
            request = request.replace(topic_id, self.identity.topic_ids[topic])
        if header.api_key == ApiKey.METADATA:
            return request
        _, body = decode_request_header(request)
        patched = bytearray(request)
        at = body + (4 if header.api_version <= REPLICA_ID_UNTIL else 0)
        struct.pack_into(">i", patched, at, 0)
        if header.api_version >= SESSIONS_SINCE:
            at += 13  # behind the waiting time, two limits of bytes and the isolation level
            (told,) = struct.unpack_from(">i", patched, at)
            struct.pack_into(">i", patched, at, self.sessions[told] if told else 0)
        return bytes(patched)

    def stop(self) -> None:
        for sock in self.sockets.values():
            sock.close()
        self.running.stop()


@pytest.fixture
def twins(tmp_path: Path, recorded: Recording) -> Iterator[tuple[Twin, Twin]]:
    made = []
    for plane in Plane:
        running = Running(tmp_path / plane.value, plane=plane)
        identity = prepare(running.port, running.port)
        made.append(Twin(running, recorded.identity, identity))
    fast, plain = made
    yield fast, plain
    for twin in made:
        twin.stop()


@pytest.mark.parametrize("recorded", PARAMS, indirect=True)
def test_recorded_traffic_is_answered_alike(
    recorded: Recording, twins: tuple[Twin, Twin], capsys: pytest.CaptureFixture[str]
) -> None:
    fast, plain = twins
    asked: Counter[int] = Counter()
    answered_fast: Counter[int] = Counter()
    handlers_own: Counter[int] = Counter()
    read: dict[TopicPartition, set[int]] = defaultdict(set)
    reasons = Counter(fast.running.callouts)
    for exchange in recorded.exchanges:
        key, version, *_ = exchange.header
        before = fast.running.fast_requests
        answer, expected = fast.ask(exchange), plain.ask(exchange)
        assert answer == expected, exchange
        asked[key] += 1
        answered_fast[key] += fast.running.fast_requests - before
        handlers_own[key] += is_the_handlers_own(exchange)
        if key == ApiKey.FETCH:
            note_records(version, answer, read)
        else:
            assert answer == recorded.identity.without(exchange.answer, key), exchange
    assert plain.running.fast_requests == 0
    # The replay was of all that the client did.
    assert read == dict.fromkeys(PARTITIONS, OFFSETS)
    reasons = Counter(fast.running.callouts) - reasons
    with capsys.disabled():
        shares = [f"{ApiKey(key).name} {answered_fast[key]}/{asked[key]}" for key in sorted(asked)]
        print(f"\n  by the fast path: {', '.join(shares)}; others: {dict(reasons)} ", end="")
    for key, least in LEAST_FAST.items():
        assert answered_fast[key] >= (asked[key] - handlers_own[key]) * least, reasons


def is_the_handlers_own(exchange: Exchange) -> bool:
    """Tell whether the fast path leaves a request to the handlers by design.

    These are the first batch of an idempotent producer in some partition, and the end of a fetch
    session.
    """
    key, version, *_ = exchange.header
    if key not in LEAST_FAST:
        return False
    _, body = decode_request_header(exchange.request)
    frame = memoryview(exchange.request)
    if key == ApiKey.FETCH:
        fetch, _ = codec.decode(FetchRequest, version, frame, body)
        return fetch.session_id != 0 and fetch.session_epoch == -1
    produce, _ = codec.decode(ProduceRequest, version, frame, body)
    batches = [
        read_header(part.records) for topic in produce.topic_data for part in topic.partition_data
    ]
    return any(one.producer_id >= 0 and one.base_sequence == 0 for one in batches)


def note_records(version: int, answer: bytes, read: dict[TopicPartition, set[int]]) -> None:
    """Check the records of an answer, and add their offsets to those that were read."""
    names = {ZERO_UUID.bytes: "", **{stand_in(topic): topic for topic in TOPICS}}
    for topic in decoded(FetchResponse, version, answer).responses:
        for part in topic.partitions:
            at = TopicPartition(names[topic.topic_id.bytes] or topic.topic, part.partition_index)
            assert part.error_code == 0, (at, part)
            for one in walk_all(part.records):
                sent = record(at, one.offset)
                assert (one.key, one.value) == (sent.key, sent.value)
                read[at].add(one.offset)
