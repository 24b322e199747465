"""Every kind of batch is the same on all replicas, in the files, and as Kafka's tool reads them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog._native.batch import BatchHeader, scan
from plog.client.admin import SET, TOPIC
from plog.client.producer import Producer
from plog.client.reassignments import ReassignmentAdmin
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.live_kafka import KAFKA_3_9, ZooKeeper
from tests.waiting import until

from .live import (
    EVERY,
    create,
    directory_of,
    leader_of,
    log_of,
    running,
    until_equal,
    until_in_sync,
)

LARGE_BYTES = 900_000
SETTINGS: dict[str, object] = {
    "replica_lag_time_max_ms": 4_000,
    "offsets_topic_replication_factor": 3,
    "transaction_state_log_replication_factor": 3,
    "transaction_state_log_num_partitions": 3,
    "auto_leader_rebalance_enable": False,
    "log_cleaner_backoff_ms": 50,
}
COMPACTED = "compacted"
COMPACTION = {
    "cleanup_policy": "compact",
    "segment_bytes": "2000",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "100",
}


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    with Brokers(tmp_path, zookeeper.bootstrap, **SETTINGS) as started:
        yield started


def write(brokers: Brokers, topic: str, **options: object) -> None:
    """Write some batches, with tombstones and headers, as a producer with these options does."""
    with Producer(running(brokers), linger_ms=50, **options) as producer:
        for number in range(40):
            producer.send(
                topic,
                None if number % 5 == 0 else b"value %d " % number * 10,
                key=b"key %d" % (number % 7),
                headers=[("header", b"%d" % number)],
                partition=0,
            )
            if number % 10 == 9:
                producer.flush()


def write_large(brokers: Brokers, topic: str) -> None:
    """Write batches that are nearly as large as they may be, of bytes that cannot be compressed."""
    with Producer(running(brokers), compression_type="zstd") as producer:
        for seed in range(3):
            producer.send(topic, random.Random(seed).randbytes(LARGE_BYTES), partition=0)
            producer.flush()


def write_transactions(brokers: Brokers, topic: str) -> None:
    """Write transactions, some of which are aborted."""
    with Producer(running(brokers), transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for value in range(3):
                producer.send(topic, b"%d" % value, partition=0)
            producer.flush()
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


Write = Callable[[Brokers, str], None]
KINDS: dict[str, tuple[Write, Callable[[BatchHeader], bool]]] = {
    "plain": (
        lambda brokers, topic: write(brokers, topic, enable_idempotence=False),
        lambda one: one.producer_id < 0,
    ),
    "idempotent": (write, lambda one: one.producer_id >= 0 and not one.is_transactional),
    **{
        codec: (
            lambda brokers, topic, codec=codec: write(brokers, topic, compression_type=codec),
            lambda one, number=number: one.codec == number,
        )
        for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd"), 1)
    },
    "large": (write_large, lambda one: one.size_bytes > LARGE_BYTES),
    "transactional": (write_transactions, lambda one: one.is_control),
    COMPACTED: (write, lambda one: one.last_offset >= one.base_offset + one.records_count),
}
"""Topics: the function that writes each, and one that holds for some of its batches."""


def headers_of(brokers: Brokers, topic: str) -> list[BatchHeader]:
    """Return the batches of the first replica that has any."""
    return list(scan(log_of(brokers, 0, topic)))


def write_and_compact(brokers: Brokers) -> None:
    """Write to one replica until it has gaps; then have others copy it, and compact no more."""
    create(brokers, COMPACTED, replicas=(0,), **COMPACTION)
    has_gap = KINDS[COMPACTED][1]

    def is_compacted() -> bool:
        write(brokers, COMPACTED)
        return any(map(has_gap, headers_of(brokers, COMPACTED)))

    until(is_compacted, "compacted")
    with ReassignmentAdmin(brokers.bootstrap) as admin:
        admin.alter_configs(TOPIC, COMPACTED, [("cleanup.policy", SET, "delete")])
        brokers[0].stop()  # a cleaner may be at work
        brokers.start()
        until_in_sync(brokers, COMPACTED, [0])
        admin.reassign({TopicPartition(COMPACTED, 0): EVERY})
        until(lambda: admin.moves() == {}, "the move has ended")
    until_in_sync(brokers, COMPACTED, EVERY)


def dumped(tools: Tools, brokers: Brokers, broker_id: int) -> dict[str, str]:
    """Return what Kafka's tool prints of each segment on a broker, by topic and name.

    Compaction removes segments from one replica alone. The rest of that topic is one text.
    """
    files = [
        file for topic in KINDS for file in directory_of(brokers, broker_id, topic).glob("*.log")
    ]
    said = tools.run(
        "DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, sorted(files)))
    )
    _, *parts = re.split(r"^Dumping (.*)$\n", said, flags=re.MULTILINE)
    found: dict[str, str] = {COMPACTED: ""}
    for file, text in zip(parts[::2], parts[1::2], strict=True):
        topic, segment = Path(file).parts[-2:]
        if topic == f"{COMPACTED}-0":
            found[COMPACTED] += re.sub(r"^Log starting.*\n| position: \d+", "", text, flags=re.M)
        else:
            found[f"{topic}/{segment}"] = text
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "tools",
    [pytest.param(one, marks=[] if one is KAFKA_3_9 else pytest.mark.long) for one in TOOLS],
    ids=repr,
)
def test_every_kind_of_batch_is_the_same_on_all_replicas(tools: Tools, brokers: Brokers) -> None:
    write_and_compact(brokers)
    for topic in KINDS:
        if topic != COMPACTED:
            create(brokers, topic, segment_bytes="20000" if topic != "large" else "2000000")
    for leader in (0, 1):
        for topic, (write_kind, _) in KINDS.items():
            assert leader_of(brokers, topic) == leader
            write_kind(brokers, topic)
        brokers[leader].stop()
        brokers[leader].start()
        for topic in KINDS:
            until_in_sync(brokers, topic, EVERY)
    for topic, (_, is_kind) in KINDS.items():
        until_equal(brokers, topic)
        batches = headers_of(brokers, topic)
        assert any(map(is_kind, batches)), topic
        assert len({one.partition_leader_epoch for one in batches}) >= 2, topic
    first, *others = (dumped(tools, brokers, one) for one in EVERY)
    assert len(first) > len(KINDS)
    assert first[COMPACTED]
    for one in others:
        assert one == first
