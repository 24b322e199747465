"""Checkpoint directories of jobs: where they are, and what their first run was told to count.

Spark takes a checkpoint as it is, whatever the query says now: with another window it counts on
under the same keys. So a job's own file in it says what its state is of. It is of no concern to
Spark, which looks only for the names that it knows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

SETTINGS = "job.json"


def local_path(path: str) -> Path | None:
    """Return where a path of Spark's is on this host; None if it is of another filesystem.

    Without a scheme it is of Spark's default filesystem, which is known in a session; before one it
    is taken for this host's.
    """
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return Path(path) if _is_default_local() else None
    rest = rest.removeprefix("//")
    return Path(rest) if scheme == "file" and rest.startswith("/") else None


def _is_default_local() -> bool:
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession()
    if session is None:
        return True
    name: str = session.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")
    return name.startswith("file:")


def below(directory: str, name: str) -> str:
    """Return the path of a name in a directory; either may be a URI, which pathlib would change."""
    return f"{directory.rstrip('/')}/{name}"


def keep_settings(checkpoint: str, settings: Mapping[str, str]) -> None:
    """Keep what a checkpoint's state is of, where that is on this host, and refuse anything else.

    To be called in the session, before the queries start. A setting that the checkpoint's file does
    not have, as an earlier plog has written none, is taken from this run; one that is not given any
    more is of no interest.

    Args:
        checkpoint: of one query, or a directory of those of several.
        settings: by the names of their options, without the dashes, as the user may write them.

    Raises:
        click.UsageError: the checkpoint was begun with others.
    """
    directory = local_path(checkpoint)
    if directory is None:
        return
    file = directory / SETTINGS
    try:
        # As long as no query has begun there is no state that would be mixed.
        kept = json.loads(file.read_bytes()) if file.exists() and _is_begun(directory) else {}
        changed = [name for name, value in settings.items() if kept.get(name, value) != value]
        if changed:
            now = ", ".join(f"--{name} {settings[name]}" for name in changed)
            before = ", ".join(f"--{name} {kept[name]}" for name in changed)
            raise click.UsageError(
                f"the checkpoint {checkpoint} was begun with {before}, and counts so: "
                f"{now} needs another --checkpoint"
            )
        if dict(settings) != kept:
            _write(file, json.dumps({**kept, **settings}, indent=1) + "\n")
    except (OSError, ValueError) as fault:
        raise click.UsageError(f"--checkpoint: {file}: {fault}") from fault


def _is_begun(directory: Path) -> bool:
    """Tell whether a query has planned a batch in a checkpoint, or in one of those in a directory.

    Spark's checksums lie beside, whose names begin with a dot.
    """
    return any(any(directory.glob(f"{where}offsets/[0-9]*")) for where in ("", "*/"))


def _write(file: Path, text: str) -> None:
    """Write a file that is there whole or not at all, also when the host goes down."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as target:
        target.write(text)
        target.flush()
        os.fsync(target.fileno())
    partial.replace(file)
