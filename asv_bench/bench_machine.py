"""What processes take: CPU time, memory, and what the machine did beside them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

CPU_CLOCK = 2
"""CPUCLOCK_SCHED, in the number that Linux has for a process's clock (clock_getcpuclockid)."""


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process, of threads that have ended too: a JVM's come and go.

    /proc/PID/stat counts in ticks of 10 ms, and /proc/PID/task knows of living threads only.
    """
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


def wake_ups_of(pid: int) -> int:
    """Return how often the living threads of a process have stopped to wait, since their start."""
    return sum(
        _number_in(status.read_text(), "voluntary_ctxt_switches")
        for status in Path(f"/proc/{pid}/task").glob("*/status")
    )


def busy_cpu_s() -> float:
    """Return what all processors together were not idle for, since the machine's start."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """In MB of 10**6 bytes; in PSS pages that others share count in part."""

    rss_mb: float
    pss_mb: float


def memory_of(pid: int) -> Memory:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return Memory(*(_number_in(rollup, key) * 1024 / 1e6 for key in ("Rss", "Pss")))


def _number_in(text: str, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no {key} in what /proc says")
    return int(found[1])


class Watch:
    """CPU time of a server and of its clients from now on, and of everything else.

    Args:
        clients: processes beside this one.
    """

    def __init__(self, server: int, clients: Iterable[int] = ()) -> None:
        self._server, self._clients = server, tuple(clients)
        self._begun = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        mine = time.process_time() + sum(map(cpu_s_of, self._clients))
        return time.monotonic(), cpu_s_of(self._server), mine, busy_cpu_s()

    def figures(self) -> dict[str, float]:
        """Return what has been taken so far: seconds, and processors beside server and clients."""
        seconds, server, clients, busy = (
            now - then for now, then in zip(self._read(), self._begun, strict=True)
        )
        return {
            "watched_s": seconds,
            "server_cpu_s": server,
            "client_cores": clients / seconds,
            "foreign_cores": (busy - server - clients) / seconds,
        }
