"""Requests of version 1's transactions that come late do not touch a later transaction.

A request that a network keeps back is asked again by its client over another connection; what then
comes late is of an earlier transaction, and of the same epoch as the one that is open by now. This
is the flaw that Jepsen's analysis of Bufstream describes of Kafka's protocol. plog takes a request
for what it is that comes by an older connection than those by which the last transaction was spoken
of and ended (`coordinator/txn_connections.py`). A proxy that would open a new connection for it
could not be told from the client: for that there is version 2 (KIP-890), whose transactions have an
epoch each. What is not told either stands at the end, with what then happens.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Offset

from plog.errors import ErrorCode, PlogError
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)
from plog.types import TopicPartition
from tests.compat.delayer import Delayer
from tests.compat.programs import JAVA
from tests.compat.recorder import Exchange, body_of
from tests.coordinator.conftest import await_coordinator
from tests.handlers.wire import Speaker, create_topic, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.conftest import SETTINGS
from tests.transactions.transactor import Transactor, committed_offset, read
from tests.waiting import until

AT, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
GROUP = "g"
PATIENCE_S = 30


class Stopper(Delayer):
    """Also has a client stop before a request, which waits there until it may go on."""

    def __init__(self, target_port: int) -> None:
        self._is_stop: Callable[[Exchange], bool] = lambda _exchange: False
        self._stopped, self._may_go_on = threading.Event(), threading.Event()
        super().__init__(target_port)

    def stop_before(self, is_stop: Callable[[Exchange], bool]) -> threading.Event:
        """Stop before the first such request; return what is set then."""
        self._is_stop = is_stop
        return self._stopped

    def go_on(self) -> None:
        self._may_go_on.set()

    def close(self) -> None:
        self.go_on()
        super().close()

    def _pass(self, client: socket.socket, broker: socket.socket, exchange: Exchange) -> bool:
        if self._is_stop(exchange):
            self._stopped.set()
            self._may_go_on.wait()
        return super()._pass(client, broker, exchange)


@pytest.fixture
def proxy(plane: Plane, tmp_path: Path) -> Iterator[Stopper]:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS)
    delayer = Stopper(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{delayer.port}"
    with broker:
        yield delayer
        delayer.close()
    assert not delayer.failures, delayer.failures


@pytest.fixture
def wire(proxy: Delayer) -> Iterator[Speaker]:
    with closing(speak(proxy.port)) as connection:
        create_topic(connection, AT.topic)
        create_topic(connection, OTHER.topic)
        yield connection


@pytest.fixture
def producer(proxy: Delayer, wire: Speaker) -> Producer:
    found = Producer(
        {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transactional.id": "tx", "linger.ms": 0}
    )
    found.init_transactions(PATIENCE_S)
    return found


def answer(kind: type[Any], late: Exchange) -> Any:
    key, version = late.header.api_key, late.header.api_version
    _, start = framing.decode_response_header(key, version, late.answer)
    return codec.decode(kind, version, late.answer, start)[0]


def state(wire: Speaker) -> str:
    return Transactor(wire, "tx").described().transaction_state


def write(producer: Producer, *values: bytes) -> None:
    for value in values:
        producer.produce(AT.topic, value, partition=AT.partition)
        assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("end", [Producer.commit_transaction, Producer.abort_transaction])
def test_end_that_comes_late_does_not_end_the_next_transaction(
    proxy: Delayer, wire: Speaker, producer: Producer, end: Callable[[Producer, float], None]
) -> None:
    producer.begin_transaction()
    write(producer, b"first")
    proxy.keep_next(ApiKey.END_TXN)
    end(producer, PATIENCE_S)  # asks again by another connection
    assert proxy.has_one
    producer.begin_transaction()
    write(producer, b"second")
    late = proxy.release()
    assert answer(EndTxnResponse, late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state(wire) == "Ongoing"
    first = [b"first"] if end is Producer.commit_transaction else []
    assert read(wire, AT) == first
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    assert read(wire, AT) == [*first, b"second"]


def test_end_that_comes_late_while_no_transaction_is_open_changes_nothing(
    proxy: Delayer, wire: Speaker, producer: Producer
) -> None:
    producer.begin_transaction()
    write(producer, b"first")
    proxy.keep_next(ApiKey.END_TXN)
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    assert answer(EndTxnResponse, proxy.release()).error_code == ErrorCode.NONE
    producer.begin_transaction()
    write(producer, b"second")
    producer.abort_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteAbort")
    assert read(wire, AT) == [b"first"]


@pytest.mark.parametrize("further", [1, 9], ids=["remembered", "forgotten"])
def test_records_that_come_late_are_of_no_later_transaction(
    proxy: Delayer, wire: Speaker, producer: Producer, further: int
) -> None:
    producer.begin_transaction()
    write(producer, b"first")
    proxy.keep_next(ApiKey.PRODUCE)
    write(producer, b"second")
    assert proxy.has_one
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    write(producer, *[b"no"] * further)
    late = answer(ProduceResponse, proxy.release())
    (topic,) = late.responses
    (part,) = topic.partition_responses
    if further == 1:
        assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 1)  # as the first time
    else:
        assert part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.abort_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteAbort")
    assert read(wire, AT) == [b"first", b"second"]
    assert read(wire, AT, committed=False) == [b"first", b"second", *[b"no"] * further]


# -- partitions that join --------------------------------------------------------------------------


def write_to(producer: Producer, at: TopicPartition, value: bytes) -> None:
    producer.produce(at.topic, value, partition=at.partition)
    assert producer.flush(PATIENCE_S) == 0


def joined(wire: Speaker) -> list[str]:
    return [topic.topic for topic in Transactor(wire, "tx").described().topics]


def error_of_joining(late: Exchange) -> ErrorCode:
    (topic,) = answer(AddPartitionsToTxnResponse, late).results_by_topic_v3_and_below
    (part,) = topic.results_by_partition
    return ErrorCode(part.partition_error_code)


def test_partitions_that_come_late_begin_no_transaction(
    proxy: Delayer, wire: Speaker, producer: Producer
) -> None:
    """Which nobody would end: its producer would be fenced when it has taken too long."""
    proxy.keep_next(ApiKey.ADD_PARTITIONS_TO_TXN)
    producer.begin_transaction()
    write(producer, b"first")  # asks again by another connection
    assert proxy.has_one
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    assert error_of_joining(proxy.release()) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state(wire) == "CompleteCommit"
    producer.begin_transaction()
    write(producer, b"second")
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    assert read(wire, AT) == [b"first", b"second"]


def test_partitions_that_come_late_are_not_in_the_next_transaction(
    proxy: Delayer, wire: Speaker, producer: Producer
) -> None:
    proxy.keep_next(ApiKey.ADD_PARTITIONS_TO_TXN)
    producer.begin_transaction()
    write(producer, b"first")
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    write_to(producer, OTHER, b"second")
    assert error_of_joining(proxy.release()) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert joined(wire) == [OTHER.topic]
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    assert read(wire, OTHER) == [b"second"]


# -- offsets that join -----------------------------------------------------------------------------


@pytest.fixture
def offsets(proxy: Delayer, wire: Speaker, producer: Producer) -> Iterator[Callable[[int], None]]:
    """Have the producer commit an offset of a group's."""
    await_coordinator(wire, GROUP)
    settings = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "group.id": GROUP}
    with closing(Consumer(settings)) as consumer:
        group = consumer.consumer_group_metadata()

        def commit(offset: int) -> None:
            at = Offset(AT.topic, AT.partition, offset)
            producer.send_offsets_to_transaction([at], group, PATIENCE_S)

        yield commit


