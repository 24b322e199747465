"""What Java's clients send for transactions and in groups is answered by the fast path, nearly all.

The load is that of `bin/bench-coordinators`: a producer with transactions of 100 ms, as fast as it
goes, and a group of two that reads what is committed. Records have a request each, and a megabyte
of them has to go out before a transaction ends, so that it has many requests on any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from plog.client.producer import Producer
from tests.compat.clients import PATIENCE_S
from tests.compat.programs import JAVA, Java
from tests.compat.workers import Job, Worker, numbered
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, speak
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

sys.path.insert(0, str(ROOT / "asv_bench"))

from bench_answered import answered
from bench_clients import Client

PARTITIONS = MEMBERS = 2
SECONDS, WARMUP_S = 4, 2
RECORD_BYTES, BUFFER_BYTES = 1024, 1 << 20
TRANSACTION_MS = 100
GOAL = 0.99
COPIED, WARM, BATCH = 12_000, 2_000, 20


@contextmanager
def client(java: Java, errors: Path) -> Iterator[Client]:
    running = Client(java.load_command(java.built()), errors)
    try:
        yield running
    finally:
        running.end()


def settings_with(page: int) -> dict[str, object]:
    """Return a broker's settings, with the port of its metrics page."""
    return {
        "metrics.listener": f"127.0.0.1:{page}",
        "flush.before.ack": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }


def consuming(common: dict[str, object]) -> dict[str, object]:
    """Return what tells a client to read, in a group, what is committed."""
    return {
        **common,
        "members": MEMBERS,
        "consumer.group.id": "readers",
        "consumer.isolation.level": "read_committed",
        "consumer.auto.offset.reset": "earliest",
    }


@pytest.mark.parametrize("java", JAVA, ids=lambda one: one.name)
def test_java_in_transactions_and_groups_hardly_meets_python(
    java: Java, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    page = free_port()
    with (
        BrokerProcess(tmp_path, overrides=settings_with(page)) as broker,
        client(java, tmp_path / "consumer.log") as consumer,
        client(java, tmp_path / "producer.log") as producer,
    ):
        with closing(speak(broker.port)) as wire:
            create_topic(wire, "t", PARTITIONS)
        common = {"bootstrap": broker.bootstrap, "topic": "t"}
        consumer.begin("consume", consuming(common))
        producer.begin(
            "produce",
            {
                **common,
                "record.bytes": RECORD_BYTES,
                "transaction.ms": TRANSACTION_MS,
                "warmup": WARMUP_S,
                "seconds": SECONDS,
                "most.records": 10**9,
                "producer.acks": "all",
                "producer.transactional.id": "x",
                "producer.batch.size": RECORD_BYTES,
                "producer.buffer.memory": BUFFER_BYTES,
                "producer.linger.ms": 0,
            },
        )
        before = answered(page)
        producer.go()
        done = producer.result(SECONDS)
        found = answered(page).since(before)
        producer.closed()
        consumer.go()
        read = consumer.result()
        consumer.closed()
    assert read["records"] > 0
    told = f"{dict(found.by_path)}, left to Python: {dict(found.handed_over)}, {done}"
    record_property("figures", f"{java.name}: {told}")
    # What Python answers is each transaction's first write to a partition, whatever the rate.
    first_writes = PARTITIONS * (done["transactions"] + 1)
    assert found.by_path["Produce", "python"] <= first_writes + PARTITIONS, told
    for api in ("Produce", "Fetch"):
        share = found.fast_share(api)
        assert share is not None
        assert share >= GOAL, (api, share, told)


def written(bootstrap: str, topic: str, count: int) -> None:
    """Write so many records, dealt out to the partitions in turn."""
    with Producer(bootstrap) as producer:
        for partition, numbers in enumerate(numbered(PARTITIONS, count)):
            for number in numbers:
                producer.send(topic, b"%d" % number, partition=partition)
        producer.flush(PATIENCE_S)


@pytest.mark.parametrize("abort_every", [0, 10], ids=["commits", "aborts"])
@pytest.mark.parametrize("java", JAVA, ids=lambda one: one.name)
def test_java_that_copies_in_small_transactions(
    java: Java,
    abort_every: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    page = free_port()
    with BrokerProcess(tmp_path, overrides=settings_with(page)) as broker:
        with closing(speak(broker.port)) as wire:
            create_topic(wire, "from", PARTITIONS)
            create_topic(wire, "to", PARTITIONS)
        written(broker.bootstrap, "from", COPIED)
        job = Job(broker.bootstrap, "g", "from", "to", batch=BATCH, abort_every=abort_every)
        with client(java, tmp_path / "consumer.log") as consumer:
            consumer.begin("consume", consuming({"bootstrap": broker.bootstrap, "topic": "to"}))
            worker = Worker(job, java, "x", tmp_path / "worker.log")
            try:
                until(lambda: worker.committed >= WARM, "warm", PATIENCE_S)
                before = answered(page)
                until(lambda: worker.committed >= COPIED, "copied", PATIENCE_S)
                found = answered(page).since(before)
                worker.leave()
            finally:
                worker.kill()
            consumer.go()
            read = consumer.result()
            consumer.closed()
    told = f"{dict(found.by_path)}, left to Python: {dict(found.handed_over)}"
    record_property("figures", f"{java.name} abort_every={abort_every}: {told} {read}")
