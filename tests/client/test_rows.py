"""`Producer.send_rows`: rows of Arrow columns, on a real broker and against bad luck."""

from __future__ import annotations

import random
import threading

import pytest

from plog.client.consumer import Consumer
from plog.client.partitioner import partition_for_key, round_robin
from plog.client.producer import Producer, ProducerClosed, RowColumns
from plog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRecord,
    InvalidTopic,
    InvalidTxnState,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from tests.arrow_rows import columns_of, rows_of, table
from tests.client.fake_broker import SILENCE, ProduceBroker, TxnBroker
from tests.client.test_producer import read_all, values
from tests.client.test_sender import PASSING
from tests.handlers.wire import fresh_name
from tests.waiting import until

WAIT_S = 60
PARTITIONS = 3
REFUSED = (ErrorCode.INVALID_RECORD, False)


def rows(found, **columns):
    """Return rows of such values, and other columns made of each by a function."""
    return rows_of(
        table(
            [
                {"value": value, **{name: make(value) for name, make in columns.items()}}
                for value in found
            ]
        )
    )


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


# -- on a broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_come_back_as_they_were_sent(bootstrap, new_topic, codec):
    topic = new_topic()
    sent = [
        {},
        {"key": b"", "value": b"", "headers": [{"key": "", "value": b""}], "timestamp_ms": 0},
        {"key": b"k", "value": b"v" * 100_000, "headers": [{"key": "ü", "value": None}]},
        {"value": b"x", "headers": [], "timestamp_ms": 1_600_000_000_000},
        *({"key": b"%d" % n, "value": b"y" * n} for n in range(300)),
    ]
    # In a partition those with a key and those without are in no order among each other.
    for row in sent:
        row["partition"] = 0
    with Producer(bootstrap, compression_type=codec) as producer:
        delivery = producer.send_rows(topic, rows_of(table(sent)), timestamp_ms=77)
        delivery.result(WAIT_S)
        assert delivery.done()
    found = read_all(bootstrap, topic)[0]
    assert [(r.key, r.value, r.timestamp) for r in found] == [
        (row.get("key"), row.get("value"), row.get("timestamp_ms", 77)) for row in sent
    ]
    assert [list(r.headers) for r in found] == [
        [(one["key"], one["value"]) for one in row.get("headers", ())] for row in sent
    ]


def test_rows_of_a_key_go_where_records_of_it_do_and_keep_their_order(bootstrap, new_topic):
    topic = new_topic(5)
    with Producer(bootstrap, batch_size=2000) as producer:
        for start in range(0, 6000, 1500):
            part = rows(numbers(start, start + 1500), key=lambda value: value[-2:])
            producer.send_rows(topic, part)
        producer.flush(WAIT_S)
    found = read_all(bootstrap, topic)
    assert len(values(found)) == 6000
    for partition, records in found.items():
        assert {partition_for_key(record.key, 5) for record in records} == {partition}
        assert [int(record.value) for record in records] == sorted(int(r.value) for r in records)


def test_rows_without_key_are_in_every_partition_in_order(bootstrap, new_topic):
    topic = new_topic(PARTITIONS)
    with Producer(bootstrap, batch_size=1000) as producer:
        producer.send_rows(topic, rows(numbers(0, 10_000)))
    found = read_all(bootstrap, topic)
    assert len(found) == PARTITIONS
    assert sorted(values(found), key=int) == numbers(0, 10_000)
    for records in found.values():
        assert [int(record.value) for record in records] == sorted(int(r.value) for r in records)


def test_rows_that_name_their_partition_go_there_and_others_by_their_key(bootstrap, new_topic):
    topic = new_topic(PARTITIONS)
    batch = table(
        [
            {"key": b"k%d" % n, "value": b"%d" % n, "partition": n % 2 if n % 3 else None}
            for n in range(100)
        ]
    )
    with Producer(bootstrap) as producer:
        producer.send_rows(topic, rows_of(batch[1:]))
    for partition, records in read_all(bootstrap, topic).items():
        for record in records:
            n = int(record.value)
            assert partition == (n % 2 if n % 3 else partition_for_key(record.key, PARTITIONS))


