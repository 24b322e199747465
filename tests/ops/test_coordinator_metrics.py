"""What the metrics page says of groups and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.errors import ErrorCode
from plog.ops import watch
from plog.types import TopicPartition
from tests.broker.test_lost_replicas import damage
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import ByHand
from tests.handlers.wire import Speaker, create_topic, fetch_request, fetched, speak
from tests.servers import BrokerProcess, free_port
from tests.transactions.conftest import SETTINGS
from tests.transactions.transactor import Transactor, read
from tests.waiting import until

AT = TopicPartition("t", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    address = f"127.0.0.1:{free_port()}"
    overrides = {**SETTINGS, "metrics.listener": address}
    with BrokerProcess(tmp_path, overrides=overrides) as running:
        yield running


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Speaker]:
    with closing(speak(broker.port)) as connection:
        create_topic(connection, AT.topic)
        yield connection


def value(broker: BrokerProcess, name: str, **labels: str) -> float:
    return watch.read(str(broker.overrides["metrics.listener"]), 0).value(name, **labels)


def test_transactions_are_counted(broker: BrokerProcess, wire: Speaker) -> None:
    assert value(broker, "plog_transactional_ids", state="Ongoing") == 0
    one = Transactor(wire, "tx").start()
    one.send(AT, b"v")
    assert value(broker, "plog_transactional_ids", state="Ongoing") == 1
    until(lambda: value(broker, "plog_oldest_transaction_seconds") > 0)
    one.finish(commit=True)
    assert value(broker, "plog_oldest_transaction_seconds") == 0
    for _ in range(2):
        one.send(AT, b"v")
        one.finish(commit=False)
    assert value(broker, "plog_transactional_ids", state="CompleteAbort") == 1
    assert value(broker, "plog_transactions_ended_total", outcome="commit") == 1
    assert value(broker, "plog_transactions_ended_total", outcome="abort") == 2
    assert value(broker, "plog_markers_due") == 0


def test_oldest_transaction_counts(broker: BrokerProcess, wire: Speaker) -> None:
    def age_s() -> float:
        return value(broker, "plog_oldest_transaction_seconds")

    older, younger = (Transactor(wire, name).start() for name in ("older", "younger"))
    older.send(AT, b"v")
    until(lambda: age_s() > 0.1)
    younger.send(AT, b"v")
    assert age_s() > 0.1
    older.send(AT, b"more of it")
    younger.finish(commit=True)
    assert age_s() > 0.1
    older.finish(commit=False)
    assert age_s() == 0


def test_markers_that_a_lost_partition_cannot_take_are_due_until_it_is_deleted(
    broker: BrokerProcess, wire: Speaker
) -> None:
    lost = [TopicPartition(create_topic(wire)[0], 0) for _ in range(2)]
    one = Transactor(wire, "tx").start()
    for at in (AT, *lost):
        one.send(at, b"v")
    for at in lost:
        damage(broker, at)
        (part,) = fetched(wire.ask(fetch_request((*at, 0)), 12)).values()
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    until(lambda: value(broker, "plog_offline_partitions") == 2, "two partitions are lost")
    assert value(broker, "plog_markers_due") == 0
    assert one.end(commit=True) is ErrorCode.NONE
    # That of the partition that is well is written at once.
    until(lambda: value(broker, "plog_markers_due") == 2, "two markers are due")
    until(lambda: read(wire, AT) == [b"v"], "committed where it can be")
    assert value(broker, "plog_transactional_ids", state="PrepareCommit") == 1
    assert value(broker, "plog_transactions_ended_total", outcome="commit") == 1
    with Admin(broker.bootstrap) as admin:
        for left, at in ((1, lost[0]), (0, lost[1])):
            admin.delete_topic(at.topic)
            until(lambda left=left: value(broker, "plog_markers_due") == left, f"{left} are due")
    until(lambda: value(broker, "plog_transactional_ids", state="CompleteCommit") == 1, "complete")
    assert value(broker, "plog_transactional_ids", state="PrepareCommit") == 0
    until(lambda: value(broker, "plog_offline_partitions") == 0, "none is lost any more")


def test_groups_are_counted(broker: BrokerProcess, wire: Speaker) -> None:
    await_coordinator(wire, "g")
    with closing(ByHand(broker.port, "g")) as member:
        member.enter()
        assert value(broker, "plog_groups", state="Stable") == 1
        assert value(broker, "plog_group_members") == 1
        assert value(broker, "plog_group_members_bytes") > 1000
        assert value(broker, "plog_group_rebalances_total") == 1
