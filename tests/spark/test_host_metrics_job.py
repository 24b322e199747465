"""The job over what hosts publish: averages as without Spark, alerts as planted, and a plot."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.ops import watch
from plog.ops.host_metrics import Agent, AgentSettings, encode
from plog.types import TopicPartition
from tests.servers import BrokerProcess
from tests.spark.conftest import ROOT
from tests.spark.jvm import by_itself
from tests.spark.marks import DEAR
from tests.spark.test_sink import read
from tests.waiting import until

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "spark")  # as spark-submit has it
    import host_metrics
    import job
    from host_metrics import Rule, Window


PYSPARKS_OWN = re.compile(
    r"Traceback \(most recent call last\):\n"
    r"(?:  File \"[^\"\n]*/pyspark/daemon\.py\", line [^\n]*\n(?:    [^\n]*\n)*)+"
    r"BrokenPipeError: [^\n]*\n"
)
"""PySpark's daemon prints this by itself when the JVM goes before its worker answers it."""


def dear(test: Callable[..., None]) -> Callable[..., None]:
    for mark in DEAR:
        test = mark(test)
    return test


NewTopic = Callable[..., str]
Run = Callable[..., Result]

T0 = job.utc_ms("2026-11-25T10:00:00")
MINUTE_MS = 60_000
EVERY_MS = 10_000
HOSTS = ("a", "b", "büro")
MINUTES = 12
FIGURES = ("cpu_used_share", "memory_used_share", "network_received_bytes_per_s", "broker_up")
PNG = b"\x89PNG\r\n"


class Record(NamedTuple):
    at_ms: int
    host: str
    figures: dict[str, float]


class Planted(NamedTuple):
    """A window that is beyond a limit of the job's defaults."""

    minute: int
    host: str
    rule: str


PLANTED = {
    Planted(2, "a", "cpu_used_share > 0.9"),
    Planted(3, "a", "cpu_used_share > 0.9"),
    Planted(3, "büro", "memory_used_share > 0.9"),
    Planted(7, "b", "min broker_up < 1"),
    Planted(11, "b", "cpu_used_share > 0.9"),  # the last window, which is over later
}


