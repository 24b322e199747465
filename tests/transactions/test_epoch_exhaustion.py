"""A producer's last epoch: who comes next has another producer id, and every record is there once.

It takes a transactional id 32766 starts to get there, or as many transactions of version 2. Here
its log says that it has: a record is put into `__transaction_state` while the broker is away.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from plog._native.records import build_batch
from plog.client.producer import Producer as Client
from plog.cluster.internal_replicas import TRANSACTIONS_TOPIC
from plog.coordinator import txn_log
from plog.coordinator.txn import LAST_EPOCH
from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.compat.programs import JAVA
from tests.compat.workers import Job, Output, Worker, numbered, write_numbers
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.wire import create_topic, speak, walk_all
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.several_brokers import until_topic_is_known
from tests.storage.storage_logs import open_log, read_all
from tests.transactions.conftest import SETTINGS
from tests.transactions.transactor import Transactor, read
from tests.waiting import until

NONE = ErrorCode.NONE
NAME = "tx"
AT = TopicPartition("t", 0)
OVERRIDES = {**SETTINGS, "transaction.state.log.num.partitions": 1}
LEFT = 3
"""So many epochs the producer id of `NAME` still has."""
TRANSACTIONS = 10


def wear_out(directory: Path) -> None:
    """Have the log of a broker that is away say that few epochs are left."""
    log = open_log(directory)
    record = walk_all(read_all(log))[-1]
    assert record.key == txn_log.encode_key(NAME)
    worn = replace(txn_log.decode_value(record.value), producer_epoch=LAST_EPOCH - LEFT)
    batch = build_batch([(record.timestamp, record.key, txn_log.encode_value(worn), ())])
    log.append_as_leader(bytearray(batch), now_ms=record.timestamp)
    log.flush()
    log.close()


@pytest.fixture
def broker(plane: Plane, tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, overrides=OVERRIDES).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        await_coordinator(wire, "any", GROUP)
        Transactor(wire, NAME).start()
    broker.kill()
    wear_out(broker.partition_dir("__transaction_state-0"))
    with broker:
        yield broker
    assert "failed with an internal error" not in broker.log, broker.log


@pytest.fixture
def old(broker: BrokerProcess) -> Producer:
    """The producer whose epochs are nearly used up."""
    found = known(broker)
    assert found.epoch == LAST_EPOCH - LEFT
    return found


def known(broker: BrokerProcess) -> Producer:
    """Return who the coordinator takes for the producer."""
    with closing(speak(broker.port)) as wire:
        await_coordinator(wire, NAME, TRANSACTION)
        state = Transactor(wire, NAME).described()
        return Producer(state.producer_id, state.producer_epoch)


def check(producers: list[Producer], old: Producer) -> None:
    """See that they are those of the old id up to the last epoch, and then those of a new one."""
    new_id = producers[-1].id
    assert new_id != old.id
    assert producers == [
        *(Producer(old.id, LAST_EPOCH - LEFT + 1 + n) for n in range(LEFT)),
        *(Producer(new_id, n) for n in range(len(producers) - LEFT)),
    ]


def check_records(broker: BrokerProcess, *, aborted: Container[int] = ()) -> None:
    """See that each transaction's record is there once, and committed unless it was aborted."""
    with closing(speak(broker.port)) as wire:
        one, at_rest = Transactor(wire, NAME), ("CompleteCommit", "Empty")
        until(lambda: one.described().transaction_state in at_rest, "at rest")
        numbers = range(TRANSACTIONS)
        assert read(wire, AT) == [b"%d" % n for n in numbers if n not in aborted]
        assert read(wire, AT, committed=False) == [b"%d" % n for n in numbers]


Proceed = Callable[[Transactor], object]


def start_anew(one: Transactor) -> None:
    one.start()


def go_on(one: Transactor) -> None:
    """Ask for the next epoch, as after an error that leaves something open (KIP-360)."""
    until(lambda: one.init(was=one.producer) is NONE, "the next epoch")


def do_nothing(_one: Transactor) -> None:
    """Its end has told it the next epoch (KIP-890)."""


