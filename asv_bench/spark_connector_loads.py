"""Topics, queries and streams of asv_bench/spark_connector.py, and what is counted of them.

Owns no judgement. A query is the same for either format, and what comes out is looked at.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import bench_load
import psutil
import pyarrow as pa
from bench_answered import answered
from bench_machine import busy_cpu_s, cpu_s_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spark_connector_rows import (
    AGGREGATE,
    BATCH_ROWS,
    BATCHES,
    COUNT,
    JSON,
    KEY_BYTES,
    NOOP,
    PARTITIONS,
    SINK,
    Row,
    Way,
)

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.errors import PlogError
from plog.ops.load import Figures, LoadError
from plog.spark.sink_rows import rows_of
from tests.servers import BrokerProcess

BLOCK_ROWS = 10_000
"""Of different records; a topic has them again and again."""
PAGES = 50
FIRST_BATCHES = 5
"""Of a stream: they pay for its start."""
STEPS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Of a micro-batch, in Spark's words."""
EVENT = "user bigint, page string, ms int"
_numbers = itertools.count()


# -- topics ----------------------------------------------------------------------------------------


def values(value_bytes: int, count: int) -> list[bytes]:
    """Return JSON objects of one length."""
    found = []
    for n in range(count):
        text = f'{{"user":{100_000 + n},"page":"/{n % PAGES}","ms":{1000 + n % 9000},"pad":"'
        found.append(text.encode().ljust(value_bytes - 2, b"x") + b'"}')
    return found


def fill(bootstrap: str, row: Row, count: int) -> None:
    """Make the topic that a row reads, in batches as producers send them by default."""
    with Admin(bootstrap) as admin:
        admin.create_topic(row.topic, partitions=row.partitions, configs={"retention.ms": "-1"})
    block = min(BLOCK_ROWS, count)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"%0*d" % (KEY_BYTES, n) for n in range(block)], pa.binary()),
            "value": pa.array(values(row.value_bytes, block), pa.binary()),
            "partition": pa.array([n % row.partitions for n in range(block)], pa.int32()),
        }
    )
    with Producer(bootstrap, acks="1", enable_idempotence=False, linger_ms=1000) as producer:
        for done in range(0, count, block):
            producer.send_rows(row.topic, rows_of(batch.slice(0, count - done)))
        producer.flush()


# -- the clock -------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A broker, and the port of its metrics page."""

    process: BrokerProcess
    page: int

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap


class SparkTime:
    """CPU time of this process and of all that it has started: the JVM, and Python's workers.

    What has ended keeps what it had taken when it was last looked at. Its parent does not always
    know: workers are ended after a minute of idleness, and nobody waits for them.

    Args:
        others: processes that this one has started, too, and are no part of Spark.
    """

    def __init__(self, others: Iterable[int]) -> None:
        self._others = frozenset(others)
        self._seen: dict[psutil.Process, float] = {}

    def read(self) -> float:
        for process in psutil.Process().children(recursive=True):
            if process.pid not in self._others:
                with suppress(OSError):  # it has just ended
                    self._seen[process] = cpu_s_of(process.pid)
        return time.process_time() + sum(self._seen.values())


class Clock:
    """Time from now on, and the CPU time of Spark, of the broker, and of everybody else."""

    def __init__(self, broker: Asked, spark: SparkTime) -> None:
        self._broker = broker.process.pid
        self._spark = spark
        self._page = broker.page
        self._answered = answered(self._page)
        self._begun = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        return time.perf_counter(), self._spark.read(), cpu_s_of(self._broker), busy_cpu_s()

    def figures(self, rows: int, row_bytes: int) -> Figures:
        seconds, spark, broker, busy = (
            now - then for now, then in zip(self._read(), self._begun, strict=True)
        )
        requests = Counter[str]()
        for (api, _), n in answered(self._page).since(self._answered).by_path.items():
            requests[api] += n
        return {
            "rows": rows,
            "seconds": seconds,
            "requests": dict(sorted(requests.items())),
            "rows_per_s": rows / seconds,
            "mb_per_s": rows * row_bytes / seconds / 1e6,
            "cpu_us": 1e6 * spark / rows,
            "broker_cpu_us": 1e6 * broker / rows,
            "foreign_cores": (busy - spark - broker) / seconds,
        }


# -- queries ---------------------------------------------------------------------------------------


def count_rows(frame: Any, _row: Row) -> int:
    return int(frame.count())


def aggregate(frame: Any, row: Row) -> int:
    told = (
        frame.selectExpr("partition", "length(value) AS size", "timestamp")
        .groupBy("partition")
        .agg({"*": "count", "size": "sum", "timestamp": "max"})
        .collect()
    )
    if sum(one["sum(size)"] for one in told) != row.value_bytes * sum(o["count(1)"] for o in told):
        raise LoadError(f"{row.name}: values of other sizes")
    return sum(one["count(1)"] for one in told)


