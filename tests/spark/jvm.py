"""How tests start Spark's JVMs: quickly, with the classes that an earlier one has loaded.

A session loads some fifteen thousand classes. Class data sharing takes them from an archive, which
halves the processor time of the start and of the first queries. A JVM whose class path or release
is another one ignores the archive.

    python -m tests.spark.jvm ARCHIVE      (writes it)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pyspark

from tests.compat.made import made_once
from tests.compat.programs import BUILT

ROOT = Path(__file__).resolve().parent.parent.parent
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It starts; neither the best code nor collecting in parallel pays."""
TIMEOUT_S = 250


@cache
def quick_jvm() -> str:
    """Return options for a JVM of Spark; the archive is made the first time."""
    return f"{PLAIN} -XX:SharedArchiveFile={_archive()}"


def _archive() -> Path:
    java = Path(shutil.which("java", path=_java_path()) or "java").resolve()
    about = [pyspark.__version__, pyspark.__file__, java, java.stat().st_mtime, PLAIN]
    wanted = hashlib.sha256(repr(about).encode()).hexdigest()
    return made_once(BUILT / f"spark-classes-{wanted[:12]}", _make) / "classes.jsa"


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin") if home else os.environ.get("PATH", "")


def _make(directory: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.spark.jvm", str(directory / "classes.jsa")],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip


def load_classes(spark: Any, directory: Path) -> None:
    """Run queries of the kinds that the tests have."""
    from pyspark.sql.functions import window

    def pass_on(batches: Any) -> Any:
        yield from batches

    rows = spark.range(100).selectExpr("id % 3 AS key", "cast(id AS string) AS value")
    rows.groupBy("key").count().orderBy("key").collect()
    rows.mapInArrow(pass_on, rows.schema).collect()
    rows.write.partitionBy("key").parquet(f"{directory}/rows")
    spark.read.parquet(f"{directory}/rows").where("key = 1").count()
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    stream = spark.readStream.schema("value string").parquet(f"{directory}/rows")
    counts = stream.selectExpr("timestamp_seconds(length(value)) AS at", "value")
    counts = counts.withWatermark("at", "1 minute").groupBy(window("at", "1 minute")).count()
    query = (
        counts.writeStream.format("parquet")
        .option("path", f"{directory}/counts")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def main() -> None:
    """Write the archive."""
    from plog.spark.session import session

    (archive,) = sys.argv[1:]
    spark = session(
        "classes",
        spark_master="local[2]",
        spark_ui_enabled="false",
        spark_sql_shuffle_partitions="2",
        spark_driver_extraJavaOptions=f"{PLAIN} -XX:ArchiveClassesAtExit={archive}",
    )
    with tempfile.TemporaryDirectory() as directory:
        load_classes(spark, Path(directory))
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    # The JVM ends with its stdin, and writes the archive before it does.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
