"""Group consumers of plog's own client against a real broker: what they share, keep and commit."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.consumer import ConsumerRecord
from plog.client.group_admin import GroupAdmin
from plog.client.group_consumer import (
    CommitFailed,
    GroupConsumer,
    GroupMetadata,
    Listener,
    OffsetAndMetadata,
    RebalanceInProgress,
)
from plog.client.group_membership import State
from plog.client.producer import Producer
from plog.errors import ErrorCode, InvalidConfig, KafkaError
from plog.types import TopicPartition
from tests.handlers.wire import fresh_name
from tests.leader_epochs import pass_epochs
from tests.planes import Plane
from tests.servers import BrokerProcess, free_port
from tests.several_brokers import until_topic_is_known
from tests.waiting import until

PATIENCE_S = 120
QUICK = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 200}


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    return make_topic(broker, fresh_name())


def make_topic(broker: BrokerProcess, name: str, partitions: int = 6) -> str:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name, partitions=partitions)
    until_topic_is_known(broker.bootstrap, name)
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


def even(*some: Member | Slow) -> bool:
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
    heart = dies.consumer._membership._heartbeats
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


def test_topics_that_match_are_looked_up_before_each_rebalance(
    broker: BrokerProcess, topic: str
) -> None:
    """As Kafka's consumer does: one rebalance is enough for a new topic and all members."""
    first = Member(broker, topic, re.compile(f"{topic}.*"))
    until(lambda: len(had_by(first)) == 6)
    more = make_topic(broker, f"{topic}-more", partitions=2)
    second = Member(broker, topic, re.compile(f"{topic}.*"))
    with members(first, second):
        until(lambda: len(had_by(first)) + len(had_by(second)) == 8)
        assert first.consumer.subscription() == [topic, more]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_leader_looks_after_what_others_read(
    broker: BrokerProcess, topic: str, assignor: str
) -> None:
    options = {"assignors": [assignor], "metadata_max_age_ms": 100}
    theirs = fresh_name()
    leads = Member(broker, topic, [topic], **options)
    until(lambda: len(had_by(leads)) == 6)
    other = Member(broker, topic, [theirs], **options)
    with members(leads, other):
        until(lambda: other.heard == [("assigned", [])])
        make_topic(broker, theirs, partitions=1)
        until(lambda: len(had_by(other)) == 1)
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions(theirs, 4)
        until(lambda: len(had_by(other)) == 4)
        until(lambda: len(had_by(leads)) == 6)
        # Nothing is given up but for the leader's asking.
        assert sum(what == "revoked" for what, _ in other.heard) <= 1


def test_missing_topic_is_read_soon_after_it_comes(broker: BrokerProcess, topic: str) -> None:
    """By default, topics that exist are looked up every five minutes."""
    own, theirs = fresh_name(), fresh_name()
    leads = Member(broker, topic, [topic, own])
    until(lambda: len(had_by(leads)) == 6)
    other = Member(broker, topic, [theirs])
    with members(leads, other):
        until(lambda: other.heard == [("assigned", [])])
        make_topic(broker, own, partitions=1)
        until(lambda: len(had_by(leads)) == 7)
        make_topic(broker, theirs, partitions=2)
        until(lambda: len(had_by(other)) == 2)


def test_a_static_leader_that_comes_back_looks_after_what_others_read(
    broker: BrokerProcess, topic: str
) -> None:
    options = {"session_timeout_ms": 20_000, "metadata_max_age_ms": 100}
    theirs = make_topic(broker, fresh_name(), partitions=1)
    leads = Member(broker, topic, [topic], group_instance_id="leads", **options)
    until(lambda: len(had_by(leads)) == 6)
    other = Member(broker, topic, [theirs], **options)
    until(lambda: len(had_by(other)) == 1 and len(had_by(leads)) == 6)
    leads.leave()
    back = Member(broker, topic, [topic], group_instance_id="leads", **options)
    with members(back, other):
        until(lambda: len(had_by(back)) == 6)
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions(theirs, 4)
        until(lambda: len(had_by(other)) == 4)


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


