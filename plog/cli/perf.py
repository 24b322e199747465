"""`plog perf`: load a broker with clients in C, and say what it did."""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from plog.cli.output import bootstrap_option, json_option, print_json, print_rows

if TYPE_CHECKING:
    from plog.client.admin import Admin
    from plog.ops.load import Figures

F = TypeVar("F", bound=Callable[..., Any])

SIGNALLED = 128
"""A shell reports a command that a signal ended by this and the signal's number."""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ACKS = {"all": -1, "1": 1, "0": 0}
ANSWERED_WHEN = {
    "all": "on every in-sync replica's disk (all)",
    "1": "at the leader (1)",
    "0": "never (0)",
}
PARTITIONS = 6
"""Of a topic that is made for producers."""
WARMUP_S = 1.0
KEPT_PACE = 0.99
"""Share of a rate that must be reached for latencies to mean what they say."""
STEP_S = 0.1
TIMEOUT_S = 90.0
"""For a run beyond its seconds; the generator gives up after a minute without an answer."""
READ_S = 10.0
"""To read what a generator that has ended has told."""


@click.group()
def command() -> None:
    """Measure a broker: rates and latencies of producers and consumers.

    The clients are written in C and speak today's protocol as Java's clients do by default:
    idempotent producers with five requests in flight, consumers in fetch sessions. They load the
    one broker that leads the topic. MB/s counts record batches as they are sent: compressed ones
    by their compressed size, in units of 1,000,000 bytes.

    \b
      plog perf produce --seconds 10
      plog perf produce flights --compression lz4 --batch-size 65536
      plog perf consume flights
      plog perf latency --rate 1000
    """
    context = click.get_current_context()
    ending = context.ensure_object(Ending)
    for number in (signal.SIGINT, signal.SIGTERM):
        context.call_on_close(partial(signal.signal, number, signal.signal(number, ending.ask)))


class Ending:
    """What a signal does to a run: it ends with what was started, and without its own topic."""

    def __init__(self) -> None:
        self._number: int | None = None

    def ask(self, number: int, _frame: FrameType | None) -> None:
        """Raise SystemExit, as the handler of a signal."""
        # timeout(1) sends SIGTERM twice, and the second must not interrupt the tidying up.
        repeated = self._number == number == signal.SIGTERM
        self._number = number
        if not repeated:
            self.check()

    def check(self) -> None:
        """Exit if that was asked for.

        Python loses what a handler raises if it runs within the callback of a weak reference, as
        the import system has them; so waits look whether they were to end.

        Raises:
            SystemExit: it was.
        """
        if self._number is not None:
            sys.exit(SIGNALLED + self._number)


def seconds_option(function: F) -> F:
    """Add --seconds, how long a run is."""
    return click.option(
        "--seconds",
        type=click.FloatRange(0.1),
        default=10.0,
        show_default=True,
        help="How long to measure, after a second to warm up.",
    )(function)


def acks_option(*choices: str) -> Callable[[F], F]:
    """Add --acks, which takes these choices and explains them."""
    *first, last = [ANSWERED_WHEN[choice] for choice in choices]
    return click.option(
        "--acks",
        type=click.Choice(choices),
        default="all",
        show_default=True,
        help=f"Answer when records are {', '.join(first)}, or {last}.",
    )


@command.command()
@click.argument("topic", required=False)
@bootstrap_option
@json_option
@seconds_option
@acks_option("all", "1", "0")
@click.option("--connections", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Requests of a connection that wait for their answers.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(0),
    default=16384,
    show_default=True,
    help="Bytes of a batch, as it is sent; 0: one record.",
)
@click.option(
    "--record-size", type=click.IntRange(0), default=100, show_default=True, help="Of a value."
)
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--no-idempotence", is_flag=True, help="Producers without an id.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 400),
    help="Of the topic that is made where none is named, and deleted afterwards; by default 6.",
)
def produce(
    topic: str | None,
    bootstrap: str,
    as_json: bool,
    seconds: float,
    acks: str,
    connections: int,
    in_flight: int,
    batch_size: int,
    record_size: int,
    compression: str,
    no_idempotence: bool,
    partitions: int | None,
) -> None:
    """Write to TOPIC, which must be there, as fast as it takes it; without one to one of its own.

    With --acks 0 nothing is answered: records count when they are sent, and there are no latencies.
    A batch holds one record at least, however large that is. Values are noise, or JSON where they
    are compressed.
    """
    if topic is not None and partitions is not None:
        raise click.UsageError(f"--partitions is of a topic that is made; {topic!r} has its own.")
    from plog.client.admin import Admin
    from plog.ops.load import make_batch

    with (
        Admin(bootstrap) as admin,
        _topic_of(admin, topic, partitions or PARTITIONS) as loaded,
        _file() as path,
    ):
        made = make_batch(path, batch_size, codec=compression, value_bytes=record_size)
        figures = _measure(
            "produce",
            seconds,
            **_target(admin, loaded),
            batch_file=made.path,
            acks=ACKS[acks],
            idempotent=acks == "all" and not no_idempotence,
            connections=connections,
            in_flight=in_flight,
        )
    _print(figures, as_json=as_json, answered=acks != "0")


