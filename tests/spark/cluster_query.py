"""A driver of its own for the tests on a standalone cluster, which does what its stdin says.

    python -m tests.spark.cluster_query MASTER

    copy BROKERS SOURCE SINK CHECKPOINT
    spoil BROKERS SOURCE SINK CHECKPOINT
    load BROKERS SOURCE PATH

`copy` reads the source in a batch query, says `N rows, topics T, sum S` of it, and copies it in a
stream. `spoil` copies it too, through a step by which the first attempt at one task fails and that
at another stands still, each with some of its rows in the log; beside each value it writes which
attempt that is of. Both say what `copy_query` says. `load` loads the source into Parquet, as the
job does, and says `loaded N`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from plog.client.consumer import Consumer
from tests.spark.copy_query import copy, start
from tests.spark.submitted import JOBS

FAILING, SLOW = (1, 0), (2, 1)
"""Batch and task of which the first attempt is spoilt, and how."""
STANDS_STILL_S = 90.0
"""Longer than it takes another attempt to come and overtake it."""
LARGE = 5000
"""How many rows a batch has where few batches will do."""
LONG = 1000
"""What makes values so long that no buffer keeps them."""


def count(spark: Any, brokers: str, topic: str) -> None:
    """Say what a batch query finds in a topic."""
    rows = spark.read.format("plog").option("kafka.bootstrap.servers", brokers)
    found = rows.option("subscribe", topic).load()
    total = "sum(cast(cast(value AS string) AS bigint))"
    told = found.selectExpr("count(*)", "array_agg(DISTINCT topic)", total).first()
    print(f"{told[0]} rows, topics {','.join(told[1])}, sum {told[2]}", flush=True)


class Spoiler:
    """The step by which attempts are spoilt.

    Args:
        directory: where an attempt says that it is spoilt.
    """

    def __init__(self, brokers: str, sink: str, directory: Path) -> None:
        self._brokers, self._sink = brokers, sink
        self._directory = directory

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows on with their mark; spoil what is to be."""
        task = TaskContext.get()
        assert task is not None
        place = int(task.getLocalProperty("streaming.sql.batchId")), task.partitionId()
        is_first = task.attemptNumber() == 0
        mark = f" {place[0]} {place[1]} {task.attemptNumber()} "
        if place in (FAILING, SLOW) and not is_first:
            # The first has written something by then, however slow the host is.
            while not self._spoilt(place).exists():
                time.sleep(0.05)
        rows = list(batches)
        for number, one in enumerate(rows):
            if is_first and number == len(rows) // 2:
                self._spoil(place, mark)
            value = one.column("value").cast(pa.string())
            marked = pc.binary_join_element_wise(value, "", mark + "-" * LONG)
            yield pa.record_batch({"key": one.column("key"), "value": marked.cast(pa.binary())})

    def _spoil(self, place: tuple[int, int], mark: str) -> None:
        if place in (FAILING, SLOW):
            self._until_written(mark.encode())
            self._spoilt(place).touch()
        if place == FAILING:
            raise OSError("this attempt is to fail")
        if place == SLOW:
            time.sleep(STANDS_STILL_S)

    def _spoilt(self, place: tuple[int, int]) -> Path:
        return self._directory / "spoilt-{}-{}".format(*place)

    def _until_written(self, mark: bytes) -> None:
        """Wait until something of this attempt is in the log."""
        with Consumer(self._brokers) as consumer:
            consumer.assign(consumer.partitions_for(self._sink))
            consumer.seek_to_beginning()
            while not any(mark in (record.value or b"") for record in consumer.poll(100)):
                pass


SPOILING = {
    # Rows go on in small portions, so that half of a task's are with the sink when it is spoilt.
    "spark_sql_execution_arrow_maxRecordsPerBatch": "100",
    "spark_speculation": "true",
    "spark_speculation_interval": "100ms",
    "spark_speculation_minTaskRuntime": "500ms",
    "spark_speculation_multiplier": "1.1",
    "spark_speculation_quantile": "0.5",
    "spark_speculation_efficiency_enabled": "false",
}


def spoil(spark: Any, brokers: str, source: str, sink: str, checkpoint: str) -> None:
    """Copy through the step that spoils attempts."""
    schema = "key binary, value binary"
    spoiler = Spoiler(brokers, sink, Path(checkpoint).parent)
    through = lambda rows: rows.mapInArrow(lambda batches: spoiler(batches), schema)  # noqa: E731
    copy(spark, brokers, source, sink, checkpoint, through, rows_per_batch=LARGE)


def load(spark: Any, brokers: str, source: str, path: str) -> None:
    """Load a topic by the job's function."""
    sys.path.insert(0, str(JOBS))
    import load_parquet as job

    subscription = {"kafka.bootstrap.servers": brokers, "subscribe": source}
    loaded = job.load(spark, job.Store(job.files_at(spark, path)), subscription)
    print(f"loaded {sum(one.records for one in loaded)}", flush=True)


def main() -> None:
    """Run it."""
    (master,) = sys.argv[1:]
    spark = start(master, **SPOILING)
    for line in sys.stdin:
        what, brokers, source, *arguments = line.split()
        if what == "copy":
            count(spark, brokers, source)
            copy(spark, brokers, source, *arguments)
        else:
            {"spoil": spoil, "load": load}[what](spark, brokers, source, *arguments)
    spark.stop()


if __name__ == "__main__":
    main()
