"""The process that is fuzzed: libFuzzer, loaded before Python, calls a target again and again.

    python -m tests.fuzz.child KERNELS [TARGET [libFuzzer's options and corpora]]

KERNELS is the directory of instrumented kernels, which are taken instead of the checkout's; empty
for those. Without a target it forks a process for each request (tests/forks.py). A request has a
directory for temporary files, then the target and its options. Anything that a target raises ends
the process as a crash does.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shlex
import sys
import tempfile
import traceback
from types import CodeType, FrameType
from typing import Any

import plog._native
from tests.forks import serve

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
PLACES = 1 << 16
PARSERS = (
    "plog/protocol/",
    "plog/storage/",
    "plog/settings/",
    "plog/coordinator/",
    "<decode ",
)
"""In the file names of what is Python and parses: modules, and what the codec compiles."""


class Lines:
    """Tells libFuzzer which lines of Python a run took, as instrumented C does of its branches."""

    def __init__(self, engine: ctypes.CDLL) -> None:
        self._counters = (ctypes.c_uint8 * PLACES)()
        self._places = (ctypes.c_size_t * (2 * PLACES))(*range(1, 2 * PLACES + 1))
        self._tracers: dict[int, tuple[CodeType, Any]] = {}
        self._numbers = itertools.count()
        for announce, table in (
            (engine["__sanitizer_cov_8bit_counters_init"], self._counters),
            (engine["__sanitizer_cov_pcs_init"], self._places),
        ):
            start = ctypes.addressof(table)
            announce(ctypes.c_void_p(start), ctypes.c_void_p(start + ctypes.sizeof(table)))

    def on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        # By its id, and kept alive for that: to hash code means to hash all its parts.
        known = self._tracers.get(id(code))
        if known is None:
            is_parser = any(part in code.co_filename for part in PARSERS)
            known = code, self._tracer() if is_parser else None
            self._tracers[id(code)] = known
        return known[1]

    def _tracer(self) -> Any:
        """Return what counts the lines of one function."""
        counters = self._counters
        numbers: dict[int, int] = {}

        def on_line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                line = frame.f_lineno
                number = numbers.get(line)
                if number is None:
                    number = numbers[line] = next(self._numbers) % PLACES
                if counters[number] < 255:
                    counters[number] += 1
            return on_line

        return on_line


def take(kernels: str) -> None:
    """Import the targets with these kernels."""
    if kernels:
        plog._native.__path__.insert(0, kernels)
    import tests.fuzz.targets  # noqa: F401

    imported = {
        name: str(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith("plog._native.")
    }
    assert imported
    assert all(place.startswith(kernels) for place in imported.values()), imported


def fuzz(kernels: str, name: str, options: list[str]) -> None:
    from tests.fuzz.targets import IN_PYTHON, PLANTED, TARGETS

    target = (TARGETS | PLANTED)[name]
    engine = ctypes.CDLL(None)
    view = ctypes.pythonapi.PyMemoryView_FromMemory
    view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    view.restype = ctypes.py_object

    lines = Lines(engine) if name in IN_PYTHON else None

    def run_one(address: int, size: int) -> int:
        try:
            if lines is not None:
                sys.settrace(lines.on_call)
            target(view(address, size, 0x100))
        except BaseException:  # noqa: BLE001 - whatever it was, it is a finding
            sys.settrace(None)
            traceback.print_exc()
            sys.stderr.flush()
            os.abort()
        finally:
            sys.settrace(None)
        return 0

    # To merge corpora, libFuzzer has the shell start such processes anew.
    itself = shlex.join([sys.executable, "-m", "tests.fuzz.child", kernels, name])
    arguments = [word.encode() for word in (itself, *options)]
    count = ctypes.c_int(len(arguments))
    vector = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    pointer = ctypes.cast(vector, ctypes.c_void_p)
    callback = CALLBACK(run_one)
    engine.LLVMFuzzerRunDriver(ctypes.byref(count), ctypes.byref(pointer), callback)


def main(kernels: str, *arguments: str) -> None:
    take(kernels)
    if not arguments:
        temporary, *arguments = serve()["arguments"]
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
    name, *options = arguments
    fuzz(kernels, name, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
