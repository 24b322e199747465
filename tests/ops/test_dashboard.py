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

from plog.client.group_admin import GroupAdmin
from plog.types import TopicPartition
from tests.compat.live_kafka import ZooKeeper
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce, speak
from tests.ops.prometheus import Prometheus
from tests.servers import BrokerProcess, free_port
from tests.transactions.transactor import Transactor
from tests.waiting import until

PATH = ROOT / "config" / "grafana-dashboard.json"
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
def prometheus(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Prometheus]:
    """A Prometheus that reads a broker on a ZooKeeper with traffic of each kind."""
    page = f"127.0.0.1:{free_port()}"
    overrides = {
        "metrics.listener": page,
        "zookeeper.connect": zookeeper.bootstrap,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    (tmp_path / "broker").mkdir()
    with (
        BrokerProcess(tmp_path / "broker", overrides=overrides) as broker,
        closing(speak(broker.port)) as client,
        Prometheus(tmp_path / "prometheus", {"broker": page}) as running,
    ):
        create_topic(client, "t", 1)
        at = TopicPartition("t", 0)
        with GroupAdmin(broker.bootstrap) as admin:
            admin.commit("readers", {at: 0})
        transactor = Transactor(client, "writer").start()
        transactor.join(at)
        transactor.produce(at, b"v")
        transactor.end(commit=True)
        produce(client, "missing", make_batch())

        def is_read_twice() -> bool:
            produce(client, "t", make_batch())
            fetch_one(client, "t", 0)
            counted = "count_over_time(plog_group_lag_records[1m]) >= 4"
            return bool(running.query(counted))

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
