"""`plog perf`: load a broker with clients in C, and print throughput and latency."""

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

from plog.cli.output import bootstrap_option, json_option, print_json, print_rows, some_text
from plog.types import counted

if TYPE_CHECKING:
    from plog.client.admin import Admin
    from plog.client.metadata import TopicInfo
    from plog.ops.load import Figures

F = TypeVar("F", bound=Callable[..., Any])

SIGNALLED = 128
"""A shell adds the number of the signal that ended a command to this exit status."""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ACKS = {"all": -1, "1": 1, "0": 0}
RESPONSE_WHEN = {
    "all": "on every in-sync replica's disk (all)",
    "1": "at the leader (1)",
    "0": "never (0)",
}
PARTITIONS = 6
"""Of the temporary topic for producers."""
WARMUP_S = 1.0
KEPT_PACE = 0.99
"""Minimum share of the requested rate for the latencies to be meaningful."""
LEADERS_S = 5.0
"""How long to wait for the leaders of a topic."""
STEP_S = 0.1
TIMEOUT_S = 90.0
"""Extra time for a run; the generator gives up after a minute without a response."""
READ_S = 10.0
"""To read the output of a generator that has exited."""


@click.group()
def command() -> None:
    """Measure the throughput and latency of a broker.

    The clients are written in C and use the defaults of current Java clients: idempotent producers
    with five requests in flight, consumers with fetch sessions. One broker must lead all partitions
    of the topic. MB/s is the size of the record batches on the wire, so compressed batches count by
    their compressed size; 1 MB is 1,000,000 bytes.

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
    """Ends a run on a signal; the run stops the generator and deletes its temporary topic."""

    def __init__(self) -> None:
        self._number: int | None = None

    def ask(self, number: int, _frame: FrameType | None) -> None:
        """Raise SystemExit, as the handler of a signal."""
        # timeout(1) sends SIGTERM twice; the second one must not interrupt the cleanup.
        repeated = self._number == number == signal.SIGTERM
        self._number = number
        if not repeated:
            self.check()

    def check(self) -> None:
        """Exit if a signal has arrived.

        Python drops an exception of a signal handler that runs inside a weak reference's callback
        (the import system has such callbacks). So waits call this as well.

        Raises:
            SystemExit: a signal has arrived.
        """
        if self._number is not None:
            sys.exit(SIGNALLED + self._number)


def seconds_option(function: F) -> F:
    """Add --seconds, the length of a run."""
    return click.option(
        "--seconds",
        type=click.FloatRange(0.1),
        default=10.0,
        show_default=True,
        help="Duration of the measurement, after one second of warm-up.",
    )(function)


def acks_option(*choices: str) -> Callable[[F], F]:
    """Add --acks with these choices and their meaning."""
    *first, last = [RESPONSE_WHEN[choice] for choice in choices]
    return click.option(
        "--acks",
        type=click.Choice(choices),
        default="all",
        show_default=True,
        help=f"The broker responds when records are {', '.join(first)}, or {last}.",
    )


def connections_option(function: F) -> F:
    """Add --connections."""
    return click.option(
        "--connections",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Number of client connections.",
    )(function)


def record_size_option(function: F) -> F:
    """Add --record-size."""
    return click.option(
        "--record-size",
        type=click.IntRange(0),
        default=100,
        show_default=True,
        help="Value size in bytes.",
    )(function)


@command.command()
@click.argument("topic", required=False)
@bootstrap_option
@json_option
@seconds_option
@acks_option("all", "1", "0")
@connections_option
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Maximum requests in flight per connection.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(0),
    default=16384,
    show_default=True,
    help="Batch size in bytes on the wire; 0 sends one record per batch.",
)
@record_size_option
@click.option(
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Compression codec of the batches.",
)
@click.option("--no-idempotence", is_flag=True, help="Use producers without idempotence.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 400),
    help=f"Partitions of the temporary topic, used when TOPIC is omitted [default: {PARTITIONS}].",
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
    """Write to TOPIC as fast as possible.

    TOPIC must exist. Without TOPIC, writes to a temporary topic and deletes it afterwards. With
    --acks 0 the broker sends no responses: records count when they are sent, and no latencies are
    printed. A batch holds at least one record, even if that exceeds --batch-size. Values are random
    bytes, or JSON with --compression.
    """
    if topic is not None and partitions is not None:
        raise click.UsageError(
            f"--partitions applies only to the temporary topic; omit it for {topic!r}"
        )
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
    _print(figures, as_json=as_json, has_responses=acks != "0")


@command.command()
@click.argument("topic")
@bootstrap_option
@json_option
@seconds_option
@connections_option
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=50 << 20,
    show_default=True,
    help="Maximum bytes per fetch response.",
)
@click.option(
    "--partition-max-bytes",
    type=click.IntRange(1),
    default=1 << 20,
    show_default=True,
    help="Maximum bytes per partition in a fetch response.",
)
@click.option("--once", is_flag=True, help="Read the topic once instead of looping.")
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
    """Read TOPIC as fast as possible; fail if it is empty.

    Reads the topic from start to end in a loop until the time is over, so the number of records may
    exceed that of the topic. With --once it stops at the end.
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
            from_start=True,
            once=once,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
        )
    if not figures["records"]:
        # The measured time would be how long the broker waits for records.
        raise click.ClickException(f"topic {topic} has no records to read")
    _print(figures, as_json=as_json)


