"""`plog bundle`: collect everything that helps to find a problem into one file."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import click

from plog.cli.output import json_option, print_json, print_rows, say
from plog.cli.properties import takes_properties


@click.command()
@takes_properties
@click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT,...",
    help="Address of the broker, if it differs from the settings.",
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the broker's log. By default, the journal of its unit.",
)
@click.option(
    "--log-lines",
    type=click.IntRange(1),
    default=5000,
    show_default=True,
    help="Number of log lines, the last ones.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    metavar="FILE|DIRECTORY",
    help="A new file, or the directory of the file.",
)
@json_option
def command(
    properties: str | None,
    overrides: tuple[str, ...],
    environment: Mapping[str, str] | None,
    bootstrap: str | None,
    log: str | None,
    log_lines: int,
    output: Path,
    as_json: bool,
) -> None:
    """Collect everything that helps to find a problem into one file, without secrets.

    The file has the findings of `plog doctor`, the settings of the PROPERTIES file, versions, the
    host, the broker's process, its metrics, topics, groups and transactions, and the last log
    lines. It has no records. Passwords and other secrets are masked in all parts. Parts that cannot
    be collected are named, for example those of a broker that is not running:

    \b
      plog bundle /etc/plog/server.properties

    It looks for the broker on this host that PROPERTIES describes; -b names another, and
    PLOG_BOOTSTRAP_SERVER has no effect.

    Run it as root, or as the broker's user. Read the file before you pass it on: it has the names
    of hosts, topics, groups and clients.
    """
    from plog.ops.bundle import BundleError, Source, collect, refuse_existing, unused_path

    if properties is not None and not os.path.exists(properties):
        raise BundleError(f"{properties}: {os.strerror(errno.ENOENT)}")
    path = unused_path(output) if output.is_dir() else output
    refuse_existing(path)
    bundle = collect(Source(properties, overrides, environment, bootstrap, log, log_lines))
    bundle.write(path)
    collected = [part for part in bundle.parts if not part.error]
    failed = [part for part in bundle.parts if part.error]
    if as_json:
        outcome = {
            "path": str(path.absolute()),
            "files": [{"name": one.name, "bytes": one.size} for one in collected],
            "not_collected": [{"name": one.name, "reason": one.error} for one in failed],
        }
        print_json(outcome)
        return
    print_rows([(one.name, one.about) for one in collected], ("file", "contents"), as_json=False)
    for reason in dict.fromkeys(part.error for part in failed):
        names = ", ".join(part.name for part in failed if part.error == reason)
        say(f"plog: not collected: {names}: {reason}", err=True)
    say(f"Wrote {path}, {path.stat().st_size // 1000 + 1:,} kB.")
