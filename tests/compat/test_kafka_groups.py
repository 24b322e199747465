"""Groups in files: plog goes on with those of a Kafka 3.9, and Kafka with plog's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from plog.client.admin import Admin
from plog.errors import ErrorCode
from plog.protocol.messages.group_admin import (
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from plog.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.compat.clients import PATIENCE_S, Confluent, Sent
from tests.compat.live_kafka import Kafka, ZooKeeper
from tests.compat.test_kafka_files import plog
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import ByHand
from tests.handlers.wire import Speaker, eventually, speak
from tests.servers import BrokerProcess

SESSION_MS = 1_500_000  # longer than all of this takes, however busy the machine is
VALUES = [b"%d" % number for number in range(10)]
NEVER_MS = 900_000
OFFSETS_PARTITIONS = 3
"""Neither plog's default nor Kafka's: which group is in which one depends on it."""


@contextmanager
def kafka(where: Path, data: Path, zookeeper: ZooKeeper) -> Iterator[Kafka]:
    broker = Kafka(where, data, zookeeper, f"offsets.topic.num.partitions={OFFSETS_PARTITIONS}\n")
    try:
        with closing(speak(broker.port)) as wire:
            for group in ("joined", "simple", "read", "tx"):
                await_coordinator(wire, group)
        yield broker
    finally:
        broker.stop()


@contextmanager
def member(port: int, group: str, **known: object) -> Iterator[ByHand]:
    with closing(ByHand(port, group, session_ms=SESSION_MS, **known)) as made:  # type: ignore[arg-type]
        yield made


def read(bootstrap: str, count: int) -> list[bytes | None]:
    """Have a consumer of the group `read` go on, commit and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["one"])
    found = consumer.consume(count, PATIENCE_S)
    consumer.commit(message=found[-1], asynchronous=False)
    consumer.close()
    return [message.value() for message in found]


def producer(bootstrap: str, transactional_id: str) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": NEVER_MS,
        }
    )
    made.init_transactions(PATIENCE_S)
    return made


def begin(bootstrap: str, transactional_id: str, partition: int, offset: int) -> Producer:
    """Commit an offset of the group `tx` in a transaction, which is left open."""
    made = producer(bootstrap, transactional_id)
    made.begin_transaction()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tx"})
    made.send_offsets_to_transaction(
        [Place("many", partition, offset)], consumer.consumer_group_metadata(), PATIENCE_S
    )
    consumer.close()
    return made


def fetched(wire: Speaker, *, stable: bool) -> list[tuple[ErrorCode, int]]:
    """Return what the group `tx` has committed for each partition."""
    request = OffsetFetchRequest(
        group_id="tx",
        topics=[OffsetFetchRequestTopic(name="many", partition_indexes=[0, 1, 2])],
        require_stable=stable,
    )
    (topic,) = wire.ask(request, 7).topics
    return [(ErrorCode(one.error_code), one.committed_offset) for one in topic.partitions]


def described(wire: Speaker, group: str) -> DescribedGroup:
    (found,) = wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    return found


DECIDED = [(ErrorCode.NONE, 7), (ErrorCode.NONE, -1), (ErrorCode.NONE, 1)]
UNDECIDED = [*DECIDED[:2], (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)]


