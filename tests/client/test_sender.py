"""The producer against bad luck: a broker that drops, delays, refuses and says nothing.

The oracle is the ledger of the fake broker, which checks sequences as Kafka does. Whatever happens,
an acknowledged record is there once and in order, and nothing is there twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import pytest

from plog.client.producer import Producer, ProducerClosed
from plog.errors import ErrorCode, InvalidRecord, KafkaError, RequestTimedOut
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.messages.producers import InitProducerIdRequest
from tests.client.fake_broker import CLOSE, SILENCE, ProduceBroker, produced

WAIT_S = 60
PARTITIONS = 3
SEEDS = [1, 2, 3, 4, 5, 6]

NOT_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)
NOT_ENOUGH = (ErrorCode.NOT_ENOUGH_REPLICAS, False)
NOT_ENOUGH_AFTER = (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True)
TIMED_OUT_AFTER = (ErrorCode.REQUEST_TIMED_OUT, True)
TIMED_OUT_BEFORE = (ErrorCode.REQUEST_TIMED_OUT, False)
REFUSED = (ErrorCode.INVALID_RECORD, False)

PASSING = ["before", "after", NOT_LEADER, NOT_ENOUGH, NOT_ENOUGH_AFTER, TIMED_OUT_AFTER]


def producer_of(fake: ProduceBroker, **options) -> Producer:
    arguments = {"retry_backoff_ms": 1, "linger_ms": 1, "batch_size": 300, **options}
    return Producer(fake.bootstrap, **arguments)


@pytest.mark.parametrize("seed", SEEDS)
def test_bad_luck_that_passes_loses_nothing_doubles_nothing_and_keeps_the_order(seed):
    print("seed", seed)
    chance = random.Random(seed)
    with ProduceBroker(PARTITIONS) as fake:
        fake.luck = lambda _request: chance.choice(PASSING) if chance.random() < 0.3 else None
        producer = producer_of(fake)
        told = defaultdict(list)
        for n in range(3000):
            partition = n % PARTITIONS
            producer.send(
                "t",
                b"%d" % n,
                partition=partition,
                on_delivery=lambda metadata, error, n=n: told[metadata.partition].append(
                    (metadata.offset, b"%d" % n)
                ),
            )
        producer.close(WAIT_S)
        for partition, ledger in enumerate(fake.ledgers):
            assert ledger.values == [b"%d" % n for n in range(partition, 3000, PARTITIONS)]
            assert sorted(told[partition]) == list(enumerate(ledger.values))


@pytest.mark.parametrize("seed", SEEDS)
def test_records_that_are_refused_or_given_up_leave_the_others_in_order(seed):
    print("seed", seed)
    chance = random.Random(seed)
    with ProduceBroker(PARTITIONS) as fake:

        def luck(_request):
            drawn = chance.random()
            if drawn < 0.1:
                return REFUSED
            if drawn < 0.5:
                return chance.choice([*PASSING, TIMED_OUT_BEFORE])
            return None

        fake.luck = luck
        # So short that some records are given up, with their batches still on their way.
        producer = producer_of(fake, delivery_timeout_ms=60, batch_size=200)
        told, failed = defaultdict(list), defaultdict(dict)
        for n in range(3000):

            def delivered(metadata, error, n=n):
                if error is None:
                    told[n % PARTITIONS].append((metadata.offset, b"%d" % n))
                else:
                    failed[n % PARTITIONS][b"%d" % n] = error

            producer.send("t", b"%d" % n, partition=n % PARTITIONS, on_delivery=delivered)
        producer.close(WAIT_S)
        for partition, ledger in enumerate(fake.ledgers):
            sent = [b"%d" % n for n in range(partition, 3000, PARTITIONS)]
            assert len(told[partition]) + len(failed[partition]) == len(sent)
            # Nothing twice, and what is there is in the order it was sent in.
            assert [int(v) for v in ledger.values] == sorted({int(v) for v in ledger.values})
            assert all(ledger.values[offset] == value for offset, value in told[partition])
            refused = {v for v, e in failed[partition].items() if isinstance(e, InvalidRecord)}
            assert not refused & {value for _, value in told[partition]}
            assert {value for _, value in told[partition]} <= set(ledger.values)
        assert all(
            isinstance(error, InvalidRecord | RequestTimedOut)
            for errors in failed.values()
            for error in errors.values()
        )


@pytest.mark.parametrize("luck", PASSING)
def test_each_kind_of_bad_luck_is_survived_once(luck):
    with ProduceBroker() as fake:
        lots = [luck]
        fake.luck = lambda _request: lots.pop() if lots else None
        with producer_of(fake) as producer:
            assert producer.send("t", b"x").result(WAIT_S).offset == 0
        assert fake.ledgers[0].values == [b"x"]
        assert not lots


def test_duplicate_that_the_broker_forgot_is_success():
    with ProduceBroker() as fake:
        lots = [(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, True)]
        fake.luck = lambda _request: lots.pop() if lots else None
        with producer_of(fake) as producer:
            assert producer.send("t", b"x").result(WAIT_S).offset == -1
            assert producer.send("t", b"y").result(WAIT_S).offset == 1


@pytest.mark.parametrize(
    ("code", "ids"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1),
        (ErrorCode.UNKNOWN_PRODUCER_ID, 1),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 2),
    ],
)
def test_refused_numbers_are_given_anew_and_the_order_stays(code, ids):
    with ProduceBroker() as fake:
        with producer_of(fake, linger_ms=0) as producer:
            for n in range(5):
                producer.send("t", b"%d" % n).result(WAIT_S)
            lots = [(code, False)]
            fake.luck = lambda _request: lots.pop() if lots else None
            for n in range(5, 500):
                producer.send("t", b"%d" % n)
        assert fake.ledgers[0].values == [b"%d" % n for n in range(500)]
        assert fake.count(InitProducerIdRequest) == ids


def test_first_batches_are_not_pipelined():
    """A broker takes any sequence of a producer it does not know: a later batch could go first."""
    with ProduceBroker() as fake:
        lots = [NOT_ENOUGH] * 3
        fake.luck = lambda _request: lots.pop() if lots else None
        with producer_of(fake, batch_size=100) as producer:
            for n in range(50):
                producer.send("t", b"%d" % n)
        assert fake.ledgers[0].values == [b"%d" % n for n in range(50)]


def test_batches_of_a_partition_are_pipelined_once_it_is_known():
    with ProduceBroker() as fake:
        waiting = threading.Event()
        most = []

        def produce(request, header):
            if len(fake.ledgers[0].values) == 1:
                waiting.wait(0.2)  # with the lock held: the others pile up in the socket
            most.append(time.monotonic())
            return ProduceBroker.produce(fake, request, header)

        fake.answers[ApiKey.PRODUCE] = produce
        with producer_of(fake, linger_ms=0, batch_size=100) as producer:
            producer.send("t", b"first").result(WAIT_S)
            for n in range(40):
                producer.send("t", b"%d" % n)
            waiting.set()
        assert fake.ledgers[0].values == [b"first", *(b"%d" % n for n in range(40))]


def test_leader_that_is_not_known_is_asked_for_until_it_is():
    with ProduceBroker() as fake:
        asked = []

        def metadata(request, header):
            asked.append(request)
            answer = fake.metadata(request, header)
            if 2 <= len(asked) <= 5:
                answer.topics = [fake.describe(t.name, leader=-1) for t in request.topics]
            return answer

        fake.answers[ApiKey.METADATA] = metadata
        with producer_of(fake) as producer:
            producer.send("t", b"0").result(WAIT_S)
            lots = [NOT_LEADER]
            fake.luck = lambda _request: lots.pop() if lots else None
            assert producer.send("t", b"1").result(WAIT_S).offset == 1
        assert len(asked) > 5


def test_topic_that_is_being_created_is_waited_for():
    with ProduceBroker() as fake:
        asked = []

        def metadata(request, header):
            asked.append(request.allow_auto_topic_creation)
            answer = fake.metadata(request, header)
            if len(asked) < 4:
                error = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
                answer.topics = [
                    fake.describe(t.name, error[len(asked) % 2]) for t in request.topics
                ]
            return answer

        fake.answers[ApiKey.METADATA] = metadata
        with producer_of(fake) as producer:
            assert producer.send("t", b"x").result(WAIT_S).offset == 0
        assert asked == [True] * 4


def test_record_is_given_up_after_its_delivery_timeout_with_the_reason():
    with ProduceBroker() as fake:
        # By its value: one more of its requests may be on its way when it is given up.
        fake.luck = lambda request: NOT_ENOUGH if produced(request) == [b"x"] else None
        with producer_of(fake, delivery_timeout_ms=100) as producer:
            waiting = producer.send("t", b"x")
            with pytest.raises(RequestTimedOut, match="NOT_ENOUGH_REPLICAS"):
                waiting.result(WAIT_S)
            assert producer.send("t", b"y").result(WAIT_S).offset == 0
        assert fake.ledgers[0].values == [b"y"]


def test_silent_broker_costs_the_connection_and_the_batch_is_sent_again():
    with ProduceBroker() as fake:
        asked = []

        def produce(request, header):
            asked.append(request)
            answer = ProduceBroker.produce(fake, request, header)
            return SILENCE if len(asked) == 1 else answer

        fake.answers[ApiKey.PRODUCE] = produce
        with producer_of(fake, request_timeout_ms=150) as producer:
            assert producer.send("t", b"x").result(WAIT_S).offset == 0
        assert fake.ledgers[0].values == [b"x"]
        assert len(asked) == 2


def test_answer_without_the_partition_is_no_acknowledgement():
    with ProduceBroker() as fake:
        lots = [None]

        def produce(request, header):
            answer = ProduceBroker.produce(fake, request, header)
            if lots:
                lots.pop()
                answer.responses = []
            return answer

        fake.answers[ApiKey.PRODUCE] = produce
        with producer_of(fake) as producer:
            assert producer.send("t", b"x").result(WAIT_S).offset == 0
        assert fake.ledgers[0].values == [b"x"]


def test_producer_id_that_is_refused_fails_the_records():
    with ProduceBroker() as fake:

        def refuse(request, header):
            answer = fake.init_producer_id(request, header)
            answer.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return answer

        fake.answers[ApiKey.INIT_PRODUCER_ID] = refuse
        with producer_of(fake) as producer, pytest.raises(KafkaError, match="InitProducerId"):
            producer.send("t", b"x").result(WAIT_S)


def silent(fake: ProduceBroker) -> threading.Event:
    """Have the broker swallow Produce requests; return what says that one came."""
    came = threading.Event()

    def produce(request, header):
        came.set()
        return SILENCE

    fake.answers[ApiKey.PRODUCE] = produce
    return came


def test_full_memory_holds_send_up_and_then_refuses():
    with ProduceBroker() as fake:
        silent(fake)
        producer = producer_of(fake, buffer_memory=2000, max_block_ms=100)

        def fill():
            for _ in range(100):
                producer.send("t", b"x" * 100)

        with pytest.raises(RequestTimedOut, match="buffer_memory=2000 is still full") as caught:
            fill()
        assert "after max_block_ms=100" in str(caught.value)
        assert fake.bootstrap in str(caught.value)
        producer.close(0)


def test_room_is_made_by_answers():
    with ProduceBroker() as fake:
        with producer_of(fake, buffer_memory=2000, linger_ms=50_000) as producer:
            for n in range(500):
                producer.send("t", b"%d" % n)
        assert len(fake.ledgers[0].values) == 500


def test_flush_says_that_its_time_is_over():
    with ProduceBroker() as fake:
        silent(fake)
        producer = producer_of(fake)
        waiting = producer.send("t", b"x")
        with pytest.raises(TimeoutError, match=f"not acknowledged; sent to {fake.bootstrap}"):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        assert not waiting.done()
        producer.close(0)


def test_record_that_expires_before_any_answer_names_the_leader():
    with ProduceBroker() as fake:
        silent(fake)
        producer = producer_of(fake, delivery_timeout_ms=100, request_timeout_ms=30_000)
        waiting = producer.send("t", b"x")
        with pytest.raises(RequestTimedOut) as caught:
            waiting.result(WAIT_S)
        expected = f"record for t-0: sent and never acknowledged in 0.1 s; leader: {fake.bootstrap}"
        assert str(caught.value) == expected
        producer.close(0)


def test_close_gives_up_what_is_in_flight_when_its_time_is_over():
    with ProduceBroker() as fake:
        came = silent(fake)
        producer = producer_of(fake)
        waiting = producer.send("t", b"x")
        assert came.wait(WAIT_S)
        producer.close(0)
        with pytest.raises(ProducerClosed):
            waiting.result(WAIT_S)


def test_close_wakes_who_waits_for_room_or_for_a_topic():
    with ProduceBroker() as fake:
        silent(fake)

        def metadata(request, header):
            answer = fake.metadata(request, header)
            answer.topics = [
                fake.describe(t.name, 0 if t.name == "t" else ErrorCode.LEADER_NOT_AVAILABLE)
                for t in request.topics
            ]
            return answer

        fake.answers[ApiKey.METADATA] = metadata
        producer = producer_of(fake, buffer_memory=1000)
        ended = []

        def fill(topic):
            try:
                while True:
                    producer.send(topic, b"x" * 100)
            except ProducerClosed:
                ended.append(topic)

        threads = [threading.Thread(target=fill, args=(topic,)) for topic in ("t", "new")]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + WAIT_S
        while fake.count(ProduceRequest) == 0 or fake.count(MetadataRequest) < 3:
            assert time.monotonic() < deadline, "nothing is sent"
            time.sleep(0.01)
        producer.close(0)
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(ended) == ["new", "t"]


def test_connection_that_breaks_while_idle_costs_no_record():
    with ProduceBroker() as fake, producer_of(fake, retry_backoff_ms=10_000) as producer:
        producer.send("t", b"0").result(WAIT_S)
        fake.answers[ApiKey.INIT_PRODUCER_ID] = lambda request, header: CLOSE
        for connected in list(fake._sockets):
            connected.shutdown(2)
        # A retry would take ten seconds.
        assert producer.send("t", b"1").result(8).offset == 1
