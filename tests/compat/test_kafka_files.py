"""Files: Kafka's own dump tool reads plog's, plog serves Kafka's, and Kafka serves plog's."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from plog._native.batch import BatchHeader, scan
from plog._native.crc32c import crc32c
from plog.client.admin import SET, TOPIC, Admin
from plog.ops.dump_log import DAMAGE
from plog.ops.dump_log import dump as found_in
from plog.storage.producer_snapshot import decode_snapshot
from plog.storage.transaction_index import decode_aborted
from plog.types import TopicPartition
from tests.compat.clients import CODECS, PATIENCE_S, Confluent, Sent
from tests.compat.coordinated import (
    begin,
    commit_offset,
    committed_offset,
    read_committed,
    read_to_end,
    transactional,
)
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.live_kafka import KAFKA_3_9, Kafka, ZooKeeper
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.waiting import until

STAMP = 1_700_000_000_000
CONFIGS = {"segment.bytes": "10000", "index.interval.bytes": "100", "retention.ms": "-1"}
COUNT, BATCH = 60, 10


def records_of(codec: str) -> list[Sent]:
    return [
        Sent(b"k%d" % (n % 7), b"%s %d " % (codec.encode(), n) * 40, (("h", b"%d" % n),), STAMP + n)
        for n in range(COUNT)
    ]


def write_every_codec(bootstrap: str, topic: str, *, start: int = 0) -> list[Sent]:
    """Write each codec's records, each batch by a producer of its own; return them in order."""
    written: list[Sent] = []
    # All are made before the first writes, as each waits for its id.
    producers = [
        (Confluent().producer(bootstrap, codec=codec), records_of(codec)[at : at + BATCH])
        for codec in CODECS
        for at in range(0, COUNT, BATCH)
    ]
    for producer, records in producers:
        offsets = Confluent().write(producer, topic, records)
        assert offsets[0] == start + len(written)
        written += records
    return written


def dump(tools: Tools, *files: Path, options: Sequence[str] = ()) -> str:
    """Return what the tool prints of files; it may have nothing to say on stderr."""
    told = tools.run("DumpLogSegments", "--files", ",".join(map(str, sorted(files))), *options)
    for word in ("isvalid: false", "invalid bytes at the end"):
        assert word not in told, told
    return told


def dumped_files(told: str) -> dict[Path, str]:
    """Return what the tool prints of each file."""
    _, *parts = re.split(r"^Dumping (.*)$\n", told, flags=re.MULTILINE)
    return {Path(file): text for file, text in zip(parts[::2], parts[1::2], strict=True)}


def fields(told: str, first: str) -> list[dict[str, str]]:
    """Return what the tool's lines that begin with a field say, by the fields' names."""
    lines = [line for line in told.splitlines() if line.startswith(f"{first}: ")]
    return [dict(re.findall(r"(\w+): (\S+)", line)) for line in lines]


class Newest(NamedTuple):
    """A producer's newest batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


def newest_in_log(told: str, below: int) -> list[Newest]:
    """Return every producer's newest batch below an offset, of the dump of all segments."""
    newest = {}
    for one in fields(told, "baseOffset"):
        if int(one["lastOffset"]) < below:
            newest[one["producerId"]] = Newest(
                int(one["producerId"]),
                int(one["producerEpoch"]),
                int(one["lastSequence"]),
                int(one["lastOffset"]),
                int(one["lastOffset"]) - int(one["baseOffset"]),
                int(one["CreateTime"]),
            )
    return sorted(newest.values())


def newest_in_snapshot(told: str) -> list[Newest]:
    names = ("producerId", "producerEpoch", "lastSequence", "lastOffset", "offsetDelta")
    return sorted(
        Newest(*(int(one[name]) for name in (*names, "lastTimestamp")))
        for one in fields(told, "producerId")
    )


def written_by_plog(directory: Path) -> tuple[Path, list[Sent]]:
    """Have a broker write what is dumped; return the partition's directory and the records."""
    with BrokerProcess(directory) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("all", partitions=1, configs=CONFIGS)
        written = write_every_codec(broker.bootstrap, "all")
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({TopicPartition("all", 0): 3})
    return broker.log_dirs[0] / "all-0", written


