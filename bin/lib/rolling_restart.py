"""Restarts brokers one after the other, the controller last, so that clients notice little.

Before each it waits until `plog cluster restart-check` allows that, so one broker at most is away.
How a broker is restarted is a command of the operator's.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

import click

from plog.cli.output import bootstrap_option
from plog.client.admin import Admin
from plog.errors import KafkaError

ROOT = Path(__file__).resolve().parents[2]
OWN = f"{ROOT / 'bin' / 'cluster'} restart {{id}}"
LOOK_S = 0.2


@click.command()
@click.argument("restart", default=OWN)
@bootstrap_option
@click.option(
    "--wait",
    "wait_s",
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long replicas may take to be in sync again, before each restart.",
)
def main(restart: str, bootstrap: str, wait_s: int) -> None:
    """Restart each broker by the command RESTART, in which {id} and {host} stand for the broker.

    RESTART returns once the broker has stopped. The script ends at the first broker that may not be
    restarted, or whose command fails.
    """
    with Admin(bootstrap) as admin:
        controller = admin.controller_id()
        brokers = sorted(admin.nodes(), key=lambda one: (one.node_id == controller, one.node_id))
    for broker in brokers:
        check(str(broker.node_id), "-b", bootstrap, "--wait", str(wait_s))
        click.echo(f"== restarting broker {broker.node_id}", err=True)
        command = shlex.split(restart.format(id=broker.node_id, host=broker.host))
        if subprocess.run(command, check=False).returncode != 0:
            fail(f"the command failed: {shlex.join(command)}. The other brokers go on as they are")
        wait_until_there(bootstrap, broker.node_id, wait_s)
    check("-b", bootstrap, "--wait", str(wait_s))


def check(*words: str) -> None:
    """End unless `plog cluster restart-check` passes."""
    command = [sys.executable, "-m", "plog", "cluster", "restart-check", *words]
    if subprocess.run(command, check=False).returncode != 0:
        fail("the next broker may not be restarted. The other brokers go on as they are")


def wait_until_there(bootstrap: str, broker_id: int, wait_s: float) -> None:
    """Wait until a broker is in the cluster."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        try:
            with Admin(bootstrap) as admin:
                if broker_id in {one.node_id for one in admin.nodes()}:
                    return
        except KafkaError:
            pass
        time.sleep(LOOK_S)
    fail(f"broker {broker_id} is not back in the cluster")


def fail(text: str) -> None:
    """End with a line on stderr."""
    click.echo(f"bin/rolling-restart: {text}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
