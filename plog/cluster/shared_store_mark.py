"""The mark in a log directory that its broker belongs to a cluster on ZooKeeper.

A broker that starts on such a directory without `zookeeper.connect` would become a cluster of its
own: it would take the logs of its partitions, make empty ones for those of the other brokers, and
acknowledge records that are set aside once it returns. So a broker marks its directories
before it uses them in a cluster, and a start without the key refuses a marked one.

Owns the file. Only a person removes it, from copies whose ZooKeeper is lost. Kafka ignores it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plog.cluster.store_copy import FILE_NAME
from plog.errors import ConfigError, InconsistentLogDirs
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import decode_properties, encode_properties

log = logging.getLogger(__name__)

MARK_FILE: Final = "zookeeper-store"
CONNECT: Final = "zookeeper.connect"


def mark_shared(fs: Filesystem, log_dirs: Sequence[Path], connect: str) -> None:
    """Mark log directories durably as those of a cluster.

    Only logs a directory that cannot be written: a broker can use a full one, and notices a failed
    one itself.
    """
    text = encode_properties({"version": "0", CONNECT: connect})
    for log_dir in log_dirs:
        path = log_dir / MARK_FILE
        try:
            if not fs.exists(path) or fs.read_bytes(path) != text.encode():
                fs.replace_text(path, text)
        except OSError as error:
            log.warning("cannot write %s until the next start: %s", path, error)


def marked_fault(fs: Filesystem, log_dirs: Sequence[Path]) -> tuple[str, str] | None:
    """Return why a broker cannot run alone on the directories, and what to do; None if it can."""
    for log_dir in log_dirs:
        if not _is_marked(fs, log_dir):
            continue
        connect = _marked_connect(fs, log_dir)
        return (
            f"log directory {log_dir} belongs to a cluster on ZooKeeper, but {CONNECT} is not set",
            f"set {CONNECT}{' again' if connect is None else f'={connect}'}. If that ZooKeeper is"
            f" lost for good, copy the log directories, remove {MARK_FILE} from the copies, and"
            " start on these",
        )
    return None


def check_not_shared(fs: Filesystem, log_dirs: Sequence[Path]) -> None:
    """Check that a broker may run alone on its log directories.

    Raises:
        InconsistentLogDirs: a directory belongs to a cluster on ZooKeeper.
    """
    if (fault := marked_fault(fs, log_dirs)) is not None:
        raise InconsistentLogDirs(": ".join(fault))


def check_no_embedded_store(log_dirs: Sequence[Path]) -> None:
    """Check that a broker of a cluster has no store of its own. Raises ConfigError."""
    for log_dir in log_dirs:
        if (log_dir / FILE_NAME).exists():
            raise ConfigError(
                f"{CONNECT} is set, but {log_dir} has this broker's own coordination store"
                f" ({FILE_NAME}): its topics and settings would be lost. Run plog move-store first,"
                f" or remove {CONNECT} if the broker is to run alone"
            )


def _is_marked(fs: Filesystem, log_dir: Path) -> bool:
    try:
        return fs.exists(log_dir / MARK_FILE)
    except OSError:
        return False  # the directory has failed; the others tell


def _marked_connect(fs: Filesystem, log_dir: Path) -> str | None:
    """Return the marked `zookeeper.connect`, None if the file is damaged."""
    try:
        connect = decode_properties(fs.read_text(log_dir / MARK_FILE)).get(CONNECT)
    except OSError:
        return None
    return connect if connect and connect.isprintable() else None