@pytest.mark.parametrize("tools", TOOLS, ids=repr)
def test_dump_tool_reads_what_plog_writes(tools: Tools, plane: Plane, tmp_path: Path) -> None:
    directory, written = written_by_plog(tmp_path)
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 2
    indexes = [file for kind in ("index", "timeindex") for file in directory.glob(f"*.{kind}")]
    for kind in (".index", ".timeindex"):
        assert any(file.stat().st_size for file in indexes if file.suffix == kind)
    snapshots = list(directory.glob("*.snapshot"))
    assert len(snapshots) > 1
    options = ("--deep-iteration", "--print-data-log", "--verify-index-only")
    dumped = dumped_files(dump(tools, *logs, *indexes, *snapshots, options=options))
    in_logs = "".join(dumped[file] for file in logs)
    found = re.findall(r"^\| offset: (\d+) .* payload: (.*)$", in_logs, re.MULTILINE)
    assert [(int(offset), payload) for offset, payload in found] == [
        (at, record.value.decode()) for at, record in enumerate(written)
    ]
    assert {one.lower() for one in re.findall(r"compresscodec: (\w+)", in_logs)} == set(CODECS)
    told = dump(tools, *indexes, options=("--index-sanity-check",))
    assert told.count("passed sanity check") == len(indexes)
    for snapshot in sorted(snapshots):
        newest = newest_in_snapshot(dumped[snapshot])
        assert newest == newest_in_log(in_logs, int(snapshot.stem))
        epochs = {one["coordinatorEpoch"] for one in fields(dumped[snapshot], "producerId")}
        assert epochs == {"-1"}
    # The last one is of all: each ten records had a producer of their own.
    assert sorted((one.last_offset, one.last_sequence, one.epoch) for one in newest) == [
        (end - 1, 9, 0) for end in range(10, len(written) + 1, 10)
    ]


class Planted(NamedTuple):
    """One more in a byte of a file, and what the tool says of it, though it ends with 0."""

    suffix: str
    byte: int
    told: str


PLANTED = [
    Planted("index", 3, "Mismatches in "),  # the first entry's offset
    Planted("timeindex", 7, "Found timestamp mismatch in "),
    Planted("timeindex", 11, "offsets are not found in the log"),
    Planted("snapshot", 23, "CRC is no longer valid"),  # the first producer's last sequence
]


@pytest.mark.parametrize("tools", TOOLS, ids=repr)
def test_wrong_entry_would_be_seen(tools: Tools, tmp_path: Path) -> None:
    directory, _ = written_by_plog(tmp_path)
    files: list[Path] = []
    for planted in PLANTED:
        others = (one for one in directory.glob(f"*.{planted.suffix}") if one not in files)
        file = max(others, key=lambda one: one.stat().st_size)
        whole = file.read_bytes()
        wrong = bytearray(whole)
        wrong[planted.byte] = (wrong[planted.byte] + 1) % 256
        file.write_bytes(wrong)
        files.append(file)
    # With the CRC made right it can only be seen in what the snapshot says.
    right, unseen = (tmp_path / name / file.name for name in ("right", "unseen"))
    for each in (right, unseen):
        each.parent.mkdir()
    right.write_bytes(whole)
    struct.pack_into(">I", wrong, 2, crc32c(bytes(wrong[6:])))
    unseen.write_bytes(wrong)
    names = ",".join(map(str, [*files, right, unseen]))
    said, complaints = tools.told("DumpLogSegments", "--files", names)
    for planted in PLANTED:
        assert any(planted.told in line for line in complaints), (planted, complaints)
    # Of each once; the others say which entry.
    of_entries = [line for line in complaints if line.strip().startswith("Index")]
    assert len(complaints) - len(of_entries) == len(PLANTED), complaints
    dumped = dumped_files(said)
    newest = newest_in_snapshot(dumped[right])
    assert newest_in_snapshot(dumped[unseen]) == [
        newest[0]._replace(last_sequence=newest[0].last_sequence + 1),
        *newest[1:],
    ]


