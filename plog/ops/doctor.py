"""What would keep a broker from running well on this host, found before it starts.

Owns the checks and their advice. Looks and never writes where a broker does: one may be running
with the same settings. Each check stands alone, so that all that is wrong is told at once.
"""

from __future__ import annotations

import errno
import os
import resource
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import psutil

from plog._native import crc32c
from plog.cluster.store import StoreError
from plog.errors import ConfigError, InconsistentLogDirs
from plog.network.listeners import bind
from plog.ops.log_dirs import KnownLogDir, LogDirsError, LogDirState, copied_log_dirs
from plog.ops.units import Unit, is_under, unit_of
from plog.settings.definitions import BrokerSettings
from plog.settings.server_properties import read
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import DIRECTORY_ID, KRaftLogDir, LogDir, common_identity, is_locked
from plog.storage.segment_files import parse_directory_name
from plog.types import uuid_to_text

MB = 1 << 20
DESCRIPTORS = 100_000
"""Three for each segment, one for each client; the unit's LimitNOFILE is ten times that."""
MAPPINGS = 262_144
"""Two indexes of each segment that is read are mapped; the kernel's default is 65,530."""
SWAPPINESS = 10
KERNEL = Path("/proc/sys")
"""Where the kernel's settings are read."""
KAFKAS_BUFFER = 102_400
"""What the properties that come with Kafka say of socket buffers."""
FREE_SHARE = 0.1
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})
PASSING_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "overlay"})
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
NAMES_SHOWN = 3
LOOPBACK = ("127.", "localhost", "::1")
KRAFT_LISTENER = "CONTROLLER"
"""What the properties that come with Kafka call the listener of its controller."""


class Verdict(Enum):
    """What a finding means."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    """The broker would not start, not serve what it should, or lose what it was given."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    text: str
    advice: str = ""
    commands: Sequence[str] = ()
    """For root to paste into a shell."""


Findings = Iterator[Finding]


def examine(properties: str | None, overrides: tuple[str, ...] = ()) -> list[Finding]:
    """Look at everything that a broker with these settings would meet here."""
    try:
        settings, warnings = read(properties, overrides)
    except ConfigError as error:
        found = [Finding("settings", Verdict.FAILURE, line) for line in str(error).splitlines()]
        text = "keys without effect, log directories and listeners are told of once these are right"
        return [*found, Finding("settings", Verdict.WARNING, text, "run this again then"), *_host()]
    found = [Finding("settings", Verdict.WARNING, text) for text in warnings]
    if not warnings:
        place = properties or "every key's default"
        found.append(Finding("settings", Verdict.OK, f"{place}: every key is known and obeyed"))
    unit = None if properties is None else unit_of(properties)
    places = [Path(text).absolute() for text in settings.log_dirs]
    if unit is not None:
        places = [unit.on_host(path) for path in places]
    looked_at = list(_log_dirs(settings, places))
    found += looked_at
    if all(one.verdict is not Verdict.FAILURE for one in looked_at):
        found += _known_log_dirs(settings, places, properties)
    found += _listeners(settings, is_running=any(map(is_locked, places)))
    for check in (_buffers, _memory):
        found += check(settings)
    if unit is not None:
        found += _own_places(settings, unit)
    found += _unit(settings, properties, unit)
    return [*found, *_host()]


def _graded(
    what: str, is_well: bool, text: str, advice: str, verdict: Verdict = Verdict.WARNING
) -> Finding:
    return Finding(what, Verdict.OK, text) if is_well else Finding(what, verdict, text, advice)


# -- log directories ---------------------------------------------------------------------------


def _log_dirs(settings: BrokerSettings, paths: Sequence[Path]) -> Findings:
    for place, count in Counter(map(os.path.realpath, paths)).items():
        if count > 1:
            yield Finding("log.dirs", Verdict.FAILURE, f"{place} is named {count} times")
    usable = []
    for path in paths:
        found = list(_log_dir(path))
        yield from found
        if all(one.verdict is not Verdict.FAILURE for one in found):
            usable.append(LogDir(Filesystem(), path))
    try:
        common_identity(usable, settings.broker_id)
    except KRaftLogDir as error:
        yield Finding("log.dirs", Verdict.FAILURE, str(error))
    except InconsistentLogDirs as error:
        advice = "each broker has directories of its own; broker.id must be the one they had"
        yield Finding("log.dirs", Verdict.FAILURE, str(error), advice)
    except OSError as error:
        yield Finding("log.dirs", Verdict.FAILURE, str(error))


