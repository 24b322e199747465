"""Decodes the files of a log for `plog dump-log`, and finds damage in them.

Owns the reader for each kind of file and the text of damage; the formats belong to storage and the
kernels. Reads a page at a time, so files may have any size. Never writes, because a broker may have
the files open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from plog._native import index, records
from plog._native.batch import BatchHeader
from plog.errors import CorruptRecord, PlogError
from plog.protocol.record_batch import CODECS
from plog.storage import checkpoints, segment_files
from plog.storage.checkpoints import CheckpointDamaged
from plog.storage.durable_ends import DURABLE_ENDS_FILE, SLOT_BYTES, decode_slot
from plog.storage.filesystem import Filesystem
from plog.storage.leader_epochs import LEADER_EPOCH_FILE, decode_leader_epochs
from plog.storage.producer_load import read_marker
from plog.storage.producer_snapshot import decode_snapshot
from plog.storage.segment_scan import (
    BatchReader,
    OffsetOrder,
    ReadAt,
    ScannedBatch,
    find_batch,
    is_zero,
    reader_of,
    walk_headers,
)
from plog.storage.transaction_index import ENTRY_BYTES as ABORTED_BYTES
from plog.storage.transaction_index import decode_aborted
from plog.types import TopicPartition, counted, uuid_to_text

PAGE_ENTRIES = 4096
LARGEST_WHOLE_FILE = 256 << 20
"""Checkpoints and snapshots are read whole; a larger file is not one."""
LAST_OFFSET = (1 << 63) - 1
GAPS_LEGAL = LAST_OFFSET
"""Gaps are allowed: a log's files do not show whether compaction made them."""

DAMAGE = "damage"
CODEC_NAMES = {number: name for name, number in CODECS.items()}

OFFSET_CHECKPOINTS = (
    checkpoints.RECOVERY_POINT_FILE,
    checkpoints.HIGH_WATERMARK_FILE,
    checkpoints.LOG_START_OFFSET_FILE,
    checkpoints.CLEANER_OFFSET_FILE,
    checkpoints.OFFSET_GAPS_FILE,
)


class UnknownFile(PlogError):
    """The file is not a file of a log."""


class Found(NamedTuple):
    """One thing found in a file.

    `kind` is "file" (the first one, with its size), "batch", "record", "offset entry", "time
    entry", "aborted transaction", "producer", "leader epoch", "offset", "topic id", "durable end"
    or DAMAGE. `at` is the position in bytes; None in files of lines.
    """

    path: Path
    kind: str
    at: int | None
    fields: dict[str, object]

    @property
    def is_damage(self) -> bool:
        """Whether this reports damage."""
        return self.kind == DAMAGE


class _File(NamedTuple):
    """An open file with the options of its reader."""

    fs: Filesystem
    path: Path
    fd: int
    size: int
    base_offset: int
    deep: bool
    compare: bool

    @property
    def read(self) -> ReadAt:
        return reader_of(self.fs, self.fd)

    def found(self, kind: str, at: int | None, /, **fields: object) -> Found:
        return Found(self.path, kind, at, fields)

    def damage(self, at: int | None, why: str) -> Found:
        return Found(self.path, DAMAGE, at, {"why": why})


_Reader = Callable[[_File], Iterator[Found]]


def dump(path: Path, *, deep: bool = False, compare: bool = False) -> Iterator[Found]:
    """Yield the contents of a file, or of all files in a partition's directory or a log directory.

    Args:
        deep: also yield every record of every batch.
        compare: also compare indexes with the log next to them.

    Raises:
        UnknownFile: there is no file of a log.
        OSError: the file cannot be read.
    """
    fs = Filesystem()
    if not path.is_dir():
        yield from _dump_file(fs, path, deep, compare)
        return
    known = [name for name in sorted(fs.list_directory(path)) if _reader_for(name) is not None]
    if not known:
        raise UnknownFile(f"{path}: no log files in this directory")
    for name in known:
        yield from _dump_file(fs, path / name, deep, compare)


