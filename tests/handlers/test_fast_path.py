"""The fast path and the handlers give the same answers: two brokers, one without a fast path.

Each request goes to both, in the same order, and the frames that come back are compared byte for
byte. Which way a request took is counted.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plog._native import files
from plog._native.files import Fault
from plog.broker import Broker
from plog.errors import ErrorCode
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import FetchRequest, FetchResponse
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.topics import DeleteTopicsRequest
from plog.protocol.schema import Struct
from plog.settings.definitions import BrokerSettings
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    fetch_request,
    flat,
    fresh_name,
    make_batch,
    produce_request,
    speak,
)
from tests.servers import free_port

PRODUCE_VERSIONS = range(3, 12)
FETCH_VERSIONS = range(4, 18)
IDS_SINCE = 13
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Running:
    """A broker in this process, on an event loop of its own."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.port = free_port()
        texts = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(directory),
            "broker.id": "0",
            **{key.replace("_", "."): str(value) for key, value in settings.items()},
        }
        self.broker = Broker(BrokerSettings(texts))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self.broker.start())
        self._ids = itertools.count(1)
        self.wire = speak(self.port)
        self.socket = socket.create_connection(("127.0.0.1", self.port), WAIT_MS / 1000)

    def _call(self, coroutine) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop_broker(self) -> None:
        self._call(self.broker.stop())

    def stop(self) -> None:
        self.wire.close()
        self.socket.close()
        self.stop_broker()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def fast_requests(self) -> int:
        return self.broker.reactor_stats.fast_requests

    @property
    def handed_over(self) -> dict[str, int]:
        return self.broker.reactor_stats.handed_over

    def until_waiting(self, count: int = 1) -> None:
        """Wait until so many requests are parked in the reactor."""
        until = time.monotonic() + WAIT_MS / 1000
        while self.broker.reactor_stats.waiting != count:
            assert time.monotonic() < until, self.broker.reactor_stats
            time.sleep(0.001)

    def send(self, request: Struct, version: int) -> None:
        self.socket.sendall(framed(request, version, next(self._ids)))

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data

    def ask(self, request: Struct, version: int) -> bytes:
        self.send(request, version)
        return self.receive()


def framed(request: Struct, version: int, correlation_id: int) -> bytes:
    key = type(request).api.key
    header = framing.encode_request_header(key, version, correlation_id, "twins")
    body = codec.encode(request, version)
    return struct.pack(">i", len(header) + len(body)) + header + body


def decoded(response: type, version: int, frame: bytes):
    _, pos = framing.decode_response_header(response.api.key, version, memoryview(frame))
    return codec.decode(response, version, memoryview(frame), pos)[0]


def without_times(frame: bytes) -> bytes:
    """Messages name the time at which a timestamp was refused."""
    return re.sub(rb"\b\d{13}\b", b"T" * 13, frame)


class Twins:
    """A broker with the fast path and one without, whose answers must not differ."""

    def __init__(self, directory: Path) -> None:
        self.fast = Running(directory / "fast", num_partitions=3)
        self.plain = Running(directory / "plain", num_partitions=3, fast_path_enable="false")
        self.both = (self.fast, self.plain)
        self.ids_of: dict[Running, dict[str, uuid.UUID]] = {one: {} for one in self.both}

    def create_topic(self, partitions: int = 3, **configs: object) -> str:
        name = fresh_name()
        ids = [create_topic(one.wire, name, partitions, **configs)[1] for one in self.both]
        self.ids = dict(zip(self.both, ids, strict=True))
        for one, topic_id in self.ids.items():
            self.ids_of[one][name] = topic_id
        return name

    def id_of(self, one: Running, topic: str) -> uuid.UUID:
        return self.ids_of[one][topic]

    def ask(self, request: Struct, version: int, *, fast: bool = True) -> bytes:
        """Return the answer of both; `fast` says by which way the first has to give it."""
        before = self.fast.fast_requests
        answer, expected = (one.ask(request, version) for one in self.both)
        assert without_times(answer) == without_times(expected)
        assert (self.fast.fast_requests > before) is fast, self.fast.handed_over
        return answer

    def ask_by_id(
        self, request_of: Callable[[uuid.UUID], Struct], version: int, *, fast: bool = True
    ) -> None:
        """Ask each with the topic id it knows; the answers differ in that alone."""
        before = self.fast.fast_requests
        answer, expected = (
            one.ask(request_of(self.ids[one]), version).replace(self.ids[one].bytes, b"I" * 16)
            for one in self.both
        )
        assert answer == expected
        assert (self.fast.fast_requests > before) is fast, self.fast.handed_over


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    made = Twins(tmp_path_factory.mktemp("twins"))
    yield made
    assert made.plain.fast_requests == 0
    for one in made.both:
        one.stop()


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path / "data")
    yield one
    one.stop()