@pytest.mark.parametrize("tools", TOOLS, ids=repr)
def test_dump_tool_reads_what_transactions_leave(
    tools: Tools, plane: Plane, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("tx", partitions=1)
        write_transactions(broker.bootstrap, "tx")
        left_open = transactional(broker.bootstrap, "open")
        begin(left_open, "tx", [b"open"])
    del left_open
    directory = broker.log_dirs[0] / "tx-0"
    (index,) = directory.glob("*.txnindex")
    aborted = fields(dump(tools, index), "version")
    offsets = ("firstOffset", "lastOffset", "lastStableOffset")
    # Each had three records and its marker, and none was open beside it.
    assert [tuple(int(one[name]) for name in offsets) for one in aborted] == [
        (4, 7, 8),
        (12, 15, 16),
        (20, 23, 24),
    ]
    in_log = dump(tools, *directory.glob("*.log"), options=("--deep-iteration",))
    producer_id = fields(in_log, "baseOffset")[0]["producerId"]
    assert {one["producerId"] for one in aborted} == {producer_id}
    (coordinator_epoch,) = set(re.findall(r"endTxnMarker: \w+ coordinatorEpoch: (\S+)", in_log))
    told = dump(tools, max(directory.glob("*.snapshot")))
    states = {one["producerId"]: one for one in fields(told, "producerId")}
    ended = states.pop(producer_id)
    assert ended["coordinatorEpoch"] == coordinator_epoch
    assert (ended["lastSequence"], ended["lastOffset"]) == ("17", "22")
    assert not re.search(r"\d", ended["currentTxnFirstOffset"])
    ((_, still_open),) = states.items()
    assert still_open["coordinatorEpoch"] == "-1"
    assert (still_open["lastSequence"], still_open["lastOffset"]) == ("0", "24")
    assert re.findall(r"\d+", still_open["currentTxnFirstOffset"]) == ["24"]


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
        NewTopic("left", 1, 1),
    ]
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE_S)


