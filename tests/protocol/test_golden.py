"""Bytes of another library: what it writes we read, what we write it reads.

`tests/golden/messages.txt` holds its bytes, so that they hold without it, too.
Rewrite the table with ``python -m tests.protocol.test_golden`` when a message
or version was added, and review the difference: lines that were there must stay.
"""

from __future__ import annotations

import ast
import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plog._reference import codec as reference
from plog.protocol import codec
from plog.protocol.schema import Struct
from tests.protocol.instances import BY_NAME, VERSIONS, build, name_of, plain, sample

TABLE = Path(__file__).parents[1] / "golden" / "messages.txt"
HEADING = """\
# Messages as kafka-python 3.0.12 writes them: name, version, bytes; below, what they say.
# `python -m tests.protocol.test_golden` adds messages and versions that are new.
"""


class Golden(NamedTuple):
    cls: type[Struct]
    version: int
    wire: bytes
    values: dict[str, Any]


def table() -> Iterator[Golden]:
    lines = [x for x in TABLE.read_text(encoding="utf-8").splitlines() if x and x[0] != "#"]
    for head, values in zip(lines[::2], lines[1::2], strict=True):
        name, version, wire = head.split(" ")
        yield Golden(BY_NAME[name], int(version), bytes.fromhex(wire), ast.literal_eval(values))


GOLDEN = list(table()) if TABLE.exists() else []


@pytest.mark.parametrize(
    "golden", GOLDEN, ids=[f"{golden.cls.__name__}-{golden.version}" for golden in GOLDEN]
)
def test_bytes_of_another_library_are_read_and_written(golden):
    message = build(golden.cls, golden.values)
    for engine in (codec, reference):
        assert engine.encode(message, golden.version).hex() == golden.wire.hex()
        assert engine.decode(golden.cls, golden.version, golden.wire) == (message, len(golden.wire))


def test_table_is_not_empty():
    assert len(GOLDEN) > 300


def seeded(cls: type[Struct], version: int, seed: object) -> Any:
    """Return a message that kafka-python can read back."""
    message = sample(cls, version, random.Random(f"{cls.__name__} {version} {seed}"))
    if cls.__name__ == "ApiVersionsResponse":
        message.error_code = 0  # with any other it is read as v0, by design
    return message


if importlib.util.find_spec("kafka") is not None:
    from tests.protocol import kafka_python

    OFFERED = [(cls, version) for cls, version in VERSIONS if kafka_python.offers(cls, version)]

    @pytest.mark.parametrize(("cls", "version"), OFFERED, ids=name_of)
    def test_other_library_writes_our_bytes_and_reads_them(cls, version):
        for seed in range(3):
            message = seeded(cls, version, seed)
            wire = codec.encode(message, version)
            assert kafka_python.encode(message, version).hex() == wire.hex()
            assert kafka_python.decode(cls, version, wire) == message
            assert codec.decode(cls, version, wire) == (message, len(wire))

    def test_table_has_all_that_the_other_library_offers():
        there = {(golden.cls, golden.version) for golden in GOLDEN}
        missing = [f"{cls.__name__} v{v}" for cls, v in OFFERED if (cls, v) not in there]
        assert not missing, "run python -m tests.protocol.test_golden"


def rewrite() -> None:
    """Add to the table what it lacks; leave what it has."""
    held = {(golden.cls, golden.version): golden for golden in GOLDEN}
    blocks = [HEADING]
    for cls, version in VERSIONS:
        golden = held.get((cls, version))
        if golden is None and kafka_python.offers(cls, version):
            message = seeded(cls, version, "golden")
            wire = kafka_python.encode(message, version)
            golden = Golden(cls, version, wire, plain(message, version))
        if golden is not None:
            blocks.append(f"{cls.__name__} {version} {golden.wire.hex()}\n{golden.values!r}\n")
    TABLE.write_text("\n".join(blocks), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