# -- Produce


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_is_answered_alike_in_every_version(twins: Twins, version: int, acks: int) -> None:
    one, other = twins.create_topic(), twins.create_topic()
    for first in (0, 2, 4):
        request = produce_request(
            [(one, 0, make_batch([b"a", b"b"])), (one, 2, make_batch([b"c"])),
             (other, 1, make_batch([None]))],
            acks=acks,
        )  # fmt: skip
        parts = flat(decoded(ProduceResponse, version, twins.ask(request, version)))
        assert [part.base_offset for part in parts] == [first, first // 2, first // 2]
        assert [part.error_code for part in parts] == [0, 0, 0]


@pytest.mark.parametrize("name", CODECS)
def test_produce_is_answered_alike_in_every_codec(twins: Twins, name: str) -> None:
    topic = twins.create_topic()
    data = make_batch([b"v" * 500] * 40, codec=CODECS[name])
    twins.ask(produce_request([(topic, 0, data)]), 9)
    for offset in (0, 20, 39):
        twins.ask(fetch_request((topic, 0, offset)), 12)


def test_acks_0_has_no_answer_and_is_fast(twins: Twins) -> None:
    topic = twins.create_topic()
    before = twins.fast.fast_requests
    for one in twins.both:
        one.send(produce_request([(topic, 0, make_batch())], acks=0), 9)
    answer = twins.ask(produce_request([(topic, 0, make_batch())], acks=1), 9)
    assert flat(decoded(ProduceResponse, 9, answer))[0].base_offset == 1
    assert twins.fast.fast_requests == before + 2


def test_idempotent_producer_is_fast_once_it_is_known(twins: Twins) -> None:
    topic = twins.create_topic()

    def batch(sequence: int, epoch: int = 0) -> bytes:
        return make_batch([b"x", b"y"], producer=(77, epoch, sequence))

    twins.ask(produce_request([(topic, 0, batch(0))]), 9, fast=False)  # Python admits it
    for sequence in range(2, 14, 2):
        twins.ask(produce_request([(topic, 0, batch(sequence))]), 9)
    answer = twins.ask(produce_request([(topic, 0, batch(4))]), 9)  # a duplicate
    assert flat(decoded(ProduceResponse, 9, answer))[0].base_offset == 4
    answer = twins.ask(produce_request([(topic, 0, batch(40))]), 9, fast=False)  # a gap
    code = flat(decoded(ProduceResponse, 9, answer))[0].error_code
    assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    twins.ask(produce_request([(topic, 0, batch(0, epoch=1))]), 9, fast=False)
    twins.ask(produce_request([(topic, 0, batch(2, epoch=1))]), 9)


DAY_MS = 86_400_000
REFUSED = {
    "nothing": None,
    "empty": b"",
    "junk": b"\x00" * 70,
    "two batches": make_batch() * 2,
    "cut": make_batch()[:-1],
    "flipped": make_batch([b"abc"])[:-3] + b"zzz",
    "old timestamp": make_batch(timestamps=[1]),
    "in the future": make_batch(timestamps=[int(time.time() * 1000) + 30 * DAY_MS]),
    "transactional": make_batch(producer=(5, 0, 0), transactional=True),
    "large": make_batch([b"v" * 2_000_000]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_left_to_the_handler(twins: Twins, what: str) -> None:
    topic = twins.create_topic(
        message_timestamp_before_max_ms=DAY_MS, message_timestamp_after_max_ms=DAY_MS
    )
    for version in (3, 8, 9, 11):
        request = produce_request([(topic, 0, make_batch()), (topic, 1, REFUSED[what])])
        twins.ask(request, version, fast=False)
    answer = twins.ask(fetch_request((topic, 0, 0), (topic, 1, 0)), 12)
    (read,) = decoded(FetchResponse, 12, answer).responses
    # Everything of a request that is handed over was appended once.
    assert [part.high_watermark for part in read.partitions] == [4, 0]


@pytest.mark.parametrize(
    "configs",
    [{"message_timestamp_type": "LogAppendTime"}, {"compression_type": "gzip"}],
)
def test_unusual_topics_are_left_to_the_handlers(twins: Twins, configs: dict[str, str]) -> None:
    topic = twins.create_topic(**configs)
    before = twins.fast.fast_requests
    for one in twins.both:
        part = flat(decoded(ProduceResponse, 9, one.ask(
            produce_request([(topic, 0, make_batch())]), 9)))[0]  # fmt: skip
        assert part.error_code == 0
    assert twins.fast.fast_requests == before


def test_settings_reach_the_fast_path(twins: Twins) -> None:
    topic = twins.create_topic(max_message_bytes=200)
    large = produce_request([(topic, 0, make_batch([b"v" * 300]))])
    answer = twins.ask(large, 9, fast=False)
    code = flat(decoded(ProduceResponse, 9, answer))[0].error_code
    assert code == ErrorCode.MESSAGE_TOO_LARGE
    keyless = twins.create_topic(cleanup_policy="compact")
    twins.ask(produce_request([(keyless, 0, make_batch())]), 9, fast=False)
    twins.ask(produce_request([(keyless, 0, make_batch(key=b"k"))]), 9)


def test_unknown_partitions_and_topics(twins: Twins) -> None:
    topic = twins.create_topic(partitions=1)
    for at in ((topic, 7), ("no-such-topic", 0), (topic, -1)):
        twins.ask(produce_request([(topic, 0, make_batch()), (*at, make_batch())]), 9, fast=False)
        twins.ask(fetch_request((topic, 0, 0), (*at, 0)), 12, fast=False)


# -- Fetch


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_fetch_is_answered_alike_in_every_version(
    twins: Twins, version: int, isolation_level: int
) -> None:
    topic = twins.create_topic()
    for _ in range(3):
        parts = [(topic, 0, make_batch([b"a" * 100, b"b"])), (topic, 2, make_batch([b"c"]))]
        twins.ask(produce_request(parts), 9)

    def asked(named: str | uuid.UUID, **options: int) -> FetchRequest:
        offsets = [(named, 0, 1), (named, 1, 0), (named, 2, 3)]
        return fetch_request(*offsets, isolation_level=isolation_level, **options)

    for options in ({}, {"max_bytes": 200}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
        if version < IDS_SINCE:
            twins.ask(asked(topic, **options), version)
        else:
            twins.ask_by_id(lambda topic_id, o=options: asked(topic_id, **o), version)


def test_neighbours_of_one_topic_are_answered_under_one_name(twins: Twins) -> None:
    one, other = twins.create_topic(), twins.create_topic()
    order = [(one, 2, 0), (one, 0, 0), (other, 1, 0), (one, 1, 0)]
    request = fetch_request(*order)
    request.topics = [
        type(topic)(topic=topic.topic, topic_id=topic.topic_id, partitions=[part])
        for topic in request.topics
        for part in topic.partitions
    ]
    assert len(request.topics) == 4
    answer = decoded(FetchResponse, 12, twins.ask(request, 12))
    assert [topic.topic for topic in answer.responses] == [one, other, one]
    twins.ask(fetch_request((one, 0, 0), (other, 0, 0), (one, 0, 0)), 12, fast=False)


@pytest.mark.parametrize(
    "options",
    [
        {"leader_epoch": 5},
        {"last_fetched_epoch": 3},
        {"replica_id": 1},
        {"replica_id": -2},
        {"session": (7, -1)},
        {"session": (7, 0)},
        {"session": (7, 3)},
    ],
    ids=str,
)
def test_unusual_fetches_are_left_to_the_handler(twins: Twins, options: dict) -> None:
    topic = twins.create_topic()
    before = twins.fast.fast_requests
    answers = [one.ask(fetch_request((topic, 0, 0), **options), 12) for one in twins.both]
    if options.get("session") != (7, 0):  # the id of a new session is drawn
        assert answers[0] == answers[1]
    assert twins.fast.fast_requests == before


@pytest.mark.parametrize("offset", [-1, 1, 10**12])
def test_offset_out_of_range_is_the_handlers_to_tell(twins: Twins, offset: int) -> None:
    topic = twins.create_topic()
    twins.ask(fetch_request((topic, 0, offset)), 12, fast=False)


def test_epoch_that_holds_is_fast(twins: Twins) -> None:
    topic = twins.create_topic()
    twins.ask(produce_request([(topic, 0, make_batch())]), 9)
    twins.ask(fetch_request((topic, 0, 0), leader_epoch=0, last_fetched_epoch=0), 12)


def test_partition_that_is_named_twice_is_answered_once(twins: Twins) -> None:
    one, other = twins.create_topic(), twins.create_topic()
    for order in ([(one, 1), (other, 0), (one, 0), (one, 1)], [(one, 1), (one, 0), (one, 1)]):
        twins.ask(fetch_request(*[(topic, index, 0) for topic, index in order]), 12, fast=False)


# -- fetch sessions

GONE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""What a request hears whose topic is deleted under it: first of no leader, then of no topic."""


class TwinSession:
    """A consumer's session with each of the twins; their ids differ, and nothing else."""

    def __init__(self, twins: Twins, *parts: tuple, version: int = 12, **options: int) -> None:
        self.twins, self.version, self.options = twins, version, options
        self.numbers = dict.fromkeys(twins.both, 0)
        self.epoch = 0
        self.first = self.next(*parts)

    def next(self, *parts: tuple, forgotten: tuple = (), fast: bool = True, **options: int) -> dict:
        before = self.twins.fast.fast_requests
        frames = []
        for one in self.twins.both:

            def named(topic: str, one: Running = one) -> str | uuid.UUID:
                return topic if self.version < IDS_SINCE else self.twins.id_of(one, topic)

            request = fetch_request(
                *((named(topic), index, offset) for topic, index, offset in parts),
                session=(self.numbers[one], self.epoch),
                forgotten=[(named(topic), index) for topic, index in forgotten],
                **{**self.options, **options},
            )
            frame = one.ask(request, self.version)
            answer = decoded(FetchResponse, self.version, frame)
            if self.epoch == 0:
                assert answer.session_id > 0
                self.numbers[one] = answer.session_id
            assert answer.session_id in (0, self.numbers[one])
            frame = frame.replace(struct.pack(">i", self.numbers[one]), b"NNNN")
            for topic_id in self.twins.ids_of[one].values():
                frame = frame.replace(topic_id.bytes, b"I" * 16)
            frames.append(frame)
        assert frames[0] == frames[1]
        assert (self.twins.fast.fast_requests > before) is fast, self.twins.fast.handed_over
        self.epoch += 1
        return {
            (topic.topic, part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }


@pytest.mark.parametrize("version", range(7, 18))
def test_session_is_answered_alike_in_every_version(twins: Twins, version: int) -> None:
    one, other = twins.create_topic(), twins.create_topic()
    parts = [(one, 0, 0), (other, 2, 0), (one, 1, 0), (one, 2, 0)]
    session = TwinSession(twins, *parts, version=version)
    assert len(session.first) == 4 if version < IDS_SINCE else session.first
    assert session.next() == {}
    for index in (1, 2):
        twins.ask(produce_request([(one, index, make_batch([b"a", b"b"]))]), 9)
    assert session.next()
    assert session.next((one, 1, 2))
    assert session.next(forgotten=((one, 2),)) == {}
    twins.ask(produce_request([(other, 2, make_batch([b"c"]))], acks=1), 9)
    assert session.next((one, 2, 1), max_bytes=1)
    assert session.next((one, 2, 2), (other, 2, 1)) == {}


def test_session_goes_on_by_whichever_path_its_requests_take(twins: Twins) -> None:
    topic = twins.create_topic()
    session = TwinSession(twins, *((topic, index, 0) for index in range(3)))
    twins.ask(produce_request([(topic, 1, make_batch())]), 9)
    for epoch in (5, -1, 5, 0):  # an epoch that is not the leader's yet, every other time
        asked = {} if epoch == -1 else {"leader_epoch": epoch}
        told = session.next((topic, 0, 0), fast=epoch <= 0, **asked)
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > 0 else ErrorCode.NONE
        assert {part.error_code for part in told.values()} <= {code, ErrorCode.NONE}
        # It is the session's: a request that says nothing of the partition meets it again.
        session.next(fast=epoch <= 0)


def test_wrong_epoch_of_a_session_is_the_handlers_to_tell(twins: Twins) -> None:
    topic = twins.create_topic()
    session = TwinSession(twins, (topic, 0, 0))
    session.epoch = 7
    session.next(fast=False)
    session.epoch = 1
    assert session.next() == {}


def test_session_ends_when_all_is_forgotten(twins: Twins) -> None:
    topic = twins.create_topic()
    session = TwinSession(twins, (topic, 0, 0))
    assert session.next(forgotten=((topic, 0),)) == {}
    assert session.next(fast=False) == {}  # it is unknown now


def test_topic_that_goes_from_under_a_session_is_told_by_the_handler(twins: Twins) -> None:
    topic, gone = twins.create_topic(), twins.create_topic()
    session = TwinSession(twins, (topic, 0, 0), (gone, 0, 0))
    for one in twins.both:
        one.wire.ask(DeleteTopicsRequest(topic_names=[gone], timeout_ms=WAIT_MS), 3)
    told = session.next(fast=False)
    assert told[gone, 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert session.next(forgotten=((gone, 0),)) == {}


def test_random_sessions_are_answered_alike(twins: Twins) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    topics = [twins.create_topic(segment_bytes=4096) for _ in range(3)]
    every = [(topic, index) for topic in topics for index in range(3)]
    sessions = [
        TwinSession(twins, *((*at, 0) for at in draw.sample(every, 5)), version=version)
        for version in (7, 11, 12)
    ]
    ends = dict.fromkeys(every, 0)
    for _ in range(200):
        for at in draw.sample(every, draw.randrange(3)):
            batch = make_batch([b"v" * draw.randint(0, 300)])
            twins.fast.ask(produce_request([(*at, batch)]), 9)
            twins.plain.ask(produce_request([(*at, batch)]), 9)
            ends[at] += 1
        before = twins.fast.fast_requests
        draw.choice(sessions).next(
            *((*at, draw.randint(0, ends[at])) for at in draw.sample(every, draw.randrange(3))),
            forgotten=tuple(draw.sample(every, draw.randrange(2))),
            fast=True,
            max_bytes=draw.choice([1, 600, 1 << 20]),
            partition_max_bytes=draw.choice([0, 500, 1 << 20]),
        )
        assert twins.fast.fast_requests == before + 1


def test_session_waits_and_is_woken(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    opened = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12))
    for epoch in (1, 2, 3):
        fast.send(fetch_request(session=(opened.session_id, epoch), max_wait_ms=WAIT_MS), 12)
        if epoch > 1:  # what it has been told of and did not take comes at once
            assert records_of(fast.receive()) > 61
            continue
        fast.until_waiting()
        fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
        assert records_of(fast.receive()) > 61


def test_session_that_is_overtaken_while_it_waits_says_so(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    opened = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12))
    fast.send(fetch_request(session=(opened.session_id, 1), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    taken = fast.wire.ask(fetch_request(session=(opened.session_id, 2)), 12)
    assert (taken.error_code, taken.session_id) == (0, opened.session_id)
    fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    overtaken = decoded(FetchResponse, 12, fast.receive())
    assert overtaken.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert overtaken.responses == []


def test_session_waits_on_when_its_topic_becomes_unusual(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    opened = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), session=(0, 0)), 12))
    fast.send(fetch_request(session=(opened.session_id, 1), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
    told = decoded(FetchResponse, 12, fast.receive())
    assert (told.error_code, told.session_id) == (0, opened.session_id)
    assert told.responses[0].partitions[0].error_code in GONE
    # It was counted once: the next request is the session's second.
    again = decoded(FetchResponse, 12, fast.ask(fetch_request(session=(opened.session_id, 2)), 12))
    assert (again.error_code, again.session_id) == (0, opened.session_id)


# -- what would keep others waiting


@pytest.mark.parametrize("name", [name for name in CODECS if name != "none"])
def test_large_compressed_batch_is_looked_at_beside_the_reactor(twins: Twins, name: str) -> None:
    topic = twins.create_topic()
    noise = random.Random(1).randbytes(300_000)
    values = [noise[at : at + 1000] for at in range(0, len(noise), 1000)]
    data = make_batch(values, codec=CODECS[name])
    assert len(data) > 64 * 1024
    for acks in (1, -1):
        twins.ask(produce_request([(topic, 0, make_batch()), (topic, 1, data)], acks=acks), 9)
    twins.ask(fetch_request((topic, 1, 0)), 12)
    broken = data[:70_000] + bytes(100) + data[70_100:]
    twins.ask(produce_request([(topic, 0, make_batch()), (topic, 1, broken)]), 9, fast=False)
    answer = twins.ask(fetch_request((topic, 0, 0), (topic, 1, 0)), 12)
    (read,) = decoded(FetchResponse, 12, answer).responses
    assert [part.high_watermark for part in read.partitions] == [3, 600]


def test_batch_that_expands_to_very_much_is_looked_at_beside_the_reactor(twins: Twins) -> None:
    topic = twins.create_topic()
    large = make_batch([bytes(10_000_000)], codec=CODECS["zstd"])
    assert len(large) < 10_000
    twins.ask(produce_request([(topic, 0, large)]), 9)
    bomb = make_batch([bytes(140_000_000)], codec=CODECS["zstd"])
    twins.ask(produce_request([(topic, 0, bomb)]), 9, fast=False)


@pytest.fixture
def two_disks(tmp_path: Path) -> Iterator[Running]:
    """A broker with two log directories, of which topic "t" has a partition each."""
    one = Running(tmp_path, log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}")
    create_topic(one.wire, "t", 2)
    yield one
    one.stop()


def partitions_by_disk(running: Running) -> tuple[str, int, int]:
    """Return (the first directory, its partition, the other's)."""
    (path,) = running.directory.glob("disk*/t-0")
    return str(path.parent), 0, 1


def make_slow(running: Running, disk: str, index: int) -> None:
    """Have the broker find out that a disk is slow: a write that takes 30 ms."""
    with faults(Fault("pwritev", delay_us=30_000, path_prefix=disk)):
        running.ask(produce_request([("t", index, make_batch())], acks=1), 9)


def test_slow_disk_keeps_nobody_from_another(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    before = two_disks.fast_requests
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)):
        two_disks.send(produce_request([("t", slow, make_batch())], acks=1), 9)
        two_disks.until_waiting()
        for _ in range(20):
            two_disks.wire.ask(produce_request([("t", quick, make_batch())]), 9)
        assert two_disks.broker.reactor_stats.waiting == 1
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.receive()))
    assert (part.error_code, part.base_offset) == (0, 1)
    assert two_disks.fast_requests == before + 21
    # Once it is fast again, so is its way.
    for offset in range(2, 80):
        frame = two_disks.ask(produce_request([("t", slow, make_batch())], acks=-1), 9)
        (part,) = flat(decoded(ProduceResponse, 9, frame))
        assert (part.error_code, part.base_offset) == (0, offset)
    assert two_disks.fast_requests == before + 99


def test_slow_disk_does_not_keep_the_handlers_either(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)):
        # Producers that are new: the handlers' business.
        new = [make_batch(producer=(producer_id, 0, 0)) for producer_id in (71, 72)]
        two_disks.send(produce_request([("t", slow, new[0])], acks=1), 9)
        until = time.monotonic() + WAIT_MS / 1000
        while two_disks.handed_over["unusual append"] == 0:
            assert time.monotonic() < until
            time.sleep(0.001)
        two_disks.wire.ask(produce_request([("t", quick, new[1])], acks=1), 9)
        two_disks.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            two_disks.socket.recv(1)
        two_disks.socket.settimeout(WAIT_MS / 1000)
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.receive()))
    assert (part.error_code, part.base_offset) == (0, 1)