def test_offsets_that_are_to_join_and_come_late_begin_no_transaction(
    proxy: Delayer, wire: Speaker, producer: Producer, offsets: Callable[[int], None]
) -> None:
    proxy.keep_next(ApiKey.ADD_OFFSETS_TO_TXN)
    producer.begin_transaction()
    offsets(5)  # asks again by another connection
    assert proxy.has_one
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    late = answer(AddOffsetsToTxnResponse, proxy.release())
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state(wire) == "CompleteCommit"
    producer.begin_transaction()
    offsets(6)
    producer.commit_transaction(PATIENCE_S)
    until(lambda: committed_offset(wire, GROUP, AT, require_stable=True) == (ErrorCode.NONE, 6))


def test_offsets_that_are_to_join_and_come_late_are_not_in_the_next_transaction(
    proxy: Delayer, wire: Speaker, producer: Producer, offsets: Callable[[int], None]
) -> None:
    proxy.keep_next(ApiKey.ADD_OFFSETS_TO_TXN)
    producer.begin_transaction()
    offsets(5)
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    write_to(producer, OTHER, b"second")
    late = answer(AddOffsetsToTxnResponse, proxy.release())
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert joined(wire) == [OTHER.topic]
    producer.commit_transaction(PATIENCE_S)
    until(lambda: state(wire) == "CompleteCommit")
    assert committed_offset(wire, GROUP, AT, require_stable=True) == (ErrorCode.NONE, 5)


