"""What clients wait for when a leader is killed, and when three brokers are restarted in turn.

    bin/bench-moves --help

Every round has a new cluster of three brokers, and a topic with three replicas. Not part of asv: it
starts processes.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import bench_load
import click
from bench_cluster import TICK_MS, Foreign, Result, Row, page, report, seconds_of
from bench_cluster_brokers import STOP_TIMEOUT_S, Broker, Cluster, running, until
from bench_report import put_between
from confluent_kafka import Producer
from rich.console import Console

from plog.client.admin import Admin
from plog.errors import PlogError
from plog.ops.load import LoadError
from tests.cluster.elections import Elections
from tests.compat.live_kafka import ZooKeeper

BEGIN, END = "<!-- bin/bench-moves --docs: begin -->", "<!-- bin/bench-moves --docs: end -->"
TOPIC, PARTITIONS = "moves", 6
PAUSE_S = 0.02
ELECTION_BAR_S = 0.7
"""What an election may take once ZooKeeper has ended the session, which it does a tick late."""
STALL_BAR_S = 1.0
SETTINGS: dict[str, object] = {"min.insync.replicas": "2"}


def rows(session_ms: int) -> list[Row]:
    """Return the rows of the table."""
    bar_s = (session_ms + TICK_MS) / 1000 + ELECTION_BAR_S
    return [
        Row("killed", "new leaders after kill -9", "s", bar_s),
        Row("controller_killed", "new leaders after kill -9 of the controller's broker", "s", None),
        Row("stall", "rolling restart: the longest wait of a producer", "s", STALL_BAR_S),
        Row("errors", "rolling restart: records with an error", "", None),
        Row("restart", "rolling restart: all three brokers", "s", None),
    ]


class Waits(NamedTuple):
    """What a producer has seen.

    Attributes:
        longest_s: until a record was acknowledged.
        errors: of records that were not.
        records: all of them.
    """

    longest_s: float
    errors: int
    records: int


class Writer:
    """An idempotent producer of librdkafka that writes to all partitions, again and again."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,  # it reports each connection that ends
            }
        )
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._longest_s = 0.0
        self._errors = self._records = 0
        self._unanswered = 1  # until the thread has seen otherwise

    def start(self) -> None:
        """Begin to write. What the first records wait for does not count: an id, connections."""
        for index in range(PARTITIONS):
            self._producer.produce(TOPIC, b"first", partition=index)
        if self._producer.flush(STOP_TIMEOUT_S):
            raise LoadError("the first records are not acknowledged")
        self._thread.start()

    def stop(self) -> Waits:
        """Stop writing; wait until every record is acknowledged, or has failed."""
        self._stops.set()
        self._thread.join()
        if self._unanswered:
            raise LoadError(f"{self._unanswered} records have no answer after {STOP_TIMEOUT_S} s")
        return Waits(self._longest_s, self._errors, self._records)

    def _run(self) -> None:
        while not self._stops.wait(PAUSE_S):
            for index in range(PARTITIONS):
                note = partial(self._note, time.monotonic())
                self._producer.produce(TOPIC, b"x" * 100, partition=index, on_delivery=note)
                self._records += 1
            self._producer.poll(0)
        self._unanswered = self._producer.flush(STOP_TIMEOUT_S)

    def _note(self, sent_s: float, error: object, _: object) -> None:
        self._longest_s = max(self._longest_s, time.monotonic() - sent_s)
        self._errors += error is not None


@contextmanager
def written(bootstrap: str, found: list[Waits]) -> Iterator[None]:
    """Write during the block; append what the producer has seen."""
    writer = Writer(bootstrap)
    writer.start()
    try:
        yield
    finally:
        found.append(writer.stop())


