"""Both SipHash engines against each other, the paper's example and this interpreter's own hash."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import siphash as native
from plog._reference import siphash as reference

COUNTING = bytes(range(64))
HASHES_OF_PREFIXES = "data = bytes(range(64)); print(*(hash(data[:n]) for n in range(1, 65)))"


def test_more_rounds_give_the_example_of_the_paper() -> None:
    found = reference.siphash(COUNTING[:16], COUNTING[:15], rounds=2, last_rounds=4)
    assert found == 0xA129CA6149BE45E5


def key_of_interpreter(seed: int) -> bytes:
    """What PYTHONHASHSEED makes of a number."""
    found = bytearray()
    for _ in range(16 if seed else 0):
        seed = (seed * 214013 + 2531011) & 0xFFFFFFFF
        found.append(seed >> 16 & 0xFF)
    return bytes(found).ljust(16, b"\0")


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="it hashes otherwise")
@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("engine", [native, reference])
def test_hash_is_that_of_an_interpreter_with_the_same_key(engine: Any, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HASHES_OF_PREFIXES],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    key = key_of_interpreter(seed)
    found = [engine.siphash(key, COUNTING[:size]) for size in range(1, 65)]
    assert found == [int(signed) % 2**64 for signed in done.stdout.split()]


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize("size", [0, 15, 17])
def test_key_of_another_size_is_refused(engine: Any, size: int) -> None:
    with pytest.raises(ValueError, match=f"a key of {size} bytes"):
        engine.siphash(bytes(size), b"")


@settings(max_examples=300)
@given(st.binary(min_size=16, max_size=16), st.binary(max_size=70))
def test_native_agrees_with_reference(key: bytes, data: bytes) -> None:
    assert native.siphash(key, data) == reference.siphash(key, data)
