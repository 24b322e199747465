"""The state of this host's clock, as the kernel knows it.

Reads the kernel's clock discipline (adjtimex(2)), which NTP daemons keep up to date. Never sets a
clock.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

UNSYNCHRONISED = 0x40
"""STA_UNSYNC of `status`."""
NANOSECONDS = 0x2000
"""STA_NANO of `status`: `offset` is in nanoseconds."""


class _Timex(ctypes.Structure):
    """`struct timex` of 64-bit Linux, with the fields that follow `status` as one block."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 24),
    )


class ClockState(NamedTuple):
    """How far the kernel trusts its clock."""

    is_synchronised: bool
    max_error_s: float


def kernel_clock() -> ClockState | None:
    """Return the state of the kernel's clock; None if the kernel does not say."""
    timex = _Timex()  # modes 0: only reads
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state < 0:  # a container may forbid the call
        return None
    return ClockState(not timex.status & UNSYNCHRONISED, timex.maxerror / 1e6)
