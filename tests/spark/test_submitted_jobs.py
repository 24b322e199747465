"""The jobs over streams as scripts, as their examples of config/ have them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.servers import BrokerProcess
from tests.spark.activity_jobs import event, ms, send
from tests.spark.marks import DEAR
from tests.spark.submitted import configured
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


RunScript = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(broker: BrokerProcess, run_script: RunScript, tmp_path: Path) -> Callable[..., str]:
    """Return what runs a job by its example of config/, with other values; it gives its words."""

    def run(script: str, topic: str, *arguments: str, **settings: object) -> str:
        given = {"bootstrap_server": broker.bootstrap, "topic": topic, **settings}
        config = configured(
            f"{script.replace('_', '-')}.toml",
            tmp_path,
            checkpoint=quoted(tmp_path / "kept"),
            **{key: quoted(value) for key, value in given.items()},
        )
        done = run_script(f"{script}.py", "--config", str(config), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_report_over_an_activity_stream(
    broker: BrokerProcess, new_topic: NewTopic, run: Callable[..., str], tmp_path: Path
) -> None:
    topic, report, parquet = new_topic(), new_topic(), tmp_path / "report"
    activity(broker, topic)
    said = run("activity_report", topic, "--no-continuous", report_topic=report, parquet=parquet)
    rows = [json.loads(record.value or b"") for record in read(broker, report)]
    # The windows of ten minutes that the views are in begin every five.
    assert [(row["kind"], row["events"], row["visitors"]) for row in rows] == [
        ("view", VIEWS, 7)
    ] * 2
    assert sorted(pq.read_table(parquet).column("events").to_pylist()) == [VIEWS] * 2
    assert f"Activity in {report}" in said
    assert "Windows overlap: each event is in 2 of them" in said


def test_stream_of_a_topic_that_is_missing_ends_with_that_alone(
    broker: BrokerProcess, run_script: RunScript, tmp_path: Path
) -> None:
    where = ["--checkpoint", str(tmp_path / "kept"), "--parquet", str(tmp_path / "report")]
    server = "--bootstrap-server", broker.bootstrap
    done = run_script("activity_report.py", "--topic", "missing", *server, *where)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "report: 0 records read in 0 batches",
        "Error: UnknownTopicOrPartition: topic 'missing' does not exist",
    ]


def test_alerts_over_an_activity_stream(
    broker: BrokerProcess, new_topic: NewTopic, run: Callable[..., str]
) -> None:
    topic, alerts = new_topic(), new_topic()
    activity(broker, topic)
    decisions = f"decisions-of-{alerts}"
    given = ["--sink-option", f"decisionsTopic={decisions}", "--source-option", "minPartitions=2"]
    said = run("rate_limit_alerts", topic, "--no-continuous", *given, alert_topic=alerts)
    assert f"plog consume {alerts} --bootstrap-server {broker.bootstrap}" in said
    assert read(broker, decisions)
    (alert,) = read(broker, alerts)
    told = json.loads(alert.value or b"")
    assert (alert.key, told["reason"]) == (b"10.0.0.9", "crawler")


def test_alerts_over_what_hosts_publish(
    broker: BrokerProcess, new_topic: NewTopic, run: Callable[..., str], tmp_path: Path
) -> None:
    topic, alerts, plot = new_topic(), new_topic(), tmp_path / "hosts.png"
    publish(broker, topic, measured(seed=4))
    run("host_metrics", topic, alerts_topic=alerts, plot=plot)
    # The last window is not over yet.
    assert set(alerts_in(broker, alerts)) == {one for one in PLANTED if one.minute < MINUTES - 1}
    assert plot.read_bytes().startswith(b"\x89PNG")
