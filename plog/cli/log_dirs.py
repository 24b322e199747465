"""`plog log-dirs`: which log directories a stopped broker has and misses, and how to do without."""

from __future__ import annotations

import sys

import click

from plog.cli.output import agrees, json_option, print_done, print_rows
from plog.cli.properties import takes_properties

MOST_NAMED = 5
"""So many partitions are named of those that will be empty."""


@click.command()
@takes_properties
@click.option(
    "--forget",
    "forgotten",
    metavar="PATH-OR-ID",
    help="Have the broker do without a directory that is gone for good.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(
    properties: str | None,
    overrides: tuple[str, ...],
    forgotten: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the log directories of a stopped broker, by a PROPERTIES file, and those it misses.

    Each has an id (directory.id in its meta.properties), by which the broker knows it wherever it
    is mounted. One that was there once and is in none of log.dirs is missing: its partitions stay
    offline, and an empty directory in its place is left alone. Mount its disk, or put it back into
    log.dirs, and start the broker again. Gone for good, it can be forgotten:

    \b
      plog log-dirs /etc/plog/server.properties
      plog log-dirs --forget /data/disk1/plog /etc/plog/server.properties

    Partitions that are nowhere else then begin anew at the next start, and empty.
    """
    from plog.ops.log_dirs import stopped_log_dirs
    from plog.settings import load
    from plog.types import uuid_to_text

    with stopped_log_dirs(load(properties, overrides)) as log_dirs:
        if forgotten is None:
            rows = [
                (
                    str(one.path),
                    None if one.directory_id is None else uuid_to_text(one.directory_id),
                    one.state.value,
                )
                for one in log_dirs.known()
            ]
            print_rows(rows, ("path", "id", "state"), as_json=as_json)
            return
        missing = log_dirs.find_missing(forgotten)
        for one in missing:
            click.echo(f"{one.path} is {one.state.value}. Forgotten, its place is free.", err=True)
        absent = [str(one) for one in log_dirs.absent_partitions()]
        if absent:
            more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
            click.echo(
                f"In no log directory that is there: {', '.join(absent[:MOST_NAMED])}{more}."
                " What is in no other missing one either is made anew, and empty.",
                err=True,
            )
        if not (yes or agrees("Forget it?")):
            click.echo("Nothing is forgotten.", err=True)
            sys.exit(1)
        log_dirs.forget(missing)
    ids = [uuid_to_text(one.directory_id) for one in missing if one.directory_id is not None]
    places = ", ".join(str(one.path) for one in missing)
    print_done(f"Forgot {places}.", {"forgotten": ids}, as_json=as_json)
