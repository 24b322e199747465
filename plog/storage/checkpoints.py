"""Kafka's small text files: offset checkpoints and partition.metadata.

Owns their formats (version line, count line, entries) and their atomic
replacement. Never decides what a missing or damaged file means: whoever loads
one says whether to start from nothing or to stop.

    0                      version
    2                      how many entries follow
    flights 0 4711         topic partition offset
    flights 1 4712
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from plog.errors import PlogError
from plog.storage.filesystem import Filesystem
from plog.types import TopicPartition, uuid_from_text, uuid_to_text

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
OFFSET_GAPS_FILE = "offset-gaps-checkpoint"
"""plog's own: below which offset of a log batches may be missing, as compaction leaves it."""
PARTITION_METADATA_FILE = "partition.metadata"

_VERSION = 0


class CheckpointDamaged(PlogError):
    """A checkpoint file does not read as one; the message names file and line."""


def encode_lines(entries: Iterable[str]) -> str:
    """Put the version and count lines before `entries`."""
    lines = list(entries)
    return "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines))


def decode_lines(text: str, name: str, columns: int) -> list[tuple[str, ...]]:
    """Split a checkpoint into its entries of `columns` words each.

    Raises:
        CheckpointDamaged: wrong version, count or number of words; `name` is in the message.
    """
    lines = text.splitlines()
    if not lines or lines[0].strip() != str(_VERSION):
        raise CheckpointDamaged(f"{name}:1: version {_VERSION} expected, not {_line(lines, 0)}")
    count = integer(_line(lines, 1), f"{name}:2", low=0)
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        words = tuple(line.split())
        if len(words) != columns:
            raise CheckpointDamaged(f"{name}:{number}: {columns} words expected, not {line!r}")
        entries.append(words)
    if len(entries) != count:
        raise CheckpointDamaged(f"{name}: {count} entries announced, {len(entries)} found")
    return entries


