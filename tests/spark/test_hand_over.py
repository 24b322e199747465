"""A query moves from Spark's Kafka source to plog's and back, on one checkpoint."""

from __future__ import annotations

import pytest

from tests.spark.hand_over import TURNS, take_turns
from tests.spark.marks import DEAR

# A JVM of its own takes long to start, and what is read is tested elsewhere on both planes.
pytestmark = DEAR


@pytest.mark.parametrize("first", ["kafka", pytest.param("plog", marks=pytest.mark.long)])
def test_query_moves_between_the_sources(broker, new_topic, connector, tmp_path, first):
    topic = new_topic(partitions=3)
    second = "plog" if first == "kafka" else "kafka"
    formats = [first, second, first, second, first]
    told = connector(take_turns, broker.bootstrap, topic, str(tmp_path / "checkpoint"), formats)
    at = dict.fromkeys(range(3), 0)
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