class Slow:
    """A member on the test's own thread, which polls in `share` alone, and what it has lost."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, **options: object):
        self.lost: list[list[TopicPartition]] = []
        self.consumer = GroupConsumer(
            broker.bootstrap,
            group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **{**QUICK, **options},  # type: ignore[arg-type]
        )
        self.consumer.subscribe([topic], Listener(on_lost=self.lost.append))

    @property
    def member_id(self) -> str:
        return self.consumer.group_metadata.member_id

    @property
    def is_settled(self) -> bool:
        """Whether it is in the group's generation, and knows where to read."""
        consumer = self.consumer
        is_inside = consumer._membership.state is State.INSIDE
        return is_inside and sorted(consumer.positions()) == sorted(consumer.assignment())

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()


def share(*some: Slow | Member) -> None:
    """Have those poll that do not by themselves, until all partitions are shared."""
    slow = [one for one in some if isinstance(one, Slow)]

    def is_shared() -> bool:
        for one in slow:
            one.consumer.poll(10)
        return even(*some) and all(one.is_settled for one in slow)

    until(is_shared)


def test_what_a_cooperative_member_reads_amid_a_rebalance_is_committed_as_it_closes(
    broker: BrokerProcess, topic: str
) -> None:
    options = {"assignors": ["cooperative-sticky"]}
    with Slow(broker, topic, topic, **options) as slow:
        reader = GroupConsumer(
            broker.bootstrap,
            topic,
            auto_offset_reset="earliest",
            **{**QUICK, **options, "auto_commit_interval_ms": 3_600_000},  # type: ignore[arg-type]
        )
        reader.subscribe([topic])

        def is_shared() -> bool:
            slow.consumer.poll(10)
            reader.poll(10)
            sizes = [len(one.assignment()) for one in (slow.consumer, reader)]
            return sizes == [3, 3] and slow.is_settled and len(reader.positions()) == 3

        until(is_shared)
        third = Member(broker, topic, [topic], **options)
        with members(third):
            # The rebalance lasts until the slow one polls.
            until(lambda: not reader.poll(10) and reader._membership.state is State.JOINING)
            write(broker, topic, range(60))
            read = [int(record.value or b"") for record in reader.poll(10_000)]
            until(
                lambda: read.extend(int(r.value or b"") for r in reader.poll(10)) or len(read) == 30
            )
            closing = threading.Thread(target=reader.close)
            closing.start()
            others: list[int] = []

            def go_on() -> None:
                others.extend(int(record.value or b"") for record in slow.consumer.poll(10))

            until(lambda: go_on() or not closing.is_alive())
            write(broker, topic, range(60, 66))
            until(lambda: go_on() or {*others, *third.values} >= set(range(66)) - set(read))
            assert not {*others, *third.values} & set(read)


def work() -> None:
    """Do not poll for longer than a session lasts."""
    over_at = time.monotonic() + 1.5 * QUICK["session_timeout_ms"] / 1000
    until(lambda: time.monotonic() > over_at)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_who_works_past_its_session_while_others_join_stays_a_member(
    broker: BrokerProcess, topic: str, assignor: str
) -> None:
    options = {"assignors": [assignor]}
    with Slow(broker, topic, topic, **options) as slow:
        share(slow)
        was = slow.member_id
        with members(comes := Member(broker, topic, [topic], **options)):
            until(lambda: slow.consumer._membership.must_rejoin)
            work()
            slow.consumer.commit()
            share(slow, comes)
        assert (slow.member_id, slow.lost) == (was, [])


def test_who_works_past_its_session_on_its_way_in_stays_a_member_and_commits_later(
    broker: BrokerProcess, topic: str
) -> None:
    options = {"assignors": ["cooperative-sticky"]}
    with Slow(broker, topic, topic, **options) as one, Slow(broker, topic, topic, **options) as two:
        share(one, two)
        was = one.member_id, two.member_id
        with members(comes := Member(broker, topic, [topic], **options)):
            until(lambda: two.consumer._membership.must_rejoin)
            two.consumer.poll(0)
            until(lambda: one.consumer._membership.must_rejoin)
            one.consumer.poll(0)
            # All have joined, and are in a generation that the second has not heard of.
            work()
            with pytest.raises(RebalanceInProgress, match="poll, and commit again"):
                two.consumer.commit()
            share(one, two, comes)
            two.consumer.commit()
            kept = two.consumer.assignment()
            assert two.consumer.committed(kept) == two.consumer.positions()
        assert (one.member_id, two.member_id) == was
        assert one.lost == two.lost == []


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_who_works_past_its_session_while_the_broker_is_killed_stays_a_member(
    tmp_path: Path, plane: Plane, assignor: str
) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    options = {"assignors": [assignor]}
    with BrokerProcess(tmp_path, overrides=settings) as broker:
        make_topic(broker, "t")
        with Slow(broker, "g", "t", **options) as slow:
            share(slow)
            was = slow.member_id
            with members(comes := Member(broker, "g", ["t"], **options)):
                until(lambda: slow.consumer._membership.must_rejoin)
                broker.kill()
                broker.start()
                work()
                share(slow, comes)
            assert (slow.member_id, slow.lost) == (was, [])


