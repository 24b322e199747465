"""The producer against a real broker."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.partitioner import partition_for_key, round_robin
from plog.client.producer import Producer, ProducerClosed
from plog.client.producer_batch import ProducerBatch
from plog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    NetworkException,
    OtherRecordRefused,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from plog.types import TopicPartition
from tests.servers import BrokerProcess, free_port
from tests.several_brokers import is_led, until_each

WAIT_S = 60


def read_all(bootstrap: str, topic: str) -> dict[int, list]:
    """Every record of a topic by partition, in order."""
    found = defaultdict(list)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        assigned = consumer.partitions_for(topic)
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        while any(consumer.position(p) < ends[p] for p in assigned):
            for record in consumer.poll(WAIT_S * 1000):
                found[record.partition].append(record)
    return found


def create_again(admin: Admin, topic: str) -> None:
    """As in Kafka, a topic may still be on its way out when its deletion is answered."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            admin.create_topic(topic, partitions=1)
            return
        except TopicAlreadyExists:
            assert time.monotonic() < deadline


def values(found: dict[int, list]) -> list[bytes]:
    return [record.value for records in found.values() for record in records]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(bootstrap, new_topic, codec):
    topic = new_topic()
    sent = [
        (None, None, []),
        (b"", b"", [("", b""), ("h", None)]),
        (b"k", b"v" * 100_000, [("ü", b"\xff")]),
        *((str(n).encode(), b"x" * n, []) for n in range(200)),
    ]
    with Producer(bootstrap, compression_type=codec) as producer:
        deliveries = [
            producer.send(
                topic, value, key=key, headers=headers, timestamp_ms=1_600_000_000_000 + n
            )
            for n, (key, value, headers) in enumerate(sent)
        ]
    found = read_all(bootstrap, topic)[0]
    assert [(r.key, r.value, list(r.headers)) for r in found] == sent
    assert [(r.offset, r.timestamp) for r in found] == [
        (d.result(0).offset, d.result(0).timestamp) for d in deliveries
    ]


def test_log_append_time_is_the_brokers(bootstrap, new_topic):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    with Producer(bootstrap) as producer:
        told = producer.send(topic, b"x", timestamp_ms=5).result(WAIT_S)
    (record,) = read_all(bootstrap, topic)[0]
    assert record.timestamp == told.timestamp > 5
    assert record.timestamp_type == 1


