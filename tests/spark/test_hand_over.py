"""A query moves from Spark's Kafka source to plog's and back, on one checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT
from tests.spark.hand_over import TURNS
from tests.spark.jvm_connector import connector_jars
from tests.spark.marks import DEAR

# A JVM of its own takes long to start, and what is read is tested elsewhere on both planes.
pytestmark = DEAR


@pytest.mark.parametrize("first", ["kafka", pytest.param("plog", marks=pytest.mark.long)])
def test_query_moves_between_the_sources(broker, new_topic, workers_find_plog, tmp_path, first):
    topic = new_topic(partitions=3)
    second = "plog" if first == "kafka" else "kafka"
    formats = [first, second, first, second, first]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.hand_over", broker.bootstrap, topic,
         str(tmp_path / "checkpoint"), ",".join(map(str, connector_jars())), *formats],
        cwd=ROOT, env=workers_find_plog, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    at = dict.fromkeys(range(3), 0)
    told = json.loads(done.stdout.splitlines()[-1])
    for (name, batches), counts, expected in zip(told, TURNS, formats, strict=True):
        assert name == expected
        rows = [row for batch in batches for row in batch]
        assert rows == [
            [partition, offset]
            for partition, count in sorted(counts.items())
            for offset in range(at[partition], at[partition] + count)
        ]
        # One batch, also where there is nothing: the sources' texts of the same offsets differ.
        assert len(batches) == 1
        for partition, count in counts.items():
            at[partition] += count
