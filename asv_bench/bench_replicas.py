"""What replicas cost: three brokers of plog and three of Kafka 3.9, with 1 and with 3 replicas.

    bin/bench-replicas --help

Each round has new clusters; one ZooKeeper serves them all. The C load generator writes to
partitions that one broker leads: with three replicas the two others only follow. A measurement ends
once all replicas in sync have all records. Not part of asv: it starts processes.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import bench_kafka
import click
from bench_cluster import TICK_MS, Foreign
from bench_cluster_brokers import Cluster, running, until
from bench_machine import cpu_s_of
from bench_report import put_between
from bench_servers import ProcessServer, free_port
from rich.console import Console
from rich.table import Table

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.errors import PlogError
from plog.ops import load
from plog.ops.load import Batch
from plog.types import TopicPartition
from tests.compat.live_kafka import ZooKeeper

BROKERS = 3
PARTITIONS = 6
BATCH_BYTES = 16 * 1024
SESSION_MS = 18_000
PLOG, PAGE_CACHE, KAFKA = "plog", "plog, no flush", "Kafka 3.9"
BEGIN = "<!-- bin/bench-replicas --docs: begin -->"
END = "<!-- bin/bench-replicas --docs: end -->"
HEAD = ("Brokers", "Replicas", "acks", "MB/s", "Spread", "CPU s per GB", "Spread", "p99")
KAFKA_SETTINGS = """broker.id={broker_id}
listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect={connect}
log.dirs={directory}
log.segment.delete.delay.ms=1000
"""
COMMON: dict[str, object] = {"connections": 4, "in_flight": 5}
LOADS: dict[str, dict[str, object]] = {
    "1": COMMON | {"acks": 1},
    "all": COMMON | {"acks": -1, "idempotent": True},
}
"""By acks: the second as Java's producer sends by default."""
_numbers = itertools.count()


class KafkaBroker(ProcessServer):
    """One broker of Kafka 3.9 in ZooKeeper mode, with its default settings."""

    def __init__(self, directory: Path, broker_id: int, connect: str) -> None:
        port = free_port()
        settings = directory / f"kafka-{broker_id}.properties"
        settings.write_text(
            KAFKA_SETTINGS.format(
                broker_id=broker_id,
                port=port,
                connect=connect,
                directory=directory / f"data-{broker_id}",
            )
        )
        kind = bench_kafka.KINDS["3.9-1g"]
        command = ["java", *kind.heap, *bench_kafka.JVM_FLAGS]
        command += ["-cp", f"{bench_kafka.jars(kind.release)}/*", "kafka.Kafka", str(settings)]
        super().__init__(command, directory / f"kafka-{broker_id}.log", port)


class Brokers(NamedTuple):
    """A running cluster: the ports and the processes of its brokers, by their ids."""

    ports: Sequence[int]
    pids: Sequence[int]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def cpu_s(self) -> float:
        """The processor time of all of them, so far."""
        return sum(map(cpu_s_of, self.pids))


@contextmanager
def plog_brokers(where: Path, connect: str, **settings: object) -> Iterator[Brokers]:
    """Run three brokers of plog."""
    cluster = Cluster(where, connect, SESSION_MS, **settings)
    with running(cluster.brokers):
        cluster.start()
        cluster.hang_up()
        yield Brokers(
            [broker.port for broker in cluster.brokers], [broker.pid for broker in cluster.brokers]
        )


@contextmanager
def kafka_brokers(where: Path, connect: str) -> Iterator[Brokers]:
    """Run three brokers of Kafka."""
    with ExitStack() as ends:
        started = []
        for number in range(BROKERS):
            started.append(KafkaBroker(where, number, connect))
            ends.callback(started[-1].kill)
        found = Brokers([one.port for one in started], [one.pid for one in started])
        with Admin(found.bootstrap) as admin:
            until(lambda: len(admin.nodes()) == BROKERS, "known to each other")
        yield found


@contextmanager
def contestant(name: str, where: Path, connect: str) -> Iterator[Brokers]:
    """Run the three brokers of a contestant in a directory."""
    where.mkdir()
    if name == KAFKA:
        brokers = kafka_brokers(where, connect)
    else:
        flushes = str(name == PLOG).lower()
        brokers = plog_brokers(where, connect, flush_before_ack=flushes)
    with brokers as found:
        yield found
    shutil.rmtree(where)


class Case(NamedTuple):
    """One row of the table."""

    contestant: str
    replicas: int
    acks: str


class Figures(NamedTuple):
    """What one round has measured of a case.

    Attributes:
        cpu_s_per_gb: of all three brokers, for each GB that a client wrote.
    """

    mb_per_s: float
    cpu_s_per_gb: float
    p99_ms: float


def cases(contestants: Sequence[str]) -> list[Case]:
    """Return the rows of contestants, in their order."""
    return [
        Case(name, replicas, acks)
        for acks in LOADS
        for replicas in (1, BROKERS)
        for name in contestants
    ]


