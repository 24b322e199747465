"""The report on an activity stream, which is compared with one computed without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from tests.servers import BrokerProcess
from tests.spark.activity_jobs import (
    activity,
    activity_events,
    activity_report,
    cut,
    event,
    ms,
    runner,
    send,
)
from tests.spark.marks import DEAR
from tests.spark.test_sink import read
from tests.waiting import until

pytestmark = DEAR

NewTopic = Callable[..., str]
Events, Row, Traffic = activity_events.Events, activity_events.Row, activity_events.Traffic
MINUTE_MS = 60_000
LATE_AFTER_S, SLACK_S = 600, 60
EVENTS, LONG_EVENTS = 50_000, 10_000_000
T0 = Traffic.start_ms


@pytest.fixture
def run_job(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    return runner(spark, broker, monkeypatch)


def report(spark: Any, broker: BrokerProcess, topic: str, *, window_s: int, slide_s: int) -> Any:
    """Return the rows that the job writes."""
    events = activity.events(
        spark, broker.bootstrap, topic, late_after_s=LATE_AFTER_S, slack_s=SLACK_S
    )
    return activity_report.report(events, window_s=window_s, slide_s=slide_s)


def report_in(broker: BrokerProcess, topic: str) -> dict[tuple[int, str], Row]:
    """Return what is in a topic of reports; each row once, by its key."""
    found = {}
    for record in read(broker, topic):
        row = json.loads(record.value or b"")
        key = (ms(row["window_start"]), row["kind"])
        assert key not in found
        assert (record.key or b"").decode() == f"{row['window_start'][:19]}Z {row['kind']}"
        found[key] = Row(row["events"], row["visitors"], row["late"])
    return found


def parquet_in(path: Path) -> dict[tuple[int, str], Row]:
    """Return what is in a report's Parquet files, read without Spark."""
    import pyarrow.parquet as pq

    # Those that its log names: what a batch that failed has left there is none of the report.
    log = (path / "_spark_metadata").glob("[0-9]*")
    lines = [line for batch in log for line in batch.read_text().splitlines()[1:]]
    rows = []
    for file in {json.loads(line)["path"].rpartition(f"{path.name}/")[2] for line in lines}:
        rows += pq.ParquetFile(path / file).read().to_pylist()
    found = {
        (ms(row["window_start"].isoformat()), row["kind"]): Row(
            row["events"], row["visitors"], row["late"]
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def closed(
    rows: dict[tuple[int, str], Row], events: Sequence[Events], window_ms: int
) -> dict[tuple[int, str], Row]:
    """Return the rows of windows that end before the watermark."""
    last = max(
        int(activity_events.happened(chunk, LATE_AFTER_S * 1000)[1].max()) for chunk in events
    )
    watermark = last - (LATE_AFTER_S + SLACK_S) * 1000
    kept = {key: row for key, row in rows.items() if key[0] + window_ms <= watermark}
    assert kept
    return kept


def test_report_is_that_computed_without_spark(
    broker: BrokerProcess, new_topic: NewTopic, run_job: Callable[..., str], tmp_path: Path
) -> None:
    """In two runs that are cut in the middle of windows."""
    traffic = Traffic(events_per_s=7, chunk=20_000)
    events = list(activity_events.chunks(traffic, EVENTS))
    topic, reports = new_topic(3, retention_ms=-1), new_topic(2)
    config = tmp_path / "report.toml"
    config.write_text(
        f'topic = "{topic}"\nreport-topic = "{reports}"\nwindow = "5m"\n'
        f'parquet = "{tmp_path / "parquet"}"\ncheckpoint = "{tmp_path / "checkpoint"}"\n'
    )
    for part in cut(events, T0 + 57 * MINUTE_MS):
        activity_events.load(broker.bootstrap, topic, part, traffic)
        # Which the topic of the report has not.
        start = json.dumps({topic: {str(number): 0 for number in range(3)}})
        run_job(activity_report.main, config=config, source_option=f"startingOffsets={start}")
    window_ms = 5 * MINUTE_MS
    rows = activity_events.expected_report(
        events, window_ms=window_ms, slide_ms=window_ms, late_after_ms=LATE_AFTER_S * 1000
    )
    assert sum(row.events + row.late for row in rows.values()) == EVENTS
    expected = closed(rows, events, window_ms)
    assert sum(row.late for row in expected.values()) > 35
    assert report_in(broker, reports) == expected
    assert parquet_in(tmp_path / "parquet") == expected


def test_files_of_another_checkpoint_are_refused(
    run_job: Callable[..., str], tmp_path: Path
) -> None:
    """Spark would leave the first batches of the new one out."""
    (tmp_path / "parquet" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "parquet" / "_spark_metadata" / "0").touch()
    with pytest.raises(click.UsageError, match="a new checkpoint needs a new --parquet"):
        run_job(
            activity_report.main, parquet=tmp_path / "parquet", checkpoint=tmp_path / "checkpoint"
        )


def test_checkpoint_whose_files_are_elsewhere_is_refused(
    run_job: Callable[..., str], tmp_path: Path
) -> None:
    """Spark would write the windows that are still to come there, and none of before."""
    (tmp_path / "checkpoint" / "parquet" / "commits").mkdir(parents=True)
    (tmp_path / "checkpoint" / "parquet" / "commits" / "0").touch()
    with pytest.raises(click.UsageError, match="an old checkpoint needs its old --parquet"):
        run_job(
            activity_report.main,
            parquet=f"file://{tmp_path}/new",
            checkpoint=f"file:{tmp_path}/checkpoint",
        )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"window": "10m"}, "with --window 5m, --slide 5m; .*--window 10m, --slide 10m needs"),
        ({"late_after": "1h"}, "with --late-after 10m; .*--late-after 1h needs"),
        ({"report_topic": "other"}, "with --report-topic activity-report; .*--report-topic other"),
        ({"topic": "other"}, "with --topic activity; .*--topic other"),
    ],
)
def test_checkpoint_of_another_report_is_refused(
    run_job: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changed: dict[str, str],
    said: str,
) -> None:
    monkeypatch.setattr(activity, "run", lambda *_args, **_kwargs: None)
    where = {"parquet": tmp_path / "parquet", "checkpoint": tmp_path / "checkpoint"}
    run_job(activity_report.main, "--continuous", **where)
    offsets = tmp_path / "checkpoint" / "report" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    # What may change: how the job runs, and how long it waits.
    run_job(activity_report.main, "--continuous", **where, every="1s", slack="2m", parts=1)
    with pytest.raises(click.UsageError, match=said):
        run_job(activity_report.main, "--continuous", **where, **changed)


