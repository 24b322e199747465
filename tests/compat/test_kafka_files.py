"""Files: Kafka's own dump tool reads plog's, plog serves Kafka's, and Kafka serves plog's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from plog.client.admin import TOPIC, Admin
from plog.types import TopicPartition
from tests.compat.clients import CODECS, PATIENCE_S, Confluent, Sent
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.live_kafka import KAFKA_3_9, Kafka, ZooKeeper
from tests.planes import Plane
from tests.servers import BrokerProcess

STAMP = 1_700_000_000_000
CONFIGS = {"segment.bytes": "10000", "index.interval.bytes": "100", "retention.ms": "-1"}
COUNT = 60


def records_of(codec: str) -> list[Sent]:
    return [
        Sent(b"k%d" % (n % 7), b"%s %d " % (codec.encode(), n) * 40, (("h", b"%d" % n),), STAMP + n)
        for n in range(COUNT)
    ]


def write_every_codec(bootstrap: str, topic: str, *, start: int = 0) -> list[Sent]:
    """Write each codec's records, several batches of them; return them in order."""
    written: list[Sent] = []
    for codec in CODECS:
        records = records_of(codec)
        for at in range(0, COUNT, 10):
            offsets = Confluent().produce(bootstrap, topic, records[at : at + 10], codec=codec)
            assert offsets[0] == start + len(written) + at
        written += records
    return written


def dump(tools: Tools, *files: Path, options: tuple[str, ...] = ()) -> str:
    told = tools.run("DumpLogSegments", "--files", ",".join(map(str, sorted(files))), *options)
    for word in (
        "isvalid: false",
        "Found timestamp mismatch",
        "mismatch",
        "corrupt",
        "Non-consecutive",
    ):
        assert word not in told, told
    return told


@pytest.mark.parametrize("tools", TOOLS, ids=repr)
def test_dump_tool_reads_what_plog_writes(tools: Tools, plane: Plane, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("all", partitions=1, configs=CONFIGS)
        written = write_every_codec(broker.bootstrap, "all")
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({TopicPartition("all", 0): 3})
    directory = broker.log_dirs[0] / "all-0"
    logs = list(directory.glob("*.log"))
    assert len(logs) > 2
    told = dump(tools, *logs, options=("--deep-iteration", "--print-data-log"))
    found = re.findall(r"^\| offset: (\d+) .* payload: (.*)$", told, re.MULTILINE)
    assert [(int(offset), payload) for offset, payload in found] == [
        (at, record.value.decode()) for at, record in enumerate(written)
    ]
    assert {one.lower() for one in re.findall(r"compresscodec: (\w+)", told)} == set(CODECS)
    for kind in ("index", "timeindex"):
        files = list(directory.glob(f"*.{kind}"))
        assert any(file.stat().st_size for file in files)
        dump(tools, *files, options=("--verify-index-only",))
        told = dump(tools, *files, options=("--index-sanity-check",))
        assert told.count("passed sanity check") == len(files)
    snapshots = list(directory.glob("*.snapshot"))
    assert snapshots
    told = dump(tools, *snapshots)
    assert "producerId: " in told
    assert "lastSequence: " in told or "lastSequence" in told


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path / "zk")
    yield server
    server.stop()


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("all", 1, 1, config=CONFIGS),
        NewTopic(
            "moved", 3, 1, config={"cleanup.policy": "compact", "max.message.bytes": "2000000"}
        ),
        NewTopic("tx", 1, 1),
    ]
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE_S)


