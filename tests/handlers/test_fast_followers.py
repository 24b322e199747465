"""Fetches of followers: their responses, positions and waits.

A broker that leads alone is given followers here; the tests play them, by requests on a socket.
Both planes are asked the same, and their responses are compared byte for byte.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native.partition_followers import FollowerState, followers_of, set_followers
from plog.cluster.leadership import Leadership
from plog.cluster.partition import Partition
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import ProduceResponse
from plog.runtime.clock import SystemClock
from plog.types import TopicPartition
from tests.handlers import running
from tests.handlers.running import Running, decoded, framed, receive
from tests.handlers.test_list_offsets import BEGIN, EARLIEST_MS, LATEST_MS
from tests.handlers.test_list_offsets import ask as list_offsets
from tests.handlers.twins import IDS_SINCE, Twins, TwinSession
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    eventually,
    fetch_request,
    flat,
    make_batch,
    produce_request,
)
from tests.planes import Plane
from tests.servers import free_port

ME, ONE, TWO = 0, 1, 2
EPOCH = 1
"""Of the leader, once it has followers."""
BROKER_EPOCH = 70
STATE_SINCE = 15
VERSIONS = range(12, 19)
NOTHING_NOTED = -1


def lead(
    one: Running,
    topic: str,
    index: int = 0,
    *,
    counted: tuple[int, ...] = (ONE,),
    others: tuple[int, ...] = (),
) -> Partition:
    """Have a broker lead a partition in its next epoch, with followers."""
    partition = one.broker._replicas.leader(TopicPartition(topic, index))
    before = partition.leadership
    isr = (ME, *counted)
    leadership = Leadership(
        ME, before.leader_epoch + 1, isr, isr + others, before.partition_epoch + 1, 1
    )
    partition.make_leader(leadership, partition.log)
    are_counted = dict.fromkeys(counted, True) | dict.fromkeys(others, False)
    now_ms = SystemClock().since_boot_ms()
    set_followers(
        partition.log.native,
        are_counted,
        leader_epoch=partition.leadership.leader_epoch,
        least_in_sync=1,
        now_ms=now_ms,
    )
    return partition


def follow(
    *parts: tuple,
    version: int = 12,
    broker_id: int = ONE,
    broker_epoch: int = BROKER_EPOCH,
    leader_epoch: int = EPOCH,
    last_epoch: int = -1,
    **options: int,
) -> FetchRequest:
    """Return a follower's request."""
    request = fetch_request(
        *parts, leader_epoch=leader_epoch, last_fetched_epoch=last_epoch, **options
    )
    if version < STATE_SINCE:
        request.replica_id = broker_id
    else:
        request.replica_state = ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch)
    return request


class Led:
    """A partition of both twins, with followers."""

    def __init__(self, twins: Twins, **options: tuple[int, ...]) -> None:
        self.twins = twins
        self.topic = twins.create_topic(flush_before_ack="false")
        self.partitions = [lead(one, self.topic, **options) for one in twins.both]

    def produce(self, *batches: bytes) -> None:
        for batch in batches or (make_batch(),):
            self.twins.ask(produce_request([(self.topic, 0, batch)], acks=1), 9)

    def ask(
        self, offset: int, version: int = 12, *, fast: bool = True, **options: int
    ) -> PartitionData:
        """Play a follower; return what the one with ids or names says."""
        frames = []
        before = self.twins.fast.fast_requests
        for one in self.twins.both:
            topic_id = self.twins.id_of(one, self.topic)
            named = topic_id if version >= IDS_SINCE else self.topic
            request = follow((named, 0, offset), version=version, **options)
            frames.append(one.ask(request, version).replace(topic_id.bytes, b"I" * 16))
        assert frames[0] == frames[1]
        assert (self.twins.fast.fast_requests > before) is fast, self.twins.fast.callouts
        (topic,) = decoded(FetchResponse, version, frames[0]).responses
        (part,) = topic.partitions
        return part

    def follower(self, broker_id: int = ONE) -> FollowerState:
        """Return what both brokers know of a follower, without its times."""
        found = [
            follower._replace(fetched_ms=0, caught_up_ms=0, confirmed_ms=0)
            for partition in self.partitions
            for follower in followers_of(partition.log.native)
            if follower.broker_id == broker_id
        ]
        assert found[0] == found[1]
        return found[0]

    @property
    def position(self) -> int:
        return self.follower().position


