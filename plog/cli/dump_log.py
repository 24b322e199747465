"""`plog dump-log`: print the contents of a log's files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from plog.cli.output import data_json, json_option, time_text
from plog.ops.dump_log import DAMAGE, Found, dump
from plog.printable import printable, printable_json
from plog.types import counted


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, path_type=Path),
)
@click.option("--deep", is_flag=True, help="Also print the records of each batch.")
@click.option(
    "--verify",
    is_flag=True,
    help="Print only damage; also compare indexes with their log.",
)
@json_option
def command(files: tuple[Path, ...], deep: bool, verify: bool, as_json: bool) -> None:
    """Print the contents of each FILE of a log; for a directory, of all its log files.

    Supports .log (batches; with --deep also records), .index, .timeindex, .txnindex, .snapshot,
    the checkpoint files, partition.metadata and durable-ends. Only reads files; a broker may be
    running. Exit status 1 means that a file is damaged. With --json each line is an object.

    \b
      plog dump-log data/flights-0 --verify
      plog dump-log data/flights-0/00000000000000000000.log --deep
    """
    damages = 0
    try:
        for path in files:
            for found in dump(path, deep=deep, compare=verify):
                damages += found.is_damage
                if found.is_damage or not verify:
                    line = _json_line(found) if as_json else printable(_line(found))
                    sys.stdout.write(f"{line}\n")
    except BrokenPipeError:
        raise
    except OSError as fault:
        raise click.FileError(str(fault.filename), fault.strerror) from fault
    sys.stdout.flush()
    if verify and not damages and not as_json:
        click.echo("No damage found.", err=True)
    if damages:
        raise click.ClickException(f"damage found in {counted(damages, 'place')}")


def _json_line(found: Found) -> str:
    fields = {
        name: data_json(value) if isinstance(value, bytes) else value
        for name, value in found.fields.items()
    }
    if "headers" in fields:
        fields["headers"] = [[name, data_json(value)] for name, value in _headers(found)]
    line = {"file": str(found.path), "kind": found.kind, "at": found.at, **fields}
    return json.dumps(line)


def _line(found: Found) -> str:
    """Return a line of text: position, kind and fields."""
    if found.kind == "file":
        return f"{found.path} ({found.fields['bytes']} bytes)"
    if found.kind == DAMAGE:
        where = "" if found.at is None else f" at {found.at}"
        return f"DAMAGE in {found.path}{where}: {found.fields['why']}"
    if found.kind == "batch":
        return _batch_line(found)
    indent = "    " if found.kind == "record" else "  "
    where = "" if found.at is None or found.kind == "record" else f"at {found.at}: "
    words = [f"{name} {_word(name, value)}" for name, value in found.fields.items()]
    return f"{indent}{where}{found.kind}: {', '.join(words)}"


def _batch_line(found: Found) -> str:
    fields = found.fields
    count, size = fields["records"], fields["bytes"]
    assert isinstance(count, int)
    assert isinstance(size, int)
    words = [
        f"offsets {fields['base_offset']} to {fields['last_offset']}",
        counted(count, "record"),
        counted(size, "byte"),
        str(fields["codec"]),
        f"{fields['timestamp_type']} {_word('max_timestamp', fields['max_timestamp'])}",
        f"leader epoch {fields['leader_epoch']}",
    ]
    if fields["producer_id"] != -1:
        words.append(
            f"producer {fields['producer_id']} epoch {fields['producer_epoch']}"
            f" sequences {fields['base_sequence']} to {fields['last_sequence']}"
        )
    words += [name for name in ("transactional", "control") if fields[name]]
    return f"  at {found.at}: {', '.join(words)}"


def _word(name: str, value: object) -> str:
    if isinstance(value, bytes):
        return printable_json(json.dumps(data_json(value), ensure_ascii=False))
    if name == "headers" and isinstance(value, tuple):
        pairs = [f"{key}={json.dumps(data_json(data))}" for key, data in value]
        return f"({' '.join(pairs)})"
    if name.endswith("timestamp") and isinstance(value, int):
        return f"{value} {time_text(value)}".rstrip()
    return "null" if value is None else str(value)


def _headers(found: Found) -> list[tuple[str, bytes | None]]:
    headers = found.fields["headers"]
    assert isinstance(headers, tuple)
    return list(headers)
