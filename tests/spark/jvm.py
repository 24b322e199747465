"""How tests start Spark: its JVMs and its Python workers.

An archive of the loaded classes (class data sharing) halves the processor time of a start, about
4 s. It is not used: to write it takes 50 s in each new checkout, and a run starts a dozen JVMs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are short: the best code and parallel collection cost more than they save."""


def make_spark_home(directory: Path) -> Path:
    """Make a SPARK_HOME whose Python workers import PySpark from its installed files.

    Else they import it from `pyspark.zip`, which has no compiled files: each new worker process
    compiles PySpark, in half a second of processor time. Tests start hundreds of workers.
    """
    installed = Path(os.path.realpath(pyspark.__file__)).parent
    for path in installed.iterdir():
        if path.name != "python":  # the folder of pyspark.zip
            (directory / path.name).symlink_to(path)
    return directory
