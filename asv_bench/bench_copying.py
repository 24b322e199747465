"""A Java application that copies a topic exactly once, and who answers its requests.

It consumes in a group, produces what it has read, and commits offsets and records in one
transaction for each poll (tests/compat/java/TransactionalWorker.java), while a group of two reads
what is committed. Owns the load and what is counted of it; whoever asks judges.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench_answered import Answered, answered, shares
from bench_clients import Client
from bench_coordinator_rows import COPYING_LOADS, CopyingLoad, Row, Turn
from bench_costs import broker_for
from bench_machine import Watch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from plog.client.producer import Producer
from plog.ops.load import LoadError
from tests.compat.programs import JAVA, Java
from tests.compat.workers import Job, Worker
from tests.handlers.wire import create_topic, speak

if TYPE_CHECKING:
    from plog.ops.load import Figures

PARTITIONS = READERS = 2
PATIENCE_S = 120.0
SOURCE, TARGET = "from", "to"


class Copied(NamedTuple):
    """What was counted from when the application was warm until all was copied."""

    counted: Answered
    seconds: float
    server_cpu_s: float
    foreign_cores: float
    records: int
    records_read: int

    @property
    def transactions(self) -> int:
        return self.counted.by_path["EndTxn", "python"]

    @property
    def produces(self) -> int:
        return sum(n for (api, _), n in self.counted.by_path.items() if api == "Produce")


def begins_by_writing(java: Java) -> bool:
    """Tell whether its transactions are of version 2, where a write adds its partition."""
    return int(java.release.split(".")[0]) >= 4


def _fill(bootstrap: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(SOURCE, b"%d" % number, partition=number % PARTITIONS)
        producer.flush(PATIENCE_S)


def _until_copied(worker: Worker, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while worker.committed < count:
        if not worker.is_alive or time.monotonic() > until:
            raise LoadError(f"{count} records are not copied: {worker}")
        time.sleep(0.01)


def copy(
    where: Path,
    port: int,
    page: int,
    pid: int,
    java: Java,
    load: CopyingLoad,
    count: int,
    flags: Sequence[str] = (),
) -> Copied:
    """Copy so many records, of which the first quarter are not counted.

    Args:
        where: a directory for what the clients complain of.
        page: the port of the broker's metrics page.
        pid: the broker's.
        flags: more for the JVM of the reader.
    """
    bootstrap, warm = f"127.0.0.1:{port}", count // 4
    with closing(speak(port)) as wire:
        for name in (SOURCE, TARGET):
            create_topic(wire, name, PARTITIONS)
    _fill(bootstrap, count)
    reader = Client(java.load_command(java.built(), flags), where / "reader.log")
    worker: Worker | None = None
    try:
        reader.begin(
            "consume",
            {
                "bootstrap": bootstrap,
                "topic": TARGET,
                "members": READERS,
                "consumer.group.id": "readers",
                "consumer.isolation.level": "read_committed",
                "consumer.auto.offset.reset": "earliest",
            },
        )
        more = {"producer.batch.size": load.batch_bytes} if load.batch_bytes else {}
        job = Job(
            bootstrap, "copying", SOURCE, TARGET, load.records, load.abort_every, settings=more
        )
        worker = Worker(job, java, "copying", where / "worker.log")
        _until_copied(worker, warm)
        before, begun_s = answered(page), time.monotonic()
        watch = Watch(pid, [worker.pid, reader.pid])
        done = worker.committed
        _until_copied(worker, count)
        taken, seconds = watch.figures(), time.monotonic() - begun_s
        counted = answered(page).since(before)
        worker.leave()
        reader.go()
        read = reader.result()["records"]
        reader.closed()
    finally:
        reader.end()
        if worker is not None:
            worker.kill()
    cpu_s, foreign = taken["server_cpu_s"], taken["foreign_cores"]
    return Copied(counted, seconds, cpu_s, foreign, count - done, read)


def measure_copying(turn: Turn, row: Row, contestant: str) -> Figures:
    """Copy with one of Java's clients; return shares, and what a transaction costs."""
    (java,) = (one for one in JAVA if one.name == contestant)
    load = COPYING_LOADS[row.name]
    with broker_for(turn, row) as broker:
        server = broker.server
        done = copy(
            turn.where,
            server.port,
            broker.page,
            server.pid,
            java,
            load,
            turn.extent.copied,
            turn.clients.flags,
        )
    counted = done.counted
    return {
        **shares(counted),
        "transactions": done.transactions,
        "produces": done.produces,
        "python_produces": counted.by_path["Produce", "python"],
        "most_first_writes": PARTITIONS * done.transactions,
        "records": done.records,
        "records_read": done.records_read,
        "transactions_per_s": done.transactions / done.seconds,
        "cpu_ms": 1000 * done.server_cpu_s / done.transactions,
        "foreign_cores": done.foreign_cores,
        "requests": {f"{api}, {path}": n for (api, path), n in sorted(counted.by_path.items())},
        "callouts": dict(counted.callouts),
    }