def measured(seed: int) -> list[Record]:
    """What the hosts have published: nothing is beyond its limit but what is planted."""
    chance = random.Random(seed)
    found = []
    for at in range(0, MINUTES * MINUTE_MS, EVERY_MS):
        for host in HOSTS:
            beyond = {one.rule for one in PLANTED if one[:2] == (at // MINUTE_MS, host)}
            figures = {
                # Single figures are beyond the limit of means, which is another thing.
                "cpu_used_share": chance.uniform(0.0, 0.5) + 0.48 * (at % MINUTE_MS == 0),
                "memory_used_share": chance.uniform(0.2, 0.8),
                "disk_used_share": 0.8,
                "network_received_bytes_per_s": chance.expovariate(1e-6),
                "broker_up": 1.0,
            }
            if "cpu_used_share > 0.9" in beyond:
                figures["cpu_used_share"] = chance.uniform(0.91, 1.0)
            if "memory_used_share > 0.9" in beyond:
                figures["memory_used_share"] = chance.uniform(0.91, 1.0)
            if "min broker_up < 1" in beyond and at % MINUTE_MS == EVERY_MS:
                figures["broker_up"] = 0.0
            found.append(Record(T0 + at + chance.randrange(EVERY_MS), host, figures))
    return found


def publish(broker: BrokerProcess, topic: str, records: Sequence[Record]) -> None:
    with Producer(broker.bootstrap) as producer:
        for one in records:
            value = encode(one.host, one.at_ms, 10.0, one.figures, [])
            producer.send(topic, value, key=one.host.encode(), timestamp_ms=one.at_ms)


def expected(records: Sequence[Record], figures: Sequence[str]) -> list[Window]:
    """Compute windows of a minute without Spark."""
    values: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for one in records:
        for figure in figures:
            at = (one.at_ms - one.at_ms % MINUTE_MS, one.host, figure)
            values[at].append(round(one.figures[figure], 6))  # as they are published
    return [
        Window(*at, len(some), sum(some) / len(some), min(some), max(some))
        for at, some in sorted(values.items())
    ]


def alerts_in(broker: BrokerProcess, topic: str) -> list[Planted]:
    """Return the alerts in a topic, as what was planted, in their order."""
    found = []
    for record in read(broker, topic):
        told = json.loads(record.value or b"")
        assert told["host"] == (record.key or b"").decode()
        assert (told["value"] < told["limit"]) is (" < " in told["rule"])
        start_ms, end_ms = (job.utc_ms(told[name]) for name in ("window_start", "window_end"))
        assert end_ms - start_ms == MINUTE_MS
        found.append(Planted((start_ms - T0) // MINUTE_MS, told["host"], told["rule"]))
    return found


@pytest.fixture
def run(spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the job's command in the session of all tests."""

    @contextmanager
    def shared(_name: str, **_settings: str) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(job, "session", shared)

    def run(*arguments: object) -> Result:
        given = ["--bootstrap-server", broker.bootstrap, *map(str, arguments)]
        return CliRunner().invoke(host_metrics.main, given, catch_exceptions=False)

    return run


@dear
def test_windows_are_those_that_are_computed_without_spark(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic, records = new_topic(partitions=3), measured(seed=1)
    publish(broker, topic, records)
    with Producer(broker.bootstrap) as producer:
        for value in (None, b"", b"no JSON", b"[]", b'{"host":"a"}', b'{"figures":{"x":1}}'):
            producer.send(topic, value, timestamp_ms=T0)
    wanted = expected(records, FIGURES)
    found = host_metrics.report(spark, broker.bootstrap, topic, FIGURES, window_ms=MINUTE_MS)
    assert [one[:4] for one in found] == [one[:4] for one in wanted]
    assert [one[4:] for one in found] == [pytest.approx(one[4:], rel=1e-9) for one in wanted]
    later = T0 + 5 * MINUTE_MS + 30_000
    found = host_metrics.report(
        spark, broker.bootstrap, topic, ["broker_up"], window_ms=MINUTE_MS, start_ms=later
    )
    wanted = expected([one for one in records if one.at_ms >= later], ["broker_up"])
    assert found == wanted


@dear
def test_job_alerts_on_what_is_planted_once_and_draws_it(
    broker: BrokerProcess, new_topic: NewTopic, run: Run, tmp_path: Path
) -> None:
    topic, records = new_topic(partitions=2), measured(seed=2)
    alerts = f"{topic}-alerts"  # which the job creates
    middle = T0 + 6 * MINUTE_MS
    publish(broker, topic, [one for one in records if one.at_ms < middle])
    config = tmp_path / "job.toml"
    config.write_text(
        f'topic = "{topic}"\nalerts-topic = "{alerts}"\ncheckpoint = "{tmp_path / "kept"}"\n'
        'show = ["cpu_used_share", "network_received_bytes_per_s"]\nrows = 3\n'
    )
    plot = tmp_path / "hosts.png"
    first = run("--config", config, "--plot", plot)
    assert first.exit_code == 0, first.output
    before = {one for one in PLANTED if one.minute < 5}  # what is within --late of the last record
    found = alerts_in(broker, alerts)
    assert (len(found), set(found)) == (len(before), before)
    told, _, table = first.output.partition("Hosts")
    for one in before:
        minute = job.utc_text(T0 + one.minute * MINUTE_MS)
        (line,) = [line for line in told.splitlines() if minute in line and f" {one.host} " in line]
        assert one.rule in line
    assert table.count("2026-11-25 10:0") == 3 * len(HOSTS)
    assert "MB/s" in table
    assert plot.read_bytes().startswith(PNG)

    publish(broker, topic, [one for one in records if one.at_ms >= middle])
    run("--config", config)
    open_yet = {one for one in PLANTED if one.minute == MINUTES - 1}
    assert set(alerts_in(broker, alerts)) == PLANTED - open_yet
    last = [Record(T0 + (MINUTES + 2) * MINUTE_MS, host, {"load_1m": 1.0}) for host in HOSTS]
    publish(broker, topic, last)
    second = run("--config", config)
    assert second.output.partition("Hosts")[0].count(" > 0.9 ") == len(open_yet)
    found = alerts_in(broker, alerts)
    assert (len(found), set(found)) == (len(PLANTED), PLANTED)


@dear
def test_alerts_come_as_they_are_found_until_somebody_ends_the_job(
    spark: Any,
    broker: BrokerProcess,
    new_topic: NewTopic,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, alerts = new_topic(), new_topic()
    publish(broker, topic, measured(seed=3))
    told: list[host_metrics.Alert] = []
    wanted = {one for one in PLANTED if one.minute < MINUTES - 1}

    def look(found: Sequence[host_metrics.Alert]) -> None:
        told.extend(found)
        if len(told) >= len(wanted):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(host_metrics, "print_alerts", look)
    done = run(
        *("--topic", topic, "--alerts-topic", alerts, "--checkpoint", tmp_path / "kept"),
        *("--continuous", "--every", "200ms"),
    )
    assert done.exit_code == 0, done.output
    assert "Ctrl-C ends it" in done.stderr
    found = {Planted((one.start_ms - T0) // MINUTE_MS, one.host, one.rule) for one in told}
    assert (len(told), found) == (len(wanted), wanted)
    assert spark.streams.active == []


@dear
def test_ctrl_c_ends_the_job_with_no_traceback(
    broker: BrokerProcess, new_topic: NewTopic, workers_find_plog: dict[str, str], tmp_path: Path
) -> None:
    topic, alerts, said = new_topic(), new_topic(), tmp_path / "said"
    publish(broker, topic, measured(seed=5))
    # By spark-submit the JVM ends by itself, and leaves its workers to complain.
    command = [
        sys.executable, str(ROOT / "spark" / "host_metrics.py"), "--continuous", "--every", "1s",
        "--bootstrap-server", broker.bootstrap, "--topic", topic, "--alerts-topic", alerts,
        "--checkpoint", str(tmp_path / "kept"),
    ]  # fmt: skip
    with said.open("wb") as output:
        running = subprocess.Popen(
            command,
            env=by_itself(workers_find_plog),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: "cpu_used_share > 0.9" in said.read_text("utf-8"), "there are alerts", 120)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal sends it
        assert running.wait(60) == 0, said.read_text("utf-8")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert "Traceback" not in PYSPARKS_OWN.sub("", said.read_text("utf-8"))
    assert "alerts: 216 records read in" in said.read_text("utf-8")


@dear
@pytest.mark.parametrize(("late", "alerted"), [("1m", False), ("20m", True)])
def test_what_an_outage_held_back_is_waited_for_or_told_of(
    broker: BrokerProcess,
    new_topic: NewTopic,
    run: Run,
    tmp_path: Path,
    late: str,
    alerted: bool,
) -> None:
    topic, alerts = new_topic(), new_topic()
    given = ("--topic", topic, "--alerts-topic", alerts, "--checkpoint", tmp_path / "kept")
    idle, busy = {"cpu_used_share": 0.1}, {"cpu_used_share": 0.95}
    publish(broker, topic, [Record(T0 + at * MINUTE_MS, "a", idle) for at in range(11)])
    first = run(*given, "--late", late)
    assert "dropped" not in first.stderr
    held_back = Record(T0 + 2 * MINUTE_MS, "b", busy)
    publish(broker, topic, [held_back, Record(T0 + 40 * MINUTE_MS, "a", idle)])
    second = run(*given, "--late", late)
    assert (first.exit_code, second.exit_code) == (0, 0 if alerted else 1)
    assert ("Spark has dropped 1 averages" in second.stderr) is not alerted
    said = "Error: 1 averages arrived after their windows had closed"
    assert (said in second.stderr) is not alerted
    assert "Hosts" in second.stdout  # the table is there all the same
    planted = Planted(2, "b", "cpu_used_share > 0.9")
    assert alerts_in(broker, alerts) == ([planted] if alerted else [])


@dear
def test_host_whose_clock_is_ahead_does_not_end_the_windows_of_others(
    broker: BrokerProcess, new_topic: NewTopic, run: Run, tmp_path: Path
) -> None:
    topic, alerts = new_topic(), new_topic()
    given = ("--topic", topic, "--alerts-topic", alerts, "--checkpoint", tmp_path / "kept")
    idle, busy = {"cpu_used_share": 0.1}, {"cpu_used_share": 0.95}

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def publish_ahead() -> None:
        publish(broker, topic, [Record(now_ms() + 60 * MINUTE_MS, "ahead", idle)])

    publish_ahead()
    first = run(*given, "--window", "1s", "--late", "1s")
    began = now_ms()
    publish(broker, topic, [Record(began, "b", busy)])
    time.sleep(3)  # the window and --late are over
    publish_ahead()
    second = run(*given, "--window", "1s", "--late", "1s")
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    (alert,) = read(broker, alerts)
    told = json.loads(alert.value or b"")
    assert (told["host"], job.utc_ms(told["window_start"])) == ("b", began - began % 1000)


@dear
def test_what_an_agent_publishes_is_what_the_job_shows_and_has_limits_for(
    broker: BrokerProcess,
    new_topic: NewTopic,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, alerts = new_topic(), new_topic()
    page = "plog_offline_partitions 1\n"
    monkeypatch.setattr(watch, "read", lambda _address, at_s, _timeout_s: watch.parse(page, at_s))
    settings = AgentSettings(
        broker.bootstrap, topic, "real", every_s=0.2, count=2, metrics="broker:9095"
    )
    assert Agent(settings, threading.Event(), pytest.fail).run() == 0
    windows: list[Window] = []
    print_windows = host_metrics.print_windows

    def printed(found: Sequence[Window], *arguments: Any) -> None:
        windows.extend(found)
        print_windows(found, *arguments)

    monkeypatch.setattr(host_metrics, "print_windows", printed)
    done = run("--topic", topic, "--alerts-topic", alerts, "--checkpoint", tmp_path / "kept")
    assert done.exit_code == 0, done.stderr
    rules = [host_metrics.RuleType().convert(text, None, None) for text in host_metrics.RULES]
    figures = {*host_metrics.SHOWN, *(rule.figure for rule in rules)}
    assert {one.figure for one in windows} == figures
    assert {one.host for one in windows} == {"real"}
    assert "max broker_offline_partitions > 0" in done.stdout


@dear
def test_report_has_the_options_of_the_source_and_a_checkpoint_its_window(
    broker: BrokerProcess, new_topic: NewTopic, run: Run, tmp_path: Path
) -> None:
    topic, alerts, kept = new_topic(), new_topic(), tmp_path / "kept"
    given = ("--topic", topic, "--alerts-topic", alerts, "--checkpoint", kept)
    with Producer(broker.bootstrap, transactional_id=f"{topic}-id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, encode("uncommitted", T0, 10.0, {"load_1m": 1.0}, []), timestamp_ms=T0)
        producer.flush()
        options = ("kafka.isolation.level=read_uncommitted", "maxOffsetsPerTrigger=1000")
        of_source = [word for option in options for word in ("--source-option", option)]
        shown = run(*given, "--show", "load_1m", *of_source)
        assert (shown.exit_code, "uncommitted" in shown.stdout) == (0, True), shown.output
        producer.abort_transaction()
    other = run(*given, "--window", "120s")
    assert other.exit_code == 2
    assert "was created with --window 1m; --window 2m needs a new --checkpoint" in other.stderr
    assert "no figures" in run(*given, "--window", "60000", "--late", "2m").stderr


def test_topic_that_another_broker_hears_of_late_is_awaited(broker: BrokerProcess) -> None:
    topic = f"late-{uuid.uuid4()}"

    def create() -> None:
        time.sleep(0.5)
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=2)

    with ThreadPoolExecutor(1) as later, Consumer(broker.bootstrap) as consumer:
        created = later.submit(create)
        found = host_metrics.await_partitions(consumer, topic)
        created.result()
    assert found == [TopicPartition(topic, index) for index in range(2)]


@dear
def test_topic_that_is_missing_or_empty_is_said(
    new_topic: NewTopic, run: Run, tmp_path: Path
) -> None:
    given = ("--checkpoint", tmp_path / "kept", "--alerts-topic", new_topic(), "--topic")
    missing = run(*given, "not-there")
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert "not-there" in missing.stderr
    empty = run(*given, new_topic())
    assert (empty.exit_code, empty.stdout) == (1, "No alerts.\n")
    assert "no figures of hosts in topic" in empty.stderr


def test_plot_has_a_panel_of_each_figure_with_a_line_of_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    collections = pytest.importorskip("matplotlib.collections")
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    means = {"a": [0.5, 0.95, 0.6], "büro": [0.2, 0.3]}
    windows = [
        Window(T0 + n * MINUTE_MS, host, "cpu_used_share", 6, mean, mean - 0.1, mean + 0.01)
        for host, some in means.items()
        for n, mean in enumerate(some)
    ]
    windows.append(Window(T0, "a", "network_sent_bytes_per_s", 6, 2e6, 1e6, 3e6))
    limits = ("cpu_used_share > 0.9", "min cpu_used_share < 0.15", "load_1m > 4")
    rules = [host_metrics.RuleType().convert(text, None, None) for text in limits]
    shown = ("cpu_used_share", "network_sent_bytes_per_s")
    path = tmp_path / "hosts.png"
    host_metrics.save_plot(windows, shown, rules, str(path))
    monkeypatch.undo()
    (figure,) = drawn
    try:
        assert path.read_bytes().startswith(PNG)
        cpu, network = figure.axes
        assert [one.get_title(loc="left") for one in figure.axes] == ["cpu used", "network sent"]
        lines = {line.get_label(): line for line in cpu.get_lines()}
        hosts = {name: line for name, line in lines.items() if not name.startswith("_")}
        assert {name: list(line.get_ydata()) for name, line in hosts.items()} == means
        starts = [datetime.fromtimestamp(T0 / 1000 + 60 * n, UTC) for n in range(3)]
        assert list(hosts["a"].get_xdata()) == starts
        dashed = [lines[name].get_ydata()[0] for name in lines.keys() - hosts.keys()]
        assert sorted(dashed) == [0.15, 0.9]
        red = [
            point[1]
            for points in cpu.collections
            if isinstance(points, collections.PathCollection)
            for point in points.get_offsets()
        ]
        assert red == pytest.approx([0.95, 0.1])  # the mean of one window, the least of another
        (line,) = (line for line in network.get_lines() if line.get_label() == "a")
        assert list(line.get_ydata()) == [2e6]
        assert network.yaxis.get_major_formatter()(2e6, None) == "2.0 MB/s"
    finally:
        pyplot.close(figure)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("cpu_used_share > 0.9", Rule("mean", "cpu_used_share", True, 0.9)),
        ("  min broker_up<1 ", Rule("min", "broker_up", False, 1.0)),
        ("max  load_1m > 1.5e2", Rule("max", "load_1m", True, 150.0)),
        ("disk_free_bytes < .5", Rule("mean", "disk_free_bytes", False, 0.5)),
    ],
)
def test_limits_are_read_and_written(text: str, rule: Rule) -> None:
    read_limit = host_metrics.RuleType().convert
    assert read_limit(text, None, None) == rule
    assert read_limit(str(rule), None, None) == rule


@pytest.mark.parametrize(
    "arguments",
    [
        ["--alert", "cpu_used_share"],
        ["--alert", "p99 cpu_used_share > 1"],
        ["--alert", "cpu_used_share > much"],
        ["--window", "0"],
        ["--window", "soon"],
        ["--plot", "hosts.png", "--continuous"],
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    arguments: list[str], tmp_path: Path
) -> None:
    given = ["--checkpoint", str(tmp_path), *arguments]
    done = CliRunner().invoke(host_metrics.main, given)
    assert done.exit_code == 2, done.output
    assert list(tmp_path.iterdir()) == []


def test_example_of_a_config_file_is_the_defaults() -> None:
    given = ["--config", str(ROOT / "config" / "host-metrics.toml")]
    with host_metrics.main.make_context("job", given) as example:
        read_by = dict(example.params)
    with host_metrics.main.make_context("job", ["--checkpoint", "x"]) as plain:
        defaults = dict(plain.params)
    written = {"checkpoint": "/var/lib/plog/host-metrics", "plot": "hosts.png"}
    assert read_by == defaults | written


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("cpu_used_share", 0.123, "12.3%"),
        ("disk_free_bytes", 999, "999.0 B"),
        ("disk_free_bytes", 78.5e9, "78.5 GB"),
        ("network_sent_bytes_per_s", 2.5e6, "2.5 MB/s"),
        ("load_1m", 1.5, "1.5"),
        ("broker_appended_records_per_s", 123456.7, "123,457"),
    ],
)
def test_figures_are_told_in_their_units(figure: str, value: float, text: str) -> None:
    assert host_metrics.figure_text(figure, value) == text
