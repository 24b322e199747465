"""Kafka goes by the checkpoints that plog writes. Its dump tool reads none, so it is asked itself.

What Kafka logs of a start tells what it took from each file; without a file, or with another number
in it, it would have said something else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from plog.storage import checkpoints, leader_epochs
from plog.types import TopicPartition
from tests.compat.clients import PATIENCE_S, Confluent, Sent
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.live_kafka import Kafka, ZooKeeper
from tests.compat.test_kafka_files import plog
from tests.handlers.wire import speak
from tests.servers import BrokerProcess
from tests.waiting import until

CONFIGS = {"segment.bytes": "5000", "retention.ms": "-1"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "5000",
    "min.cleanable.dirty.ratio": "0.01",
}
ALL, OTHER, TABLE = (TopicPartition(name, 0) for name in ("all", "other", "table"))
DELETED = 33
"""Records of `all`; no segment begins there."""
LOGGERS = ("kafka.log", "kafka.cluster")


def write(broker: BrokerProcess, at: TopicPartition, batches: int) -> None:
    for _ in range(batches):
        Confluent().produce(broker.bootstrap, at.topic, [Sent(b"k", b"v" * 100)] * 10)


def segments(data: Path, at: TopicPartition) -> list[int]:
    """Return the base offset of each."""
    return sorted(int(path.stem) for path in (data / f"{at.topic}-{at.partition}").glob("*.log"))


def written_by_plog(directory: Path) -> BrokerProcess:
    """Have a broker write something into each checkpoint, and stop; return it."""
    broker = BrokerProcess(directory, overrides={"log.cleaner.backoff.ms": 20})
    with broker:
        with Admin(broker.bootstrap) as admin:
            for at, configs in ((ALL, CONFIGS), (OTHER, CONFIGS), (TABLE, COMPACTED)):
                admin.create_topic(at.topic, partitions=1, configs=configs)
        write(broker, ALL, 10)
        write(broker, TABLE, 10)
        data = broker.log_dirs[0]
        until(lambda: f"compacted up to offset {segments(data, TABLE)[-1]}:" in broker.log, "clean")
        write(broker, ALL, 3)
        write(broker, OTHER, 10)
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({ALL: DELETED})
    return broker


def offsets_in(data: Path, name: str) -> Mapping[TopicPartition, int]:
    return checkpoints.decode_offsets((data / name).read_text(), name)


def epochs_in(data: Path, at: TopicPartition) -> list[tuple[int, int]]:
    """Return each leader epoch and where it starts."""
    name = leader_epochs.LEADER_EPOCH_FILE
    text = (data / f"{at.topic}-{at.partition}" / name).read_text()
    return list(leader_epochs.decode_leader_epochs(text, name).entries)


def end_of_epoch(kafka: Kafka, at: TopicPartition, epoch: int) -> int:
    asked = OffsetForLeaderPartition(partition=at.partition, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=at.topic, partitions=[asked])]
    )
    with closing(speak(kafka.port)) as wire:
        (found,) = wire.ask(request, 4).topics[0].partitions
    assert (found.error_code, found.leader_epoch) == (0, epoch), found
    return int(found.end_offset)


def recovered(kafka: Kafka, at: TopicPartition) -> list[int]:
    """Return the segments of a log that Kafka read anew."""
    pattern = rf"partition={at.topic}-{at.partition},.*Recovering unflushed segment (\d+)\."
    return [int(one) for one in re.findall(pattern, kafka.log_path.read_text())]


@pytest.mark.timeout(400)
def test_kafka_goes_by_the_checkpoints(tmp_path: Path) -> None:
    zookeeper = ZooKeeper(tmp_path / "zk")
    try:
        broker = written_by_plog(tmp_path)
        properties = tmp_path / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in broker.overrides.items()))
        plog(
            "adopt",
            "--give-back",
            "--yes",
            "--zookeeper",
            f"127.0.0.1:{zookeeper.port}",
            properties,
        )
        data = broker.log_dirs[0]
        kept = tmp_path / "kept"
        shutil.copytree(data, kept)
        stopped(tmp_path / "stopped", data, zookeeper)
        shutil.rmtree(data)
        kept.rename(data)
        killed(tmp_path / "killed", data, zookeeper)
    finally:
        zookeeper.stop()


def stopped(directory: Path, data: Path, zookeeper: ZooKeeper) -> None:
    """Look at what Kafka makes of what plog left when it stopped."""
    starts = offsets_in(data, checkpoints.LOG_START_OFFSET_FILE)
    marks = offsets_in(data, checkpoints.HIGH_WATERMARK_FILE)
    clean = offsets_in(data, checkpoints.CLEANER_OFFSET_FILE)
    epochs = epochs_in(data, ALL)
    assert starts[ALL] == DELETED
    assert DELETED not in segments(data, ALL)
    assert (marks[ALL], marks[OTHER]) == (130, 100)
    assert clean[TABLE] == segments(data, TABLE)[-1] > 0
    assert epochs == [(0, DELETED)]
    (data / "other-0" / leader_epochs.LEADER_EPOCH_FILE).unlink()
    kafka = Kafka(directory, data, zookeeper, "log.cleaner.backoff.ms=100\n", LOGGERS)
    try:
        said = kafka.log_path.read_text
        assert re.search(rf"Skipping recovery of \d+ logs from {data} since clean shutdown", said())
        assert recovered(kafka, ALL) == []
        assert re.search(rf"Log\(dir={data}/all-0,.*logStartOffset={DELETED},", said())
        for at in (ALL, OTHER):
            name = f"{at.topic}-{at.partition}"
            line = f"Log loaded for partition {name} with initial high watermark {marks[at]}"
            until(lambda line=line: line in said(), line, PATIENCE_S)
        assert end_of_epoch(kafka, ALL, 0) == marks[ALL]
        # Its cleaner begins where plog's has ended, not at the start.
        Confluent().produce(kafka.bootstrap, TABLE.topic, [Sent(b"k", b"v" * 4000)])
        Confluent().produce(kafka.bootstrap, TABLE.topic, [Sent(b"k", b"v" * 4000)])
        line = f"table-0 (dirty section = [{clean[TABLE]}, "
        until(lambda: line in said(), line, PATIENCE_S)
    finally:
        kafka.stop()
    assert kafka.complaints == []
    # It went on in the epoch that plog's file has, and began it anew where there was none.
    assert epochs_in(data, ALL) == epochs
    assert epochs_in(data, OTHER) == [(0, marks[OTHER])]


def killed(directory: Path, data: Path, zookeeper: ZooKeeper) -> None:
    """Look at what Kafka reads anew where there was no clean stop: what is not known to be safe."""
    path = data / checkpoints.RECOVERY_POINT_FILE
    points = dict(offsets_in(data, path.name))
    assert (points[ALL], points[OTHER]) == (130, 100)
    (data / ".kafka_cleanshutdown").unlink()
    path.write_text(checkpoints.encode_offsets({**points, OTHER: 0}))
    kafka = Kafka(directory, data, zookeeper, loggers=LOGGERS)
    try:
        assert recovered(kafka, ALL) == segments(data, ALL)[-1:]
        assert recovered(kafka, OTHER) == segments(data, OTHER)
        assert len(segments(data, OTHER)) > 2
        # Its controller has told it of all partitions: to be stopped before is a complaint.
        told = kafka.log_path.read_text
        for at in (ALL, OTHER, TABLE):
            line = f"Log loaded for partition {at.topic}-{at.partition} with initial"
            until(lambda line=line: line in told(), line, PATIENCE_S)
    finally:
        kafka.stop()
    assert kafka.complaints == []


@pytest.mark.parametrize("tools", TOOLS, ids=repr)
def test_dump_tool_knows_no_checkpoint(tools: Tools, tmp_path: Path) -> None:
    """Once it does, it is to read plog's."""
    path = tmp_path / checkpoints.RECOVERY_POINT_FILE
    path.write_text(checkpoints.encode_offsets({ALL: 1}))
    told = tools.run("DumpLogSegments", "--files", path, status=1)
    assert told.splitlines() == [f"Dumping {path}"]
