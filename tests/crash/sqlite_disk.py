"""What SQLite writes and syncs, and what of it a disk may have at any moment.

`SqliteDisk.watching` stands between SQLite and its files: it writes down every write,
truncation, sync and removal of a database in the directories that were added, in their
order, and can make a sync fail. `cut` makes directories as a power cut after the first
so many of these events could have left them: what was synced is there, the rest in
parts, sector by sector.

It changes the function pointers of SQLite's own way to files (`sqlite3_vfs`,
`sqlite3_io_methods`) in this process, and gives them back.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

SECTOR_BYTES = 512
SQLITE_OK = 0
SQLITE_FULL = 13
SQLITE_IOERR_FSYNC = 10 | 4 << 8
SQLITE_IOERR_TRUNCATE = 10 | 6 << 8

_Open = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_Write = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, as far as it is used."""

    _fields_: ClassVar = [
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("most_path_bytes", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("app_data", ctypes.c_void_p),
        ("open", _Open),
        ("delete", _Delete),
    ]


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_: ClassVar = [
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", _Write),
        ("truncate", _Truncate),
        ("sync", _Sync),
        ("others", ctypes.c_void_p * 13),
    ]


class _File(ctypes.Structure):
    """`sqlite3_file`."""

    _fields_: ClassVar = [("methods", ctypes.POINTER(_Methods))]


_kept: list[_Methods] = []
"""For good: SQLite calls them until its files are closed."""


class FileId(NamedTuple):
    """A file of one of the directories, which go by number."""

    directory: int
    name: str


class Wrote(NamedTuple):
    file: FileId
    offset: int
    data: bytes


class Truncated(NamedTuple):
    file: FileId
    size: int


class Synced(NamedTuple):
    file: FileId


class SyncFailed(NamedTuple):
    """The disk may have a part of the changes; no later sync writes the rest, which is clean."""

    file: FileId


class Deleted(NamedTuple):
    file: FileId
    synced: bool  # the directory, too


class DirectorySynced(NamedTuple):
    directory: int


class Noted(NamedTuple):
    """Something that the test has to say about this moment."""

    what: int


Change = Wrote | Truncated
Event = Change | Synced | SyncFailed | Deleted | DirectorySynced | Noted


@dataclass
class SqliteDisk:
    """The events of a test, and the directories they are about."""

    events: list[Event] = field(default_factory=list)
    fails_sync: Callable[[Path], bool] = lambda path: False  # asked before each sync
    is_full: Callable[[Path, int], bool] = lambda path, offset: False  # asked before each write
    fails_truncation: Callable[[Path], bool] = lambda path: False
    _directories: dict[Path, int] = field(default_factory=dict)

    def add(self, directory: Path, number: int) -> None:
        """Write down what happens in a directory, under a number."""
        self._directories[directory.resolve()] = number

    def sync_directory(self, directory: Path) -> None:
        """Record that the names in a directory were synced, if the test watches it."""
        number = self._directories.get(directory.resolve())
        if number is not None:
            self.events.append(DirectorySynced(number))

    def note(self, what: int) -> None:
        self.events.append(Noted(what))

    @contextmanager
    def watching(self) -> Iterator[None]:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
        real_open, real_delete = (
            _Open.from_buffer_copy(vfs.open),
            _Delete.from_buffer_copy(vfs.delete),
        )
        ids: dict[int, tuple[FileId, Path]] = {}

        def watch(file: int, path: Path, number: int) -> None:
            handle = _File.from_address(file)
            real = handle.methods.contents
            own = _Methods.from_buffer_copy(real)
            ids[file] = FileId(number, path.name), path

            def write(at: int, data: int, size: int, offset: int) -> int:
                if self.is_full(ids[at][1], offset):
                    return SQLITE_FULL
                self.events.append(Wrote(ids[at][0], offset, ctypes.string_at(data, size)))
                return int(real.write(at, data, size, offset))

            def truncate(at: int, size: int) -> int:
                if self.fails_truncation(ids[at][1]):
                    return SQLITE_IOERR_TRUNCATE
                self.events.append(Truncated(ids[at][0], size))
                return int(real.truncate(at, size))

            def sync(at: int, flags: int) -> int:
                name, whole = ids[at]
                if self.fails_sync(whole):
                    self.events.append(SyncFailed(name))
                    return SQLITE_IOERR_FSYNC
                self.events.append(Synced(name))
                return int(real.sync(at, flags))

            own.write, own.truncate, own.sync = _Write(write), _Truncate(truncate), _Sync(sync)
            _kept.append(own)
            handle.methods = ctypes.pointer(own)

        # SQLite keeps the name's pointer, so that must be handed on as it came.
        def open_file(at: int, name: int | None, file: int, flags: int, out: int) -> int:
            failed = int(real_open(at, name, file, flags, out))
            if failed == SQLITE_OK and name is not None:
                path = Path(ctypes.string_at(name).decode())
                number = self._directories.get(path.parent.resolve())
                if number is not None:
                    watch(file, path, number)
            return failed

        def delete(at: int, name: int, sync_directory: int) -> int:
            path = Path(ctypes.string_at(name).decode())
            number = self._directories.get(path.parent.resolve())
            failed = int(real_delete(at, name, sync_directory))
            if failed == SQLITE_OK and number is not None:
                self.events.append(Deleted(FileId(number, path.name), bool(sync_directory)))
            return failed

        vfs.open, vfs.delete = _Open(open_file), _Delete(delete)
        try:
            yield
        finally:
            vfs.open, vfs.delete = real_open, real_delete

    def cut(self, count: int, roots: list[Path], chance: random.Random) -> None:
        """Put into `roots`, by number, what a disk may have after the first `count` events."""
        durable: dict[FileId, bytearray] = {}
        pending: dict[FileId, list[Change]] = {}
        leaving: dict[FileId, bytearray] = {}  # no sync has taken their names yet
        for event in self.events[:count]:
            match event:
                case Wrote() | Truncated():
                    pending.setdefault(event.file, []).append(event)
                case Synced(file):
                    # SQLite syncs the directory with the first sync of a file that it made.
                    leaving.pop(file, None)
                    content = durable.setdefault(file, bytearray())
                    for change in pending.pop(file, []):
                        _apply(content, change)
                case SyncFailed(file):
                    changes = pending.pop(file, [])
                    if file in durable or chance.random() < 0.5:
                        _apply_some(durable.setdefault(file, bytearray()), changes, chance)
                case Deleted(file, synced):
                    pending.pop(file, None)
                    content = durable.pop(file, None)
                    if content is not None and not synced:
                        leaving[file] = content
                case DirectorySynced(directory):
                    for file in [file for file in leaving if file.directory == directory]:
                        del leaving[file]
        for file, content in leaving.items():
            if chance.random() < 0.5:
                durable[file] = content
                pending.pop(file, None)
        for file, changes in pending.items():
            if file not in durable and chance.random() < 0.5:
                continue  # not even its name
            _apply_some(durable.setdefault(file, bytearray()), changes, chance)
        _put(durable, roots)

    def writes_over(self, name: str) -> list[int]:
        """Return the numbers of the writes that fell on earlier bytes of a file."""
        ends: dict[FileId, int] = {}
        found = []
        for number, event in enumerate(self.events):
            match event:
                case Wrote(file, offset, data) if file.name == name:
                    if offset < ends.get(file, 0):
                        found.append(number)
                    ends[file] = max(ends.get(file, 0), offset + len(data))
                case Truncated(file, size):
                    ends[file] = min(ends.get(file, 0), size)
                case Deleted(file):
                    ends.pop(file, None)
        return found

    def cut_without(self, lost: int, count: int, roots: list[Path]) -> None:
        """Put into `roots`, by number, the first `count` events except one write.

        A kernel may write every page early. Then only the last changes of one page are lost.
        """
        contents: dict[FileId, bytearray] = {}
        for number, event in enumerate(self.events[:count]):
            match event:
                case Wrote() | Truncated():
                    content = contents.setdefault(event.file, bytearray())
                    if number != lost:
                        _apply(content, event)
                case Deleted(file):
                    contents.pop(file, None)
        _put(contents, roots)


def _put(contents: dict[FileId, bytearray], roots: list[Path]) -> None:
    for root in roots:
        root.mkdir(parents=True)
    for file, content in contents.items():
        (roots[file.directory] / file.name).write_bytes(content)


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncated):
        del content[change.size :]
        return
    end = change.offset + len(change.data)
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.data


def _apply_some(content: bytearray, changes: list[Change], chance: random.Random) -> None:
    likely = chance.choice([0.0, 0.5, 0.9, 1.0])
    for change in changes:
        for part in _parts(change):
            if chance.random() < likely:
                _apply(content, part)


def _parts(change: Change) -> Iterator[Change]:
    """Split a write where sectors end: a disk writes these whole, in any order."""
    if isinstance(change, Truncated):
        yield change
        return
    at = 0
    while at < len(change.data):
        size = SECTOR_BYTES - (change.offset + at) % SECTOR_BYTES
        yield Wrote(change.file, change.offset + at, change.data[at : at + size])
        at += size
