"""The fast path and the handlers give the same answers: two brokers, one without a fast path.

Each request goes to both, in the same order, and the frames that come back are compared byte for
byte. Which way a request took is counted.
"""

from __future__ import annotations

import errno
import random
import socket
import struct
import time
import uuid
from pathlib import Path

import pytest

from plog._native.faults import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchRequest, FetchResponse
from plog.protocol.messages.produce import ProduceResponse, TopicProduceData
from plog.protocol.schema import Struct
from tests.agreement.harness import run_seed
from tests.handlers.running import (
    Running,
    decoded,
    faults,
    records_of,
)
from tests.handlers.twins import (
    CODECS,
    FETCH_VERSIONS,
    IDS_SINCE,
    PRODUCE_VERSIONS,
    Twins,
    TwinSession,
)
from tests.handlers.wire import (
    create_topic,
    fetch_request,
    flat,
    make_batch,
    produce_request,
)
from tests.planes import Plane

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


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_unusual_partitions_leave_the_others_alone(twins: Twins, version: int, acks: int) -> None:
    topic, stamped = (
        twins.create_topic(),
        twins.create_topic(message_timestamp_type="LogAppendTime"),
    )
    request = produce_request(
        [(topic, 0, make_batch([b"a"])), (topic, 7, make_batch()), (topic, 1, REFUSED["cut"]),
         ("no-such-topic", 0, make_batch()), ("kein-thema-\u00e4\u6c34", 2, None),
         (topic, 2, make_batch([b"b"])), (topic, -1, b""), (topic, 2, make_batch([b"c"]))],
        acks=acks,
    )  # fmt: skip
    request.topic_data.insert(1, TopicProduceData(name="nothing-of-it", partition_data=[]))
    request.topic_data.append(TopicProduceData(name=topic, partition_data=[]))
    for first in range(2):
        answer = decoded(ProduceResponse, version, twins.ask(request, version, fast=False))
        codes = [part.error_code for part in flat(answer)]
        assert (codes[0], codes.count(ErrorCode.NONE)) == (ErrorCode.NONE, 3)
        assert flat(answer)[0].base_offset == first
    # What Python appends is stamped by the broker's clock.
    request = produce_request([(topic, 0, make_batch()), (stamped, 1, make_batch())], acks=acks)
    before = twins.fast.fast_requests
    for one in twins.both:
        parts = flat(decoded(ProduceResponse, version, one.ask(request, version)))
        assert [part.error_code for part in parts] == [0, 0]
        assert parts[0].log_append_time_ms == -1 < parts[1].log_append_time_ms
    assert twins.fast.fast_requests == before


@pytest.mark.parametrize("partitions", [1, 3, 12])
def test_batches_of_a_partition_keep_their_order_where_python_appends_the_first(
    twins: Twins, partitions: int
) -> None:
    topic = twins.create_topic(partitions)
    parts = []
    for index in range(partitions):  # the first batch of a new producer is Python's
        parts += [(topic, index, make_batch([b"1"], producer=(9000 + index, 0, 0)))]
    parts += [(topic, index, make_batch([b"2"])) for index in range(partitions)]
    answer = twins.ask(produce_request(parts), 9, fast=False)
    offsets = [part.base_offset for part in flat(decoded(ProduceResponse, 9, answer))]
    assert offsets == [0] * partitions + [1] * partitions
    twins.ask(fetch_request(*((topic, index, 0) for index in range(partitions))), 12)


def test_transactions_batch_without_a_transactional_id_refuses_the_whole_request(
    twins: Twins,
) -> None:
    topic = twins.create_topic()
    of_transaction = make_batch(producer=(5, 0, 0), transactional=True)
    for version in (3, 8, 9, 11):
        request = produce_request([(topic, 0, make_batch()), (topic, 1, of_transaction)])
        twins.ask(request, version, fast=False)
    answer = twins.ask(fetch_request((topic, 0, 0), (topic, 1, 0)), 12)
    (read,) = decoded(FetchResponse, 12, answer).responses
    assert [part.high_watermark for part in read.partitions] == [0, 0]


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
    twins.ask(fetch_request((one, 0, 0), (other, 0, 0), (one, 0, 0)), 12)


@pytest.mark.parametrize(
    "options",
    [
        {"leader_epoch": 5},
        {"last_fetched_epoch": 3},
        {"replica_id": 1},
        {"replica_id": -2},
    ],
    ids=str,
)
def test_unusual_fetches_are_left_to_the_handler(twins: Twins, options: dict) -> None:
    topic = twins.create_topic()
    twins.ask(fetch_request((topic, 0, 0), **options), 12, fast=False)


