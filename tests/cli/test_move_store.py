"""`plog move-store`: a single broker's store goes to ZooKeeper, and the broker goes on there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from plog.cli.move_store import command
from plog.client.admin import TOPIC, Admin
from plog.client.consumer import Consumer
from plog.client.group_consumer import GroupConsumer
from plog.client.producer import Producer
from plog.cluster.store import Unreachable
from plog.cluster.zookeeper_store import ZooKeeperStore
from tests.compat.live_kafka import ZooKeeper
from tests.servers import BrokerProcess, free_port

COUNT = 50
QUICK = {**(ZooKeeperStore.__init__.__kwdefaults__ or {}), "connection_timeout_ms": 300}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.kill()


@pytest.fixture
def connect(zookeeper: ZooKeeper) -> str:
    return f"{zookeeper.bootstrap}/{uuid.uuid4()}"


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """A broker that is stopped, with a topic, its settings and a group's offsets."""
    made = BrokerProcess(tmp_path, overrides={"group.initial.rebalance.delay.ms": 0})
    with made:
        with Admin(made.bootstrap) as admin:
            admin.create_topic("t", partitions=3, configs={"retention.ms": "123456789"})
        produce(made)
        with GroupConsumer(made.bootstrap, "g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            read = 0
            while read < COUNT:
                read += len(consumer.poll(10_000))
            consumer.commit()
    return made


def produce(broker: BrokerProcess) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send("t", str(number).encode(), partition=number % 3)


def move(broker: BrokerProcess, connect: str, *options: str) -> Result:
    path = broker.directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    return CliRunner().invoke(command, ["--zookeeper", connect, *options, str(path)])


def test_store_goes_over_with_everything(broker: BrokerProcess, connect: str) -> None:
    dry = move(broker, connect)
    assert dry.exit_code == 0, dry.output
    assert "Nothing is changed yet" in dry.output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "plog.cluster.zookeeper_store.ZooKeeperStore.multi", None
        )  # it writes nothing
        assert move(broker, connect).exit_code == 0
    done = move(broker, connect, "--execute", "--yes", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["moved"]
    assert all(Path(path).exists() for path in result["kept"])
    with pytest.raises(AssertionError, match=r"moved to ZooKeeper .*: set zookeeper\.connect"):
        broker.start()
    broker.kill()
    broker.overrides["zookeeper.connect"] = connect
    with broker:
        with Admin(broker.bootstrap) as admin:
            configs = {entry.name: entry.value for entry in admin.describe_configs(TOPIC, "t")}
            assert configs["retention.ms"] == "123456789"
        with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(consumer.partitions_for("t"))
            found = []
            while len(found) < COUNT:
                found += [int(record.value or b"") for record in consumer.poll(10_000)]
            assert sorted(found) == list(range(COUNT))
        produce(broker)
        with GroupConsumer(broker.bootstrap, "g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            more = []
            while len(more) < COUNT:
                more += [int(record.value or b"") for record in consumer.poll(10_000)]
            assert sorted(more) == list(range(COUNT))  # from where the group had come to


def test_running_broker_is_refused(broker: BrokerProcess, connect: str) -> None:
    with broker:
        refused = move(broker, connect, "--execute", "--yes")
    assert "in use by another broker process" in str(refused.exception)


def test_move_is_asked_about(broker: BrokerProcess, connect: str) -> None:
    refused = move(broker, connect, "--execute")
    assert "Not moved" in refused.output
    with broker:
        pass


def test_move_that_was_interrupted_is_finished(
    broker: BrokerProcess, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins = dict(broker.overrides)

    def cannot_start(why: str) -> None:
        with pytest.raises(AssertionError, match=why):
            broker.start()
        broker.kill()

    for last in "copy_store", "keep_files", "end_move":
        with monkeypatch.context() as patch:
            patch.setattr(f"plog.ops.move_store.{last}", lambda *_: 1 / 0)
            done = move(broker, connect, "--execute", "--yes")
            assert isinstance(done.exception, ZeroDivisionError)
        if last == "keep_files":
            assert "begins again" in move(broker, connect).output
        broker.overrides["zookeeper.connect"] = connect
        cannot_start("own coordination store" if last != "end_move" else "was interrupted")
        broker.overrides = dict(joins)
    cannot_start("moved to ZooKeeper")
    assert move(broker, connect, "--execute", "--yes").exit_code == 0
    for options in ((), ("--execute", "--yes")):
        again = str(move(broker, connect, *options).exception)
        assert "was moved already" in again
        assert again.endswith(f"set zookeeper.connect={connect} and start the broker")
        elsewhere = str(move(broker, f"{connect}/elsewhere", *options).exception)
        assert "was moved already" in elsewhere
        assert elsewhere.endswith("set zookeeper.connect to the path that it was moved to")


def test_move_that_was_interrupted_begins_again_after_a_topic_was_deleted(
    broker: BrokerProcess, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has run alone in between: ZooKeeper has nodes that its own store has no more."""
    with monkeypatch.context() as patch:
        patch.setattr("plog.ops.move_store.keep_files", lambda *_: 1 / 0)
        assert isinstance(move(broker, connect, "--execute", "--yes").exception, ZeroDivisionError)
    with broker, Admin(broker.bootstrap) as admin:
        admin.delete_topic("t")
        admin.create_topic("u", partitions=1)
    dry = move(broker, connect)
    assert "begins again" in dry.output, dry.exception
    assert move(broker, connect, "--execute", "--yes").exit_code == 0
    broker.overrides["zookeeper.connect"] = connect
    with broker, Admin(broker.bootstrap) as admin:
        assert "u" in admin.topics()
        assert "t" not in admin.topics()


def test_path_that_is_in_use_is_refused(broker: BrokerProcess, connect: str) -> None:
    store = ZooKeeperStore(connect)
    store.create("/other")
    store.close()
    refused = move(broker, connect)
    assert "name an unused path" in str(refused.exception)


def test_server_that_does_not_answer_is_named(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZooKeeperStore.__init__, "__kwdefaults__", QUICK)
    for options in ((), ("--execute", "--yes")):
        refused = move(broker, f"127.0.0.1:{free_port()}/plog", *options)
        assert isinstance(refused.exception, Unreachable)
        assert "no ZooKeeper answers at 127.0.0.1:" in str(refused.exception)
    with broker:
        pass