@command.command()
@bootstrap_option
@json_option
@seconds_option
@acks_option("all", "1")
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=1000.0,
    show_default=True,
    help="Records per second.",
)
@record_size_option
@click.option(
    "--end-to-end",
    is_flag=True,
    help="Measure until a consumer receives the record, not until the produce response.",
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
    """Write single records at a fixed rate to a temporary topic, and measure their latency.

    Latency counts from the scheduled time of a record, even if it was sent later. So a broker's
    stall counts for every record that it delayed.
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
            f"The broker or this machine did not keep up: {figures['records_per_s']:,.0f} of"
            f" {rate:,.0f} records per second. The latencies include a backlog.",
            err=True,
        )


@contextmanager
def _topic_of(admin: Admin, named: str | None, partitions: int) -> Iterator[str]:
    """Yield the named topic, or a temporary one."""
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
    """Return the generator's options for a topic: address, id, partitions."""
    deadline = time.monotonic() + LEADERS_S
    while True:
        found = admin.topic(topic)
        leaders = {partition.leader_id for partition in found.partitions.values()}
        if min(leaders) >= 0:
            break
        if time.monotonic() > deadline:
            raise _without_leaders(found)
        time.sleep(0.05)
    if len(leaders) > 1:
        raise click.ClickException(f"{len(leaders)} brokers lead {topic}: use a topic with one")
    (node,) = [node for node in admin.nodes() if node.node_id in leaders]
    return {
        "host": socket.gethostbyname(node.host),
        "port": node.port,
        "topic": topic,
        "topic_id": found.topic_id,
        "partitions": len(found.partitions),
    }


def _without_leaders(topic: TopicInfo) -> click.ClickException:
    lost = [f"{topic.name}-{n}" for n, at in sorted(topic.partitions.items()) if at.leader_id < 0]
    has = "has" if len(lost) == 1 else "have"
    return click.ClickException(
        f"{counted(len(lost), 'partition')} {has} no leader: {some_text(lost)}"
        " (measure a topic whose partitions all have one)"
    )


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


def _print(figures: Figures, *, as_json: bool, has_responses: bool = True) -> None:
    """Print the figures of a run; without responses there are no latencies."""
    latencies = figures["latency_us"] if has_responses else {}
    shown = {
        "seconds": round(figures["seconds"], 3),
        "requests": round(figures["requests"]),
        "records": round(figures["records"]),
        "requests_per_s": figures["requests_per_s"],
        "records_per_s": figures["records_per_s"],
        "mb_per_s": figures["mb_per_s"],
        **{f"latency_{name}_us": value for name, value in latencies.items()},
    }
    if as_json:
        print_json(shown)
        return
    rows = [
        ("seconds", f"{shown['seconds']:,.1f}"),
        ("records", f"{shown['records']:,}"),
        ("records/s", f"{shown['records_per_s']:,.0f}"),
        ("requests/s", f"{shown['requests_per_s']:,.0f}"),
        ("MB/s", f"{shown['mb_per_s']:,.1f}"),
        *(
            (f"latency {name}, us", f"{latencies[key]:,.0f}")
            for name, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("max", "max"))
            if key in latencies
        ),
    ]
    print_rows(rows, ["Metric", "Value"], as_json=False)
