"""Three brokers on a ZooKeeper: starts, idling, creations, and what follows kill -9.

    bin/bench-cluster --help

Every round has a broker of its own alone, then a new cluster on empty directories. The ZooKeeper
serves all rounds. Not part of asv: it starts processes.
"""

from __future__ import annotations

import compileall
import datetime
import json
import os
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import bench_load
import click
from bench import commit
from bench_cluster_brokers import SLEEPER_WAKE_UPS, Broker, Cluster, Usage, running, sleeper
from bench_machine import busy_cpu_s
from bench_report import put_between
from rich.console import Console
from rich.table import Table

from plog.errors import PlogError
from tests.compat.live_kafka import ZooKeeper

TICK_MS = 2_000
"""ZooKeeper's tickTime as in bin/cluster and in ZooKeeper's own example."""
TOPIC_PARTITIONS = 3
BEGIN, END = "<!-- bin/bench-cluster --docs: begin -->", "<!-- bin/bench-cluster --docs: end -->"
HEAD = ("Measured", "Median", "Spread", "Bar", "Beside the bar", "")


class Extent(NamedTuple):
    """How large everything is.

    Attributes:
        partitions: of the cluster, from the failover's point of view.
        topics: created at once, and again one after the other.
        idle_s: without a client, before memory is read.
    """

    partitions: int
    topics: int
    idle_s: float
    session_ms: int

    @property
    def created(self) -> int:
        """Partitions of the topics that both creations leave."""
        return 2 * self.topics * TOPIC_PARTITIONS

    @property
    def failover_bar_s(self) -> float:
        return self.session_ms / 1000 + 3.0


class Row(NamedTuple):
    """One measurement, as it is named and judged.

    Attributes:
        key: of its figures.
        bar: what its median may be at most; None: nothing is demanded.
    """

    key: str
    name: str
    unit: str
    bar: float | None


def rows(extent: Extent) -> list[Row]:
    """Return the rows of the table."""
    few, many = f"{extent.created:,} partitions", f"{extent.partitions:,} partitions"
    topics = f"{extent.topics} topics x {TOPIC_PARTITIONS} partitions"
    return [
        Row("alone_ready", "alone: ready", "s", 1.0),
        Row("alone_rss", "alone: idle, RSS", "MB", 80.0),
        Row("alone_cpu", "alone: idle, processor", "%", 1.0),
        Row("joining_ready", "one of three: ready, the others running", "s", 1.0),
        Row("starting_ready", "three at once: the last one ready", "s", None),
        Row("rss", "one of three: idle, RSS", "MB", 90.0),
        Row("cpu", "one of three: idle, processor", "%", 1.0),
        Row("wakes", "one of three: idle, wake-ups", "/s", None),
        Row("sleeper_cpu", f"a process that only sleeps, {SLEEPER_WAKE_UPS} wake-ups/s", "%", None),
        Row("many_rss", f"one of three: idle with {many}, RSS", "MB", None),
        Row("many_cpu", f"one of three: idle with {many}, processor", "%", None),
        Row("create_one", f"{topics}: one request", "s", 3.0),
        Row("create_each", f"{topics}: {extent.topics} requests", "s", 3.0),
        Row("answer_few", f"first answer after kill -9, {few}", "s", 2.5),
        Row("answer_many", f"first answer after kill -9, {many}", "s", 2.5),
        Row("failover", f"controller failover, {many}", "s", extent.failover_bar_s),
    ]


