"""Streams inside Spark: triggers, checkpoints, and topics that change under a running query."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from plog.client.admin import Admin
from tests.servers import BrokerProcess
from tests.spark.test_source import fill

pytestmark = pytest.mark.spark


def stream(spark, broker: BrokerProcess, **options):
    reader = spark.readStream.format("plog").option("kafka.bootstrap.servers", broker.bootstrap)
    for key, value in options.items():
        reader = reader.option(key.replace("__", "."), value)
    return reader.load()


class Query:
    """A query whose sink notes, for each batch, the offsets of each partition."""

    def __init__(self, frame, checkpoint: Path, **trigger) -> None:
        self.batches: list[dict[tuple[str, int], list[int]]] = []
        self.checkpoint = checkpoint
        self.query = (
            frame.select("topic", "partition", "offset")
            .writeStream.foreachBatch(self._note)
            .option("checkpointLocation", str(checkpoint))
            .trigger(**trigger or {"processingTime": "0 seconds"})
            .start()
        )

    def _note(self, frame, _number: int) -> None:
        batch: dict[tuple[str, int], list[int]] = {}
        for topic, partition, offset in sorted(map(tuple, frame.collect())):
            batch.setdefault((topic, partition), []).append(offset)
        if batch:
            self.batches.append(batch)

    @property
    def seen(self) -> dict[tuple[str, int], list[int]]:
        found: dict[tuple[str, int], list[int]] = {}
        for batch in self.batches:
            for at, offsets in batch.items():
                found.setdefault(at, []).extend(offsets)
        return found

    def wait_for(self, expected, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while self.seen != expected:
            fault = self.query.exception()
            assert fault is None, str(fault)
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.05)

    def finish(self) -> Query:
        assert self.query.awaitTermination(120)
        return self

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()


def offset_lines(checkpoint: Path) -> list[str]:
    files = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    return [path.read_text("utf-8").splitlines()[2] for path in files]


def test_available_now_goes_by_limits_to_the_end_that_was(spark, broker, new_topic, tmp_path):
    topic = new_topic(partitions=12)
    fill(broker, topic, {0: 1000, 2: 500, 10: 500})
    source = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 700}
    ran = Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    assert [sum(map(len, batch.values())) for batch in ran.batches] == [700, 700, 600]
    assert all(len(batch) == 3 for batch in ran.batches)
    assert ran.seen == {(topic, p): list(range(n)) for p, n in {0: 1000, 2: 500, 10: 500}.items()}
    lines = offset_lines(tmp_path)
    assert len(lines) == 3
    for line in lines:
        told = json.loads(line)
        assert line == json.dumps(told, sort_keys=True)
        assert {int(p) for p in told[topic]} == set(range(12))
    assert json.loads(lines[-1])[topic]["0"] == 1000

    # The next run goes on from the checkpoint.
    fill(broker, topic, {2: 3})
    ran = Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    assert ran.batches == [{(topic, 2): [500, 501, 502]}]
    assert Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish().seen == {}


def test_new_partitions_and_topics_join_at_their_start(spark, broker, new_topic, tmp_path):
    first = new_topic(prefix="grows-")
    fill(broker, first, {0: 5})
    frame = stream(spark, broker, subscribePattern="^grows-")
    with Query(frame, tmp_path) as query:  # from the latest offsets on
        while not offset_lines_there(tmp_path):
            time.sleep(0.05)
        fill(broker, first, {0: 2})
        query.wait_for({(first, 0): [5, 6]})
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions(first, 2)
        fill(broker, first, {1: 3})
        second = new_topic(prefix="grows-")
        fill(broker, second, {0: 4})
        query.wait_for({(first, 0): [5, 6], (first, 1): [0, 1, 2], (second, 0): [0, 1, 2, 3]})


def offset_lines_there(checkpoint: Path) -> bool:
    return (checkpoint / "offsets" / "0").exists()
