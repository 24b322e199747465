"""The activity stream itself, and the command lines of what makes it and of the jobs over it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.servers import BrokerProcess
from tests.spark.activity_jobs import activity_events
from tests.spark.conftest import ROOT
from tests.spark.test_sink import read

Traffic = activity_events.Traffic
NewTopic = Callable[..., str]


def test_seed_makes_the_stream() -> None:
    traffic = Traffic(events_per_s=100, chunk=5_000)
    once, again = (list(activity_events.chunks(traffic, 20_000)) for _ in range(2))
    other = list(activity_events.chunks(Traffic(seed=2), 20_000))
    assert [len(chunk.time) for chunk in once] == [len(chunk.time) for chunk in again]
    assert all(
        (left == right).all()
        for one, two in zip(once, again, strict=True)
        for left, right in zip(one, two, strict=True)
    )
    assert sum(len(chunk.time) for chunk in once) == 20_000
    assert (other[0].user[:100] != once[0].user[:100]).any()
    arrivals = [int(one) for chunk in once for one in chunk.arrival]
    assert arrivals == sorted(arrivals)
    late = sum(int(activity_events.happened(chunk, 60_000)[0].sum()) for chunk in once)
    assert 20_000 * 0.005 < late < 20_000 * 0.05


def test_events_are_written_as_they_are(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic(3, retention_ms=-1)
    traffic = Traffic(events_per_s=0.5)
    events = list(activity_events.chunks(traffic, 2_000))
    assert activity_events.load(broker.bootstrap, topic, events, traffic) == 2_000
    who = activity_events.names(traffic)
    (whole,) = events
    expected = sorted(
        (who[user], arrival, happened, f"s{session}", activity_events.KINDS[kind])
        for happened, arrival, user, session, kind, _ in zip(*whole, strict=True)
    )
    found = []
    for record in read(broker, topic):
        event = json.loads(record.value or b"")
        assert event["user"] == (record.key or b"").decode()
        assert event["page"].startswith("/search?" if event["kind"] == "search" else "/page/")
        assert event["address"].startswith("10.")
        found.append(
            (event["user"], record.timestamp, event["time"], event["session"], event["kind"])
        )
    assert sorted(found) == expected


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("activity_report.py", ["--help"], "--slide DURATION"),
        ("activity_report.py", ["--window", "5 m"], "invalid duration '5 m': use e.g. 90s"),
        ("activity_report.py", ["--slide", "2m"], "is not a multiple of --slide"),
        ("rate_limit_alerts.py", ["--help"], "--crawl-limit INTEGER"),
        ("rate_limit_alerts.py", ["--quiet", "15s"], "is not a multiple of --slide"),
        (
            "activity_report.py",
            ["--config", "config/activity-report.toml", "--slide", "3m"],
            "is not a multiple of --slide",
        ),
        (
            "rate_limit_alerts.py",
            ["--config", "config/rate-limit-alerts.toml", "--window", "15s"],
            "is not a multiple of --slide",
        ),
        (
            # What the file says is taken back; what follows is looked at only then.
            "activity_report.py",
            ["--config", "config/activity-report.toml", "--no-continuous", "--slide", "3m"],
            "is not a multiple of --slide",
        ),
        ("activity_events.py", ["--help"], "--seed INTEGER"),
        ("activity_report.py", ["--help"], "--continuous / --no-continuous"),
        ("rate_limit_alerts.py", ["--help"], "--continuous / --no-continuous"),
        ("host_metrics.py", ["--help"], "--continuous / --no-continuous"),
        ("load_parquet.py", ["--help"], "Usage: load_parquet.py"),
        ("replay.py", ["--help"], "Usage: replay.py"),
    ],
)
def test_command_line(script: str, arguments: list[str], words: str) -> None:
    needed = {
        "activity_report.py": ["--checkpoint", "c", "--parquet", "p"],
        "rate_limit_alerts.py": ["--checkpoint", "c"],
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "spark" / script), *needed.get(script, []), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
