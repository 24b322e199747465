"""The C servers that a broker is compared with: built from asv_bench/load, started, stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from plog.ops.load import LoadError, arguments_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "asv_bench" / "load"
CRC = ROOT / "plog" / "_native" / "crc32c_impl.h"
PROGRAM = ROOT / "build" / "load"
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra")
STOP_TIMEOUT_S = 10.0


def warn(text: str) -> None:
    """Print a warning beside the output of the measurements."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def build() -> Path:
    """Compile the program where its sources are newer; return the program."""
    sources = [*SOURCES.glob("*.[ch]"), CRC]
    newest = max(path.stat().st_mtime for path in sources)
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > newest:
        return PROGRAM
    PROGRAM.parent.mkdir(exist_ok=True)
    made = PROGRAM.with_suffix(f".{os.getpid()}")
    command = [os.environ.get("CC", "gcc"), *FLAGS, "-o", str(made)]
    command += sorted(str(path) for path in SOURCES.glob("*.c"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadError(f"{' '.join(command)}\n{done.stderr}")
    made.replace(PROGRAM)
    return PROGRAM


class CServer:
    """One of the generator's servers, with its files in a directory."""

    def __init__(self, mode: str, **options: object) -> None:
        self._process = subprocess.Popen(
            [str(build()), mode, *arguments_of(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            _, errors = self._process.communicate()
            raise LoadError(f"{mode} does not start:\n{errors}")
        self.port = int(said)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> str:
        """End it; return what it complained of."""
        self._process.terminate()
        _, errors = self._process.communicate(timeout=STOP_TIMEOUT_S)
        return errors

    def __enter__(self) -> CServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