# -- what they get


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_follower_reads_to_the_end_and_the_high_watermark_follows(
    twins: Twins, version: int, isolation_level: int
) -> None:
    led = Led(twins)
    led.produce(make_batch(), make_batch())
    part = led.ask(0, version, isolation_level=isolation_level)
    assert (part.error_code, part.high_watermark, part.log_start_offset) == (0, 0, 0)
    assert len(part.records) == 2 * len(make_batch())
    assert part.aborted_transactions is None
    assert led.position == 0
    part = led.ask(1, version, last_epoch=EPOCH)
    assert (len(part.records), part.high_watermark) == (len(make_batch()), 1)
    part = led.ask(2, version, last_epoch=EPOCH)
    assert (part.records, part.high_watermark) == (b"", 2), "its own fetch has moved it"
    known = led.follower()
    assert known.position == known.end_before == 2
    assert known.broker_epoch == (BROKER_EPOCH if version >= STATE_SINCE else -1)


def test_records_of_open_transactions_go_to_followers(twins: Twins) -> None:
    led = Led(twins)
    batch = make_batch(producer=(7, 0, 0))
    led.twins.ask(produce_request([(led.topic, 0, batch)], acks=1), 9, fast=False)
    assert led.ask(0, isolation_level=1).records


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 10_000])
def test_bytes_go_to_partitions_in_their_order(twins: Twins, max_bytes: int) -> None:
    topic = twins.create_topic()
    for one in twins.both:
        for index in range(3):
            lead(one, topic, index)
    for index in range(3):
        twins.ask(produce_request([(topic, index, make_batch([b"v" * 200]))], acks=1), 9)
    parts = [(topic, index, 0) for index in range(3)]
    answer = decoded(FetchResponse, 12, twins.ask(follow(*parts, max_bytes=max_bytes), 12))
    read = [len(part.records) for part in answer.responses[0].partitions]
    assert read[0] > 200, "the first batch comes whole (KIP-74)"
    assert all(read[1:]) is (max_bytes == 10_000)
    assert sum(read) <= max(max_bytes, read[0])
    answer = decoded(FetchResponse, 12, twins.ask(follow(*parts, partition_max_bytes=1), 12))
    assert [len(part.records) > 0 for part in answer.responses[0].partitions] == [
        True,
        False,
        False,
    ]


# -- who is refused


@pytest.mark.parametrize("version", [12, 13, 15])  # later ones name the leader, with its port
@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_follower_of_another_epoch_is_refused(
    twins: Twins, version: int, leader_epoch: int, error: ErrorCode
) -> None:
    led = Led(twins)
    part = led.ask(0, version, leader_epoch=leader_epoch, fast=False)
    assert (part.error_code, part.records) == (error, b"")
    assert led.position == NOTHING_NOTED


@pytest.mark.parametrize("version", VERSIONS)
def test_broker_that_is_no_follower_is_refused(twins: Twins, version: int) -> None:
    led = Led(twins)
    led.produce()
    for offset in (0, 1, 2):  # nor does it learn where its log and the leader's part
        part = led.ask(offset, version, broker_id=5, last_epoch=EPOCH, fast=False)
        assert (part.error_code, part.records) == (ErrorCode.UNKNOWN_LEADER_EPOCH, b"")


def test_broker_of_an_earlier_registration_is_refused(twins: Twins) -> None:
    led = Led(twins)
    led.produce()
    assert led.ask(1, STATE_SINCE, last_epoch=EPOCH).error_code == 0
    for earlier in (BROKER_EPOCH - 1, -1):
        part = led.ask(0, STATE_SINCE, broker_epoch=earlier, fast=False)
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (led.position, led.follower().broker_epoch) == (1, BROKER_EPOCH)
    assert led.ask(0, STATE_SINCE, broker_epoch=BROKER_EPOCH + 1).error_code == 0
    assert (led.position, led.follower().broker_epoch) == (0, BROKER_EPOCH + 1)


