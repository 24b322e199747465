"""A broker at which nothing is wrong logs no warning and no error: start, work and stop."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.errors import ErrorCode
from tests.coordinator.members import ByHand
from tests.group_members import member
from tests.servers import BrokerProcess

FAULT = re.compile(r"^\S+ (?:WARNING|ERROR|CRITICAL) .*|^Traceback.*", re.MULTILINE)
SILENT_MEMBERS = 20
SESSION_MS = 1_500
PROTOCOLS = ("classic", "consumer")


def faults(broker: BrokerProcess) -> list[str]:
    return FAULT.findall(broker.log)


def begin_transactions(bootstrap: str, transactional_id: str, topic: str) -> Producer:
    """Commit one transaction and abort one, both with offsets; leave a third one open."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(60)
    with member(bootstrap, f"{transactional_id}-reader", topic) as consumer:
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce(topic, b"in a transaction", key=b"k")
            position = [TopicPartition(topic, 0, 1)]
            producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), 60)
            end(60)
    producer.begin_transaction()
    producer.produce(topic, b"of an open transaction", key=b"k")
    assert producer.flush(60) == 0
    return producer


@contextmanager
def at_work(bootstrap: str, name: str) -> Iterator[None]:
    """Use topics, groups and transactions; in the block, members and a transaction remain."""
    topic, doomed = f"{name}-kept", f"{name}-doomed"
    with Admin(bootstrap) as admin, ExitStack() as stack:
        admin.create_topic(topic, partitions=3, configs={"cleanup.policy": "compact"})
        admin.create_topic(doomed, partitions=3)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(300):
            for each in (topic, doomed):
                producer.produce(each, b"value", key=b"%d" % number, partition=number % 3)
        assert producer.flush(60) == 0
        for protocol in PROTOCOLS:
            with member(
                bootstrap, f"{name}-{protocol}-left", doomed, {0: 9}, group_protocol=protocol
            ):
                pass
            stays = f"{name}-{protocol}-stays"
            stack.enter_context(member(bootstrap, stays, topic, {0: 7}, group_protocol=protocol))
        open_one = begin_transactions(bootstrap, f"{name}-id", topic)
        with GroupAdmin(bootstrap) as groups:
            groups.delete(f"{name}-classic-left")
        admin.delete_topic(doomed)
        yield
        # The broker has gone. Purge so that the producer does not wait for it.
        open_one.purge()


@pytest.mark.timeout(300)
def test_clean_start_work_and_stop_log_no_warning(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    for name in ("fresh", "again"):
        with ExitStack() as stack:
            broker.start()
            stack.callback(broker.kill)
            with at_work(broker.bootstrap, name):
                broker.stop()
        assert "listening on" in broker.log
        assert faults(broker) == [], name
    line = r"loaded \d+ groups from \d+ partitions of __consumer_offsets"
    loaded = re.findall(line, broker.log)
    assert len(loaded) == 1, "the second start logs once how many groups it has loaded"


@pytest.mark.timeout(300)
def test_stop_beside_waiting_joins_logs_no_warning(tmp_path: Path) -> None:
    """A join waits for a member that is silent, and members of other groups expire meanwhile."""
    settings = {"group.min.session.timeout.ms": 100, "group.initial.rebalance.delay.ms": 0}
    broker = BrokerProcess(tmp_path, overrides=settings)
    broker.start()
    try:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
        with member(broker.bootstrap, "first", "t"):
            pass  # the groups' topic exists
        silent = ByHand(broker.port, "held")
        silent.join()
        assert silent.sync({silent.member_id: b"all"}).error_code == ErrorCode.NONE
        for number in range(SILENT_MEMBERS):
            sole = ByHand(broker.port, f"sole-{number}", session_ms=SESSION_MS)
            sole.join()
            assert sole.sync({sole.member_id: b"all"}).error_code == ErrorCode.NONE
        waiting = ByHand(broker.port, "held").join_later()
        time.sleep(0.5)  # it is there
        began = time.monotonic()
        broker.stop()
        assert waiting.get().error_code == ErrorCode.NOT_COORDINATOR
        assert time.monotonic() - began < 60
        assert faults(broker) == []
    finally:
        broker.kill()


def test_warnings_and_errors_are_found(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.log_path.write_text(
        "2026-11-27T06:32:27.213Z INFO plog.x: ERROR and WARNING\n"
        "2026-11-27T06:32:27.213Z WARNING plog.x: a\n"
        "Traceback (most recent call last):\n"
    )
    assert len(faults(broker)) == 2
