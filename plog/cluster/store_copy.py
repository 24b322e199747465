"""One copy of the embedded store: a SQLite file in one log directory.

Owns the file format: every node a row with a checksum of its own, and one row that
says which store this is, its last transaction and how many nodes there are, so that
a flipped bit or a lost row is seen when the file is opened and not later. Knows
nothing of other copies; which one wins is `embedded_store`'s business.

Owns the write-ahead log (WAL), too: SQLite only appends to it, and this module folds it
into the file and then empties it. By default SQLite writes the next round over the frames
of the last one, and its checksum can take an old page for a new one. The checksum is
linear: it stays the same if three words in a row change by a, -a and -a, as page numbers
do. A power cut would then turn an unfinished commit into a damaged one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from plog._native.files import NO_RESOURCES
from plog.cluster.node_tree import Node
from plog.cluster.space_reserve import RESERVE_BYTES, SpaceReserve
from plog.cluster.store import StoreError

log = logging.getLogger(__name__)

FILE_NAME = "plog-store.sqlite"
FILES = "plog-store*"
"""What a copy has in its directory: itself, what SQLite keeps beside it, and its reserve."""
APPLICATION_ID = 0x706C6F67  # "plog", in the SQLite header: file(1) and we tell whose it is
FORMAT = 1
MAX_WAL_BYTES = RESERVE_BYTES
"""The WAL is folded in at this size: the reserve has room for all that this adds to the file."""

_SCHEMA = """
CREATE TABLE node (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL,
    created_children INTEGER NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,
    ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL, ephemeral_owner INTEGER NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 0), store_id TEXT NOT NULL,
    zxid INTEGER NOT NULL, node_count INTEGER NOT NULL, checksum INTEGER NOT NULL
);
"""
_PUT = "INSERT OR REPLACE INTO node VALUES (?,?,?,?,?,?,?,?,?,?)"
_PUT_STORE = "INSERT OR REPLACE INTO store VALUES (0,?,?,?,?)"


class CopyDamaged(StoreError):
    """The file is not what was written; it must not be used."""


class CopyInUse(StoreError):
    """Another process holds the file."""


class StoreCopy:
    """An open copy. Not thread-safe: its owner holds a lock around every call."""

    def __init__(self, directory: Path) -> None:
        """Open or create the file and read all of it.

        Raises:
            CopyDamaged: it does not hold together.
            CopyInUse: another process has it open.
            OSError: the directory cannot be used.
        """
        self.directory = directory
        self.path = directory / FILE_NAME
        self.store_id = ""  # empty: nothing was ever written here
        self.zxid = 0
        self.nodes: dict[str, Node] = {}  # as found on opening; given up by `forget_nodes`
        self._wal = directory / f"{FILE_NAME}-wal"
        self._wal_is_clean = False  # nothing lies behind its last commit, which is on the disk
        self._fold_failed = False
        with _translated(self.path):
            self._db = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            with _translated(self.path):
                self._open()
        except BaseException:
            self._db.close()
            raise
        self._reserve = SpaceReserve(directory)
        self._reserve.fill()

    def _open(self) -> None:
        # Exclusive locking keeps the shared-memory index of the WAL out of the directory.
        # FULL: a commit is one fdatasync of the WAL, and it is done before commit returns.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA cache_size=-256")
        # A write must not need a descriptor of its own: there may be none.
        self._db.execute("PRAGMA temp_store=MEMORY")
        # Pages that leave the cache before the commit would be written over at the commit.
        self._db.execute("PRAGMA cache_spill=OFF")
        self._db.execute("PRAGMA wal_autocheckpoint=0")
        (application_id,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0 and application_id == 0:
            self._create()
            return
        if application_id != APPLICATION_ID:
            raise CopyDamaged(f"{self.path} is a SQLite file, but not a store of plog")
        (found_format,) = self._db.execute("PRAGMA user_version").fetchone()
        if found_format != FORMAT:
            raise StoreError(f"{self.path} has format {found_format}, this plog reads {FORMAT}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._load()
        # A WAL that a killed process left may be in the page cache alone: where a sync has failed,
        # Linux counts the pages as written, and no later sync brings them to the disk. What was
        # appended behind such a hole would be lost with it, so the WAL is emptied.
        try:
            self._fold_wal()
        except sqlite3.Error as error:
            if not is_full(error):
                raise
        # SQLite syncs the name of a new WAL at its first write, and does without if it has no
        # descriptor then.
        sync_directory(self.directory)

    def _create(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._fold_wal()
        self._db.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self._db.execute(f"PRAGMA user_version={FORMAT}")
        self._db.execute("COMMIT")
        sync_directory(self.directory)

    def _load(self) -> None:
        (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise CopyDamaged(f"{self.path}: {verdict}")
        row = self._db.execute("SELECT store_id, zxid, node_count, checksum FROM store").fetchone()
        if row is None:
            return  # created, and then the process died before the first transaction
        if row[3] != _checksum(row[:3]):
            raise CopyDamaged(f"{self.path}: the row that counts transactions is damaged")
        for path, *values, checksum in self._db.execute("SELECT * FROM node"):
            if checksum != _checksum((path, *values)):
                raise CopyDamaged(f"{self.path}: node {path!r} is damaged")
            self.nodes[path] = Node(*values)
        if len(self.nodes) != row[2]:
            raise CopyDamaged(f"{self.path}: {len(self.nodes)} nodes, expected {row[2]}")
        self.store_id, self.zxid = row[0], row[1]

    def forget_nodes(self) -> None:
        """Free what was read on opening."""
        self.nodes = {}

    def apply(self, zxid: int, rows: Mapping[str, Node | None], node_count: int) -> None:
        """Write one transaction durably.

        Raises:
            sqlite3.Error: it was not written, or nobody knows whether it was.
        """
        self._write(zxid, rows, node_count, replace_all=False)

    def rewrite(self, store_id: str, zxid: int, nodes: Mapping[str, Node]) -> None:
        """Make this copy the same as another, whatever it held. Raises sqlite3.Error."""
        self.store_id = store_id
        self._write(zxid, nodes, len(nodes), replace_all=True)

    def _write(
        self, zxid: int, rows: Mapping[str, Node | None], node_count: int, *, replace_all: bool
    ) -> None:
        folded = False
        while True:
            try:
                if not self._wal_is_clean:
                    self._fold_wal()
                self._write_once(zxid, rows, node_count, replace_all=replace_all)
                break
            except sqlite3.Error as error:
                self._wal_is_clean = False  # a part of the transaction may be in it
                # Folding frees the space of the WAL. If that is too little, the reserve gives some.
                if not is_full(error) or (folded and not self._reserve.give_up_a_step()):
                    raise
                folded = True
        if self._wal_bytes() >= MAX_WAL_BYTES:
            self._fold_large_wal()
        self._reserve.fill()

    def _fold_wal(self) -> None:
        """Write the pages of the WAL into the file, sync that, and empty the WAL."""
        self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
        # If only the truncation fails, SQLite would begin again at the front.
        self._wal_is_clean = False
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._wal_is_clean = True
        self._fold_failed = False

    def _fold_large_wal(self) -> None:
        """Fold after a commit, which the WAL has durably.

        If that fails, the WAL stays and grows. SQLite writes all of its pages again at the next
        try, so that pages which a failed sync has dropped reach the disk, too.
        """
        try:
            self._fold_wal()
        except (sqlite3.Error, MemoryError) as error:
            if not self._fold_failed:
                log.warning(
                    "cannot fold the write-ahead log of %s in: %s; every write tries again",
                    self.path,
                    error,
                )
            self._fold_failed = True

    def _wal_bytes(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _write_once(
        self, zxid: int, rows: Mapping[str, Node | None], node_count: int, *, replace_all: bool
    ) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if replace_all:
                self._db.execute("DELETE FROM node")
            self._db.executemany(
                "DELETE FROM node WHERE path=?",
                [(path,) for path, node in rows.items() if node is None],
            )
            self._db.executemany(
                _PUT,
                [
                    (path, *node, _checksum((path, *node)))
                    for path, node in rows.items()
                    if node is not None
                ],
            )
            counted = (self.store_id, zxid, node_count)
            self._db.execute(_PUT_STORE, (*counted, _checksum(counted)))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            # A failed COMMIT leaves the transaction open; some errors have rolled it back already.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.zxid = zxid

    def close(self) -> None:
        """Fold the WAL into the file and close it. Raises sqlite3.Error if that fails."""
        self._db.close()


def set_aside(directory: Path, now_ms: int) -> Path:
    """Rename a damaged copy (with its WAL), so that it can be looked at. Returns the new path."""
    aside = directory / f"{FILE_NAME}.damaged-{now_ms}"
    for suffix in ("", "-wal", "-shm", "-journal"):
        source = directory / (FILE_NAME + suffix)
        if source.exists():
            os.rename(source, f"{aside}{suffix}")
    sync_directory(directory)
    return aside


def sync_directory(directory: Path) -> None:
    """Make entries of the directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_full(error: sqlite3.Error) -> bool:
    """Tell a full disk, after which the file is as it was, from a disk that fails."""
    return error.sqlite_errorcode == sqlite3.SQLITE_FULL