@pytest.mark.parametrize("version", [4, 8, 9, 11])
def test_follower_that_cannot_say_its_last_epoch_is_refused(twins: Twins, version: int) -> None:
    led = Led(twins)
    led.produce()
    names_epoch = version >= 9
    part = led.ask(0, version, leader_epoch=EPOCH if names_epoch else -1, fast=False)
    assert part.error_code == (
        ErrorCode.UNKNOWN_LEADER_EPOCH if names_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    assert led.position == NOTHING_NOTED


def test_followers_fetch_on_the_listener_between_brokers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plane: Plane
) -> None:
    port, inner = free_port(), free_port()
    monkeypatch.setattr(running, "free_port", lambda: port)
    one = Running(
        tmp_path,
        plane=plane,
        listeners=f"PLAINTEXT://127.0.0.1:{port},INNER://127.0.0.1:{inner}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
        inter_broker_listener_name="INNER",
    )
    topic, _ = create_topic(one.wire)
    partition = lead(one, topic)
    (part,) = flat_parts(one.ask(follow((topic, 0, 0)), 12))
    assert part.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    (follower,) = followers_of(partition.log.native)
    assert follower.position == NOTHING_NOTED
    with socket.create_connection(("127.0.0.1", inner), WAIT_MS / 1000) as client:
        client.sendall(framed(follow((topic, 0, 0)), 12, 1))
        (part,) = flat_parts(receive(client))
    assert part.error_code == 0
    (follower,) = followers_of(partition.log.native)
    assert follower.position == 0
    one.stop()


def flat_parts(frame: bytes) -> list[PartitionData]:
    answer = decoded(FetchResponse, 12, frame)
    return [part for topic in answer.responses for part in topic.partitions]


# -- positions


def test_diverging_log_is_not_noted(twins: Twins) -> None:
    led = Led(twins)
    led.produce(make_batch(), make_batch())
    led.partitions = [lead(one, led.topic) for one in twins.both]
    led.produce()  # at offset 2, in the next epoch
    asked = {"leader_epoch": EPOCH + 1, "last_epoch": EPOCH, "fast": False}
    part = led.ask(3, **asked)
    assert (part.error_code, part.records) == (0, b"")
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (EPOCH, 2)
    assert led.position == NOTHING_NOTED
    part = led.ask(2, **asked)
    assert (part.diverging_epoch.epoch, len(part.records)) == (-1, len(make_batch()))
    assert (led.position, part.high_watermark) == (2, 2), "Python has noted it, before it read"
    part = led.ask(9, leader_epoch=EPOCH + 1, last_epoch=EPOCH + 1, fast=False)
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (EPOCH + 1, 3)
    assert led.position == 2


def test_offset_outside_the_log_is_not_noted(twins: Twins) -> None:
    led = Led(twins)
    led.produce()
    for offset in (-1, 2, 10**12):
        part = led.ask(offset, fast=False)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert led.position == NOTHING_NOTED


def test_time_of_a_fetch_is_when_its_request_came(follower_of: Running, plane: Plane) -> None:
    topic, partition = follower_of.topic, follower_of.partition
    for last_epoch in (-1, 0):  # 0: Python answers, and notes
        begun_ms = SystemClock().since_boot_ms()
        follower_of.ask(follow((topic, 0, 0), last_epoch=last_epoch), 12)
        known, _ = followers_of(partition.log.native)
        assert begun_ms - 1 <= known.fetched_ms <= SystemClock().since_boot_ms()
        assert known.caught_up_ms == known.fetched_ms


def test_time_that_python_takes_is_not_the_followers(tmp_path: Path) -> None:
    """Otherwise a slow leader would take its followers for late (KAFKA-8733)."""
    one = Follows(tmp_path, Plane.FAST)
    callouts = sum(one.callouts.values())
    with one.python_busy():
        one.send(follow((one.topic, 0, 0), last_epoch=0), 12)
        eventually(lambda: sum(one.callouts.values()) > callouts, "Python is to note it")
        came_ms = SystemClock().since_boot_ms()
        eventually(lambda: SystemClock().since_boot_ms() > came_ms + 1, "time has passed")
    assert one.receive()
    known, _ = followers_of(one.partition.log.native)
    assert (known.position, known.fetched_ms <= came_ms) == (0, True)
    one.stop()


# -- waiting


class Follows(Running):
    """A broker that leads a partition with two followers in sync."""

    def __init__(self, directory: Path, plane: Plane, **configs: object) -> None:
        super().__init__(directory, plane=plane)
        self.plane = plane
        self.topic, _ = create_topic(self.wire, **configs)
        self.partition = lead(self, self.topic, counted=(ONE, TWO))
        self.second = self.connect()

    def stop(self) -> None:
        self.second.close()
        super().stop()

    def park(self, request: FetchRequest) -> None:
        """Send a request and let it wait."""
        before = self.requests
        self.send(request, 12)
        if self.plane is Plane.FAST:
            self.until_waiting()
        else:
            self.until_read(before + 1)

    def play(self, offset: int, broker_id: int, leader_epoch: int = EPOCH) -> PartitionData:
        """Fetch as a follower, on another connection."""
        request = follow((self.topic, 0, offset), broker_id=broker_id, leader_epoch=leader_epoch)
        self.second.sendall(framed(request, 12, 1))
        (part,) = flat_parts(receive(self.second))
        assert part.error_code == 0
        return part


