"""Completes or undoes what an interrupted compaction or deletion left in a partition directory.

Owns the first three of Kafka's four passes over a directory at start (docs/FORMATS.md,
"Replacing segments"). A replacement is written as `.cleaned` and renamed to `.swap` from the
highest base offset down. Then the old segments become `.deleted`, and `.swap` becomes final from
the lowest up. So a `.cleaned` file means that nothing was replaced yet; a `.swap` without any
`.cleaned` means that the replacement is complete.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from plog.errors import LogDamaged
from plog.storage.filesystem import Filesystem
from plog.storage.segment_files import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT,
    SWAP,
    SegmentFile,
    file_name,
    parse_file_name,
)
from plog.storage.segment_scan import BatchReader, reader_of
from plog.types import counted


def finish_swaps(fs: Filesystem, directory: Path) -> list[str]:
    """Bring the directory to a state without `.deleted`, `.cleaned` and `.swap` files.

    Returns a line for each replacement undone or completed.

    Raises:
        LogDamaged: a `.swap` segment that should replace others cannot be read.
        OSError: a file cannot be renamed or removed.
    """
    found: dict[str, SegmentFile] = {}
    for name in fs.list_directory(directory):
        parsed = parse_file_name(name)
        if name.endswith(".tmp") or (parsed is not None and parsed.suffix == DELETED):
            fs.unlink(directory / name)
        elif parsed is not None and parsed.suffix:
            found[name] = parsed
    if not found:
        return []

    reports = []
    # Pass 1: files not renamed to .swap yet, and those that were while others were not.
    cleaned = [parsed.base_offset for parsed in found.values() if parsed.suffix == CLEANED]
    undone_from = min(cleaned, default=None)
    for name, parsed in list(found.items()):
        started = undone_from is not None and parsed.base_offset >= undone_from
        if parsed.suffix == CLEANED or started:
            fs.unlink(directory / name)
            del found[name]
    if undone_from is not None:
        reports.append(f"undid an unfinished replacement of segments from {undone_from} on")

    # Pass 2: the replacement is whole; what it replaces goes.
    ranges = [
        _replaced_range(fs, directory / name, parsed.base_offset)
        for name, parsed in found.items()
        if parsed.kind == LOG
    ]
    if ranges:
        first, end = min(begin for begin, _ in ranges), max(end for _, end in ranges)
        replaced = 0
        for name in fs.list_directory(directory):
            ordinary = parse_file_name(name)
            if (
                ordinary is not None
                and not ordinary.suffix
                and ordinary.kind in SEGMENT
                and first <= ordinary.base_offset < end
                and file_name(ordinary.base_offset, LOG, SWAP) not in found
            ):
                fs.unlink(directory / name)
                replaced += ordinary.kind == LOG
        # First, or a power cut could bring them back beside what replaces them.
        fs.sync_directory(directory)
        reports.append(_completed(found.values(), replaced))

    # Pass 3: renamed over what has the same name.
    for name, parsed in sorted(found.items(), key=lambda item: item[1].base_offset):
        fs.rename(directory / name, directory / file_name(parsed.base_offset, parsed.kind))
    fs.sync_directory(directory)
    return reports


def _completed(found: Collection[SegmentFile], replaced: int) -> str:
    """Say which compacted segments take their places. One may be empty, and has no last offset."""
    bases = sorted(parsed.base_offset for parsed in found if parsed.kind == LOG)
    names = ", ".join(file_name(base, LOG) for base in bases)
    removed = counted(replaced, "old segment")
    return f"completed a compaction: {names} put in place, {removed} removed"


def _replaced_range(fs: Filesystem, path: Path, base_offset: int) -> tuple[int, int]:
    """Return [base, next) of a `.swap` segment, every batch of it checked."""
    next_offset = base_offset
    with fs.opened(path) as fd:
        reader = BatchReader(reader_of(fs, fd), 0, fs.size_bytes(fd))
        for scanned in reader:
            next_offset = scanned.header.next_offset
    if reader.fault is not None:
        raise LogDamaged(f"{path} at byte {reader.position}: {reader.fault}")
    return base_offset, next_offset
