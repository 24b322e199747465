"""`plog host-metrics`: publish what a host does."""

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
    help="Seconds between two records, over which rates and shares are taken.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many records.")
@click.option(
    "--metrics",
    envvar="PLOG_METRICS",
    metavar="HOST:PORT",
    help="Publish a broker's figures as well: those of its `metrics.listener`.",
)
@click.option("--host", help="What to call this host [default: its name].")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of TOPIC, if it has to be created.",
)
@click.option("--no-create", is_flag=True, help="Do not create TOPIC; end where it is missing.")
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
    """Publish this host's processors, memory, disks and network into TOPIC, as JSON.

    One record every ten seconds, with the host's name as its key (`plog host-metrics` alone
    writes into the topic host-metrics):

    \b
      {"host": "a", "time": "2026-11-25T10:00:00.000Z", "seconds": 10.0,
       "figures": {"cpu_used_share": 0.12, "memory_used_share": 0.55, ...},
       "disks": [{"mount": "/", "total_bytes": ..., "free_bytes": ...}]}

    Shares are of 1; disk_used_share is of the fullest file system. With --metrics there are
    figures of a broker, broker_up (1 or 0) among them. spark/host_metrics.py makes averages,
    alerts and a plot of the topic.

    A cluster that is away is waited for, at the start too, and told of once: records are kept for
    an hour. SIGTERM and Ctrl-C end the agent, with what it has measured written; its status is 1
    if some of it could not be.
    """
    from plog.ops.host_metrics import Agent, AgentSettings
    from plog.types import counted

    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    context = click.get_current_context()
    for number in (signal.SIGINT, signal.SIGTERM):
        context.call_on_close(partial(signal.signal, number, signal.signal(number, end)))
    # The agent tells once of what the producer would tell at every turn.
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
