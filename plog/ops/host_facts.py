"""Describes this host and the process of a broker on it, for a person who cannot log in there.

Reads /proc and the installed packages. Never needs root; without it, some files of another user's
process stay unread.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from plog import __version__
from plog._native import crc32c
from plog.storage.log_dir import LOCK_FILE

PROC = Path("/proc")
PROCESS_FILES = ("cmdline", "status", "limits", "io", "stat", "smaps_rollup", "cgroup", "mountinfo")
HOST_FILES = (
    *("mounts", "meminfo", "loadavg", "uptime"),
    *("pressure/cpu", "pressure/io", "pressure/memory"),
)
KERNEL = (
    *("vm.max_map_count", "vm.swappiness", "vm.overcommit_memory", "vm.dirty_ratio"),
    *("net.core.somaxconn", "net.core.rmem_max", "net.core.wmem_max", "fs.file-max"),
)
SHOWN = re.compile(
    r"PLOG_.*|KAFKA_.*|PYTHON.*|LANG|LC_.*|TZ|MALLOC_.*|PATH|JOURNAL_STREAM|NOTIFY.*"
)
"""Variables whose values are shown; the others may be anything."""


def versions() -> dict[str, Any]:
    """Return the versions of plog, Python, the kernel and the libraries."""
    libraries: dict[str, str] = {}
    for requirement in metadata.requires("plog") or []:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        is_optional = "extra ==" in requirement
        if is_optional and 'extra == "spark"' not in requirement:
            continue
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if not is_optional:
                libraries[name] = "not installed"
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        system = ""
    return {
        "plog": __version__,
        "crc32c": crc32c.implementation(),
        "python": sys.version,
        "executable": sys.executable,
        "kernel": " ".join(platform.uname()),
        "system": system,
        "libc": " ".join(platform.libc_ver()),
        "libraries": dict(sorted(libraries.items())),
    }


def host() -> dict[str, Any]:
    """Return processors, memory, limits, mounts and kernel settings of this host."""
    kernel = {name: _read(PROC / "sys" / name.replace(".", "/")).strip() for name in KERNEL}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "processors": os.cpu_count(),
        "usable_processors": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory()._asdict(),
        "swap": psutil.swap_memory()._asdict(),
        "descriptors": {"soft": soft, "hard": hard},
        "kernel": kernel,
        "proc": {name: _read(PROC / name).splitlines() for name in HOST_FILES},
    }


def disks(log_dirs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the space of log directories, and the sizes of the files and partitions in them."""
    found: list[dict[str, Any]] = []
    for path in log_dirs:
        try:
            usage = psutil.disk_usage(str(path))._asdict()
            entries = _sizes(path)
        except OSError as error:
            found.append({"path": str(path), "error": str(error)})
            continue
        found.append({"path": str(path), "disk": usage, "bytes": entries})
    return found


def broker_process(log_dirs: Sequence[Path]) -> int:
    """Return the id of the process that holds the lock of a log directory.

    Raises:
        ProcessLookupError: no visible process holds one.
    """
    locks = {os.path.realpath(path / LOCK_FILE) for path in log_dirs}
    for fd in PROC.glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd) in locks and int(fd.parts[2]) != os.getpid():
                return int(fd.parts[2])
        except OSError:  # ended, closed or another user's
            continue
    raise ProcessLookupError("no process of a broker is visible: run this as root or as its user")


def process(pid: int) -> dict[str, Any]:
    """Return what /proc says of a process and its threads."""
    directory = PROC / str(pid)
    threads = []
    for task in sorted(directory.glob("task/*"), key=lambda path: int(path.name)):
        state = _read(task / "stat").rpartition(")")[2].split()[:1]
        threads.append(
            {
                "id": int(task.name),
                "name": _read(task / "comm").strip(),
                "state": "".join(state),
                "waits_in": _read(task / "wchan"),
            }
        )
    files = {name: _read(directory / name).replace("\0", "\n") for name in PROCESS_FILES}
    return {
        "id": pid,
        **{name: text.splitlines() for name, text in files.items()},
        "variables": shown_variables(variables(pid)),
        "descriptors": _count(directory / "fd"),
        "threads": threads,
    }


def variables(pid: int) -> dict[str, str]:
    """Return all variables of a process; none if this user may not read them."""
    pairs = _read(PROC / str(pid) / "environ").split("\0")
    return dict(one.split("=", 1) for one in pairs if "=" in one)


def shown_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that concern plog."""
    return {name: given[name] for name in sorted(given) if SHOWN.fullmatch(name)}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return f"({error.strerror})"


def _count(directory: Path) -> int | str:
    try:
        return len(os.listdir(directory))
    except OSError as error:
        return f"({error.strerror})"


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the entries in a log directory, without those deleted meanwhile."""
    found: dict[str, int] = {}
    for name in sorted(os.listdir(directory)):
        with suppress(FileNotFoundError):
            found[name] = _size(directory / name)
    return found


def _size(path: Path) -> int:
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    size = 0
    for one in path.iterdir():
        with suppress(FileNotFoundError):
            size += one.lstat().st_size
    return size