WAYS = {
    "v1-starts": (False, start_anew),
    "v1-goes-on": (False, go_on),
    "v2": (True, do_nothing),
}


each_way = pytest.mark.parametrize(("own_epochs", "proceed"), WAYS.values(), ids=WAYS)


@each_way
def test_transactions_go_on_by_a_new_producer_id(
    broker: BrokerProcess, old: Producer, own_epochs: bool, proceed: Proceed
) -> None:
    """Also where the last one of the old id, and the first one of the new, are aborted."""
    aborted, producers = (LEFT - 1, LEFT), []
    with closing(speak(broker.port)) as wire:
        one = Transactor(wire, NAME, own_epochs=own_epochs).start()
        for number in range(TRANSACTIONS):
            producers.append(one.producer)
            one.send(AT, b"%d" % number)
            assert one.end(commit=number not in aborted) is NONE
            proceed(one)
        check([*producers, one.producer], old)
        zombie = Transactor(wire, NAME, own_epochs=own_epochs, producer=producers[LEFT - 1])
        told = zombie.produce(AT, b"zombie", sequence=1)
        assert told.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert zombie.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    check_records(broker, aborted=aborted)


@each_way
def test_broker_that_dies_at_the_last_epoch_goes_on_by_a_new_producer_id(
    broker: BrokerProcess, old: Producer, own_epochs: bool, proceed: Proceed
) -> None:
    """Once with the end of the last one's transaction, and once before the new one's first."""
    producers = []
    wire = speak(broker.port)
    one = Transactor(wire, NAME, own_epochs=own_epochs).start()

    def die() -> None:
        one.wire.close()
        broker.kill()
        broker.start()
        one.wire = speak(broker.port)
        await_coordinator(one.wire, NAME, TRANSACTION)
        # A partition's leader asks the coordinator, possibly on another broker.
        until_topic_is_known(broker.bootstrap, TRANSACTIONS_TOPIC)

    for number in range(TRANSACTIONS):
        producers.append(one.producer)
        one.send(AT, b"%d" % number)
        assert one.end(commit=True) is NONE
        if number == LEFT - 1:
            told, one.producer = one.producer, producers[-1]
            die()
            until(lambda: one.described().transaction_state == "CompleteCommit")
            assert one.end(commit=True) is NONE
            assert one.producer == told
            proceed(one)
            die()
        else:
            proceed(one)
    one.wire.close()
    check(producers, old)
    check_records(broker)


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_plogs_own_producers_go_on_by_a_new_producer_id(
    broker: BrokerProcess, old: Producer, dies: bool
) -> None:
    """Two transactions of each; the broker dies between those of the last epoch, and behind it."""
    producers = []
    for number in range(0, TRANSACTIONS, 2):
        with Client(broker.bootstrap, transactional_id=NAME) as client:
            client.init_transactions()
            producers.append(known(broker))
            for value in (number, number + 1):
                with client.transaction():
                    client.send(AT.topic, b"%d" % value)
                if dies and producers[-1].epoch == LAST_EPOCH:
                    broker.kill()
                    broker.start()
    check(producers, old)
    check_records(broker)


def test_javas_producer_goes_on_by_a_new_producer_id(
    broker: BrokerProcess, old: Producer, tmp_path: Path
) -> None:
    """Of version 2: each end tells it its next epoch, and once another id."""
    each = 5
    count = each * TRANSACTIONS
    with closing(speak(broker.port)) as wire:
        create_topic(wire, "source")
    write_numbers(broker.bootstrap, "source", 1, range(count), each)
    worker = Worker(
        Job(broker.bootstrap, "g", "source", AT.topic, batch=each),
        JAVA[-1],
        NAME,
        tmp_path / "worker.log",
    )
    try:
        Output(broker.port, AT.topic, 1).await_numbers(numbered(1, count), worker)
        worker.leave()
    finally:
        worker.kill()
    assert worker.transactions >= TRANSACTIONS
    last = known(broker)
    assert last.id != old.id
    assert last.epoch == worker.transactions - LEFT