def _dump_file(fs: Filesystem, path: Path, deep: bool, compare: bool) -> Iterator[Found]:
    reader = _reader_for(path.name)
    if reader is None:
        raise UnknownFile(
            f"{path}: unknown file name; supported are .log, .index, .timeindex, .txnindex,"
            " .snapshot, the checkpoint files, partition.metadata and durable-ends"
        )
    segment = segment_files.parse_file_name(path.name)
    base_offset = 0 if segment is None else segment.base_offset
    with _opened(path) as fd:
        file = _File(fs, path, fd, fs.size_bytes(fd), base_offset, deep, compare)
        yield file.found("file", None, bytes=file.size)
        yield from reader(file)


def _reader_for(name: str) -> _Reader | None:
    segment = segment_files.parse_file_name(name)
    return _BY_NAME.get(name) if segment is None else _BY_KIND[segment.kind]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# -- segments --------------------------------------------------------------------------------------


def _log(file: _File) -> Iterator[Found]:
    order = OffsetOrder(file.base_offset, GAPS_LEGAL)
    position = 0
    while position < file.size:
        reader = BatchReader(file.read, position, file.size)
        for scanned in reader:
            yield _batch(file, scanned)
            fault = order.fault_of(scanned.header)
            if fault is not None:
                yield file.damage(scanned.position, fault)
                order.expected = scanned.header.next_offset
            if file.deep:
                yield from _records(file, scanned)
        if reader.fault is None:
            return
        position = reader.position
        following = find_batch(file.fs, file.fd, position + 1, file.size, order.expected)
        yield file.damage(position, f"{reader.fault}; {_after(file, position, following)}")
        if following is None:
            return
        position = following


def _after(file: _File, position: int, following: int | None) -> str:
    """Describe the bytes after an invalid batch."""
    if following is not None:
        return f"the next valid batch is at {following}"
    noun = "zero byte" if is_zero(file.fs, file.fd, position, file.size) else "byte"
    left = counted(file.size - position, noun)
    return f"no valid batch in the remaining {left}: a torn tail, unless it was acknowledged"


def _batch(file: _File, scanned: ScannedBatch) -> Found:
    header = scanned.header
    return file.found(
        "batch",
        scanned.position,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        records=header.records_count,
        bytes=header.size_bytes,
        codec=CODEC_NAMES.get(header.codec, str(header.codec)),
        timestamp_type="LogAppendTime" if header.is_log_append_time else "CreateTime",
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon=header.has_delete_horizon,
        crc=header.crc,
    )


