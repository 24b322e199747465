"""The jobs over streams by spark-submit, as their examples of config/ have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from tests.servers import BrokerProcess
from tests.spark.activity_jobs import event, ms, send
from tests.spark.marks import DEAR
from tests.spark.submitted import configured, submit
from tests.spark.test_host_metrics_job import MINUTES, PLANTED, alerts_in, measured, publish
from tests.spark.test_sink import read

pytestmark = DEAR

NewTopic = Callable[..., str]
T0_MS = ms("2026-11-25T10:00:00+00:00")
LATER_MS = T0_MS + 3_600_000
"""Of an event that ends all windows before it."""
VIEWS = 70
"""Of one address within a minute, and no click: a crawler's."""


def quoted(value: object) -> str:
    return json.dumps(str(value))


def activity(broker: BrokerProcess, topic: str) -> None:
    seen = [event(T0_MS + 100 * n, address="10.0.0.9", user=f"u{n % 7}") for n in range(VIEWS)]
    send(broker, topic, [*seen, event(LATER_MS)])


def test_report_over_an_activity_stream(
    broker: BrokerProcess,
    new_topic: NewTopic,
    workers_find_plog: dict[str, str],
    tmp_path: Path,
) -> None:
    topic, report = new_topic(), new_topic()
    activity(broker, topic)
    config = configured(
        "activity-report.toml",
        tmp_path,
        bootstrap_server=quoted(broker.bootstrap),
        topic=quoted(topic),
        report_topic=quoted(report),
        parquet=quoted(tmp_path / "report"),
        checkpoint=quoted(tmp_path / "kept"),
    )
    done = submit(
        workers_find_plog, "activity_report.py", "--config", str(config), "--no-continuous"
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(record.value or b"") for record in read(broker, report)]
    # The windows of ten minutes that the views are in begin every five.
    assert [(row["kind"], row["events"], row["visitors"]) for row in rows] == [
        ("view", VIEWS, 7)
    ] * 2
    table = pq.read_table(tmp_path / "report")
    assert sorted(table.column("events").to_pylist()) == [VIEWS] * 2
    assert f"Activity in {report}" in done.stdout


def test_alerts_over_an_activity_stream(
    broker: BrokerProcess,
    new_topic: NewTopic,
    workers_find_plog: dict[str, str],
    tmp_path: Path,
) -> None:
    topic, alerts = new_topic(), new_topic()
    activity(broker, topic)
    config = configured(
        "rate-limit-alerts.toml",
        tmp_path,
        bootstrap_server=quoted(broker.bootstrap),
        topic=quoted(topic),
        alert_topic=quoted(alerts),
        checkpoint=quoted(tmp_path / "kept"),
    )
    done = submit(
        workers_find_plog, "rate_limit_alerts.py", "--config", str(config), "--no-continuous"
    )
    assert done.returncode == 0, done.stderr
    (alert,) = read(broker, alerts)
    told = json.loads(alert.value or b"")
    assert (alert.key, told["reason"]) == (b"10.0.0.9", "crawler")


def test_alerts_over_what_hosts_publish(
    broker: BrokerProcess,
    new_topic: NewTopic,
    workers_find_plog: dict[str, str],
    tmp_path: Path,
) -> None:
    topic, alerts = new_topic(), new_topic()
    publish(broker, topic, measured(seed=4))
    config = configured(
        "host-metrics.toml",
        tmp_path,
        bootstrap_server=quoted(broker.bootstrap),
        topic=quoted(topic),
        alerts_topic=quoted(alerts),
        checkpoint=quoted(tmp_path / "kept"),
        plot=quoted(tmp_path / "hosts.png"),
    )
    done = submit(workers_find_plog, "host_metrics.py", "--config", str(config))
    assert done.returncode == 0, done.stderr
    # The last window is not over yet.
    assert set(alerts_in(broker, alerts)) == {one for one in PLANTED if one.minute < MINUTES - 1}
    assert (tmp_path / "hosts.png").read_bytes().startswith(b"\x89PNG")
