"""The Python process that Spark runs tasks in, one after another."""

from __future__ import annotations

import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""

_settled = False


def set_up_worker() -> None:
    """Set up the process for reading and writing; once, however often it is called.

    Spark's worker collects garbage after every task, which walks every module of Spark and Arrow,
    tens of milliseconds a task: what is imported by now is taken out of the collector's sight.
    And malloc is told to keep the buffers of answers and batches, some megabytes each, instead of
    returning them to the system only to fault in every page anew: a quarter of the reader's time.
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
