"""The process that is fuzzed: libFuzzer, loaded before Python, calls a target again and again.

    python -m tests.fuzz.child TARGET KERNELS [libFuzzer's options and corpora]

KERNELS is the directory of instrumented kernels, which are taken instead of the checkout's; empty
for those. Anything that a target raises ends the process as a crash does.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
import traceback
from types import FrameType
from typing import Any

import plog._native

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
        self._numbers: dict[tuple[Any, int], int] = {}
        for announce, table in (
            (engine["__sanitizer_cov_8bit_counters_init"], self._counters),
            (engine["__sanitizer_cov_pcs_init"], self._places),
        ):
            start = ctypes.addressof(table)
            announce(ctypes.c_void_p(start), ctypes.c_void_p(start + ctypes.sizeof(table)))

    def on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        return self.on_line if any(part in name for part in PARSERS) else None

    def on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            key = frame.f_code, frame.f_lineno
            number = self._numbers.setdefault(key, len(self._numbers)) % PLACES
            if self._counters[number] < 255:
                self._counters[number] += 1
        return self.on_line


def main(name: str, kernels: str, options: list[str]) -> None:
    if kernels:
        plog._native.__path__.insert(0, kernels)
    from plog._native import wire

    assert not kernels or str(wire.__file__).startswith(kernels), wire.__file__

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
    itself = shlex.join([sys.executable, "-m", "tests.fuzz.child", name, kernels])
    arguments = [word.encode() for word in (itself, *options)]
    count = ctypes.c_int(len(arguments))
    vector = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    pointer = ctypes.cast(vector, ctypes.c_void_p)
    callback = CALLBACK(run_one)
    engine.LLVMFuzzerRunDriver(ctypes.byref(count), ctypes.byref(pointer), callback)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
