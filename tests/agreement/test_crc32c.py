"""Every CRC-32C implementation of this processor against crcmod."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import crc32c as native
from plog._reference import crc32c as reference

from .harness import outcome, run_seed

IMPLEMENTATIONS = native._implementations()

# The three-way loops take 3 * 256 and 3 * 4096 bytes at a time, the rest goes by 8 and by 1.
EDGES = [0, 1, 7, 8, 9, 63, 255, 256, 767, 768, 769, 775, 776, 1535, 1536, 12287, 12288, 12289]
SIZES = [*EDGES, 3 * 4096 + 3 * 256 + 13, 6 * 4096 + 5]

# RFC 3720, B.4.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def test_implementation_names_one_that_is_available():
    assert native.implementation() == IMPLEMENTATIONS[0]
    assert IMPLEMENTATIONS[-1] == "table"
    assert set(IMPLEMENTATIONS) <= {"sse4.2", "armv8", "table"}


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_known_data_has_the_published_checksum(data, crc):
    assert reference.crc32c(data) == crc
    assert native.crc32c(data) == crc
    for name in IMPLEMENTATIONS:
        assert native._crc32c_with(name, data) == crc


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_every_block_size_and_alignment_agrees_with_reference(name, size):
    rng = random.Random(run_seed())
    data = memoryview(rng.randbytes(size + 8))
    crc = rng.getrandbits(32)
    for shift in range(8):
        piece = data[shift : shift + size]
        assert native._crc32c_with(name, piece, crc) == reference.crc32c(piece, crc)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@settings(max_examples=100)
@given(data=st.binary(max_size=2000), crc=st.integers(0, 2**32 - 1))
def test_native_agrees_with_reference(name, data, crc):
    assert native._crc32c_with(name, data, crc) == reference.crc32c(data, crc)


@settings(max_examples=100)
@given(head=st.binary(max_size=1000), tail=st.binary(max_size=1000))
def test_checksum_continued_over_the_tail_is_that_of_the_whole(head, tail):
    assert native.crc32c(tail, native.crc32c(head)) == native.crc32c(head + tail)


@pytest.mark.parametrize("size", [32767, 32768, 1 << 20])
def test_large_data_summed_without_the_lock_agrees_with_reference(size):
    data = random.Random(run_seed()).randbytes(size)
    expected = reference.crc32c(data)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert native.crc32c(buffer) == expected


@pytest.mark.parametrize("crc", [-1, 2**32, 2**80, -(2**80)])
def test_crc_outside_32_bits_is_refused_by_both(crc):
    expected = outcome(reference.crc32c, b"", crc)
    assert expected[:2] == ("error", OverflowError)
    assert outcome(native.crc32c, b"", crc) == expected


def test_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="no CRC-32C implementation 'abacus'"):
        native._crc32c_with("abacus", b"")