@pytest.mark.timeout(400)
def test_groups_go_on_where_kafka_stopped_and_where_plog_did(tmp_path: Path) -> None:
    data = tmp_path / "data0"  # where BrokerProcess has its first log directory
    zookeeper = ZooKeeper(tmp_path / "zk")
    try:
        with kafka(tmp_path / "first", data, zookeeper) as first:
            with Admin(first.bootstrap) as admin:
                # Its records are old, and a slow host would see them go by the default.
                admin.create_topic("one", partitions=1, configs={"retention.ms": "-1"})
                admin.create_topic("many", partitions=3)
            Confluent().produce(first.bootstrap, "one", [Sent(None, value) for value in VALUES])
            with member(first.port, "joined") as joined:
                joined.enter()
                assert joined.commit("many", 4) is ErrorCode.NONE
            with member(first.port, "simple") as tool:
                assert tool.commit("many", 17) is ErrorCode.NONE
            assert read(first.bootstrap, 4) == VALUES[:4]
            begin(first.bootstrap, "commits", 0, 7).commit_transaction(PATIENCE_S)
            begin(first.bootstrap, "aborts", 1, 9).abort_transaction(PATIENCE_S)
            begin(first.bootstrap, "was open", 2, 1).commit_transaction(PATIENCE_S)
            left_open = begin(first.bootstrap, "open", 2, 3)
        del left_open

        broker = BrokerProcess(tmp_path)
        properties = tmp_path / "server.properties"
        properties.write_text(
            "".join(f"{key}={value}\n" for key, value in broker.overrides.items())
        )
        place = f"127.0.0.1:{zookeeper.port}"
        assert "__consumer_offsets" in plog("adopt", "--zookeeper", place, properties)
        with broker, closing(speak(broker.port)) as wire:
            with Admin(broker.bootstrap) as admin:
                assert len(admin.topic("__consumer_offsets").partitions) == OFFSETS_PARTITIONS
            for group in ("joined", "simple", "read", "tx"):
                await_coordinator(wire, group)
            eventually(
                lambda: wire.ask(ListGroupsRequest(), 5).error_code == ErrorCode.NONE,
                "groups are read",
                PATIENCE_S,
            )
            assert {
                (one.group_id, one.group_state, one.protocol_type)
                for one in wire.ask(ListGroupsRequest(), 5).groups
            } == {
                ("joined", "Stable", "consumer"),
                ("simple", "Empty", ""),
                ("read", "Empty", "consumer"),
                ("tx", "Empty", ""),
            }
            (theirs,) = described(wire, "joined").members
            assert (theirs.member_id, theirs.client_id) == (joined.member_id, "test")
            assert (theirs.member_metadata, theirs.member_assignment) == (b"m", b"all")
            assert fetched(wire, stable=True) == UNDECIDED
            assert fetched(wire, stable=False) == DECIDED
            known = {"member_id": joined.member_id, "generation": joined.generation}
            with member(broker.port, "joined", **known) as back:
                assert back.committed("many") == 4
                assert back.beat() is ErrorCode.NONE
                assert back.commit("many", 5) is ErrorCode.NONE
            with member(broker.port, "simple") as tool:
                assert tool.committed("many") == 17
            assert read(broker.bootstrap, 3) == VALUES[4:7]
            with member(broker.port, "ours") as ours:
                ours.enter()
                ours.enter()  # the leader joins again: the second generation
                assert ours.commit("many", 8) is ErrorCode.NONE
        assert "failed with an internal error" not in broker.log

        plog("adopt", "--give-back", "--yes", "--zookeeper", place, properties)
        with (
            kafka(tmp_path / "again", data, zookeeper) as again,
            closing(speak(again.port)) as wire,
        ):
            await_coordinator(wire, "ours")
            # It says that it is the coordinator before it has read what it coordinates.
            eventually(
                lambda: described(wire, "ours").group_state == "Stable", "it is read", PATIENCE_S
            )
            (members,) = described(wire, "ours").members
            assert (members.member_id, members.member_assignment) == (ours.member_id, b"all")
            assert fetched(wire, stable=True) == UNDECIDED
            known = {"member_id": ours.member_id, "generation": ours.generation}
            assert ours.generation == 2
            with member(again.port, "ours", **known) as back:
                assert back.committed("many") == 8
                assert back.beat() is ErrorCode.NONE
            with member(again.port, "joined") as tool:
                assert tool.committed("many") == 5
            assert read(again.bootstrap, 3) == VALUES[7:]
            # Its producer comes back, and what it had left open is aborted.
            producer(again.bootstrap, "open")
            eventually(lambda: fetched(wire, stable=True) == DECIDED, "decided", PATIENCE_S)
        assert again.complaints == []
    finally:
        zookeeper.stop()
