"""What the partition directories of a log directory say of themselves, whoever lists them.

Owns how a replica's topic id, leader epoch and producer ids are read from its small
files, for a coordination store that has to be written anew. Never reads batches, and
changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from plog.errors import CorruptRecord
from plog.storage.checkpoints import CheckpointDamaged, load_topic_id
from plog.storage.filesystem import Filesystem
from plog.storage.leader_epochs import LEADER_EPOCH_FILE, decode_leader_epochs
from plog.storage.producer_load import snapshot_offsets
from plog.storage.producer_snapshot import decode_snapshot
from plog.storage.segment_files import PRODUCER_SNAPSHOT, parse_directory_name, path_of
from plog.types import NO_EPOCH, TopicPartition


class FoundReplica(NamedTuple):
    """A partition directory, by what can be read of it."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None  # None: not there, or damaged
    leader_epoch: int  # the latest, -1 when unknown
    largest_producer_id: int  # -1 when there is none


def take_inventory(
    fs: Filesystem, log_dirs: Iterable[Path], *, but: Mapping[str, int] = MappingProxyType({})
) -> list[FoundReplica]:
    """Return the replicas of some log directories; those being moved or deleted are left out.

    So are the first so many partitions of the topics in `but`. To be called when the logs have
    been recovered, which leaves a snapshot of the producers.

    Raises:
        OSError: a disk has failed.
    """
    found = []
    for log_dir in log_dirs:
        for name in fs.list_directory(log_dir):
            parsed = parse_directory_name(name)
            if parsed is None or parsed.suffix or not fs.is_directory(log_dir / name):
                continue
            tp = parsed.topic_partition
            if tp.partition >= but.get(tp.topic, 0):
                found.append(_look_at(fs, log_dir / name, tp))
    return found


def _look_at(fs: Filesystem, directory: Path, tp: TopicPartition) -> FoundReplica:
    topic_id: uuid.UUID | None = None
    leader_epoch = NO_EPOCH
    try:
        topic_id = load_topic_id(fs, directory)
        text = fs.read_text(directory / LEADER_EPOCH_FILE)
        leader_epoch = decode_leader_epochs(text, LEADER_EPOCH_FILE).latest
    except (CheckpointDamaged, FileNotFoundError):
        # Its log is offline for it, with the reason, or it never had one.
        leader_epoch = NO_EPOCH
    return FoundReplica(tp, topic_id, leader_epoch, _largest_producer_id(fs, directory))


def _largest_producer_id(fs: Filesystem, directory: Path) -> int:
    largest = -1
    for offset in snapshot_offsets(fs, directory):
        try:
            entries = decode_snapshot(fs.read_bytes(path_of(directory, offset, PRODUCER_SNAPSHOT)))
        except CorruptRecord:
            continue  # recovery has named it, or the log is offline
        largest = max([largest, *(entry.producer_id for entry in entries)])
    return largest
