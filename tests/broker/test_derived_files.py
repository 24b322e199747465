"""Derived files that lose bytes while the broker is stopped: clients see what they saw before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.client.admin import SET, TOPIC, Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.storage.segment_files import LOG, TIME_INDEX, TRANSACTION_INDEX
from plog.storage.segment_scan import walk_headers
from plog.storage.transaction_index import ENTRY_BYTES
from plog.types import TopicPartition
from tests.planes import Plane
from tests.servers import BrokerProcess

TP = TopicPartition("t", 0)
TIMEOUT_S = 30
DAY_MS, MINUTE_MS = 86_400_000, 60_000


@pytest.fixture
def broker(plane: Plane, tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "log.index.interval.bytes": 100,
        "log.retention.check.interval.ms": 200,
        "log.initial.task.delay.ms": 200,
        "log.scrub.bytes.per.second": 100,
        "transaction.state.log.num.partitions": 1,
    }
    made = BrokerProcess(tmp_path, overrides=settings).start()
    yield made
    made.kill()


def create_topic(broker: BrokerProcess, **configs: str) -> None:
    with Admin(broker.bootstrap) as admin:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(TP.topic, partitions=1, configs=named)


def files(broker: BrokerProcess, kind: str) -> list[Path]:
    return sorted((broker.log_dirs[0] / str(TP)).glob("*" + kind))


def read_committed(broker: BrokerProcess) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([TP])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([TP])[TP]
        deadline = time.monotonic() + TIMEOUT_S
        while consumer.position(TP) < end:
            assert time.monotonic() < deadline
            values += [record.value for record in consumer.poll(500)]
    return values


@pytest.mark.parametrize(
    "damage",
    [
        os.remove,
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, os.path.getsize(path) - ENTRY_BYTES),
    ],
    ids=["deleted", "emptied", "cut"],
)
def test_aborted_records_stay_aborted_without_their_index(
    broker: BrokerProcess, damage: Callable[[Path], None]
) -> None:
    create_topic(broker)
    with Producer(broker.bootstrap, transactional_id="t") as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(TP.topic, b"%d" % number, partition=0)
            producer.flush()
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert read_committed(broker) == [b"1", b"3"]
    broker.stop()
    damage(files(broker, TRANSACTION_INDEX)[0])
    broker.start()
    assert read_committed(broker) == [b"1", b"3"]
    assert "rebuilding the transaction indexes" in broker.log


def test_lookups_by_time_and_retention_do_without_a_time_index(broker: BrokerProcess) -> None:
    create_topic(broker, segment_bytes="3000", retention_ms="-1")
    now = int(time.time() * 1000)
    young = [now - MINUTE_MS + n for n in range(0, 100, 10)]
    with Producer(broker.bootstrap, linger_ms=0) as producer:
        for n in range(100):
            at = now - MINUTE_MS + n if n % 10 == 0 else now - DAY_MS
            sent = producer.send(TP.topic, b"x" * 100, partition=0, timestamp_ms=at)
            sent.result(TIMEOUT_S)
    before = lookups(broker, young)
    assert before == list(range(0, 100, 10))
    broker.stop()
    for path in files(broker, TIME_INDEX)[:-1]:
        os.truncate(path, 0)
    broker.start()
    assert lookups(broker, young) == before
    with Admin(broker.bootstrap) as admin:
        admin.alter_configs(TOPIC, TP.topic, [("retention.ms", SET, "3600000")])
    time.sleep(1.5)  # several rounds of retention
    with Consumer(broker.bootstrap) as consumer:
        assert consumer.offsets_for_times({TP: -2})[TP].offset == 0


def lookups(broker: BrokerProcess, times: list[int]) -> list[int]:
    with Consumer(broker.bootstrap) as consumer:
        return [consumer.offsets_for_times({TP: at})[TP].offset for at in times]


@pytest.mark.parametrize("bit", [49, 40, 12])
def test_flipped_base_offset_is_refused(broker: BrokerProcess, bit: int) -> None:
    create_topic(broker, segment_bytes="1500")
    with Producer(broker.bootstrap, linger_ms=0) as producer:
        for _ in range(60):
            producer.send(TP.topic, b"value" * 10, partition=0).result(TIMEOUT_S)
    broker.stop()
    path = files(broker, LOG)[0]
    data = bytearray(path.read_bytes())
    headers = list(walk_headers(lambda at, size: bytes(data[at : at + size]), 0, len(data)))
    position, header = headers[5]
    data[position : position + 8] = (header.base_offset ^ 1 << bit).to_bytes(8, "big")
    path.write_bytes(data)
    broker.start()
    offsets: list[int] = []
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        consumer.seek_to_beginning()
        deadline = time.monotonic() + TIMEOUT_S
        while "t-0 is offline" not in broker.log:
            assert time.monotonic() < deadline
            offsets += [record.offset for record in consumer.poll(200)]
    assert all(offset < 5 for offset in offsets)
