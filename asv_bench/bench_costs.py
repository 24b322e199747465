"""What idempotence and transactions cost a producer: one measurement of one way to produce.

Owns the ways, by the names of Java's settings, and a broker for each measurement, or a topic of the
Kafka that all of them share. Rates count what is acknowledged, or committed, by the end: the last
records are waited for.
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
    KAFKA,
    TRANSACTIONS,
    Row,
    Turn,
)
from bench_kafka import KINDS, Kafka, Kind
from bench_machine import Watch
from bench_measure import MOST_MB, start_kafka, touch_pages
from bench_servers import ProcessServer, free_port, running

from plog.errors import PlogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from plog.ops.load import Figures

KAFKA_KIND = KINDS["4.1-1g"]
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


class SharedKafka:
    """One Kafka for all measurements, which starts with the first that wants it.

    A JVM takes long to be warm. Its files go with the directory of the run.
    """

    def __init__(self, where: Path) -> None:
        self._where = where
        self._kafka: Kafka | None = None

    def started(self, *, is_warm: bool) -> Kafka:
        """Return it; where it is to be warm, after some load. Raises LoadError."""
        if self._kafka is None:
            directory = self._where / "kafka"
            directory.mkdir()
            start = start_kafka if is_warm else _start_cold
            self._kafka = start(self._where, directory, KAFKA_KIND)
        return self._kafka

    def __enter__(self) -> SharedKafka:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kafka is not None:
            self._kafka.kill()


def _start_cold(_where: Path, directory: Path, kind: Kind) -> Kafka:
    return Kafka(directory, kind)


class Broker(NamedTuple):
    """A broker with its topic and the port of its metrics page, which plog alone has."""

    server: ProcessServer
    topic: str
    page: int | None = None


@contextmanager
def broker_for(turn: Turn, row: Row) -> Iterator[Broker]:
    """Run a broker, or share the Kafka; what fails ends the clients too."""
    with _topic_of_kafka(turn) if row.server == KAFKA else _plog(turn, row) as broker:
        try:
            yield broker
        except PlogError:
            turn.clients.forget()
            raise


@contextmanager
def _plog(turn: Turn, row: Row) -> Iterator[Broker]:
    page = free_port()
    settings: dict[str, object] = {"metrics_listener": f"127.0.0.1:{page}"}
    if not row.durable:
        settings["flush_before_ack"] = "false"
    with running(turn.where, **settings) as server:
        yield Broker(server, server.create_topic(PARTITIONS).name, page)


@contextmanager
def _topic_of_kafka(turn: Turn) -> Iterator[Broker]:
    kafka = turn.kafka.started(is_warm=turn.extent.warm_up_rounds > 0)
    yield Broker(kafka, kafka.create_topic(PARTITIONS).name)
    kafka.delete_topic()


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
    before = answered(broker.page) if broker.page else None
    watch = Watch(broker.server.pid, pids)
    client.go()
    told = client.result(seconds)
    taken = watch.figures()
    planes: Figures = {}
    if broker.page and before:
        counted = answered(broker.page).since(before)
        planes = {
            **shares(counted),
            "requests": {f"{api}, {path}": n for (api, path), n in sorted(counted.by_path.items())},
            "callouts": dict(counted.callouts),
        }
    client.closed()
    records, seconds, transactions = (told[key] for key in ("records", "seconds", "transactions"))
    volume = records * RECORD_BYTES
    return {
        **told,
        **taken,
        **planes,
        "records_per_s": records / seconds,
        "mb_per_s": volume / 1e6 / seconds,
        "cpu_s_per_gb": 1e9 * taken["server_cpu_s"] / volume,
        "transactions_per_s": transactions / seconds,
        "committing_ms": 1000 * told["committing_s"] / transactions if transactions else None,
    }