def test_records_among_rows_have_their_own_offsets_and_times(bootstrap, new_topic):
    topic = new_topic()
    told = []
    with Producer(bootstrap, linger_ms=10_000) as producer:
        producer.send_rows(topic, rows(numbers(0, 10)), timestamp_ms=5)
        first = producer.send(
            topic, b"10", timestamp_ms=7, on_delivery=lambda *one: told.append(one)
        )
        producer.send_rows(topic, rows(numbers(11, 20)), timestamp_ms=9)
        last = producer.send(topic, b"20", timestamp_ms=11)
        producer.flush(WAIT_S)
    assert first.result(0)[2:] == (10, 7)
    assert last.result(0)[2:] == (20, 11)
    assert told == [(first.result(0), None)]
    assert values(read_all(bootstrap, topic)) == numbers(0, 21)


def test_more_rows_than_there_is_memory_for_wait_for_room(bootstrap, new_topic):
    topic = new_topic(PARTITIONS)
    sent = [b"%06d" % n + b"x" * 500 for n in range(5000)]
    with Producer(bootstrap, buffer_memory=50_000, linger_ms=50_000) as producer:
        producer.send_rows(topic, rows(sent, key=lambda value: value[:6]))
        assert producer._accumulator.buffered_bytes <= 50_000
    assert sorted(values(read_all(bootstrap, topic))) == sent


