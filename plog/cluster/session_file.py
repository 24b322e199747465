"""The ZooKeeper session of a broker, kept in its log directory for the process after it.

A broker that was killed and starts again within its session would find its own registration in the
way. The new process ends that session first, and its ephemeral nodes go at once.

The lock of the log directory shows that the process before has ended. A copy of the directory has
the file, too, but another lock. So the file names its place: device and inode, which name a
directory on one boot of a kernel. A volume in another host, a restored snapshot and a clone of a
machine are other places, and so is a host that has restarted: the session then ends in its time.

Owns the file; it holds a secret.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from plog.cluster.zookeeper_client import Session
from plog.cluster.zookeeper_store import end_session
from plog.settings.zookeeper_connect import parse_connect
from plog.storage.filesystem import Filesystem

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
        "place": _place(log_dir),
    }
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE), "w") as file:
        json.dump(value, file)
    fresh.replace(path)


def forget(log_dir: Path) -> None:
    """Remove the file, if there is one: its session has ended. Raises OSError."""
    (log_dir / SESSION_FILE).unlink(missing_ok=True)


def end_last(log_dir: Path, connect: str, *, within_s: float) -> bool:
    """End the session of the process before, if one is left; return whether it was.

    A file that cannot be read, or is of another path in ZooKeeper, is ignored, and so is one that
    was written in another place: that session expires. The servers may have other names by now;
    those of another ZooKeeper do not know the session.

    Raises:
        Unreachable: no server answered in time.
        OSError: the log directory has failed.
    """
    path = log_dir / SESSION_FILE
    try:
        value = json.loads(path.read_text())
        session = Session(int(value["session"], 16), bytes.fromhex(value["password"]))
        is_here = parse_connect(str(value["connect"])).path == parse_connect(connect).path
        place = value["place"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as fault:
        log.warning("ignoring %s: %r", path, fault)
        return False
    if place is None or place != _place(log_dir):
        log.warning(
            "%s was written in another directory, or before the host restarted: if session %#x"
            " lives, it is not ended",
            path,
            session.id,
        )
        return False
    if not is_here or not end_session(connect, session, within_s=within_s):
        return False
    log.info("ended session %#x of the process before", session.id)
    return True


def _place(log_dir: Path) -> dict[str, str | int] | None:
    """Return what names this directory and no copy of it; None if the kernel does not tell."""
    boot_id = Filesystem().boot_id()
    if boot_id is None:
        return None
    found = log_dir.stat()
    return {"boot": boot_id, "device": found.st_dev, "inode": found.st_ino}
