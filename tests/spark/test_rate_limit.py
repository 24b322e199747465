"""The alerts on crawlers and abusers: those that were put into the stream, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from tests.servers import BrokerProcess
from tests.spark.activity_jobs import (
    activity,
    activity_events,
    cut,
    event,
    ms,
    rate_limit_alerts,
    runner,
    send,
)
from tests.spark.marks import DEAR
from tests.spark.test_sink import read

pytestmark = DEAR

NewTopic = Callable[..., str]
Alert, Traffic = activity_events.Alert, activity_events.Traffic
T0 = Traffic.start_ms
EVENTS, LONG_EVENTS = 30_000, 10_000_000
RULES = {
    "window_ms": 60_000,
    "slide_ms": 10_000,
    "quiet_ms": 120_000,
    "limit": 100,
    "crawl_limit": 60,
    "late_after_ms": 60_000,
}
"""The job's defaults."""


class Planted(NamedTuple):
    """A burst that was put into the stream."""

    user: str
    reason: str
    start_ms: int


@pytest.fixture
def run_job(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    return runner(spark, broker, monkeypatch)


def alerts_in(broker: BrokerProcess, topic: str) -> list[Alert]:
    """Return what is in a topic of alerts, each user's in their order."""
    found = []
    for record in read(broker, topic):
        row = json.loads(record.value or b"")
        assert row["key"] == (record.key or b"").decode()
        found.append(Alert(row["key"], row["reason"], ms(row["window_start"]), row["events"]))
    return sorted(found, key=lambda alert: (alert.user, alert.window_start_ms))


def planted(traffic: Traffic, until_ms: int) -> list[Planted]:
    """Return the bursts that begin before some time, each user's in their order."""
    found = []
    for burst in activity_events.bursts(traffic):
        if burst.start_ms >= until_ms:
            return sorted(found)
        reason = "crawler" if burst.is_crawler else "abuse"
        found.append(Planted(burst.user, reason, burst.start_ms))
    raise AssertionError("bursts have no end")


def check(
    found: list[Alert], traffic: Traffic, events: list[activity_events.Events]
) -> list[Planted]:
    """See that alerts are those computed without Spark, and those of the bursts put there."""
    last_ms = int(events[-1].arrival[-1])
    computed = activity_events.expected_alerts(events, traffic, **RULES)
    # What began in the last minutes has windows that are open.
    until_ms = last_ms - 5 * 60_000
    bursts = planted(traffic, until_ms)
    of_bursts = [alert for alert in found if alert.window_start_ms < until_ms]
    assert of_bursts == sorted(alert for alert in computed if alert.window_start_ms < until_ms)
    assert [(one.user, one.reason) for one in of_bursts] == [
        (burst.user, burst.reason) for burst in bursts
    ]
    for alert, burst in zip(of_bursts, bursts, strict=True):
        assert -60_000 < alert.window_start_ms - burst.start_ms < 60_000
    return bursts


def test_alerts_are_those_planted(
    broker: BrokerProcess, new_topic: NewTopic, run_job: Callable[..., str], tmp_path: Path
) -> None:
    """In two runs that are cut in the middle of a long burst."""
    traffic = Traffic(events_per_s=4, chunk=20_000)
    events = list(activity_events.chunks(traffic, EVENTS))
    long = next(
        burst
        for burst in activity_events.bursts(traffic)
        if burst.end_ms - burst.start_ms > 20 * 60_000
    )
    topic, alerts = new_topic(3, retention_ms=-1), new_topic(2)
    for part in cut(events, long.start_ms + 9 * 60_000):
        activity_events.load(broker.bootstrap, topic, part, traffic)
        run_job(
            rate_limit_alerts.main,
            topic=topic,
            alert_topic=alerts,
            checkpoint=tmp_path / "checkpoint",
        )
    bursts = check(alerts_in(broker, alerts), traffic, events)
    assert len(bursts) == 5
    assert len({burst.user for burst in bursts}) == 4  # one comes twice, and is told of twice


def test_burst_goes_on_over_short_pauses_batches_and_runs(
    broker: BrokerProcess, new_topic: NewTopic, run_job: Callable[..., str], tmp_path: Path
) -> None:
    topic, alerts = new_topic(retention_ms=-1), new_topic()
    stream = [
        # Windows that end at 110 to 160 s have five, and at 220 to 270 s, and at 350 s and later.
        *(
            event(T0 + s * 1000, user="a", kind="search")
            for s in (*range(100, 105), *range(215, 220), *range(345, 350))
        ),
        # Too few in each window.
        *(event(T0 + s * 1000, user="b", kind="search") for s in range(0, 500, 16)),
        # Who views so many is a crawler, but not who clicks.
        *(event(T0 + s * 1000, user=user) for s in range(300, 303) for user in "cd"),
        event(T0 + 303_000, user="d", kind="click"),
        # Late ones are of no interest any more.
        *(event(T0 + 310_000, T0 + 400_000, user="e") for _ in range(9)),
        event(T0 + 1_000_000, user="f"),
    ]
    ends = [0, 103, 230, 2000]
    for low, high in pairwise(ends):
        part = [one for one in stream if T0 + low * 1000 <= one[0] < T0 + high * 1000]
        send(broker, topic, sorted(part))
        run_job(
            rate_limit_alerts.main,
            topic=topic,
            alert_topic=alerts,
            checkpoint=tmp_path / "checkpoint",
            window="60s",
            slide="10s",
            quiet="60s",
            limit=5,
            crawl_limit=3,
            late_after="20s",
            slack="1s",
        )
    assert alerts_in(broker, alerts) == [
        Alert("a", "abuse", T0 + 50_000, 5),
        Alert("a", "abuse", T0 + 290_000, 5),
        Alert("c", "crawler", T0 + 250_000, 3),
    ]


def test_users_of_one_address_count_together(
    broker: BrokerProcess,
    new_topic: NewTopic,
    run_job: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, alerts = new_topic(retention_ms=-1), new_topic()
    stream = [
        event(T0 + n, user=f"u{n}", kind="search", address=f"10.0.0.{n % 2}") for n in range(9)
    ]
    # Who comes without a user, or says no kind, has an address all the same.
    stream += [event(T0 + 20 + n, user=None, address="10.0.0.7") for n in range(4)]
    stream += [event(T0 + 24, user=None, kind=None, address="10.0.0.7")]
    send(broker, topic, [*stream, (T0 + 30, b"no JSON"), event(T0 + 10**6)])
    said = run_job(
        rate_limit_alerts.main,
        topic=topic,
        alert_topic=alerts,
        checkpoint=tmp_path / "checkpoint",
        by="address",
        limit=5,
    )
    assert alerts_in(broker, alerts) == [
        Alert("10.0.0.0", "abuse", T0 - 50_000, 5),
        Alert("10.0.0.7", "abuse", T0 - 50_000, 5),
    ]
    assert "alerts: 16 records read in 2 batches, 1 left out" in said


def test_late_events_are_left_out(
    broker: BrokerProcess, new_topic: NewTopic, run_job: Callable[..., str], tmp_path: Path
) -> None:
    """They would count of when they came, as a burst that never was."""
    topic, alerts = new_topic(retention_ms=-1), new_topic()
    came = T0 + 600_000
    stream = [
        *(event(came - 60_000, came, user="in time", kind="search") for _ in range(5)),
        *(event(came - 60_001, came, user="late", kind="search") for _ in range(5)),
        event(T0 + 10**6),
    ]
    send(broker, topic, stream)
    run_job(
        rate_limit_alerts.main,
        topic=topic,
        alert_topic=alerts,
        checkpoint=tmp_path / "checkpoint",
        limit=5,
        late_after="60s",
    )
    assert {alert.user for alert in alerts_in(broker, alerts)} == {"in time"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slide": "5s"}, "with --slide 10s; .*--slide 5s needs"),
        ({"by": "address"}, "with --by user; .*--by address needs"),
        ({"quiet": "1m"}, "with --quiet 2m; .*--quiet 1m needs"),
        ({"alert_topic": "other"}, "with --alert-topic activity-alerts; .*--alert-topic other"),
    ],
)
def test_checkpoint_of_other_windows_is_refused(
    run_job: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changed: dict[str, str],
    said: str,
) -> None:
    monkeypatch.setattr(activity, "run", lambda *_args, **_kwargs: None)
    run_job(rate_limit_alerts.main, checkpoint=tmp_path)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    # A limit is asked of windows as they end, not of what is counted.
    run_job(rate_limit_alerts.main, checkpoint=tmp_path, limit=50, crawl_limit=9, slack="2m")
    with pytest.raises(click.UsageError, match=said):
        run_job(rate_limit_alerts.main, checkpoint=tmp_path, **changed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_alerts_of_ten_millions_are_those_planted(
    broker: BrokerProcess,
    new_topic: NewTopic,
    run_job: Callable[..., str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    traffic = Traffic()
    events = list(activity_events.chunks(traffic, LONG_EVENTS))
    topic, alerts = new_topic(6, retention_ms=-1), new_topic(2)
    activity_events.load(broker.bootstrap, topic, events, traffic)
    begun = time.monotonic()
    run_job(
        rate_limit_alerts.main, topic=topic, alert_topic=alerts, checkpoint=tmp_path / "checkpoint"
    )
    took = time.monotonic() - begun
    bursts = check(alerts_in(broker, alerts), traffic, events)
    record_property(
        "figures", f"{LONG_EVENTS:,} events, {len(bursts)} bursts: alerts on all in {took:.0f} s"
    )
