"""Targets over files that a broker finds at its start: segments and what stands beside them."""

from __future__ import annotations

import functools
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plog._native import batch
from plog._native import index as native_index
from plog._native.crc32c import crc32c
from plog._reference import index as reference_index
from plog.errors import CorruptRecord, LogDamaged
from plog.storage import checkpoints, durable_ends, leader_epochs
from plog.storage.filesystem import Filesystem
from plog.storage.leader_epochs import LEADER_EPOCH_FILE
from plog.storage.log_dir import LogDirIdentity
from plog.storage.producer_snapshot import decode_snapshot, encode_snapshot
from plog.storage.recovery import recover
from plog.storage.segment_verdict import Known
from plog.storage.transaction_index import AbortedTransactions, decode_aborted, encode_aborted
from tests.storage.storage_logs import open_log

from .common import agree, exact, said, with_right_crcs
from .request_targets import memory_log

_INDEX = native_index, reference_index
NAME = "00000000000000000000"


def indexes(data: memoryview) -> None:
    """A base offset and what is looked for, 16 bytes; then entries of either kind."""
    if len(data) < 16:
        return
    base, target = struct.unpack_from(">qq", data)
    entries = exact(data[16:])
    agree(_INDEX, "check_offset_index", entries, base)
    agree(_INDEX, "check_time_index", entries, base)
    agree(_INDEX, "lookup_offset", entries, base, target)
    agree(_INDEX, "lookup_time", entries, base, target)


def _aborted(data: bytes) -> None:
    entries = said(decode_aborted, data)
    if isinstance(entries, str):
        assert entries.startswith("CorruptRecord: ")
        return
    assert encode_aborted(entries) == data
    found = AbortedTransactions(entries)
    for entry in entries[:4]:
        found.overlapping(entry.first_offset, entry.last_offset + 1)
        assert len(found.below(entry.last_offset)) < len(found)


_log = functools.cache(memory_log)


def _snapshot(data: bytes) -> None:
    for each in (data, data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]):
        entries = said(decode_snapshot, each)
        if isinstance(entries, str):
            assert entries.startswith("CorruptRecord: ")
            continue
        assert decode_snapshot(encode_snapshot(entries)) == sorted(entries)
        _log().load_producers(entries)
        assert {one.producer_id for one in _log().producers()} == {e.producer_id for e in entries}


def _text(decode: Callable[[str, str], Any], encode: Callable[[Any], str]) -> Callable[..., None]:
    def check(data: bytes) -> None:
        found = said(decode, data.decode("utf-8", errors="replace"), "file")
        if isinstance(found, str):
            assert found.startswith("CheckpointDamaged: ")
        else:
            assert decode(encode(found), "file") == found

    return check


def _slot(data: bytes) -> None:
    found = durable_ends.decode_slot(data[:28] + struct.pack(">I", crc32c(data[:28])))
    if found is not None:
        assert durable_ends.decode_slot(durable_ends.encode_slot(*found)) == found
    durable_ends.decode_slot(data)


def _identity(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    found = said(LogDirIdentity.decode, text, "file")
    if isinstance(found, str):
        refusals = "IdentityDamaged: ", "InconsistentLogDirs: ", "KRaftLogDir: "
        assert found.startswith(refusals), found


SMALL_FILES = [
    _aborted,
    _snapshot,
    _text(checkpoints.decode_offsets, checkpoints.encode_offsets),
    _text(leader_epochs.decode_leader_epochs, leader_epochs.encode_leader_epochs),
    _text(checkpoints.decode_partition_metadata, checkpoints.encode_partition_metadata),
    _slot,
    _identity,
]


def small_files(data: memoryview) -> None:
    """Which file, a byte; then what stands in it."""
    if len(data) > 0:
        SMALL_FILES[data[0] % len(SMALL_FILES)](bytes(data[1:]))


@functools.cache
def _directory() -> tuple[Any, Path]:
    made = tempfile.TemporaryDirectory()
    path = Path(made.name) / "t-0"
    path.mkdir()
    return made, path


HEAD_BYTES = 9
BESIDE = ("index", "timeindex", "txnindex", "snapshot", "epochs")


def segments(data: memoryview) -> None:
    """What ended the last broker and what it knew, 4 bytes; sizes of five files; them; the log."""
    if len(data) < HEAD_BYTES:
        return
    how, known_end, log_start, part = data[:4]
    files, at = {}, HEAD_BYTES
    for kind, size in zip(BESIDE, data[4:HEAD_BYTES], strict=True):
        files[kind] = bytes(data[at : at + size])
        at += size
    files["log"] = bytes(data[at:] if how & 8 else with_right_crcs(data[at:]))
    directory = _directory()[1]
    fill(directory, files, how, part)
    known = Known(
        clean_shutdown=bool(how & 1),
        machine_restarted=bool(how & 2),
        read_whole=bool(how & 4),
        gaps_legal_below=1 << 63 if how & 16 else 0,
        recovery_point=known_end,
        durable_end=known_end,
        log_start_offset=log_start,
    )
    try:
        opened = open_log(directory, known=known)
    except LogDamaged:
        return
    try:
        read(opened, known_end + part)
        end = opened.log_end_offset
    finally:
        opened.close()
    if not known.clean_shutdown:
        again = recover(Filesystem(), directory, known, index_interval_bytes=4096)
        assert again.log_end_offset == end, "a second start found another end"
        for segment in directory.glob("*.log"):
            batch.scan(segment.read_bytes())


def fill(directory: Path, files: dict[str, bytes], how: int, snapshot_offset: int) -> None:
    """Write what a broker finds; what is empty is not there, but for the log."""
    for path in directory.iterdir():
        path.unlink()
    for kind, content in files.items():
        if kind == "snapshot" and not how & 32 and len(content) > 6:
            content = content[:2] + struct.pack(">I", crc32c(content[6:])) + content[6:]
        name = {"snapshot": f"{snapshot_offset:020}.snapshot", "epochs": LEADER_EPOCH_FILE}
        if content or kind == "log":
            (directory / name.get(kind, f"{NAME}.{kind}")).write_bytes(content)


def read(opened: Any, offset: int) -> None:
    """Look for an offset and a timestamp, and read: what is not whole says so."""
    for at in {opened.log_start_offset, offset, max(opened.log_end_offset - 1, 0)}:
        try:
            found = opened.native.read(at, 1 << 16, opened.log_end_offset, True)
        except CorruptRecord:
            continue
        assert found is None or 0 < len(found.read()) <= 1 << 20
    for segment in opened.native.segments:
        for timestamp in (0, segment.max_timestamp, 1_700_000_000_000):
            said(segment.lookup_time, timestamp)
        said(segment.lookup_offset, offset)