def test_cold_read_keeps_nobody_waiting(two_disks: Running) -> None:
    disk, cold, hot = partitions_by_disk(two_disks)
    data = make_batch([b"v" * 100_000])
    for index in (cold, hot):
        for _ in range(60):  # more than what is taken to be in the page cache
            two_disks.ask(produce_request([("t", index, data)], acks=1), 9)
    with faults(
        Fault("is_resident", errno=errno.EAGAIN, path_prefix=disk),
        Fault("pread", delay_us=1_500_000, path_prefix=disk, times=1),
    ):
        two_disks.send(fetch_request(("t", cold, 3), partition_max_bytes=1), 12)
        two_disks.until_waiting()
        for offset in range(20):
            two_disks.wire.ask(fetch_request(("t", hot, offset), partition_max_bytes=1), 12)
        assert two_disks.broker.reactor_stats.waiting == 1
        frame = two_disks.receive()
    assert records_of(frame) == len(data)
    assert two_disks.handed_over["unusual read"] == 0


def test_client_that_goes_while_its_disk_is_slow_harms_nobody(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with faults(Fault("pwritev", delay_us=100_000, path_prefix=disk)):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", two_disks.port)) as gone:
                gone.sendall(framed(produce_request([("t", slow, make_batch())]), 9, 1))
                two_disks.until_waiting()
            two_disks.until_waiting(0)
            two_disks.ask(produce_request([("t", quick, make_batch())]), 9)
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.ask(
            produce_request([("t", slow, make_batch())]), 9)))  # fmt: skip
    # What had come whole was appended, each once.
    assert (part.error_code, part.base_offset) == (0, 6)