def write_transactions(bootstrap: str, topic: str) -> None:
    """One that commits and one that is aborted, in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    for number in range(6):
        producer.begin_transaction()
        for at in range(3):
            producer.produce(topic, b"%d-%d" % (number, at), partition=0, timestamp=STAMP)
        producer.flush(PATIENCE_S)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(PATIENCE_S)


def values(bootstrap: str, topic: str, count: int, **more: int) -> list[bytes | None]:
    return [one.value for one in Confluent().consume(bootstrap, topic, count, **more)]


@pytest.mark.timeout(300)
def test_plog_goes_on_where_kafka_stopped_and_kafka_where_plog_did(
    plane: Plane, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    data = tmp_path / "data0"  # where BrokerProcess has its first log directory
    first = Kafka(tmp_path / "first", data, zookeeper)
    make_topics(first.bootstrap)
    written = write_every_codec(first.bootstrap, "all")
    Confluent().produce(first.bootstrap, "moved", [Sent(b"k", b"v")], partition=2)
    write_transactions(first.bootstrap, "tx")
    committed = [b"%d-%d" % (number, at) for number in (0, 2, 4) for at in range(3)]
    first.stop()

    broker = BrokerProcess(tmp_path)
    properties = tmp_path / "server.properties"
    settings = {**broker.overrides, "broker.id": 0}
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    adopted = plog("adopt", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
    assert "moved" in adopted
    with broker:
        assert "written anew from the log directories" not in broker.log
        with Admin(broker.bootstrap) as admin:
            assert len(admin.topic("moved").partitions) == 3
            configs = {one.name: one for one in admin.describe_configs(TOPIC, "moved")}
            assert configs["cleanup.policy"].value == "compact"
            assert configs["max.message.bytes"].value == "2000000"
            (entry,) = admin.describe_configs(TOPIC, "all", ["segment.bytes"])
            assert entry.value == "10000"
        assert Confluent().consume(broker.bootstrap, "all", len(written)) == written
        assert read_committed(broker.bootstrap, "tx", len(committed)) == committed
        # More of it: segments, producers and leader epochs go on.
        more = write_every_codec(broker.bootstrap, "all", start=len(written))
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("made-by-plog", partitions=2, configs={"retention.ms": "7000000"})
            admin.delete_topic("moved")
            admin.delete_records({TopicPartition("all", 0): 30})
        Confluent().produce(broker.bootstrap, "made-by-plog", [Sent(b"k", b"new")], partition=1)

    plog("adopt", "--give-back", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
    again = Kafka(tmp_path / "again", data, zookeeper)
    try:
        everything = written + more
        found = Confluent().consume(again.bootstrap, "all", len(everything) - 30, offset=30)
        assert found == everything[30:]
        assert values(again.bootstrap, "made-by-plog", 1, partition=1) == [b"new"]
        assert read_committed(again.bootstrap, "tx", len(committed)) == committed
        listed = KAFKA_3_9.run(
            "TopicCommand", "--bootstrap-server", again.bootstrap, "--describe", "--topic",
            "made-by-plog",
        )  # fmt: skip
        assert "PartitionCount: 2" in listed
        assert "retention.ms=7000000" in listed
        told = KAFKA_3_9.run("TopicCommand", "--bootstrap-server", again.bootstrap, "--list")
        assert "moved" not in told.split()
        told = KAFKA_3_9.run(
            "GetOffsetShell", "--bootstrap-server", again.bootstrap, "--topic", "all", "--time", -2
        )
        assert told.split() == ["all:0:30"]
        Confluent().produce(again.bootstrap, "all", [Sent(b"k", b"and on")])
    finally:
        again.stop()
    assert again.complaints == []
    # That it would complain of what is wrong: one bit of the newest segment, behind no clean stop.
    newest = max((data / "all-0").glob("*.log"))
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)
    (data / ".kafka_cleanshutdown").unlink()
    last = Kafka(tmp_path / "last", data, zookeeper)
    last.stop()
    assert last.complaints


def read_committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(5)
        if message is None:
            continue
        if message.error() is not None:  # the end
            break
        found.append(message.value())
    consumer.close()
    assert len(found) == count, found
    return found


def plog(*arguments: object) -> str:
    import subprocess
    import sys

    command = [sys.executable, "-m", "plog", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
