"""The consumer against a real broker, and against a fake one for what a real one does not do."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from plog.client.consumer import Consumer, ConsumerClosed, NotAssigned
from plog.client.producer import Producer
from plog.errors import (
    CorruptRecord,
    ErrorCode,
    InvalidConfig,
    NetworkException,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from plog.types import TopicPartition
from tests.client.fake_broker import CLOSE, SILENCE, FakeBroker, batch_of, fetched
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

WAIT_MS = 60_000


def fill(bootstrap: str, topic: str, counts: list[int], **options) -> None:
    """Write "0", "1", ... into each partition."""
    with Producer(bootstrap, **options) as producer:
        for partition, count in enumerate(counts):
            for n in range(count):
                producer.send(topic, b"%d" % n, partition=partition, timestamp_ms=1000 + n * 10)


def take(consumer: Consumer, count: int) -> list:
    """Poll until so many records have come."""
    found = []
    deadline = time.monotonic() + WAIT_MS / 1000
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += consumer.poll(1000)
    return found


def offsets(records) -> list[int]:
    return [record.offset for record in records]


@pytest.fixture
def reading(bootstrap, new_topic):
    """A function: a consumer of a new topic with so many records in each partition."""
    opened = []

    def make(counts, *, producer=None, topic_settings=None, **options) -> Consumer:
        topic = new_topic(len(counts), **(topic_settings or {}))
        fill(bootstrap, topic, counts, **(producer or {}))
        options = {"auto_offset_reset": "earliest", **options}
        consumer = Consumer(bootstrap, **options)
        opened.append(consumer)
        consumer.assign(consumer.partitions_for(topic))
        return consumer

    yield make
    for consumer in opened:
        consumer.close()


def test_every_record_of_every_partition_comes_once_in_order(reading):
    consumer = reading([100, 0, 2500, 7], max_poll_records=97)
    found = take(consumer, 2607)
    for partition, count in enumerate([100, 0, 2500, 7]):
        values = [r.value for r in found if r.partition == partition]
        assert values == [b"%d" % n for n in range(count)]
    assert consumer.poll(50) == []
    assert [consumer.position(p) for p in consumer.assignment()] == [100, 0, 2500, 7]

    def are_ends_known() -> bool:  # of partitions on several brokers not all at once
        assert consumer.poll(50) == []
        ends = [consumer.high_watermark(p) for p in consumer.assignment()]
        return ends == [100, 0, 2500, 7]

    until(are_ends_known, "ends known")


def test_poll_shares_its_records_among_the_partitions(reading):
    consumer = reading([300, 300, 300], max_poll_records=60)

    def are_shared() -> bool:
        consumer.seek_to_beginning()
        polls = []
        while sum(map(len, polls)) < 900:
            polls.append(consumer.poll(WAIT_MS))
        assert max(map(len, polls)) <= 60
        shared = [Counter(r.partition for r in records) for records in polls]
        # Once all three are buffered each poll gives each its part, so none runs far ahead.
        return sum(len(counter) == 3 for counter in shared) >= 10

    # A broker of several may answer once the records of another's partition have been given.
    until(are_shared, "shared")


def test_seek_goes_there_whatever_is_buffered_or_in_flight(reading):
    consumer = reading([1000], max_poll_records=10)
    (partition,) = consumer.assignment()
    assert offsets(consumer.poll(WAIT_MS)) == list(range(10))
    for target in (500, 3, 999, 0, 500):
        consumer.seek(partition, target)
        assert consumer.position(partition) == target
        assert offsets(consumer.poll(WAIT_MS))[0] == target
    consumer.seek_to_end()
    assert consumer.position(partition) == 1000
    assert consumer.poll(20) == []
    consumer.seek_to_beginning([partition])
    assert offsets(consumer.poll(WAIT_MS)) == list(range(10))


def test_other_requests_do_not_disturb_a_fetch_that_waits(reading, bootstrap):
    consumer = reading([5], fetch_max_wait_ms=20_000)
    (partition,) = consumer.assignment()
    take(consumer, 5)
    assert consumer.poll(10) == []  # a fetch waits at the broker now
    assert consumer.end_offsets([partition]) == {partition: 5}
    assert consumer.offsets_for_times({partition: 1020})[partition].offset == 2
    fill(bootstrap, partition.topic, [1])
    assert offsets(consumer.poll(WAIT_MS)) == [5]


def test_paused_partition_is_silent_until_resumed(reading):
    consumer = reading([50, 50], max_poll_records=5)
    first, second = consumer.assignment()
    found = consumer.poll(WAIT_MS)
    consumer.pause([first])
    assert consumer.paused() == [first]
    before = consumer.position(first)
    rest = take(consumer, 50 - sum(r.partition == 1 for r in found))
    assert {r.partition for r in rest} == {1}
    assert consumer.poll(20) == []
    assert consumer.position(first) == before
    consumer.resume([first])
    assert offsets(take(consumer, 50 - before)) == list(range(before, 50))
    assert consumer.position(second) == 50


def test_paused_partition_may_be_moved(reading):
    consumer = reading([50])
    (partition,) = consumer.assignment()
    consumer.pause([partition])
    consumer.seek(partition, 40)
    assert consumer.poll(20) == []
    consumer.resume([partition])
    assert offsets(take(consumer, 10)) == list(range(40, 50))


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 10)])
def test_position_that_is_not_set_follows_the_reset(reading, reset, expected):
    consumer = reading([10], auto_offset_reset=reset)
    (partition,) = consumer.assignment()
    assert consumer.position(partition) == expected


@pytest.mark.parametrize("target", [1, 1000])
@pytest.mark.parametrize(("reset", "expected"), [("earliest", range(4, 11)), ("latest", [10])])
def test_position_out_of_range_follows_the_reset(
    reading, admin, bootstrap, reset, expected, target
):
    consumer = reading([10], auto_offset_reset=reset)
    (partition,) = consumer.assignment()
    admin.delete_records({partition: 4})
    consumer.seek(partition, target)
    deadline = time.monotonic() + 90
    found = []
    while consumer.position(partition) == target:
        found += consumer.poll(10)
        assert time.monotonic() < deadline
    fill(bootstrap, partition.topic, [1])
    found += take(consumer, len(expected) - len(found))
    assert offsets(found) == list(expected)


def test_reset_none_raises_until_a_seek(reading):
    consumer = reading([10], auto_offset_reset="none")
    (partition,) = consumer.assignment()
    with pytest.raises(OffsetOutOfRange, match="auto_offset_reset=none"):
        consumer.poll(WAIT_MS)
    with pytest.raises(OffsetOutOfRange):
        consumer.position(partition)
    consumer.seek(partition, 1000)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match="at offset 1000"):
            consumer.poll(WAIT_MS)
    consumer.seek(partition, 8)
    assert offsets(take(consumer, 2)) == [8, 9]


def test_records_larger_than_every_limit_come_through(bootstrap, new_topic):
    topic = new_topic(2)
    with Producer(bootstrap, max_request_size=8 << 20) as producer:
        for partition in (0, 1):
            for size in (10, 3 << 20, 20, 2 << 20):
                producer.send(topic, b"x" * size, partition=partition)
    with Consumer(
        bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=1000,
        fetch_max_bytes=2000,
    ) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        found = take(consumer, 8)
    for partition in (0, 1):
        sizes = [len(r.value) for r in found if r.partition == partition]
        assert sizes == [10, 3 << 20, 20, 2 << 20]


def test_offsets_are_found_by_time(reading):
    consumer = reading([100], producer={"batch_size": 300})
    (partition,) = consumer.assignment()

    def at(timestamp):
        found = consumer.offsets_for_times({partition: timestamp})[partition]
        return found.offset, found.timestamp

    assert at(0) == (0, 1000)
    assert at(1000) == (0, 1000)
    assert at(1001) == (1, 1010)
    assert at(1555) == (56, 1560)
    assert at(1990) == (99, 1990)
    assert at(1991) == (-1, -1)
    assert at(-2)[0] == 0
    assert at(-1)[0] == 100
    assert at(-3) == (99, 1990)


def test_read_committed_reads_what_is_in_no_transaction(reading):
    consumer = reading([20], isolation_level="read_committed")
    assert len(take(consumer, 20)) == 20


def test_assignment_can_change_and_what_stays_keeps_its_position(reading):
    consumer = reading([20, 20], max_poll_records=4)
    first, second = consumer.assignment()
    consumer.assign([first])
    assert offsets(consumer.poll(WAIT_MS)) == [0, 1, 2, 3]
    consumer.assign([second, first])
    found = take(consumer, 36)
    assert [r.offset for r in found if r.partition == 0] == list(range(4, 20))
    assert [r.offset for r in found if r.partition == 1] == list(range(20))
    consumer.assign([])
    assert consumer.poll(10) == []
    with pytest.raises(NotAssigned):
        consumer.seek(first, 0)
    with pytest.raises(NotAssigned):
        consumer.position(first)


def test_wrong_arguments_are_refused(reading):
    for wrong in (
        {"auto_offset_reset": "x"},
        {"isolation_level": "x"},
        {"max_poll_records": 0},
        {"fetch_max_wait_ms": -1},
        {"request_timeout_ms": 0},
    ):
        with pytest.raises(InvalidConfig):
            Consumer("127.0.0.1:1", **wrong)
    consumer = reading([1])
    for offset in (-1, 2**63):
        with pytest.raises(ValueError, match=f"offset {offset}"):
            consumer.seek(consumer.assignment()[0], offset)


def test_closed_consumer_says_so(reading):
    consumer = reading([1])
    partitions = consumer.assignment()
    consumer.close()
    with pytest.raises(ConsumerClosed):
        consumer.poll(0)
    with pytest.raises(ConsumerClosed):
        consumer.assign(partitions)


def test_unknown_topic_is_said_so(bootstrap):
    with Consumer(bootstrap) as consumer, pytest.raises(UnknownTopicOrPartition):
        consumer.partitions_for("nowhere")


def test_no_broker_is_said_so_when_asked_and_waited_for_when_polled():
    with Consumer(f"127.0.0.1:{free_port()}") as consumer:
        with pytest.raises(NetworkException):
            consumer.partitions_for("t")
        consumer.assign([TopicPartition("t", 0)])
        assert consumer.poll(50) == []


def test_topic_that_is_deleted_leaves_the_others_alone(bootstrap, admin, new_topic):
    gone, stays = new_topic(), new_topic()
    fill(bootstrap, gone, [5])
    fill(bootstrap, stays, [5])
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(gone, 0), TopicPartition(stays, 0)])
        take(consumer, 10)
        admin.delete_topic(gone)
        fill(bootstrap, stays, [500])
        assert {r.topic for r in take(consumer, 500)} == {stays}


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restarted_broker_costs_no_record_and_doubles_none(tmp_path, how):
    with BrokerProcess(tmp_path) as broker:
        fill(broker.bootstrap, "t", [4000], batch_size=500)
        stop = threading.Event()

        def restart():
            for _ in range(2):
                getattr(broker, how)()
                broker.start()
            stop.set()

        with Consumer(
            broker.bootstrap,
            auto_offset_reset="earliest",
            max_poll_records=20,
            max_partition_fetch_bytes=4000,
        ) as consumer:
            consumer.assign(consumer.partitions_for("t"))
            found = take(consumer, 200)
            thread = threading.Thread(target=restart)
            thread.start()
            while not stop.is_set():
                if len(found) < 3000:
                    found += consumer.poll(5)
                stop.wait(0.01)
            thread.join()
            found += take(consumer, 4000 - len(found))
            assert offsets(found) == list(range(4000))
            assert [r.value for r in found] == [b"%d" % n for n in range(4000)]


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_partition_that_is_offline_holds_up_nothing_but_itself(tmp_path, reset, caplog):
    with BrokerProcess(tmp_path, overrides={"num.partitions": 3}) as broker:
        fill(broker.bootstrap, "t", [100, 100, 100])
        broker.stop()
        segment = broker.partition_dir("t-1") / f"{0:020}.log"
        segment.write_bytes(segment.read_bytes()[:100])
        broker.start()
        with Consumer(broker.bootstrap, auto_offset_reset=reset) as consumer:
            consumer.assign(consumer.partitions_for("t"))
            if reset == "latest":
                until(
                    lambda: (
                        consumer.poll(50) == []
                        and {at.partition for at in consumer.known_positions()} == {0, 2}
                    )
                )
                fill(broker.bootstrap, "t", [100, 0, 100])
            found = take(consumer, 200)
            assert {r.partition for r in found} == {0, 2}
    assert "t-1 has no leader" in caplog.text
    assert "log directory is offline" in caplog.text


# -- a fake broker ---------------------------------------------------------------------------------


def endless(partition: int, offset: int) -> bytes:
    """Ten records from any offset on."""
    return batch_of([b"%d" % n for n in range(offset, offset + 10)], offset)


@pytest.fixture
def fake():
    with FakeBroker(2) as running:
        running.answers[ApiKey.FETCH] = lambda request, header: fetched(request, endless)
        yield running


def damaged(data: bytes) -> bytes:
    """A batch that does not check."""
    return data[:-1] + bytes([data[-1] ^ 1])


def consumer_of(fake: FakeBroker, **options) -> Consumer:
    consumer = Consumer(fake.bootstrap, **options)
    consumer.assign([TopicPartition("t", n) for n in range(fake.partitions)])
    for partition in consumer.assignment():
        consumer.seek(partition, 0)
    return consumer


def test_fetch_is_ahead_of_the_application_but_bounded(fake):
    with consumer_of(fake, max_poll_records=1) as consumer:
        consumer.poll(WAIT_MS)
        deadline = time.monotonic() + 90
        while fake.count(FetchRequest) < 2:  # sent before the application has asked for more
            assert time.monotonic() < deadline
        for _ in range(15):
            consumer.poll(WAIT_MS)
        # 16 of the 20 records of the first fetch are delivered: one is buffered beyond it, and
        # none is under way while that is so.
        assert fake.count(FetchRequest) <= 3


def test_one_record_a_poll_goes_round_the_partitions(fake):
    with consumer_of(fake, max_poll_records=1) as consumer:
        found = [consumer.poll(WAIT_MS)[0].partition for _ in range(20)]
    assert found in ([0, 1] * 10, [1, 0] * 10)


def test_seek_does_not_wait_for_a_fetch_that_is_of_no_use(fake):
    fake.partitions = 1
    waits = []

    def answer(request, header):
        waits.append(request)
        return SILENCE if len(waits) == 2 else fetched(request, endless)

    fake.answers[ApiKey.FETCH] = answer
    with consumer_of(fake, fetch_max_wait_ms=100_000) as consumer:
        take(consumer, 10)
        while len(waits) < 2:
            consumer.poll(10)
        consumer.seek(TopicPartition("t", 0), 500)
        assert offsets(consumer.poll(WAIT_MS))[0] == 500


def test_connection_that_breaks_at_any_fetch_costs_nothing(fake):
    asked = []

    def answer(request, header):
        asked.append(request)
        return CLOSE if len(asked) % 3 == 0 else fetched(request, endless)

    fake.answers[ApiKey.FETCH] = answer
    with consumer_of(fake) as consumer:
        found = take(consumer, 400)
    for partition in (0, 1):
        of = [r.offset for r in found if r.partition == partition]
        assert of == list(range(len(of)))


@pytest.mark.parametrize("code", [3, 5, 6, 56, 74, 75, 78])
def test_refusal_that_passes_is_waited_for_without_holding_others_up(fake, code):
    asked = []

    def answer(request, header):
        asked.append(request)
        answer = fetched(request, endless)
        for part in answer.responses[0].partitions:
            if len(asked) < 4 and part.partition_index == 0:
                part.error_code, part.records = code, b""
        return answer

    fake.answers[ApiKey.FETCH] = answer
    with consumer_of(fake) as consumer:
        found = take(consumer, 10)
        assert {r.partition for r in found} == {1}
        while len({r.partition for r in found}) < 2:
            found += consumer.poll(1000)
    for partition in (0, 1):
        of = [r.offset for r in found if r.partition == partition]
        assert of == list(range(len(of)))


def test_error_that_does_not_pass_is_raised_after_what_came_before(fake):
    def answer(request, header):
        answer = fetched(request, endless)
        for part in answer.responses[0].partitions:
            if part.partition_index == 0:
                part.error_code, part.records = 29, b""
        return answer

    fake.answers[ApiKey.FETCH] = answer
    with consumer_of(fake, max_poll_records=100) as consumer:
        assert {r.partition for r in consumer.poll(WAIT_MS)} == {1}
        consumer.pause([TopicPartition("t", 1)])
        with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.poll(WAIT_MS)


def test_corrupt_batch_is_raised_until_a_seek_goes_past_it(fake):
    def data(partition: int, offset: int) -> bytes:
        good = endless(partition, offset)
        return damaged(good) if offset == 10 else good

    fake.answers[ApiKey.FETCH] = lambda request, header: fetched(request, data)
    fake.partitions = 1
    with consumer_of(fake) as consumer:
        assert offsets(consumer.poll(WAIT_MS)) == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                consumer.poll(WAIT_MS)
            assert consumer.position(TopicPartition("t", 0)) == 10
        consumer.seek(TopicPartition("t", 0), 20)
        assert offsets(consumer.poll(WAIT_MS))[0] == 20


class Held:
    """What a fake broker says only when the test lets it."""

    def __init__(self, fake: FakeBroker) -> None:
        self._changed = threading.Condition(fake.lock)
        self.is_over = False

    def wait(self) -> None:
        """Hold an answer back; others go out meanwhile."""
        assert self._changed.wait_for(lambda: self.is_over, WAIT_MS / 1000)

    def release(self) -> None:
        with self._changed:
            self.is_over = True
            self._changed.notify_all()
        time.sleep(0.1)  # so that it is there for the next poll


@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
)
@pytest.mark.parametrize("polls", [1, 2, 3])
def test_nothing_from_behind_a_corrupt_batch_counts_before_it(fake, code, polls):
    """A fetch from there is under way when the batch is met, and answered after so many polls."""
    bad = damaged(batch_of([b"x"] * 400, 600))
    log = {0: batch_of([b"x"] * 600) + bad, 600: bad, 1000: endless(0, 1000)}
    ahead, codes = Held(fake), [code]

    def data(partition: int, offset: int) -> bytes:
        if partition == 0:
            return log.get(offset, b"")
        return endless(1, 0) if ahead.is_over and offset == 0 else b""

    def answer(request, header):
        is_ahead = any(part.fetch_offset == 1000 for part in request.topics[0].partitions)
        if is_ahead:
            ahead.wait()
        answer = fetched(request, data)
        for part in answer.responses[0].partitions:
            if is_ahead and part.partition_index == 0 and codes:
                part.error_code = codes.pop()
        return answer

    fake.answers[ApiKey.FETCH] = answer
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    with consumer_of(fake, max_poll_records=500) as consumer:
        found, faults = [], []
        for n in range(6):
            if n == polls:
                ahead.release()
            try:
                found += consumer.poll(5000)
            except CorruptRecord as fault:
                faults.append(fault)
        assert [r.offset for r in found if r.partition == 0] == list(range(600))
        assert consumer.known_positions()[first].offset == 600  # what a group commits
        assert len(faults) == 3
        # What the same answer says of another partition is of use.
        assert [r.offset for r in found if r.partition == 1] == list(range(10))
        consumer.pause([second])
        consumer.seek(first, 1000)
        assert offsets(consumer.poll(WAIT_MS)) == list(range(1000, 1010))


def test_corrupt_batch_does_not_wait_for_a_fetch_from_behind_it(fake):
    bad = damaged(endless(0, 10))
    log = {0: endless(0, 0) + bad, 10: bad}

    def answer(request, header):
        (part,) = request.topics[0].partitions
        if part.fetch_offset == 20:
            return SILENCE
        return fetched(request, lambda _, offset: log[offset])

    fake.answers[ApiKey.FETCH] = answer
    fake.partitions = 1
    with consumer_of(fake, fetch_max_wait_ms=100_000, max_poll_records=10) as consumer:
        assert offsets(consumer.poll(WAIT_MS)) == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                consumer.poll(5000)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_late_answer_of_a_deposed_leader_takes_no_position_back(code):
    """Its successor was asked meanwhile, since another partition told that leaders had moved."""
    leaders = [1, 2]
    log = {(0, 0): endless(0, 0) + endless(0, 10), (0, 10): endless(0, 10)}
    with FakeBroker(2) as deposed, FakeBroker(2) as successor:
        late = Held(deposed)

        def metadata(request, header):
            topic = successor.describe("t")
            for part in topic.partitions:
                part.leader_id = leaders[part.partition_index]
            nodes = enumerate((deposed, successor), start=1)
            return MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=n, host="127.0.0.1", port=fake.port, rack=None)
                    for n, fake in nodes
                ],
                controller_id=1,
                cluster_id="fake",
                topics=[topic],
            )

        def from_deposed(request, header):
            late.wait()
            answer = fetched(request, endless)
            answer.responses[0].partitions[0].error_code = code
            return answer

        def from_successor(request, header):
            answer = fetched(request, lambda partition, at: log.get((partition, at), b""))
            if leaders[0] == 1:
                leaders[0] = 2
                refused = answer.responses[0].partitions[0]
                refused.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return answer

        for fake, answer in ((deposed, from_deposed), (successor, from_successor)):
            fake.answers |= {ApiKey.METADATA: metadata, ApiKey.FETCH: answer}
        with consumer_of(deposed) as consumer:
            assert offsets(take(consumer, 20)) == list(range(20))
            late.release()
            assert consumer.poll(300) == []
            assert consumer.known_positions()[TopicPartition("t", 0)].offset == 20


def test_nothing_counts_behind_a_refusal_in_the_same_answer(fake):
    def answer(request, header):
        answer, again = fetched(request, endless), fetched(request, endless)
        (refused,) = answer.responses[0].partitions
        refused.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answer.responses += again.responses
        return answer

    fake.answers[ApiKey.FETCH] = answer
    fake.partitions = 1
    with consumer_of(fake) as consumer:
        for _ in range(2):
            with pytest.raises(TopicAuthorizationFailed):
                consumer.poll(WAIT_MS)


def test_answer_about_a_partition_that_was_not_asked_costs_the_connection(fake):
    asked = []

    def answer(request, header):
        asked.append(request)
        answer = fetched(request, endless)
        if len(asked) == 1:
            answer.responses[0].partitions[0].partition_index = 9
        return answer

    fake.answers[ApiKey.FETCH] = answer
    with consumer_of(fake) as consumer:
        found = take(consumer, 20)
    assert sorted(offsets(found)[:20]) == sorted([*range(10), *range(10)])


def test_batch_that_is_cut_is_asked_for_first_next_time(fake):
    """As old brokers do: whatever fits, cut anywhere, but the first partition's first batch."""

    def answer(request, header):
        order = [p.partition for p in request.topics[0].partitions]
        answer = fetched(request, endless)
        for part in answer.responses[0].partitions:
            if part.partition_index != order[0]:
                part.records = part.records[:70]
        return answer

    fake.answers[ApiKey.FETCH] = answer
    with consumer_of(fake) as consumer:
        found = take(consumer, 60)
    assert {r.partition for r in found} == {0, 1}
