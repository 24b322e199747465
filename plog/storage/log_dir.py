"""One of `log.dirs`: its identity, its lock, and how the last broker ended.

Owns meta.properties, `.lock`, `.kafka_cleanshutdown` and `boot-id`, and detects KRaft's files next
to them. Never reads the partitions' directories.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import struct
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from plog._native.files import NO_RESOURCES
from plog.errors import InconsistentLogDirs, KafkaStorageError
from plog.storage.file_errors import DISK_FULL
from plog.storage.filesystem import Filesystem
from plog.types import (
    CLUSTER_METADATA,
    RESERVED_UUIDS,
    new_directory_id,
    uuid_from_text,
    uuid_to_text,
)

_log = logging.getLogger(__name__)

META_PROPERTIES = "meta.properties"
KRAFT_LOG = f"{CLUSTER_METADATA}-0"
DIRECTORY_ID = "directory.id"
"""Kafka's key (KIP-858): identifies a directory of the broker at any mount point."""
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
_FLOCK = "hhqqi"
"""C's struct flock: type, whence, start, length, pid."""
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
BOOT_ID_FILE = "boot-id"
"""The kernel's boot id when a broker last opened the directory, as text."""


def encode_properties(values: Mapping[str, str]) -> str:
    """Encode the plain subset of Java's properties that meta.properties needs."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def decode_properties(text: str) -> dict[str, str]:
    """Decode ``key=value`` lines; comments (# and !) and empty lines are skipped."""
    values = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, _, value = stripped.partition("=")
            values[key.strip()] = value.strip()
    return values


class IdentityDamaged(InconsistentLogDirs):
    """meta.properties is damaged; it names no other broker, so plog may rewrite it."""


class KRaftLogDir(InconsistentLogDirs):
    """A KRaft broker has used the directory; its topics' metadata is elsewhere."""

    def __init__(self, path: Path | str, sign: str) -> None:
        super().__init__(
            f"{path}: {sign}: a KRaft broker's directory; only KRaft's controllers know its topics"
            " and configs. Leave it to Kafka, start plog on an empty directory, and copy the"
            " topics with a client (MirrorMaker or kcat)"
        )


class LogDirIdentity:
    """The contents of meta.properties: the broker and the id of the directory."""

    def __init__(
        self,
        *,
        broker_id: int | None,
        cluster_id: str | None,
        directory_id: uuid.UUID | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.directory_id = directory_id  # None before Kafka 3.7, and in older releases of plog

    @classmethod
    def decode(cls, text: str, name: str) -> LogDirIdentity:
        """Read version 0 (broker.id); the later version 1 (node.id) is KRaft's.

        Raises:
            KRaftLogDir: version 1.
            IdentityDamaged: no version, or an invalid broker id.
            InconsistentLogDirs: another version, or an invalid directory.id.
        """
        values = decode_properties(text)
        version = values.get("version", "")
        if not (version.isascii() and version.isdigit()):
            raise IdentityDamaged(f"{name}: version 0 expected, not {values.get('version')!r}")
        if version == "1":
            raise KRaftLogDir(name, "version=1")
        if version != "0":
            raise InconsistentLogDirs(f"{name}: version 0 expected, not {version!r}")
        broker_id = values.get("broker.id")
        digits = ("0" if broker_id is None else broker_id).removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            raise IdentityDamaged(f"{name}: broker.id={broker_id!r} is not a broker id")
        return cls(
            broker_id=None if broker_id is None else int(broker_id),
            cluster_id=values.get("cluster.id"),
            directory_id=_decode_directory_id(values.get(DIRECTORY_ID), name),
        )


def _decode_directory_id(text: str | None, name: str) -> uuid.UUID | None:
    if text is None:
        return None
    try:
        found = uuid_from_text(text)
    except ValueError:
        found = None
    if found is None or found.int < RESERVED_UUIDS:
        # With another random id the directory would count as a new one.
        raise InconsistentLogDirs(
            f"{name}: {DIRECTORY_ID}={text} is not the id of a directory: restore the right id"
            " (`plog log-dirs` shows it), or delete the line to get a new one"
        )
    return found


class LogDir:
    """A log directory that this process can lock.

    `unlock` releases the lock, and so does the operating system when the process dies.
    """

    def __init__(self, fs: Filesystem, path: Path) -> None:
        self._fs = fs
        self.path = path
        self.directory_id: uuid.UUID | None = None  # set by `claim`
        self.lost_id: uuid.UUID | None = None  # the id before its file was lost
        self._lock_fd = -1
        # Kept open, so that another directory at the path is noticed, and so that names can be
        # synced when no other descriptor is left.
        self._directory_fd = -1

    def open(self) -> None:
        """Create the directory if missing, and lock it; do nothing if we have the lock.

        Raises:
            InconsistentLogDirs: another process holds the lock.
            OSError: the directory cannot be created or written.
        """
        if self._lock_fd >= 0:
            return
        missing = []
        ancestor = self.path
        while not self._fs.exists(ancestor):
            missing.append(ancestor)
            ancestor = ancestor.parent
        for directory in reversed(missing):
            self._fs.make_directory(directory)
            self._fs.sync_directory(directory.parent)
        lock_fd = self._fs.open_file(self.path / LOCK_FILE, create=True)
        try:
            _lock(lock_fd)
            self._directory_fd = self._fs.open_directory(self.path)
        except BlockingIOError as error:
            self._fs.close(lock_fd)
            raise InconsistentLogDirs(
                f"log directory {self.path} is in use by another broker process"
                f" (its file {LOCK_FILE} is locked)"
            ) from error
        except OSError:
            self._fs.close(lock_fd)
            raise
        self._lock_fd = lock_fd

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            lock_fd, self._lock_fd = self._lock_fd, -1
            self._fs.close(lock_fd)
            directory_fd, self._directory_fd = self._directory_fd, -1
            self._fs.close(directory_fd)

    def sync_names(self) -> None:
        """Make the names in the directory durable. Needs no further descriptor. Raises OSError."""
        self._fs.fsync(self._directory_fd)

    def check_place(self) -> None:
        """Check that the path still refers to the open directory.

        Raises:
            OSError: it was renamed or removed, or its disk is no longer mounted there.
        """
        if not self._fs.is_at(self._directory_fd, self.path):
            raise OSError(errno.ESTALE, "another directory is in its place", str(self.path))

    # -- identity ----------------------------------------------------------------------------

    def identity(self) -> LogDirIdentity | None:
        """Return the contents of meta.properties; None if it does not exist yet.

        Raises:
            KRaftLogDir: the directory has files of a KRaft broker.
            IdentityDamaged: the file is damaged.
            InconsistentLogDirs: the file has a later version, or an invalid directory.id.
            OSError: it cannot be read.
        """
        path = self.path / META_PROPERTIES
        if self._fs.exists(self.path / KRAFT_LOG):
            raise KRaftLogDir(self.path, f"it holds {KRAFT_LOG}")
        try:
            text = self._fs.read_text(path)
        except FileNotFoundError:
            return None
        return LogDirIdentity.decode(text, str(path))

    def told_id(self) -> uuid.UUID | None:
        """Return the id in meta.properties; None if the file is missing, damaged or has no id.

        Raises:
            InconsistentLogDirs: the file has a later version, or an invalid directory.id.
            OSError: it cannot be read.
        """
        try:
            found = self.identity()
        except IdentityDamaged:
            return None
        return None if found is None else found.directory_id

    def is_nobodys(self) -> bool:
        """Return whether no broker has used the directory, like a mount point without its disk.

        False if plog has used the directory and its meta.properties was lost. Raises OSError.
        """
        return not self._fs.exists(self.path / META_PROPERTIES) and not self.was_served()

    def claim(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directory belongs to this broker, or claim it; store its id durably.

        Raises:
            InconsistentLogDirs: it belongs to another broker or cluster.
            OSError: it cannot be read or written.
        """
        path = self.path / META_PROPERTIES
        try:
            found = self.identity()
        except IdentityDamaged as error:
            _log.warning("rewriting %s for broker %d: %s", path, broker_id, error)
            found = None
        if found is not None:
            _check_owner(path, found, broker_id, cluster_id)
            self.directory_id = found.directory_id or self._add_id()
            return
        drawn = self.lost_id or new_directory_id()
        values = {"version": "0", "broker.id": str(broker_id), "cluster.id": cluster_id}
        self._fs.replace_text(path, encode_properties(values) + _id_line(drawn))
        self.directory_id = drawn

    def _add_id(self) -> uuid.UUID | None:
        """Store an id in an existing meta.properties; return None if the disk is full."""
        path = self.path / META_PROPERTIES
        drawn = self.lost_id or new_directory_id()
        try:
            # Keep the other lines unchanged.
            others = self._fs.read_bytes(path).rstrip(b"\n") + b"\n"
            self._fs.replace_bytes(path, others + _id_line(drawn).encode())
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            # The broker can use its partitions, and retention can free space.
            _log.warning("cannot add %s to %s until the next start: %s", DIRECTORY_ID, path, error)
            return None
        return drawn

    # -- clean shutdown ----------------------------------------------------------------------

    @property
    def clean_shutdown_file(self) -> Path:
        """The marker of a clean shutdown."""
        return self.path / CLEAN_SHUTDOWN_FILE

    def take_clean_shutdown(self) -> bool:
        """Return whether the last shutdown was clean, and remove the marker.

        The removal is durable before any log is opened, because a start after a crash must not
        find an old marker. That includes a removal by an earlier start that crashed before the
        sync.
        """
        path = self.clean_shutdown_file
        found = self._fs.exists(path)
        if found:
            self._fs.unlink(path)
        self._fs.sync_directory(self.path)
        return found

    def mark_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """Record that every log in the directory was flushed and closed."""
        text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._fs.replace_text(self.clean_shutdown_file, text)

    # -- restarts of the machine -------------------------------------------------------------

    def machine_restarted(self) -> bool:
        """Return whether the machine has restarted since a broker last wrote here.

        False if unknown (Kafka's directories, a damaged file): recovery is then strict, which
        loses nothing. Raises OSError.
        """
        try:
            found = self._fs.read_text(self.path / BOOT_ID_FILE).strip()
        except FileNotFoundError:
            return False
        current = self._fs.boot_id()
        return current is not None and _is_uuid(found) and found != current

    def was_served(self) -> bool:
        """Return whether plog has recovered and used logs here before. Raises OSError."""
        return self._fs.exists(self.path / BOOT_ID_FILE)

    def remember_boot(self) -> None:
        """Record the current boot id. Raises OSError.

        Call it after every log has been recovered and before the first write. So if a broker is
        killed during recovery, the next recovery is as lenient as this one.
        """
        current = self._fs.boot_id()
        path = self.path / BOOT_ID_FILE
        if current is None:
            self._fs.unlink(path, missing_ok=True)
        elif not self._fs.exists(path) or self._fs.read_text(path).strip() != current:
            self._fs.replace_text(path, current + "\n")


def _id_line(directory_id: uuid.UUID) -> str:
    return encode_properties({DIRECTORY_ID: uuid_to_text(directory_id)})


def is_locked(path: Path) -> bool:
    """Return whether a broker, plog or Kafka, holds the directory's lock."""
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        held: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE))[0]
    except OSError:
        return True
    finally:
        os.close(fd)
    return held != fcntl.F_UNLCK


def _lock(fd: int) -> None:
    """Lock a file against plog and against Kafka. Raises BlockingIOError.

    Java uses POSIX locks. They conflict with locks of an open file description, but not with flock,
    which is the only lock of an older plog. So take both.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)


def check_named_once(paths: Sequence[Path]) -> None:
    """Check that no directory appears twice, directly or by a link. Raises InconsistentLogDirs."""
    twice = [path for path, count in Counter(p.resolve() for p in paths).items() if count > 1]
    if twice:
        raise InconsistentLogDirs(f"log.dirs names {twice[0]} twice")


def lock_log_dirs(
    fs: Filesystem, paths: Sequence[Path], already: Sequence[LogDir] = ()
) -> list[LogDir]:
    """Lock the usable log directories of the broker, before anything is written there.

    Skips a directory whose disk has failed; directories that are already locked come first. On an
    error, unlocks all of them.

    Raises:
        InconsistentLogDirs: a directory appears twice, or is in use by another process.
        KafkaStorageError: no directory can be used, or no file descriptor or memory is left.
    """
    locked = list(already)
    faults: list[str] = []
    try:
        check_named_once(paths)
        for path in paths:
            log_dir = LogDir(fs, path)
            try:
                log_dir.open()
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    raise KafkaStorageError(f"{path} cannot be opened: {error}") from error
                faults.append(f"{path}: {error.strerror or error}")
            else:
                locked.append(log_dir)
        if not locked:
            raise KafkaStorageError(f"no log directory can be used: {'; '.join(faults)}")
    except (InconsistentLogDirs, KafkaStorageError):
        for log_dir in locked:
            log_dir.unlock()
        raise
    return locked


def common_identity(log_dirs: Sequence[LogDir], broker_id: int) -> LogDirIdentity:
    """Return the identity that the directories share; `broker_id` -1 matches any broker.

    Raises:
        InconsistentLogDirs: a directory belongs to another broker, two belong to different ones, or
            two have the same id.
        OSError: a file cannot be read.
    """
    wanted = broker_id if broker_id >= 0 else None
    cluster_id: str | None = None
    by_id: dict[uuid.UUID, Path] = {}
    for log_dir in log_dirs:
        try:
            found = log_dir.identity()
        except IdentityDamaged:
            continue  # `claim` reports it
        if found is None:
            continue
        if found.directory_id is not None:
            other = by_id.setdefault(found.directory_id, log_dir.path)
            if other != log_dir.path:
                raise InconsistentLogDirs(
                    f"{other} and {log_dir.path} are copies of one log directory (both have"
                    f" {DIRECTORY_ID}={uuid_to_text(found.directory_id)} in their"
                    f" {META_PROPERTIES}): remove the older one from log.dirs"
                )
        _check_owner(log_dir.path / META_PROPERTIES, found, wanted, cluster_id)
        wanted = found.broker_id if wanted is None else wanted
        cluster_id = cluster_id or found.cluster_id
    return LogDirIdentity(broker_id=wanted, cluster_id=cluster_id)


def _check_owner(
    path: Path, found: LogDirIdentity, broker_id: int | None, cluster_id: str | None
) -> None:
    if found.broker_id is not None and broker_id not in (None, found.broker_id):
        raise InconsistentLogDirs(
            f"{path}: the directory belongs to broker {found.broker_id}, not {broker_id}"
            f" (set broker.id={found.broker_id}, or use an empty directory)"
        )
    if found.cluster_id is not None and cluster_id not in (None, found.cluster_id):
        raise InconsistentLogDirs(
            f"{path}: the directory belongs to cluster {found.cluster_id}, not {cluster_id}"
        )


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
