"""What the pages show of Spark works when it is pasted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from tests.spark.conftest import ROOT

ADDRESS = "127.0.0.1:9092"


def snippets(page: str, language: str) -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    return [block for block in blocks if '"plog"' in block or "USING plog" in block]


@contextmanager
def made(bootstrap: str, topic: str) -> Iterator[None]:
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        yield
        admin.delete_topic(topic)


def committed(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Read a topic from its start up to so many records at least, and what comes with them."""
    found: list[tuple[bytes | None, bytes | None]] = []
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(consumer.partitions_for(topic))
        consumer.seek_to_beginning()
        while len(found) < count:
            found += [(record.key, record.value) for record in consumer.poll(1000)]
    return found


@pytest.fixture
def filled(broker):
    """Make the topic that the pages name; one partition of it stays empty."""
    with made(broker.bootstrap, "greetings"):
        with Producer(broker.bootstrap) as producer:
            producer.send("greetings", b"pasted", partition=0)
        yield broker.bootstrap


@pytest.mark.parametrize(("page", "shown"), [("README.md", "pasted"), ("docs/SPARK.md", "count")])
def test_snippet_runs_as_it_stands(spark, filled, capsys, page, shown):
    snippet, *_ = snippets(page, "python")
    assert ADDRESS in snippet
    exec(snippet.replace(ADDRESS, filled), {})
    assert shown in capsys.readouterr().out


def test_stream_of_the_readme_writes_once_as_it_stands(spark, filled, tmp_path):
    batch, stream = snippets("README.md", "python")
    assert ADDRESS in stream
    text = stream.replace(ADDRESS, filled).replace("checkpoints/", f"{tmp_path}/")
    names: dict[str, Any] = {}
    exec(batch.partition("greetings =")[0], names)  # the session, which the page makes once
    with made(filled, "shouts"):
        exec(text, names)
        exec(text, names)
        found = committed(filled, "shouts", 1)
    assert found == [(None, b"PASTED")]


def test_stream_runs_as_it_stands(spark, filled, tmp_path):
    _, snippet, _, _ = snippets("docs/SPARK.md", "python")
    assert ADDRESS in snippet
    names: dict[str, Any] = {}
    exec(snippet.replace(ADDRESS, filled).replace("checkpoints/", f"{tmp_path}/"), names)
    assert names["query"].exception() is None
    assert names["query"].recentProgress[0].numInputRows == 1


def test_sink_writes_as_it_stands(spark, filled):
    *_, snippet, _ = snippets("docs/SPARK.md", "python")
    assert ADDRESS in snippet
    with made(filled, "carriers"):
        exec(snippet.replace(ADDRESS, filled), {})
        found = committed(filled, "carriers", 2)
    assert sorted(found) == [(b"AA", b"American"), (b"DL", b"Delta")]


def test_stream_by_the_sink_writes_once_as_it_stands(spark, filled, tmp_path):
    *_, snippet = snippets("docs/SPARK.md", "python")
    assert ADDRESS in snippet
    text = snippet.replace(ADDRESS, filled).replace("checkpoints/", f"{tmp_path}/")
    with made(filled, "capitals"):
        exec(text, {})
        exec(text, {})
        with Producer(filled) as producer:
            producer.send("greetings", b"later", partition=1)
        exec(text, {})
        found = committed(filled, "capitals", 2)
    assert sorted(found) == [(None, b"LATER"), (None, b"PASTED")]


def test_view_in_sql_runs_as_it_stands(spark, filled):
    (snippet,) = snippets("docs/SPARK.md", "sql")
    assert ADDRESS in snippet
    spark.sql(snippet.replace(ADDRESS, filled))
    rows = spark.sql("SELECT CAST(value AS STRING) AS text FROM greetings").collect()
    assert [row.text for row in rows] == ["pasted"]
    spark.catalog.dropTempView("greetings")