def measure_case(brokers: Brokers, case: Case, batch: Batch, seconds: float) -> Figures:
    """Write to a new topic for some seconds, and wait until all replicas have all of it."""
    name = f"bench-{next(_numbers)}"
    replicas = list(range(case.replicas))
    with Admin(f"127.0.0.1:{brokers.ports[0]}") as admin:  # the leader has to know of it
        admin.create_topic(name, assignments=dict.fromkeys(range(PARTITIONS), replicas))

        def is_ready() -> bool:
            parts = admin.topic(name).partitions if name in admin.topics() else {}
            full = [one for one in parts.values() if sorted(one.isr) == replicas]
            return len(full) == PARTITIONS and all(one.leader_id == 0 for one in full)

        until(is_ready, f"in sync: {name}")
        topic = admin.topic(name)
    before_s = brokers.cpu_s
    figures = load.run(
        "produce",
        port=brokers.ports[0],
        topic=topic.name,
        topic_id=topic.topic_id,
        leader_epoch=topic.partitions[0].leader_epoch,
        partitions=PARTITIONS,
        per_request=PARTITIONS,
        batch_file=batch.path,
        seconds=seconds,
        warmup=0,
        watch=brokers.pids[0],
        **LOADS[case.acks],
    )
    written = figures["total"]["records"]
    with Consumer(brokers.bootstrap) as consumer:
        # A partition's end is what all replicas in sync have.
        partitions = [TopicPartition(name, index) for index in range(PARTITIONS)]
        until(lambda: sum(consumer.end_offsets(partitions).values()) >= written, "on all replicas")
    used_s = brokers.cpu_s - before_s
    with Admin(brokers.bootstrap) as admin:
        admin.delete_topic(name)
    gigabytes = written / batch.records * batch.size_bytes / 1e9
    return Figures(figures["mb_per_s"], used_s / gigabytes, figures["latency_us"]["p99"] / 1000)


Results = dict[Case, list[Figures]]


def measure(
    where: Path, contestants: Sequence[str], rounds: int, seconds: float, progress: Console
) -> Results:
    """Measure all rows in each round, contestants in turn."""
    batch = load.make_batch(where / "batch", BATCH_BYTES)
    found: Results = {case: [] for case in cases(contestants)}
    zookeeper = ZooKeeper(where / "zookeeper", stops=False, tick_ms=TICK_MS)
    try:
        for number in range(1, rounds + 1):
            for name in contestants:
                progress.print(f"[dim]round {number} of {rounds}: {name}")
                path = f"{zookeeper.bootstrap}/{number}-{contestants.index(name)}"
                with contestant(name, where / "brokers", path) as brokers:
                    mine = [case for case in found if case.contestant == name]
                    # The first measurement warms up, the JVM above all.
                    measure_case(brokers, mine[-1], batch, seconds)
                    for case in mine:
                        found[case].append(measure_case(brokers, case, batch, seconds))
    finally:
        zookeeper.kill()
    return found


def texts(case: Case, rounds: Sequence[Figures]) -> list[str]:
    """Return the cells of a row."""
    rates, costs, p99s = ([*column] for column in zip(*rounds, strict=True))
    return [
        case.contestant,
        str(case.replicas),
        case.acks,
        f"{statistics.median(rates):.0f}",
        f"{min(rates):.0f} to {max(rates):.0f}",
        f"{statistics.median(costs):.2f}",
        f"{min(costs):.2f} to {max(costs):.2f}",
        f"{statistics.median(p99s):.1f} ms",
    ]


def show(results: Results, console: Console) -> None:
    """Print the table."""
    table = Table(title="one client, three brokers: what it writes, and what it costs")
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="left" if number == 0 else "right")
    for case, rounds in results.items():
        table.add_row(*texts(case, rounds))
    console.print(table)


def page(results: Results, about: str) -> str:
    """Return the table in Markdown, and what it is from."""
    sides = ["---", *["---:"] * (len(HEAD) - 1)]
    rows = [texts(case, rounds) for case, rounds in results.items()]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in (HEAD, sides, *rows)), "", about])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=5.0, show_default=True, help="Of each measurement.")
@click.option("--no-kafka", is_flag=True, help="Measure plog alone.")
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
    rounds: int,
    seconds: float,
    no_kafka: bool,
    directory: Path | None,
    as_json: bool,
    docs: Path | None,
) -> None:
    """Measure what replicas cost, with plog and with Kafka 3.9, side by side.

    Three brokers run on one machine, on one disk. A client writes batches of 16 KB to six
    partitions that one broker leads, with acks=1, and as Java's producer does by default (acks=all,
    idempotent). The processor time is that of all three brokers, until all replicas have all
    records. plog's acks=all waits for the disks, Kafka's does not.

    A round takes two to three minutes. Maven brings Kafka's jars the first time.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    foreign = Foreign()
    contestants = [PLOG, PAGE_CACHE] if no_kafka else [PLOG, PAGE_CACHE, KAFKA]
    with tempfile.TemporaryDirectory(dir=directory, prefix="plog-replicas-") as made:
        try:
            progress = Console(stderr=True, quiet=as_json)
            results = measure(Path(made), contestants, rounds, seconds, progress)
        except PlogError as error:
            raise click.ClickException(str(error)) from error
    about = foreign.about(f"{rounds} rounds of {seconds:g} s")
    if docs is not None:
        put_between(docs, BEGIN, END, page(results, about))
    if as_json:
        figures = [
            {**case._asdict(), "rounds": [one._asdict() for one in rounds_]}
            for case, rounds_ in results.items()
        ]
        click.echo(json.dumps(figures, indent=2))
        return
    show(results, Console())
    click.echo(about)


if __name__ == "__main__":
    command(prog_name="bin/bench-replicas")
