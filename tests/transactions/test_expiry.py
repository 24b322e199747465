"""Transactional ids that nobody uses are forgotten, and their producers with them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.coordinator.conftest import TRANSACTION, await_coordinator
from tests.handlers.wire import create_topic, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.conftest import SETTINGS
from tests.transactions.transactor import Transactor, read
from tests.waiting import until

AT = TopicPartition("t", 0)
OVERRIDES = {
    **SETTINGS,
    "transactional.id.expiration.ms": 1000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
}


def is_forgotten(one: Transactor) -> bool:
    return one.described().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_unused_transactional_id_is_forgotten_for_good(plane: Plane, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, overrides=OVERRIDES).start()
    with closing(speak(broker.port)) as wire:
        create_topic(wire, AT.topic)
        one = Transactor(wire, "tx").start()
        one.send(AT, b"v")
        one.finish(commit=True)
        until(lambda: is_forgotten(one), "forgotten")
        assert one.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert one.add(AT) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    broker.kill()
    with broker, closing(speak(broker.port)) as wire:
        again = Transactor(wire, "tx")
        await_coordinator(wire, "tx", TRANSACTION)
        until(lambda: is_forgotten(again), "still forgotten")
        again.start()
        assert again.producer.id != one.producer.id
        assert again.producer.epoch == 0
        assert read(wire, AT) == [b"v"]


def test_open_transaction_is_not_forgotten(plane: Plane, tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, overrides=OVERRIDES) as broker,
        closing(speak(broker.port)) as wire,
    ):
        create_topic(wire, AT.topic)
        slow, other = Transactor(wire, "slow").start(), Transactor(wire, "other").start()
        slow.send(AT, b"v")
        until(lambda: is_forgotten(other), "the other one is forgotten")
        assert slow.described().transaction_state == "Ongoing"
        slow.finish(commit=True)
        assert read(wire, AT) == [b"v"]