def is_refusal(error: sqlite3.Error, directory: Path) -> bool:
    """Tell whether a write, which has changed nothing, may succeed later."""
    return is_full(error) or lack_of_resource(error, directory) is not None


def lack_of_resource(error: sqlite3.Error, directory: Path) -> OSError | None:
    """Return why SQLite could not open a file, if it lacks a descriptor or memory.

    SQLite does not say. The directory is opened to find out.
    """
    if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CANTOPEN:
        return None
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    except OSError as found:
        if found.errno in NO_RESOURCES:
            return found
    return None


def _checksum(values: tuple[object, ...]) -> int:
    """CRC-32 over the values with types and lengths, so that no bytes move between them.

    Types too: SQLite keeps them with each value, where a flipped bit makes text a blob.
    """
    crc = 0
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode()
        head = f"{type(value).__name__}{len(raw)}:"
        crc = zlib.crc32(raw, zlib.crc32(head.encode(), crc))
    return crc


_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_DISK = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
}


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        # Damaged text; also of SQLite's own message, where that quotes a damaged schema.
        raise CopyDamaged(f"{path}: {error}") from error
    except sqlite3.Error as error:
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise CopyInUse(f"{path} is in use by another process") from error
        if (lacking := lack_of_resource(error, path.parent)) is not None:
            raise lacking from error
        if primary in _DISK:
            raise OSError(f"{path}: {error}") from error
        # Wrong SQL can only come from a schema that is not ours: that too is damage.
        if primary in _DAMAGE or isinstance(error, sqlite3.DatabaseError):
            raise CopyDamaged(f"{path}: {error}") from error
        raise