def test_stopping_waits_for_what_a_slow_disk_is_writing(two_disks: Running) -> None:
    disk, slow, _ = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with faults(Fault("pwritev", delay_us=200_000, path_prefix=disk)):
        two_disks.send(produce_request([("t", slow, make_batch())]), 9)
        two_disks.until_waiting()
        stopping = threading.Thread(target=two_disks.stop_broker)
        stopping.start()
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.receive()))
        assert (part.error_code, part.base_offset) == (0, 1)
        stopping.join()


# -- random traffic


def test_random_traffic_is_answered_alike(twins: Twins) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    topics = [twins.create_topic(segment_bytes=4096) for _ in range(3)]
    before = twins.fast.fast_requests
    for _ in range(400):
        parts = [
            (topic, index)
            for topic in draw.sample(topics, draw.randint(1, 3))
            for index in draw.sample(range(3), draw.randint(1, 3))
        ]
        if draw.random() < 0.6:
            request: Struct = produce_request(
                [
                    (topic, index, make_batch([b"v" * draw.randint(0, 300)] * draw.randint(1, 5),
                                              codec=draw.choice(list(CODECS.values()))))
                    for topic, index in parts
                ],
                acks=draw.choice([1, -1]),
            )  # fmt: skip
            version = draw.choice(PRODUCE_VERSIONS)
        else:
            request = fetch_request(
                *[(topic, index, draw.randint(0, 40)) for topic, index in parts],
                max_bytes=draw.choice([0, 1000, 1 << 20]),
                partition_max_bytes=draw.choice([0, 500, 1 << 20]),
                isolation_level=draw.randint(0, 1),
            )
            version = draw.choice(range(4, IDS_SINCE))
        answer, expected = (one.ask(request, version) for one in twins.both)
        assert answer == expected, (seed, request, version)
    assert twins.fast.fast_requests - before > 200, twins.fast.handed_over


