"""`plog doctor`: check a host before a broker starts on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from plog.cli.output import json_option, print_json, print_rows
from plog.cli.properties import takes_properties

if TYPE_CHECKING:
    from plog.ops.doctor.findings import Finding


@click.command()
@takes_properties
@click.option(
    "--spark", is_flag=True, help='Check whether Spark can find format("plog") on this host.'
)
@click.option(
    "--conf", is_flag=True, help="With --spark: print the properties file that Spark needs."
)
@click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT,...",
    help="Check a running broker from this host, as its clients see it.",
)
@json_option
def command(
    properties: str | None,
    overrides: tuple[str, ...],
    environment: Mapping[str, str] | None,
    spark: bool,
    conf: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Check whether a broker with a PROPERTIES file can run well on this host.

    Checks the file, its log directories, missing log directories, listeners, limits, memory and
    kernel settings. If the broker is running, checks it, too: whether its advertised addresses
    lead to it, its partitions, disks, metrics page, version and clock. Changes nothing. It looks
    only for the broker on this host that PROPERTIES describes; PLOG_BOOTSTRAP_SERVER has no effect.
    Run it as the broker's user, so that it sees the same permissions:

    \b
      runuser -u plog -- plog doctor /etc/plog/server.properties

    Exit status 1 means a failure: the broker would not start, would leave partitions offline, or
    could lose records.

    With -b it checks a running broker from any host, without its PROPERTIES. Run it where clients
    run. Exit status 1 means that they cannot use the broker.

    With --spark it checks Java, Spark, the Python in which Spark looks for formats, and the modules
    there. It uses the environment and spark-env.sh (SPARK_HOME, JAVA_HOME, PYSPARK_PYTHON,
    PYSPARK_DRIVER_PYTHON, PYTHONPATH, PATH), so run it where you start jobs, and on the workers.
    Exit status 1 means that Spark would not find the format. With --conf it prints Spark's settings
    for the format instead, and failures to stderr:

    \b
      plog doctor --spark --conf > plog.conf
      spark-submit --properties-file plog.conf job.py
    """
    from plog.ops.doctor.examination import examine, examine_client
    from plog.ops.doctor.findings import Verdict
    from plog.types import counted

    if conf and (as_json or not spark):
        raise click.UsageError("--conf prints a properties file: use --spark, and no --json")
    has_settings = properties is not None or bool(overrides) or environment is not None
    if bootstrap is not None:
        if spark or has_settings:
            raise click.UsageError("use -b alone: it reads no settings of this host")
        found = examine_client(bootstrap)
    elif spark:
        if has_settings:
            raise click.UsageError(
                "--spark does not check a broker: omit PROPERTIES, --env and --override"
            )
        from plog.ops.doctor.spark import find_python

        python, found = find_python()
        if conf:
            print_conf(python, found)
            return
    else:
        found = examine(properties, overrides, environment)
    if as_json:
        print_json(
            [{**one._asdict(), "verdict": one.verdict.value} for one in found],
        )
    else:
        rows = [(one.verdict.value, one.what, one.text, one.advice) for one in found]
        print_rows(rows, ("Result", "Check", "Found", "Advice"), as_json=False)
        for one in found:
            if one.commands:
                click.echo("\n".join((f"{one.text}. Run as root:", "", *one.commands, "")))
        worst = [sum(one.verdict is verdict for one in found) for verdict in Verdict]
        click.echo(f"{worst[0]} ok, {counted(worst[1], 'warning')}, {counted(worst[2], 'failure')}")
    if any(one.verdict is Verdict.FAILURE for one in found):
        sys.exit(1)


def print_conf(python: str | None, found: list[Finding]) -> None:
    """Print the properties file for Spark; failures go to stderr."""
    from plog.ops.doctor.findings import Verdict
    from plog.spark.properties_file import properties_file

    click.echo(properties_file(python or sys.executable), nl=False)
    failures = [one for one in found if one.verdict is Verdict.FAILURE]
    for one in failures:
        click.echo(f"plog: {one.text}: {one.advice}", err=True)
    if failures:
        sys.exit(1)
