"""Requests of version 1's transactions that come late do not touch a later transaction.

A request that a network keeps back is asked again by its client over another connection; what then
comes late is of an earlier transaction, and of the same epoch as the one that is open by now. This
is the flaw that Jepsen's analysis of Bufstream describes of Kafka's protocol. plog takes an end for
what it is that comes by an older connection than the one by which the last transaction was ended. A
proxy that would open a new connection for it could not be told from the client: for that there is
version 2 (KIP-890), whose transactions have an epoch each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from plog.errors import ErrorCode
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.transactions import EndTxnResponse
from plog.types import TopicPartition
from tests.compat.delayer import Delayer
from tests.compat.recorder import Exchange
from tests.handlers.wire import Speaker, create_topic, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.conftest import SETTINGS
from tests.transactions.transactor import Transactor, read
from tests.waiting import until

AT = TopicPartition("t", 0)
PATIENCE_S = 30


@pytest.fixture
def proxy(plane: Plane, tmp_path: Path) -> Iterator[Delayer]:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS)
    delayer = Delayer(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{delayer.port}"
    with broker:
        yield delayer
        delayer.close()
    assert not delayer.failures, delayer.failures


@pytest.fixture
def wire(proxy: Delayer) -> Iterator[Speaker]:
    with closing(speak(proxy.port)) as connection:
        create_topic(connection, AT.topic)
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