def parse_json(frame: Any, row: Row) -> int:
    told = (
        frame.selectExpr(f"from_json(CAST(value AS string), '{EVENT}') AS event")
        .selectExpr("event.page AS page", "event.user AS user", "event.ms AS ms")
        .groupBy("page")
        .agg({"*": "count", "ms": "sum", "user": "max"})
        .collect()
    )
    if any(one["page"] is None or not one["sum(ms)"] for one in told):
        raise LoadError(f"{row.name}: values that were not understood")
    return sum(one["count(1)"] for one in told)


QUERIES: dict[str, Callable[[Any, Row], int]] = {
    COUNT: count_rows,
    AGGREGATE: aggregate,
    JSON: parse_json,
}


class Loads:
    """What is measured, in one session.

    Args:
        directory: for checkpoints.
        brokers: by what acks=all waits for.
    """

    def __init__(
        self,
        spark: Any,
        directory: Path,
        brokers: dict[str, Asked],
        *,
        rows: int,
        batches: int,
        cores: int,
    ) -> None:
        self._spark, self._directory, self._brokers = spark, directory, brokers
        self._rows, self._batches, self._cores = rows, batches + FIRST_BATCHES, cores
        self._filled: set[tuple[str, str]] = set()
        self._spark_time = SparkTime(one.process.pid for one in brokers.values())

    def measure(self, row: Row, way: Way) -> Figures:
        """Measure one way of a row.

        Raises:
            LoadError: something else came out than should.
        """
        if row.kind == SINK:
            return self._write(row, way)
        broker, count = self._broker(row), row.records(self._rows, self._batches)
        if (place := (row.waits_for, row.topic)) not in self._filled:
            fill(broker.bootstrap, row, count)
            self._filled.add(place)
        if row.kind == BATCHES:
            return self._stream(row, way)
        return self._read(row, way)

    def _broker(self, row: Row) -> Asked:
        return self._brokers[row.waits_for]

    def _clock(self, broker: Asked) -> Clock:
        return Clock(broker, self._spark_time)

    def _read(self, row: Row, way: Way) -> Figures:
        broker, count = self._broker(row), row.records(self._rows, self._batches)
        query = QUERIES[row.query]
        clock = self._clock(broker)
        frame = (
            self._spark.read.format(way.source)
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", row.topic)
            .load()
        )
        found = query(frame, row)
        figures = clock.figures(count, row.value_bytes + KEY_BYTES)
        if found != count:
            raise LoadError(f"{row.name}, {way.name}: {found} rows of {count}")
        return figures

    def _new_topic(self, broker: Asked) -> str:
        topic = f"written-{next(_numbers)}"
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)
        return topic

    def _end(self, broker: Asked, topic: str, at_least: int) -> None:
        """Look at what was written, and delete it."""
        with Consumer(broker.bootstrap) as consumer:
            ends = consumer.end_offsets(consumer.partitions_for(topic))
        try:
            with Admin(broker.bootstrap) as admin:
                admin.delete_topic(topic)
        except PlogError as fault:
            bench_load.warn(f"{topic} may not be deleted: {fault}")
        if sum(ends.values()) < at_least:
            raise LoadError(f"{topic} has {sum(ends.values())} records, not {at_least}")

    def _write(self, row: Row, way: Way) -> Figures:
        broker, count = self._broker(row), row.records(self._rows, self._batches)
        topic = self._new_topic(broker)
        frame = self._spark.range(0, count, 1, self._cores).selectExpr(
            f"CAST(lpad(CAST(id AS string), {KEY_BYTES}, '0') AS binary) AS key",
            f"CAST(rpad(CAST(id AS string), {row.value_bytes}, 'x') AS binary) AS value",
        )
        clock = self._clock(broker)
        frame.write.format(way.sink).mode("append").options(**dict(way.options)).option(
            "kafka.bootstrap.servers", broker.bootstrap
        ).option("topic", topic).save()
        figures = clock.figures(count, row.value_bytes + KEY_BYTES)
        self._end(broker, topic, count)
        return figures

    def _stream(self, row: Row, way: Way) -> Figures:
        broker, count = self._broker(row), row.records(self._rows, self._batches)
        frame = (
            self._spark.readStream.format(way.source)
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", row.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
            .load()
        )
        writer = frame.select("key", "value").writeStream.format(way.sink)
        topic = None
        if way.sink != NOOP:
            topic = self._new_topic(broker)
            writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
            writer = writer.option("topic", topic).options(**dict(way.options))
        checkpoint = self._directory / f"checkpoint-{next(_numbers)}"
        clock = self._clock(broker)
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        figures = clock.figures(count, row.value_bytes + KEY_BYTES)
        told = [one for one in query.recentProgress if one["numInputRows"]]
        if topic is not None:
            self._end(broker, topic, count)
        if sum(one["numInputRows"] for one in told) != count:
            raise LoadError(f"{row.name}, {way.name}: not {count} rows in {len(told)} batches")
        steps = [one["durationMs"] for one in told[FIRST_BATCHES:]]
        each = sorted(one["triggerExecution"] for one in steps)
        return {
            **figures,
            "batches": len(each),
            "all_batches": len(told),
            "p50_ms": statistics.median(each),
            "p95_ms": each[min(len(each) - 1, round(0.95 * (len(each) - 1)))],
            "steps_ms": {
                step: statistics.median(one.get(step, 0) for one in steps) for step in STEPS
            },
        }
