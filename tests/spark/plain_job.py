"""A job that knows nothing of plog's sessions: it counts a topic's records, and copies them.

    spark-submit plain_job.py TOPIC COPY

At its second and third turn it has unset all settings that a session can unset. After each turn it
prints the settings of which there was a warning.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

UNSET = (
    "spark.sql.python.filterPushdown.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
)


def main(topic: str, copy: str) -> None:
    """Run it."""
    spark = SparkSession.builder.getOrCreate()
    local = Path(spark.conf.get("spark.local.dir") or "")
    records = spark.read.format("plog").option("subscribe", topic).option("pushFilters", "true")
    for turn in range(3):
        if turn == 1:
            for name in UNSET:
                spark.conf.unset(name)
        print(f"{records.load().where('offset < 3').count()} records", flush=True)
        rows = records.load().select("value")
        rows.write.format("plog").mode("append").option("topic", copy).save()
        warned = {path.name.partition("-warned-")[2] for path in local.rglob("plog-warned-*")}
        print("warned of", *sorted(warned), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
