"""Group consumers of plog's own client against a real broker: what they share, keep and commit."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.consumer import ConsumerRecord
from plog.client.group_consumer import CommitFailed, GroupConsumer, Listener
from plog.client.producer import Producer
from plog.errors import InvalidConfig
from plog.types import TopicPartition
from tests.handlers.wire import fresh_name
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

PATIENCE_S = 120
QUICK = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 200}


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    return make_topic(broker, fresh_name())


def make_topic(broker: BrokerProcess, name: str, partitions: int = 6) -> str:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name, partitions=partitions)
    return name


def write(broker: BrokerProcess, topic: str, values: range, partitions: int = 6) -> None:
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, str(value).encode(), partition=value % partitions)
        producer.flush()


class Member:
    """A consumer on a thread of its own, and what it has read and heard."""

    def __init__(self, broker: BrokerProcess, group: str, topics: object, **options: object):
        self.read: list[ConsumerRecord] = []
        self.heard: list[tuple[str, list[TopicPartition]]] = []
        self.error: BaseException | None = None
        self.consumer = GroupConsumer(
            broker.bootstrap, group, auto_offset_reset="earliest", **{**QUICK, **options}
        )
        self._topics = topics
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        listener = Listener(
            lambda some: self.heard.append(("assigned", some)),
            lambda some: self.heard.append(("revoked", some)),
            lambda some: self.heard.append(("lost", some)),
        )
        try:
            with self.consumer:
                self.consumer.subscribe(self._topics, listener)  # type: ignore[arg-type]
                while not self._stopping.is_set():
                    self.read += self.consumer.poll(100)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    @property
    def values(self) -> set[int]:
        return {int(record.value or b"") for record in self.read}

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def members(*made: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in made:
            member.leave()


def had_by(member: Member) -> list[TopicPartition]:
    return member.consumer.assignment()


def even(*some: Member) -> bool:
    sizes = [len(one.consumer.assignment()) for one in some]
    return sum(sizes) == 6 and max(sizes) - min(sizes) <= 1


def test_one_member_reads_all_and_the_next_goes_on(broker: BrokerProcess, topic: str) -> None:
    write(broker, topic, range(300))
    first = Member(broker, topic, [topic])
    with members(first):
        until(lambda: len(first.read) == 300)
    write(broker, topic, range(300, 400))
    second = Member(broker, topic, [topic])
    with members(second):
        until(lambda: len(second.read) == 100)
    assert first.values == set(range(300))
    assert second.values == set(range(300, 400))
    assert [what for what, _ in first.heard] == ["assigned", "revoked"]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_and_take_over(broker: BrokerProcess, topic: str, assignor: str) -> None:
    options = {"assignors": [assignor]}
    one, two = (Member(broker, topic, [topic], **options) for _ in range(2))
    until(lambda: even(one, two))
    three = Member(broker, topic, [topic], **options)
    until(lambda: even(one, two, three))
    write(broker, topic, range(600))
    until(lambda: one.values | two.values | three.values == set(range(600)))
    assert len(one.read) + len(two.read) + len(three.read) == 600
    two.leave()
    until(lambda: even(one, three))
    write(broker, topic, range(600, 700))
    until(lambda: one.values | three.values >= set(range(600, 700)))
    one.leave()
    three.leave()
    assert len(one.read) + len(two.read) + len(three.read) == 700


def test_what_a_cooperative_member_keeps_is_never_revoked(
    broker: BrokerProcess, topic: str
) -> None:
    options = {"assignors": ["cooperative-sticky"]}
    one = Member(broker, topic, [topic], **options)
    until(lambda: len(one.consumer.assignment()) == 6)
    two = Member(broker, topic, [topic], **options)
    until(lambda: even(one, two))
    kept = set(one.consumer.assignment())
    revoked = {at for what, some in one.heard if what == "revoked" for at in some}
    with members(one, two):
        assert len(kept) == len(revoked) == 3
        assert not kept & revoked


def test_a_member_that_dies_is_missed_after_its_session(broker: BrokerProcess, topic: str) -> None:
    one, dies = (Member(broker, topic, [topic]) for _ in range(2))
    until(lambda: even(one, dies))
    heart = dies.consumer._membership._heart
    assert heart is not None
    heart.stop()  # silent, as if killed; its thread polls on and hears nothing
    dies._stopping.set()
    until(lambda: len(one.consumer.assignment()) == 6)
    one.leave()


def test_a_static_member_comes_back_to_its_partitions(broker: BrokerProcess, topic: str) -> None:
    options = {"session_timeout_ms": 20_000}
    one = Member(broker, topic, [topic], group_instance_id="one", **options)
    two = Member(broker, topic, [topic], group_instance_id="two", **options)
    until(lambda: even(one, two))
    # Who has its partitions is told of them a moment later.
    until(lambda: all(each.heard[-1:] == [("assigned", had_by(each))] for each in (one, two)))
    had, seen = had_by(two), len(one.heard)
    two.leave()
    back = Member(broker, topic, [topic], group_instance_id="two", **options)
    until(lambda: len(back.consumer.assignment()) == 3)
    with members(one, back):
        assert back.consumer.assignment() == had
        assert len(one.heard) == seen


def test_topics_that_match_are_read_as_they_come(broker: BrokerProcess, topic: str) -> None:
    member = Member(broker, topic, re.compile(f"{topic}.*"), metadata_max_age_ms=100)
    with members(member):
        until(lambda: len(member.consumer.assignment()) == 6)
        make_topic(broker, f"{topic}-more", partitions=2)
        until(lambda: len(member.consumer.assignment()) == 8)
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions(f"{topic}-more", 3)
        until(lambda: len(member.consumer.assignment()) == 9)


def test_a_member_that_does_not_poll_is_out_and_told_so(broker: BrokerProcess, topic: str) -> None:
    write(broker, topic, range(60))
    options = {**QUICK, "max_poll_interval_ms": 500, "enable_auto_commit": False}
    heard: list[str] = []
    slow = GroupConsumer(broker.bootstrap, topic, auto_offset_reset="earliest", **options)
    with closing(slow):
        slow.subscribe(
            [topic],
            Listener(
                lambda _: heard.append("assigned"),
                lambda _: heard.append("revoked"),
                lambda _: heard.append("lost"),
            ),
        )
        until(lambda: bool(slow.poll(100)))
        until(lambda: slow._membership.must_rejoin)
        with pytest.raises(CommitFailed):
            slow.commit()
        until(lambda: bool(slow.poll(100)))
        assert heard == ["assigned", "lost", "assigned"]
        slow.commit()
        assert slow.committed(slow.assignment())


def test_commits_by_hand(broker: BrokerProcess, topic: str) -> None:
    write(broker, topic, range(60))
    at = TopicPartition(topic, 0)
    with GroupConsumer(
        broker.bootstrap, topic, auto_offset_reset="earliest", enable_auto_commit=False
    ) as one:
        one.subscribe([topic])
        read = 0

        def all_read() -> bool:
            nonlocal read
            read += len(one.poll(100))
            return read == 60

        until(all_read)
        assert one.committed([at]) == {}
        one.commit({at: 4})
        assert one.committed([at]) == {at: 4}
        one.commit()
        assert one.committed([at]) == {at: 10}
        one.seek(at, 2)
        assert one.position(at) == 2
        one.pause([at])
        assert one.poll(100) == []
        one.resume([at])
        until(lambda: len(one.poll(100)) == 8)


def test_a_broker_that_is_killed_keeps_the_group(tmp_path: Path, plane: Plane) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with BrokerProcess(tmp_path, overrides=settings) as broker:
        make_topic(broker, "t")
        options = {**QUICK, "session_timeout_ms": 30_000}
        one, two = (Member(broker, "g", ["t"], **options) for _ in range(2))
        until(lambda: even(one, two))
        write(broker, "t", range(60))
        until(lambda: one.values | two.values == set(range(60)))
        broker.kill()
        broker.start()
        write(broker, "t", range(60, 120))
        until(lambda: one.values | two.values == set(range(120)))
        one.leave()
        two.leave()


@pytest.mark.parametrize("wrong", [{"group_id": ""}, {"assignors": []}, {"assignors": ["x"]}])
def test_wrong_arguments_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidConfig):
        GroupConsumer("127.0.0.1:1", **{"group_id": "g", **wrong})
