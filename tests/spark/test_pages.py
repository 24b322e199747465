"""What the pages show of Spark works when it is pasted."""

from __future__ import annotations

import re
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


@pytest.fixture
def filled(broker):
    """Make the topics that the pages name; one partition of each stays empty."""
    with Admin(broker.bootstrap) as admin:
        for topic in ("greetings", "flights"):
            admin.create_topic(topic, partitions=2)
    with Producer(broker.bootstrap) as producer:
        for topic in ("greetings", "flights"):
            producer.send(topic, b"pasted", partition=0)
    yield broker.bootstrap
    with Admin(broker.bootstrap) as admin:
        for topic in ("greetings", "flights"):
            admin.delete_topic(topic)


@pytest.mark.parametrize(("page", "shown"), [("README.md", "pasted"), ("docs/SPARK.md", "count")])
def test_snippet_runs_as_it_stands(spark, filled, capsys, page, shown):
    snippet, *_ = snippets(page, "python")
    assert ADDRESS in snippet
    exec(snippet.replace(ADDRESS, filled), {})
    assert shown in capsys.readouterr().out


def test_stream_runs_as_it_stands(spark, filled, tmp_path):
    _, snippet, _ = snippets("docs/SPARK.md", "python")
    assert ADDRESS in snippet
    names: dict[str, Any] = {}
    exec(snippet.replace(ADDRESS, filled).replace("checkpoints/", f"{tmp_path}/"), names)
    assert names["query"].exception() is None
    assert names["query"].recentProgress[0].numInputRows == 1


def test_sink_writes_as_it_stands(spark, filled):
    *_, snippet = snippets("docs/SPARK.md", "python")
    assert ADDRESS in snippet
    with Admin(filled) as admin:
        admin.create_topic("carriers", partitions=2)
        exec(snippet.replace(ADDRESS, filled), {})
        with Consumer(filled, isolation_level="read_committed") as consumer:
            consumer.assign(consumer.partitions_for("carriers"))
            consumer.seek_to_beginning()
            found: dict[bytes | None, bytes | None] = {}
            while len(found) < 2:
                found |= {record.key: record.value for record in consumer.poll(1000)}
        admin.delete_topic("carriers")
    assert found == {b"AA": b"American", b"DL": b"Delta"}


def test_view_in_sql_runs_as_it_stands(spark, filled):
    (snippet,) = snippets("docs/SPARK.md", "sql")
    assert ADDRESS in snippet
    spark.sql(snippet.replace(ADDRESS, filled))
    rows = spark.sql("SELECT CAST(value AS STRING) AS text FROM flights").collect()
    assert [row.text for row in rows] == ["pasted"]
    spark.catalog.dropTempView("flights")
