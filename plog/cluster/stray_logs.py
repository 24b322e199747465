"""Sets aside the logs that the cluster does not know, before a broker of several loads its logs.

A topic may have been deleted, or created again, while its broker was away. Its log must
never become a topic again: each such directory is renamed to `-stray`, as in Kafka, and reported.
Owns which directories those are. Deletes nothing: the operator does.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plog.cluster import znodes
from plog.cluster.store import Store
from plog.cluster.znodes import MalformedNode, TopicNode
from plog.storage.checkpoints import CheckpointDamaged, load_topic_id
from plog.storage.filesystem import Filesystem
from plog.storage.segment_files import (
    STRAY_DIRECTORY,
    leaving_directory_name,
    parse_directory_name,
)
from plog.types import TopicPartition

log = logging.getLogger(__name__)


class StrayLog(NamedTuple):
    """A partition directory that is no replica of this broker's, and why."""

    directory: Path
    topic_partition: TopicPartition
    reason: str


def find_strays(
    fs: Filesystem, log_dirs: Iterable[Path], *, topics: Topics, broker_id: int
) -> list[StrayLog]:
    """Return the partition directories that the topics do not name.

    A log without a topic id, or with a damaged one, is judged by its name. Directories that are
    being deleted or moved are left out.

    So is what cannot be read: the start that follows takes that directory offline.
    """
    found: list[StrayLog] = []
    for log_dir in log_dirs:
        with suppress(OSError):
            for directory, at in _replicas(fs, log_dir):
                reason = topics.why_stray(at, _topic_id(fs, directory), broker_id)
                if reason is not None:
                    found.append(StrayLog(directory, at, reason))
    return found


def _replicas(fs: Filesystem, log_dir: Path) -> Iterator[tuple[Path, TopicPartition]]:
    for name in fs.list_directory(log_dir):
        parsed = parse_directory_name(name)
        if parsed is not None and not parsed.suffix and fs.is_directory(log_dir / name):
            yield log_dir / name, parsed.topic_partition


def set_aside(fs: Filesystem, strays: Sequence[StrayLog]) -> None:
    """Rename stray logs, one line of the log each. Those that cannot be renamed stay."""
    for stray in strays:
        name = leaving_directory_name(stray.topic_partition, STRAY_DIRECTORY, uuid.uuid4())
        aside = stray.directory.with_name(name)
        try:
            fs.rename(stray.directory, aside)
            fs.sync_directory(aside.parent)
        except OSError as error:
            log.error("cannot set aside %s (%s): %s", stray.directory, stray.reason, error)
        else:
            log.error(
                "set aside the log of %s as %s: %s. Delete it once its records are not needed",
                stray.topic_partition,
                aside,
                stray.reason,
            )


class StrayDirectories:
    """The directories that are set aside, until the operator deletes them.

    Args:
        log_dirs: those of the broker; one that cannot be read has none.
    """

    def __init__(self, log_dirs: Iterable[Path]) -> None:
        # Only a start sets logs aside, so that one look is enough.
        self._found = [one for log_dir in log_dirs for one in _set_aside_in(log_dir)]

    def count(self) -> int:
        """Return how many there still are."""
        return sum(map(os.path.lexists, self._found))


def _set_aside_in(log_dir: Path) -> list[Path]:
    try:
        return [log_dir / name for name in os.listdir(log_dir) if name.endswith(STRAY_DIRECTORY)]
    except OSError:
        return []


class Topics:
    """The topics of the cluster as the store has them."""

    def __init__(self, store: Store) -> None:
        store.sync()
        names = store.children(znodes.TOPICS)
        found = store.get_many([znodes.topic_path(name) for name in names])
        self._nodes = {
            name: _readable(name, one[0])
            for name, one in zip(names, found, strict=True)
            if one is not None
        }

    def why_stray(
        self, at: TopicPartition, topic_id: uuid.UUID | None, broker_id: int
    ) -> str | None:
        """Return why a log is no replica of a broker; None: it is one."""
        if at.topic not in self._nodes:
            return "its topic was deleted"
        node = self._nodes[at.topic]
        if node is None:
            return None  # an unreadable topic may have this log
        if topic_id is not None and node.topic_id not in (None, topic_id):
            return f"its topic was deleted and created again with the id {node.topic_id}"
        replicas = node.partitions.get(at.partition)
        if replicas is None:
            return f"its topic has {len(node.partitions)} partitions only"
        if broker_id not in replicas:
            return f"its replicas are on brokers {', '.join(map(str, replicas))} now"
        return None


def _readable(name: str, data: bytes) -> TopicNode | None:
    try:
        return TopicNode.decode(data)
    except MalformedNode as fault:
        log.error("%s: %s; its logs are kept", znodes.topic_path(name), fault)
        return None


def _topic_id(fs: Filesystem, directory: Path) -> uuid.UUID | None:
    try:
        return load_topic_id(fs, directory)
    except CheckpointDamaged:
        return None
