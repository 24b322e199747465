"""What Java's clients send for transactions and in groups is answered by the fast path, nearly all.

The load is that of `bin/bench-coordinators`: a producer with transactions of 100 ms, as fast as it
goes, and a group of two that reads what is committed. Records have a request each, and a megabyte
of them has to go out before a transaction ends, so that it has many requests on any machine.
Then an application copies in small transactions (`asv_bench/bench_copying.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.compat.programs import JAVA, SHORT_RUN, Java
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, speak
from tests.servers import BrokerProcess, free_port

sys.path.insert(0, str(ROOT / "asv_bench"))

from bench_answered import answered
from bench_clients import Client
from bench_coordinator_rows import COPYING_LOADS
from bench_copying import begins_by_writing, copy

PARTITIONS = MEMBERS = 2
SECONDS, WARMUP_S = 2, 1
RECORD_BYTES, BUFFER_BYTES = 1024, 1 << 20
TRANSACTION_MS = 100
GOAL = 0.99
COPIED = {"copying/small": 6_000, "copying/many-writes": 20_000, "copying/aborts": 3_000}
"""Records, of each load."""
OLD, NEW = JAVA
IN_EVERY_RUN = {(OLD, "copying/aborts"), (NEW, "copying/aborts"), (NEW, "copying/many-writes")}
"""A load without aborts asks for nothing that the one with aborts does not. The new client begins
by writing, so its bound says something only of transactions with many writes."""
LOADED = [pytest.param(OLD, marks=pytest.mark.long), NEW]
"""What the old one asks for is in the load with aborts."""
COPYING = [
    pytest.param(
        java,
        load,
        marks=[] if (java, load) in IN_EVERY_RUN else [pytest.mark.long],
        id=f"{java.name}-{load}",
    )
    for java in JAVA
    for load in COPYING_LOADS
]


@contextmanager
def client(java: Java, errors: Path) -> Iterator[Client]:
    running = Client(java.load_command(java.built(), SHORT_RUN), errors)
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


@pytest.mark.parametrize("java", LOADED, ids=lambda one: one.name)
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
    told = f"{dict(found.by_path)}, left to Python: {dict(found.callouts)}, {done}"
    record_property("figures", f"{java.name}: {told}")
    # What Python answers is each transaction's first write to a partition, whatever the rate.
    first_writes = PARTITIONS * (done["transactions"] + 1)
    assert found.by_path["Produce", "python"] <= first_writes + PARTITIONS, told
    for api in ("Produce", "Fetch"):
        share = found.fast_share(api)
        assert share is not None
        assert share >= GOAL, (api, share, told)


@pytest.mark.parametrize(("java", "load"), COPYING)
def test_of_an_application_that_copies_python_sees_what_it_must(
    java: Java, load: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """It consumes, produces what it has read, and commits both in one small transaction.

    By version 1 a partition joins before it is written to, and no write is Python's. By version 2
    it joins by its first write, which Python stores before the write is appended.
    """
    page = free_port()
    with BrokerProcess(tmp_path, overrides=settings_with(page)) as broker:
        done = copy(
            tmp_path,
            broker.port,
            page,
            broker.pid,
            java,
            COPYING_LOADS[load],
            COPIED[load],
            SHORT_RUN,
        )
    found = done.counted
    produced, fetched = found.fast_share("Produce"), found.fast_share("Fetch")
    assert produced is not None
    assert fetched is not None
    told = (
        f"{java.name}, {load}: {done.transactions} transactions, {done.produces} Produces, fast"
        f" {produced:.2%}, Fetches fast {fetched:.2%}, left to Python {dict(found.callouts)},"
        f" {dict(found.by_path)}"
    )
    record_property("figures", told)
    assert done.records_read > 0
    by_python = found.by_path["Produce", "python"]
    if begins_by_writing(java):
        # Each has the first write of a transaction to a partition; no other is left.
        assert 0 < by_python <= PARTITIONS * (done.transactions + 1), told
        assert found.callouts["unusual append"] <= by_python + 1, told
    else:
        assert produced >= GOAL, told
        assert found.by_path["AddPartitionsToTxn", "python"] > 0, told
    assert fetched >= GOAL, told
