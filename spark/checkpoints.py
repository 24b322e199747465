"""Keeps a job's settings in its checkpoint directory, and refuses a run with other settings.

Spark resumes from a checkpoint even if the query has changed: with another window it continues to
count under the same keys. So the job stores the settings of its state in a file of its own in the
checkpoint. Spark ignores that file: it only looks for the names that it knows.
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
    """Return a path of Spark's as a local path; None if it is on another filesystem.

    A path without a scheme is on Spark's default filesystem, which is known only in a session;
    before one this function assumes the local filesystem.
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
    """Return the path of a name in a directory, which may be a URI (pathlib would change it)."""
    return f"{directory.rstrip('/')}/{name}"


def keep_settings(checkpoint: str, settings: Mapping[str, str]) -> None:
    """Store the settings of a checkpoint that is on this host, and refuse different ones.

    Call it in the session, before the queries start. A setting that is missing in the file (an
    earlier plog wrote none) is taken from this run; a stored setting that is not given is ignored.

    Args:
        checkpoint: the checkpoint of one query, or a directory with those of several.
        settings: by option name, without dashes, as the user may write them.

    Raises:
        click.UsageError: the checkpoint was created with other settings.
    """
    directory = local_path(checkpoint)
    if directory is None:
        return
    file = directory / SETTINGS
    try:
        # Before the first batch there is no state that could be mixed.
        kept = json.loads(file.read_bytes()) if file.exists() and _is_begun(directory) else {}
        changed = [name for name, value in settings.items() if kept.get(name, value) != value]
        if changed:
            now = ", ".join(f"--{name} {settings[name]}" for name in changed)
            before = ", ".join(f"--{name} {kept[name]}" for name in changed)
            raise click.UsageError(
                f"checkpoint {checkpoint} was created with {before}; {now} needs a new --checkpoint"
            )
        if dict(settings) != kept:
            _write(file, json.dumps({**kept, **settings}, indent=1) + "\n")
    except (OSError, ValueError) as fault:
        raise click.UsageError(f"--checkpoint: {file}: {fault}") from fault


def _is_begun(directory: Path) -> bool:
    """Tell whether a query has planned a batch in a checkpoint, or in one of a directory's.

    The names of Spark's checksum files begin with a dot, and do not match.
    """
    return any(any(directory.glob(f"{where}offsets/[0-9]*")) for where in ("", "*/"))


def _write(file: Path, text: str) -> None:
    """Write a file atomically and durably."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as target:
        target.write(text)
        target.flush()
        os.fsync(target.fileno())
    partial.replace(file)
