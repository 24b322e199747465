"""Queries in a process of their own, whose Spark has its own Kafka connector on the class path.

The tests' own session cannot have it: a JVM's class path is what it was started with. `Connector`
starts the process, with one JVM for all that it is asked; the other functions run there.
"""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, ParamSpec, TypeVar
from unittest.mock import patch

import pytest
from pyspark.sql.functions import spark_partition_id

from plog.spark.session import session
from tests.conftest import ROOT
from tests.spark.jvm import QUICK_JVM, QUICK_STREAMS
from tests.spark.jvm_connector import connector_jars

P = ParamSpec("P")
T = TypeVar("T")
Options = dict[str, str]
PATIENCE_S = 240


class Connector:
    """The process; calls are made there, one after the other."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        jars = ",".join(map(str, connector_jars()))
        self._process = ProcessPoolExecutor(1, spawn, initializer=start, initargs=(jars,))

    def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._process.submit(call, *args, **kwargs).result(PATIENCE_S)

    def close(self) -> None:
        self._process.submit(stop)
        self._process.shutdown()


class Row(NamedTuple):
    """A row of either source; `at_ms` is its timestamp."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    kind: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


COLUMNS = [
    "topic",
    "partition",
    "offset",
    "unix_millis(timestamp)",
    "timestampType",
    "key",
    "value",
    "headers",
]

_running: list[Any] = []


def start(jars: str) -> None:
    spark = session(
        "connector",
        spark_master="local[2]",
        spark_driver_memory="1g",
        spark_ui_enabled="false",
        spark_sql_shuffle_partitions="1",
        spark_jars=jars,
        **QUICK_STREAMS,
        spark_driver_extraJavaOptions=QUICK_JVM,
    )
    spark.sparkContext.setLogLevel("OFF")
    _running.append(spark)


def stop() -> None:
    _running.pop().stop()


def running() -> Any:
    """Return the session of this process."""
    return _running[0]


def benchmark(*arguments: str) -> None:
    """Run the benchmark beside Spark's own connector, in this session."""
    script = ROOT / "asv_bench" / "spark_connector.py"
    spark = running()
    with (
        patch.object(sys, "argv", [str(script), *arguments]),
        patch.object(sys, "path", [str(script.parent), *sys.path]),
        patch("spark_connector_loads.FIRST_BATCHES", 1),
        patch.object(spark, "stop"),
        patch("plog.spark.session.session", lambda _name, **_settings: spark),
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_path(str(script), run_name="__main__")
    assert not end.value.code
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.shuffle.partitions", "1")


def read(source: str, options: Options) -> list[Row]:
    """Return the rows of a batch query, in the order of their places."""
    frame = _running[0].read.format(source).options(**options).load()
    columns = [one for one in COLUMNS if one != "headers" or "headers" in frame.columns]
    found = [_row(*row) for row in frame.selectExpr(*columns).collect()]
    return sorted(found, key=lambda row: row[:3])


def _row(topic: str, partition: int, offset: int, at_ms: int, kind: int, *rest: Any) -> Row:
    key, value, *headers = rest
    told = headers[0] if headers else None
    return Row(
        topic,
        partition,
        offset,
        at_ms,
        kind,
        _bytes(key),
        _bytes(value),
        None if told is None else tuple((name, _bytes(one)) for name, one in told),
    )


def _bytes(one: bytearray | None) -> bytes | None:
    return None if one is None else bytes(one)


def refusal(source: str, options: Options) -> str:
    """Return what a batch query fails with; nothing where it does not."""
    try:
        read(source, options)
    except Exception as fault:  # noqa: BLE001 - as text: what is in it cannot travel
        return str(fault)
    return ""


def tasks(source: str, options: Options) -> list[int]:
    """Return how many rows each task of a batch query reads."""
    frame = _running[0].read.format(source).options(**options).load()
    counts = frame.groupBy(spark_partition_id()).count().collect()
    return sorted(count for _, count in counts)


def write(sink: str, rows: list[tuple[Any, ...]], schema: str, options: Options) -> None:
    """Append rows, which two tasks do."""
    frame = _running[0].createDataFrame(rows, schema).repartition(2)
    frame.write.format(sink).mode("append").options(**options).save()


def copy(formats: tuple[str, str], source: Options, sink: Options, columns: list[str]) -> list[int]:
    """Copy by a stream, up to what is there now; return how many rows each batch had."""
    reads, writes = formats
    rows = _running[0].readStream.format(reads).options(**source).load().select(*columns)
    query = rows.writeStream.format(writes).options(**sink).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]
