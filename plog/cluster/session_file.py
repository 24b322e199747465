"""The ZooKeeper session of a broker, kept in its log directory for the process after it.

A broker that was killed and starts again within its session would find its own registration in the
way. Its log directory is locked, so no other process uses that session. The new process ends it
first, and its ephemeral nodes go at once. Owns the file; it holds a secret.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from plog.cluster.zookeeper_client import Session
from plog.cluster.zookeeper_store import end_session

log = logging.getLogger(__name__)

SESSION_FILE = "zookeeper-session"
MODE = 0o600


def remember(log_dir: Path, connect: str, session: Session) -> None:
    """Write the session down, readable by this user only. Raises OSError."""
    path = log_dir / SESSION_FILE
    fresh = path.with_suffix(".tmp")
    value = {
        "version": 1,
        "connect": connect,
        "session": f"{session.id:#x}",
        "password": session.password.hex(),
    }
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE), "w") as file:
        json.dump(value, file)
    fresh.replace(path)


def forget(log_dir: Path) -> None:
    """Remove the file: the session ended in order. Raises OSError."""
    (log_dir / SESSION_FILE).unlink(missing_ok=True)


def end_last(log_dir: Path, connect: str, *, within_s: float) -> bool:
    """End the session of the process before, if one is left; return whether it was.

    A file that cannot be read, or is of another ZooKeeper, is ignored: that session expires.

    Raises:
        Unreachable: no server answered in time.
        OSError: the log directory has failed.
    """
    try:
        value = json.loads((log_dir / SESSION_FILE).read_text())
        session = Session(int(value["session"], 16), bytes.fromhex(value["password"]))
        is_here = value["connect"] == connect
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as fault:
        log.warning("ignoring %s: %s", log_dir / SESSION_FILE, fault)
        return False
    was_there = is_here and end_session(connect, session, within_s=within_s)
    forget(log_dir)
    if was_there:
        log.info("ended session %#x of the process before", session.id)
    return was_there