@pytest.fixture
def follower_of(tmp_path: Path, plane: Plane) -> Iterator[Follows]:
    one = Follows(tmp_path, plane, flush_before_ack="false")
    yield one
    one.stop()


def test_waiting_follower_is_woken_by_an_append(follower_of: Follows, plane: Plane) -> None:
    follower_of.park(follow((follower_of.topic, 0, 0), max_wait_ms=WAIT_MS))
    follower_of.wire.ask(produce_request([(follower_of.topic, 0, make_batch())], acks=1), 9)
    (part,) = flat_parts(follower_of.receive())
    assert (len(part.records), part.high_watermark) == (len(make_batch()), 0)


def test_waiting_follower_is_woken_by_a_higher_high_watermark(
    follower_of: Follows, plane: Plane
) -> None:
    follower_of.wire.ask(produce_request([(follower_of.topic, 0, make_batch())], acks=1), 9)
    follower_of.park(follow((follower_of.topic, 0, 1), max_wait_ms=WAIT_MS))
    assert follower_of.play(1, TWO).high_watermark == 1
    (part,) = flat_parts(follower_of.receive())
    assert (part.records, part.high_watermark) == (b"", 1)


def test_follower_hears_of_what_is_committed_once_it_is_durable(
    tmp_path: Path, plane: Plane
) -> None:
    """No producer has asked for that: the fetches of the followers do."""
    one = Follows(tmp_path, plane)
    one.wire.ask(produce_request([(one.topic, 0, make_batch())], acks=1), 9)
    assert one.partition.log.durable_end == 0
    one.park(follow((one.topic, 0, 1), max_wait_ms=WAIT_MS))
    one.play(1, TWO)
    (part,) = flat_parts(one.receive())
    assert (part.records, part.high_watermark) == (b"", 1)
    assert one.partition.log.durable_end == 1
    one.stop()


def test_follower_waits_for_nothing_new(follower_of: Follows, plane: Plane) -> None:
    """It is answered when its time is over, and its position is noted."""
    follower_of.ask(follow((follower_of.topic, 0, 0), max_wait_ms=50), 12)
    (one, two) = followers_of(follower_of.partition.log.native)
    assert (one.position, two.position) == (0, NOTHING_NOTED)


def test_records_are_committed_by_the_followers_fetches(tmp_path: Path) -> None:
    one = Follows(tmp_path, Plane.FAST)
    consumer = one.connect()
    one.send(produce_request([(one.topic, 0, make_batch())], acks=-1), 9)
    one.until_waiting()
    consumer.sendall(framed(fetch_request((one.topic, 0, 0), max_wait_ms=WAIT_MS), 12, 1))
    one.until_waiting(2)
    assert one.play(1, ONE).high_watermark == 0
    assert one.broker.reactor_stats.waiting == 2
    # Followers hear of no more than is durable.
    eventually(lambda: one.partition.log.durable_end == 1, "the batch is flushed")
    assert one.play(1, TWO).high_watermark == 1
    (done,) = flat(decoded(ProduceResponse, 9, one.receive()))
    assert (done.error_code, done.base_offset) == (0, 0)
    (part,) = flat_parts(receive(consumer))
    assert len(part.records) == len(make_batch())
    consumer.close()
    one.stop()


# -- sessions


def test_session_of_a_follower_is_answered_as_a_consumers(twins: Twins) -> None:
    led = Led(twins)
    led.produce()
    session = TwinSession(
        twins,
        (led.topic, 0, 0),
        replica_id=ONE,
        leader_epoch=EPOCH,
        last_fetched_epoch=-1,
    )
    assert len(session.first) == 1
    named = session.next((led.topic, 0, 1), last_fetched_epoch=EPOCH)
    assert [(part.high_watermark, part.records) for part in named.values()] == [(1, b"")]
    assert led.position == 1
    assert session.next() == {}
    led.produce()
    named = session.next()
    assert [(part.high_watermark, len(part.records)) for part in named.values()] == [
        (1, len(make_batch()))
    ]
    assert led.position == 1
    refused = session.next(
        (led.topic, 0, 2), leader_epoch=EPOCH + 1, last_fetched_epoch=EPOCH, fast=False
    )
    assert [part.error_code for part in refused.values()] == [ErrorCode.UNKNOWN_LEADER_EPOCH]
    assert led.position == 1


