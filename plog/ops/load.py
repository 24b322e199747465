"""Loads for brokers: what the C generator sends, and running it.

Owns the batch that is sent again and again, and the process of a run; what a run means
is its caller's. `asv_bench/load/README.md` says how to read the figures.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from plog._native.records import BatchBuilder
from plog.errors import ErrorCode, PlogError
from plog.protocol.record_batch import CODECS

SEED = 2013
RUN_SLACK_S = 90.0
"""Beyond its seconds; the generator gives up by itself when nothing is answered for 60 s."""

PLACE = str(Path(__file__).parents[2])
"""Where this plog is: a package's launcher knows it, and no other process of its Python does."""

MAIN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from plog._native.load import main; main(sys.argv[1:])"
)

ERROR_NUMBER = re.compile(r"\berror (-?\d+)")
"""How the generator, which knows few errors' names, tells of one."""

Figures = dict[str, Any]


class LoadError(PlogError):
    """A run failed: a request was refused, an answer made no sense, or there came none."""


class Batch(NamedTuple):
    """A record batch in a file, as a producer sends it."""

    path: Path
    size_bytes: int
    records: int


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


def arguments_of(options: dict[str, object]) -> list[str]:
    """Return options as the generator reads them; those that are None or False are left out."""
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


def start(mode: str, **options: object) -> subprocess.Popen[str]:
    """Begin a run, by the options of asv_bench/load/options.c; `finish` waits for its end."""
    # What lies in the working directory is never imported; by an isolated Python, nor what the
    # environment names.
    alone = "-I" if sys.flags.isolated else "-P"
    return subprocess.Popen(
        [sys.executable, alone, "-c", MAIN, PLACE, mode, *arguments_of(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(running: subprocess.Popen[str], timeout_s: float) -> Figures:
    """Return what a run measured.

    Raises:
        LoadError: it failed, or did not end in time.
    """
    with running:
        try:
            told, errors = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.kill()
            raise LoadError("the load generator did not end") from None
        except BaseException:
            running.kill()
            raise
    if running.returncode:
        text = ERROR_NUMBER.sub(_error_name, errors.strip().removeprefix("load: "))
        raise LoadError(text or f"status {running.returncode}")
    figures: Figures = json.loads(told)
    return figures


def _error_name(told: re.Match[str]) -> str:
    try:
        return ErrorCode(int(told[1])).name
    except ValueError:
        return told[0]


def run(mode: str, **options: object) -> Figures:
    """Run a load; return what it measured.

    Raises:
        LoadError: as `finish`.
    """
    limit_s = float(str(options.get("seconds", 10))) + float(str(options.get("warmup", 0)))
    return finish(start(mode, **options), limit_s + RUN_SLACK_S)
