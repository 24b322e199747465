"""A log directory as Kafka leaves it, made by hand: committed and aborted transactions."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from plog._native.records import build_batch, control_batch
from tests.compat.clients import Confluent, Sent
from tests.planes import Plane
from tests.servers import BrokerProcess

TOPIC = "tx"
STAMP = 1_700_000_000_000
COMMITTED = [b"0", b"1", b"3", b"7", b"9"]
ALL = [b"0", b"1", b"3", b"4", b"5", b"7", b"9", b"11"]


def data(offset: int, producer_id: int, sequence: int, *values: bytes) -> bytes:
    return build_batch(
        [(STAMP, None, value, ()) for value in values],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def marker(offset: int, producer_id: int, *, abort: bool) -> bytes:
    return bytes(
        control_batch(
            abort=abort,
            offset=offset,
            timestamp=STAMP,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
        )
    )


def aborted(producer_id: int, first: int, last: int, last_stable: int) -> bytes:
    """Return an entry of a .txnindex as Kafka's AbortedTxn has it: version 0, then four longs."""
    return struct.pack(">hqqqq", 0, producer_id, first, last, last_stable)


def write_partition(directory: Path) -> None:
    """Write three segments.

    Committed by producer 1 (0-2), begun by 2 beside one more of 1 that commits (3-6), aborted in
    the second segment (8), committed by 1 (9-10), aborted at once in the third (11-12).
    """
    segments = {
        0: (
            data(0, 1, 0, b"0", b"1") + marker(2, 1, abort=False)
            + data(3, 1, 2, b"3") + data(4, 2, 0, b"4", b"5") + marker(6, 1, abort=False),
            b"",
        ),
        7: (
            data(7, 1, 3, b"7") + marker(8, 2, abort=True)
            + data(9, 1, 4, b"9") + marker(10, 1, abort=False),
            # Producer 1 had a transaction open at offset 7 when that of 2 ended.
            aborted(2, 4, 8, 7),
        ),
        11: (data(11, 2, 2, b"11") + marker(12, 2, abort=True), aborted(2, 11, 12, 13)),
    }  # fmt: skip
    directory.mkdir(parents=True)
    for base, (log, entries) in segments.items():
        (directory / f"{base:020d}.log").write_bytes(log)
        for index in ("index", "timeindex"):
            (directory / f"{base:020d}.{index}").write_bytes(b"")
        if entries:
            (directory / f"{base:020d}.txnindex").write_bytes(entries)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")


def write_log_dir(path: Path) -> None:
    write_partition(path / f"{TOPIC}-0")
    cluster = uuid.uuid4().hex[:22]
    (path / "meta.properties").write_text(f"version=0\nbroker.id=0\ncluster.id={cluster}\n")
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (path / checkpoint).write_text(f"0\n1\n{TOPIC} 0 13\n")


@pytest.fixture(params=["clean", "killed"])
def moved(plane: Plane, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, log_dirs=1)
    write_log_dir(broker.log_dirs[0])
    if request.param == "clean":
        (broker.log_dirs[0] / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    with broker:
        yield broker


def read(broker: BrokerProcess, isolation: str, offset: int = OFFSET_BEGINNING) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    found = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, found
            if message.error() is None:
                found.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(message.error())
    finally:
        consumer.close()


def test_aborted_records_are_for_uncommitted_readers_alone(moved: BrokerProcess) -> None:
    assert read(moved, "read_uncommitted") == ALL
    assert read(moved, "read_committed") == COMMITTED
    # From within the aborted transaction, and behind it.
    assert read(moved, "read_committed", 5) == COMMITTED[3:]
    assert read(moved, "read_committed", 9) == COMMITTED[4:]


def test_aborted_records_stay_hidden_when_the_log_grows_and_over_a_restart(
    moved: BrokerProcess,
) -> None:
    Confluent().produce(moved.bootstrap, TOPIC, [Sent(None, b"new")], idempotent=False)
    assert read(moved, "read_committed") == [*COMMITTED, b"new"]
    moved.stop()
    moved.start()
    assert read(moved, "read_committed") == [*COMMITTED, b"new"]
