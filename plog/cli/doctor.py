"""`plog doctor`: look at a host before a broker runs on it."""

from __future__ import annotations

import sys

import click

from plog.cli.output import json_option, print_json, print_rows
from plog.cli.properties import takes_properties


@click.command()
@takes_properties
@click.option(
    "--spark", is_flag=True, help='Look for what would keep Spark from finding format("plog").'
)
@json_option
def command(properties: str | None, overrides: tuple[str, ...], spark: bool, as_json: bool) -> None:
    """Look for what would keep a broker with a PROPERTIES file from running well on this host.

    Looked at are the file, its log directories, which ones there were, listeners, limits, memory
    and the kernel's settings. Nothing is changed, and a broker may be running. To see what the
    broker will see, run this as its user:

    \b
      runuser -u plog -- plog doctor /etc/plog/server.properties

    Ends with status 1 if something would keep the broker from starting or from serving what it
    has, or lose its records.

    With --spark it looks at Java, Spark, the Python that Spark would ask, and the modules there,
    as the environment and spark-env.sh have them (SPARK_HOME, JAVA_HOME, PYSPARK_PYTHON,
    PYSPARK_DRIVER_PYTHON, PYTHONPATH, PATH): run it where jobs are started, and on the workers.
    Status 1: Spark would not find the format.
    """
    from plog.ops.doctor import Verdict, examine

    if spark:
        if properties is not None or overrides:
            raise click.UsageError("--spark is not about a broker: without PROPERTIES, --override")
        from plog.ops.spark_doctor import examine_spark

        found = examine_spark()
    else:
        found = examine(properties, overrides)
    if as_json:
        print_json(
            [{**one._asdict(), "verdict": one.verdict.value} for one in found],
        )
    else:
        rows = [(one.verdict.value, one.what, one.text, one.advice) for one in found]
        print_rows(rows, ("", "what", "found", "advice"), as_json=False)
        for one in found:
            if one.commands:
                click.echo("\n".join((f"As root, because {one.text}:", "", *one.commands, "")))
        worst = [sum(one.verdict is verdict for one in found) for verdict in Verdict]
        click.echo(f"{worst[0]} well, {worst[1]} to look at, {worst[2]} to mend")
    if any(one.verdict is Verdict.FAILURE for one in found):
        sys.exit(1)
