"""Checks the log directories of a broker on this host, and what its systemd unit lets it write.

Owns these checks and their advice. Never writes to a broker's files: a broker may be running with
the same settings.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from plog.cluster.store import StoreError
from plog.errors import ConfigError, InconsistentLogDirs
from plog.ops.doctor.findings import Finding, Findings, Verdict, graded_space
from plog.ops.doctor.running_broker import OFFLINE_ADVICE, RunningBroker
from plog.ops.doctor.units import Unit, is_under
from plog.ops.log_dirs import KnownLogDir, LogDirsError, LogDirState, copied_log_dirs
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import DIRECTORY_ID, KRaftLogDir, LogDir, common_identity, is_locked
from plog.storage.segment_files import parse_directory_name
from plog.types import uuid_to_text

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})
PASSING_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "overlay"})
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
NAMES_SHOWN = 3


def examine_log_dirs(
    settings: BrokerSettings, paths: Sequence[Path], running: RunningBroker | None
) -> Findings:
    """Check the log directories, at these paths on this host."""
    for place, count in Counter(map(os.path.realpath, paths)).items():
        if count > 1:
            yield Finding("log.dirs", Verdict.FAILURE, f"{place} appears {count} times")
    usable = []
    for path, text in zip(paths, settings.log_dirs, strict=True):
        unused = None if running is None else _not_in_use(path, Path(text).absolute(), running)
        found = list(_log_dir(path, unused))
        yield from found
        if all(one.verdict is not Verdict.FAILURE for one in found):
            usable.append(LogDir(Filesystem(), path))
    try:
        common_identity(usable, settings.broker_id)
    except KRaftLogDir as error:
        yield Finding("log.dirs", Verdict.FAILURE, str(error))
    except InconsistentLogDirs as error:
        advice = "give each broker its own directories; broker.id must match theirs"
        yield Finding("log.dirs", Verdict.FAILURE, str(error), advice)
    except OSError as error:
        yield Finding("log.dirs", Verdict.FAILURE, str(error))


def _not_in_use(path: Path, named: Path, running: RunningBroker) -> Finding | None:
    """Return why the running broker does not use a log directory; None if it does.

    Args:
        path: the directory on this host.
        named: the directory in the settings of the broker.
    """
    online = running.online()
    is_held = is_locked(path)
    if is_held and (online is None or online.get(named, True)):
        return None
    if online is None:
        text = f"the running broker does not use {path}: it has lost it, or never had it"
        advice = "run this again when the broker answers; its log has the reason"
        return Finding("log.dirs", Verdict.WARNING, text, advice)
    if named not in online:
        text = f"{path} is not a log directory of the running broker"
        advice = "restart the broker to use it, or remove it from log.dirs"
        return Finding("log.dirs", Verdict.WARNING, text, advice)
    exists = os.path.lexists(path)
    is_readable = exists and os.access(path, os.R_OK | os.X_OK)
    if online[named] and exists and not is_readable:
        return None  # another user's: whether it is locked is unknown
    how = "" if exists else ": it does not exist"
    if is_readable and not is_held:
        how = ": another directory is in its place"
    text = f"the running broker has lost {path}{how}"
    return Finding("log.dirs", Verdict.FAILURE, text, OFFLINE_ADVICE)


def examine_known_log_dirs(
    settings: BrokerSettings, paths: Sequence[Path], properties: str | None
) -> Findings:
    """Check for missing log directories: those that the broker used before."""
    if any(map(is_locked, paths)):
        return  # a running broker counts them on its metrics page
    try:
        with copied_log_dirs(settings, paths) as log_dirs:
            known, absent = log_dirs.known(), len(log_dirs.absent_partitions())
    except (LogDirsError, ConfigError):
        return  # no broker has run here, or the check of ZooKeeper reports the fault
    except (OSError, StoreError, InconsistentLogDirs) as error:
        text = f"cannot check for missing log directories: {error}"
        advice = "check again with plog log-dirs; the broker reports the problem when it starts"
        yield Finding("log.dirs", Verdict.WARNING, text, advice)
        return
    missing = [one for one in known if one.state in _MISSING]
    for one in missing:
        yield _missing(one, absent, properties)
    if not missing:
        text = "no log directory is missing"
        yield Finding("log.dirs", Verdict.OK, text)


_MISSING = {
    LogDirState.NOT_MOUNTED: "is empty",
    LogDirState.MISSING: "is not in log.dirs",
}


def _missing(one: KnownLogDir, absent: int, properties: str | None) -> Finding:
    assert one.directory_id is not None
    directory_id = uuid_to_text(one.directory_id)
    return Finding(
        "log.dirs",
        Verdict.FAILURE,
        f"{one.path} {_MISSING[one.state]}, but was a log directory of this broker ({DIRECTORY_ID}"
        f" {directory_id}); partitions without another log directory would be offline: {absent}",
        "mount its disk, or put it back into log.dirs; if it is lost:"
        f" plog log-dirs --forget {directory_id} {properties or ''}".rstrip(),
    )


def _log_dir(path: Path, unused: Finding | None) -> Findings:
    if unused is not None and unused.verdict is Verdict.FAILURE:
        yield unused
        return
    there = path
    while not os.path.lexists(there):  # it does not exist, or its parent denies access
        there = there.parent
    if not os.access(there, os.F_OK):
        text = f"{there} is a symbolic link to {os.readlink(there)}, which does not exist"
        yield Finding("log.dirs", Verdict.FAILURE, text, "create that directory, or mount its disk")
        return
    if not there.is_dir():
        yield Finding("log.dirs", Verdict.FAILURE, f"{there} is not a directory")
        return
    state = "exists" if there == path else f"will be created in {there}"
    user = psutil.Process().username()
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        denied = "write to" if os.access(there, os.X_OK) else "read"
        mend = "chown -R" if there == path else "install -d -m 750 -o"
        advice = f"{mend} {user} {path}, or run this as the broker's user"
        text = f"user {user} may not {denied} {there}"
        yield Finding("log.dirs", Verdict.FAILURE, text, advice)
        return
    if there == path and (refused := _refused_files(path)):
        more = f" and {len(refused) - NAMES_SHOWN} more" if len(refused) > NAMES_SHOWN else ""
        text = f"user {user} may not write {', '.join(map(str, refused[:NAMES_SHOWN]))}{more}"
        advice = f"chown -R {user} {shlex.quote(str(path))}: another user's broker wrote them"
        yield Finding("log.dirs", Verdict.FAILURE, text, advice)
        return
    if is_locked(path):
        state = "is in use by a running broker"
    yield unused or Finding("log.dirs", Verdict.OK, f"{path} {state}")
    usage = shutil.disk_usage(there)
    yield graded_space("disk space", f"{path}:", usage.free, usage.total)
    kind = _file_system(Path(os.path.realpath(there)))
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "use a local disk: locks and fdatasync may not work on a network file system"
        yield Finding("file system", Verdict.WARNING, f"{path} is on {kind}", advice)
    elif kind in PASSING_FILE_SYSTEMS:
        advice = "use a disk: these files may not survive a restart of the host"
        yield Finding("file system", Verdict.WARNING, f"{path} is on {kind}", advice)
    else:
        yield Finding("file system", Verdict.OK, f"{path} is on {kind or 'an unknown file system'}")


def _refused_files(log_dir: Path) -> list[Path]:
    """Return the files and partitions of a broker that this process may not write."""
    refused = []
    for directory, below, files in os.walk(log_dir):
        if directory == str(log_dir):
            below[:] = [name for name in below if parse_directory_name(name) is not None]
        # The contents of an unreadable directory stay unknown.
        refused += [
            path
            for path in (Path(directory, name) for name in [*below, *files])
            if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))
        ]
    return sorted(refused)


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds a directory; "" if unknown."""
    holds = ""
    kind = ""
    for part in psutil.disk_partitions(all=True):
        if path.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(holds):
            holds, kind = part.mountpoint, part.fstype
    return kind


