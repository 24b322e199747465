"""Writes the properties file that Spark needs on this host for the format "plog".

Owns the file's text. `session_settings` has the settings, and `plog doctor` finds the Python.
"""

from __future__ import annotations

from plog.spark.session_settings import REASONS, SETTINGS

PYTHON = "spark.pyspark.python"
FILE_MANAGER = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
HEAD = """\
# Settings of Spark for format("plog"), by `plog doctor --spark --conf`:
#   spark-submit --properties-file THIS_FILE job.py
# With --load-spark-defaults Spark reads spark-defaults.conf, too, where these lines fit as well.
#
# Spark looks for formats in the Python of a variable, which a properties file does not set. Export
# it before spark-submit, or activate the virtual environment:
#   export PYSPARK_PYTHON={python}
"""


def properties_file(python: str) -> str:
    """Return the file's text.

    Args:
        python: the path of a Python that has plog.
    """
    lines = [HEAD.format(python=python)]
    reasons = {PYTHON: "Python of jobs and tasks; it has plog."} | REASONS
    for name, value in {PYTHON: python, **SETTINGS}.items():
        lines += [f"# {reasons[name]}", f"{name} {value}"]
    lines += [
        "",
        "# For streams whose checkpoints are on a local disk or HDFS: 40 ms less for each batch.",
        f"# {' '.join(FILE_MANAGER)}",
    ]
    return "\n".join(lines) + "\n"
