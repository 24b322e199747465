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

from tests.compat.programs import JAVA, Java
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, speak
from tests.servers import BrokerProcess, free_port

sys.path.insert(0, str(ROOT / "asv_bench"))

from bench_answered import answered
from bench_clients import Client

PARTITIONS = MEMBERS = 2
SECONDS, WARMUP_S = 4, 2
RECORD_BYTES, BUFFER_BYTES = 1024, 1 << 20
TRANSACTION_MS = 100
GOAL = 0.99


@contextmanager
def client(java: Java, errors: Path) -> Iterator[Client]:
    running = Client(java.load_command(java.built()), errors)
    try:
        yield running
    finally:
        running.end()


@pytest.mark.parametrize("java", JAVA, ids=lambda one: one.name)
def test_java_in_transactions_and_groups_hardly_meets_python(
    java: Java, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    page = free_port()
    settings: dict[str, object] = {
        "metrics.listener": f"127.0.0.1:{page}",
        "flush.before.ack": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with (
        BrokerProcess(tmp_path, overrides=settings) as broker,
        client(java, tmp_path / "consumer.log") as consumer,
        client(java, tmp_path / "producer.log") as producer,
    ):
        with closing(speak(broker.port)) as wire:
            create_topic(wire, "t", PARTITIONS)
        common = {"bootstrap": broker.bootstrap, "topic": "t"}
        consumer.begin(
            "consume",
            {
                **common,
                "members": MEMBERS,
                "consumer.group.id": "g",
                "consumer.isolation.level": "read_committed",
                "consumer.auto.offset.reset": "earliest",
            },
        )
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