def break_fetches(
    consumer: GroupConsumer, monkeypatch: pytest.MonkeyPatch, times: int
) -> list[None]:
    """Have so many looks at what is committed tell nothing, as amid a transaction that hangs.

    Returns what is shorter by one after each.
    """
    fetch, left = consumer._offsets.fetch_within, [None] * times

    def breaks(
        partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata] | None:
        if left:
            return left.pop()
        return fetch(partitions, timeout_s)

    monkeypatch.setattr(consumer._offsets, "fetch_within", breaks)
    return left


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_where_to_begin_is_asked_again_when_it_was_not_told(
    broker: BrokerProcess,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    assignor: str,
    reset: str,
) -> None:
    write(broker, topic, range(60))
    options = {"assignors": [assignor], "auto_offset_reset": reset, **QUICK}
    heard: list[list[TopicPartition]] = []
    with GroupConsumer(broker.bootstrap, topic, **options) as one:
        one.commit(dict.fromkeys(one.partitions_for(topic), 5))
        left = break_fetches(one, monkeypatch, 3)
        one.subscribe([topic], Listener(heard.append))
        while left:
            assert one.poll(0) == one.assignment() == heard == []
        found: list[ConsumerRecord] = []
        until(lambda: found.extend(one.poll(100)) or len(found) >= 30)
        assert sorted(int(record.value or b"") for record in found) == [*range(30, 60)]
        assert [len(some) for some in heard] == [6]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_may_rebalance_before_its_member_knows_where_to_begin(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch, assignor: str
) -> None:
    write(broker, topic, range(60))
    options = {"assignors": [assignor], "auto_offset_reset": "earliest", **QUICK}
    heard: list[str] = []
    listener = Listener(lambda _: heard.append("assigned"), lambda _: heard.append("revoked"))
    with (
        GroupConsumer(broker.bootstrap, topic, **options) as one,
        GroupConsumer(broker.bootstrap, topic, **options) as two,
    ):
        one.commit(dict.fromkeys(one.partitions_for(topic), 5))
        left = break_fetches(one, monkeypatch, 1)
        one.subscribe([topic], listener)
        until(lambda: one.poll(0) == [] and not left)
        two.subscribe([topic])
        two.poll(100)
        until(lambda: one._membership.must_rejoin)
        break_fetches(one, monkeypatch, 2)
        found: list[ConsumerRecord] = []
        until(
            lambda: (
                found.extend(one.poll(100) + two.poll(100))
                or (len(one.assignment()) == len(two.assignment()) == 3 and len(found) >= 30)
            )
        )
        assert sorted(int(record.value or b"") for record in found) == [*range(30, 60)]
        assert "revoked" not in heard


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_take_part_while_a_transaction_is_about_to_commit_where_they_begin(
    broker: BrokerProcess, topic: str, assignor: str
) -> None:
    write(broker, topic, range(60))
    options = {"assignors": [assignor], "auto_offset_reset": "earliest", **QUICK}
    with (
        Producer(broker.bootstrap, transactional_id=fresh_name()) as producer,
        GroupConsumer(broker.bootstrap, topic, **options) as one,
        GroupConsumer(broker.bootstrap, topic, **options) as two,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        begins = dict.fromkeys(one.partitions_for(topic), 5)
        producer.send_offsets_to_transaction(begins, GroupMetadata(topic))
        one.subscribe([topic])
        until(lambda: one.poll(10) == [] and len(one._membership.assigned) == 6)
        two.subscribe([topic])
        until(
            lambda: (
                one.poll(10) == two.poll(10) == []
                and all(len(each._membership.assigned) == 3 for each in (one, two))
            )
        )
        assert one.assignment() == two.assignment() == []
        producer.commit_transaction()
        found: list[ConsumerRecord] = []
        until(lambda: found.extend(one.poll(100) + two.poll(100)) or len(found) >= 30)
        assert sorted(int(record.value or b"") for record in found) == [*range(30, 60)]


def test_who_is_fenced_is_told_so_at_every_poll(broker: BrokerProcess, topic: str) -> None:
    write(broker, topic, range(60))
    options = {**QUICK, "session_timeout_ms": 20_000, "group_instance_id": "name"}
    heard: list[str] = []
    with (
        GroupConsumer(broker.bootstrap, topic, auto_offset_reset="earliest", **options) as old,
        GroupConsumer(broker.bootstrap, topic, auto_offset_reset="earliest", **options) as new,
    ):
        old.subscribe([topic], Listener(on_lost=lambda _: heard.append("lost")))
        until(lambda: bool(old.poll(100)))
        new.subscribe([topic])
        until(lambda: new.poll(100) or new.assignment())
        joined = new.group_metadata
        until(lambda: old._membership.must_rejoin)
        for _ in range(3):
            with pytest.raises(KafkaError) as fenced:
                old.poll(100)
            assert fenced.value.code == ErrorCode.FENCED_INSTANCE_ID
        assert heard == ["lost"]
        assert old.assignment() == []
        silent_until = time.monotonic() + 1
        until(lambda: new.poll(100) or time.monotonic() > silent_until)
        assert new.group_metadata == joined
        assert not new._membership.must_rejoin


def test_who_waits_for_records_takes_part_meanwhile(broker: BrokerProcess, topic: str) -> None:
    """A poll that may wait for minutes hears of a rebalance, commits, and is no silence."""
    options = {**QUICK, "max_poll_interval_ms": 2_000, "auto_offset_reset": "earliest"}
    at = TopicPartition(topic, 0)
    found: list[ConsumerRecord] = []
    with GroupConsumer(broker.bootstrap, topic, **options) as waits:
        waits.subscribe([topic])
        until(lambda: waits.poll(100) or len(waits.assignment()) == 6)
        write(broker, topic, range(1))
        until(lambda: bool(waits.poll(100)))
        waiting = threading.Thread(target=lambda: found.extend(waits.poll(100_000)), daemon=True)
        waiting.start()
        with GroupConsumer(broker.bootstrap, topic, **options) as comes:
            comes.subscribe([topic])
            until(lambda: comes.poll(100) or (len(waits.assignment()) == 3), timeout_s=30)
            until(lambda: comes.poll(100) or len(comes.assignment()) == 3)
            assert comes.committed([at])[at].offset == 1
            joined = comes.group_metadata
            # For longer than a member may go without a poll.
            silent_until = time.monotonic() + 3
            until(lambda: comes.poll(100) or time.monotonic() > silent_until)
            assert comes.group_metadata == joined
            write(broker, topic, range(60))
            waiting.join(30)
            assert not waiting.is_alive()
            assert found


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
        assert one.committed([at]) == {at: OffsetAndMetadata(4)}
        one.commit()
        (now,) = one.committed([at]).values()
        assert now.offset == 10
        one.seek(at, 2)
        assert one.position(at) == 2
        one.pause([at])
        assert one.poll(100) == []
        one.resume([at])
        until(lambda: len(one.poll(100)) == 8)


def test_commits_keep_a_text_and_an_epoch(broker: BrokerProcess, topic: str) -> None:
    plain, told = (TopicPartition(topic, partition) for partition in (0, 1))
    with GroupConsumer(broker.bootstrap, topic, enable_auto_commit=False) as one:
        offsets = {plain: 7, told: OffsetAndMetadata(8, "who: Zoë", 3)}
        one.commit(offsets)
        assert one.committed([plain, told, TopicPartition(topic, 2)]) == {
            plain: OffsetAndMetadata(7, "", -1),
            told: OffsetAndMetadata(8, "who: Zoë", 3),
        }
        with pytest.raises(KafkaError) as refused:
            one.commit({plain: OffsetAndMetadata(9, "x" * 4097)})
        assert refused.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert one.committed([plain]) == {plain: OffsetAndMetadata(7)}


def test_commits_tell_the_epoch_of_what_was_read(tmp_path: Path, plane: Plane) -> None:
    at = TopicPartition("t", 0)
    with BrokerProcess(tmp_path, overrides={"group.initial.rebalance.delay.ms": 0}) as broker:
        make_topic(broker, "t", partitions=1)
        for start in range(3):
            if start:
                broker.stop()
                assert pass_epochs(broker, at, 2) == start * 2
                broker.start()
            write(broker, "t", range(start * 10, start * 10 + 10), partitions=1)
        with GroupConsumer(
            broker.bootstrap,
            "g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=5,
        ) as one:
            one.subscribe(["t"])
            epochs: list[int] = []
            for polled in range(1, 7):
                found: list[ConsumerRecord] = []
                until(lambda: found or found.extend(one.poll(100)), "read")  # noqa: B023
                assert len(found) == 5
                epochs += {record.leader_epoch for record in found}
                assert one.positions() == {at: OffsetAndMetadata(polled * 5, "", epochs[-1])}
                one.commit()
                assert one.committed([at]) == one.positions()
            assert epochs == [0, 0, 2, 2, 4, 4]
            # Where one goes by hand, nothing is known of what was read before it.
            one.seek(at, 12)
            assert one.positions() == {at: OffsetAndMetadata(12)}
            one.seek(at, OffsetAndMetadata(15, "x", 2))
            assert one.positions() == {at: OffsetAndMetadata(15, "", 2)}
        with GroupConsumer(broker.bootstrap, "g", auto_offset_reset="none") as two:
            two.subscribe(["t"])
            until(lambda: two.poll(100) or two.assignment())
            assert two.positions() == {at: OffsetAndMetadata(30, "", 4)}


def test_offsets_by_time_and_ends_of_a_group(broker: BrokerProcess, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, partition=0, timestamp_ms=1_000 + n * 10)
    with GroupConsumer(broker.bootstrap, topic, auto_offset_reset="earliest") as one:
        partitions = one.partitions_for(topic)
        at, empty = partitions[:2]
        # Of any partition, before the group has given this member its own.
        assert one.offsets_for_times({at: 1_035, empty: 0}) == {
            at: (4, 1_040, one.offsets_for_times({at: -2})[at].leader_epoch),
            empty: (-1, -1, -1),
        }
        assert one.beginning_offsets([at, empty]) == {at: 0, empty: 0}
        assert one.end_offsets([at, empty]) == {at: 10, empty: 0}
        assert one.subscription() == one.assignment() == []
        one.subscribe([topic])
        until(lambda: one.poll(100))
        assert one.subscription() == [topic]
        assert one.assignment() == partitions
        one.seek_to_beginning([at])
        assert one.position(at) == 0
        one.seek_to_end()
        assert one.position(at) == 10
        one.pause([at])
        assert one.paused() == [at]


def read_so_far(consumer: GroupConsumer) -> int:
    return sum(position.offset for position in consumer.positions().values())


@pytest.mark.parametrize(
    "unsubscribe",
    [GroupConsumer.unsubscribe, lambda one: one.subscribe(iter(()))],
    ids=["unsubscribe", "subscribe to nothing"],
)
def test_who_unsubscribes_leaves_and_may_come_back(
    broker: BrokerProcess, topic: str, unsubscribe: Callable[[GroupConsumer], None]
) -> None:
    write(broker, topic, range(60))
    heard: list[tuple[str, int]] = []
    listener = Listener(
        lambda some: heard.append(("assigned", len(some))),
        lambda some: heard.append(("revoked", len(some))),
        lambda some: heard.append(("lost", len(some))),
    )
    with (
        GroupConsumer(broker.bootstrap, topic, auto_offset_reset="earliest", **QUICK) as one,
        GroupAdmin(broker.bootstrap) as groups,
    ):
        for _ in range(2):
            one.subscribe([topic], listener)
            until(lambda: one.poll(100) == [] and read_so_far(one) == 60)
            unsubscribe(one)
            assert one.assignment() == one.subscription() == one.poll(10) == []
            assert groups.describe(topic).members == []
        assert heard == [("assigned", 6), ("revoked", 6)] * 2
        committed = one.committed(one.partitions_for(topic))
        assert sum(offset.offset for offset in committed.values()) == 60


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


def test_consumer_reports_a_broker_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    with GroupConsumer(address, "g") as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(500) == []
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == f"cannot connect to {address}: Connection refused; trying again"
    assert len(said) == len(set(said)), "each cause once in ten seconds"


def test_consumer_reports_a_topic_that_it_waits_for(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh_name()
    with GroupConsumer(broker.bootstrap, name, metadata_max_age_ms=50) as consumer:
        consumer.subscribe([name])
        assert consumer.poll(1_000) == []
    said = [record.getMessage() for record in caplog.records]
    assert said.count(f"group {name!r}: topic {name!r} does not exist; waiting for it") == 1
