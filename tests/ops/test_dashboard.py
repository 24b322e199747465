"""config/grafana-dashboard.json: Grafana's schema knows each field, and each query finds series.

No registry has Grafana itself. The schema is that of Grafana's own package for dashboards as code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce, speak
from tests.ops.prometheus import Prometheus
from tests.servers import free_port
from tests.transactions.transactor import Transactor
from tests.waiting import until

PATH = ROOT / "config" / "grafana-dashboard.json"
AT = TopicPartition("t", 0)
VARIABLES = {"$instance": ".*", "$__rate_interval": "5s"}


def dashboard() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(PATH.read_text())
    return read


def lost(given: Any, read: Any, place: str = "") -> Iterator[str]:
    """Yield the places of `given` that are missing in `read`, or have another value."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key not in read:
                yield f"{place}/{key}"
            else:
                yield from lost(value, read[key], f"{place}/{key}")
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for index, (value, other) in enumerate(zip(given, read, strict=True)):
            yield from lost(value, other, f"{place}/{index}")
    elif given != read:
        yield place


def queries() -> list[tuple[str, str]]:
    """Return the panel's title and the expression of each query."""
    return [
        (panel["title"], target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def unknown_fields(given: dict[str, Any]) -> list[str]:
    read = json.loads(json.dumps(Dashboard.from_json(given), cls=JSONEncoder))
    return list(lost(given, read))


def test_grafana_s_schema_knows_each_field() -> None:
    assert unknown_fields(dashboard()) == []


def test_field_that_the_schema_does_not_know_is_found() -> None:
    given = dashboard()
    panel = given["panels"][1]
    panel["grid"] = panel.pop("gridPos")
    assert unknown_fields(given) == ["/panels/1/grid"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path / "zookeeper", stops=False)
    yield running
    running.kill()


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    """Two brokers; the first one has a page, and has made the brokers' own topics alone."""
    made = Brokers(
        tmp_path,
        zookeeper.bootstrap,
        2,
        offsets_topic_num_partitions=1,
        offsets_topic_replication_factor=1,
        transaction_state_log_num_partitions=1,
        transaction_state_log_replication_factor=1,
    )
    first = made[0]
    first.overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
    try:
        first.start()
        with closing(speak(first.port)) as client, GroupAdmin(first.bootstrap) as admin:
            create_topic(client, AT.topic, 1)
            admin.commit("readers", {AT: 0})
            transactor = Transactor(client, "writer").start()
            transactor.join(AT)
            transactor.produce(AT, b"v")
            transactor.end(commit=True)
        made.start()
        with Admin(first.bootstrap) as topics:
            topics.create_topic("replicated", assignments={0: [0, 1]})
        yield made
    finally:
        made.kill()


@pytest.fixture
def prometheus(tmp_path: Path, brokers: Brokers) -> Iterator[Prometheus]:
    """A Prometheus that reads the first broker, with traffic of each kind."""
    first = brokers[0]
    page = str(first.overrides["metrics.listener"])
    with (
        closing(speak(first.port)) as client,
        Prometheus(tmp_path / "prometheus", {"broker": page}) as running,
    ):
        produce(client, "missing", make_batch())

        def is_read_twice() -> bool:
            produce(client, AT.topic, make_batch())
            fetch_one(client, AT.topic, 0)
            counted = (
                f"count_over_time({name}[1m]) >= 4"
                for name in ("plog_group_lag_records", "plog_follower_lag_records")
            )
            return all(running.query(expression) for expression in counted)

        until(is_read_twice, "the page is read")
        yield running


def test_each_query_finds_series(prometheus: Prometheus) -> None:
    empty = []
    for title, expression in queries():
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        if not prometheus.query(expression):
            empty.append((title, expression))
    assert empty == []