# -- Java's producer, which has one connection for all it says to a broker -------------------------


class Held:
    """Java's producer of version 1 (`LateProducer.java`): it writes, and waits to be told.

    Then it writes once more, aborts, and commits another transaction.
    """

    def __init__(self, port: int, log: Path) -> None:
        java = JAVA[0]
        self._log = log
        settings = [f"bootstrap.servers=127.0.0.1:{port}", "transactional.id=tx", "linger.ms=0"]
        self._program = java.start("LateProducer", [AT.topic, *settings], log)
        said = self._program.readline()
        assert said == "written\n", log.read_text()

    def go_on(self) -> None:
        self._program.stdin.write("go on\n")

    def outcome(self) -> dict[str, str]:
        """Return what each step came to, once it has ended."""
        said = self._program.communicate(PATIENCE_S)
        assert self._program.returncode == 0, self._log.read_text()
        return dict(map(str.split, said.splitlines()))

    def end(self) -> None:
        self._program.kill()


@pytest.fixture
def java(proxy: Delayer, wire: Speaker, tmp_path: Path) -> Iterator[Held]:
    found = Held(proxy.port, tmp_path / "java.log")
    yield found
    found.end()


ALL_DONE = {"write": "done", "abort": "done", "next": "done"}


def test_javas_abort_that_comes_late_does_not_end_the_next_transaction(
    proxy: Stopper, wire: Speaker, java: Held
) -> None:
    proxy.keep_next(ApiKey.END_TXN)
    stopped = proxy.stop_before(
        lambda it: it.header.api_key == ApiKey.END_TXN and body_of(it, EndTxnRequest).committed
    )
    java.go_on()
    until(stopped.is_set, "the next transaction is to be committed")
    late = proxy.release()
    assert answer(EndTxnResponse, late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state(wire) == "Ongoing"
    proxy.go_on()
    assert java.outcome() == ALL_DONE
    until(lambda: state(wire) == "CompleteCommit")
    assert read(wire, AT) == [b"next"]


def test_javas_records_that_come_late_do_not_begin_the_next_transaction(
    proxy: Stopper, wire: Speaker, java: Held
) -> None:
    """They are told what they were told the first time; the next ones have their place."""

    def is_next(exchange: Exchange) -> bool:
        ends = [one for one in proxy.exchanges if one.header.api_key == ApiKey.END_TXN]
        return exchange.header.api_key == ApiKey.PRODUCE and bool(ends)

    proxy.keep_next(ApiKey.PRODUCE)
    stopped = proxy.stop_before(is_next)
    java.go_on()
    until(stopped.is_set, "the next transaction is to be written to")
    assert (state(wire), joined(wire)) == ("Ongoing", [AT.topic])
    (topic,) = answer(ProduceResponse, proxy.release()).responses
    (part,) = topic.partition_responses
    assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 1)
    assert read(wire, AT, committed=False) == [b"late", b"refused"]
    proxy.go_on()
    assert java.outcome() == ALL_DONE
    until(lambda: state(wire) == "CompleteCommit")
    assert read(wire, AT) == [b"next"]
    assert read(wire, AT, committed=False) == [b"late", b"refused", b"next"]


# -- by hand: clients that give up, and go on by another connection --------------------------------


@pytest.fixture
def first(proxy: Delayer, wire: Speaker) -> Iterator[Transactor]:
    """A producer of version 1 that has one connection for all it says."""
    with closing(speak(proxy.port)) as connection:
        await_coordinator(connection, GROUP)
        yield Transactor(connection, "tx").start()


@pytest.fixture
def second(proxy: Delayer, first: Transactor) -> Iterator[Transactor]:
    """The same producer, by the connection with which it goes on."""
    with closing(speak(proxy.port)) as connection:
        yield Transactor(connection, "tx", sequences=first.sequences)


def lose(proxy: Delayer, api: ApiKey, ask: Callable[[], object]) -> None:
    """Ask what the network keeps back, and hear nothing."""
    proxy.keep_next(api)
    with pytest.raises((OSError, PlogError)):
        ask()
    assert proxy.has_one


def error_of_offsets(late: Exchange) -> ErrorCode:
    (topic,) = answer(TxnOffsetCommitResponse, late).topics
    (part,) = topic.partitions
    return ErrorCode(part.error_code)


def error_of_records(late: Exchange) -> ErrorCode:
    (topic,) = answer(ProduceResponse, late).responses
    (part,) = topic.partition_responses
    return ErrorCode(part.error_code)


