"""The Spark code that the pages show runs as it is printed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from tests.spark.conftest import ROOT
from tests.spark.marks import DEAR

pytestmark = DEAR

ADDRESS = "127.0.0.1:9092"
NOW_MS = int(time.time() * 1000)


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the code blocks of a page that use the format."""
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    marks = '"plog"', "USING plog", "BatchSink"
    return [block for block in found if any(mark in block for mark in marks)]


def block(text: str, page: str = "docs/SPARK.md", language: str = "python") -> str:
    """Return the only code block of a page that contains a text."""
    (found,) = [each for each in blocks(page, language) if text in each]
    return found


def run(code: str, bootstrap: str, directory: Path, names: dict[str, Any]) -> None:
    """Run a code block with a broker and a directory of the test."""
    assert ADDRESS in code
    exec(code.replace(ADDRESS, bootstrap).replace("checkpoints/", f"{directory}/"), names)


@contextmanager
def made(bootstrap: str, topic: str) -> Iterator[None]:
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        yield
        admin.delete_topic(topic)


def committed(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Read at least `count` records from a topic's start."""
    found: list[tuple[bytes | None, bytes | None]] = []
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(consumer.partitions_for(topic))
        consumer.seek_to_beginning()
        while len(found) < count:
            found += [(record.key, record.value) for record in consumer.poll(1000)]
    return found


@pytest.fixture
def filled(broker):
    """Create the topic that the pages name; one of its partitions stays empty."""
    with made(broker.bootstrap, "greetings"):
        with Producer(broker.bootstrap) as producer:
            producer.send("greetings", b"pasted", partition=0)
        yield broker.bootstrap


@pytest.mark.parametrize(
    ("page", "marker", "shown"),
    [("README.md", "spark.read.", "pasted"), ("docs/SPARK.md", 'session("my job")', "count")],
)
def test_batch_query_runs(spark, filled, tmp_path, capsys, page, marker, shown):
    (found,) = [each for each in blocks(page) if marker in each]
    run(found, filled, tmp_path, {})
    assert shown in capsys.readouterr().out


def test_stream_of_the_readme_writes_once(spark, filled, tmp_path):
    batch, stream = blocks("README.md")
    names: dict[str, Any] = {}
    exec(batch.partition("greetings =")[0], names)  # the session, which the page makes once
    with made(filled, "shouts"):
        run(stream, filled, tmp_path, names)
        run(stream, filled, tmp_path, names)
        found = committed(filled, "shouts", 1)
    assert found == [(None, b"PASTED")]


def test_stream_runs(spark, filled, tmp_path):
    names: dict[str, Any] = {}
    run(block('session("my stream")'), filled, tmp_path, names)
    assert names["query"].exception() is None
    assert names["query"].recentProgress[0].numInputRows == 1


def test_batch_write_runs(spark, filled, tmp_path):
    with made(filled, "carriers"):
        run(block('session("my sink")'), filled, tmp_path, {})
        found = committed(filled, "carriers", 2)
    assert sorted(found) == [(b"AA", b"American"), (b"DL", b"Delta")]


def test_stream_by_the_sink_writes_once(spark, filled, tmp_path):
    code = block('session("my capitals")')
    with made(filled, "capitals"):
        run(code, filled, tmp_path, {})
        run(code, filled, tmp_path, {})
        with Producer(filled) as producer:
            producer.send("greetings", b"later", partition=1)
        run(code, filled, tmp_path, {})
        found = committed(filled, "capitals", 2)
    assert sorted(found) == [(None, b"LATER"), (None, b"PASTED")]


def test_update_mode_fails_and_each_way_round_it_works(spark, filled, tmp_path):
    names: dict[str, Any] = {}
    complete, per_minute, changes = (block(f"counts-{m}") for m in ("complete", "append", "update"))
    with (
        made(filled, "counts"),
        made(filled, "counts-per-minute"),
        made(filled, "changes"),
        Producer(filled) as producer,
    ):
        for value, minutes in ((b"more", 1), (b"pasted", 10)):
            at_ms = NOW_MS + minutes * 60_000
            producer.send("greetings", value, partition=1, timestamp_ms=at_ms)
        producer.flush()
        run(block('session("my counts")'), filled, tmp_path, names)
        with pytest.raises(StreamingQueryException, match="plog does not support Update mode"):
            run(complete.replace('"complete"', '"update"', 1), filled, tmp_path / "update", names)
        for code in (per_minute, complete, changes):
            run(code, filled, tmp_path, names)
        assert sorted(committed(filled, "counts", 2)) == [(b"more", b"1"), (b"pasted", b"2")]
        # The second window of "pasted" is still open.
        windows = committed(filled, "counts-per-minute", 2)
        assert [key for key, _ in sorted(windows)] == [b"more", b"pasted"]
        assert all(json.loads(value or b"")["count"] == 1 for _, value in windows)

        producer.send("greetings", b"more", partition=1, timestamp_ms=NOW_MS)
        producer.flush()
        run(changes, filled, tmp_path, names)
        assert sorted(committed(filled, "changes", 3)) == [
            (b"more", b"1"),
            (b"more", b"2"),
            (b"pasted", b"2"),
        ]


def test_view_in_sql_runs(spark, filled):
    (found,) = blocks("docs/SPARK.md", "sql")
    assert ADDRESS in found
    spark.sql(found.replace(ADDRESS, filled))
    rows = spark.sql("SELECT CAST(value AS STRING) AS text FROM greetings").collect()
    assert [row.text for row in rows] == ["pasted"]
    spark.catalog.dropTempView("greetings")