class Round:
    """One round: what it has measured is in `figures`, by the keys of the rows."""

    def __init__(self, where: Path, connect: str, session_ms: int) -> None:
        self._cluster = Cluster(where, connect, session_ms, **SETTINGS)
        self.figures: dict[str, float] = {}

    @property
    def _bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{one.port}" for one in self._cluster.brokers)

    def run(self) -> None:
        """Measure everything once."""
        with running(self._cluster.brokers):
            self._cluster.start()
            replicas = [broker.id for broker in self._cluster.brokers]
            assignments = {
                index: replicas[index % len(replicas) :] + replicas[: index % len(replicas)]
                for index in range(PARTITIONS)
            }
            with Admin(self._bootstrap) as admin:
                admin.create_topic(TOPIC, assignments=assignments)
            self._settle()
            self._measure_restart()
            controller = self._cluster.controller
            other = next(one for one in self._cluster.brokers if one != controller)
            self._measure_kill(other, "killed")
            self._measure_kill(controller, "controller_killed")

    def _settle(self) -> None:
        """Wait until all are in sync, and have each broker lead as many partitions."""
        everyone = len(self._cluster.brokers)

        def is_so(broker: Broker) -> bool:
            parts = [
                part
                for topic in broker.metadata().topics
                if topic.name == TOPIC
                for part in topic.partitions
            ]
            return len(parts) == PARTITIONS and all(len(one.isr_nodes) == everyone for one in parts)

        def leads(broker: Broker) -> bool:
            return any(
                part.leader_id == broker.id
                for topic in broker.metadata().topics
                if topic.name == TOPIC
                for part in topic.partitions
            )

        self._cluster.until_known()
        until(lambda: all(map(is_so, self._cluster.live)), "in sync")
        with Elections(self._bootstrap) as elections:
            elections.elect_preferred()
        until(lambda: all(map(leads, self._cluster.live)), "led by those that are preferred")

    def _measure_restart(self) -> None:
        """Restart all brokers, the controller last, as bin/rolling-restart does, under load."""
        controller = self._cluster.controller
        order = [one for one in self._cluster.brokers if one != controller] + [controller]
        found: list[Waits] = []
        with written(self._bootstrap, found):
            self.figures["restart"] = seconds_of(lambda: [*map(self._restart, order)])
        (waits,) = found
        self.figures["stall"], self.figures["errors"] = waits.longest_s, waits.errors

    def _restart(self, broker: Broker) -> None:
        """Restart a broker once its check allows it."""
        check = [sys.executable, "-m", "plog", "cluster", "restart-check", str(broker.id)]
        check += ["-b", self._bootstrap, "--wait", str(STOP_TIMEOUT_S)]
        done = subprocess.run(
            check, cwd=bench_load.ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LoadError(f"broker {broker.id} may not be restarted: {done.stdout}{done.stderr}")
        broker.stop()
        broker.start()
        broker.ready_s()

    def _measure_kill(self, victim: Broker, key: str) -> None:
        """Kill a broker: when has another one acknowledged a record of each of its partitions?"""
        self._settle()
        led = [
            part.partition_index
            for topic in victim.metadata().topics
            if topic.name == TOPIC
            for part in topic.partitions
            if part.leader_id == victim.id
        ]
        survivor = next(one for one in self._cluster.brokers if one != victim)

        def leader_of(partition: int) -> Broker | None:
            for topic in survivor.metadata().topics:
                for part in topic.partitions:
                    if topic.name == TOPIC and part.partition_index == partition:
                        by_id = {one.id: one for one in self._cluster.live}
                        return by_id.get(part.leader_id)
            return None

        def fail_over() -> None:
            victim.kill()
            for partition in led:
                until(lambda at=partition: leader_of(at) is not None, "led again")
                leader = leader_of(partition)
                assert leader is not None
                leader.until_acknowledges(TOPIC, partition)

        if not led:
            raise LoadError(f"broker {victim.id} leads nothing: kill -9 of it shows nothing")
        self.figures[key] = seconds_of(fail_over)
        victim.start()
        victim.ready_s()


def measure(where: Path, rounds: int, session_ms: int, progress: Console) -> list[Result]:
    """Measure all rows in each round."""
    found: list[dict[str, float]] = []
    zookeeper = ZooKeeper(where / "zookeeper", stops=False, tick_ms=TICK_MS)
    try:
        for number in range(1, rounds + 1):
            progress.print(f"[dim]round {number} of {rounds}")
            directory = where / f"round-{number}"
            directory.mkdir()
            one = Round(directory, f"{zookeeper.bootstrap}/round-{number}", session_ms)
            one.run()
            found.append(one.figures)
            shutil.rmtree(directory)
    finally:
        zookeeper.kill()
    return [Result(row, [figures[row.key] for figures in found]) for row in rows(session_ms)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option(
    "--session-ms",
    default=6_000,
    show_default=True,
    type=click.IntRange(2 * TICK_MS),
    help="zookeeper.session.timeout.ms.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the log directories are made (and removed): the disk to be measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead.")
@click.option(
    "--docs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write the table into a page, between its marks.",
)
def command(
    rounds: int, session_ms: int, directory: Path | None, as_json: bool, docs: Path | None
) -> None:
    """Measure what clients wait for when leaders change: three brokers, three replicas.

    \b
    new leaders      from kill -9 until other brokers have acknowledged a record of each
                     partition that the broker led, with acks=all
    rolling restart  what an idempotent producer of librdkafka waits for at most, while the
                     brokers are restarted one after the other

    A round takes about a minute. ZooKeeper's jars are those of Kafka 3.9, which Maven brings the
    first time. Keep the machine quiet: the last line has the load of other processes.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    foreign = Foreign()
    with tempfile.TemporaryDirectory(dir=directory, prefix="plog-moves-") as made:
        try:
            results = measure(Path(made), rounds, session_ms, Console(stderr=True, quiet=as_json))
        except PlogError as error:
            raise click.ClickException(str(error)) from error
    about = foreign.about(f"{rounds} rounds, sessions of {session_ms / 1000:g} s")
    if docs is not None:
        put_between(docs, BEGIN, END, page(results, about))
    report(results, about, as_json=as_json)


if __name__ == "__main__":
    command(prog_name="bin/bench-moves")