def _records(file: _File, scanned: ScannedBatch) -> Iterator[Found]:
    try:
        if scanned.header.is_control and scanned.header.records_count:
            yield from _marker(file, scanned)
            return
        for record in records.walk(scanned.data):
            yield file.found(
                "record",
                scanned.position,
                offset=record.offset,
                timestamp=record.timestamp,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
    except CorruptRecord as fault:
        yield file.damage(scanned.position, str(fault))


def _marker(file: _File, scanned: ScannedBatch) -> Iterator[Found]:
    marker = read_marker(scanned.data)
    if marker is None:
        yield file.found(
            "record", scanned.position, offset=scanned.header.base_offset, marker="unknown"
        )
        return
    yield file.found(
        "record",
        scanned.position,
        offset=scanned.header.base_offset,
        marker="abort" if marker.abort else "commit",
        coordinator_epoch=marker.coordinator_epoch,
    )


# -- indexes ---------------------------------------------------------------------------------------


def _pages(file: _File, entry_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position, entry); the last entry may be incomplete."""
    position = 0
    while position < file.size:
        page = file.read(position, min(PAGE_ENTRIES * entry_bytes, file.size - position))
        for at in range(0, len(page), entry_bytes):
            yield position + at, page[at : at + entry_bytes]
        if not page:
            return
        position += len(page)


def _checked(
    file: _File, entry_bytes: int, check: Callable[[bytes], object]
) -> Iterator[tuple[int, bytes] | Found]:
    """Yield entries while each is valid after the one before; then the damage, if any."""
    before = b""
    for position, entry in _pages(file, entry_bytes):
        try:
            check(before + entry)
        except CorruptRecord as fault:
            yield file.damage(position, str(fault))
            return
        yield position, entry
        before = entry


def _offset_index(file: _File) -> Iterator[Found]:
    check = partial(_check_offset_entries, base_offset=file.base_offset)
    with _LogBeside(file) as log:
        for found in _checked(file, index.OFFSET_ENTRY_BYTES, check):
            if isinstance(found, Found):
                yield found
                return
            at, entry = found
            offset, position = index.lookup_offset(entry, file.base_offset, LAST_OFFSET)
            yield file.found("offset entry", at, offset=offset, position=position)
            fault = None
            if file.compare:
                fault = log.fault_of_position(offset, position) or log.fault_of_offset(offset)
            if fault is not None:
                yield file.damage(at, fault)


def _check_offset_entries(entries: bytes, base_offset: int) -> None:
    index.check_offset_index(entries, base_offset)


def _check_time_entries(entries: bytes, base_offset: int) -> None:
    index.check_time_index(entries, base_offset)


def _log_of(file: _File) -> Path:
    name = file.path.name.partition(".")[0]
    suffix = segment_files.parse_file_name(file.path.name)
    return file.path.with_name(f"{name}{segment_files.LOG}{suffix.suffix if suffix else ''}")


def _time_index(file: _File) -> Iterator[Found]:
    check = partial(_check_time_entries, base_offset=file.base_offset)
    with _LogBeside(file) as log:
        for found in _checked(file, index.TIME_ENTRY_BYTES, check):
            if isinstance(found, Found):
                yield found
                return
            at, entry = found
            timestamp, offset = index.lookup_time(entry, file.base_offset, LAST_OFFSET)
            yield file.found("time entry", at, timestamp=timestamp, offset=offset)
            if not file.compare:
                continue
            fault = log.fault_of_offset(offset)
            if fault is None and log.greatest_timestamp != timestamp:
                greatest = log.greatest_timestamp
                fault = f"the greatest timestamp up to offset {offset} is {greatest}"
            if fault is not None:
                yield file.damage(at, fault)


class _LogBeside:
    """The log next to an index, read forwards; opened only for `compare`.

    Attributes:
        greatest_timestamp: greatest timestamp of the batches up to the last offset looked up.
    """

    def __init__(self, file: _File) -> None:
        self._file = file
        self._log = _log_of(file)
        self._fd = -1
        self._size = 0
        self._headers: Iterator[tuple[int, BatchHeader]] = iter(())
        self._ahead: BatchHeader | None = None
        self._last_offset = -1
        self.greatest_timestamp = -1

    def __enter__(self) -> _LogBeside:
        if self._file.compare and self._log.exists():
            self._fd = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
            self._size = self._file.fs.size_bytes(self._fd)
            self._headers = walk_headers(reader_of(self._file.fs, self._fd), 0, self._size)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def fault_of_position(self, offset: int, position: int) -> str | None:
        """Return why a look-up of `offset` that begins at `position` would fail; None if not."""
        if self._fd < 0:
            return f"{self._log.name} does not exist"
        if position >= self._size:
            return f"position {position} is past the end of {self._log.name}, {self._size} bytes"
        reader = BatchReader(reader_of(self._file.fs, self._fd), position, self._size)
        found = next(iter(reader), None)
        if found is None:
            return f"no batch at position {position} of {self._log.name}: {reader.fault}"
        if found.header.base_offset > offset:
            return f"the batch at position {position} begins at offset {found.header.base_offset}"
        return None

    def fault_of_offset(self, offset: int) -> str | None:
        """Read up to the batch with `offset`; return why there is none, or None."""
        if self._fd < 0:
            return f"{self._log.name} does not exist"
        try:
            self._advance(offset)
        except CorruptRecord as fault:
            return f"cannot compare with {self._log.name}: {fault}"
        if offset > self._last_offset:
            return f"offset {offset} is past the end of {self._log.name}, {self._last_offset}"
        return None

    def _advance(self, offset: int) -> None:
        while True:
            if self._ahead is None:
                following = next(self._headers, None)
                if following is None:
                    return
                self._ahead = following[1]
            if self._ahead.base_offset > offset:
                return
            self.greatest_timestamp = max(self.greatest_timestamp, self._ahead.max_timestamp)
            self._last_offset = self._ahead.last_offset
            self._ahead = None


def _transaction_index(file: _File) -> Iterator[Found]:
    for found in _checked(file, ABORTED_BYTES, decode_aborted):
        if isinstance(found, Found):
            yield found
            return
        at, entry = found
        yield file.found("aborted transaction", at, **decode_aborted(entry)[0]._asdict())


# -- small files -----------------------------------------------------------------------------------


def _whole(file: _File) -> bytes:
    if file.size > LARGEST_WHOLE_FILE:
        raise CorruptRecord(f"{file.size} bytes are too many for a file of this kind")
    return file.read(0, file.size)


def _text(file: _File) -> str:
    try:
        return _whole(file).decode()
    except (UnicodeDecodeError, CorruptRecord) as fault:
        raise CheckpointDamaged(str(fault)) from fault


def _snapshot(file: _File) -> Iterator[Found]:
    try:
        producers = decode_snapshot(_whole(file))
    except CorruptRecord as fault:
        yield file.damage(0, str(fault))
        return
    for producer in producers:
        newest = producer.batches[-1]
        yield file.found(
            "producer",
            None,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=newest.last_sequence,
            last_offset=newest.last_offset,
            offset_delta=newest.offset_delta,
            timestamp=producer.last_timestamp,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_first_offset=producer.current_txn_first_offset,
        )


def _leader_epochs(file: _File) -> Iterator[Found]:
    try:
        epochs = decode_leader_epochs(_text(file), file.path.name)
    except CheckpointDamaged as fault:
        yield file.damage(None, str(fault))
        return
    for entry in epochs.entries:
        yield file.found("leader epoch", None, epoch=entry.epoch, start_offset=entry.start_offset)


def _offsets(file: _File) -> Iterator[Found]:
    try:
        offsets: dict[TopicPartition, int] = checkpoints.decode_offsets(_text(file), file.path.name)
    except CheckpointDamaged as fault:
        yield file.damage(None, str(fault))
        return
    for at, offset in offsets.items():
        yield file.found("offset", None, topic=at.topic, partition=at.partition, offset=offset)


def _topic_id(file: _File) -> Iterator[Found]:
    try:
        topic_id = checkpoints.decode_partition_metadata(_text(file), file.path.name)
    except CheckpointDamaged as fault:
        yield file.damage(None, str(fault))
        return
    yield file.found("topic id", None, topic_id=uuid_to_text(topic_id))


def _durable_ends(file: _File) -> Iterator[Found]:
    for position, data in _pages(file, SLOT_BYTES):
        slot = decode_slot(data)
        if slot is not None:
            key, end = slot
            yield file.found(
                "durable end",
                position,
                topic_id=uuid_to_text(key.topic_id),
                partition=key.partition,
                durable_end=end,
            )
        elif len(data) < SLOT_BYTES or any(data):
            yield file.damage(position, "invalid slot: neither free nor complete")


_BY_KIND: dict[str, _Reader] = {
    segment_files.LOG: _log,
    segment_files.OFFSET_INDEX: _offset_index,
    segment_files.TIME_INDEX: _time_index,
    segment_files.TRANSACTION_INDEX: _transaction_index,
    segment_files.PRODUCER_SNAPSHOT: _snapshot,
}
_BY_NAME: dict[str, _Reader] = {
    LEADER_EPOCH_FILE: _leader_epochs,
    checkpoints.PARTITION_METADATA_FILE: _topic_id,
    DURABLE_ENDS_FILE: _durable_ends,
    **dict.fromkeys(OFFSET_CHECKPOINTS, _offsets),
}
