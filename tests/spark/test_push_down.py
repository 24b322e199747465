"""Filters inside Spark: what they spare is not read, and the result is the same as without."""

from __future__ import annotations

import random

import pytest

from plog.client.producer import Producer
from tests.spark.marks import DEAR
from tests.spark.test_session import load
from tests.spark.test_source import T0_MS, fill

# What is spared is decided before anything is fetched.
pytestmark = DEAR
PUSHED = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"])
def pushed(spark, request):
    """Whether Spark pushes filters down; `session()` has it do so."""
    assert spark.conf.get(PUSHED) == "true"
    spark.conf.set(PUSHED, request.param)
    yield request.param == "true"
    spark.conf.set(PUSHED, "true")


def at(ms: float) -> str:
    return f"timestamp_micros({round((T0_MS + ms) * 1000)})"


def test_filters_spare_the_reader_what_they_exclude(spark, broker, new_topic, pushed):
    topic = new_topic(partitions=3)
    fill(broker, topic, dict.fromkeys(range(3), 6))
    for condition, count, exact in [
        ("partition = 1 AND offset > 1 AND offset < 4", 2, True),
        ("partition IN (0, 2) AND offset = 3", 2, True),
        ("partition != 1 AND offset <= 0", 2, True),
        ("topic = 'other'", 0, True),
        (f"timestamp >= {at(4)}", 6, True),
        (f"timestamp > {at(4)} AND partition = 2", 1, True),
        (f"timestamp > {at(1000)}", 0, True),
        (f"timestamp < {at(2)}", 6, False),
        ("partition = 1 OR offset = 0", 8, False),
    ]:
        frame = load(spark, broker, subscribe=topic, maxRecordsPerPartition=1).where(condition)
        assert frame.count() == count, condition
        # A task for each record that is read, and one at least.
        assert frame.rdd.getNumPartitions() == (max(count, 1) if exact and pushed else 18)


def test_records_out_of_the_order_of_their_times_are_all_found(spark, broker, new_topic, pushed):
    topic = new_topic(partitions=2, segment_bytes=4096, index_interval_bytes=100)
    rng = random.Random(7)
    times = {partition: [rng.randrange(1000) for _ in range(500)] for partition in range(2)}
    with Producer(broker.bootstrap, batch_size=300) as producer:
        for partition, all_of_it in times.items():
            for ms in all_of_it:
                producer.send(topic, b"v" * 20, partition=partition, timestamp_ms=T0_MS + ms)
    everything = [ms for all_of_it in times.values() for ms in all_of_it]
    frame = load(spark, broker, subscribe=topic)
    for low in (0, 990.5, 999):
        found = frame.where(f"timestamp > {at(low)}").count()
        assert found == sum(ms > low for ms in everything)
    both = frame.where(f"timestamp >= {at(300)} AND timestamp < {at(310)}").count()
    assert both == sum(300 <= ms < 310 for ms in everything)
