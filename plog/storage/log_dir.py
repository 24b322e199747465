"""One of `log.dirs`: its identity, its lock, and how the broker before ended.

Owns meta.properties, `.lock`, `.kafka_cleanshutdown` and `boot-id`, and what KRaft leaves beside
them. Never looks into the partitions' directories.
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

from plog._native.files import NO_DESCRIPTORS
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
"""Kafka's key (KIP-858): which of the broker's directories it is, wherever it is mounted."""
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
_FLOCK = "hhqqi"
"""C's struct flock: type, whence, start, length, pid."""
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
BOOT_ID_FILE = "boot-id"
"""The kernel's boot id of the broker that last had the directory open, as text."""


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
    """meta.properties is no such file any more; it names nobody else, so it can be written anew."""


class KRaftLogDir(InconsistentLogDirs):
    """A broker of Kafka's KRaft mode was here, which knows its topics from elsewhere."""

    def __init__(self, path: Path | str, sign: str) -> None:
        super().__init__(
            f"{path}: {sign}: a KRaft broker's directory, whose topics and configs are known to"
            " KRaft's controllers alone; leave it to Kafka, start plog on an empty directory, and"
            " copy the topics by a client (MirrorMaker, or kcat)"
        )


class LogDirIdentity:
    """What meta.properties says: whose directory this is, and which of theirs."""

    def __init__(
        self,
        *,
        broker_id: int | None,
        cluster_id: str | None,
        directory_id: uuid.UUID | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.directory_id = directory_id  # None: Kafka's before 3.7, and older releases'

    @classmethod
    def decode(cls, text: str, name: str) -> LogDirIdentity:
        """Read version 0 (broker.id); the later version 1 (node.id) is KRaft's.

        Raises:
            KRaftLogDir: version 1.
            IdentityDamaged: no version, or a broker id that is no number.
            InconsistentLogDirs: another version, or a directory.id that is none.
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
        # To draw another would be to take the directory for a new one.
        raise InconsistentLogDirs(
            f"{name}: {DIRECTORY_ID}={text} is not the id of a directory: put the right one there"
            " (`plog log-dirs` shows it), or take the line out to have it given another"
        )
    return found


class LogDir:
    """A log directory that this process has locked for itself.

    `unlock` gives it back; the operating system does so too when the process dies.
    """

    def __init__(self, fs: Filesystem, path: Path) -> None:
        self._fs = fs
        self.path = path
        self.directory_id: uuid.UUID | None = None  # of a directory that is claimed
        self.lost_id: uuid.UUID | None = None  # the one it had, if its own file does not tell
        self._lock_fd = -1
        # Held, so that nothing else can be taken for it, and so that its names can be synced when
        # no other descriptor is left.
        self._directory_fd = -1

    def open(self) -> None:
        """Make the directory when it is missing, and lock it; locked by us, it stays so.

        Raises:
            InconsistentLogDirs: another process holds the lock.
            OSError: the directory cannot be made or written.
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
        """Give the lock back."""
        if self._lock_fd >= 0:
            lock_fd, self._lock_fd = self._lock_fd, -1
            self._fs.close(lock_fd)
            directory_fd, self._directory_fd = self._directory_fd, -1
            self._fs.close(directory_fd)

    def sync_names(self) -> None:
        """Make the names in the directory durable. Needs no further descriptor. Raises OSError."""
        self._fs.fsync(self._directory_fd)

    def check_place(self) -> None:
        """Check that the path still leads to the directory that is open.

        Raises:
            OSError: it was renamed or removed, or its disk is not mounted (here) any more.
        """
        if not self._fs.is_at(self._directory_fd, self.path):
            raise OSError(errno.ESTALE, "another directory is in its place", str(self.path))

    # -- identity ----------------------------------------------------------------------------

    def identity(self) -> LogDirIdentity | None:
        """Return what meta.properties says; None when there is none yet.

        Raises:
            KRaftLogDir: it, or what is beside it, says that a KRaft broker was here.
            IdentityDamaged: it says nothing that can be understood.
            InconsistentLogDirs: it is of a later version, or its directory.id is none.
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
        """Return the id in meta.properties; None where it is gone, or damaged, or has none.

        Raises:
            InconsistentLogDirs: it is of a later version, or its directory.id is none.
            OSError: it cannot be read.
        """
        try:
            found = self.identity()
        except IdentityDamaged:
            return None
        return None if found is None else found.directory_id

    def is_nobodys(self) -> bool:
        """Tell whether no broker was ever here, as on a mount point without its disk.

        One that has lost its meta.properties is still somebody's. Raises OSError.
        """
        return not self._fs.exists(self.path / META_PROPERTIES) and not self.was_served()

    def claim(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directory is this broker's, or make it so; it has an id then, durably.

        Raises:
            InconsistentLogDirs: it belongs to another broker or cluster.
            OSError: it cannot be read or written.
        """
        path = self.path / META_PROPERTIES
        try:
            found = self.identity()
        except IdentityDamaged as error:
            _log.warning("%s is written anew, for broker %d: %s", path, broker_id, error)
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
        """Give an id to a directory that is somebody's; None where the disk is full."""
        path = self.path / META_PROPERTIES
        drawn = self.lost_id or new_directory_id()
        try:
            # The other lines stay as whoever wrote them did.
            others = self._fs.read_bytes(path).rstrip(b"\n") + b"\n"
            self._fs.replace_bytes(path, others + _id_line(drawn).encode())
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            # What is there can be served, and retention make room.
            _log.warning("%s has no %s until the next start: %s", self.path, DIRECTORY_ID, error)
            return None
        return drawn

    # -- clean shutdown ----------------------------------------------------------------------

    @property
    def clean_shutdown_file(self) -> Path:
        """The marker of a clean shutdown."""
        return self.path / CLEAN_SHUTDOWN_FILE

    def take_clean_shutdown(self) -> bool:
        """Tell whether the last shutdown was clean, and remove the marker.

        The removal is made durable before any log is opened: a crash after this start must
        not find the marker of the one before. Also one that a start before this removed and
        did not live to make durable.
        """
        path = self.clean_shutdown_file
        found = self._fs.exists(path)
        if found:
            self._fs.unlink(path)
        self._fs.sync_directory(self.path)
        return found

    def mark_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """Say that every log here was flushed and closed."""
        text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._fs.replace_text(self.clean_shutdown_file, text)

    # -- restarts of the machine -------------------------------------------------------------

    def machine_restarted(self) -> bool:
        """Tell whether the machine has been started anew since a broker last wrote here.

        False when nobody knows (Kafka's directories, a damaged file): recovery is strict then,
        which loses nothing. Raises OSError.
        """
        try:
            found = self._fs.read_text(self.path / BOOT_ID_FILE).strip()
        except FileNotFoundError:
            return False
        current = self._fs.boot_id()
        return current is not None and _is_uuid(found) and found != current

    def was_served(self) -> bool:
        """Tell whether logs here were recovered and served by plog before. Raises OSError."""
        return self._fs.exists(self.path / BOOT_ID_FILE)

    def remember_boot(self) -> None:
        """Say under which start of the machine the directory is written to. Raises OSError.

        To be called when every log has been recovered and before the first one is written:
        a broker that is killed in its recovery leaves the next one as lenient as it was itself.
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
    """Tell whether a broker, plog or Kafka, has the directory's lock file locked."""
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

    Java's locks are POSIX's: they and those of flock do not see each other, those of an open file
    description do. An older plog knows flock alone.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)