class Round:
    """One round: what it has measured is in `figures`, by the keys of the rows."""

    def __init__(self, where: Path, connect: str, extent: Extent) -> None:
        self._where = where
        self._connect = connect
        self._extent = extent
        self.figures: dict[str, float] = {}

    def run(self) -> None:
        """Measure everything once."""
        alone = Broker(self._where, 9)
        with running([alone]):
            self._measure_alone(alone)
        cluster = Cluster(self._where, self._connect, self._extent.session_ms)
        with running(cluster.brokers):
            self._measure_starts(cluster)
            self._measure_idle(cluster, "")
            self._measure_creations(cluster)
            self._measure_answer(cluster, "answer_few")
            self._fill(cluster)
            self._measure_idle(cluster, "many_")
            self._measure_answer(cluster, "answer_many")
            self._measure_failover(cluster)

    def _measure_alone(self, alone: Broker) -> None:
        alone.start()
        self.figures["alone_ready"] = alone.ready_s()
        self._note_usage(Usage([alone.pid], self._extent.idle_s), "alone_")
        alone.stop()
        with sleeper() as pid:
            self._note_usage(Usage([pid], self._extent.idle_s), "sleeper_")

    def _note_usage(self, usage: Usage, prefix: str) -> None:
        self.figures[f"{prefix}rss"] = usage.rss_mb
        self.figures[f"{prefix}cpu"] = usage.cpu_percent
        self.figures[f"{prefix}wakes"] = usage.wake_ups

    def _measure_starts(self, cluster: Cluster) -> None:
        self.figures["starting_ready"] = cluster.start()
        joining = cluster.brokers[-1]
        joining.stop()
        shutil.rmtree(joining.directory)
        cluster.until_known()
        joining.start()
        self.figures["joining_ready"] = joining.ready_s()
        cluster.until_known()

    def _measure_idle(self, cluster: Cluster, prefix: str) -> None:
        cluster.hang_up()
        self._note_usage(
            Usage([broker.pid for broker in cluster.brokers], self._extent.idle_s), prefix
        )

    def _measure_creations(self, cluster: Cluster) -> None:
        """Time topics from the first request on, until every broker knows all their leaders."""
        count = self._extent.topics
        names = [f"one-{number}" for number in range(count)]

        def create_by_one() -> None:
            cluster.create(names, TOPIC_PARTITIONS)
            cluster.until_led(count * TOPIC_PARTITIONS)

        def create_each() -> None:
            for number in range(count):
                cluster.create([f"each-{number}"], TOPIC_PARTITIONS)
            cluster.until_led(2 * count * TOPIC_PARTITIONS)

        self.figures["create_one"] = seconds_of(create_by_one)
        self.figures["create_each"] = seconds_of(create_each)

    def _fill(self, cluster: Cluster) -> None:
        cluster.create(["rest"], self._extent.partitions - self._extent.created)
        cluster.until_led(self._extent.partitions)

    def _measure_answer(self, cluster: Cluster, key: str) -> None:
        """Kill a broker that is not the controller and start it again: when does it answer?"""
        controller = cluster.controller
        victim = next(broker for broker in cluster.brokers if broker != controller)
        topic, partition = cluster.led_by(victim)

        def come_back() -> None:
            victim.kill()
            victim.start()
            victim.until_acknowledges(topic, partition)

        self.figures[key] = seconds_of(come_back)
        cluster.until_known()

    def _measure_failover(self, cluster: Cluster) -> None:
        """Kill the controller's broker: when does another control, and create a topic?"""
        cluster.until_led(self._extent.partitions)
        controller = cluster.controller

        def fail_over() -> None:
            controller.kill()
            cluster.until_known()
            cluster.until_led(self._extent.partitions)
            cluster.until_created("after")

        self.figures["failover"] = seconds_of(fail_over)


def seconds_of(do: Callable[[], None]) -> float:
    """Return how long something takes."""
    begun_s = time.monotonic()
    do()
    return time.monotonic() - begun_s


# --- all rounds -----------------------------------------------------------------------------------


class Result(NamedTuple):
    """A row and its value in each round."""

    row: Row
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def beside_bar(self) -> float | None:
        return None if self.row.bar is None else self.median / self.row.bar

    @property
    def verdict(self) -> str:
        if self.beside_bar is None:
            return ""
        return "passed" if self.beside_bar <= 1 else "missed"

    def texts(self) -> list[str]:
        """Return the cells of the table."""
        digits = 1 if self.row.unit == "MB" else 2
        ratio = self.beside_bar
        return [
            self.row.name,
            f"{self.median:.{digits}f} {self.row.unit}",
            f"{min(self.values):.{digits}f} to {max(self.values):.{digits}f}",
            "" if self.row.bar is None else f"{self.row.bar:g} {self.row.unit}",
            "" if ratio is None else f"{ratio:.2f}",
            self.verdict,
        ]


