"""Processes that stand still. SIGSTOP alone takes effect later on a busy host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until


def suspend(*pids: int) -> None:
    """Stop processes where they are, and wait until every thread of theirs stands."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        until(lambda pid=pid: set(_thread_states(pid)) == {"T"}, "suspended")


def resume(*pids: int) -> None:
    """Let processes go on."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def _thread_states(pid: int) -> Iterator[str]:
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            yield stat.read_text().rpartition(")")[2].split()[0]
        except OSError:  # the thread has ended
            yield "X"
