"""`plog log-dirs`: show the log directories of a stopped broker; forget missing ones."""

from __future__ import annotations

from collections.abc import Mapping

import click

from plog.cli.output import confirm, json_option, print_done, print_rows, yes_option
from plog.cli.properties import takes_properties

MOST_NAMED = 5
"""Maximum number of partitions to name in the warning of `--forget`."""


@click.command()
@takes_properties
@click.option(
    "--forget",
    "forgotten",
    metavar="PATH-OR-ID",
    help="Remove a lost directory from the broker's list.",
)
@yes_option
@json_option
def command(
    properties: str | None,
    overrides: tuple[str, ...],
    environment: Mapping[str, str] | None,
    forgotten: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the log directories of a stopped broker with a PROPERTIES file, and missing ones.

    Each log directory has an id (directory.id in its meta.properties), by which the broker
    recognises it at any path. A directory that the broker has used before and does not find in
    log.dirs is missing: its partitions stay offline, and an empty directory at its path is not
    used. Mount its disk or put it back into log.dirs, and restart the broker. If the directory is
    lost, forget it:

    \b
      plog log-dirs /etc/plog/server.properties
      plog log-dirs --forget /data/disk1/plog /etc/plog/server.properties

    At the next start, the broker copies partitions with other replicas from their leaders, and
    creates empty ones for those that were only there.
    """
    from plog.ops.log_dirs import stopped_log_dirs
    from plog.settings import load
    from plog.types import uuid_to_text

    with stopped_log_dirs(load(properties, overrides, environment)) as log_dirs:
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
            click.echo(
                f"{one.path} is {one.state.value}. Once forgotten, its path can be used again.",
                err=True,
            )
        absent = [str(one) for one in log_dirs.absent_partitions()]
        if absent:
            more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
            click.echo(
                f"Partitions in no available log directory: {', '.join(absent[:MOST_NAMED])}{more}."
                " The broker copies those with other replicas from their leaders, and creates the"
                " rest empty, unless another missing directory has them.",
                err=True,
            )
        paths = ", ".join(str(one.path) for one in missing)
        confirm(f"Forget {paths}?", "Not forgotten.", yes=yes)
        log_dirs.forget(missing)
    ids = [uuid_to_text(one.directory_id) for one in missing if one.directory_id is not None]
    print_done(f"Forgot {paths}.", {"forgotten": ids}, as_json=as_json)
