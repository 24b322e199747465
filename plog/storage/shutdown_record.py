"""The file `clean-shutdown-record`: what the derived files held at a clean shutdown.

A clean start does not read the batches again, so it would believe a damaged derived file. The
record has a mark of each. The next start believes a file that still fits its mark, and rebuilds
one that does not. Small text files are kept whole and put back.

Owns the record's format, the marks, and when a record is void. Never rebuilds an index: recovery
does.

The record belongs to one clean-shutdown marker, by the marker's modification time: another broker
(Kafka, an older plog) that served the directory meanwhile wrote a marker of its own. It is written
after the marker and removed before it. Without a record, recovery checks the derived files against
the batches.

    {"crc": <CRC-32C of the lines that follow>}
    {"marker_ms": ..., "files": {name: text}}
    topic-0 {"texts": {name: text}, "segments": [
      [base offset, .log bytes, then size and CRC-32C of .index, .timeindex, .txnindex]]}

A partition that was offline has no line. A missing file has size -1. The CRC of an index covers its
last MARKED_BYTES. The line of a partition is not parsed before the partition is loaded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from plog._native.crc32c import crc32c
from plog.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    OFFSET_GAPS_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
)
from plog.storage.filesystem import Filesystem
from plog.storage.leader_epochs import LEADER_EPOCH_FILE
from plog.storage.segment_files import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_file_name,
    path_of,
)
from plog.types import TopicPartition

_log = logging.getLogger(__name__)

SHUTDOWN_RECORD_FILE = "clean-shutdown-record"
MARKED_BYTES = 2400 * 24
"""How much of an index's end its mark covers, in whole entries. Lookups check the others."""

_DIRECTORY_FILES = (
    RECOVERY_POINT_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    CLEANER_OFFSET_FILE,
    OFFSET_GAPS_FILE,
)
_PARTITION_FILES = (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)


class FileMark(NamedTuple):
    """What a file held: its size, and the CRC-32C of its contents or of their end."""

    size_bytes: int
    crc: int


MISSING = FileMark(-1, 0)


class SegmentMarks(NamedTuple):
    """What the files of one segment held."""

    log_bytes: int
    offset_index: FileMark
    time_index: FileMark
    transaction_index: FileMark


class PartitionRecord(NamedTuple):
    """What the files of one partition held."""

    texts: Mapping[str, str]  # by file name, the small files whole
    segments: Mapping[int, SegmentMarks]  # by base offset


def mark_of_end(end: bytes, size_bytes: int) -> FileMark:
    """Return the mark of an index of `size_bytes` that ends with `end`, at least MARKED_BYTES."""
    return FileMark(size_bytes, crc32c(end[-MARKED_BYTES:]))


def mark_of(data: bytes) -> FileMark:
    """Return the mark of a transaction index."""
    return FileMark(len(data), crc32c(data))


