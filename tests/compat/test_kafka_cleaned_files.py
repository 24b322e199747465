"""Kafka reads what plog's cleaner leaves of a log: gaps, and what may not go.

Its dump tool says what is there, and a live Kafka serves it, goes on with it and cleans it again.
"""

from __future__ import annotations

import itertools
import re
import time
from contextlib import closing
from pathlib import Path

import pytest

from plog._native.batch import scan
from plog.client.admin import DELETE, SET, TOPIC, Admin
from plog.protocol.messages.producers import DescribeProducersRequest, TopicRequest
from plog.storage.checkpoints import CLEANER_OFFSET_FILE
from plog.types import TopicPartition
from tests.compat.clients import CODECS, PATIENCE_S, Confluent, Sent, read_all
from tests.compat.coordinated import transactional
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.live_kafka import Kafka, ZooKeeper
from tests.compat.test_kafka_checkpoints import offsets_in
from tests.compat.test_kafka_files import (
    Newest,
    dump,
    fields,
    newest_in_log,
    newest_in_snapshot,
    plog,
)
from tests.handlers.wire import speak
from tests.servers import BrokerProcess
from tests.waiting import until

STAMP = 1_700_000_000_000
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "index.interval.bytes": "100",
}
KEPT = {"delete.retention.ms": "100000000"}
GONE = {"delete.retention.ms": "0"}
"""How long tombstones and markers are kept once they have been cleaned."""
KEYS = 20


Table = dict[bytes | None, bytes | None]
"""The last value of each key; None was deleted."""


def now_ms() -> int:
    return int(time.time() * 1000)


def write(
    broker: BrokerProcess, topic: str, configs: dict[str, str], *, first_ms: int = STAMP
) -> Table:
    """Write what leaves something of each kind; return what it comes to.

    Each batch is another producer's, and is kept without records when all are written again.
    """
    table: Table = {}
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, configs={**CONFIGS, **configs})
    stamps = itertools.count(first_ms)
    for turn, codec in enumerate([*CODECS, "none"]):
        states = [
            Sent(
                b"%d" % key,
                b"%d of turn %d" % (key, turn) if (key + turn) % 4 else None,
                (("turn", b"%d" % turn),),
                next(stamps),
            )
            for key in range(turn, KEYS)  # some are not written again
        ]
        Confluent().produce(broker.bootstrap, topic, states, codec=codec)
        table |= {one.key: one.value for one in states}
    producer = transactional(broker.bootstrap, f"of {topic}")
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for at in range(5):
            producer.produce(topic, b"%d-%d" % (number, at), b"%d" % at, 0)
        producer.flush(PATIENCE_S)
        if commits:
            producer.commit_transaction(PATIENCE_S)
            table |= {b"%d" % at: b"%d-%d" % (number, at) for at in range(5)}
        else:
            producer.abort_transaction(PATIENCE_S)
    # What is in the segment that is written to is not cleaned.
    for _ in range(2):
        last = Sent(b"last", b"x" * 1500, (), next(stamps))
        Confluent().produce(broker.bootstrap, topic, [last])
    return {**table, last.key: last.value}


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def is_clean(broker: BrokerProcess, directory: Path) -> bool:
    """Tell whether all is that may be."""
    end = int(segments(directory)[-1].stem)
    return f"{directory.name} is compacted up to offset {end}:" in broker.log


def has_lost_deletions(broker: BrokerProcess, directory: Path) -> bool:
    """Write something more, or nothing is cleaned; tell whether all is gone that may go.

    The last transaction's marker stays for as long as a record of it does.
    """
    topic = directory.name.removesuffix("-0")
    last = Sent(b"last", b"x" * 1500, (), now_ms())
    Confluent().produce(broker.bootstrap, topic, [last])
    files = segments(directory)
    try:
        headers = [one for file in files for one in scan(file.read_bytes())]
    except FileNotFoundError:
        return False
    if files != segments(directory) or list(directory.glob("*.swap")):
        return False  # others are about to take their places
    readable = read_all(broker.bootstrap, topic, 0)
    return sum(one.is_control for one in headers) == 1 and all(
        record.value is not None for _, record in readable
    )


