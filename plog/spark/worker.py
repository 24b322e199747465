"""Tunes the Python process in which Spark runs tasks, one after another."""

from __future__ import annotations

import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""

_settled = False


def set_up_worker() -> None:
    """Set up the process for reading and writing; idempotent.

    Spark's worker collects garbage after every task, and walks every module of Spark and Arrow:
    tens of milliseconds per task. Freezing hides the imported modules from the collector.
    malloc keeps the buffers of responses and batches, some megabytes each. By default it returns
    them to the system, and page faults then take a quarter of the reader's time.
    """
    global _settled
    if _settled:
        return
    _settled = True
    gc.freeze()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; other libraries decide for themselves
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        libc.mallopt(M_TRIM_THRESHOLD, 128 * 1024 * 1024)
