"""How tests start Spark: its home, its JVMs and its Python workers.

A run starts a dozen JVMs and hundreds of workers. Both start quickly, thanks to files that are
made once and kept in .venv.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.compat.made import made_once
from tests.conftest import ROOT

INSTALLED = Path(os.path.realpath(pyspark.__file__)).parent
ARCHIVED = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = session.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
spark.range(10).selectExpr("sum(id)").collect()
spark.stop()
"""
"""A program whose JVM writes the archive. One that runs streams too saves no more time."""
ARCHIVE_TIMEOUT_S = 600
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are short: the best code and parallel collection cost more than they save."""


def _key() -> str:
    """Return a name for the sources of the archive. A JVM ignores an archive that does not fit."""
    java = Path(os.path.realpath(shutil.which("java") or "/"))
    of = pyspark.__version__, INSTALLED, java, java.stat().st_mtime, ARCHIVED
    return hashlib.sha256(repr(of).encode()).hexdigest()[:12]


KEY = _key()
MADE = ROOT / ".venv" / "spark"
ARCHIVE = MADE / f"classes-{KEY}"
QUICK_JVM = f"{SHORT_RUN} -XX:SharedArchiveFile={ARCHIVE}/classes.jsa -Xlog:cds*=off"
"""Options of each JVM that runs Spark; `make_spark_home` makes the archive."""
FEW_ROWS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of a JVM that runs few queries of few rows: it compiles none of them."""
QUICK_STREAMS = {
    # Else Hadoop starts a process, readlink, for each file of a checkpoint, and more.
    "spark_sql_streaming_checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark_sql_streaming_checkpoint_fileChecksum_enabled": "false",
    # A stream that waits for records asks this often for some, and not every 10 ms.
    "spark_sql_streaming_pollingDelay": "100ms",
}
"""Settings of sessions in which many streams run. Sessions whose processes
are killed keep Spark's checkpoints as they are."""


def by_itself(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a job that Python runs, without spark-submit."""
    words = ["--driver-java-options", QUICK_JVM]
    for name, value in FEW_ROWS.items():
        words += ["--conf", f"{name}={value}"]
    return environment | {"PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"])}


def make_spark_home() -> Path:
    """Return a SPARK_HOME from which JVMs and Python workers start quickly.

    - Its Python workers import PySpark from its installed files, and not from `pyspark.zip`. That
      has no compiled files: each new worker process would compile PySpark, in half a second of
      processor time.
    - Its JVMs find their classes in an archive (class data sharing), which names its jars by their
      paths. The archive halves the processor time until a first query has ended.
    """
    home = made_once(MADE / f"home-{KEY}", _link)
    made_once(ARCHIVE, lambda made: _archive(home, made))
    return home


def _link(home: Path) -> None:
    for path in INSTALLED.iterdir():
        if path.name != "python":  # the folder of pyspark.zip
            (home / path.name).symlink_to(path)


def _archive(home: Path, made: Path) -> None:
    """Write the classes that a JVM has loaded at the end of a query."""
    options = f"{SHORT_RUN} -XX:ArchiveClassesAtExit={made / 'classes.jsa'} -Xlog:cds*=off"
    done = subprocess.run(
        [sys.executable, "-c", ARCHIVED, options],
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
             "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=ARCHIVE_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"no archive of classes: {done.stdout}{done.stderr}"[-4000:]
