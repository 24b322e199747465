"""How fast Spark reads a topic: the source `plog` beside one that yields rows as tuples.

    python asv_bench/spark_source.py --help

Both read the same bytes by the same fetches; they differ in what becomes of a
record set: Arrow buffers filled by the columns kernel, or a tuple per record.
Runs alternate, so that what else the machine does falls on both. Not part of
asv: a run takes minutes and starts a broker and a JVM.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pyspark.sql.datasource import InputPartition  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from plog._native import batch as batch_kernel  # noqa: E402
from plog._native import records as records_kernel  # noqa: E402
from plog.client.admin import Admin  # noqa: E402
from plog.client.metadata import Cluster  # noqa: E402
from plog.protocol.messages.produce import (  # noqa: E402
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from plog.spark import offsets  # noqa: E402
from plog.spark.options import parse  # noqa: E402
from plog.spark.range_reader import RangeReader  # noqa: E402
from plog.spark.source import PlogDataSource, PlogReader  # noqa: E402
from plog.spark.task_reader import TaskRanges, set_up_worker  # noqa: E402
from tests.servers import BrokerProcess  # noqa: E402

PARTITIONS = 4
BATCH_BYTES = 16_384
"""Producers' default batch.size."""
KEY_BYTES = 10


class TupleSource(PlogDataSource):
    """The baseline: a row is a tuple."""

    @classmethod
    def name(cls) -> str:
        return "plog_tuples"

    def reader(self, schema: StructType) -> PlogReader:
        return TupleReader(parse(self.options), schema)


class TupleReader(PlogReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TaskRanges)
        set_up_worker()
        with offsets.open_cluster(self.options) as cluster:
            for wanted, fetched in RangeReader(cluster, partition.ranges, self.options):
                topic, index = wanted.partition
                for header in batch_kernel.scan(fetched.records):
                    for record in records_kernel.walk(fetched.records, pos=header.position):
                        if wanted.start <= record.offset < wanted.end:
                            at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
                            kind = record.timestamp_type
                            yield record.key, record.value, topic, index, record.offset, at, kind


class Run(NamedTuple):
    seconds: float
    cpu_seconds: float
    """Of Spark, JVM and workers; the broker's are left out, the same bytes for both."""


class Case(NamedTuple):
    value_bytes: int
    rows: int

    @property
    def topic(self) -> str:
        return f"bytes-{self.value_bytes}"