# -- waiting


def test_roll_in_the_middle_of_a_request_appends_each_batch_once(twins: Twins) -> None:
    topic = twins.create_topic(segment_bytes=2048)
    for first in range(0, 60, 2):
        sizes = (200, 300, 400)  # so that the segments roll at different requests
        parts = [(topic, n, make_batch([b"v" * size] * 2)) for n, size in enumerate(sizes)]
        request = produce_request(parts, acks=(-1, 1)[first % 4 // 2])
        answer, expected = (one.ask(request, 9) for one in twins.both)
        assert answer == expected
        offsets = [part.base_offset for part in flat(decoded(ProduceResponse, 9, answer))]
        assert offsets == [first] * 3
    assert twins.fast.handed_over["unusual append"] > 0


@pytest.mark.parametrize("by_handler", [False, True])
@pytest.mark.parametrize("acks", [1, -1])
def test_fetch_waits_for_bytes_and_is_woken_by_either_path(
    fast: Running, acks: int, by_handler: bool
) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    before = fast.fast_requests
    # A producer that is new is the handler's.
    producer = (1000, 0, 0) if by_handler else (-1, -1, -1)
    request = produce_request([(topic, 0, make_batch(producer=producer))], acks=acks)
    fast.wire.ask(request, 9)
    assert fast.fast_requests - before == (not by_handler)
    assert records_of(fast.receive()) > 61
    assert time.monotonic() - begun < WAIT_MS / 2000


def records_of(frame: bytes) -> int:
    """Return how many bytes of records an answer to a Fetch of one partition holds."""
    return len(decoded(FetchResponse, 12, frame).responses[0].partitions[0].records)


def end_of(running: Running, topic: str) -> int:
    answer = decoded(FetchResponse, 12, running.ask(fetch_request((topic, 0, 0)), 12))
    return answer.responses[0].partitions[0].high_watermark


def test_handler_that_waits_is_woken_by_the_fast_path(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    # A debugging consumer: the handlers' business.
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS, replica_id=-2), 12)
    time.sleep(0.1)
    before = fast.fast_requests
    fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    assert fast.fast_requests == before + 1
    assert records_of(fast.receive()) > 61
    assert time.monotonic() - begun < WAIT_MS / 2000


def test_fetch_that_waits_in_vain_is_answered_at_its_time(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    answer = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), max_wait_ms=300), 12))
    assert 0.29 <= time.monotonic() - begun < WAIT_MS / 2000
    assert answer.responses[0].partitions[0].error_code == 0


