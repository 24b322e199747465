"""What becomes of each file when its bytes are damaged while the broker is down.

A topic for each kind of harm, of two partitions, one of which is harmed. Before the
acknowledged end: it is offline with its reason, the other serves. Past it: truncated and
reported. What follows from other files is rebuilt. Never a wrong record, never a broker that
does not start.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.errors import ErrorCode, KafkaError
from plog.types import TopicPartition
from tests.planes import Plane
from tests.servers import BrokerProcess

HARMED, WHOLE = 0, 1
"""The partitions of each topic."""
BATCHES = 30
RECORDS = 5
TIMEOUT_S = 60
SETTINGS: dict[str, object] = {
    "log.segment.bytes": 4_096,
    "log.index.interval.bytes": 512,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.scrub.bytes.per.second": 0,
}


@pytest.fixture
def broker(plane: Plane, tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path, overrides=SETTINGS)
    yield made
    made.kill()


def fill(broker: BrokerProcess, topics: Iterable[str]) -> None:
    """Write acknowledged batches of five records to both partitions of each topic."""
    with Admin(broker.bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=2)
    append(broker, topics, [HARMED, WHOLE], 0, BATCHES)


def append(
    broker: BrokerProcess, topics: Iterable[str], partitions: list[int], first: int, last: int
) -> None:
    with Producer(broker.bootstrap, linger_ms=1_000) as producer:
        for batch in range(first, last):
            sent = [
                producer.send(topic, value(partition, batch * RECORDS + n), partition=partition)
                for topic in topics
                for partition in partitions
                for n in range(RECORDS)
            ]
            producer.flush()
            for one in sent:
                one.result(TIMEOUT_S)


def append_unflushed(broker: BrokerProcess, topics: Iterable[str], first: int, last: int) -> None:
    """Write batches with acks=1: nobody is promised that they outlive the broker."""
    with Producer(
        broker.bootstrap, linger_ms=1_000, acks="1", enable_idempotence=False
    ) as producer:
        for batch in range(first, last):
            for topic in topics:
                for n in range(RECORDS):
                    producer.send(topic, value(HARMED, batch * RECORDS + n), partition=HARMED)
            producer.flush()


def value(partition: int, number: int) -> bytes:
    return f"{partition}-{number:06d}-{'x' * 60}".encode()


def read(
    broker: BrokerProcess, asked: Sequence[TopicPartition]
) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[bytes]] = {at: [] for at in asked}
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign(asked)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(asked)
        deadline = time.monotonic() + TIMEOUT_S
        while any(consumer.position(at) < ends[at] for at in asked):
            assert time.monotonic() < deadline
            for record in consumer.poll(1000):
                found[TopicPartition(record.topic, record.partition)].append(record.value or b"")
    return found


def expect(
    broker: BrokerProcess,
    topics: Iterable[str],
    partitions: Sequence[int] = (HARMED, WHOLE),
    records: int = BATCHES * RECORDS,
) -> None:
    """Check that partitions hold just the records that were written."""
    asked = [TopicPartition(topic, partition) for topic in topics for partition in partitions]
    for at, values in read(broker, asked).items():
        assert values == [value(at.partition, n) for n in range(records)], at


def expect_offline(broker: BrokerProcess, topics: Sequence[str]) -> None:
    """Check that the harmed partitions are offline for everyone, and the others serve."""
    expect(broker, topics, [WHOLE])
    with Admin(broker.bootstrap) as admin:
        # The log tells of damage at once; the controller hears of it a moment later.
        deadline = time.monotonic() + TIMEOUT_S
        for topic in topics:
            while (partitions := admin.topic(topic).partitions)[HARMED].leader_id != -1:
                assert time.monotonic() < deadline, topic
                time.sleep(0.05)
            assert partitions[WHOLE].error_code == ErrorCode.NONE
            assert partitions[HARMED].error_code != ErrorCode.NONE, topic
    with Producer(
        broker.bootstrap, delivery_timeout_ms=1_500, request_timeout_ms=1_000
    ) as producer:
        sent = [producer.send(topic, b"never", partition=HARMED) for topic in topics]
        for one in sent:
            with pytest.raises(KafkaError):
                one.result(TIMEOUT_S)


def directory_of(broker: BrokerProcess, topic: str) -> Path:
    return broker.log_dirs[0] / f"{topic}-{HARMED}"


def logs_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def batches(path: Path) -> list[int]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


# -- damage of what was acknowledged ---------------------------------------------------------------


def flip_in_first_batch(directory: Path) -> None:
    flip(logs_in(directory)[0], 90)


def flip_in_middle_batch(directory: Path) -> None:
    path = logs_in(directory)[1]
    flip(path, batches(path)[1] + 90)


def flip_in_last_batch(directory: Path) -> None:
    path = logs_in(directory)[-1]
    flip(path, batches(path)[-1] + 90)


def flip_in_last_header(directory: Path) -> None:
    path = logs_in(directory)[-1]
    flip(path, batches(path)[-1] + 10)


def flip_in_last_offset(directory: Path) -> None:
    path = logs_in(directory)[-1]
    flip(path, batches(path)[-1] + 7)


def cut_in_last_batch(directory: Path) -> None:
    path = logs_in(directory)[-1]
    path.write_bytes(path.read_bytes()[:-10])


def cut_between_batches(directory: Path) -> None:
    path = logs_in(directory)[-1]
    path.write_bytes(path.read_bytes()[: batches(path)[-1]])


def cut_in_older_segment(directory: Path) -> None:
    path = logs_in(directory)[1]
    path.write_bytes(path.read_bytes()[:-10])


def cut_to_nothing(directory: Path) -> None:
    logs_in(directory)[-1].write_bytes(b"")


def zero_last_page(directory: Path) -> None:
    path = logs_in(directory)[-1]
    data = path.read_bytes()
    start = batches(path)[-1]
    path.write_bytes(data[:start] + bytes(len(data) - start))


def zero_first_page(directory: Path) -> None:
    path = logs_in(directory)[0]
    path.write_bytes(bytes(512) + path.read_bytes()[512:])


def delete_first_log(directory: Path) -> None:
    logs_in(directory)[0].unlink()


def delete_middle_log(directory: Path) -> None:
    logs_in(directory)[1].unlink()


def delete_last_log(directory: Path) -> None:
    logs_in(directory)[-1].unlink()


def delete_every_log(directory: Path) -> None:
    for path in logs_in(directory):
        path.unlink()


def flip_metadata(directory: Path) -> None:
    flip(directory / "partition.metadata", 0)


FATAL: dict[str, Callable[[Path], None]] = {
    harm.__name__: harm
    for harm in (
        flip_in_first_batch,
        flip_in_middle_batch,
        flip_in_last_batch,
        flip_in_last_header,
        flip_in_last_offset,
        cut_in_last_batch,
        cut_between_batches,
        cut_in_older_segment,
        cut_to_nothing,
        zero_last_page,
        zero_first_page,
        delete_first_log,
        delete_middle_log,
        delete_last_log,
        delete_every_log,
        flip_metadata,
    )
}


def everything_in(directory: Path) -> dict[str, bytes]:
    names = [*directory.glob("*.log"), directory / "partition.metadata"]
    return {path.name: path.read_bytes() for path in names}


@pytest.mark.timeout(300)
def test_damage_of_acknowledged_bytes_takes_one_partition_offline(broker: BrokerProcess) -> None:
    topics = [*FATAL, "spared"]
    # A checkpoint would make a start skip what lies below it; that is the scrub's to find.
    broker.overrides["log.flush.offset.checkpoint.interval.ms"] = 3_600_000
    broker.start()
    fill(broker, topics)
    broker.kill()
    harmed = {}
    for topic, harm in FATAL.items():
        directory = directory_of(broker, topic)
        before = everything_in(directory)
        assert len(before) > 3
        harm(directory)
        harmed[topic] = everything_in(directory)
        assert harmed[topic] != before, topic
    for number, ended in enumerate(("by a kill", "cleanly", "not"), start=1):
        broker.start()
        expect(broker, ["spared"])
        expect_offline(broker, list(FATAL))
        for topic in FATAL:
            reasons = re.findall(rf"ERROR .*: {topic}-{HARMED} is offline: (.*)", broker.log)
            assert len(reasons) == number, topic
            assert str(directory_of(broker, topic)) in reasons[-1]
            assert everything_in(directory_of(broker, topic)) == harmed[topic], topic
        if ended == "by a kill":
            broker.kill()
        elif ended == "cleanly":
            broker.stop()
    # Deleting the topic is the way out.
    with Admin(broker.bootstrap) as admin:
        for topic in FATAL:
            admin.delete_topic(topic)
            admin.create_topic(topic, partitions=2)
    append(broker, FATAL, [HARMED, WHOLE], 0, 2)
    for _ in range(2):
        expect(broker, FATAL, records=2 * RECORDS)
        expect(broker, ["spared"])
        broker.stop()
        broker.start()
    broker.stop()


def test_directory_that_is_gone_takes_its_partition_offline_until_it_is_back(
    broker: BrokerProcess,
) -> None:
    broker.start()
    fill(broker, ["t", "u"])
    broker.stop()
    elsewhere = broker.directory / "elsewhere"
    directory_of(broker, "t").rename(elsewhere)
    shutil.rmtree(directory_of(broker, "u"))
    for end in (broker.kill, broker.stop):
        broker.start()
        expect_offline(broker, ["t", "u"])
        assert f"{directory_of(broker, 't')} is missing" in broker.log
        end()
    elsewhere.rename(directory_of(broker, "t"))
    broker.start()
    expect(broker, ["t"])
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic("u")
        admin.create_topic("u", partitions=2)
    append(broker, ["u"], [HARMED, WHOLE], 0, 2)
    for _ in range(2):
        expect(broker, ["u"], records=2 * RECORDS)
        broker.stop()
        broker.start()
    broker.stop()


@pytest.mark.parametrize("segment_bytes", [4_096, 1 << 20], ids=["sealed", "active"])
def test_damage_below_the_recovery_point_is_found_by_the_scrub(
    broker: BrokerProcess, segment_bytes: int
) -> None:
    broker.overrides["log.scrub.bytes.per.second"] = 100_000_000
    broker.overrides["log.segment.bytes"] = segment_bytes
    broker.start()
    fill(broker, ["t"])
    broker.stop()
    segments = logs_in(directory_of(broker, "t"))
    path = segments[len(segments) // 2]
    flip(path, path.stat().st_size // 2)
    broker.start()
    deadline = time.monotonic() + TIMEOUT_S
    while f"t-{HARMED} is offline" not in broker.log:
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.05)
    (line,) = re.findall(rf"ERROR .*t-{HARMED} is offline.*", broker.log)
    assert f"{path} at byte " in line
    expect_offline(broker, ["t"])
    broker.kill()
    broker.start()
    expect_offline(broker, ["t"])
    broker.stop()


# -- damage that costs nothing ---------------------------------------------------------------------


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: max(path.stat().st_size // 2 - 1, 0)])


def flipped(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def noisy(path: Path) -> None:
    path.write_bytes(b"\xff\x00\x13" * 50)


HARMS = [removed, emptied, shortened, flipped, noisy]
DERIVED = {
    "index": "*.index",
    "timeindex": "*.timeindex",
    "snapshot": "*.snapshot",
    "epochs": "leader-epoch-checkpoint",
}


def harm_all(paths: Iterable[Path], harm: Callable[[Path], None]) -> int:
    harmed = [path for path in paths if path.exists() and path.stat().st_size]
    for path in harmed:
        harm(path)
    return len(harmed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("clean", [False, True])
def test_damage_of_derived_files_costs_nothing(broker: BrokerProcess, clean: bool) -> None:
    cases = {
        f"{name}.{harm.__name__}": (pattern, harm)
        for name, pattern in DERIVED.items()
        for harm in HARMS
    }
    broker.start()
    fill(broker, cases)
    if clean:
        broker.stop()
    else:
        broker.kill()
    for topic, (pattern, harm) in cases.items():
        paths = list(directory_of(broker, topic).glob(pattern))
        # A kill leaves snapshots of rolls, a shutdown one more.
        assert harm_all(paths, harm) >= 1, topic
    for _ in range(2):
        broker.start()
        expect(broker, cases)
        broker.kill()
    broker.start()
    append(broker, cases, [HARMED, WHOLE], BATCHES, BATCHES + 1)
    expect(broker, cases, records=(BATCHES + 1) * RECORDS)
    assert "is offline" not in broker.log
    broker.stop()


@pytest.mark.timeout(300)
def test_damage_of_a_log_directory_s_files_costs_nothing(broker: BrokerProcess) -> None:
    broker.start()
    fill(broker, ["t"])
    names = [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "durable-ends",
        "boot-id",
    ]
    batch = BATCHES
    for name in names:
        for harm in HARMS:
            if harm in (removed, shortened):
                broker.stop()
            else:
                broker.kill()
            harm_all([broker.log_dirs[0] / name], harm)
            broker.start()
            expect(broker, ["t"], records=batch * RECORDS)
            append(broker, ["t"], [HARMED, WHOLE], batch, batch + 1)
            batch += 1
    assert "is offline" not in broker.log
    broker.stop()


@pytest.mark.parametrize("harm", [removed, emptied, noisy])
def test_lost_identity_is_written_anew(broker: BrokerProcess, harm: Callable[[Path], None]) -> None:
    broker.start()
    fill(broker, ["t"])
    path = broker.log_dirs[0] / "meta.properties"
    before = path.read_bytes()
    broker.kill()
    harm(path)
    broker.start()
    expect(broker, ["t"])
    assert path.read_bytes() == before
    broker.stop()


# -- past the acknowledged end ---------------------------------------------------------------------


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[: end + 20])


def flip_past(path: Path, end: int) -> None:
    flip(path, end + 90)


def zero_past(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end] + bytes(300))


def noise_past(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end] + b"\x37" * 300)


TORN = {harm.__name__: harm for harm in (cut, flip_past, zero_past, noise_past)}


def test_bad_tail_past_the_acknowledged_end_is_truncated_and_reported(
    broker: BrokerProcess,
) -> None:
    topics = [*TORN, "spared"]
    broker.start()
    fill(broker, topics)
    append_unflushed(broker, topics, BATCHES, BATCHES + 1)
    broker.kill()
    for topic, harm in TORN.items():
        path = logs_in(directory_of(broker, topic))[-1]
        harm(path, batches(path)[-1])
    end = BATCHES * RECORDS
    broker.start()
    expect(broker, TORN)
    expect(broker, ["spared"], [HARMED], end + RECORDS)
    for topic in topics:
        reports = re.findall(
            rf"WARNING .*recovered {topic}-{HARMED}: truncated to offset (\d+): .*", broker.log
        )
        assert reports == ([] if topic == "spared" else [str(end)])
    append(broker, TORN, [HARMED, WHOLE], BATCHES, BATCHES + 1)
    expect(broker, TORN, records=end + RECORDS)
    broker.stop()


def test_hole_past_the_acknowledged_end_is_damage_unless_the_machine_was_restarted(
    broker: BrokerProcess,
) -> None:
    def hole() -> None:
        """Harm the last batch but one: a valid one stands behind it."""
        path = logs_in(directory_of(broker, "t"))[-1]
        assert len(batches(path)) > 2
        flip(path, batches(path)[-2] + 90)

    # Large segments: a roll would flush what must not be.
    broker.overrides["log.segment.bytes"] = 1 << 20
    broker.start()
    fill(broker, ["t"])
    append_unflushed(broker, ["t"], BATCHES, BATCHES + 3)
    broker.kill()
    hole()
    (broker.log_dirs[0] / "boot-id").write_text("11111111-1111-4111-8111-111111111111\n")
    broker.start()
    expect(broker, ["t"], [HARMED], (BATCHES + 1) * RECORDS)
    (report,) = re.findall(rf"recovered t-{HARMED}: (truncated .*)", broker.log)
    assert "after a restart of the machine" in report
    assert "including 1 valid batch," in report
    # The same again, under one boot id.
    append_unflushed(broker, ["t"], BATCHES + 1, BATCHES + 4)
    broker.kill()
    hole()
    broker.start()
    expect_offline(broker, ["t"])
    broker.kill()
    # And a restart of the machine afterwards is no way to lose it in silence.
    (broker.log_dirs[0] / "boot-id").write_text("11111111-1111-4111-8111-111111111111\n")
    broker.start()
    expect_offline(broker, ["t"])
    broker.stop()
