"""Transactions of plog's own producer on real brokers, also on one that is killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_consumer import (
    CommitFailed,
    GroupConsumer,
    GroupMetadata,
    OffsetAndMetadata,
)
from plog.client.producer import Producer, ProducerClosed, TransactionAborted
from plog.client.transaction_admin import ONGOING, TransactionAdmin
from plog.client.transaction_states import State
from plog.client.transactions import Transactions
from plog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRecord,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    error_for,
)
from plog.protocol.messages.groups import LeaveGroupRequest, MemberIdentity
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.handlers.wire import fresh_name, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

WAIT_S = 60
PARTITIONS = 3
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Make = Callable[..., Producer]
NewTopic = Callable[..., str]


def read_all(bootstrap: str, topic: str, isolation_level: str = COMMITTED) -> dict[int, list]:
    """Return the values of each partition that such a reader sees, once no transaction is open."""
    found: dict[int, list] = defaultdict(list)
    with (
        Consumer(bootstrap) as ends_of,
        Consumer(
            bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level
        ) as consumer,
        Consumer(bootstrap, isolation_level=COMMITTED) as stable_ends_of,
    ):
        assigned = consumer.partitions_for(topic)
        consumer.assign(assigned)

        def is_settled() -> bool:
            return stable_ends_of.end_offsets(assigned) == ends_of.end_offsets(assigned)

        until(is_settled, "without an open transaction")
        ends = ends_of.end_offsets(assigned)

        def is_read() -> bool:
            for record in consumer.poll(100):
                found[record.partition].append(record.value)
            return all(consumer.position(at) >= ends[at] for at in assigned)

        until(is_read, "read")
    return dict(found)


@pytest.fixture
def make(bootstrap: str) -> Iterator[Make]:
    """Make producers with transactional ids, new ones unless they are named."""
    made = []

    def one(transactional_id: str | None = None, *, init: bool = True, **options) -> Producer:
        arguments = {"transactional_id": transactional_id or fresh_name(), **options}
        producer = Producer(bootstrap, **arguments)
        made.append(producer)
        if init:
            producer.init_transactions()
        return producer

    yield one
    for producer in made:
        producer.close(WAIT_S)


# -- on a broker: what readers see -----------------------------------------------------------------


def test_committed_records_are_seen_and_aborted_ones_are_not(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    producer = make()
    for n in range(12):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send(topic, b"%d" % n, partition=partition)
        if n % 3 == 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    committed = [b"%d" % n for n in range(12) if n % 3 != 2]
    assert read_all(bootstrap, topic) == dict.fromkeys(range(PARTITIONS), committed)
    everything = [b"%d" % n for n in range(12)]
    assert read_all(bootstrap, topic, UNCOMMITTED) == dict.fromkeys(range(PARTITIONS), everything)


def test_open_transaction_is_not_seen(bootstrap: str, make: Make, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = make()
    with Consumer(bootstrap, auto_offset_reset="earliest", isolation_level=COMMITTED) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with producer.transaction():
            producer.send(topic, b"v").result(WAIT_S)
            assert consumer.poll(300) == []
        until(lambda: [one.value for one in consumer.poll(100)] == [b"v"])


@pytest.mark.parametrize("commit", [True, False])
def test_prepared_transaction_outlives_its_producer_and_ends_as_others_decide(
    bootstrap: str, make: Make, new_topic: NewTopic, commit: bool
) -> None:
    topic = new_topic(PARTITIONS)
    producer = make()
    producer.begin_transaction()
    for n in range(30):
        producer.send(topic, b"%d" % n, partition=n % PARTITIONS)
    prepared = producer.prepare_transaction()
    assert prepared is not None
    with pytest.raises(InvalidTxnState, match=r"send.*prepared"):
        producer.send(topic, b"too late")
    producer.close(WAIT_S)
    with TransactionAdmin(bootstrap) as admin:
        assert admin.describe(prepared.transactional_id).state == ONGOING
        for _ in range(2):  # whoever is not sure that it has asked asks again
            admin.end(prepared, commit=commit)
        with pytest.raises(InvalidTxnState):
            admin.end(prepared, commit=not commit)
        assert sum(map(len, read_all(bootstrap, topic).values())) == 30 * commit
        # The next one of the transactional id is another producer's.
        again = make(prepared.transactional_id)
        again.begin_transaction()
        again.send(topic, b"next", partition=0)
        again.flush()
        with pytest.raises(ProducerFenced, match=prepared.transactional_id):
            admin.end(prepared, commit=commit)
        again.commit_transaction()
    assert read_all(bootstrap, topic)[0][-1] == b"next"


def test_next_producer_aborts_what_is_prepared(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = make()
    producer.begin_transaction()
    producer.send(topic, b"v")
    prepared = producer.prepare_transaction()
    assert prepared is not None
    make(prepared.transactional_id)
    with TransactionAdmin(bootstrap) as admin, pytest.raises(ProducerFenced):
        admin.end(prepared, commit=True)
    assert read_all(bootstrap, topic) == {}


def test_what_is_prepared_may_be_ended_by_its_own_producer(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = make()
    for n, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.send(topic, b"%d" % n)
        producer.prepare_transaction()
        end()
    assert read_all(bootstrap, topic) == {0: [b"0", b"2"]}


def test_transaction_without_records_has_nothing_to_prepare(make: Make) -> None:
    producer = make()
    producer.begin_transaction()
    assert producer.prepare_transaction() is None
    producer.commit_transaction()


def test_transaction_that_failed_cannot_be_prepared(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact")
    producer = make()
    producer.begin_transaction()
    producer.send(topic, b"without a key")
    with pytest.raises(InvalidRecord):
        producer.prepare_transaction()
    producer.abort_transaction()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_batches_of_every_codec_are_one_transaction(
    bootstrap: str, make: Make, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic(PARTITIONS)
    producer = make(compression_type=codec, batch_size=500, linger_ms=0)
    for abort in (True, False):
        producer.begin_transaction()
        for n in range(600):
            producer.send(topic, b"%d" % n, partition=n % PARTITIONS)
        if abort:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert read_all(bootstrap, topic) == {
        partition: [b"%d" % n for n in range(partition, 600, PARTITIONS)]
        for partition in range(PARTITIONS)
    }


def test_block_commits_or_aborts(bootstrap: str, make: Make, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = make()
    with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012 - the block
        producer.send(topic, b"no").result(WAIT_S)
        raise ZeroDivisionError
    with producer.transaction():
        pass
    with producer.transaction():
        producer.send(topic, b"yes")
    assert read_all(bootstrap, topic) == {0: [b"yes"]}


def test_record_that_is_refused_costs_its_transaction_alone(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic = new_topic()
    compacted = new_topic(cleanup_policy="compact")
    producer = make()
    producer.begin_transaction()
    producer.send(topic, b"no")
    # A compacted topic takes no record without a key.
    refused = producer.send(compacted, b"no")
    with pytest.raises(InvalidRecord):
        refused.result(WAIT_S)
    with pytest.raises(InvalidTxnState, match="call abort_transaction"):
        producer.send(topic, b"no")
    with pytest.raises(InvalidRecord):
        producer.commit_transaction()
    producer.abort_transaction()
    with pytest.raises(InvalidRecord), producer.transaction():
        producer.send(compacted, b"no")
    with producer.transaction():
        producer.send(topic, b"yes")
        producer.send(compacted, b"yes", key=b"k")
    assert read_all(bootstrap, topic) == {0: [b"yes"]}
    assert read_all(bootstrap, compacted) == {0: [b"yes"]}


# -- on a broker: who may --------------------------------------------------------------------------


def test_second_producer_fences_the_first_and_aborts_its_transaction(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic = new_topic()
    old = make("fenced")
    old.begin_transaction()
    old.send(topic, b"no").result(WAIT_S)
    new = make("fenced")
    with new.transaction():
        new.send(topic, b"yes")
    refused = old.send(topic, b"no")
    with pytest.raises(KafkaError) as fault:
        refused.result(WAIT_S)
    assert fault.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    for call in (
        old.commit_transaction,
        old.abort_transaction,
        old.begin_transaction,
        lambda: old.send(topic, b"no"),
        lambda: old.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, GroupMetadata("g")),
    ):
        with pytest.raises(ProducerFenced, match="'fenced' has another producer"):
            call()
    with new.transaction():
        new.send(topic, b"yes")
    assert read_all(bootstrap, topic) == {0: [b"yes", b"yes"]}


def commit_offset(producer: Producer, topic: str) -> None:
    producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, GroupMetadata("g"))


@pytest.mark.parametrize("sends", [True, False], ids=["records", "offsets"])
def test_fenced_producer_commits_nothing(make: Make, new_topic: NewTopic, sends: bool) -> None:
    topic, name = new_topic(), fresh_name()
    old = make(name)
    old.begin_transaction()
    calls = {True: old.commit_transaction, False: partial(commit_offset, old, topic)}
    if sends:
        old.send(topic, b"no").result(WAIT_S)
    make(name)
    with pytest.raises(ProducerFenced):
        calls[sends]()
    with pytest.raises(ProducerFenced):
        old.abort_transaction()


def test_transaction_that_takes_too_long_is_aborted_by_the_coordinator(
    tmp_path: Path, plane: Plane
) -> None:
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
        "transaction.state.log.num.partitions": 1,
    }
    with BrokerProcess(tmp_path, overrides=settings) as broker:
        with Producer(
            broker.bootstrap, transactional_id="slow", transaction_timeout_ms=300
        ) as slow:
            slow.init_transactions()
            slow.begin_transaction()
            slow.send("t", b"no").result(WAIT_S)
            until(lambda: read_all(broker.bootstrap, "t") == {})
            with pytest.raises(ProducerFenced, match="exceeded transaction_timeout_ms"):
                slow.commit_transaction()
        with (
            pytest.raises(InvalidTransactionTimeout),
            Producer(
                broker.bootstrap, transactional_id="slow", transaction_timeout_ms=10**9
            ) as impatient,
        ):
            impatient.init_transactions()


def test_calls_out_of_turn_are_refused(make: Make, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = make(init=False)
    with pytest.raises(InvalidTxnState, match=r"begin_transaction.*uninitialized"):
        producer.begin_transaction()
    producer.init_transactions()
    for call in (
        producer.init_transactions,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(topic, b"v"),
        lambda: producer.send_offsets_to_transaction({}, GroupMetadata("g")),
    ):
        with pytest.raises(InvalidTxnState, match="ready"):
            call()
    producer.begin_transaction()
    with pytest.raises(InvalidTxnState, match="in transaction"):
        producer.begin_transaction()
    producer.abort_transaction()


def test_producer_without_transactional_id_has_no_transactions(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with Producer(bootstrap) as producer:
        for call in (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send_offsets_to_transaction({}, GroupMetadata("g")),
        ):
            with pytest.raises(InvalidTxnState, match="no transactional_id"):
                call()
        producer.send(topic, b"v")
    assert read_all(bootstrap, topic) == {0: [b"v"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"transactional_id": ""},
        {"transactional_id": "t", "enable_idempotence": False},
        {"transactional_id": "t", "enable_idempotence": False, "acks": "1"},
        {"transactional_id": "t", "transaction_timeout_ms": 0},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidConfig):
        Producer("127.0.0.1:1", **wrong)


def test_close_aborts_what_is_open(bootstrap: str, make: Make, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = make(transaction_timeout_ms=600_000)
    producer.begin_transaction()
    producer.send(topic, b"no").result(WAIT_S)
    waiting = producer.send(topic, b"no")
    producer.close()
    with suppress(TransactionAborted):
        waiting.result(0)
    assert read_all(bootstrap, topic) == {}
    with pytest.raises(ProducerClosed):
        producer.begin_transaction()


# -- on a broker: offsets of groups ----------------------------------------------------------------


def grouped(bootstrap: str, group: str, **options) -> GroupConsumer:
    arguments = {
        "isolation_level": COMMITTED,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 10_000,
        "heartbeat_interval_ms": 100,
        **options,
    }
    return GroupConsumer(bootstrap, group, **arguments)


def test_offsets_stand_with_their_transaction(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic, group = new_topic(), fresh_name()
    at = TopicPartition(topic, 0)
    producer = make()
    with grouped(bootstrap, group) as consumer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({at: 3}, GroupMetadata(group))
        producer.commit_transaction()
        assert consumer.committed([at]) == {at: OffsetAndMetadata(3)}
        producer.begin_transaction()
        producer.send_offsets_to_transaction({at: 9}, GroupMetadata(group))
        producer.abort_transaction()
        assert consumer.committed([at]) == {at: OffsetAndMetadata(3)}
        told = OffsetAndMetadata(4, "of a transaction", 2)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({at: told}, GroupMetadata(group))
        producer.commit_transaction()
        assert consumer.committed([at]) == {at: told}


def test_consume_transform_produce(bootstrap: str, make: Make, new_topic: NewTopic) -> None:
    source, target, group = new_topic(PARTITIONS), new_topic(PARTITIONS), fresh_name()
    with Producer(bootstrap) as writer:
        for n in range(300):
            writer.send(source, b"%d" % n, partition=n % PARTITIONS)
    producer = make()
    turn = written = 0
    with grouped(bootstrap, group, max_poll_records=20) as consumer:
        consumer.subscribe([source])
        while written < 300:
            found = consumer.poll(1000)
            if not found:
                continue
            turn += 1
            producer.begin_transaction()
            for record in found:
                producer.send(target, b"<%s>" % record.value, partition=record.partition)
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata)
            if turn % 3 == 0:
                producer.abort_transaction()
                committed = consumer.committed(consumer.assignment())
                for at in consumer.assignment():
                    consumer.seek(at, committed.get(at, 0))
            else:
                producer.commit_transaction()
                written += len(found)
        ends = {TopicPartition(source, partition): 100 for partition in range(PARTITIONS)}
        committed = consumer.committed(ends)
        assert {at: one.offset for at, one in committed.items()} == ends
        assert committed == consumer.positions()
        # That of what was read, which is all from one start of the broker.
        assert {one.leader_epoch for one in committed.values()} == {found[-1].leader_epoch}
        assert found[-1].leader_epoch >= 0
    assert read_all(bootstrap, target) == {
        partition: [b"<%d>" % n for n in range(partition, 300, PARTITIONS)]
        for partition in range(PARTITIONS)
    }


def test_member_that_the_group_has_gone_on_without_commits_nothing(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    topic, group = new_topic(), fresh_name()
    at = TopicPartition(topic, 0)
    producer = make()
    with grouped(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        until(lambda: consumer.poll(100) or consumer.assignment())
        now = consumer.group_metadata
        assert (now.group_id, now.instance_id) == (group, None)
        assert now.generation >= 1
        assert now.member_id
        for stale in (
            now._replace(generation=now.generation - 1),
            now._replace(member_id="somebody"),
            now._replace(instance_id="someone"),
        ):
            producer.begin_transaction()
            with pytest.raises(CommitFailed):
                producer.send_offsets_to_transaction({at: 5}, stale)
            with pytest.raises(CommitFailed):
                producer.commit_transaction()
            producer.abort_transaction()
        with producer.transaction():
            producer.send_offsets_to_transaction({at: 7}, now)
        assert consumer.committed([at]) == {at: OffsetAndMetadata(7)}


@pytest.mark.parametrize("others", [0, 1])
def test_member_that_is_expelled_commits_nothing_before_it_is_back(
    bootstrap: str,
    make: Make,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    others: int,
) -> None:
    """Nobody's offsets would be taken, in a transaction by any group, by an empty one at all."""
    topic, group = new_topic(2), fresh_name()
    at = TopicPartition(topic, 0)
    producer = make()
    with grouped(bootstrap, group) as one, grouped(bootstrap, group) as other:
        polling = [one, other][: 1 + others]
        for each in polling:
            each.subscribe([topic])

        def all_have_some() -> bool:
            polled = [each.poll(10) for each in polling]
            return not any(polled) and all(each.assignment() for each in polling)

        until(all_have_some)
        was = one.group_metadata
        with monkeypatch.context() as patched, closing(speak(port_of(bootstrap))) as wire:
            out = [MemberIdentity(member_id=was.member_id)]
            assert wire.ask(LeaveGroupRequest(group_id=group, members=out)).error_code == 0
            until(lambda: one._membership.is_lost)
            # Its Join is not heard.
            patched.setattr(one._membership, "_send_join", not_sent)
            assert one.poll(10) == one.assignment() == []
            with pytest.raises(CommitFailed):
                one.commit({at: 5})
            producer.begin_transaction()
            with pytest.raises(CommitFailed):
                producer.send_offsets_to_transaction({at: 5}, one.group_metadata)
            producer.abort_transaction()
        until(all_have_some)
        assert one.group_metadata.member_id not in ("", was.member_id)
        with producer.transaction():
            producer.send_offsets_to_transaction({at: 7}, one.group_metadata)
        assert other.committed([at]) == {at: OffsetAndMetadata(7)}