def test_threads_share_a_producer_and_keep_their_order(bootstrap, new_topic):
    topic = new_topic(3)
    threads, each = 6, 2000
    with Producer(bootstrap, batch_size=2000) as producer:

        def send(name: int) -> None:
            for n in range(each):
                producer.send(topic, b"%d-%d" % (name, n), partition=n % 3)

        running = [threading.Thread(target=send, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    found = read_all(bootstrap, topic)
    assert len(values(found)) == threads * each
    for partition, records in found.items():
        of = defaultdict(list)
        for record in records:
            name, _, n = record.value.partition(b"-")
            of[int(name)].append(int(n))
        for numbers in of.values():
            assert numbers == list(range(partition, each, 3))


def test_keys_go_where_other_clients_put_them(bootstrap, new_topic):
    topic = new_topic(5)
    keys = [b"key%d" % n for n in range(50)]
    with Producer(bootstrap) as producer:
        told = [producer.send(topic, b"", key=key) for key in keys]
        producer.flush()
        assert [d.result(0).partition for d in told] == [partition_for_key(k, 5) for k in keys]


def test_records_without_key_stay_together_but_reach_every_partition(bootstrap, new_topic):
    topic = new_topic(3)
    with Producer(bootstrap, batch_size=1000, linger_ms=60_000) as producer:
        told = [producer.send(topic, b"x" * 100) for _ in range(600)]
        producer.flush()
        partitions = [d.result(0).partition for d in told]
    assert set(partitions) == {0, 1, 2}
    changes = sum(a != b for a, b in itertools.pairwise(partitions))
    # About nine records of 100 bytes make a batch of 1000.
    assert changes < len(partitions) / 5


def test_partitioner_of_the_application_is_asked(bootstrap, new_topic):
    topic = new_topic(3)
    with Producer(bootstrap, partitioner=round_robin()) as producer:
        told = [producer.send(topic, b"x", key=b"same") for _ in range(6)]
        producer.flush()
        assert [d.result(0).partition for d in told] == [0, 1, 2, 0, 1, 2]
    with (
        Producer(bootstrap, partitioner=lambda *_: 3) as producer,
        pytest.raises(InvalidPartitions),
    ):
        producer.send(topic, b"x")


def test_batch_waits_for_linger_and_goes_at_once_when_full_or_flushed(bootstrap, new_topic):
    topic = new_topic(2)
    with Producer(bootstrap, linger_ms=100_000, batch_size=1000) as producer:
        lonely = producer.send(topic, b"lonely", partition=0)
        full = producer.send(topic, b"x" * 1000, partition=1)
        assert full.result(WAIT_S).offset == 0
        assert not lonely.done()
        producer.flush(WAIT_S)
        assert lonely.done()


def test_batch_is_sent_when_its_linger_is_over(bootstrap, new_topic):
    with Producer(bootstrap, linger_ms=20) as producer:
        assert producer.send(new_topic(), b"x").result(WAIT_S).offset == 0


def test_callbacks_come_once_in_order_before_flush_returns(bootstrap, new_topic):
    topic = new_topic()
    told = []
    with Producer(bootstrap, batch_size=500) as producer:
        for _ in range(500):
            producer.send(
                topic,
                b"x" * 50,
                on_delivery=lambda metadata, error: told.append((metadata.offset, error)),
            )
        producer.flush()
        assert told == [(n, None) for n in range(500)]


def test_callback_that_raises_is_logged_and_costs_nothing_else(bootstrap, new_topic, caplog):
    topic = new_topic()
    told = []

    def wrong(metadata, error):
        raise RuntimeError("of the application")

    with Producer(bootstrap) as producer, caplog.at_level(logging.ERROR):
        first = producer.send(topic, b"1", on_delivery=wrong)
        producer.send(topic, b"2", on_delivery=lambda metadata, error: told.append(metadata.offset))
        producer.flush(WAIT_S)
        assert producer.send(topic, b"3").result(WAIT_S).offset == 2
    assert first.result(0).offset == 0
    assert told == [1]
    assert "of the application" in caplog.text


def test_callback_may_send_and_ask_but_not_wait(bootstrap, new_topic, caplog):
    topic = new_topic()
    seen = []
    with Producer(bootstrap) as producer:

        def delivered(metadata, error):
            seen.append(producer.send(topic, b"second"))
            seen.append(first.result(0))
            producer.flush()

        first = producer.send(topic, b"first", on_delivery=delivered)
        first.result(WAIT_S)
        producer.flush(WAIT_S)
        assert "must not wait" in caplog.text
        producer.flush(WAIT_S)
        assert seen[0].result(0).offset == 1
        assert seen[1].offset == 0


def test_acks_0_needs_no_answer(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap, acks="0", enable_idempotence=False) as producer:
        told = [producer.send(topic, b"%d" % n) for n in range(100)]
        producer.flush(WAIT_S)
        assert {d.result(0).offset for d in told} == {-1}
        # The broker answers in order, so this one comes behind them.
    deadline = time.monotonic() + WAIT_S
    while len(found := values(read_all(bootstrap, topic))) < 100:
        assert time.monotonic() < deadline
    assert found == [b"%d" % n for n in range(100)]


def test_acks_1_without_idempotence_keeps_the_order(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap, acks="1", enable_idempotence=False, batch_size=300) as producer:
        for n in range(500):
            producer.send(topic, b"%d" % n)
    assert values(read_all(bootstrap, topic)) == [b"%d" % n for n in range(500)]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_batch_that_the_topic_finds_too_large_is_split(bootstrap, new_topic, codec):
    topic = new_topic(max_message_bytes=3000)
    # Not to be compressed, so that it stays too large.
    payload = [bytes((n * 37 + at * at) % 251 for at in range(500)) for n in range(40)]
    told = []
    with Producer(
        bootstrap, batch_size=60_000, linger_ms=10_000, compression_type=codec
    ) as producer:
        deliveries = [
            producer.send(
                topic,
                value,
                headers=[("n", b"%d" % n)],
                on_delivery=lambda metadata, error: told.append(metadata.offset),
            )
            for n, value in enumerate(payload)
        ]
        producer.flush(WAIT_S)
        after = producer.send(topic, b"after")
    found = read_all(bootstrap, topic)[0]
    assert [r.value for r in found] == [*payload, b"after"]
    assert [r.headers[0][1] for r in found[:40]] == [b"%d" % n for n in range(40)]
    assert [d.result(0).offset for d in deliveries] == told == list(range(40))
    assert after.result(0).offset == 40


def test_record_that_is_too_large_for_its_topic_fails_alone(bootstrap, new_topic):
    topic = new_topic(max_message_bytes=1000)
    with Producer(bootstrap, batch_size=60_000, linger_ms=10_000) as producer:
        told = [producer.send(topic, b"x" * size) for size in (10, 20, 5000, 30, 40)]
        producer.flush(WAIT_S)
        with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes is 1000"):
            told[2].result(0)
    assert [len(v) for v in values(read_all(bootstrap, topic))] == [10, 20, 30, 40]


def test_record_larger_than_max_request_size_is_refused_at_once(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap, max_request_size=1000) as producer:
        with pytest.raises(MessageTooLarge, match="max_request_size is 1000"):
            producer.send(topic, b"x" * 1000)
        with pytest.raises(MessageTooLarge):
            producer.send(topic, b"x", headers=[("h", b"x" * 1000)])
        assert producer.send(topic, b"x" * 800).result(WAIT_S).offset == 0


def test_large_record_within_the_limits_goes_through(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap, max_request_size=8 << 20) as producer:
        producer.send(topic, b"small")
        producer.send(topic, b"x" * (5 << 20)).result(WAIT_S)
    assert [len(v) for v in values(read_all(bootstrap, topic))] == [5, 5 << 20]


def test_requests_stay_below_max_request_size(bootstrap, new_topic):
    topic = new_topic(8)
    with Producer(bootstrap, batch_size=3000, max_request_size=5000, linger_ms=1000) as producer:
        for n in range(200):
            producer.send(topic, b"x" * 900, partition=n % 8)
    assert len(values(read_all(bootstrap, topic))) == 200


@pytest.mark.parametrize("wrong", ["text", 5, object()])
def test_value_that_is_no_bytes_is_refused_and_leaves_the_batch_as_it_was(
    bootstrap, new_topic, wrong
):
    topic = new_topic()
    with Producer(bootstrap) as producer:
        with pytest.raises(TypeError):
            producer.send(topic, wrong)
        producer.send(topic, b"right")
        with pytest.raises(TypeError):
            producer.send(topic, wrong)
        with pytest.raises(OverflowError):
            producer.send(topic, b"x", timestamp_ms=1 << 63)
    assert values(read_all(bootstrap, topic)) == [b"right"]


def test_record_that_the_broker_refuses_fails_with_its_reason(bootstrap, new_topic):
    topic = new_topic(cleanup_policy="compact")
    why = "a record of a compacted topic needs a key"
    with Producer(bootstrap) as producer:
        with pytest.raises(InvalidRecord) as refused:
            producer.send(topic, b"without a key").result(WAIT_S)
        assert str(refused.value) == f"produce to {topic}-0: {why}"
        assert producer.send(topic, b"v", key=b"k").result(WAIT_S).offset == 0
        # The refused batch left a gap in the numbers; it must not trip up what follows.
        assert producer.send(topic, b"v", key=b"k").result(WAIT_S).offset == 1


def test_gap_that_a_refused_batch_leaves_is_no_warning(bootstrap, new_topic, caplog):
    topic = new_topic(cleanup_policy="compact")
    with Producer(bootstrap) as producer:
        for offset in range(3):
            assert producer.send(topic, b"v", key=b"k").result(WAIT_S).offset == offset
            with pytest.raises(InvalidRecord):
                producer.send(topic, b"without a key").result(WAIT_S)
    assert [record.getMessage() for record in caplog.records] == []


def test_each_record_of_a_refused_batch_has_its_own_error(bootstrap, new_topic):
    topic = new_topic(cleanup_policy="compact")
    called = []
    with Producer(bootstrap, linger_ms=10_000) as producer:
        deliveries = [
            producer.send(topic, b"v", key=key, on_delivery=lambda _, error: called.append(error))
            for key in (b"k", None, b"k", None)
        ]
        producer.flush()
    raised = []
    for delivery in deliveries:
        with pytest.raises(InvalidRecord) as refused:
            delivery.result(WAIT_S)
        raised.append(refused.value)
    for errors in (called, raised):
        kinds = [type(error) for error in errors]
        assert kinds == [OtherRecordRefused, InvalidRecord] * 2
        assert {str(error) for error in errors[1::2]} == {
            f"produce to {topic}-0: a record of a compacted topic needs a key"
        }
        assert "2 of 4 records refused; record 1: " in str(errors[0])
        assert len({id(error.__cause__) for error in errors}) == 1


@pytest.mark.parametrize(
    ("reason", "text"), [("bad key", "produce to t-0: bad key"), (None, "all"), ("", "all")]
)
def test_record_without_a_reason_of_its_own_has_that_of_its_batch(reason, text):
    batch = ProducerBatch(TopicPartition("t", 0), 0, created=0, deadline=1)
    batch.error = InvalidRecord("all")
    batch.error.record_errors = {0: reason}
    assert str(batch.error_of(0)) == text


def test_unknown_topic_is_refused_after_max_block_ms(bootstrap):
    with (
        Producer(bootstrap, max_block_ms=200) as producer,
        pytest.raises(UnknownTopicOrPartition, match="'nowhere' does not exist"),
    ):
        producer.send("nowhere", b"x")


def test_topic_with_an_impossible_name_is_refused_at_once(bootstrap):
    with Producer(bootstrap) as producer, pytest.raises(InvalidTopic):
        producer.send("a/b", b"x")


def test_sender_without_broker_is_told_why():
    port = free_port()
    with (
        Producer(f"127.0.0.1:{port}", max_block_ms=200) as producer,
        pytest.raises(NetworkException, match=str(port)),
    ):
        producer.send("t", b"x")


def test_partition_out_of_range_is_refused(bootstrap, new_topic):
    topic = new_topic(2)
    with Producer(bootstrap) as producer:
        with pytest.raises(UnknownTopicOrPartition, match="has no partition 2, only 2 partitions"):
            producer.send(topic, b"x", partition=2)
        with pytest.raises(InvalidPartitions):
            producer.send(topic, b"x", partition=-1)
        assert producer.send(topic, b"x", partition=1).result(WAIT_S).partition == 1


def test_partitions_that_are_added_are_used(bootstrap, admin, new_topic):
    topic = new_topic(1)
    with Producer(bootstrap, metadata_max_age_ms=50, linger_ms=0) as producer:
        producer.send(topic, b"x").result(WAIT_S)
        admin.create_partitions(topic, 4)
        until_each(bootstrap, lambda own: is_led(own, topic, 4))
        # Named: known at once. Otherwise: once the metadata is too old.
        assert producer.send(topic, b"x", partition=3).result(WAIT_S).partition == 3
        deadline = time.monotonic() + WAIT_S
        used = set()
        while used != {0, 1, 2, 3}:
            used.add(producer.send(topic, b"x").result(WAIT_S).partition)
            assert time.monotonic() < deadline


def test_records_of_a_deleted_topic_fail_and_others_go_on(bootstrap, admin, new_topic):
    topic, other = new_topic(), new_topic()
    with Producer(bootstrap, delivery_timeout_ms=700, max_block_ms=200) as producer:
        producer.send(topic, b"x").result(WAIT_S)
        admin.delete_topic(topic)
        with pytest.raises(Exception, match=topic):
            producer.send(topic, b"lost").result(WAIT_S)
        assert producer.send(other, b"x").result(WAIT_S).offset == 0
        with pytest.raises(UnknownTopicOrPartition):
            producer.send(topic, b"x")


def test_topic_that_comes_back_is_written_again(bootstrap, admin, new_topic):
    topic = new_topic()
    with Producer(bootstrap, retry_backoff_ms=10) as producer:
        for _ in range(3):
            producer.send(topic, b"before").result(WAIT_S)
        admin.delete_topic(topic)
        create_again(admin, topic)
        assert producer.send(topic, b"after").result(WAIT_S).offset == 0
        assert producer.send(topic, b"after").result(WAIT_S).offset == 1


def test_closed_producer_takes_nothing_and_may_be_closed_again(bootstrap, new_topic):
    topic = new_topic()
    producer = Producer(bootstrap, linger_ms=100_000)
    waiting = producer.send(topic, b"x")
    producer.close()
    assert waiting.result(0).offset == 0
    with pytest.raises(ProducerClosed):
        producer.send(topic, b"x")
    producer.close()
    producer.flush()


def test_producer_left_by_an_exception_gives_up_what_waits(bootstrap, new_topic):
    topic = new_topic()
    told = []

    class Mishap(Exception):
        pass

    def mishap(producer):
        waiting.append(
            producer.send(topic, b"x", on_delivery=lambda metadata, error: told.append(error))
        )
        raise Mishap

    waiting = []
    with pytest.raises(Mishap), Producer(bootstrap, linger_ms=100_000) as producer:
        mishap(producer)
    with pytest.raises(ProducerClosed):
        waiting[0].result(0)
    assert [type(error) for error in told] == [ProducerClosed]
    assert values(read_all(bootstrap, topic)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": "2"},
        {"acks": "1"},
        {"compression_type": "brotli"},
        {"linger_ms": 10, "delivery_timeout_ms": 5},
        {"linger_ms": -1},
        {"batch_size": -1},
        {"max_block_ms": -1},
        {"retry_backoff_ms": -5},
        {"request_timeout_ms": 0},
        {"max_request_size": 0},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(InvalidConfig):
        Producer("127.0.0.1:1", **wrong)


def test_wrong_timestamps_are_refused():
    with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ValueError, match="timestamp_ms=-5"):
            producer.send("t", b"v", timestamp_ms=-5)
        with pytest.raises(TypeError):
            producer.send("t", b"v", timestamp_ms=1.5)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restarted_broker_loses_and_doubles_nothing(tmp_path, how):
    with BrokerProcess(tmp_path, overrides={"num.partitions": 2}) as broker:
        stopped = threading.Event()
        told: dict[int, list] = defaultdict(list)
        failures = []

        def delivered(metadata, error, value):
            if error is None:
                told[metadata.partition].append((metadata.offset, value))
            else:
                failures.append(error)

        # The topic is made by the first send, which the broker allows here.
        producer = Producer(broker.bootstrap, batch_size=1000, linger_ms=1, retry_backoff_ms=20)
        sent = 0

        def send():
            nonlocal sent
            while not stopped.is_set():
                value = b"%d" % sent
                producer.send(
                    "restarts",
                    value,
                    partition=sent % 2,
                    on_delivery=lambda metadata, error, value=value: delivered(
                        metadata, error, value
                    ),
                )
                sent += 1
                if sent % 50 == 0:
                    time.sleep(0.001)  # so that the broker has a chance to keep up

        thread = threading.Thread(target=send)
        thread.start()
        for round_ in range(3):
            reached = sum(map(len, told.values())) + 500
            deadline = time.monotonic() + WAIT_S
            while sum(map(len, told.values())) < reached:
                assert time.monotonic() < deadline, f"nothing is acknowledged in round {round_}"
                time.sleep(0.005)
            getattr(broker, how)()
            broker.start()
        stopped.set()
        thread.join()
        producer.close(WAIT_S)
        assert failures == []
        found = read_all(broker.bootstrap, "restarts")
        for partition in range(2):
            written = [record.value for record in found[partition]]
            assert written == [b"%d" % n for n in range(partition, sent, 2)]
            assert sorted(told[partition]) == list(enumerate(written))


def test_record_sent_twice_by_hand_is_two_records(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap) as producer:
        for _ in range(2):
            producer.send(topic, b"same").result(WAIT_S)
    assert values(read_all(bootstrap, topic)) == [b"same", b"same"]