def examine_own_places(settings: BrokerSettings, unit: Unit) -> Findings:
    """Report log directories that the service sees at another path than the host."""
    for path in (Path(text).absolute() for text in settings.log_dirs):
        if (place := unit.on_host(path)) != path:
            text = f"{unit.name} sees {place} as {path}; checked {place}"
            yield Finding("log.dirs", Verdict.OK, text)


def examine_unit(settings: BrokerSettings, properties: str | None, unit: Unit | None) -> Findings:
    """Check the log directories as the service with these settings sees them."""
    paths = [Path(os.path.realpath(text)) for text in settings.log_dirs]
    for path in paths:
        if not is_under(path, TEMPORARY):
            continue
        if unit is not None and unit.has_own_tmp:
            text = f"{path}: {unit.name} has a private /tmp, which is deleted when it stops"
            advice = "every record would be lost: use a directory under /var/lib/plog or a disk"
            yield Finding("log.dirs", Verdict.FAILURE, text, advice)
        else:
            advice = "use it only to try plog; keep permanent records in another directory"
            text = f"{path}: hosts clear /tmp and /var/tmp at boot, or by age"
            yield Finding("log.dirs", Verdict.WARNING, text, advice)
    if unit is None:
        return
    lasting = [path for path in paths if not is_under(path, TEMPORARY)]
    if unit.own_root:
        text = f"{unit.name} has its own root ({unit.own_root}): write access was not checked"
        advice = (
            "check its ReadWritePaths= and BindPaths=: the broker must write its log directories"
        )
        yield Finding("log.dirs", Verdict.WARNING, text, advice)
    elif refused := [path for path in lasting if not unit.lets_write(path)]:
        text = f"{unit.name} does not let the broker write {', '.join(map(str, refused))}"
        advice = "add a drop-in with the commands below"
        yield Finding("log.dirs", Verdict.WARNING, text, advice, unit.drop_in(lasting))
    user = psutil.Process().username()
    if user != unit.user:
        text = f"{unit.name} runs as {unit.user}, but this check as {user}"
        advice = f"runuser -u {unit.user} -- plog doctor {properties}"
        yield Finding("user", Verdict.WARNING, text, advice)
