"""Names: of a segment's files, of partition directories, and of what is on its way out.

Owns how offsets and partitions become file names and back. Never touches the
disk. The names are Kafka's, because its tools and its recovery go by them.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import NamedTuple

from plog.types import CLUSTER_METADATA, TopicPartition, is_legal_topic_name

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
PRODUCER_SNAPSHOT = ".snapshot"

INDEXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
"""Files that are of no use without their `.log`, and can be rebuilt from it."""

SEGMENT = (LOG, *INDEXES)

# Suffixes of files that are being replaced (docs/FORMATS.md, "Replacing segments").
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
SHORTER = ".shorter.tmp"
"""What stays of a segment in a truncation. As all `.tmp` files it is removed at a start."""

DELETE_DIRECTORY = "-delete"
FUTURE_DIRECTORY = "-future"
STRAY_DIRECTORY = "-stray"

MAX_NAME_BYTES = 255

_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.cleaned|\.swap|\.deleted)?"
)
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})")
_LEAVING = re.compile(r"(?P<name>.+)\.(?P<id>[0-9a-f]{32})(?P<suffix>-delete|-future|-stray)")


class SegmentFile(NamedTuple):
    """A parsed file name of a partition directory."""

    base_offset: int
    kind: str  # one of SEGMENT, or PRODUCER_SNAPSHOT
    suffix: str  # "", CLEANED, SWAP or DELETED


class PartitionDirectory(NamedTuple):
    """A parsed directory name of a log directory."""

    topic_partition: TopicPartition  # of a -delete directory the topic may be cut
    suffix: str  # "", DELETE_DIRECTORY, FUTURE_DIRECTORY or STRAY_DIRECTORY


def file_name(base_offset: int, kind: str, suffix: str = "") -> str:
    """Return ``00000000000000004711.log`` and the like."""
    return f"{base_offset:020d}{kind}{suffix}"


def path_of(directory: Path, base_offset: int, kind: str, suffix: str = "") -> Path:
    """Return the path of one of a segment's files."""
    return directory / file_name(base_offset, kind, suffix)


def parse_file_name(name: str) -> SegmentFile | None:
    """Read a file name; None for files that are not a segment's."""
    found = _SEGMENT_FILE.fullmatch(name)
    if found is None or int(found[1]) >= 1 << 63:
        return None
    return SegmentFile(int(found[1]), found[2], found[3] or "")


def parse_directory_name(name: str) -> PartitionDirectory | None:
    """Read a directory name; None for directories that are not a partition's."""
    leaving = _LEAVING.fullmatch(name)
    plain, suffix = (leaving["name"], leaving["suffix"]) if leaving else (name, "")
    found = _PARTITION.fullmatch(plain)
    if found is None or not is_legal_topic_name(found["topic"]):
        return None
    if found["topic"] == CLUSTER_METADATA:
        return None
    if int(found["partition"]) >= 1 << 31:
        return None
    return PartitionDirectory(TopicPartition(found["topic"], int(found["partition"])), suffix)


def leaving_directory_name(topic_partition: TopicPartition, suffix: str, unique: uuid.UUID) -> str:
    """Return ``topic-0.<32 hex digits>-delete`` (or -future, -stray), the topic cut to fit."""
    ending = f"-{topic_partition.partition}.{unique.hex}{suffix}"
    return topic_partition.topic[: MAX_NAME_BYTES - len(ending)] + ending
