"""Builds the Cython kernels: one extension for each plog/_native/*.pyx.

PLOG_BUILD chooses the build: `release` (the default), `debug` (bounds checks,
uninitialised views and C assertions), `asan` (debug under AddressSanitizer and
UndefinedBehaviorSanitizer) or `tsan` (debug under ThreadSanitizer); docs/TESTING.md
says how to run the last two. `fuzz` is clang's, and tests/fuzz has it made beside the
others, of the same C; PLOG_KERNELS names those it needs. `none` builds nothing:
bin/lib/setup.sh has pip install plog beside the compiler. Directives live here and not in
file headers, so that one switch changes them all.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

BUILD = os.environ.get("PLOG_BUILD", "release")
WANTED = os.environ.get("PLOG_KERNELS", "").split()
NATIVE = Path("plog/_native")
LAST_BUILD = Path("build/plog-build")
# Code of Cython that each kernel would hold a copy of, and compile: a third of the compiler's time.
SHARED = "plog._native.cython_shared"
PROCESSORS = os.cpu_count() or 1

# What a kernel links beyond libc, by module name.
LIBRARIES = {
    "codec_gzip": ["z"],
    "codec_lz4": ["lz4"],
    "codec_snappy": ["snappy"],
    "codec_zstd": ["zstd"],
}

# C sources beside a kernel's own, by module name: programs that are no part of the broker.
LOAD = Path("asv_bench/load")
SOURCES = {
    "load": [str(path) for path in sorted(LOAD.glob("*.c")) if path.stem not in ("main", "serve")],
}

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
COVERAGE = "-fsanitize=fuzzer-no-link"
# Half of the C is Cython's own: to instrument that too would take clang twice as long.
UNINSTRUMENTED = Path("tests/fuzz/uninstrumented.txt")
LEFT_OUT = [f"-fsanitize-{of}ignorelist={UNINSTRUMENTED}" for of in ("", "coverage-")]
# A null pointer that is read ends the process anyway: a check at each takes an eighth of the time.
FUZZED = ["-O0", "-gline-tables-only", *SANITIZERS, "-fno-sanitize=null", COVERAGE, *LEFT_OUT]
COMPILE = {
    # With lines and functions for profilers and backtraces. Python's own -g costs a quarter of the
    # compiler's time, and files eight times as large.
    "release": ["-O3", "-g1", "-fno-strict-aliasing", "-Wall", "-Wno-unused-function"],
    "debug": ["-O1", "-g", "-fno-strict-aliasing", "-UNDEBUG"],
    "asan": ["-O1", "-g", "-fno-strict-aliasing", "-UNDEBUG", *SANITIZERS],
    "tsan": ["-O1", "-g", "-fno-strict-aliasing", "-UNDEBUG", "-fsanitize=thread"],
    "fuzz": ["-fno-strict-aliasing", "-w", *FUZZED],
}
LINK = {
    "release": ["-pthread"],
    "debug": ["-pthread"],
    "asan": ["-pthread", *SANITIZERS],
    "tsan": ["-pthread", "-fsanitize=thread"],
    "fuzz": ["-pthread", *SANITIZERS, COVERAGE],
}


def last_build() -> str:
    """Return the kind of build that the C files are there for; nothing if they are not all."""
    return LAST_BUILD.read_text() if LAST_BUILD.exists() else ""


KIND = last_build() or "release" if BUILD == "fuzz" else BUILD
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": KIND != "release",
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": KIND != "release",
    "embedsignature": False,
}


def build_of(kernel: str) -> str:
    """The load generator has one thread, in a process of its own: there is nothing to race with."""
    return "release" if kernel == "load" and BUILD == "tsan" else BUILD


def extension(source: Path) -> Extension:
    """Return the extension of a source, compiled as this build is."""
    kernel = source.stem
    return Extension(
        f"plog._native.{kernel}",
        [str(source), *SOURCES.get(kernel, [])],
        include_dirs=[str(NATIVE), str(LOAD)],
        libraries=LIBRARIES.get(kernel, []),
        depends=["setup.py", *(str(path) for at in (NATIVE, LOAD) for path in at.glob("*.h"))],
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=COMPILE[build_of(kernel)],
        extra_link_args=LINK[build_of(kernel)],
    )


def extensions() -> list[Extension]:
    """Return one for each kernel that is wanted (all, if none is named), and what they share."""
    sources = sorted(NATIVE.glob("*.pyx"))
    kernels = [extension(source) for source in sources if not WANTED or source.stem in WANTED]
    return [extension(NATIVE / "cython_shared.c"), *kernels]


def kernels() -> list[Extension]:
    """Translate what has changed, or everything for another build; gcc follows the C files.

    What another kind of build has left would hide what this one is for, and so would C files that
    are older than the directives in this file.
    """
    is_other = last_build() != KIND or LAST_BUILD.stat().st_mtime < Path(__file__).stat().st_mtime
    LAST_BUILD.parent.mkdir(exist_ok=True)
    LAST_BUILD.unlink(missing_ok=True)
    translated: list[Extension] = cythonize(
        extensions(),
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=SHARED,
        force=is_other,
        nthreads=PROCESSORS,
    )
    if not (WANTED and is_other):
        LAST_BUILD.write_text(KIND)
    return translated


setup(
    ext_modules=[] if BUILD == "none" else kernels(),
    options={"build_ext": {"parallel": PROCESSORS}},
)