@pytest.mark.parametrize("session", [(7, -1), (7, 3)], ids=str)
def test_session_that_is_unknown_is_fast(twins: Twins, session: tuple[int, int]) -> None:
    topic = twins.create_topic()
    twins.ask(fetch_request((topic, 0, 0), session=session), 12)


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
        twins.ask(fetch_request(*[(topic, index, 0) for topic, index in order]), 12)


# -- the bytes of a response, where Python reads a partition

GZIP_SINCE = 9
"""The last version for which Python reads a topic with a codec of its own."""


@pytest.mark.parametrize("order", ["ab", "ba", "aab", "baa", "bab", "aba", "abab", "bbaab"])
@pytest.mark.parametrize("max_bytes", [0, 1, 150, 1000, 1 << 20])
def test_bytes_go_to_partitions_in_their_order(twins: Twins, order: str, max_bytes: int) -> None:
    topics = {"a": twins.create_topic(compression_type="gzip"), "b": twins.create_topic()}
    taken = dict.fromkeys(topics, 0)
    parts = []
    for which in order:
        parts.append((topics[which], taken[which]))
        taken[which] += 1
    for topic, index in parts:
        for _ in range(3):
            for one in twins.both:
                one.ask(produce_request([(topic, index, make_batch([b"v" * 90]))]), 9)
    asked = fetch_request(*((topic, index, 0) for topic, index in parts), max_bytes=max_bytes)
    answer = twins.ask(asked, GZIP_SINCE, fast=False)
    read = [len(part.records) for topic in decoded(FetchResponse, GZIP_SINCE, answer).responses
            for part in topic.partitions]  # fmt: skip
    assert read[0] > 0
    assert sum(read) <= max(max_bytes, read[0])


def test_session_gives_its_turn_to_partitions_of_both_planes(twins: Twins) -> None:
    one, other = twins.create_topic(compression_type="gzip"), twins.create_topic()
    for topic in (one, other):
        for index in range(3):
            for twin in twins.both:
                twin.ask(produce_request([(topic, index, make_batch([b"v" * 90]))]), 9)
    parts = [(topic, index, 0) for topic in (one, other) for index in range(3)]
    session = TwinSession(twins, *parts, version=GZIP_SINCE, max_bytes=1, fast=False)
    turns = [{at for at, part in session.first.items() if part.records}]
    turns += [
        {at for at, part in session.next(fast=False).items() if part.records} for _ in range(5)
    ]
    assert [len(turn) for turn in turns] == [1] * 6
    assert len(set.union(*turns)) == 6


# -- random traffic


def test_random_traffic_is_answered_alike(twins: Twins) -> None:
    draw = random.Random(run_seed())
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
        assert answer == expected, (request, version)
    assert twins.fast.fast_requests - before > 200, twins.fast.callouts


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


def test_a_broker_without_sendfile_answers_the_same_bytes(tmp_path: Path) -> None:
    answers = []
    for sendfile in ("true", "false"):
        running = Running(tmp_path / sendfile, socket_sendfile_enable=sendfile)
        create_topic(running.wire, "t")
        for number in range(20):
            values = [b"%d" % number * 10_000, b"v" * 200_000]
            running.ask(produce_request([("t", 0, make_batch(values))], acks=1), 9)
        short, other = ("sendfile", "pread") if sendfile == "true" else ("pread", "sendfile")
        with faults(Fault(short, short_bytes=70_000), Fault(other, errno=errno.EIO)):
            answers.append(running.ask(fetch_request(("t", 0, 3)), 12))
        running.stop()
    assert answers[0][4:] == answers[1][4:]  # but for the correlation id
    assert records_of(answers[0]) > 1_000_000


DATA_SEGMENTS_IN = 152
"""Where Linux's tcp_info says how many segments with data have come."""


def segments_in(running: Running) -> int:
    info = running.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("=I", info, DATA_SEGMENTS_IN)[0])


@pytest.mark.parametrize("sendfile", ["true", "false"])
def test_head_of_an_answer_goes_in_one_segment_with_its_records(
    tmp_path: Path, sendfile: str
) -> None:
    running = Running(tmp_path, plane=Plane.FAST, socket_sendfile_enable=sendfile)
    create_topic(running.wire, "t")
    for _ in range(2):
        running.ask(produce_request([("t", 0, make_batch())], acks=1), 9)
    segments, fast = segments_in(running), running.fast_requests
    # The last version without tagged fields, which end an answer in a segment of their own.
    answer = decoded(FetchResponse, 11, running.ask(fetch_request(("t", 0, 0)), 11))
    assert answer.responses[0].partitions[0].records
    assert (segments_in(running), running.fast_requests) == (segments + 1, fast + 1)
    running.stop()