def not_sent(*_: object) -> None:
    raise error_for(ErrorCode.NETWORK_EXCEPTION, "made by the test")


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def test_abort_of_a_producer_that_is_fenced_meanwhile_says_so(
    make: Make, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the sender's thread, which then drops what the abort waits for."""
    topic, producer = new_topic(), make(linger_ms=0)
    progress, is_joining = producer._transactions.progress, threading.Event()

    def fenced(*_: object) -> None:
        is_joining.set()
        until(lambda: progress.state is State.ABORTING)
        raise error_for(ErrorCode.INVALID_PRODUCER_EPOCH)

    monkeypatch.setattr(Transactions, "join", fenced)
    producer.begin_transaction()
    producer.send(topic, b"v", partition=0)
    assert is_joining.wait(WAIT_S)
    with pytest.raises(ProducerFenced):
        producer.abort_transaction()


def test_connections_to_the_coordinator_may_break_one_by_one(
    bootstrap: str, make: Make, new_topic: NewTopic
) -> None:
    """Partitions join by the sender's, and the transaction ends by the other one."""
    topic, producer = new_topic(), make()
    ends, joins = producer._transactions._coordinator, producer._sender._joins._coordinator
    for n, broken in enumerate([None, ends, joins, ends, ends, joins]):
        if broken is not None:
            broken.interrupt()
        with producer.transaction():
            producer.send(topic, b"%d" % n, partition=0)
    assert read_all(bootstrap, topic) == {0: [b"%d" % n for n in range(6)]}


# -- a broker that is killed -----------------------------------------------------------------------


class Writer:
    """Transactions one after the other, by one producer, and what is known of each.

    Values are numbers of transactions; `unknown` are those that may have been committed.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.committed: list[int] = []
        self.unknown: list[int] = []
        self.aborted: list[int] = []
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        n = 0
        try:
            # Quick to ask again: the broker is away for a moment only.
            with Producer(
                self.bootstrap, transactional_id="writer", retry_backoff_ms=10
            ) as producer:
                producer.init_transactions()
                while not self._stopping.is_set():
                    n += 1
                    self._one(producer, n)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def _one(self, producer: Producer, n: int) -> None:
        self.unknown.append(n)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send("t", b"%d" % n, partition=partition)
        producer.send_offsets_to_transaction({TopicPartition("t", 0): n}, GroupMetadata("g"))
        if n % 4 == 3:
            self.unknown.remove(n)
            self.aborted.append(n)
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            self.unknown.remove(n)
            self.committed.append(n)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.long)])
def test_nothing_is_lost_and_nothing_twice_with_a_broker_that_is_killed(
    tmp_path: Path, plane: Plane, kills: int
) -> None:
    chance = random.Random(run_seed())
    settings = {
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess(tmp_path, overrides=settings) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        writer = Writer(broker.bootstrap)
        for _ in range(kills):
            seen = len(writer.committed)
            until(lambda seen=seen: writer.error or len(writer.committed) >= seen + 10)
            time.sleep(chance.random() * 0.05)  # at any point of a transaction
            broker.kill()
            broker.start()
        seen = len(writer.committed)
        until(lambda: writer.error or len(writer.committed) >= seen + 10)
        writer.stop()
        found = read_all(broker.bootstrap, "t")
        counts = Counter(int(value) for values in found.values() for value in values)
        assert {n: counts[n] for n in writer.committed} == dict.fromkeys(
            writer.committed, PARTITIONS
        )
        assert {n for n in writer.aborted if counts[n]} == set()
        assert {counts[n] for n in writer.unknown} <= {0, PARTITIONS}
        for values in found.values():
            assert values == sorted(values, key=int)
        with grouped(broker.bootstrap, "g") as consumer:
            at = TopicPartition("t", 0)
            assert consumer.committed([at])[at].offset == max(counts)
