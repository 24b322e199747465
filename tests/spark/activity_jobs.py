"""What the tests of the jobs over the activity stream have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from click.testing import CliRunner

from plog.client.producer import Producer
from tests.servers import BrokerProcess
from tests.spark.conftest import ROOT

with pytest.MonkeyPatch.context() as patch:
    # As spark-submit has it, so that the jobs find each other.
    patch.syspath_prepend(ROOT / "spark")
    import activity
    import activity_events
    import activity_report
    import rate_limit_alerts
    from activity_events import Events

__all__ = ["activity", "activity_events", "activity_report", "rate_limit_alerts"]


def share(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs take the session of all tests for theirs, with what they set of the state."""

    def session(_name: str, **settings: str) -> Any:
        for name, value in settings.items():
            if "stateStore" in name:
                spark.conf.set(name.replace("_", "."), value)
        return spark

    def stop() -> None:
        for name in activity.STATE:
            spark.conf.unset(name.replace("_", "."))

    monkeypatch.setattr("plog.spark.session.session", session)
    monkeypatch.setattr(spark, "stop", stop)


def runner(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Return what runs a job's command in the session of all tests, and gives its stderr."""
    share(spark, monkeypatch)

    def run(command: Any, *flags: str, **options: object) -> str:
        arguments = ["--bootstrap-server", broker.bootstrap, *flags]
        for name, value in options.items():
            arguments += [f"--{name.replace('_', '-')}", str(value)]
        done = CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
        return done.stderr

    return run


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def cut(events: Sequence[Events], at_ms: int) -> tuple[list[Events], list[Events]]:
    """Cut a stream where an arrival is the first of some time."""
    came = [chunk.arrival < at_ms for chunk in events]
    first = [chunk.take(mask) for chunk, mask in zip(events, came, strict=True)]
    return first, [chunk.take(~mask) for chunk, mask in zip(events, came, strict=True)]


def event(
    time_ms: int,
    arrival_ms: int | None = None,
    *,
    user: str | None = "u1",
    kind: str | None = "view",
    address: str = "10.0.0.1",
) -> tuple[int, bytes]:
    """Return a record's timestamp and value."""
    value = {"time": time_ms, "user": user, "kind": kind, "page": "/", "address": address}
    return (time_ms if arrival_ms is None else arrival_ms), json.dumps(value).encode()


def send(broker: BrokerProcess, topic: str, stream: Sequence[tuple[int, bytes]]) -> None:
    with Producer(broker.bootstrap) as producer:
        for timestamp_ms, value in stream:
            producer.send(topic, value, timestamp_ms=timestamp_ms)