def test_offsets_that_come_late_do_not_take_the_place_of_the_next_ones(
    proxy: Delayer, wire: Speaker, first: Transactor, second: Transactor
) -> None:
    second.producer = first.producer
    assert first.add_offsets(GROUP) is ErrorCode.NONE
    lose(proxy, ApiKey.TXN_OFFSET_COMMIT, lambda: first.commit_offset(GROUP, AT, 5))
    assert second.commit_offset(GROUP, AT, 5) is ErrorCode.NONE
    second.finish(commit=True)
    assert second.add_offsets(GROUP) is ErrorCode.NONE
    assert second.commit_offset(GROUP, AT, 9) is ErrorCode.NONE
    assert error_of_offsets(proxy.release()) is ErrorCode.INVALID_PRODUCER_EPOCH
    second.finish(commit=True)
    assert committed_offset(wire, GROUP, AT) == (ErrorCode.NONE, 9)


def test_offsets_of_a_transaction_that_was_aborted_are_not_committed_by_the_next_one(
    proxy: Delayer, wire: Speaker, first: Transactor, second: Transactor
) -> None:
    second.producer = first.producer
    first.send(AT)
    assert first.add_offsets(GROUP) is ErrorCode.NONE
    assert first.commit_offset(GROUP, AT, 4) is ErrorCode.NONE
    lose(proxy, ApiKey.TXN_OFFSET_COMMIT, lambda: first.commit_offset(GROUP, AT, 5))
    second.finish(commit=False)
    assert second.add_offsets(GROUP) is ErrorCode.NONE
    assert error_of_offsets(proxy.release()) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert second.commit_offset(GROUP, OTHER, 1) is ErrorCode.NONE
    second.finish(commit=True)
    assert committed_offset(wire, GROUP, AT) == (ErrorCode.NONE, -1)
    assert committed_offset(wire, GROUP, OTHER) == (ErrorCode.NONE, 1)


def test_records_that_were_given_up_and_come_late_do_not_begin_the_next_transaction(
    proxy: Delayer, wire: Speaker, first: Transactor, second: Transactor
) -> None:
    """A client that numbers on as if they had never been, under the same epoch."""
    second.producer = first.producer
    first.send(AT, b"no")
    lose(proxy, ApiKey.PRODUCE, lambda: first.produce(AT, b"lost"))
    second.finish(commit=False)
    second.join(AT)
    assert error_of_records(proxy.release()) is ErrorCode.INVALID_PRODUCER_EPOCH
    second.send(AT, b"yes")
    second.finish(commit=True)
    assert read(wire, AT) == [b"yes"]


# -- what is not told ------------------------------------------------------------------------------


@pytest.fixture
def writer(proxy: Delayer, first: Transactor) -> Iterator[Transactor]:
    """The same producer where it writes: by a connection for that alone, as franz-go."""
    with closing(speak(proxy.port)) as connection:
        yield Transactor(connection, "tx", sequences=first.sequences)


def test_who_writes_by_a_connection_of_its_own_is_not_told_from_what_comes_late(
    proxy: Delayer, wire: Speaker, first: Transactor, writer: Transactor, second: Transactor
) -> None:
    """Its records begin the next transaction, if they come before those of that one.

    The next one's then have the number of these, and are taken for their copy.
    """
    second.producer = writer.producer = first.producer
    first.join(AT)
    assert writer.produce(AT, b"no").error_code == ErrorCode.NONE
    lose(proxy, ApiKey.PRODUCE, lambda: writer.produce(AT, b"lost"))
    first.finish(commit=False)
    first.join(AT)
    assert error_of_records(proxy.release()) is ErrorCode.NONE
    assert second.produce(AT, b"yes").error_code == ErrorCode.NONE
    first.finish(commit=True)
    assert read(wire, AT) == [b"lost"]


def test_a_second_batch_that_comes_late_behind_the_next_transactions_first_is_taken(
    proxy: Delayer, wire: Speaker, first: Transactor, second: Transactor
) -> None:
    """Of two that were given up; by its number it is the next one."""
    second.producer = first.producer
    first.send(AT, b"no")
    lose(proxy, ApiKey.PRODUCE, lambda: first.produce(AT, b"lost", sequence=2))
    second.finish(commit=False)
    second.send(AT, b"yes")
    assert error_of_records(proxy.release()) is ErrorCode.NONE
    second.finish(commit=True)
    assert read(wire, AT) == [b"yes", b"lost"]