def test_checkpoint_and_files_of_another_filesystem_are_not_looked_for_here(
    spark: Any, run_job: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Theirs are the names that were given; one without a scheme is of Spark's default."""
    starts: list[Any] = []
    monkeypatch.setattr(activity, "run", lambda _spark, given, **_how: starts.extend(given))
    monkeypatch.chdir(tmp_path)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    default = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://nn:9000")
    try:
        for directory in ("hdfs://nn:9000/c", str(tmp_path / "c")):
            run_job(
                activity_report.main,
                "--continuous",
                parquet="hdfs://nn:9000/report",
                checkpoint=directory,
            )
            into_topic, into_files = starts
            assert into_topic.args[-1] == f"{directory}/report"
            assert into_files.args[3:5] == ("hdfs://nn:9000/report", f"{directory}/parquet")
            starts.clear()
    finally:
        hadoop.set("fs.defaultFS", default)
    assert not list(tmp_path.iterdir())


def test_partition_that_was_added_lately_ends_no_window_of_the_others(
    broker: BrokerProcess, new_topic: NewTopic, run_job: Callable[..., str], tmp_path: Path
) -> None:
    traffic = Traffic(seed=2, events_per_s=1, users=300, chunk=5_000)
    events = list(activity_events.chunks(traffic, 20_000))
    topic, reports = new_topic(retention_ms=-1), new_topic()
    before, last_hour = cut(events, int(events[-1].arrival[-1]) - 60 * MINUTE_MS)
    activity_events.load(broker.bootstrap, topic, before, traffic)
    with Admin(broker.bootstrap) as admin:
        admin.create_partitions(topic, 2)
        until(lambda: len(admin.topic(topic).partitions) == 2, "the partition is there")
    activity_events.load(broker.bootstrap, topic, last_hour, traffic)
    run_job(
        activity_report.main,
        topic=topic,
        report_topic=reports,
        parquet=tmp_path / "parquet",
        checkpoint=tmp_path / "checkpoint",
    )
    window_ms = 5 * MINUTE_MS
    rows = activity_events.expected_report(
        events, window_ms=window_ms, slide_ms=window_ms, late_after_ms=LATE_AFTER_S * 1000
    )
    assert report_in(broker, reports) == closed(rows, events, window_ms)


def test_what_is_read_when_its_window_is_over_is_told_of_and_ends_the_job_in_an_error(
    broker: BrokerProcess, new_topic: NewTopic, run_job: Callable[..., str], tmp_path: Path
) -> None:
    topic, reports = new_topic(retention_ms=-1), new_topic()

    def run() -> None:
        run_job(
            activity_report.main,
            topic=topic,
            report_topic=reports,
            window="10m",
            parquet=tmp_path / "parquet",
            checkpoint=tmp_path / "checkpoint",
        )

    send(broker, topic, [event(T0), event(T0 + 60 * MINUTE_MS)])
    run()
    # As a mirror writes it that was away: records keep their times.
    held_back = [event(T0 + MINUTE_MS), event(T0 + 2 * MINUTE_MS, user="u2")]
    send(broker, topic, [*held_back, event(T0 + 61 * MINUTE_MS), event(T0 + 200 * MINUTE_MS)])
    with pytest.raises(click.ClickException, match=r"dropped 2 counts.*--slack"):
        run()
    # What is there is told all the same, and the next run finds nothing amiss.
    expected = {(T0, "view"): Row(1, 1, 0), (T0 + 60 * MINUTE_MS, "view"): Row(2, 1, 0)}
    assert report_in(broker, reports) == parquet_in(tmp_path / "parquet") == expected
    run()


def test_batches_are_told_of_when_something_was_dropped(
    spark: Any,
    broker: BrokerProcess,
    new_topic: NewTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, reports = new_topic(retention_ms=-1), new_topic()
    rows = report(spark, broker, topic, window_s=600, slide_s=600)
    for stream in (
        [event(T0 + 60 * MINUTE_MS)],
        [event(T0)],
        [event(T0 + MINUTE_MS, user="u2"), event(T0, user="u3")],
    ):
        send(broker, topic, stream)
        query = activity_report.start_report
        with suppress(activity.Dropped):
            activity.run(
                spark,
                [
                    partial(
                        query,
                        rows,
                        broker.bootstrap,
                        reports,
                        str(tmp_path / "x"),
                        availableNow=True,
                    )
                ],
                continuous=False,
            )
    reported = [
        line.partition(": their events")[0] for line in capsys.readouterr().err.splitlines()
    ]
    assert [line for line in reported if line.startswith("report")] == [
        "report: 1 records read in 2 batches",
        "report, batch 2: Spark has dropped 1 counts",
        "report: 1 records read in 1 batches",
        "report, batch 3: Spark has dropped 2 counts",
        "report: 2 records read in 1 batches",
    ]


def test_run_that_is_stopped_changes_nothing(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    """In sliding windows; the query is stopped at any point of a batch, and started again."""
    traffic = Traffic(seed=3, events_per_s=6, users=300)
    events = list(activity_events.chunks(traffic, 15_000))
    topic, reports = new_topic(3, retention_ms=-1), new_topic(2)
    rows = report(spark, broker, topic, window_s=600, slide_s=300)
    checkpoint = tmp_path / "checkpoint"
    for stop, part in zip((True, False), cut(events, T0 + 20 * MINUTE_MS), strict=True):
        activity_events.load(broker.bootstrap, topic, part, traffic)
        query = activity_report.start_report(
            rows, broker.bootstrap, reports, str(checkpoint), availableNow=True
        )
        if stop:
            until((checkpoint / "offsets" / "0").exists, "the batch begins")
            time.sleep(0.5)
            query.stop()
        else:
            query.awaitTermination()
    window_ms = 600_000
    expected = activity_events.expected_report(
        events, window_ms=window_ms, slide_ms=300_000, late_after_ms=LATE_AFTER_S * 1000
    )
    assert report_in(broker, reports) == closed(expected, events, window_ms)


def test_late_events_are_counted_where_they_arrive(
    broker: BrokerProcess,
    new_topic: NewTopic,
    run_job: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, reports = new_topic(retention_ms=-1), new_topic()
    at = [T0 + n * MINUTE_MS for n in range(200)]
    stream = [
        event(at[1]),
        event(at[2], user="u2"),
        event(at[2], kind="click"),
        event(at[1], at[11], user="u3"),  # just in time
        event(at[1], at[11] + 1, user="u4"),  # not any more: it counts as late, of 00:10
        event(at[180], at[12]),  # of a clock that is ahead: of when it came
        event(-5, at[12]),
        (at[12], b"no JSON"),
        (at[12], b'{"time": 9223372036854775807, "user": "u5", "kind": "view"}'),
        (at[12], b'{"time": "soon", "user": "u6", "kind": "view"}'),
        (at[12], b'{"time": 1767225600000, "user": null, "kind": "view"}'),
        event(at[13], user="u4"),
        event(at[60]),
        event(at[5], at[61]),  # long after its window has closed
        event(at[100]),
    ]
    said = ""
    # Batch by batch, so that windows close in between.
    for number, (low, high) in enumerate(pairwise([0, 13, 14, len(stream)])):
        send(broker, topic, stream[low:high])
        if number == 1:
            continue
        said += run_job(
            activity_report.main,
            topic=topic,
            report_topic=reports,
            window="10m",
            parquet=tmp_path / "parquet",
            checkpoint=tmp_path / "checkpoint",
        )
    expected = {
        (at[0], "view"): Row(3, 3, 0),
        (at[0], "click"): Row(1, 1, 0),
        (at[10], "view"): Row(3, 3, 1),
        (at[60], "view"): Row(1, 1, 1),
    }
    assert report_in(broker, reports) == expected
    assert parquet_in(tmp_path / "parquet") == expected
    # Of before 1970, without a time (twice), of nobody.
    assert [line for line in said.splitlines() if line.startswith("report:")] == [
        "report: 13 records read in 2 batches, 4 left out",
        "report: 2 records read in 2 batches",
    ]


def test_report_comes_while_the_stream_goes_on(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, reports = new_topic(retention_ms=-1), new_topic()
    send(broker, topic, [event(T0), event(T0 + 60 * MINUTE_MS)])
    rows = report(spark, broker, topic, window_s=600, slide_s=600)
    trigger = activity.trigger(continuous=True, every_s=1)
    bootstrap, parquet = broker.bootstrap, tmp_path / "parquet"
    starts = [
        lambda: activity_report.start_report(
            rows, bootstrap, reports, str(tmp_path / "checkpoint"), **trigger
        ),
        lambda: activity_report.start_parquet(
            spark, bootstrap, reports, str(parquet), str(tmp_path / "other"), **trigger
        ),
    ]

    def meanwhile() -> None:
        try:
            until(lambda: len(parquet_in(parquet)) == 1, "the first window")
            send(broker, topic, [event(T0 + 61 * MINUTE_MS), event(T0 + 200 * MINUTE_MS)])
            until(lambda: len(parquet_in(parquet)) == 2, "the second window")
        finally:
            for query in spark.streams.active:
                query.stop()

    # Not the other way about: in a thread of its own Spark looks for no format that is Python's.
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(meanwhile)
        activity.run(spark, starts, continuous=True)
        done.result()
    expected = {(T0, "view"): Row(1, 1, 0), (T0 + 60 * MINUTE_MS, "view"): Row(2, 1, 0)}
    assert report_in(broker, reports) == parquet_in(parquet) == expected


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_report_on_ten_millions_is_that_computed_without_spark(
    broker: BrokerProcess,
    new_topic: NewTopic,
    run_job: Callable[..., str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    traffic = Traffic()
    topic, reports = new_topic(6, retention_ms=-1), new_topic(2)
    window_ms = 5 * MINUTE_MS
    took = {}

    def timed(what: str, call: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        result = call()
        took[what] = f"{what} {time.monotonic() - begun:.0f} s"
        return result

    events = timed("made in", lambda: list(activity_events.chunks(traffic, LONG_EVENTS)))
    timed("written in", lambda: activity_events.load(broker.bootstrap, topic, events, traffic))
    with Consumer(broker.bootstrap) as consumer:
        ends = consumer.end_offsets(consumer.partitions_for(topic))
    assert sum(ends.values()) == LONG_EVENTS
    timed(
        "reported on in",
        lambda: run_job(
            activity_report.main,
            topic=topic,
            report_topic=reports,
            parquet=tmp_path / "parquet",
            checkpoint=tmp_path / "checkpoint",
        ),
    )
    rows = timed(
        "and without Spark in",
        lambda: activity_events.expected_report(
            events, window_ms=window_ms, slide_ms=window_ms, late_after_ms=LATE_AFTER_S * 1000
        ),
    )
    assert sum(row.events + row.late for row in rows.values()) == LONG_EVENTS
    expected = closed(rows, events, window_ms)
    assert report_in(broker, reports) == expected
    assert parquet_in(tmp_path / "parquet") == expected
    record_property("figures", f"{LONG_EVENTS:,} events of activity: {', '.join(took.values())}")
