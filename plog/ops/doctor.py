"""What would keep a broker from running well on this host, found before it starts.

Owns the checks and their advice. Looks and never writes: a broker may be running with the same
settings. Each check stands alone, so that all that is wrong is told at once.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import psutil

from plog._native import crc32c
from plog.errors import ConfigError, InconsistentLogDirs
from plog.settings.definitions import BrokerSettings
from plog.settings.server_properties import read
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import LOCK_FILE, LogDir, common_identity

MB = 1 << 20
DESCRIPTORS = 100_000
"""Three for each segment, one for each client; the unit's LimitNOFILE is ten times that."""
MAPPINGS = 262_144
"""Two indexes of each segment that is read are mapped; the kernel's default is 65,530."""
SWAPPINESS = 10
FREE_SHARE = 0.1
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})
PASSING_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "overlay"})
LOOPBACK = ("127.", "localhost", "::1")


class Verdict(Enum):
    """What a finding means."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    """The broker would not start, or not serve what it should."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    text: str
    advice: str = ""


Findings = Iterator[Finding]


def examine(properties: str | None, overrides: tuple[str, ...] = ()) -> list[Finding]:
    """Look at everything that a broker with these settings would meet here."""
    try:
        settings, warnings = read(properties, overrides)
    except ConfigError as error:
        found = [Finding("settings", Verdict.FAILURE, line) for line in str(error).splitlines()]
        return [*found, *_host()]
    found = [Finding("settings", Verdict.WARNING, text) for text in warnings]
    if not warnings:
        place = properties or "every key's default"
        found.append(Finding("settings", Verdict.OK, f"{place}: every key is known and obeyed"))
    for check in (_log_dirs, _listeners, _memory):
        found += check(settings)
    return [*found, *_host()]


def _graded(
    what: str, is_well: bool, text: str, advice: str, verdict: Verdict = Verdict.WARNING
) -> Finding:
    return Finding(what, Verdict.OK, text) if is_well else Finding(what, verdict, text, advice)


# -- log directories ---------------------------------------------------------------------------


def _log_dirs(settings: BrokerSettings) -> Findings:
    paths = [Path(text).absolute() for text in settings.log_dirs]
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            yield Finding("log.dirs", Verdict.FAILURE, f"{path} is named {count} times")
    for path in paths:
        yield from _log_dir(path)
    try:
        common_identity([LogDir(Filesystem(), path) for path in paths], settings.broker_id)
    except InconsistentLogDirs as error:
        advice = "each broker has directories of its own; broker.id must be the one they had"
        yield Finding("log.dirs", Verdict.FAILURE, str(error), advice)
    except OSError as error:
        yield Finding("log.dirs", Verdict.FAILURE, str(error))


def _log_dir(path: Path) -> Findings:
    there = path
    while not there.exists():
        there = there.parent
    if there.exists() and not there.is_dir():
        yield Finding("log.dirs", Verdict.FAILURE, f"{there} is no directory")
        return
    state = "is there" if there == path else f"will be made in {there}"
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        user = psutil.Process().username()
        advice = f"chown {user} {there}, or run this as the user that the broker runs as"
        yield Finding("log.dirs", Verdict.FAILURE, f"{there}: {user} may not write there", advice)
        return
    if _is_locked(path / LOCK_FILE):
        state = "is in use by a running broker"
    yield Finding("log.dirs", Verdict.OK, f"{path} {state}")
    usage = shutil.disk_usage(there)
    yield _graded(
        "disk space",
        usage.free >= FREE_SHARE * usage.total,
        f"{path}: {usage.free // MB:,} MB of {usage.total // MB:,} MB are free",
        "retention.bytes and retention.ms bound what topics take; a full disk refuses records",
    )
    kind = _file_system(there)
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "locks and fdatasync of a network's file system may lie; use a local disk"
        yield Finding("file system", Verdict.WARNING, f"{path} is on {kind}", advice)
    elif kind in PASSING_FILE_SYSTEMS:
        advice = "what is there may not outlive a restart of the host; use a disk"
        yield Finding("file system", Verdict.WARNING, f"{path} is on {kind}", advice)
    else:
        yield Finding("file system", Verdict.OK, f"{path} is on {kind or 'an unknown one'}")


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds a directory; "" when that cannot be told."""
    holds = ""
    kind = ""
    for part in psutil.disk_partitions(all=True):
        if path.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(holds):
            holds, kind = part.mountpoint, part.fstype
    return kind


# -- listeners ---------------------------------------------------------------------------------


def _listeners(settings: BrokerSettings) -> Findings:
    own = {str(path) for path in settings.log_dirs}
    is_running = any(_is_locked(Path(path).absolute() / LOCK_FILE) for path in own)
    for one in settings.parsed_listeners():
        place = f"{one.name}://{one.host}:{one.port}"
        yield _address("listeners", place, one.host, one.port, is_running)
        everywhere = one.host in ("", "0.0.0.0", "::")
        if everywhere and one.advertised_host.startswith(LOOPBACK):
            advice = "clients elsewhere would look for the broker on their own host"
            text = f"{place} is told to clients as {one.advertised_host}"
            yield Finding("listeners", Verdict.WARNING, text, advice)
    if (address := settings.metrics_listener) is not None:
        place = f"metrics.listener {address.host}:{address.port}"
        yield _address("metrics", place, address.host, address.port, is_running)
    most = _number("/proc/sys/net/core/somaxconn")
    wanted = settings.socket_listen_backlog_size
    if most is not None:
        yield _graded(
            "listeners",
            wanted <= most,
            f"socket.listen.backlog.size={wanted}, the kernel's somaxconn is {most}",
            f"sysctl net.core.somaxconn={wanted}",
        )


def _address(what: str, place: str, host: str, port: int, is_running: bool) -> Finding:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.create_server(address[:2], family=family):
            return Finding(what, Verdict.OK, f"{place} is free")
    except socket.gaierror as error:
        return Finding(what, Verdict.FAILURE, f"{place}: {host!r} does not resolve: {error}")
    except OSError as error:
        if is_running:
            return Finding(what, Verdict.OK, f"{place} is taken, as a broker is running")
        advice = "another process listens there, or the address is not this host's"
        return Finding(what, Verdict.FAILURE, f"{place}: {os.strerror(error.errno or 0)}", advice)


# -- the host ----------------------------------------------------------------------------------


def _memory(settings: BrokerSettings) -> Findings:
    total = psutil.virtual_memory().total
    queued = settings.queued_max_request_bytes
    yield _graded(
        "memory",
        0 < queued <= total // 4 or queued <= 0,
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
        value = _number("/proc/sys/" + name.replace(".", "/"))
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


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