def _known_log_dirs(
    settings: BrokerSettings, paths: Sequence[Path], properties: str | None
) -> Findings:
    """Look for directories that the broker has had and would miss."""
    if any(map(is_locked, paths)):
        text = "whether one is missing the running broker tells (plog_missing_log_dirs, its log)"
        yield Finding("log.dirs", Verdict.OK, text)
        return
    try:
        with copied_log_dirs(settings, paths) as log_dirs:
            known, absent = log_dirs.known(), len(log_dirs.absent_partitions())
    except LogDirsError:
        return  # nothing is known of a broker that was here
    except (OSError, StoreError, InconsistentLogDirs) as error:
        text = f"which log directories there were cannot be told: {error}"
        advice = "a start says what it makes of that; plog log-dirs looks again"
        yield Finding("log.dirs", Verdict.WARNING, text, advice)
        return
    missing = [one for one in known if one.state in _MISSING]
    for one in missing:
        yield _missing(one, absent, properties)
    if not missing:
        text = "every log directory that the broker has had is there"
        yield Finding("log.dirs", Verdict.OK, text)


_MISSING = {
    LogDirState.NOT_MOUNTED: "has nothing in it",
    LogDirState.MISSING: "is in none of log.dirs",
}


def _missing(one: KnownLogDir, absent: int, properties: str | None) -> Finding:
    assert one.directory_id is not None
    directory_id = uuid_to_text(one.directory_id)
    return Finding(
        "log.dirs",
        Verdict.FAILURE,
        f"{one.path} {_MISSING[one.state]}, and was a log directory of this broker ({DIRECTORY_ID}"
        f" {directory_id}); partitions that are in no other one would be offline: {absent}",
        "mount its disk, or put it back into log.dirs; if it is gone for good:"
        f" plog log-dirs --forget {directory_id} {properties or ''}".rstrip(),
    )


def _log_dir(path: Path) -> Findings:
    there = path
    while not os.path.lexists(there):  # or nobody may look for it
        there = there.parent
    if not os.access(there, os.F_OK):
        text = f"{there} is a symbolic link to {os.readlink(there)}, which is not to be found"
        yield Finding("log.dirs", Verdict.FAILURE, text, "make that directory, or mount its disk")
        return
    if not there.is_dir():
        yield Finding("log.dirs", Verdict.FAILURE, f"{there} is no directory")
        return
    state = "is there" if there == path else f"will be made in {there}"
    user = psutil.Process().username()
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        what = "write" if os.access(there, os.X_OK) else "look"
        mend = "chown -R" if there == path else "install -d -m 750 -o"
        advice = f"{mend} {user} {path}, or run this as the user that the broker runs as"
        text = f"{there}: {user} may not {what} there"
        yield Finding("log.dirs", Verdict.FAILURE, text, advice)
        return
    if there == path and (refused := _refused_files(path)):
        more = f" and {len(refused) - NAMES_SHOWN} more" if len(refused) > NAMES_SHOWN else ""
        text = f"{user} may not write {', '.join(map(str, refused[:NAMES_SHOWN]))}{more}"
        advice = f"chown -R {user} {shlex.quote(str(path))}: another user has run a broker there"
        yield Finding("log.dirs", Verdict.FAILURE, text, advice)
        return
    if is_locked(path):
        state = "is in use by a running broker"
    yield Finding("log.dirs", Verdict.OK, f"{path} {state}")
    usage = shutil.disk_usage(there)
    yield _graded(
        "disk space",
        usage.free >= FREE_SHARE * usage.total,
        f"{path}: {usage.free // MB:,} MB of {usage.total // MB:,} MB are free",
        "retention.bytes and retention.ms bound what topics take; a full disk refuses records",
    )
    kind = _file_system(Path(os.path.realpath(there)))
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "locks and fdatasync of a network's file system may lie; use a local disk"
        yield Finding("file system", Verdict.WARNING, f"{path} is on {kind}", advice)
    elif kind in PASSING_FILE_SYSTEMS:
        advice = "what is there may not outlive a restart of the host; use a disk"
        yield Finding("file system", Verdict.WARNING, f"{path} is on {kind}", advice)
    else:
        yield Finding("file system", Verdict.OK, f"{path} is on {kind or 'an unknown one'}")


