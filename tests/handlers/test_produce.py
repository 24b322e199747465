"""Produce: acks, the checks before the log, what producers see of theirs, and waiting."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plog.errors import ErrorCode, NetworkException
from plog.handlers import produce_callouts as handler
from plog.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.agreement.batch_headers import stamped
from tests.handlers.conftest import ManyListeners
from tests.handlers.running import Running, decoded
from tests.handlers.wire import (
    NOW_MS,
    WAIT_MS,
    Speaker,
    create_topic,
    eventually,
    fetch_one,
    fetch_request,
    fetched,
    flat,
    fresh_name,
    make_batch,
    produce,
    produce_request,
    speak,
    walk_all,
)
from tests.planes import Plane
from tests.servers import BrokerProcess

DAY_MS = 24 * 3_600_000

producer_ids = itertools.count(900_000)


def values(connection: Speaker, topic: str) -> list[bytes | None]:
    return [record.value for record in walk_all(fetch_one(connection, topic, 0).records)]


# -- acks


@pytest.mark.parametrize("acks", [-1, 1])
def test_offsets_count_up(wire: Speaker, topic: str, acks: int) -> None:
    first = produce(wire, topic, make_batch([b"a", b"b"]), acks=acks)
    second = produce(wire, topic, make_batch([b"c"]), acks=acks)
    assert [(p.error_code, p.base_offset) for p in (first, second)] == [(0, 0), (0, 2)]
    assert (first.log_append_time_ms, first.log_start_offset) == (-1, 0)
    assert values(wire, topic) == [b"a", b"b", b"c"]


def test_acks_0_is_not_answered(wire: Speaker, topic: str) -> None:
    wire.send(produce_request([(topic, 0, make_batch([b"a"]))], acks=0), None, version=9)
    # The next answer on the connection is that of the next request.
    assert produce(wire, topic, make_batch([b"b"])).base_offset == 1
    assert values(wire, topic) == [b"a", b"b"]


@pytest.mark.parametrize("version", [3, 9, 11])
def test_acks_0_with_an_error_closes_the_connection(broker: ManyListeners, version: int) -> None:
    connection = speak(broker.port)
    request = produce_request([("nowhere", 0, make_batch())], acks=0)
    connection.send(request, None, version=version)
    connection.send(produce_request([("nowhere", 0, make_batch())]), ProduceResponse, version=9)
    with pytest.raises(NetworkException):
        connection.receive(ProduceResponse)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused_and_append_nothing(wire: Speaker, topic: str, acks: int) -> None:
    refused = produce(wire, topic, make_batch(), acks=acks)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert values(wire, topic) == []


# -- several partitions


def test_one_bad_partition_leaves_the_others_alone(wire: Speaker) -> None:
    one, _ = create_topic(wire, partitions=2)
    two, _ = create_topic(wire, partitions=2)
    good = make_batch([b"good"])
    asked = [
        (one, 0, good),
        (one, 1, stamped(good, crc=1)),
        (two, 0, good),
        (two, 7, good),
        ("nowhere", 0, good),
        (one, 1, good),  # the topic once more, after others
        (two, 1, None),
    ]
    answer: ProduceResponse = wire.ask(produce_request(asked), 9)
    assert [t.name for t in answer.responses] == [one, two, "nowhere", one, two]
    assert [(p.index, p.error_code, p.base_offset) for p in flat(answer)] == [
        (0, 0, 0),
        (1, ErrorCode.CORRUPT_MESSAGE, -1),
        (0, 0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (1, 0, 0),
        (1, ErrorCode.INVALID_RECORD, -1),
    ]


def test_a_partition_twice_in_a_request_is_appended_and_answered_twice(
    wire: Speaker, topic: str
) -> None:
    asked = [(topic, 0, make_batch([b"a"])), (topic, 0, make_batch([b"b"]))]
    answer = wire.ask(produce_request(asked), 9)
    assert [(p.error_code, p.base_offset) for p in flat(answer)] == [(0, 0), (0, 1)]


def test_request_without_partitions_is_answered(wire: Speaker) -> None:
    assert wire.ask(produce_request([]), 9).responses == []


# -- batches that are refused


def two_batches() -> bytes:
    return make_batch() + make_batch()


def magic_1(timestamp: int) -> bytes:
    body = struct.pack(">bbqii", 1, 0, timestamp, -1, 1) + b"v"
    message = struct.pack(">I", 0) + body
    entry = struct.pack(">qi", 0, len(message)) + message
    return entry + b"\0" * 40


BATCHES: dict[str, tuple[Callable[[], bytes | None], ErrorCode]] = {
    "null": (lambda: None, ErrorCode.INVALID_RECORD),
    "no bytes": (lambda: b"", ErrorCode.INVALID_RECORD),
    "short of a header": (lambda: make_batch()[:60], ErrorCode.INVALID_RECORD),
    "cut": (lambda: make_batch()[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (two_batches, ErrorCode.INVALID_RECORD),
    "bytes after the batch": (lambda: make_batch() + b"x", ErrorCode.INVALID_RECORD),
    "bad CRC": (lambda: stamped(make_batch(), crc=7), ErrorCode.CORRUPT_MESSAGE),
    "bit flipped": (
        lambda: make_batch([b"abc"])[:-2] + b"\x55" + make_batch([b"abc"])[-1:],
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "magic 0": (lambda: stamped(make_batch(), magic=0), ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: magic_1(1 << 40), ErrorCode.INVALID_RECORD),
    # Its time stands where a batch says that it is of a transaction.
    "magic 1, another time": (lambda: magic_1(1 << 40 | 1 << 28), ErrorCode.INVALID_RECORD),
    "magic 3": (lambda: stamped(make_batch(), magic=3), ErrorCode.CORRUPT_MESSAGE),
    "magic -1": (lambda: stamped(make_batch(), magic=-1), ErrorCode.CORRUPT_MESSAGE),
    "length less than a header": (
        lambda: stamped(make_batch(), batch_length=40),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "no records": (
        lambda: stamped(make_batch()[:61], batch_length=49, records_count=0, last_offset_delta=-1),
        ErrorCode.INVALID_RECORD,
    ),
    "wrong count": (lambda: stamped(make_batch(), records_count=2), ErrorCode.INVALID_RECORD),
    "wrong last offset delta": (
        lambda: stamped(make_batch(), last_offset_delta=5),
        ErrorCode.INVALID_RECORD,
    ),
    "control batch": (lambda: stamped(make_batch(), attributes=0x20), ErrorCode.INVALID_RECORD),
    "control batch of a transaction": (
        lambda: stamped(make_batch(producer=(1, 0, 0)), attributes=0x30),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "batch of a transaction": (
        lambda: make_batch(producer=(1, 0, 0), transactional=True),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "log append time from a client": (
        lambda: stamped(make_batch(), attributes=0x08),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    "unknown codec": (
        lambda: stamped(make_batch(), attributes=5),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "records that do not expand": (
        lambda: stamped(make_batch(), attributes=1),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "producer without a sequence": (
        lambda: make_batch(producer=(1, 0, -1)),
        ErrorCode.INVALID_RECORD,
    ),
}
REACH_THE_LOG = (
    "no records",
    "wrong count",
    "wrong last offset delta",
    "control batch",
    "log append time from a client",
    "unknown codec",
    "producer without a sequence",
)
"""Of these the answer says where the log begins, as from Kafka."""


@pytest.mark.parametrize("case", BATCHES)
def test_batch_is_refused_and_nothing_appended(wire: Speaker, topic: str, case: str) -> None:
    make, expected = BATCHES[case]
    refused = produce(wire, topic, make())
    assert ErrorCode(refused.error_code) is expected
    assert refused.base_offset == -1
    assert refused.log_start_offset == (0 if case in REACH_THE_LOG else -1)
    assert refused.error_message
    assert values(wire, topic) == []
    assert produce(wire, topic, make_batch()).base_offset == 0


def test_messages_up_to_the_limit_pass(wire: Speaker) -> None:
    fits = make_batch([b"x" * 900])
    topic, _ = create_topic(wire, max_message_bytes=len(fits))
    assert produce(wire, topic, fits).error_code == 0
    assert produce(wire, topic, make_batch([b"x" * 901])).error_code == ErrorCode.MESSAGE_TOO_LARGE
    # What counts is the size as it was sent: compressed.
    assert produce(wire, topic, make_batch([b"x" * 9000], codec=1)).error_code == 0


def test_bomb_is_refused(wire: Speaker) -> None:
    topic, _ = create_topic(wire, max_message_bytes=10_000)
    bomb = make_batch([b"\0" * 4_000_000], codec=4)
    assert len(bomb) < 10_000
    assert produce(wire, topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("version", "expected"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)]
)
def test_zstd_needs_version_7(wire: Speaker, topic: str, version: int, expected: ErrorCode) -> None:
    assert produce(wire, topic, make_batch(codec=4), version=version).error_code == expected


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_kept_as_sent(wire: Speaker, topic: str, codec: int) -> None:
    batch = make_batch([b"x" * 500, b"y" * 500], codec=codec)
    assert produce(wire, topic, batch).error_code == 0
    kept = bytes(fetch_one(wire, topic, 0).records or b"")
    assert kept[61:] == batch[61:]
    assert kept[22] & 7 == codec


def test_topics_that_cannot_be_are_unknown(wire: Speaker) -> None:
    for name in ("a/b", "", "..", "x" * 250):
        assert produce(wire, name, make_batch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_of_the_brokers_take_nothing_from_clients(broker: ManyListeners) -> None:
    # Whether they exist or not; Kafka's own tools may.
    connection, admin = speak(broker.port), speak(broker.port, client_id="__admin_client")
    refused = produce(connection, "__consumer_offsets", make_batch(key=b"k"))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    allowed = produce(admin, "__consumer_offsets", make_batch(key=b"k"))
    # Another test of this broker's may have made it.
    assert allowed.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)
    connection.close()
    admin.close()


# -- large requests


def test_large_requests_keep_their_order_and_disturb_nobody(
    wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    producer = next(producer_ids)
    for sequence in range(5):
        batch = make_batch([b"x" * 700_000], producer=(producer, 0, sequence), codec=sequence)
        # One has so many bytes, the others expand to as many.
        request = produce_request([(topic, 0, batch)])
        wire.send(request, ProduceResponse, version=9)
    other, _ = create_topic(other_wire)
    assert produce(other_wire, other, make_batch()).error_code == 0
    answers = [flat(wire.receive(ProduceResponse))[0] for _ in range(5)]
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, n) for n in range(5)]


def test_bad_partition_of_a_large_request_leaves_the_others_alone(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=3)
    large = make_batch([b"x" * 600_000])
    asked = [(topic, 0, large), (topic, 1, stamped(large, crc=3)), (topic, 2, large)]
    codes = [part.error_code for part in flat(wire.ask(produce_request(asked), 9))]
    assert codes == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert produce(wire, topic, large, acks=1).base_offset == 1


# -- errors of single records (KIP-467)


def test_timestamps_out_of_bounds_are_named(wire: Speaker) -> None:
    topic, _ = create_topic(
        wire, message_timestamp_before_max_ms=DAY_MS, message_timestamp_after_max_ms=DAY_MS
    )
    times = [NOW_MS, NOW_MS - 2 * DAY_MS, NOW_MS + 2 * DAY_MS, NOW_MS]
    refused = produce(wire, topic, make_batch([b"v"] * 4, timestamps=times), version=8)
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [entry.batch_index for entry in refused.record_errors] == [1, 2]
    assert all(entry.batch_index_error_message for entry in refused.record_errors)
    older = produce(wire, topic, make_batch([b"v"] * 4, timestamps=times), version=7)
    assert (older.error_code, older.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])


def test_refusal_that_has_no_answer_is_logged_with_its_first_reasons(
    broker: ManyListeners, wire: Speaker
) -> None:
    topic, _ = create_topic(wire, cleanup_policy="compact")
    connection = speak(broker.port)
    request = produce_request([(topic, 0, make_batch([b"v"] * 5))], acks=0)
    connection.send(request, None, version=9)
    needs_key = "a record of a compacted topic needs a key"
    named = "; ".join(f"record {n}: {needs_key}" for n in range(3))
    line = f"INVALID_RECORD: 5 of 5 records refused; {named}; ...\n"
    eventually(lambda: line in broker.log, "logged")
    connection.close()


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_records_without_a_key_are_named_where_keys_are_required(
    wire: Speaker, policy: str
) -> None:
    topic, _ = create_topic(wire, cleanup_policy=policy)
    refused = produce(wire, topic, make_batch([b"a", b"b"]), version=8)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert refused.error_message == "2 of 2 records refused"
    text = "a record of a compacted topic needs a key"
    assert [
        (entry.batch_index, entry.batch_index_error_message) for entry in refused.record_errors
    ] == [(0, text), (1, text)]
    assert produce(wire, topic, make_batch([b"a", None], key=b"k")).error_code == 0


# -- what the broker stamps


def test_stale_maximum_of_timestamps_is_put_right(wire: Speaker, topic: str) -> None:
    batch = make_batch([b"a", b"b"], timestamps=[NOW_MS, NOW_MS + 5])
    assert produce(wire, topic, stamped(batch, max_timestamp=0)).error_code == 0
    assert produce(wire, topic, stamped(batch, max_timestamp=2**60)).error_code == 0
    kept = bytes(fetch_one(wire, topic, 0).records or b"")
    for start in (0, len(batch)):
        assert struct.unpack_from(">q", kept, start + 35) == (NOW_MS + 5,)
    assert len(walk_all(kept)) == 4  # with their CRCs


def test_append_time_is_the_brokers(wire: Speaker) -> None:
    topic, _ = create_topic(wire, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    done = produce(wire, topic, make_batch([b"a", b"b"], timestamps=[5, 2**40]))
    assert before <= done.log_append_time_ms <= int(time.time() * 1000)
    kept = fetch_one(wire, topic, 0).records
    assert {record.timestamp for record in walk_all(kept)} == {done.log_append_time_ms}
    assert {record.timestamp_type for record in walk_all(kept)} == {1}


def test_append_time_of_a_duplicate_is_its_first_copys(wire: Speaker) -> None:
    topic, _ = create_topic(wire, message_timestamp_type="LogAppendTime")
    batch = make_batch(producer=(77_001, 0, 0))
    first = produce(wire, topic, batch)
    time.sleep(0.005)
    again = produce(wire, topic, batch)
    assert (again.base_offset, again.log_append_time_ms) == (
        first.base_offset,
        first.log_append_time_ms,
    )


def test_offsets_and_epoch_are_stamped(wire: Speaker, topic: str) -> None:
    batch = stamped(make_batch(), partition_leader_epoch=99)
    produce(wire, topic, batch)
    produce(wire, topic, batch)
    kept = bytes(fetch_one(wire, topic, 1).records or b"")
    assert struct.unpack_from(">q", kept) == (1,)
    assert struct.unpack_from(">i", kept, 12) == (0,)


# -- compression.type of a topic


@pytest.mark.parametrize(
    ("compression", "codec"),
    [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)],
)
@pytest.mark.parametrize("sent", [0, 1, 4])
def test_topic_gets_the_codec_it_asks_for(
    wire: Speaker, compression: str, codec: int, sent: int
) -> None:
    topic, _ = create_topic(wire, compression_type=compression)
    batch = make_batch([b"x" * 300, None, b""], key=b"k", codec=sent, producer=(88_000, 0, 0))
    assert [produce(wire, topic, batch).base_offset for _ in range(2)] == [0, 0]
    kept = bytes(fetch_one(wire, topic, 0).records or b"")
    assert kept[22] & 7 == codec
    assert [(r.offset, r.timestamp, r.key, r.value) for r in walk_all(kept)] == [
        (0, NOW_MS, b"k", b"x" * 300),
        (1, NOW_MS, b"k", None),
        (2, NOW_MS, b"k", b""),
    ]


@pytest.mark.parametrize(
    ("compression", "levels"),
    [
        ("gzip", {"compression_gzip_level": -1}),
        ("gzip", {"compression_gzip_level": 9}),
        ("lz4", {"compression_lz4_level": 17}),
        ("zstd", {"compression_zstd_level": -131072}),
        ("zstd", {"compression_zstd_level": 22}),
    ],
)
def test_every_level_that_can_be_set_works(
    wire: Speaker, compression: str, levels: dict[str, object]
) -> None:
    topic, _ = create_topic(wire, compression_type=compression, **levels)
    assert produce(wire, topic, make_batch([b"abc" * 1000])).error_code == 0
    assert values(wire, topic) == [b"abc" * 1000]


def test_recompressed_batch_is_held_to_the_limit_too(wire: Speaker) -> None:
    topic, _ = create_topic(wire, compression_type="uncompressed", max_message_bytes=2000)
    batch = make_batch([b"x" * 5000], codec=1)
    assert produce(wire, topic, batch).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert values(wire, topic) == []


# -- idempotent producers


def batch_of(producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1) -> bytes:
    return make_batch([b"%d" % sequence] * count, producer=(producer_id, epoch, sequence))


def test_each_of_the_last_five_batches_is_known_again(wire: Speaker, topic: str) -> None:
    producer = next(producer_ids)
    batches = [batch_of(producer, 3 * n, count=3) for n in range(7)]
    for n, batch in enumerate(batches):
        assert produce(wire, topic, batch).base_offset == 3 * n
    for n in (2, 3, 4, 5, 6, 2):
        again = produce(wire, topic, batches[n])
        assert (again.error_code, again.base_offset) == (0, 3 * n)
    for n in (0, 1):
        older = produce(wire, topic, batches[n])
        assert older.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(values(wire, topic)) == 21


def test_gap_is_refused_and_the_right_one_goes_on(wire: Speaker, topic: str) -> None:
    producer = next(producer_ids)
    produce(wire, topic, batch_of(producer, 0))
    for sequence in (2, 5):
        refused = produce(wire, topic, batch_of(producer, sequence))
        assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, topic, batch_of(producer, 1)).base_offset == 1


def test_epochs_only_rise_and_begin_at_sequence_0(wire: Speaker, topic: str) -> None:
    producer = next(producer_ids)
    produce(wire, topic, batch_of(producer, 0, epoch=3))
    early = produce(wire, topic, batch_of(producer, 1, epoch=4))
    assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, topic, batch_of(producer, 0, epoch=4)).base_offset == 1
    stale = produce(wire, topic, batch_of(producer, 1, epoch=3))
    assert stale.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert produce(wire, topic, batch_of(producer, 1, epoch=4)).base_offset == 2


def test_unknown_producer_may_begin_anywhere(wire: Speaker, topic: str) -> None:
    assert produce(wire, topic, batch_of(next(producer_ids), 41)).error_code == 0


def test_sequences_wrap(wire: Speaker, topic: str) -> None:
    producer, last = next(producer_ids), 2**31 - 1
    assert produce(wire, topic, batch_of(producer, last - 1, count=2)).base_offset == 0
    assert produce(wire, topic, batch_of(producer, 0)).base_offset == 2
    assert produce(wire, topic, batch_of(producer, last - 1, count=2)).base_offset == 0


def test_five_in_flight_of_which_the_first_fails_all_fail(wire: Speaker, topic: str) -> None:
    producer = next(producer_ids)
    assert produce(wire, topic, batch_of(producer, 0)).error_code == 0
    flight = [stamped(batch_of(producer, 1), crc=5)]
    flight += [batch_of(producer, sequence) for sequence in range(2, 6)]
    for batch in flight:
        wire.send(produce_request([(topic, 0, batch)]), ProduceResponse, version=9)
    codes = [flat(wire.receive(ProduceResponse))[0].error_code for _ in flight]
    assert codes == [ErrorCode.CORRUPT_MESSAGE] + [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4
    assert values(wire, topic) == [b"0"]


def test_five_in_flight_arrive_in_order(wire: Speaker, topic: str) -> None:
    producer = next(producer_ids)
    for sequence in range(5):
        request = produce_request([(topic, 0, batch_of(producer, sequence))])
        wire.send(request, ProduceResponse, version=9)
    answers = [flat(wire.receive(ProduceResponse))[0] for _ in range(5)]
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, n) for n in range(5)]


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_known_after_a_restart(
    own_broker: Callable[..., BrokerProcess], clean: bool
) -> None:
    broker = own_broker(log_segment_bytes=2000)
    connection = speak(broker.port)
    topic, _ = create_topic(connection)
    batches = [batch_of(7, 2 * n, count=2) for n in range(40)]
    for batch in batches:
        assert produce(connection, topic, batch).error_code == 0
    connection.close()
    if clean:
        broker.stop()
    else:
        broker.kill()
    broker.start()
    connection = speak(broker.port)
    eventually(lambda: produce(connection, topic, batches[-1]).base_offset == 78, "led again")
    for n in (35, 37, 39):
        again = produce(connection, topic, batches[n])
        assert (again.error_code, again.base_offset) == (0, 2 * n)
    gap = produce(connection, topic, batch_of(7, 90))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    following = produce(connection, topic, batch_of(7, 80))
    assert (following.error_code, following.base_offset) == (0, 80)
    connection.close()


# -- waiting for acks


def test_no_more_in_sync_replicas_are_asked_for_than_there_are(wire: Speaker) -> None:
    topic, _ = create_topic(wire, min_insync_replicas=2)
    assert produce(wire, topic, make_batch([b"all"]), acks=-1).error_code == 0
    assert values(wire, topic) == [b"all"]


def test_topic_without_a_flush_before_the_answer_is_answered(wire: Speaker) -> None:
    topic, _ = create_topic(wire, flush_before_ack="false")
    for n in range(3):
        # Nothing is waited for, so no time is enough.
        assert produce(wire, topic, make_batch(), timeout_ms=0).base_offset == n


def test_without_any_time_a_flush_may_be_in_time_or_not(wire: Speaker, topic: str) -> None:
    # That it is told when it is not: test_fast_path, with a flush that is slow for certain.
    codes = [produce(wire, topic, make_batch(), timeout_ms=0).error_code for _ in range(100)]
    assert set(codes) <= {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}
    # They are there all the same, which is why clients number their batches.
    assert produce(wire, topic, make_batch()).base_offset == 100


def test_produce_goes_on_while_topics_come_and_go(
    wire: Speaker, other_wire: Speaker, topic: str
) -> None:
    doomed, _ = create_topic(wire)
    request = DeleteTopicsRequest(topic_names=[doomed], timeout_ms=20_000)
    other_wire.send(request, DeleteTopicsResponse, version=5)
    seen = set()
    while not other_wire.ready(0):
        seen.add(produce(wire, doomed, make_batch()).error_code)
        assert produce(wire, topic, make_batch()).error_code == 0
    assert other_wire.receive(DeleteTopicsResponse).responses[0].error_code == 0
    assert seen <= {
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
    gone = produce(wire, doomed, make_batch())
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_unknown_topic_is_not_created_by_produce(wire: Speaker) -> None:
    name = fresh_name()
    for _ in range(2):
        refused = produce(wire, name, make_batch())
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_large_request_is_appended_in_the_order_of_its_batches(wire: Speaker) -> None:
    """In several pieces: in another codec, stamped, counted, and one of them refused."""
    topic, _ = create_topic(
        wire, partitions=2, compression_type="uncompressed", message_timestamp_type="LogAppendTime"
    )
    producer_id = next(producer_ids)
    sizes = [100, 200_000, 300_000, 500, 400_000, 10]
    parts = [
        (
            topic,
            number % 2,
            make_batch(
                [bytes([number]) * size, b"end"],
                codec=number % 5,
                producer=(producer_id, 0, 2 * (number // 2)),
            ),
        )
        for number, size in enumerate(sizes)
    ]
    parts.insert(3, (topic, 1, stamped(make_batch([b"refused"] * 3), records_count=2)))
    request = produce_request(parts)
    answers = flat(wire.ask(request, 9))
    assert [(one.index, one.error_code, one.base_offset) for one in answers] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 0, 2),
        (1, ErrorCode.INVALID_RECORD, -1),
        (1, 0, 2),
        (0, 0, 4),
        (1, 0, 4),
    ]
    # Sent again, all that was appended is known.
    assert [one.base_offset for one in flat(wire.ask(request, 9))] == [0, 0, 2, -1, 2, 4, 4]
    for index in (0, 1):
        request = fetch_request((topic, index, 0), partition_max_bytes=1 << 30)
        (part,) = fetched(wire.ask(request, 12)).values()
        records = walk_all(part.records)
        assert [record.offset for record in records] == list(range(6))
        assert [len(record.value) for record in records[::2]] == sizes[index::2]


def test_batch_is_stamped_by_the_setting_it_was_checked_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_ready = handler.made_ready
    checked, go_on = threading.Event(), threading.Event()

    def made_ready_and_kept(*arguments):
        ready = made_ready(*arguments)
        checked.set()
        assert go_on.wait(WAIT_MS / 1000)
        return ready

    one = Running(tmp_path, plane=Plane.FAST)
    create_topic(one.wire, "t", message_timestamp_type="LogAppendTime")
    monkeypatch.setattr(handler, "made_ready", made_ready_and_kept)
    # With CreateTime it would have been refused.
    one.send(produce_request([("t", 0, make_batch(codec=4, timestamps=[NOW_MS + 2**40]))]), 9)
    assert checked.wait(WAIT_MS / 1000)
    change = IncrementalAlterableConfig(
        name="message.timestamp.type", config_operation=0, value="CreateTime"
    )
    topic = IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    altered = one.wire.ask(IncrementalAlterConfigsRequest(resources=[topic], validate_only=False))
    assert altered.responses[0].error_code == 0
    go_on.set()
    (part,) = flat(decoded(ProduceResponse, 9, one.receive()))
    (record,) = walk_all(fetch_one(one.wire, "t", 0).records)
    assert (record.timestamp, record.timestamp_type) == (part.log_append_time_ms, 1)
    one.stop()


def test_batch_that_expands_keeps_no_other_client_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_ready = handler.made_ready
    go_on = threading.Event()

    def made_ready_later(*arguments):
        assert go_on.wait(WAIT_MS / 1000)
        return made_ready(*arguments)

    monkeypatch.setattr(handler, "made_ready", made_ready_later)
    one = Running(tmp_path, plane=Plane.FAST)
    create_topic(one.wire, "t", message_timestamp_type="LogAppendTime")
    small = make_batch([bytes(20 << 20)], codec=4)
    assert len(small) < 10_000
    one.send(produce_request([("t", 0, small)]), 9)
    one.wire.ask(MetadataRequest(topics=None), 9)
    go_on.set()
    (part,) = flat(decoded(ProduceResponse, 9, one.receive()))
    assert (part.error_code, part.base_offset) == (0, 0)
    one.stop()
