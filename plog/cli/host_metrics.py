"""`plog host-metrics`: publish the metrics of a host."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from functools import partial
from types import FrameType

import click

from plog.cli.output import bootstrap_option

DEFAULT_TOPIC = "host-metrics"


@click.command()
@click.argument("topic", default=DEFAULT_TOPIC)
@bootstrap_option
@click.option(
    "--every",
    "seconds",
    type=click.FloatRange(0.1, 3600),
    default=10.0,
    show_default=True,
    help="Seconds between two records; rates and shares cover this interval.",
)
@click.option("--count", type=click.IntRange(1), help="Exit after this number of records.")
@click.option(
    "--metrics",
    envvar="PLOG_METRICS",
    metavar="HOST:PORT",
    help="Also publish a broker's metrics; the address of its `metrics.listener`.",
)
@click.option("--host", help="Host name in the records [default: this host's name].")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Partitions to create TOPIC with.",
)
@click.option("--no-create", is_flag=True, help="Do not create TOPIC; exit if it does not exist.")
def command(
    topic: str,
    bootstrap: str,
    seconds: float,
    count: int | None,
    metrics: str | None,
    host: str | None,
    partitions: int,
    no_create: bool,
) -> None:
    """Publish processor, memory, disk and network metrics of this host to TOPIC, as JSON.

    Writes one record every ten seconds, with the host's name as its key. The default TOPIC is
    host-metrics:

    \b
      {"host": "a", "time": "2026-11-25T10:00:00.000Z", "seconds": 10.0,
       "figures": {"cpu_used_share": 0.12, "memory_used_share": 0.55, ...},
       "disks": [{"mount": "/", "total_bytes": ..., "free_bytes": ...}]}

    Shares are between 0 and 1; disk_used_share is that of the fullest file system. --metrics adds a
    broker's metrics, among them broker_up (1 or 0). spark/host_metrics.py computes averages and
    alerts from the topic, and plots it.

    While the cluster is unreachable, the agent waits and keeps records for up to an hour; it
    reports the outage once. On SIGTERM or Ctrl-C it writes the remaining records and exits, with
    status 1 if records were lost.
    """
    from plog.ops.host_metrics import Agent, AgentSettings
    from plog.types import counted

    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    context = click.get_current_context()
    for number in (signal.SIGINT, signal.SIGTERM):
        context.call_on_close(partial(signal.signal, number, signal.signal(number, end)))
    # The agent reports an outage once; the producer would report it at each retry.
    logging.getLogger("plog.client").setLevel(logging.ERROR)
    settings = AgentSettings(
        bootstrap=bootstrap,
        topic=topic,
        host=host or socket.gethostname(),
        every_s=seconds,
        metrics=metrics,
        count=count,
        partitions=None if no_create else partitions,
    )
    lost = Agent(settings, stop, lambda text: click.echo(f"plog: {text}", err=True)).run()
    if lost:
        raise click.ClickException(f"{counted(lost, 'record')} of {topic} not written")
