"""What agreement tests share: comparing two engines, and surviving a crash of one.

`outcome` makes a call's value or error comparable. `forked` runs many inputs in
a child process under limits of memory and time, so that a segmentation fault, a
hang or a runaway allocation fails one test instead of the whole run, and names
the input that did it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import resource
import signal
import struct
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from plog.errors import PlogError

REFUSALS = (PlogError, OverflowError, ValueError, TypeError, BufferError)
"""What a kernel may raise on purpose. Anything else (struct.error, IndexError) fails the test."""


def outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Return ("value", it) or ("error", the exception's type, its text)."""
    try:
        return "value", function(*args)
    except REFUSALS as refusal:
        return "error", type(refusal), str(refusal)


def run_seed() -> int:
    """Return the seed of a random test, and print it: PLOG_TEST_SEED repeats what it did.

    Else each test has its own of PLOG_RUN_SEED, which CI gives; without that too, a new one.
    """
    if given := os.environ.get("PLOG_TEST_SEED"):
        seed = int(given)
    elif run := os.environ.get("PLOG_RUN_SEED"):
        test, _, _ = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")  # without its phase
        seed = zlib.crc32(f"{run} {test}".encode())
    else:
        seed = random.randrange(2**32)
    print(f"PLOG_TEST_SEED={seed}")
    return seed


def mutations(originals: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged copies: bytes and bits changed, runs dropped or inserted, ends cut."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            if not data:
                break
            at = rng.randrange(len(data))
            match rng.randrange(8):
                case 0 | 1:
                    data[at] = rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF))
                case 2:
                    data[at] = rng.randrange(256)
                case 3 | 4:
                    data[at] ^= 1 << rng.randrange(8)
                case 5:
                    del data[at : at + rng.randrange(1, 9)]
                case 6:
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
                case 7:
                    del data[at:]
        yield bytes(data)


def fork() -> int:
    """Fork without Python's warning about threads: 0 in the child, its id in the parent.

    The threads there are, of numpy's and pyarrow's pools, idle between tests: they hold
    no lock that a child would wait for, and no child gives them work.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
        return os.fork()


def forked(
    check: Callable[[Any], None],
    cases: Iterable[Any],
    *,
    memory_bytes: int = 512 << 20,
    cpu_s: int = 120,
    wall_s: int = 240,
) -> int:
    """Run `check(case)` for each case in a child process; return how many there were.

    `cases` must be reproducible (fixed or seeded values): the child consumes its
    copy and counts, and this process finds the case in its own by the number.

    Raises:
        AssertionError: a check failed, the child crashed, used more processor time than
            `cpu_s`, took longer than `wall_s`, or mapped more than `memory_bytes` beyond
            what it started with.
    """
    with mmap.mmap(-1, mmap.PAGESIZE) as progress:
        readable, writable = os.pipe()
        child = fork()
        if child == 0:
            os.close(readable)
            _run_child(check, cases, progress, writable, memory_bytes, cpu_s, wall_s)
        os.close(writable)
        with os.fdopen(readable, "rb") as pipe:
            report = pipe.read().decode("utf-8", "replace")
        _, status = os.waitpid(child, 0)
        (number,) = struct.unpack_from("q", progress)
    if status == 0:
        return number
    case = next(itertools.islice(cases, number, None), "none: between or after the cases")
    how = "failed"
    if os.WIFSIGNALED(status):
        how = f"died by {signal.Signals(os.WTERMSIG(status)).name}"
    raise AssertionError(f"the child {how} at case {number}: {case!r}\n{report}")


def _run_child(
    check: Callable[[Any], None],
    cases: Iterable[Any],
    progress: mmap.mmap,
    writable: int,
    memory_bytes: int,
    cpu_s: int,
    wall_s: int,
) -> NoReturn:
    status = 1
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            mapped = int(statm.read().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # Processor time: on a busy machine the child may take longer.
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 60))
        signal.alarm(wall_s)
        number = 0
        struct.pack_into("q", progress, 0, number)
        for case in cases:
            check(case)
            number += 1
            struct.pack_into("q", progress, 0, number)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it was, it must reach the parent's report
        os.write(writable, traceback.format_exc().encode()[-4096:])
    finally:
        os._exit(status)
