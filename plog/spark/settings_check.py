"""Warns where a session lacks the settings of `session_settings`, once for each setting.

The source checks when Spark plans a query, and the sink's tasks report to the driver. So a warning
is on the driver's stderr. A session's local directory remembers it: each check has a new process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pyspark import TaskContext

from plog.spark.session_settings import (
    BATCH_BYTES,
    BATCH_RECORDS,
    PUSHDOWN,
    REASONS,
    SETTINGS,
    UNIX_SOCKET,
)

log = logging.getLogger(__name__)

SINK_SETTINGS = (BATCH_RECORDS, BATCH_BYTES)
SOCKET_VARIABLE = "PYTHON_UNIX_DOMAIN_ENABLED"
"""Spark sets it to true for its Python processes, if it uses a Unix socket."""
DIRECTORIES_VARIABLE = "SPARK_LOCAL_DIRS"
"""Directories of this session, which Spark deletes at its end."""


def missing_in_planning(*, pushes_filters: bool = False) -> list[str]:
    """Return the settings that the process which plans a query lacks.

    Args:
        pushes_filters: whether the query asks for that.
    """
    missing = []
    if os.environ.get(SOCKET_VARIABLE, "").lower() != "true":
        missing.append(UNIX_SOCKET)
    if pushes_filters and _is_pushdown_enabled() is False:
        missing.append(PUSHDOWN)
    return missing


def _is_pushdown_enabled() -> bool | None:
    """Return the setting that Spark's planner has received; None if it is not known.

    Spark passes settings to tasks only. Its planner calls this function, and has it in a variable.
    """
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        value = frame.f_locals.get("enable_pushdown")
        if isinstance(value, bool):
            return value
    return None


def missing_in_task() -> tuple[str, ...]:
    """Return the sink's settings that the session of this task does not set."""
    task = TaskContext.get()
    if task is None:
        return ()
    return tuple(name for name in SINK_SETTINGS if task.getLocalProperty(name) is None)


def warn_once(missing: Iterable[str]) -> None:
    """Log a line for each of these settings, unless this session has one already."""
    for name in missing:
        if _is_first(name):
            log.warning(
                "plog: %s is not %s. %s Add to spark-defaults.conf: %s %s "
                "(`plog doctor --spark --conf` prints all settings)",
                name,
                "true" if SETTINGS[name] == "true" else "set",
                REASONS[name],
                name,
                SETTINGS[name],
            )


def _is_first(name: str) -> bool:
    """Note a warning in the session's directory; return False if it is there."""
    directory = os.environ.get(DIRECTORIES_VARIABLE, "").partition(",")[0]
    if not directory:
        return True
    try:
        Path(directory, f"plog-warned-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