def check_named_once(paths: Sequence[Path]) -> None:
    """Check that no directory is named twice, as such or by a link. Raises InconsistentLogDirs."""
    twice = [path for path, count in Counter(p.resolve() for p in paths).items() if count > 1]
    if twice:
        raise InconsistentLogDirs(f"log.dirs names {twice[0]} twice")


def lock_log_dirs(
    fs: Filesystem, paths: Sequence[Path], already: Sequence[LogDir] = ()
) -> list[LogDir]:
    """Lock what can be locked of the broker's log directories, before anything is written there.

    A directory whose disk has failed is left out; those that are locked already come first. If
    this fails, none is locked any more.

    Raises:
        InconsistentLogDirs: one is named twice, or in use by another process.
        KafkaStorageError: none can be used, or no file descriptor is left.
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
                if error.errno in NO_DESCRIPTORS:
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
    """Return whose the directories are, as far as they tell; `broker_id` -1 may be anyone.

    Raises:
        InconsistentLogDirs: one belongs to another broker, two to different ones, or two have the
            same id.
        OSError: a file cannot be read.
    """
    wanted = broker_id if broker_id >= 0 else None
    cluster_id: str | None = None
    by_id: dict[uuid.UUID, Path] = {}
    for log_dir in log_dirs:
        try:
            found = log_dir.identity()
        except IdentityDamaged:
            continue  # `claim` says so
        if found is None:
            continue
        if found.directory_id is not None:
            other = by_id.setdefault(found.directory_id, log_dir.path)
            if other != log_dir.path:
                raise InconsistentLogDirs(
                    f"{other} and {log_dir.path} are copies of one log directory (both have"
                    f" {DIRECTORY_ID}={uuid_to_text(found.directory_id)} in their"
                    f" {META_PROPERTIES}): take the older one out of log.dirs"
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