def _refused_files(log_dir: Path) -> list[Path]:
    """Return what of a broker's files and partitions this process may not write."""
    refused = []
    for directory, below, files in os.walk(log_dir):
        if directory == str(log_dir):
            below[:] = [name for name in below if parse_directory_name(name) is not None]
        # Of a directory that may not be read nothing else is seen.
        refused += [
            path
            for path in (Path(directory, name) for name in [*below, *files])
            if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))
        ]
    return sorted(refused)


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds a directory; "" when that cannot be told."""
    holds = ""
    kind = ""
    for part in psutil.disk_partitions(all=True):
        if path.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(holds):
            holds, kind = part.mountpoint, part.fstype
    return kind


def _own_places(settings: BrokerSettings, unit: Unit) -> Findings:
    """Say where the service has its log directories from, if not from where the host has them."""
    for path in (Path(text).absolute() for text in settings.log_dirs):
        if (place := unit.on_host(path)) != path:
            text = f"{unit.name} has {path} from {place}, which was looked at"
            yield Finding("log.dirs", Verdict.OK, text)


def _unit(settings: BrokerSettings, properties: str | None, unit: Unit | None) -> Findings:
    """Look at the log directories as the service would see them whose settings these are."""
    paths = [Path(os.path.realpath(text)) for text in settings.log_dirs]
    for path in paths:
        if not is_under(path, TEMPORARY):
            continue
        if unit is not None and unit.has_own_tmp:
            text = f"{path}: {unit.name} has a /tmp of its own, whose files go whenever it stops"
            advice = "every record would: name a directory under /var/lib/plog, or on another disk"
            yield Finding("log.dirs", Verdict.FAILURE, text, advice)
        else:
            advice = "good enough to try plog; records that are to stay belong elsewhere"
            text = f"{path}: hosts clear /tmp and /var/tmp when they start, or by age"
            yield Finding("log.dirs", Verdict.WARNING, text, advice)
    if unit is None:
        return
    lasting = [path for path in paths if not is_under(path, TEMPORARY)]
    if unit.own_root:
        text = f"{unit.name} has a root of its own ({unit.own_root}): what it may write is not told"
        advice = "its ReadWritePaths= and BindPaths= must let the broker write its log directories"
        yield Finding("log.dirs", Verdict.WARNING, text, advice)
    elif refused := [path for path in lasting if not unit.lets_write(path)]:
        text = f"{unit.name} does not let the broker write {', '.join(map(str, refused))}"
        advice = "a drop-in lets it: the commands below"
        yield Finding("log.dirs", Verdict.WARNING, text, advice, unit.drop_in(lasting))
    user = psutil.Process().username()
    if user != unit.user:
        text = f"{unit.name} runs as {unit.user}, and this looks as {user}"
        advice = f"runuser -u {unit.user} -- plog doctor {properties}"
        yield Finding("user", Verdict.WARNING, text, advice)


# -- listeners ---------------------------------------------------------------------------------


def _listeners(settings: BrokerSettings, *, is_running: bool) -> Findings:
    # All are held until the last is bound: two may name one place.
    with ExitStack() as held:
        if (address := settings.metrics_listener) is not None:
            place = f"metrics.listener {address.host}:{address.port}"
            yield _address("metrics", place, address.host, address.port, is_running, held)
        for one in settings.parsed_listeners():
            place = f"{one.name}://{one.host}:{one.port}"
            yield _address("listeners", place, one.host, one.port, is_running, held)
            if one.name.upper() == KRAFT_LISTENER:
                text = (
                    f"{place} looks like that of a KRaft controller, and plog would serve clients"
                )
                advice = "out of listeners, advertised.listeners, listener.security.protocol.map"
                yield Finding("listeners", Verdict.WARNING, text, advice)
            everywhere = one.host in ("", "0.0.0.0", "::")
            if everywhere and one.advertised_host.startswith(LOOPBACK):
                advice = "clients elsewhere would look for the broker on their own host"
                text = f"{place} is told to clients as {one.advertised_host}"
                yield Finding("listeners", Verdict.WARNING, text, advice)
    most = _kernel("net.core.somaxconn")
    wanted = settings.socket_listen_backlog_size
    if most is not None:
        yield _graded(
            "listeners",
            wanted <= most,
            f"socket.listen.backlog.size={wanted}, the kernel's somaxconn is {most}",
            f"sysctl net.core.somaxconn={wanted}",
        )


def _address(
    what: str, place: str, host: str, port: int, is_running: bool, held: ExitStack
) -> Finding:
    try:
        held.enter_context(bind(place, host, port))
    except ConfigError as error:
        number = (error.__cause__.errno or 0) if isinstance(error.__cause__, OSError) else 0
        if is_running and number == errno.EADDRINUSE:
            return Finding(what, Verdict.OK, f"{place} is taken, as a broker is running")
        return Finding(what, Verdict.FAILURE, str(error), _BINDING.get(number, ""))
    return Finding(what, Verdict.OK, f"{place} is free")


_BINDING = {
    errno.EADDRINUSE: "another process listens there, or another listener of these settings",
    errno.EADDRNOTAVAIL: "name an address of this host (`ip address`), or 0.0.0.0 for all",
    errno.EACCES: "ports below 1024 are root's; the unit may bind none of them",
}


# -- the host ----------------------------------------------------------------------------------


class _Buffer(NamedTuple):
    """Of client connections, in one direction."""

    key: str
    wanted: int
    limit: str
    """The kernel's setting that bounds it."""
    costs: str
    """What as little as Kafka's properties say was measured to take."""