def test_fetch_that_waits_is_told_of_what_its_topic_comes_to(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    begun = time.monotonic()
    fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
    answer = decoded(FetchResponse, 12, fast.receive())
    assert time.monotonic() - begun < WAIT_MS / 2000
    assert answer.responses[0].partitions[0].error_code in GONE


def test_requests_in_one_go_are_answered_in_order(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    requests = []
    for n in range(200):
        acks = (1, -1)[n % 2]
        requests.append(framed(produce_request([(topic, 0, make_batch())], acks=acks), 9, 5000 + n))
    fast.socket.sendall(b"".join(requests))
    for n in range(200):
        frame = fast.receive()
        assert struct.unpack_from(">i", frame)[0] == 5000 + n
        assert flat(decoded(ProduceResponse, 9, frame))[0].base_offset == n


def test_large_answers_in_one_go_all_come(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    fast.ask(produce_request([(topic, 0, make_batch([b"v" * 300_000]))], acks=1), 9)
    count = 40
    fast.socket.sendall(
        b"".join(framed(fetch_request((topic, 0, 0)), 12, 100 + n) for n in range(count))
    )
    for n in range(count):
        frame = fast.receive()
        assert struct.unpack_from(">i", frame)[0] == 100 + n
        assert records_of(frame) > 300_000


def test_client_that_goes_while_its_request_waits_harms_nobody(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", fast.port)) as gone:
            gone.sendall(
                framed(fetch_request((topic, 0, end_of(fast, topic)), max_wait_ms=5000), 12, 1)
            )
            fast.until_waiting()
        fast.ask(produce_request([(topic, 0, make_batch())]), 9)
    fast.until_waiting(0)
    assert end_of(fast, topic) == 50


# -- disks


@contextmanager
def faults(*injected: Fault) -> Iterator[None]:
    files.inject(list(injected))
    try:
        yield
    finally:
        files.inject([])


def test_flush_that_takes_longer_than_the_timeout_is_told(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=400_000)):
        request = produce_request([(topic, 0, make_batch())], timeout_ms=50)
        begun = time.monotonic()
        (part,) = flat(decoded(ProduceResponse, 9, fast.ask(request, 9)))
        assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert part.error_message == "the records are not safe on every in-sync replica yet"
        assert time.monotonic() - begun < 0.4
    # The batch is there all the same, and the connection goes on.
    (part,) = flat(
        decoded(ProduceResponse, 9, fast.ask(produce_request([(topic, 0, make_batch())]), 9))
    )
    assert (part.error_code, part.base_offset) == (0, 1)


def test_flush_that_fails_is_told_to_all_who_wait(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", errno=errno.EIO)):
        request = produce_request([(topic, 0, make_batch())])
        (part,) = flat(decoded(ProduceResponse, 9, fast.ask(request, 9)))
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (part,) = flat(decoded(ProduceResponse, 9, fast.ask(request, 9)))
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_write_that_fails_is_told_as_the_handler_tells_it(tmp_path: Path, error: int) -> None:
    answers = []
    for name in ("true", "false"):
        one = Running(tmp_path / name, fast_path_enable=name)
        create_topic(one.wire, "t")
        one.ask(produce_request([("t", 0, make_batch())]), 9)
        with faults(Fault("pwritev", errno=error, path_prefix=str(tmp_path / name / "t-0"))):
            frame = one.ask(produce_request([("t", 0, make_batch())]), 9)
        (part,) = flat(decoded(ProduceResponse, 9, frame))
        answers.append((part.error_code, part.base_offset, part.record_errors))
        again = one.ask(produce_request([("t", 0, make_batch())]), 9)
        answers.append(flat(decoded(ProduceResponse, 9, again))[0].error_code)
        one.stop()
    assert answers[0] == (ErrorCode.KAFKA_STORAGE_ERROR, -1, [])
    assert answers[:2] == answers[2:]


def ask_in_one_go(running: Running, *requests: tuple[Struct, int]) -> list[bytes]:
    """Send all at once; return the answers, which have to come in the same order."""
    first = 7000
    running.socket.sendall(
        b"".join(
            framed(request, version, first + n) for n, (request, version) in enumerate(requests)
        )
    )
    frames = []
    for n, (request, _) in enumerate(requests):
        if getattr(request, "acks", 1) != 0:
            frames.append(running.receive())
            assert struct.unpack_from(">i", frames[-1])[0] == first + n
    return frames


def test_produces_of_one_client_share_a_flush(fast: Running) -> None:
    topic, _ = create_topic(fast.wire, partitions=3)
    requests = [(produce_request([(topic, n % 3, make_batch())]), 9) for n in range(30)]
    with faults(Fault("fdatasync", delay_us=300_000)):
        begun = time.monotonic()
        frames = ask_in_one_go(fast, *requests)
        # One flush of each partition after another, twice at most: not thirty.
        assert time.monotonic() - begun < 5
    found = [flat(decoded(ProduceResponse, 9, frame))[0] for frame in frames]
    assert [(part.error_code, part.base_offset) for part in found] == [
        (0, n // 3) for n in range(30)
    ]
    fast.until_waiting(0)


def test_answers_keep_their_order_whatever_follows_a_produce_that_waits(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)

    def sent(acks: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> tuple[Struct, int]:
        return produce_request([(topic, 0, make_batch(producer=producer))], acks=acks), 9

    requests = [
        sent(-1),
        sent(1),
        sent(0),
        sent(-1),
        (fetch_request((topic, 0, 0)), 12),
        sent(-1),
        sent(-1, (900, 0, 0)),  # a new producer: Python's
        sent(-1, (900, 0, 1)),
        (MetadataRequest(topics=None), 9),
        sent(1),
        (produce_request([(topic, 7, make_batch())]), 9),  # no such partition: Python's
        sent(-1),
    ]
    with faults(Fault("fdatasync", delay_us=30_000)):
        frames = ask_in_one_go(fast, *requests)
    answers = dict(zip([n for n in range(12) if n != 2], frames, strict=True))
    offsets = {}
    for n in (0, 1, 3, 5, 6, 7, 9, 10, 11):
        (part,) = flat(decoded(ProduceResponse, 9, answers[n]))
        assert part.error_code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if n == 10 else 0)
        offsets[n] = part.base_offset
    assert offsets == {0: 0, 1: 1, 3: 3, 5: 4, 6: 5, 7: 6, 9: 7, 10: -1, 11: 8}
    assert records_of(answers[4]) == 4 * len(make_batch())


def test_roll_behind_a_produce_that_waits_appends_each_batch_once(fast: Running) -> None:
    topic, _ = create_topic(fast.wire, partitions=2, segment_bytes=1500)
    batches = [make_batch([b"v" * 400]), make_batch([b"v" * 300])]
    requests = [
        (produce_request([(topic, 0, batches[0]), (topic, 1, batches[1])]), 9) for _ in range(20)
    ]
    with faults(Fault("fdatasync", delay_us=20_000)):
        frames = ask_in_one_go(fast, *requests)
    for n, frame in enumerate(frames):
        parts = flat(decoded(ProduceResponse, 9, frame))
        assert [(part.error_code, part.base_offset) for part in parts] == [(0, n), (0, n)]
    assert fast.handed_over["unusual append"] > 0


def test_each_produce_that_waits_has_a_time_of_its_own(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=1_000_000, times=1)):
        short = (produce_request([(topic, 0, make_batch())], timeout_ms=100), 9)
        patient = (produce_request([(topic, 0, make_batch())], timeout_ms=WAIT_MS), 9)
        frames = ask_in_one_go(fast, short, patient, short)
    codes = [flat(decoded(ProduceResponse, 9, frame))[0].error_code for frame in frames]
    # The third is over in time, too, but answered behind the second, and safe by then.
    assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.NONE]


def test_memory_of_what_waits_is_counted_and_comes_back(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    before = fast.broker.reactor_stats.queued_bytes
    with faults(Fault("fdatasync", delay_us=200_000)):
        for _ in range(20):
            fast.send(produce_request([(topic, 0, make_batch())]), 9)
        fast.until_waiting(20)
        waiting = fast.broker.reactor_stats.queued_bytes
        assert 20 * 200 < waiting - before < 20 * 4096
        for _ in range(20):
            fast.receive()
    fast.until_waiting(0)
    fast.send(fetch_request((topic, 0, 20), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    assert fast.broker.reactor_stats.queued_bytes > before
    fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    assert records_of(fast.receive()) > 61
    fast.until_waiting(0)
    assert fast.broker.reactor_stats.queued_bytes == before


def test_client_that_goes_while_its_produces_wait_harms_nobody(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=50_000)):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", fast.port)) as gone:
                request = framed(produce_request([(topic, 0, make_batch())]), 9, 1)
                gone.sendall(request * 10)
                fast.until_waiting(10)
            fast.until_waiting(0)
    assert end_of(fast, topic) == 50


def test_topic_that_is_deleted_under_a_produce_that_waits(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=1_000_000, path_prefix=f"{fast.directory}/{topic}-0")):
        fast.send(produce_request([(topic, 0, make_batch())]), 9)
        fast.until_waiting()
        fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
        (part,) = flat(decoded(ProduceResponse, 9, fast.receive()))
    # By then the flush may be done, too.
    assert part.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_stopping_answers_what_waits_for_the_disk(tmp_path: Path) -> None:
    one = Running(tmp_path / "data")
    topic, _ = create_topic(one.wire)
    with faults(Fault("fdatasync", delay_us=200_000)):
        one.send(produce_request([(topic, 0, make_batch())]), 9)
        one.until_waiting()
        stopping = threading.Thread(target=one.stop_broker)
        stopping.start()
        (part,) = flat(decoded(ProduceResponse, 9, one.receive()))
        assert part.error_code == 0
        stopping.join()
    one.stop()


# -- moves to another log directory


@pytest.mark.parametrize("replica_id", [-1, -2], ids=["fast", "handler"])
def test_log_that_moves_between_the_look_and_the_read_is_read_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replica_id: int
) -> None:
    managers: list[LogManager] = []
    start = LogManager.start
    monkeypatch.setattr(LogManager, "start", lambda self: managers.append(self) or start(self))
    one = Running(tmp_path, log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}")
    at = TopicPartition("t", 0)
    create_topic(one.wire, at.topic)
    one.ask(produce_request([("t", 0, make_batch())]), 9)
    read = Log.read
    moved: list[Path] = []

    def read_late(log: Log, *args: object) -> object:
        if not moved:
            moved.extend({tmp_path / "disk0", tmp_path / "disk1"} - {log.log_dir})
            mover = threading.Thread(target=managers[0].move, args=(at, moved[0]))
            mover.start()
            mover.join()
        return read(log, *args)

    monkeypatch.setattr(Log, "read", read_late)
    answer = decoded(
        FetchResponse, 12, one.ask(fetch_request(("t", 0, 0), replica_id=replica_id), 12)
    )
    (part,) = answer.responses[0].partitions
    assert (part.error_code, part.high_watermark) == (0, 1)
    assert len(part.records) > 61
    assert len(moved) == (replica_id == -2)
    one.stop()