def measure(where: Path, rounds: int, extent: Extent, progress: Console) -> list[Result]:
    """Measure all rows in each round."""
    # As an installation leaves it, also where Python may not write bytecode by itself.
    compileall.compile_dir(bench_load.ROOT / "plog", quiet=1)
    found: list[dict[str, float]] = []
    zookeeper = ZooKeeper(where / "zookeeper", stops=False, tick_ms=TICK_MS)
    try:
        for number in range(1, rounds + 1):
            progress.print(f"[dim]round {number} of {rounds}")
            directory = where / f"round-{number}"
            directory.mkdir()
            one = Round(directory, f"{zookeeper.bootstrap}/round-{number}", extent)
            one.run()
            found.append(one.figures)
            shutil.rmtree(directory)
    finally:
        zookeeper.kill()
    return [Result(row, [figures[row.key] for figures in found]) for row in rows(extent)]


def show(results: list[Result], console: Console) -> None:
    """Print the table."""
    table = Table(title="three brokers on a ZooKeeper")
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="right" if 0 < number < 5 else "left")
    for result in results:
        table.add_row(*result.texts())
    console.print(table)


def page(results: list[Result], about: str) -> str:
    """Return the table in Markdown, and what it is from."""
    sides = ["---", *["---:"] * 4, "---"]
    lines = [f"| {' | '.join(texts)} |" for texts in (HEAD, sides, *(r.texts() for r in results))]
    return "\n".join([*lines, "", about])


class Foreign:
    """What kept processors busy beside this process and its children, which must have ended."""

    def __init__(self) -> None:
        self._begun = self._read()

    def _read(self) -> tuple[float, float]:
        own = sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        return time.monotonic(), busy_cpu_s() - own

    @property
    def processors(self) -> float:
        """Processors, on average since the start."""
        seconds, busy_s = (now - then for now, then in zip(self._read(), self._begun, strict=True))
        return busy_s / seconds

    def about(self, run: str) -> str:
        """Return the line below a table: the day, the commit, the run, and the host's load."""
        return (
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d},"
            f" commit {commit().removesuffix('-dirty')}: {run}, {os.cpu_count()} processors,"
            f" {self.processors:.2f} of them busy with other work."
        )


def report(results: list[Result], about: str, *, as_json: bool) -> None:
    """Print the results: as a table, or their numbers as JSON."""
    if as_json:
        figures = [{**one.row._asdict(), "values": one.values} for one in results]
        click.echo(json.dumps(figures, indent=2))
        return
    show(results, Console())
    click.echo(about)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option(
    "--partitions",
    default=2_000,
    show_default=True,
    type=click.IntRange(1),
    help="Partitions of the cluster at the failover.",
)
@click.option(
    "--topics",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Topics that are created by one request, and again by one request each.",
)
@click.option(
    "--idle-s", default=10.0, show_default=True, help="Seconds before idle memory is read."
)
@click.option(
    "--session-ms",
    default=6_000,
    show_default=True,
    type=click.IntRange(2 * TICK_MS),
    help="zookeeper.session.timeout.ms.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the log directories are made (and removed): the disk to be measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead.")
@click.option(
    "--docs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write the table into a page, between its marks.",
)
def command(
    rounds: int,
    partitions: int,
    topics: int,
    idle_s: float,
    session_ms: int,
    directory: Path | None,
    as_json: bool,
    docs: Path | None,
) -> None:
    """Measure three brokers on a ZooKeeper, and one broker alone beside them.

    \b
    ready         from exec until /ready says so
    idle          the largest and the busiest broker, without a client
    topics        from the first request until every broker knows the leaders
    first answer  from kill -9, with the start, until the broker acknowledges a record
    failover      from kill -9 of the controller's broker until every live broker knows another
                  controller and the leaders that are left, and a topic is created

    A round takes about a minute. ZooKeeper's jars are those of Kafka 3.9, which Maven brings the
    first time. Keep the machine quiet: the last line has the load of other processes.
    """
    extent = Extent(partitions, topics, idle_s, session_ms)
    if partitions <= extent.created:
        raise click.UsageError(f"--partitions must be above {extent.created}: those of --topics")
    # Ended from outside, it still ends what it started, and removes its directories.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    foreign = Foreign()
    with tempfile.TemporaryDirectory(dir=directory, prefix="plog-cluster-") as made:
        try:
            results = measure(Path(made), rounds, extent, Console(stderr=True, quiet=as_json))
        except PlogError as error:
            raise click.ClickException(str(error)) from error
    about = foreign.about(f"{rounds} rounds, sessions of {session_ms / 1000:g} s")
    if docs is not None:
        put_between(docs, BEGIN, END, page(results, about))
    report(results, about, as_json=as_json)


if __name__ == "__main__":
    command(prog_name="bin/bench-cluster")
