"""Filters inside Spark: what they spare is not read, and the result is the same as without."""

from __future__ import annotations

import random
import time
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import functions as F  # noqa: N812

from plog.client.producer import Producer
from tests.spark import test_session
from tests.spark.marks import DEAR
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


load = partial(test_session.load, pushFilters="true")


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
        # A task for each record that is read, and one at least; for three where all are read.
        most, tasks = (1, max(count, 1)) if exact and pushed else (3, 6)
        frame = load(spark, broker, subscribe=topic, maxRecordsPerPartition=most).where(condition)
        assert frame.count() == count, condition
        assert frame.rdd.getNumPartitions() == tasks


def test_times_that_the_broker_gave_are_filtered_alike(spark, broker, new_topic, pushed):
    """The records of a batch have one time then, and the first one of it is found by it."""
    topic = new_topic(message_timestamp_type="LogAppendTime")
    for size in (3, 2, 4):
        fill(broker, topic, {0: size})
        time.sleep(0.005)  # the next batch has a later time
    frame = load(spark, broker, subscribe=topic)
    times = [row.timestamp for row in frame.orderBy("offset").collect()]
    assert len(times) == 9
    for moment in sorted(set(times)):
        for comparison, expected in (
            (">", sum(other > moment for other in times)),
            (">=", sum(other >= moment for other in times)),
            ("=", times.count(moment)),
        ):
            literal = f"timestamp '{moment.isoformat(sep=' ')}'"
            found = frame.where(f"timestamp {comparison} {literal}").count()
            assert found == expected, (moment, comparison)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_zone_of_the_session_moves_no_filter(spark, broker, new_topic, pushed, zone):
    topic = new_topic()
    fill(broker, topic, {0: 6})
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = load(spark, broker, subscribe=topic, maxRecordsPerPartition=1)
        moment = datetime.fromtimestamp((T0_MS + 4) / 1000, ZoneInfo(zone))
        literal = moment.replace(tzinfo=None).isoformat(sep=" ")
        for later in (
            frame.where(f"timestamp >= timestamp '{literal}'"),
            frame.where(F.col("timestamp") >= moment),
            frame.where(F.col("timestamp") >= moment.astimezone().replace(tzinfo=None)),
        ):
            assert sorted(row.offset for row in later.collect()) == [4, 5]
            assert later.rdd.getNumPartitions() == (2 if pushed else 6)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_later_times_than_any_committed_record_are_nothing(spark, broker, new_topic, pushed):
    topic = new_topic()
    fill(broker, topic, {0: 3})
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", timestamp_ms=T0_MS + 500).result()
        committed = {"kafka__isolation__level": "read_committed"}
        frame = load(spark, broker, subscribe=topic, **committed)
        assert frame.where(f"timestamp >= {at(2)}").count() == 1
        assert frame.where(f"timestamp >= {at(400)}").count() == 0
        everything = load(spark, broker, subscribe=topic)
        assert everything.where(f"timestamp >= {at(400)}").count() == 1
        producer.abort_transaction()


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


@pytest.mark.parametrize("asks", ["true", "false"])
def test_queries_of_one_frame_see_all_records_unless_filters_are_pushed(
    spark, broker, new_topic, pushed, asks
):
    """Spark keeps the plan of pushed filters for the frame's other queries."""
    topic = new_topic()
    fill(broker, topic, {0: 10})
    frame = load(spark, broker, subscribe=topic, pushFilters=asks)
    assert frame.where("offset < 3").count() == 3
    if pushed and asks == "true":
        # If this fails, Spark is better than it was: the option may go.
        assert frame.count() == 3
        return
    assert frame.count() == 10
    assert frame.where("offset < 3").union(frame.where("offset > 7")).count() == 5
