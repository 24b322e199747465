from typing import Final

# For tests only: nothing in plog imports it.

class Fault:
    """One rule: what the matching calls do instead of (or before) the system call."""

    def __init__(
        self,
        call: str,  # one of CALLS; of "is_resident" an errno means no
        *,
        errno: int = 0,  # fail with it
        short_bytes: int = -1,  # write or read at most so many, and report that
        delay_us: int = 0,
        after: int = 0,  # let so many matching calls through first
        times: int = -1,  # then act on so many; -1 for ever
        fd: int = -1,  # this descriptor only
        path_prefix: str = "",  # descriptors of files below this path only (by /proc/self/fd)
    ) -> None: ...

def inject(faults: list[Fault]) -> None:
    """Replace the table's functions by ones that consult `faults`; an empty list restores the
    system calls.
    """

def shift_clock(ms: int) -> None:
    """Let now_ms run ahead (or behind) by `ms` from now on."""

def set_transition(stage: int, event: int, after: int) -> int:
    """Change the stage after an event in the table of requests (0: none); return the one before."""

def record_durability(journal_path: str) -> None:
    """Write down, in a file that survives kill -9, which bytes of which files have been synced.

    A power cut is then the kill, followed by `tests/crash` cutting every file back to (a random
    point at or past) what the journal says is durable. Lines: `sync <dev> <ino> <size> <path>`
    after a successful fdatasync or fsync of a file, `dir <path>` after one of a directory. Written
    with O_APPEND in one write each.
    """

CALLS: Final[tuple[str, ...]]