def fill(bootstrap: str, case: Case) -> int:
    """Produce at least the case's rows, in batches as producers send them; return how many."""
    per_batch = max(1, BATCH_BYTES // (case.value_bytes + KEY_BYTES))
    value = os.urandom(case.value_bytes)
    one = records_kernel.build_batch(
        [(1_700_000_000_000 + n, b"%0*d" % (KEY_BYTES, n), value, ()) for n in range(per_batch)]
    )
    each = -(-case.rows // (per_batch * PARTITIONS))
    with Admin(bootstrap) as admin:
        admin.create_topic(case.topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})
    with Cluster(bootstrap) as cluster:
        cluster.refresh([case.topic])
        for _ in range(each):
            connection = cluster.connection(next(iter(cluster.nodes)))
            request = ProduceRequest(
                transactional_id=None,
                acks=1,
                timeout_ms=30_000,
                topic_data=[
                    TopicProduceData(
                        name=case.topic,
                        partition_data=[
                            PartitionProduceData(index=index, records=one)
                            for index in range(PARTITIONS)
                        ],
                    )
                ],
            )
            answer = connection.call(request, ProduceResponse)
            for topic in answer.responses:
                for part in topic.partition_responses:
                    if part.error_code:
                        raise click.ClickException(f"produce: error {part.error_code}")
    return each * per_batch * PARTITIONS


def cpu_seconds(without: int) -> float:
    """Return the CPU time so far of what this process started, but for one process."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.pid != without:
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def read(spark: Any, source: str, broker: BrokerProcess, case: Case, rows: int) -> Run:
    """Read every column of the topic once."""
    cpu_before, begun = cpu_seconds(broker.pid), time.perf_counter()
    frame = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", case.topic)
        .load()
        .selectExpr("count(*)", "sum(length(value))", "max(timestamp)")
    )
    count, size, _ = frame.first()
    took = Run(time.perf_counter() - begun, cpu_seconds(broker.pid) - cpu_before)
    if (count, size) != (rows, rows * case.value_bytes):
        raise click.ClickException(f"{source} read {count} rows and {size} bytes of values")
    return took


def told(name: str, case: Case, rows: int, runs: list[Run]) -> tuple[float, float]:
    """Print a line of the table; return the median rate and the median CPU time of a row."""
    rates = sorted(rows / run.seconds for run in runs)
    median = statistics.median(rates)
    cpu = statistics.median(run.cpu_seconds for run in runs) / rows
    print(
        f"{case.value_bytes:>6} B  {name:<7} {median / 1e6:>6.2f} M rows/s "
        f"{median * (case.value_bytes + KEY_BYTES) / 1e6:>6.0f} MB/s  "
        f"{cpu * 1e6:>5.2f} us CPU/row  "
        f"({rates[0] / 1e6:.2f} to {rates[-1] / 1e6:.2f} M rows/s in {len(runs)} runs)",
        flush=True,
    )
    return median, cpu


@click.command()
@click.option(
    "--rows",
    default=10_000_000,
    show_default=True,
    help="Records of 100 B.",
)
@click.option("--runs", default=5, show_default=True, help="Measured runs of each source.")
@click.option("--warm-ups", default=3, show_default=True, help="Runs before those.")
@click.option("--cores", default=2, show_default=True, help="Spark's local[N].")
@click.option("--driver-memory", default="2g", show_default=True)
def main(rows: int, runs: int, warm_ups: int, cores: int, driver_memory: str) -> None:
    """Print rows/s and MB/s (keys and values) of both sources, and their ratio.

    Whole queries are measured, planning and all. Of larger records there are fewer: 300 B is what
    an event in JSON takes. The pages of the log are in memory: warm-ups read them, and let the JVM
    compile. CPU time counts the JVM and its workers, and says more than the rate where others use
    the machine.
    """
    from plog.spark.session import session

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    cases = [Case(100, rows), Case(300, max(rows // 2, 1)), Case(1000, max(rows // 4, 1))]
    with tempfile.TemporaryDirectory(prefix="plog-bench-") as directory:
        broker = BrokerProcess(Path(directory)).start()
        try:
            counts = {case: fill(broker.bootstrap, case) for case in cases}
            spark = session(
                "plog benchmark",
                spark_master=f"local[{cores}]",
                spark_driver_memory=driver_memory,
                spark_ui_enabled="false",
                spark_ui_showConsoleProgress="false",
            )
            spark.sparkContext.setLogLevel("ERROR")
            spark.conf.set("spark.sql.shuffle.partitions", "1")
            spark.dataSource.register(TupleSource)
            print(
                f"{cores} cores, page cache warm, {PARTITIONS} partitions, no compression, "
                f"batches of {BATCH_BYTES} B, keys of {KEY_BYTES} B"
            )
            for case in cases:
                sources = {"plog": "Arrow", "plog_tuples": "tuples"}
                runs_of: dict[str, list[Run]] = {source: [] for source in sources}
                for number in range(warm_ups + runs):
                    for source in sources:
                        run = read(spark, source, broker, case, counts[case])
                        if number >= warm_ups:
                            runs_of[source].append(run)
                (rate, cpu), (slow_rate, slow_cpu) = (
                    told(name, case, counts[case], runs_of[source])
                    for source, name in sources.items()
                )
                print(
                    f"{case.value_bytes:>6} B  ratio   {rate / slow_rate:>6.1f} by rate, "
                    f"{slow_cpu / cpu:.1f} by CPU time"
                )
            spark.stop()
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