def write_transactions(bootstrap: str, topic: str, *, start: int = 0) -> list[bytes]:
    """One that commits and one that is aborted, in turn; return what is committed."""
    producer = transactional(bootstrap, "t")
    committed: list[bytes] = []
    for number in range(start, start + 6):
        records = [b"%d-%d" % (number, at) for at in range(3)]
        begin(producer, topic, records)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed += records
    return committed


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
    committed = write_transactions(first.bootstrap, "tx")
    first.stop()

    broker = BrokerProcess(tmp_path)
    properties = tmp_path / "server.properties"
    settings = {**broker.overrides, "broker.id": 0}
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    adopted = plog("adopt", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
    assert "moved" in adopted
    with broker:
        assert "in the coordination store from the log directories" not in broker.log
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
        committed += write_transactions(broker.bootstrap, "tx", start=6)
        with Admin(broker.bootstrap) as admin:
            kept = {"retention.ms": "7000000000000"}
            admin.create_topic("made-by-plog", partitions=2, configs=kept)
            admin.delete_topic("moved")
            admin.delete_records({TopicPartition("all", 0): 30})
        Confluent().produce(broker.bootstrap, "made-by-plog", [Sent(b"k", b"new")], partition=1)

    indexes = sorted((data / "tx-0").glob("*.txnindex"))
    aborted = [one for index in indexes for one in decode_aborted(index.read_bytes())]
    assert [one.first_offset for one in aborted] == [8 * n + 4 for n in range(6)]
    plog("adopt", "--give-back", "--yes", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
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
        assert "retention.ms=7000000000000" in listed
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
    assert any("corrupt" in line.lower() for line in last.complaints)


@pytest.mark.timeout(400)
def test_plog_goes_on_where_kafka_was_killed_and_kafka_where_plog_was(
    plane: Plane, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    data = [tmp_path / f"data{number}" for number in range(2)]  # as BrokerProcess has them
    settings = f"log.dirs={','.join(map(str, data))}\nzookeeper.session.timeout.ms=2000\n"
    first = Kafka(tmp_path / "first", data[0], zookeeper, settings)
    make_topics(first.bootstrap)
    written = write_every_codec(first.bootstrap, "all")
    committed = write_transactions(first.bootstrap, "tx")
    commit_offset(first.bootstrap, TopicPartition("all", 0), 7)
    left = transactional(first.bootstrap, "left open")
    begin(left, "left", [b"never committed"])
    first.kill()
    del left
    for directory in data:
        assert list(directory.glob("*-[0-9]/*.log")), "Kafka has used but one of them"
    with zookeeper.client() as client:
        until(lambda: client.exists("/brokers/ids/0") is None, "ZooKeeper has missed it")

    broker = BrokerProcess(tmp_path, log_dirs=2)
    properties = tmp_path / "server.properties"
    known = {**broker.overrides, "broker.id": 0}
    properties.write_text("".join(f"{key}={value}\n" for key, value in known.items()))
    plog("adopt", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
    broker.start()
    try:
        assert Confluent().consume(broker.bootstrap, "all", len(written)) == written
        assert read_committed(broker.bootstrap, "tx", len(committed)) == committed
        assert committed_offset(broker.bootstrap, TopicPartition("all", 0)) == 7
        # Whoever takes the place of who is gone has its transaction aborted.
        after = transactional(broker.bootstrap, "left open")
        begin(after, "left", [b"of plog's"])
        after.commit_transaction(PATIENCE_S)
        assert read_committed(broker.bootstrap, "left", 1) == [b"of plog's"]
        written += write_every_codec(broker.bootstrap, "all", start=len(written))
        committed += write_transactions(broker.bootstrap, "tx", start=6)
        commit_offset(broker.bootstrap, TopicPartition("all", 0), 8)
        begin(after, "left", [b"never committed either"])
    finally:
        broker.kill()
    del after

    plog("adopt", "--give-back", "--yes", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
    again = Kafka(tmp_path / "again", data[0], zookeeper, settings)
    try:
        assert Confluent().consume(again.bootstrap, "all", len(written)) == written
        assert read_committed(again.bootstrap, "tx", len(committed)) == committed
        assert committed_offset(again.bootstrap, TopicPartition("all", 0)) == 8
        last = transactional(again.bootstrap, "left open")
        begin(last, "left", [b"of Kafka's"])
        last.commit_transaction(PATIENCE_S)
        assert read_committed(again.bootstrap, "left", 2) == [b"of plog's", b"of Kafka's"]
    finally:
        again.stop()
    assert again.complaints == []


@pytest.mark.timeout(400)
def test_kafka_serves_what_began_with_plog(
    plane: Plane, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    broker = BrokerProcess(
        tmp_path,
        overrides={
            "broker.id": 0,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
        },
    )
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    at = TopicPartition("all", 0)
    with broker:
        make_topics(broker.bootstrap)
        written = write_every_codec(broker.bootstrap, "all")
        Confluent().produce(broker.bootstrap, "moved", [Sent(b"k", b"v")], partition=2)
        committed = write_transactions(broker.bootstrap, "tx")
        commit_offset(broker.bootstrap, at, 7)
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({at: 30})
            admin.alter_configs(TOPIC, "tx", [("retention.ms", SET, "7000000")])
            # Kafka knows these by ids that plog has drawn.
            ids = {name: admin.topic(name).topic_id for name in ("all", "moved", "tx", "left")}
    plog("adopt", "--give-back", "--yes", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)

    kafka = Kafka(tmp_path / "kafka", broker.log_dirs[0], zookeeper)
    try:
        found = Confluent().consume(kafka.bootstrap, "all", len(written) - 30, offset=30)
        assert found == written[30:]
        assert values(kafka.bootstrap, "moved", 1, partition=2) == [b"v"]
        assert read_committed(kafka.bootstrap, "tx", len(committed)) == committed
        assert committed_offset(kafka.bootstrap, at) == 7
        with Admin(kafka.bootstrap) as admin:
            assert {name: admin.topic(name).topic_id for name in ids} == ids
            for name, partitions, configs in (
                ("all", 1, CONFIGS),
                ("moved", 3, {"cleanup.policy": "compact", "max.message.bytes": "2000000"}),
                ("tx", 1, {"retention.ms": "7000000"}),
                ("left", 1, {}),
            ):
                assert len(admin.topic(name).partitions) == partitions
                told = admin.describe_configs(TOPIC, name)
                assert {e.name: e.value for e in told if e.source == "topic"} == configs
            earliest, latest = -2, -1
            for time, offset in ((earliest, 30), (latest, len(written))):
                told_offset = KAFKA_3_9.run(
                    "GetOffsetShell", "--bootstrap-server", kafka.bootstrap, "--topic", "all",
                    "--time", time,
                )  # fmt: skip
                assert told_offset.split() == [f"all:0:{offset}"]
        # And it goes on: producers by their ids and epochs, the group, and new records.
        committed += write_transactions(kafka.bootstrap, "tx", start=6)
        assert read_committed(kafka.bootstrap, "tx", len(committed)) == committed
        commit_offset(kafka.bootstrap, at, 8)
        assert committed_offset(kafka.bootstrap, at) == 8
        Confluent().produce(kafka.bootstrap, "all", [Sent(b"k", b"and on")])
    finally:
        kafka.stop()
    assert kafka.complaints == []


CLEANED_AT_ONCE = """log.cleaner.backoff.ms=100
log.cleaner.min.cleanable.ratio=0.01
log.cleaner.delete.retention.ms=0
offsets.topic.segment.bytes=1000
"""


def emptied_markers(directory: Path) -> list[BatchHeader]:
    """Return the control batches that Kafka's cleaner has left without a record."""
    try:
        found = [one for file in directory.glob("*.log") for one in scan(file.read_bytes())]
    except FileNotFoundError:
        return []  # others are about to take their places
    return [one for one in found if one.is_control and not one.records_count]


@pytest.mark.timeout(400)
def test_plog_serves_markers_that_kafkas_cleaner_has_emptied(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """It keeps those whose epoch stands nowhere else: of producers that were fenced."""
    data = tmp_path / "data0"
    kafka = Kafka(tmp_path / "kafka", data, zookeeper, CLEANED_AT_ONCE)
    at, offset = TopicPartition("cleaned", 0), 0
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        configs = {"cleanup.policy": "compact", "segment.bytes": "1000"}
        for made in admin.create_topics([NewTopic("cleaned", 1, 1, config=configs)]).values():
            made.result(PATIENCE_S)
        # Kafka warns of groups that commit with transactions and without.
        group, other = (
            Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
            for name in ("group", "other")
        )
        fenced = transactional(kafka.bootstrap, "t")
        fenced.begin_transaction()
        fenced.produce("cleaned", b"aborted", b"k", partition=0)
        fenced.send_offsets_to_transaction(
            [Place(*at, 1000)], other.consumer_group_metadata(), PATIENCE_S
        )
        fenced.flush(PATIENCE_S)
        transactional(kafka.bootstrap, "t")
        directories = [data / "cleaned-0", data / "__consumer_offsets-0"]

        def has_emptied_all() -> bool:
            # More, or there would be nothing to clean.
            nonlocal offset
            Confluent().produce(kafka.bootstrap, "cleaned", [Sent(b"n", b"%d" % offset * 100)])
            for _ in range(10):
                offset += 1
                group.commit(offsets=[Place(*at, offset)], asynchronous=False)
            return all(emptied_markers(one) for one in directories)

        until(has_emptied_all, "emptied", PATIENCE_S)
        group.close()
        other.close()
    finally:
        kafka.stop()
    assert kafka.complaints == []
    (emptied,) = emptied_markers(directories[0])
    # So that the logs alone tell of producers.
    for snapshot in data.glob("*/*.snapshot"):
        snapshot.unlink()

    broker = BrokerProcess(tmp_path)
    properties = tmp_path / "server.properties"
    settings = {**broker.overrides, "broker.id": 0}
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    plog("adopt", "--zookeeper", f"127.0.0.1:{zookeeper.port}", properties)
    with broker:
        assert committed_offset(broker.bootstrap, at) == offset
        values = {one.key(): one.value() for one in read_to_end(broker.bootstrap, "cleaned")}
        assert list(values) == [b"n"]
    newest = max(directories[0].glob("*.snapshot"))
    epochs = {one.producer_id: one.producer_epoch for one in decode_snapshot(newest.read_bytes())}
    assert epochs[emptied.producer_id] == emptied.producer_epoch
    for directory in directories:
        assert not [one for one in found_in(directory, deep=True) if one.kind == DAMAGE]


def plog(*arguments: object) -> str:
    command = [sys.executable, "-m", "plog", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