def _buffers(settings: BrokerSettings) -> Findings:
    sent, received = settings.socket_send_buffer_bytes, settings.socket_receive_buffer_bytes
    for key, wanted, limit, costs in (
        _Buffer("socket.send.buffer.bytes", sent, "net.core.wmem_max", "a fifth off large fetches"),
        _Buffer(
            "socket.receive.buffer.bytes", received, "net.core.rmem_max",
            "a quarter off batches of 64 KB",
        ),
    ):  # fmt: skip
        if wanted < 0:
            continue
        most = _kernel(limit)
        if wanted <= KAFKAS_BUFFER:
            text = f"{key}={wanted} takes {costs}, or more"
            advice = f"leave {key} out, whatever Kafka's file says: the kernel grows buffers itself"
            yield Finding("socket buffers", Verdict.WARNING, text, advice)
        elif most is not None:
            yield _graded(
                "socket buffers",
                wanted <= most,
                f"{key}={wanted}, the kernel's {limit} is {most}, and cuts what is above",
                f"sysctl {limit}={wanted}, or leave {key} out: the kernel grows buffers itself",
            )


def _memory(settings: BrokerSettings) -> Findings:
    total = psutil.virtual_memory().total
    queued = settings.queued_max_request_bytes
    if queued < 0:  # which the broker takes so
        queued = BrokerSettings({}).queued_max_request_bytes
    yield _graded(
        "memory",
        queued <= total // 4,
        f"requests may take {queued // MB:,} MB (queued.max.request.bytes) of {total // MB:,} MB",
        "the page cache, which the rest is for, is what makes reading fast",
    )


def _host() -> Findings:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _graded(
        "limits",
        hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS,
        f"{hard:,} descriptors may be open",
        f"LimitNOFILE= of the unit, or ulimit -Hn: at least {DESCRIPTORS:,}",
    )
    for name, is_well, wanted in _KERNEL:
        value = _kernel(name)
        if value is not None:
            yield _graded(
                "kernel", is_well(value), f"{name} is {value:,}", f"sysctl {name}={wanted}"
            )
    by = crc32c.implementation()
    yield _graded(
        "processor",
        by != "table",
        f"CRC-32C by {by}",
        "without SSE4.2 or ARMv8's CRC every record takes some ten times as long to check",
    )


_KERNEL: tuple[tuple[str, Callable[[int], bool], int], ...] = (
    ("vm.max_map_count", lambda value: value >= MAPPINGS, MAPPINGS),
    ("vm.swappiness", lambda value: value <= SWAPPINESS, 1),
    ("vm.overcommit_memory", lambda value: value != 2, 0),
)


def _kernel(name: str) -> int | None:
    """Return one of the kernel's settings; None where it has none of that name."""
    try:
        return int((KERNEL / name.replace(".", "/")).read_text())
    except (OSError, ValueError):
        return None
