"""What idempotence and transactions cost a producer: one measurement of one way to produce.

Owns the ways, by the names of Java's settings, and a broker for each measurement. Rates count what
is acknowledged, or committed, by the end: the last records are waited for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bench_answered import answered, shares
from bench_coordinator_rows import (
    ACKS_1,
    ACKS_ALL,
    IDEMPOTENT,
    IN_ORDER,
    TRANSACTIONS,
    Row,
    Turn,
)
from bench_machine import Watch
from bench_measure import MOST_MB, touch_pages
from bench_servers import Plog, free_port, running

from plog.errors import PlogError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plog.ops.load import Figures

RECORD_BYTES = 1024
PARTITIONS = 6
TRANSACTION_MS = 100
MOST_MB_PER_S = 700
"""Of pages that are touched before a measurement; more is not written by one client."""
GROUP_MEMBERS = 2
IN_FLIGHT = "max.in.flight.requests.per.connection"
WAYS: dict[str, dict[str, object]] = {
    ACKS_1: {"acks": "1", "enable.idempotence": "false", IN_FLIGHT: 5},
    IN_ORDER: {"acks": "all", "enable.idempotence": "false", IN_FLIGHT: 1},
    ACKS_ALL: {"acks": "all", "enable.idempotence": "false", IN_FLIGHT: 5},
    IDEMPOTENT: {"acks": "all", "enable.idempotence": "true", IN_FLIGHT: 5},
    TRANSACTIONS: {
        "acks": "all",
        "enable.idempotence": "true",
        IN_FLIGHT: 5,
        "transactional.id": "bench",
    },
}


class Broker(NamedTuple):
    """A broker with its topic and the port of its metrics page."""

    server: Plog
    topic: str
    page: int


@contextmanager
def broker_for(turn: Turn, row: Row) -> Iterator[Broker]:
    """Run a broker with a metrics page; what fails ends the clients too."""
    page = free_port()
    settings: dict[str, object] = {"metrics_listener": f"127.0.0.1:{page}"}
    if not row.durable:
        settings["flush_before_ack"] = "false"
    with running(turn.where, **settings) as server:
        try:
            yield Broker(server, server.create_topic(PARTITIONS).name, page)
        except PlogError:
            turn.clients.forget()
            raise


def options_for(broker: Broker, row: Row, way: str, turn: Turn) -> dict[str, object]:
    """Return what a client is told to produce."""
    settings = dict(WAYS[way])
    if row.client == "plog":
        del settings[IN_FLIGHT]  # it has one in flight for a partition, unless it is idempotent
    return {
        "bootstrap": f"127.0.0.1:{broker.server.port}",
        "topic": broker.topic,
        "record.bytes": RECORD_BYTES,
        "transaction.ms": TRANSACTION_MS if way == TRANSACTIONS else 0,
        "warmup": turn.extent.warmup_s,
        "seconds": turn.extent.seconds,
        "most.records": MOST_MB * 1_000_000 // RECORD_BYTES,
        **{f"producer.{key}": value for key, value in settings.items()},
    }


def measure_cost(turn: Turn, row: Row, way: str) -> Figures:
    """Produce in one way; return rates and what they cost the broker."""
    client = turn.clients.of(row.client)
    with broker_for(turn, row) as broker:
        return _produce(turn, row, way, broker, [client.pid])


def measure_fast_share(turn: Turn, row: Row, _contestant: str) -> Figures:
    """Produce in transactions while a group reads what is committed."""
    consumer = turn.clients.of(row.client, "consumer")
    producer = turn.clients.of(row.client)
    with broker_for(turn, row) as broker:
        consumer.begin(
            "consume",
            {
                "bootstrap": f"127.0.0.1:{broker.server.port}",
                "topic": broker.topic,
                "members": GROUP_MEMBERS,
                "consumer.group.id": "bench",
                "consumer.isolation.level": "read_committed",
                "consumer.auto.offset.reset": "earliest",
            },
        )
        figures = _produce(turn, row, TRANSACTIONS, broker, [producer.pid, consumer.pid])
        consumer.go()
        figures["records_read"] = consumer.result()["records"]
        consumer.closed()
        return figures


def _produce(turn: Turn, row: Row, way: str, broker: Broker, pids: list[int]) -> Figures:
    client, seconds = turn.clients.of(row.client), turn.extent.seconds
    touch_pages(turn.where, int(min(seconds * MOST_MB_PER_S, MOST_MB) * 1_000_000))
    client.begin("produce", options_for(broker, row, way, turn))
    before = answered(broker.page)
    watch = Watch(broker.server.pid, pids)
    client.go()
    told = client.result(seconds)
    taken = watch.figures()
    counted = answered(broker.page).since(before)
    client.closed()
    records, seconds, transactions = (told[key] for key in ("records", "seconds", "transactions"))
    volume = records * RECORD_BYTES
    return {
        **told,
        **taken,
        **shares(counted),
        "records_per_s": records / seconds,
        "mb_per_s": volume / 1e6 / seconds,
        "cpu_s_per_gb": 1e9 * taken["server_cpu_s"] / volume,
        "transactions_per_s": transactions / seconds,
        "committing_ms": 1000 * told["committing_s"] / transactions if transactions else None,
        "requests": {f"{api}, {path}": n for (api, path), n in sorted(counted.by_path.items())},
        "handed_over": dict(counted.handed_over),
    }