class Dumped:
    """What the tool says of all segments of a log, and its complaints."""

    def __init__(self, tools: Tools, directory: Path) -> None:
        files = ",".join(map(str, segments(directory)))
        options = ("--deep-iteration", "--print-data-log")
        self.text, self.complaints = tools.told("DumpLogSegments", "--files", files, *options)
        self.batches = fields(self.text, "baseOffset")
        assert len(self.batches) == self.text.count("isvalid: true")

    @property
    def records(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """Offset, timestamp, key and value of each, but for markers."""
        found = re.findall(
            r"^\| offset: (\d+) CreateTime: (\d+) keySize: \d+ valueSize: (-?\d+)"
            r" sequence: -?\d+ headerKeys: \[.*?\] key: (\S+)(?: payload: (.*))?$",
            self.text,
            re.MULTILINE,
        )
        return [
            (int(offset), int(time), key.encode(), None if size == "-1" else value.encode())
            for offset, time, size, key, value in found
        ]

    @property
    def markers(self) -> list[str]:
        return re.findall(r"endTxnMarker: (\w+)", self.text)

    def count(self, **values: str) -> int:
        """Count batches of which the tool says so."""
        return sum(values.items() <= batch.items() for batch in self.batches)

    @property
    def gaps(self) -> list[str]:
        """What the tool is to complain of: Kafka's cleaner leaves such, too."""
        found = []
        for file in self.text.split("Dumping ")[1:]:
            offsets = [int(one) for one in re.findall(r"^\| offset: (\d+)", file, re.MULTILINE)]
            gaps = [pair for pair in itertools.pairwise(offsets) if pair[1] != pair[0] + 1]
            if gaps:
                found.append(f"Non-consecutive offsets in {file.splitlines()[0]}")
                found += [f"  {before} is followed by {after}" for before, after in gaps]
        return found


def check_indexes(tools: Tools, directory: Path, dumped: Dumped) -> None:
    """Have the tool compare all indexes with their logs."""
    dump(tools, *directory.glob("*.index"))
    for kind in ("index", "timeindex"):
        files = [one for one in directory.glob(f"*.{kind}") if one.stat().st_size]
        assert files
        told = dump(tools, *files, options=("--index-sanity-check",))
        assert told.count("passed sanity check") == len(files)
    # Of a batch without records the tool takes the time to be -1, also where Kafka wrote all this.
    files = ",".join(map(str, sorted(directory.glob("*.timeindex"))))
    told, complaints = tools.told("DumpLogSegments", "--files", files)
    offset_of = {one["timestamp"]: one["offset"] for one in fields(told, "timestamp")}
    empty = {one["lastOffset"] for one in dumped.batches if one["count"] == "0"}
    for complaint in complaints:
        if complaint.startswith("Found timestamp mismatch in :"):
            continue
        found = re.fullmatch(r"  Index timestamp: (\d+), log timestamp: -1", complaint)
        assert found, complaints
        assert offset_of[found[1]] in empty


def newest_snapshot(directory: Path) -> Path:
    return max(directory.glob("*.snapshot"))


def producers_in_log(dumped: Dumped, directory: Path) -> list[Newest]:
    """Return every producer's newest batch, and be it one without records.

    Times are left out: a batch has that of the last record that it kept. So are producers of
    transactions, whose newest batch is a marker.
    """
    transactional = {one["producerId"] for one in dumped.batches if one["isControl"] == "true"}
    found = newest_in_log(dumped.text, int(newest_snapshot(directory).stem))
    assert len(found) > len(CODECS)
    return [one._replace(timestamp=0) for one in found if str(one.producer_id) not in transactional]


def producers_in_snapshot(tools: Tools, directory: Path) -> list[Newest]:
    """Return the same as the newest snapshot has it."""
    told = dump(tools, newest_snapshot(directory))
    of_markers = [
        one["producerId"] for one in fields(told, "producerId") if one["coordinatorEpoch"] != "-1"
    ]
    assert len(of_markers) == 1
    return [
        one._replace(timestamp=0)
        for one in newest_in_snapshot(told)
        if str(one.producer_id) not in of_markers
    ]


@pytest.mark.parametrize("tools", TOOLS, ids=repr)
def test_dump_tool_reads_what_the_cleaner_leaves(tools: Tools, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, overrides={"log.cleaner.backoff.ms": 20})
    kept, gone = (broker.log_dirs[0] / f"{name}-0" for name in ("kept", "gone"))
    with broker:
        write(broker, "kept", KEPT)
        write(broker, "gone", GONE)
        until(lambda: is_clean(broker, kept), "clean", PATIENCE_S)
        until(lambda: has_lost_deletions(broker, gone), "without deletions", PATIENCE_S)
    # So that nothing is cleaned between what is read and what is dumped.
    broker.overrides["log.cleaner.enable"] = "false"
    with broker:
        readable = {topic: read_all(broker.bootstrap, topic, 0) for topic in ("kept", "gone")}
    for directory in (kept, gone):
        dumped = Dumped(tools, directory)
        assert dumped.records == [
            (offset, record.timestamp, record.key, record.value)
            for offset, record in readable[directory.name.removesuffix("-0")]
        ]
        assert sorted(dumped.complaints) == sorted(dumped.gaps)
        assert dumped.gaps
        assert dumped.count(count="0", isControl="false") >= len(CODECS)
        assert producers_in_log(dumped, directory) == producers_in_snapshot(tools, directory)
        check_indexes(tools, directory, dumped)
    dumped = Dumped(tools, kept)
    assert [value for *_, value in dumped.records].count(None) >= 4
    assert dumped.markers == ["COMMIT", "ABORT", "COMMIT"]
    assert {value for _, _, key, value in dumped.records if key == b"0"} == {b"2-0"}
    horizons = [one for one in dumped.batches if one["deleteHorizonMs"] != "OptionalLong.empty"]
    assert {one["isControl"] for one in horizons} == {"true", "false"}
    dumped = Dumped(tools, gone)
    assert dumped.markers == ["COMMIT"]
    assert None not in [value for *_, value in dumped.records]


UNTOUCHED = {"min.compaction.lag.ms": "1000000000000000"}
"""No record is so old."""


def without_deletions(table: Table) -> Table:
    return {key: value for key, value in table.items() if value is not None}


def producers_of(port: int, topic: str) -> dict[int, tuple[int, int]]:
    """Return the epoch and the last sequence of each producer that a broker knows."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])
    with closing(speak(port)) as wire:
        (found,) = wire.ask(request).topics[0].partitions
    assert found.error_code == 0
    return {
        one.producer_id: (one.producer_epoch, one.last_sequence) for one in found.active_producers
    }


def left(bootstrap: str, topic: str) -> Table:
    """Return what a reader of committed records makes of a topic."""
    records = read_all(bootstrap, topic, 0, "read_committed")
    return without_deletions({record.key: record.value for _, record in records})


def empty_batches(directory: Path) -> int:
    """Count the batches that were kept for their producers alone."""
    headers = [one for file in segments(directory) for one in scan(file.read_bytes())]
    return sum(not one.records_count and not one.is_control for one in headers)


def is_clean_by_kafka(data: Path, at: TopicPartition) -> bool:
    """Tell whether Kafka's cleaner has come as far as it may."""
    clean = offsets_in(data, CLEANER_OFFSET_FILE)
    return clean.get(at) == int(segments(data / f"{at.topic}-{at.partition}")[-1].stem)


def write_more(bootstrap: str, topic: str) -> Table:
    """Write some keys anew; return what comes of them."""
    table: Table = {}
    for turn, codec in enumerate(CODECS):
        states = [
            Sent(b"%d" % key, b"%d by Kafka" % key if key % 3 else None, (), now_ms())
            for key in range(turn, KEYS, 2)
        ]
        Confluent().produce(bootstrap, topic, states, codec=codec)
        table |= {one.key: one.value for one in states}
    producer = transactional(bootstrap, f"of {topic}")
    for commits in (True, False):
        producer.begin_transaction()
        for key in (b"1", b"in a transaction"):
            producer.produce(topic, b"committed" if commits else b"aborted", key, 0)
            table[key] = b"committed"
        producer.flush(PATIENCE_S)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    for _ in range(2):
        Confluent().produce(bootstrap, topic, [Sent(b"last", b"y" * 1500, (), now_ms())])
    return {**table, b"last": b"y" * 1500}


@pytest.mark.timeout(400)
def test_kafka_goes_on_with_what_the_cleaner_leaves(tmp_path: Path) -> None:
    zookeeper = ZooKeeper(tmp_path / "zk")
    try:
        go_on(tmp_path, zookeeper)
    finally:
        zookeeper.stop()


def go_on(directory: Path, zookeeper: ZooKeeper) -> None:
    overrides = {
        "log.cleaner.backoff.ms": 20,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    broker = BrokerProcess(directory, overrides=overrides)
    data = broker.log_dirs[0]
    with broker:
        # Of now, or Kafka would forget the producers.
        tables = {
            topic: write(broker, topic, configs, first_ms=now_ms())
            for topic, configs in (("kept", KEPT), ("gone", GONE))
        }
        until(lambda: is_clean(broker, data / "kept-0"), "clean", PATIENCE_S)
        until(lambda: has_lost_deletions(broker, data / "gone-0"), "without deletions", PATIENCE_S)
        with Admin(broker.bootstrap) as admin:
            for topic in tables:
                changes = [(name, SET, value) for name, value in UNTOUCHED.items()]
                admin.alter_configs(TOPIC, topic, changes)
    # So that nothing is cleaned between what plog is asked and what Kafka is.
    broker.overrides["log.cleaner.enable"] = "false"
    with broker:
        readable = {topic: read_all(broker.bootstrap, topic, 0) for topic in tables}
        known = {topic: producers_of(broker.port, topic) for topic in tables}
    for topic, records in readable.items():
        offsets = [offset for offset, _ in records]
        assert offsets != list(range(offsets[0], offsets[-1] + 1))
        assert any(record.value is None for _, record in records) == (topic == "kept")
        assert empty_batches(data / f"{topic}-0") >= len(CODECS)
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    plog("adopt", "--give-back", "--yes", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)

    kafka = Kafka(directory / "kafka", data, zookeeper, "log.cleaner.backoff.ms=100\n")
    try:
        for topic, table in tables.items():
            assert read_all(kafka.bootstrap, topic, 0) == readable[topic]
            assert producers_of(kafka.port, topic) == known[topic]
            assert len(known[topic]) > len(CODECS)
            assert left(kafka.bootstrap, topic) == without_deletions(table)
            table |= write_more(kafka.bootstrap, topic)
        with Admin(kafka.bootstrap) as admin:
            for topic in tables:
                admin.alter_configs(TOPIC, topic, [(name, DELETE, None) for name in UNTOUCHED])
        for topic, table in tables.items():
            at = TopicPartition(topic, 0)
            until(lambda at=at: is_clean_by_kafka(data, at), "clean", PATIENCE_S)
            assert left(kafka.bootstrap, topic) == without_deletions(table)
            end = int(segments(data / f"{topic}-0")[-1].stem)
            keys = [
                record.key for offset, record in read_all(kafka.bootstrap, topic, 0) if offset < end
            ]
            assert len(keys) == len(set(keys))
            assert empty_batches(data / f"{topic}-0") > len(CODECS)
    finally:
        kafka.stop()
    assert kafka.complaints == []