def test_follower_in_a_session_does_not_wait_for_a_high_watermark_that_it_missed(
    follower_of: Follows, plane: Plane
) -> None:
    """What rose between two of its requests is answered at once; what it knows is waited with."""
    follower_of.wire.ask(produce_request([(follower_of.topic, 0, make_batch())], acks=1), 9)
    asked = follow((follower_of.topic, 0, 1), session=(0, 0), max_wait_ms=WAIT_MS)
    answer = decoded(FetchResponse, 12, follower_of.ask(asked, 12))
    assert answer.session_id > 0
    assert follower_of.play(1, TWO).high_watermark == 1
    again = follow(session=(answer.session_id, 1), max_wait_ms=WAIT_MS)
    (part,) = flat_parts(follower_of.ask(again, 12))
    assert (part.records, part.high_watermark) == (b"", 1)
    follower_of.park(follow(session=(answer.session_id, 2), max_wait_ms=WAIT_MS))
    follower_of.wire.ask(produce_request([(follower_of.topic, 0, make_batch())], acks=1), 9)
    (part,) = flat_parts(follower_of.receive())
    assert len(part.records) == len(make_batch())


# -- who may join


def listen(partition: Partition) -> list[tuple[TopicPartition, int]]:
    """Return a list of those that may join, which grows."""
    reported: list[tuple[TopicPartition, int]] = []
    partition._publisher.on_may_join = lambda *joiner: reported.append(joiner)
    return reported


@pytest.mark.parametrize("last_epoch", [-1, 0])
def test_follower_that_may_join_is_reported(tmp_path: Path, plane: Plane, last_epoch: int) -> None:
    one = Running(tmp_path, plane=plane)
    topic, _ = create_topic(one.wire)
    one.wire.ask(produce_request([(topic, 0, make_batch())], acks=1), 9)  # in epoch 0
    partition = lead(one, topic, counted=(), others=(TWO,))
    reported = listen(partition)
    one.ask(follow((topic, 0, 0), broker_id=TWO), 12)
    one.wire.ask(MetadataRequest(topics=[]), 9)  # what lay before Python then has been taken
    assert reported == [], "it lacks a record"
    before = one.fast_requests
    one.ask(follow((topic, 0, 1), broker_id=TWO, last_epoch=last_epoch), 12)
    if plane is Plane.FAST:
        assert (one.fast_requests > before) is (last_epoch == -1)
    eventually(lambda: reported == [(TopicPartition(topic, 0), TWO)], "Python hears of it")
    one.stop()


def test_joiner_is_reported_once_until_python_takes_it(tmp_path: Path) -> None:
    one = Running(tmp_path, plane=Plane.FAST)
    topic, _ = create_topic(one.wire)
    partition = lead(one, topic, counted=(), others=(TWO,))
    reported = listen(partition)
    joiner = (TopicPartition(topic, 0), TWO)
    with one.python_busy():
        for _ in range(5):
            one.ask(follow((topic, 0, 0), broker_id=TWO), 12)
    one.wire.ask(MetadataRequest(topics=[]), 9)  # Python takes this after the note
    assert reported == [joiner]
    one.ask(follow((topic, 0, 0), broker_id=TWO), 12)
    eventually(lambda: reported == [joiner] * 2, "it hears of it again")
    one.stop()


# -- what consumers see of an election


@pytest.mark.parametrize(
    ("version", "error"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_end_is_unknown_until_the_new_leader_knows_what_is_committed(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    """Else the end that a consumer has seen would go back (KIP-207)."""
    one = Follows(tmp_path, Plane.FAST, flush_before_ack="false")
    late = make_batch(timestamps=[BEGIN])
    for _ in range(2):
        one.wire.ask(produce_request([(one.topic, 0, late)], acks=1), 9)
    for broker_id in (ONE, TWO):
        one.play(1, broker_id)
    lead(one, one.topic, counted=(ONE, TWO))

    def found() -> list[tuple[int, int]]:
        return [
            (part.error_code, part.offset)
            for timestamp in (LATEST_MS, BEGIN + 1, BEGIN, EARLIEST_MS)
            for part in list_offsets(one.wire, one.topic, timestamp, version=version)
        ]

    assert found() == [(error, -1), (error, -1), (0, 0), (0, 0)]
    for broker_id in (ONE, TWO):
        one.play(2, broker_id, leader_epoch=2)
    assert found() == [(0, 2), (0, -1), (0, 0), (0, 0)]
    one.stop()