@command.command()
@click.argument("topic")
@bootstrap_option
@json_option
@seconds_option
@click.option("--connections", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--max-bytes", type=click.IntRange(1), default=50 << 20, show_default=True, help="Of an answer."
)
@click.option(
    "--partition-max-bytes",
    type=click.IntRange(1),
    default=1 << 20,
    show_default=True,
    help="Of a partition in an answer.",
)
@click.option("--once", is_flag=True, help="Stop at the end; else begin anew there.")
def consume(
    topic: str,
    bootstrap: str,
    as_json: bool,
    seconds: float,
    connections: int,
    max_bytes: int,
    partition_max_bytes: int,
    once: bool,
) -> None:
    """Read TOPIC as fast as it comes; fail if there is nothing to read.

    It is read from its beginning to its end, again and again until the seconds are over, so that
    more records may be told than it has; with --once it is read once.
    """
    from plog.client.admin import Admin

    with Admin(bootstrap) as admin:
        figures = _measure(
            "fetch",
            seconds,
            **_target(admin, topic),
            warmup=0 if once else WARMUP_S,
            connections=connections,
            in_flight=1,
            sessions=True,
            once=once,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
        )
    if not figures["records"]:
        # What was timed then is how long the broker waits for records to come.
        raise click.ClickException(f"there is nothing to read in {topic}")
    _print(figures, as_json=as_json)


@command.command()
@bootstrap_option
@json_option
@seconds_option
@acks_option("all", "1")
@click.option(
    "--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Records a second."
)
@click.option("--record-size", type=click.IntRange(0), default=100, show_default=True)
@click.option(
    "--end-to-end", is_flag=True, help="Until a consumer has the record, not until its answer."
)
def latency(
    bootstrap: str,
    as_json: bool,
    seconds: float,
    acks: str,
    rate: float,
    record_size: int,
    end_to_end: bool,
) -> None:
    """Write single records at a pace to a topic of its own, and say how long each takes.

    Times count from when a record should have been sent: a broker that stalls is not spared the
    records that were kept back.
    """
    from plog.client.admin import Admin
    from plog.ops.load import make_batch

    with Admin(bootstrap) as admin, _topic_of(admin, None, 1) as loaded, _file() as path:
        made = make_batch(path, 0, value_bytes=record_size)
        figures = _measure(
            "produce",
            seconds,
            **_target(admin, loaded),
            batch_file=made.path,
            acks=ACKS[acks],
            idempotent=acks == "all",
            rate=rate,
            end_to_end=end_to_end,
            sessions=end_to_end,
            in_flight=1,
        )
    _print(figures, as_json=as_json)
    if figures["records_per_s"] < KEPT_PACE * rate:
        click.echo(
            f"The broker or this machine did not keep up: {figures['records_per_s']:,.0f} records"
            f" a second of {rate:,.0f}. Latencies are those of a backlog.",
            err=True,
        )


@contextmanager
def _topic_of(admin: Admin, named: str | None, partitions: int) -> Iterator[str]:
    """Yield the named topic, or one that is made for the run."""
    if named is not None:
        yield named
        return
    name = f"plog-perf-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=partitions)
    try:
        yield name
    finally:
        admin.delete_topic(name)


@contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="plog-perf-") as directory:
        yield Path(directory) / "batch"


def _target(admin: Admin, topic: str) -> dict[str, object]:
    """Return where the generator finds a topic."""
    deadline = time.monotonic() + 30
    while True:
        found = admin.topic(topic)
        leaders = {partition.leader_id for partition in found.partitions.values()}
        if min(leaders) >= 0:
            break
        if time.monotonic() > deadline:
            raise click.ClickException(f"not every partition of {topic} has a leader")
        time.sleep(0.05)
    if len(leaders) > 1:
        raise click.ClickException(f"{len(leaders)} brokers lead {topic}, and one can be loaded")
    (node,) = [node for node in admin.nodes() if node.node_id in leaders]
    return {
        "host": socket.gethostbyname(node.host),
        "port": node.port,
        "topic": topic,
        "topic_id": found.topic_id,
        "partitions": len(found.partitions),
    }


def _measure(mode: str, seconds: float, **options: object) -> Figures:
    from rich.console import Console
    from rich.progress import Progress

    from plog.ops.load import finish, start

    ending = click.get_current_context().ensure_object(Ending)
    options = {"warmup": WARMUP_S, **options}
    whole_s = seconds + float(str(options["warmup"]))
    deadline = time.monotonic() + whole_s + TIMEOUT_S
    running = start(mode, seconds=seconds, **options)
    try:
        with Progress(
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as progress:
            task = progress.add_task("measuring", total=whole_s)
            while running.poll() is None and time.monotonic() < deadline:
                time.sleep(STEP_S)
                ending.check()
                progress.advance(task, STEP_S)
        return finish(running, READ_S)
    except BaseException:
        running.kill()
        running.wait()
        raise


def _print(figures: Figures, *, as_json: bool, answered: bool = True) -> None:
    """Print what a run measured; without answers nothing is known of latencies."""
    latencies = figures["latency_us"] if answered else {}
    told = {
        "seconds": round(figures["seconds"], 3),
        "requests": round(figures["requests"]),
        "records": round(figures["records"]),
        "requests_per_s": figures["requests_per_s"],
        "records_per_s": figures["records_per_s"],
        "mb_per_s": figures["mb_per_s"],
        **{f"latency_{name}_us": value for name, value in latencies.items()},
    }
    if as_json:
        print_json(told)
        return
    rows = [
        ("seconds", f"{told['seconds']:,.1f}"),
        ("records", f"{told['records']:,}"),
        ("records/s", f"{told['records_per_s']:,.0f}"),
        ("requests/s", f"{told['requests_per_s']:,.0f}"),
        ("MB/s", f"{told['mb_per_s']:,.1f}"),
        *(
            (f"latency {name}, us", f"{latencies[key]:,.0f}")
            for name, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("max", "max"))
            if key in latencies
        ),
    ]
    print_rows(rows, ["What", "Value"], as_json=False)
