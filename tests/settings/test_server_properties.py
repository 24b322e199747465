"""A properties file and overrides become settings, or one error that names every fault."""

from __future__ import annotations

import logging

import pytest

from plog.errors import ConfigError
from plog.settings import load
from plog.settings.server_properties import read


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "server.properties"
        path.write_text(text)
        return path

    return write


def test_nothing_given_means_defaults():
    assert load().listeners == "PLAINTEXT://127.0.0.1:9092"


def test_file_then_overrides_in_order(file):
    path = file("broker.id=1\nnum.partitions=2\nlog.dirs=/a\n")
    settings = load(path, ["broker.id=5", "broker.id = 6", "broker.rack=a=b"])
    assert (settings.broker_id, settings.num_partitions, settings.broker_rack) == (6, 2, "a=b")
    assert set(settings.given) == {"broker.id", "num.partitions", "log.dirs", "broker.rack"}


def test_every_fault_is_reported_with_its_place_in_the_order_of_reading(file):
    path = file(
        "# a comment\n"
        "log.retntion.hours=5\n"
        "num.partitions=0\n"
        "log.dirs=\\\n  /a,/a\n"
        "authorizer.class.name=x\n"
        "wholly.unheard.of=1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(path, ["broker.id=x", "listeners"])
    assert str(caught.value).splitlines() == [
        f"{path}:2: `log.retntion.hours`: unknown key; did you mean `log.retention.hours`?",
        f"{path}:3: `num.partitions`: 0 is below 1",
        f"{path}:4: `log.dirs`: names a directory twice",
        f"{path}:6: `authorizer.class.name`: plog has no authorizer yet, "
        "so every client would be allowed",
        f"{path}:7: `wholly.unheard.of`: unknown key",
        "--override: 'listeners' is not of the form key=value",
        "--override: `broker.id`: 'x' is not a whole number",
    ]


@pytest.mark.parametrize("prefix", ["", "./", "../{}/"])
def test_file_is_named_as_it_was_given(file, monkeypatch, prefix):
    directory = file("no.such.key=1\n").parent
    monkeypatch.chdir(directory)
    given = prefix.format(directory.name) + "server.properties"
    with pytest.raises(ConfigError) as caught:
        load(given)
    assert str(caught.value) == f"{given}:1: `no.such.key`: unknown key"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("log.dirz", "log.dirs"),
        ("log.dri", "log.dir"),
        ("brokerid", "broker.id"),
        ("listner", "listeners"),
        ("num.partition", "num.partitions"),
        ("LOG.DIRS", None),
        ("x", None),
        ("", None),
    ],
)
def test_misspelt_key_is_answered_with_the_one_it_resembles(name, meant):
    with pytest.raises(ConfigError) as caught:
        load(overrides=[f"{name}=1"])
    hint = f"; did you mean `{meant}`?" if meant else ""
    assert str(caught.value) == f"--override: `{name}`: unknown key{hint}"


def test_keys_without_effect_are_warned_of_with_their_place(file, caplog):
    path = file(
        "num.io.threads=4\nreplica.selector.class=x\nlistener.name.a.ssl.key.password=sesame\n"
        "broker.id=1\nbroker.id=2\nauthorizer.class.name=\nnode.id=2\n"
    )
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        settings = load(path)
    assert settings.broker_id == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}:1: `num.io.threads` has no effect in plog: "
        "plog does not use a thread pool for requests",
        f"{path}:2: `replica.selector.class` has no effect in plog: "
        "plog has its own pauses between brokers, and chooses no replica to read from yet",
        f"{path}:3: `listener.name.a.ssl.key.password` has no effect in plog: "
        "listeners have no settings of their own yet",
        f"{path}:5: `broker.id` was set on line 4 already; this later value counts",
        f"{path}:7: `node.id` has no effect in plog: set `broker.id` instead",
    ]


def test_fault_between_defaults_and_given_values_is_laid_to_a_key(file):
    with pytest.raises(ConfigError, match=r"^`broker\.id`: must be set where"):
        load(file("broker.id.generation.enable=false\n"))


# What Apache Kafka's own config/server.properties sets in 3.9 (ZooKeeper mode).
OF_KAFKA = """
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def test_file_of_kafka_is_accepted(file):
    settings, warnings = read(file(OF_KAFKA))
    assert settings.num_network_threads == 3
    assert settings.log_dirs == ("/tmp/kafka-logs",)
    assert all("no effect" in warning for warning in warnings)
