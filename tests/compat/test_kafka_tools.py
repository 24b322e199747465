"""Kafka's own command line tools against a broker: what is in every operator's fingers.

Each release's tools are started as its scripts start them; what they change is looked at with
another client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog.client.admin import TOPIC, Admin
from plog.client.consumer import Consumer
from plog.types import TopicPartition, uuid_to_text
from tests.compat.clients import Confluent, Sent, read_all
from tests.compat.kafka_tools import TOOLS, Tools
from tests.coordinator.conftest import await_coordinator
from tests.handlers.wire import speak
from tests.servers import BrokerProcess
from tests.several_brokers import is_led, until_each
from tests.waiting import until

pytestmark = pytest.mark.parametrize("tools", TOOLS, ids=repr)

NewTopic = Callable[..., str]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers in a batch's header."""


def send(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> None:
    records = [Sent(b"k%d" % n, b"v%d" % n, (), 1_700_000_000_000 + n) for n in range(count)]
    Confluent().produce(broker.bootstrap, topic, records, partition=partition)


def settings(broker: BrokerProcess, topic: str, *keys: str) -> dict[str, tuple[str | None, str]]:
    """Return a topic's settings, and where they come from."""
    with Admin(broker.bootstrap) as admin:
        found = admin.describe_configs(TOPIC, topic, keys)
    return {entry.name: (entry.value, entry.source) for entry in found}


def test_topics_are_made_described_changed_and_deleted(tools: Tools, broker: BrokerProcess) -> None:
    name = f"tools-{tools.release}"

    def topics(*arguments: object) -> str:
        return tools.run("TopicCommand", "--bootstrap-server", broker.bootstrap, *arguments)

    made = topics(
        "--create", "--topic", name, "--partitions", 3, "--replication-factor", 1,
        "--config", "retention.ms=7200000", "--config", "cleanup.policy=compact,delete",
    )  # fmt: skip
    assert f"Created topic {name}." in made
    assert name in topics("--list").split()
    described = topics("--describe", "--topic", name)
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=7200000" in described
    assert "cleanup.policy=compact,delete" in described
    rows = re.findall(r"Partition: (\d)\s+Leader: (\d)\s+Replicas: (\d)\s+Isr: (\d)", described)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert all(row[1:] == (row[1],) * 3 for row in rows)
    assert {int(row[1]) for row in rows} == set(broker.ids)
    with Admin(broker.bootstrap) as admin:
        # Another client knows it too.
        assert f"TopicId: {uuid_to_text(admin.topic(name).topic_id)}" in described
        assert sorted(admin.topic(name).partitions) == [0, 1, 2]
        assert settings(broker, name, "retention.ms", "cleanup.policy") == {
            "retention.ms": ("7200000", "topic"),
            "cleanup.policy": ("compact,delete", "topic"),
        }
        topics("--alter", "--topic", name, "--partitions", 5)
        until_each(broker.bootstrap, lambda own: is_led(own, name, 5))
        send(broker, name, 1, 4)
        assert [
            one.value for one in Confluent().consume(broker.bootstrap, name, 1, partition=4)
        ] == [b"v0"]
        assert topics("--describe", "--under-replicated-partitions").strip() == ""
        assert topics("--describe", "--unavailable-partitions").strip() == ""
        topics("--delete", "--topic", name)
        assert name not in admin.topics()
    until(
        lambda: not [one for data in broker.log_dirs for one in data.glob(f"{name}-[0-9]")],
        "taken off the disk",
    )


def test_what_cannot_be_is_refused_with_kafkas_words(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    def refused(*arguments: object) -> str:
        return tools.run(
            "TopicCommand", "--bootstrap-server", broker.bootstrap, *arguments, status=1
        )

    name = new_topic()
    assert f"topic '{name}' already exists" in refused("--create", "--topic", name).lower()
    assert "eplication factor" in refused("--create", "--topic", "three", "--replication-factor", 3)
    with Admin(broker.bootstrap) as admin:
        assert len(admin.topic(name).partitions) == 1
        assert "three" not in admin.topics()


def test_settings_are_shown_and_changed(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    name = new_topic()

    def configs(*arguments: object) -> str:
        return tools.run("ConfigCommand", "--bootstrap-server", broker.bootstrap, *arguments)

    topic = ("--entity-type", "topics", "--entity-name", name)
    added = "retention.ms=3600000,cleanup.policy=[compact,delete],max.message.bytes=2000"
    assert f"Completed updating config for topic {name}." in configs(
        *topic, "--alter", "--add-config", added
    )
    described = configs(*topic, "--describe")
    assert "retention.ms=3600000" in described
    assert "cleanup.policy=compact,delete" in described
    keys = ("retention.ms", "cleanup.policy", "max.message.bytes")
    assert settings(broker, name, *keys) == {
        "retention.ms": ("3600000", "topic"),
        "cleanup.policy": ("compact,delete", "topic"),
        "max.message.bytes": ("2000", "topic"),
    }
    configs(*topic, "--alter", "--delete-config", "retention.ms,cleanup.policy")
    described = configs(*topic, "--describe")
    assert "retention.ms" not in described
    assert "max.message.bytes=2000" in described
    everything = configs(*topic, "--describe", "--all")
    assert "retention.ms=604800000 sensitive=false synonyms={" in everything
    assert settings(broker, name, *keys) == {
        "retention.ms": ("604800000", "default"),
        "cleanup.policy": ("delete", "default"),
        "max.message.bytes": ("2000", "topic"),
    }
    Confluent().produce(broker.bootstrap, name, [Sent(b"k", b"v" * 1000)])
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        Confluent().produce(broker.bootstrap, name, [Sent(b"k", b"v" * 3000)])

    node = ("--entity-type", "brokers", "--entity-name", "0")
    every = ("--entity-type", "brokers", "--entity-default")
    configs(*node, "--alter", "--add-config", "log.retention.ms=7000000")
    configs(*every, "--alter", "--add-config", "log.retention.ms=8000000")
    assert "log.retention.ms=7000000" in configs(*node, "--describe")
    assert "log.retention.ms=8000000" in configs(*every, "--describe")

    def retention() -> tuple[str | None, str]:
        return settings(broker, name, "retention.ms")["retention.ms"]

    # What holds for a topic that says nothing.
    assert retention() == ("7000000", "dynamic broker")
    configs(*node, "--alter", "--delete-config", "log.retention.ms")
    assert retention() == ("8000000", "dynamic default")
    configs(*every, "--alter", "--delete-config", "log.retention.ms")
    assert retention() == ("604800000", "default")
    assert "log.retention.ms" not in configs(*node, "--describe")


def test_log_levels_are_shown_and_changed(tools: Tools, broker: BrokerProcess) -> None:
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "0")

    def configs(*arguments: object, status: int = 0) -> str:
        command = ("ConfigCommand", "--bootstrap-server", broker.bootstrap, *loggers)
        return tools.run(*command, *arguments, status=status)

    def level(logger: str) -> str:
        (found,) = re.findall(rf"^ +{re.escape(logger)}=(\w+) ", configs("--describe"), re.M)
        return str(found)

    assert level("root") == level("plog.storage") == level("plog.storage.log") == "INFO"
    done = configs("--alter", "--add-config", "plog.storage=DEBUG,plog.storage.log=WARN")
    assert "Completed updating config for broker-logger 0." in done
    assert (level("plog.storage"), level("plog.storage.log")) == ("DEBUG", "WARN")
    configs("--alter", "--delete-config", "plog.storage.log")
    assert level("plog.storage.log") == "DEBUG"
    configs("--alter", "--delete-config", "plog.storage")
    assert level("plog.storage") == "INFO"
    configs("--alter", "--add-config", "no.such=DEBUG", status=1)
    configs("--alter", "--add-config", "plog.storage=LOUD", status=1)
    configs("--alter", "--delete-config", "root", status=1)
    assert level("root") == level("plog.storage") == "INFO"


def codecs_on_disk(broker: BrokerProcess, topic: str) -> set[int]:
    """Return the codecs of partition 0's batches, as their headers number them."""
    logs = broker.partition_dir(f"{topic}-0").glob("*.log")
    return {batch.codec for log in logs for batch in scan(log.read_bytes())}


def test_console_writes_and_reads(tools: Tools, broker: BrokerProcess, new_topic: NewTopic) -> None:
    name = new_topic()
    lines = [f"key{n}\tvalue {n} äöü" for n in range(200)]
    for number, codec in enumerate(CODECS):
        some = lines[40 * number : 40 * (number + 1)]
        tools.run(
            "ConsoleProducer", "--bootstrap-server", broker.bootstrap, "--topic", name,
            "--compression-codec", codec, "--property", "parse.key=true",
            stdin="\n".join(some) + "\n",
        )  # fmt: skip
        assert codecs_on_disk(broker, name) == set(range(number + 1))
    # As another client finds them.
    found = Confluent().consume(broker.bootstrap, name, 200)
    assert [b"%s\t%s" % (one.key, one.value) for one in found] == [one.encode() for one in lines]
    read = tools.run(
        "ConsoleConsumer", "--bootstrap-server", broker.bootstrap, "--topic", name,
        "--partition", 0, "--offset", "earliest", "--max-messages", 200,
        "--property", "print.key=true", "--timeout-ms", 60_000,
    )  # fmt: skip
    assert read.splitlines() == lines


def test_offsets_are_told(tools: Tools, broker: BrokerProcess, new_topic: NewTopic) -> None:
    name, other = new_topic(2), new_topic()
    send(broker, name, 10)
    send(broker, other, 3)

    def offsets(time: object, *of: object) -> list[str]:
        told = tools.run(
            "GetOffsetShell", "--bootstrap-server", broker.bootstrap, *of, "--time", time
        )
        return sorted(told.split())

    one = ("--topic", name)
    assert offsets("latest", *one) == [f"{name}:0:10", f"{name}:1:0"]
    assert offsets("earliest", *one) == [f"{name}:0:0", f"{name}:1:0"]
    assert offsets("max-timestamp", *one) == [f"{name}:0:9"]
    assert offsets(1_700_000_000_004, *one) == [f"{name}:0:4"]
    # Of all topics, whatever other tests have left of them, and of those that are the broker's own.
    with closing(speak(broker.port)) as wire:
        await_coordinator(wire, "any")
    every = offsets("latest")
    assert {f"{name}:0:10", f"{name}:1:0", f"{other}:0:3"} <= set(every)
    with Admin(broker.bootstrap) as admin:
        places = sorted(
            f"{topic}:{index}"
            for topic, info in admin.topics().items()
            for index in info.partitions
        )
    assert sorted(line.rpartition(":")[0] for line in every) == places


def test_records_are_deleted(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    name = new_topic(3)
    for partition in range(3):
        send(broker, name, 10, partition)
    given = tmp_path / "offsets.json"
    # -1: everything, up to the high watermark.
    parts = [{"topic": name, "partition": n, "offset": offset} for n, offset in ((0, 4), (1, -1))]
    given.write_text(json.dumps({"partitions": parts, "version": 1}))
    told = tools.run(
        "DeleteRecordsCommand", "--bootstrap-server", broker.bootstrap, "--offset-json-file", given
    )
    told_marks = re.findall(rf"partition: {name}-(\d)\s+low_watermark: (\d+)", told)
    assert sorted(told_marks) == [("0", "4"), ("1", "10")], told
    found = Confluent().consume(broker.bootstrap, name, 6, offset=4)
    assert [record.value for record in found] == [b"v%d" % n for n in range(4, 10)]
    places = [TopicPartition(name, n) for n in range(3)]
    with Consumer(broker.bootstrap) as consumer:
        assert consumer.beginning_offsets(places) == dict(zip(places, (4, 10, 0), strict=True))
        assert consumer.end_offsets(places) == dict.fromkeys(places, 10)
    send(broker, name, 1, 1)  # and it goes on there
    (after,) = Confluent().consume(broker.bootstrap, name, 1, partition=1, offset=10)
    assert after.value == b"v0"


def test_log_directories_are_described(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    name = new_topic(2)
    send(broker, name, 10)
    told = tools.run(
        "LogDirsCommand", "--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", name
    )
    (text,) = [line for line in told.splitlines() if line.startswith("{")]
    log_dirs = [log_dir for node in json.loads(text)["brokers"] for log_dir in node["logDirs"]]
    assert {log_dir["error"] for log_dir in log_dirs} == {None}
    assert sorted(Path(log_dir["logDir"]) for log_dir in log_dirs) == sorted(broker.log_dirs)
    sizes = {part["partition"]: part["size"] for one in log_dirs for part in one["partitions"]}
    with Admin(broker.bootstrap) as admin:
        ours = {one.partition: one.size_bytes for one in admin.log_dirs([name])}
    assert sizes == {f"{name}-{n}": ours[TopicPartition(name, n)] for n in range(2)}
    logs = broker.partition_dir(f"{name}-0").glob("*.log")
    assert sizes[f"{name}-0"] == sum(log.stat().st_size for log in logs) > 0
    assert sizes[f"{name}-1"] == 0


@pytest.mark.usefixtures("plane")
def test_replicas_are_moved_between_log_directories(tools: Tools, tmp_path: Path) -> None:
    """By whoever takes a disk away, as docs/OPERATIONS.md has it."""
    plan = tmp_path / "plan.json"
    with BrokerProcess(tmp_path, log_dirs=2) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("moved", partitions=2)
            send(broker, "moved", 100)
            before = {one.partition.partition: one.log_dir for one in admin.log_dirs(["moved"])}
            assert set(before.values()) == set(map(str, broker.log_dirs))
            there = str(broker.log_dirs[1])
            moves = [
                {"topic": "moved", "partition": n, "replicas": [0], "log_dirs": [there]}
                for n in range(2)
            ]
            plan.write_text(json.dumps({"version": 1, "partitions": moves}))

            def reassign(step: str) -> str:
                return tools.run(
                    "ReassignPartitionsCommand", "--bootstrap-server", broker.bootstrap,
                    "--reassignment-json-file", plan, step,
                )  # fmt: skip

            assert "Successfully started partition reassignment" in reassign("--execute")
            until(
                lambda: {one.log_dir for one in admin.log_dirs(["moved"])} == {there}, "moved there"
            )
            told = reassign("--verify")
            done = re.findall(r"Reassignment of replica moved-\d-0 .*complete", told)
            assert len(done) == 2, told
        found = read_all(broker.bootstrap, "moved", 0)
        assert [record.value for _, record in found] == [b"v%d" % n for n in range(100)]
    assert list(broker.log_dirs[0].glob("moved-[0-9]")) == []


def test_performance_tool_of_producers_measures(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    name = new_topic()
    written = tools.run(
        "ProducerPerformance", "--topic", name, "--num-records", 20_000, "--record-size", 100,
        "--throughput", -1, "--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all",
    )  # fmt: skip
    told = re.search(r"20000 records sent, ([\d.]+) records/sec .* ([\d.]+) ms avg", written)
    assert told, written
    assert min(float(figure) for figure in told.groups()) > 0
    found = read_all(broker.bootstrap, name, 0)
    assert [offset for offset, _ in found] == list(range(20_000))
    assert {len(record.value or b"") for _, record in found} == {100}


def test_latency_from_end_to_end_is_measured(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    name = new_topic()
    measured = tools.run("EndToEndLatency", broker.bootstrap, name, 100, 1, 50)
    assert re.search(r"Avg latency: [\d.]+ ms", measured), measured
    percentiles = re.search(r"Percentiles: 50th = (\d+), 99th = (\d+), 99.9th = (\d+)", measured)
    assert percentiles, measured
    figures = [int(figure) for figure in percentiles.groups()]
    assert figures == sorted(figures)
    # It has waited for each of its records before the next, and compared it.
    found = read_all(broker.bootstrap, name, 0)
    assert [offset for offset, _ in found] == list(range(100))
    assert {len(record.value or b"") for _, record in found} == {50}


def test_producer_of_the_system_tests_is_acknowledged(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    name = new_topic()
    told = tools.run(
        "VerifiableProducer", "--bootstrap-server", broker.bootstrap, "--topic", name,
        "--max-messages", 1_000, "--acks", -1, "--value-prefix", 7,
    )  # fmt: skip
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    assert [event["offset"] for event in sent] == list(range(1_000))
    assert events[-1]["name"] == "tool_data"
    assert (events[-1]["sent"], events[-1]["acked"]) == (1_000, 1_000)
    found = Confluent().consume(broker.bootstrap, name, 1_000)
    assert [record.value for record in found] == [b"7.%d" % n for n in range(1_000)]


def test_compatibility_test_finds_what_there_is(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    name = new_topic()

    def expect(acls: str, status: int) -> str:
        with Admin(broker.bootstrap) as admin:
            if "newtopic" in admin.topics():
                admin.delete_topic("newtopic")
        return tools.run(
            "ClientCompatibilityTest", "--bootstrap-server", broker.bootstrap, "--topic", name,
            "--offsets-for-times-supported", "true", "--cluster-id-supported", "true",
            "--expect-record-too-large-exception", "false", "--num-cluster-nodes", len(broker.ids),
            "--create-topics-supported", "true", "--describe-acls-supported", acls,
            "--describe-configs-supported", "true", "--idempotent-producer-supported", "true",
            status=status,
        )  # fmt: skip

    # It asks the broker: what it is told to expect wrongly it misses.
    assert "Expected describeAclsSupported to be supported, but it wasn't" in expect("true", 1)
    assert read_all(broker.bootstrap, name, 0) == []
    assert "SUCCESS" in expect("false", 0)
    found = read_all(broker.bootstrap, name, 0)
    assert [len(record.value or b"") for _, record in found] == [8, 4096]
    with Admin(broker.bootstrap) as admin:
        assert len(admin.topic("newtopic").partitions) == 1
        admin.delete_topic("newtopic")
