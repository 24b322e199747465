"""The load generator of asv_bench/load: built, given its batch, run; and the C servers with it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from plog._native.records import BatchBuilder

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "asv_bench" / "load"
CRC = ROOT / "plog" / "_native" / "crc32c_impl.h"
PROGRAM = ROOT / "build" / "load"
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra")

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SEED = 2013
STOP_TIMEOUT_S = 10.0
RUN_SLACK_S = 90.0
"""Beyond its seconds; the program gives up by itself when nothing is answered for 60 s."""

Figures = dict[str, Any]


class LoadError(Exception):
    """The generator could not be built, or a run of it failed."""


class Batch(NamedTuple):
    """A record batch in a file, as a producer sends it."""

    path: Path
    size_bytes: int
    records: int


def build() -> Path:
    """Compile the generator where its sources are newer; return the program."""
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


# --- batches --------------------------------------------------------------------------------------


def _value(rng: random.Random, size: int, *, compressible: bool) -> bytes:
    if not compressible:
        return rng.randbytes(size)
    text = ""
    while len(text) < size:
        text += (
            f'{{"id":{rng.randrange(10**9)},"carrier":"{rng.choice(("AA", "B6", "DL", "UA"))}",'
            f'"origin":"{rng.choice(("EWR", "JFK", "LGA"))}","delay":{rng.randrange(-20, 200)}}}'
        )
    return text[:size].encode()


def make_batch(
    path: Path, size_bytes: int, *, codec: str = "none", value_bytes: int = 100
) -> Batch:
    """Write a batch of at most that size to a file; of one record if `size_bytes` is 0.

    Compressed ones are so large when compressed, as Java's producer fills them. Values are noise
    where nothing compresses them, and JSON where something does.
    """
    rng = random.Random(SEED)
    now_ms = int(time.time() * 1000)
    values: list[bytes] = []

    def encoded(count: int) -> bytes:
        while len(values) < count:
            values.append(_value(rng, value_bytes, compressible=codec != "none"))
        builder = BatchBuilder(codec=CODECS[codec])
        for value in values[:count]:
            builder.append(now_ms, None, value)
        return builder.build()

    # The most records that fit: doubled until they do not, then halved between.
    fits, too_many = 1, 2
    if size_bytes > 0:
        while len(encoded(too_many)) <= size_bytes:
            fits, too_many = too_many, 2 * too_many
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if len(encoded(middle)) <= size_bytes:
                fits = middle
            else:
                too_many = middle
    batch = encoded(fits)
    path.write_bytes(batch)
    return Batch(path, len(batch), fits)


# --- runs -----------------------------------------------------------------------------------------


def _arguments(options: dict[str, object]) -> list[str]:
    made = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            made.append(option)
        elif isinstance(value, uuid.UUID):
            made += [option, value.hex]
        elif value is not False and value is not None:
            made += [option, str(value)]
    return made


def run(mode: str, **options: object) -> Figures:
    """Run a load, by the options of asv_bench/load/main.c; return what it measured.

    Raises LoadError: a request was refused, an answer made no sense, or there came none.
    """
    command = [str(build()), mode, *_arguments(options)]
    limit_s = float(str(options.get("seconds", 10))) + float(str(options.get("warmup", 0)))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_s + RUN_SLACK_S
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{' '.join(command)}\ndid not end") from error
    if done.returncode:
        raise LoadError(f"{' '.join(command)}\n{done.stderr}")
    figures: Figures = json.loads(done.stdout)
    return figures


class CServer:
    """One of the generator's servers, with its files in a directory."""

    def __init__(self, mode: str, **options: object) -> None:
        self._process = subprocess.Popen(
            [str(build()), mode, *_arguments(options)],
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