def _line(lines: list[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def integer(word: str, where: str, *, low: int = 0) -> int:
    """Read a decimal number of a checkpoint, at least `low` and of 64 bits.

    Raises:
        CheckpointDamaged: anything else; `where` is in the message.
    """
    number = word.strip()  # int() strips less of what splits lines and words
    digits = number.removeprefix("-")
    # int() would also take "1_000", "+1" and digits of other scripts.
    whole = digits.isascii() and digits.isdigit() and len(digits) <= 19
    if not whole or not low <= int(number) < 1 << 63:
        raise CheckpointDamaged(f"{where}: a number of at least {low} expected, not {word!r}")
    return int(number)


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Encode an offset checkpoint, sorted, so that equal content is equal bytes."""
    return encode_lines(f"{tp.topic} {tp.partition} {offsets[tp]}" for tp in sorted(offsets))


def decode_offsets(text: str, name: str) -> dict[TopicPartition, int]:
    """Decode an offset checkpoint.

    Raises:
        CheckpointDamaged: malformed, or one partition twice.
    """
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in decode_lines(text, name, 3):
        tp = TopicPartition(topic, integer(partition, name, low=0))
        if tp in offsets:
            raise CheckpointDamaged(f"{name}: {tp} is listed twice")
        offsets[tp] = integer(offset, name, low=0)
    return offsets


class OffsetCheckpoint:
    """One offset checkpoint file of a log directory."""

    def __init__(self, fs: Filesystem, path: Path) -> None:
        self._fs = fs
        self.path = path
        # Stores come from the scheduler and from handlers; the .tmp file has one name.
        self._lock = threading.Lock()
        self._ceilings: dict[TopicPartition, int] = {}
        self._is_written = False
        self.stored: dict[TopicPartition, int] = {}  # what the file says

    def load(self) -> dict[TopicPartition, int]:
        """Read the file; empty when there is none.

        Raises:
            CheckpointDamaged: as `decode_offsets`.
            OSError: it cannot be read.
        """
        try:
            text = self._fs.read_text(self.path)
        except FileNotFoundError:
            return {}
        self.stored = decode_offsets(text, str(self.path))
        self._is_written = True
        return dict(self.stored)

    def store(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Replace the file unless it already says just that; tell whether it was written.

        Raises:
            OSError: the file is what it was, or (after the rename) the new one.
        """
        with self._lock:
            limited = {
                tp: min(offset, self._ceilings.get(tp, offset)) for tp, offset in offsets.items()
            }
            return self._write(limited)

    def put(self, topic_partition: TopicPartition, offset: int) -> None:
        """Make durable what the file says of one partition. Raises OSError."""
        with self._lock:
            self._write({**self.stored, topic_partition: offset})

    def raise_to(self, topic_partition: TopicPartition, offset: int) -> None:
        """Make durable that a partition's offset is at least `offset`. Raises OSError."""
        with self._lock:
            if self.stored.get(topic_partition, -1) < offset:
                self._write({**self.stored, topic_partition: offset})

    def raise_all(self, offsets: Mapping[TopicPartition, int]) -> None:
        """`raise_to` for several, in one write. Raises OSError."""
        with self._lock:
            raised = {tp: max(at, self.stored.get(tp, -1)) for tp, at in offsets.items()}
            self._write({**self.stored, **raised})

    def drop(self, topic_partition: TopicPartition) -> None:
        """Make durable that the file does not speak of a partition. Raises OSError."""
        with self._lock:
            self._write({tp: at for tp, at in self.stored.items() if tp != topic_partition})

    def lower(self, topic_partition: TopicPartition, offset: int) -> None:
        """Make durable that a partition's offset is at most `offset`. Raises OSError.

        So it stays, also against a `store` of offsets that were collected before, until
        `lift_ceilings`, which whoever collects calls first.
        """
        with self._lock:
            self._ceilings[topic_partition] = offset
            if self.stored.get(topic_partition, 0) > offset:
                self._write({**self.stored, topic_partition: offset})

    def lift_ceilings(self) -> None:
        """Say that offsets are collected from now on."""
        with self._lock:
            self._ceilings.clear()

    def _write(self, offsets: dict[TopicPartition, int]) -> bool:
        if self._is_written and offsets == self.stored:
            return False
        self._is_written = False
        self._fs.replace_text(self.path, encode_offsets(offsets))
        self._is_written = True
        self.stored = offsets
        return True


def encode_partition_metadata(topic_id: uuid.UUID) -> str:
    """Encode partition.metadata (KIP-516). No newline at its end: Kafka writes none."""
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"


def decode_partition_metadata(text: str, name: str) -> uuid.UUID:
    """Decode partition.metadata.

    Raises:
        CheckpointDamaged: not version 0 with a topic id.
    """
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    values = {key.strip(): value.strip() for key, value in fields.items()}
    if values.get("version") != "0":
        raise CheckpointDamaged(f"{name}: version 0 expected, not {values.get('version')!r}")
    try:
        return uuid_from_text(values.get("topic_id", ""))
    except ValueError as error:
        raise CheckpointDamaged(f"{name}: no topic id: {error}") from error


def load_topic_id(fs: Filesystem, directory: Path) -> uuid.UUID | None:
    """Return the topic id a partition directory belongs to; None when it predates topic ids.

    Raises:
        CheckpointDamaged: the file is there but cannot be understood.
    """
    path = directory / PARTITION_METADATA_FILE
    try:
        text = fs.read_text(path)
    except FileNotFoundError:
        return None
    return decode_partition_metadata(text, str(path))


def store_topic_id(fs: Filesystem, directory: Path, topic_id: uuid.UUID) -> None:
    """Write partition.metadata into a new directory, whose names are yet to be synced."""
    fs.rename_into_place(
        directory / PARTITION_METADATA_FILE, encode_partition_metadata(topic_id).encode()
    )
