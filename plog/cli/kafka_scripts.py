"""`plog kafka-scripts`: install scripts with the names and options of Kafka's."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

import plog
from plog.cli.kafka.names import SCRIPTS
from plog.cli.output import confirm, json_option, names_text, print_done, yes_option

MARK = "# Written by `plog kafka-scripts`, which may replace this file."
ENDINGS = (".sh", "")
"""Kafka's own archive has `.sh`; distributions leave it out."""
MODE = 0o755
ENTRY = "main"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@yes_option
@json_option
def command(directory: Path, yes: bool, as_json: bool) -> None:
    """Install kafka-topics.sh, kafka-console-consumer.sh and others in DIRECTORY.

    The scripts have the names, options and output of Kafka 3.9's, and need no Java. Each is
    installed with and without `.sh`. docs/MIGRATION.md lists their differences from Kafka's.

    \b
      plog kafka-scripts ~/bin
      kafka-topics.sh --bootstrap-server 127.0.0.1:9092 --list
    """
    paths = {directory / f"{name}{ending}": name for name in SCRIPTS for ending in ENDINGS}
    foreign = [path for path in paths if os.path.lexists(path) and not _is_ours(path)]
    if foreign:
        names = names_text([path.name for path in foreign], "file")
        question = f"Replace {names} in {directory}, not written by plog?"
        confirm(question, "Nothing installed.", yes=yes)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, name in paths.items():
            _write(path, name)
    except OSError as fault:
        raise click.FileError(str(fault.filename), fault.strerror) from fault
    outcome = {"directory": str(directory), "scripts": list(SCRIPTS)}
    print_done(f"Installed {len(SCRIPTS)} scripts in {directory}.", outcome, as_json=as_json)


def _is_ours(path: Path) -> bool:
    """Return whether an earlier run wrote the file."""
    if path.is_symlink() or not path.is_file():
        return False
    return MARK in path.read_text("utf-8", errors="replace").splitlines()[:2]


def _write(path: Path, name: str) -> None:
    """Write a script under another name and rename it, so that no run reads half a file."""
    # Python finds the Debian package's plog by its path only. -P: the working directory is no such.
    root = str(Path(plog.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {root!r}); from plog.cli.kafka.__main__ import {ENTRY}"
    start = shlex.join([sys.executable, "-P", "-c", f"{code}; {ENTRY}()", name])
    whole = path.with_name(f".{path.name}.new")
    whole.write_text(f'#!/bin/sh\n{MARK}\nexec {start} "$@"\n', "utf-8")
    whole.chmod(MODE)
    whole.replace(path)
