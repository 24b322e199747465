"""Runs the C load generator against a broker.

Owns the batch that the generator sends repeatedly, and the process of a run; the caller interprets
the figures. `asv_bench/load/README.md` explains them.
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
"""Extra time for a run; the generator itself gives up after 60 s without a response."""

PLACE = str(Path(__file__).parents[2])
"""Directory of this plog; only a package's launcher knows it, not other Python processes."""

MAIN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from plog._native.load import main; main(sys.argv[1:])"
)

ERROR_NUMBER = re.compile(r"\berror (-?\d+)")
"""How the generator, which knows few names of errors, reports one."""

Figures = dict[str, Any]


class LoadError(PlogError):
    """A run failed: a request was refused, or a response was invalid or missing."""


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
    """Write a batch of at most `size_bytes` to a file; with one record if that is 0.

    The limit is the compressed size, as in Java's producer. Values are random bytes, or JSON with a
    codec.
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
    """Return the generator's command line for options; omit those that are None or False."""
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
    """Start a run with options of asv_bench/load/options.c; `finish` waits for its end."""
    # Never import from the working directory; an isolated Python ignores the environment as well.
    alone = "-I" if sys.flags.isolated else "-P"
    return subprocess.Popen(
        [sys.executable, alone, "-c", MAIN, PLACE, mode, *arguments_of(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(running: subprocess.Popen[str], timeout_s: float) -> Figures:
    """Wait for a run's end; return its figures.

    Raises:
        LoadError: the run failed, or did not end in time.
    """
    with running:
        try:
            output, errors = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.kill()
            raise LoadError("the load generator did not end") from None
        except BaseException:
            running.kill()
            raise
    if running.returncode:
        text = ERROR_NUMBER.sub(_error_name, errors.strip().removeprefix("load: "))
        raise LoadError(text or f"status {running.returncode}")
    figures: Figures = json.loads(output)
    return figures


def _error_name(found: re.Match[str]) -> str:
    try:
        return ErrorCode(int(found[1])).name
    except ValueError:
        return found[0]


def run(mode: str, **options: object) -> Figures:
    """Run a load; return its figures.

    Raises:
        LoadError: as `finish`.
    """
    limit_s = float(str(options.get("seconds", 10))) + float(str(options.get("warmup", 0)))
    return finish(start(mode, **options), limit_s + RUN_SLACK_S)