class ShutdownRecord:
    """What a clean shutdown wrote of one log directory."""

    def __init__(self, fs: Filesystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._path = directory / SHUTDOWN_RECORD_FILE
        self._partitions: dict[str, bytes] = {}  # JSON
        self._closed: frozenset[str] | None = None  # all its partitions; None: there is no record

    # -- reading -----------------------------------------------------------------------------

    def take(self, marker: Path) -> None:
        """Read the record if it belongs to `marker`, put the checkpoints back, and remove it.

        To be called while the marker is still there. Raises OSError.
        """
        try:
            data = self._fs.read_bytes(self._path)
        except FileNotFoundError:
            return
        lines = self._lines(data, marker)
        if lines:
            for name, text in json.loads(lines[0])["files"].items():
                read_kept(self._fs, self._directory / name, text)
            for line in lines[1:]:
                name, _, content = line.partition(b" ")
                self._partitions[name.decode()] = content
            self._closed = frozenset(self._partitions)
        self._fs.unlink(self._path)

    def _lines(self, data: bytes, marker: Path) -> list[bytes]:
        """Return the lines behind the first one; none if the record is void."""
        head, _, body = data.partition(b"\n")
        if not self._fs.exists(marker):
            return []
        try:
            if json.loads(head)["crc"] != crc32c(body):
                raise ValueError("its CRC does not match")
        except (ValueError, LookupError, TypeError) as error:
            _log.warning("%s is ignored, derived files are checked: %s", self._path, error)
            return []
        lines = body.split(b"\n")
        if json.loads(lines[0])["marker_ms"] != self._fs.modified_ms(marker):
            _log.info("%s is ignored: another broker has used the directory since", self._path)
            return []
        return lines

    def of(self, tp: TopicPartition) -> PartitionRecord | None:
        """Return what the record says of a partition; None if nothing."""
        line = self._partitions.get(str(tp))
        if line is None:
            return None
        found = json.loads(line)
        return PartitionRecord(
            found["texts"],
            {
                row[0]: SegmentMarks(
                    row[1], FileMark(*row[2:4]), FileMark(*row[4:6]), FileMark(*row[6:])
                )
                for row in found["segments"]
            },
        )

    @property
    def was_found(self) -> bool:
        """Whether the clean shutdown left a valid record."""
        return self._closed is not None

    def lacks(self, tp: TopicPartition) -> bool:
        """Tell whether there was a record without a partition, which was offline then."""
        return self._closed is not None and str(tp) not in self._closed

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition: its log is open, and its files change."""
        self._partitions.pop(str(tp), None)

    # -- writing -----------------------------------------------------------------------------

    def store(self, marker: Path, partitions: Iterable[tuple[TopicPartition, Path]]) -> None:
        """Write down the files of closed logs, after `marker`. Raises OSError."""
        files = self._texts(self._directory, _DIRECTORY_FILES)
        lines = [json.dumps({"marker_ms": self._fs.modified_ms(marker), "files": files})]
        for tp, directory in partitions:
            content = json.dumps(self._partition(directory), separators=(",", ":"))
            lines.append(f"{tp} {content}")
        body = "\n".join(lines).encode()
        head = json.dumps({"crc": crc32c(body)}).encode()
        self._fs.replace_bytes(self._path, head + b"\n" + body)

    def _texts(self, directory: Path, names: Iterable[str]) -> dict[str, str]:
        texts = {}
        for name in names:
            try:
                texts[name] = self._fs.read_text(directory / name)
            except FileNotFoundError:
                continue
        return texts

    def _partition(self, directory: Path) -> dict[str, object]:
        files = [
            parsed
            for name in self._fs.list_directory(directory)
            if (parsed := parse_file_name(name)) is not None and not parsed.suffix
        ]
        names = {(file.base_offset, file.kind) for file in files}
        segments = []
        for file in files:
            if file.kind != LOG:
                continue
            base = file.base_offset
            with self._fs.opened(path_of(directory, base, LOG)) as fd:
                row = [base, self._fs.size_bytes(fd)]
            row += self._mark_of_index(directory, base, OFFSET_INDEX)
            row += self._mark_of_index(directory, base, TIME_INDEX)
            mark = MISSING
            if (base, TRANSACTION_INDEX) in names:
                mark = mark_of(self._fs.read_bytes(path_of(directory, base, TRANSACTION_INDEX)))
            segments.append(row + list(mark))
        return {"texts": self._texts(directory, _PARTITION_FILES), "segments": segments}

    def _mark_of_index(self, directory: Path, base: int, kind: str) -> FileMark:
        try:
            with self._fs.opened(path_of(directory, base, kind)) as fd:
                size = self._fs.size_bytes(fd)
                end = self._fs.pread(fd, MARKED_BYTES, max(size - MARKED_BYTES, 0))
        except FileNotFoundError:
            return MISSING
        return mark_of_end(end, size)


def read_kept(fs: Filesystem, path: Path, kept: str | None) -> str | None:
    """Read a small text file, None without one; if it is not as `kept`, put that back.

    Raises OSError.
    """
    try:
        text = fs.read_text(path)
    except FileNotFoundError:
        text = None
    if kept is None or text == kept:
        return text
    _log.warning("%s differs from the last clean shutdown: restoring it", path)
    fs.replace_text(path, kept)
    return kept
