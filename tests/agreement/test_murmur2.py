"""Both murmur2 engines against each other and against values that Java clients compute."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import murmur2 as native
from plog._reference import murmur2 as reference

# As Java prints them, signed.
VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(("key", "signed"), VECTORS)
def test_known_key_has_the_hash_that_java_gives_it(engine, key, signed):
    assert engine.murmur2(key) == signed & 0xFFFFFFFF


@settings(max_examples=300)
@given(st.binary(max_size=64))
def test_native_agrees_with_reference(key):
    expected = reference.murmur2(key)
    assert native.murmur2(key) == expected
    assert native.murmur2(memoryview(bytearray(key))) == expected