def test_threads_send_rows_together_and_each_keeps_its_order(bootstrap, new_topic):
    topic = new_topic(PARTITIONS)
    threads, each = 4, 3000
    with Producer(bootstrap, batch_size=1000, buffer_memory=20_000) as producer:

        def send(name: int) -> None:
            sent = [b"%d-%d" % (name, n) for n in range(each)]
            for start in range(0, each, 500):
                part = rows(sent[start : start + 500], key=lambda value: value[-1:])
                producer.send_rows(topic, part)

        running = [threading.Thread(target=send, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    found = read_all(bootstrap, topic)
    assert len(set(values(found))) == len(values(found)) == threads * each
    for records in found.values():
        for name in range(threads):
            mine = [r.value for r in records if r.value.startswith(b"%d-" % name)]
            assert mine == sorted(mine, key=lambda value: int(value.partition(b"-")[2]))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_batch_of_rows_that_the_topic_finds_too_large_is_split(bootstrap, new_topic, codec):
    topic = new_topic(max_message_bytes=3000)
    sent = [random.Random(n).randbytes(500) for n in range(40)]
    with Producer(bootstrap, batch_size=60_000, compression_type=codec) as producer:
        delivery = producer.send_rows(topic, rows(sent), timestamp_ms=5)
        producer.flush(WAIT_S)
        delivery.result(0)
    found = read_all(bootstrap, topic)[0]
    assert [(record.value, record.timestamp) for record in found] == [(one, 5) for one in sent]


def test_row_that_the_topic_refuses_fails_its_call_and_each_flush(bootstrap, new_topic):
    topic = new_topic(max_message_bytes=1000)
    producer = Producer(bootstrap, batch_size=60_000)
    good = producer.send_rows(topic, rows([b"a"]))
    producer.flush(WAIT_S)
    bad = producer.send_rows(topic, rows([b"x" * size for size in (10, 5000, 20)]))
    for _ in range(2):  # of another thread it might be
        with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes is 1000"):
            producer.flush(WAIT_S)
    good.result(0)
    for _ in range(2):
        with pytest.raises(MessageTooLarge):
            bad.result(0)
    producer.flush(WAIT_S)  # who sent them was told
    producer.close()
    assert [len(v) for v in values(read_all(bootstrap, topic))] == [1, 10, 20]


def test_failure_that_nobody_was_told_comes_out_of_close(bootstrap, new_topic):
    topic = new_topic(max_message_bytes=1000)
    with pytest.raises(MessageTooLarge), Producer(bootstrap) as producer:
        producer.send_rows(topic, rows([b"x" * 5000]))
    producer.close()
    with pytest.raises(KeyError), Producer(bootstrap) as producer:  # noqa: PT012 - what it is about
        producer.send_rows(topic, rows([b"x" * 5000]))
        raise KeyError


def test_row_larger_than_max_request_size_is_refused_before_any_is_sent(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap, max_request_size=1000) as producer:
        with pytest.raises(MessageTooLarge, match=rf"row 1 of 1097 bytes for '{topic}'"):
            producer.send_rows(topic, rows([b"1", b"x" * 1000, b"3"]))
        producer.send_rows(topic, rows([b"x" * 800])).result(WAIT_S)
    assert [len(v) for v in values(read_all(bootstrap, topic))] == [800]


def test_rows_that_go_nowhere_are_refused(bootstrap, new_topic):
    topic = new_topic(2)
    some = rows([b"x"])
    with Producer(bootstrap, max_block_ms=200) as producer:
        with pytest.raises(UnknownTopicOrPartition, match="has no partition 2, only 2 partitions"):
            producer.send_rows(topic, rows([b"x", b"y"], partition=lambda value: value[0] - 119))
        with pytest.raises(UnknownTopicOrPartition):
            producer.send_rows(fresh_name(), some)
        with pytest.raises(InvalidTopic):
            producer.send_rows("no topic", some)
        with pytest.raises(ValueError, match="at least 0"):
            producer.send_rows(topic, some, timestamp_ms=-1)
        producer.send_rows(topic, rows([])).result(0)
        producer.flush(WAIT_S)
    with pytest.raises(ProducerClosed):
        producer.send_rows(topic, some)
    assert read_all(bootstrap, topic) == {}


def test_partitioner_of_the_application_is_not_asked_about_rows(bootstrap, new_topic):
    topic = new_topic(2)
    with Producer(bootstrap, partitioner=round_robin()) as producer:
        with pytest.raises(InvalidConfig):
            producer.send_rows(topic, rows([b"x"]))
        producer.send_rows(topic, rows([b"x"], partition=lambda _: 1))
    assert values(read_all(bootstrap, topic)) == [b"x"]


def test_acks_0_needs_no_answer(bootstrap, new_topic):
    topic = new_topic()
    with Producer(bootstrap, acks="0", enable_idempotence=False) as producer:
        producer.send_rows(topic, rows(numbers(0, 1000))).result(WAIT_S)
        until(lambda: len(values(read_all(bootstrap, topic))) == 1000)


# -- transactions ----------------------------------------------------------------------------------


def committed(bootstrap: str, topic: str, most: int = 100_000) -> list[bytes]:
    with Consumer(
        bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        assigned = consumer.partitions_for(topic)
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        found = []
        while any(consumer.position(p) < ends[p] for p in assigned) and len(found) < most:
            found += [record.value for record in consumer.poll(WAIT_S * 1000)]
        return found


def test_rows_of_a_transaction_are_seen_once_it_is_committed(bootstrap, new_topic):
    topic = new_topic(PARTITIONS)
    with Producer(bootstrap, transactional_id=fresh_name(), batch_size=1000) as producer:
        with pytest.raises(InvalidTxnState):
            producer.send_rows(topic, rows([b"too early"]))
        producer.init_transactions()
        with producer.transaction():
            producer.send_rows(topic, rows(numbers(0, 3000), key=lambda value: value))
            producer.flush(WAIT_S)
        producer.begin_transaction()
        producer.send_rows(topic, rows([b"aborted"]))
        producer.flush(WAIT_S)
        producer.abort_transaction()
        with producer.transaction():
            producer.send_rows(topic, rows(numbers(3000, 3100)))
    until(lambda: sorted(committed(bootstrap, topic), key=int) == numbers(0, 3100))


def test_transaction_with_a_row_that_is_refused_can_only_be_aborted(bootstrap, new_topic):
    topic = new_topic(max_message_bytes=1000)
    with Producer(bootstrap, transactional_id=fresh_name()) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_rows(topic, rows([b"a", b"x" * 5000]))
        with pytest.raises(MessageTooLarge):
            producer.flush(WAIT_S)
        with pytest.raises(MessageTooLarge):
            producer.commit_transaction()
        with pytest.raises(InvalidTxnState):
            producer.send_rows(topic, rows([b"b"]))
        producer.abort_transaction()
        producer.flush(WAIT_S)  # that was asked for
        with producer.transaction():
            producer.send_rows(topic, rows([b"c"]))
            producer.flush(WAIT_S)
    until(lambda: committed(bootstrap, topic) == [b"c"])


def test_call_that_sent_some_of_its_rows_leaves_a_transaction_that_can_only_be_aborted():
    with TxnBroker() as fake:
        usual = fake.answers[0]
        fake.answers[0] = lambda *_: SILENCE
        with Producer(
            fake.bootstrap,
            transactional_id="tx",
            buffer_memory=2000,
            batch_size=500,
            max_block_ms=500,
            request_timeout_ms=1000,
        ) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises(RequestTimedOut, match="buffer_memory=2000 is still full"):
                producer.send_rows("t", rows(numbers(0, 1000)))
            with pytest.raises(RequestTimedOut, match="buffer_memory=2000 is still full"):
                producer.commit_transaction()
            fake.answers[0] = usual
            until(lambda: not _raises(producer.abort_transaction))
            with producer.transaction():
                producer.send_rows("t", rows([b"after"]))
        assert fake.ledgers[0].values[-1:] == [b"after"]
        assert fake.ends == [False, True]


def _raises(call) -> bool:
    try:
        call()
    except RequestTimedOut:
        return True
    return False


# -- bad luck --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_bad_luck_that_passes_loses_nothing_doubles_nothing_and_keeps_the_order(seed):
    chance = random.Random(seed)
    with ProduceBroker(PARTITIONS) as fake:
        fake.luck = lambda _request: chance.choice(PASSING) if chance.random() < 0.3 else None
        with Producer(
            fake.bootstrap, retry_backoff_ms=1, linger_ms=1, batch_size=300, buffer_memory=5000
        ) as producer:
            deliveries = [
                producer.send_rows(
                    "t",
                    rows(numbers(start, start + 300), partition=lambda value: int(value) % 3),
                )
                for start in range(0, 3000, 300)
            ]
            producer.flush(WAIT_S)
            for delivery in deliveries:
                delivery.result(0)
        for partition, ledger in enumerate(fake.ledgers):
            assert ledger.values == [b"%d" % n for n in range(partition, 3000, PARTITIONS)]


@pytest.mark.parametrize("seed", range(4))
def test_call_succeeds_only_if_each_of_its_rows_was_acknowledged(seed):
    chance = random.Random(seed)
    too_large = (ErrorCode.MESSAGE_TOO_LARGE, False)
    with ProduceBroker() as fake:
        fake.luck = lambda _request: (
            chance.choice([REFUSED, too_large, *PASSING]) if chance.random() < 0.2 else None
        )
        producer = Producer(fake.bootstrap, retry_backoff_ms=1, linger_ms=1, batch_size=300)
        calls = [
            (start, producer.send_rows("t", rows(numbers(start, start + 20))))
            for start in range(0, 2000, 20)
        ]
        written, failed = set(), 0
        for start, delivery in calls:
            try:
                delivery.result(WAIT_S)
                written.update(numbers(start, start + 20))
            except (InvalidRecord, MessageTooLarge):
                failed += 1
        assert failed
        assert written <= set(fake.ledgers[0].values)
        assert len(set(fake.ledgers[0].values)) == len(fake.ledgers[0].values)
        producer.flush(0)  # all was told
        producer.close()


def test_close_gives_up_rows_that_were_not_acknowledged_and_says_so():
    with ProduceBroker() as fake:
        fake.answers[0] = lambda *_: SILENCE
        producer = Producer(fake.bootstrap)
        delivery = producer.send_rows("t", rows([b"x"]))
        with pytest.raises(TimeoutError):
            delivery.result(0.01)
        with pytest.raises(ProducerClosed):
            producer.close(0.05)
        with pytest.raises(ProducerClosed):
            delivery.result(0)


def test_buffers_are_let_go_when_the_rows_are():
    held = bytearray(b"x" * 100)
    count, columns, array_offsets = columns_of(table([{"value": b"x" * 100}], ["value"]))
    columns["value"] = [None, bytes(columns["value"][1]), held]
    with ProduceBroker() as fake, Producer(fake.bootstrap) as producer:
        producer.send_rows("t", RowColumns(count, columns, array_offsets))
        held.clear()  # a copy is on its way
        producer.flush(WAIT_S)
        assert fake.ledgers[0].values == [b"x" * 100]
