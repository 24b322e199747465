"""Both wire engines on the same bytes: every position, every prefix, every range."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plog._native import wire as native
from plog._reference import wire as reference
from plog.errors import MalformedBytes

from .harness import forked, mutations, outcome, run_seed

FIXED = [("int8", 1), ("int16", 2), ("int32", 4), ("int64", 8), ("uint32", 4)]
VARINTS = ["unsigned_varint", "varint", "varlong"]
DECODERS = [f"decode_{name}" for name in [name for name, _ in FIXED] + VARINTS]

# name, value, its bytes; the bytes are Kafka's (zigzag as in its protocol guide).
CASES = [
    ("int8", -1, "ff"),
    ("int16", -2, "fffe"),
    ("int32", 258, "00000102"),
    ("int32", -(2**31), "80000000"),
    ("uint32", 2**31, "80000000"),
    ("int64", 2**63 - 1, "7fffffffffffffff"),
    ("int64", -1, "ffffffffffffffff"),
    ("unsigned_varint", 0, "00"),
    ("unsigned_varint", 127, "7f"),
    ("unsigned_varint", 128, "8001"),
    ("unsigned_varint", 2**32 - 1, "ffffffff0f"),
    ("varint", 0, "00"),
    ("varint", -1, "01"),
    ("varint", 1, "02"),
    ("varint", -64, "7f"),
    ("varint", 64, "8001"),
    ("varint", 2**31 - 1, "feffffff0f"),
    ("varint", -(2**31), "ffffffff0f"),
    ("varlong", -1, "01"),
    ("varlong", 2**31, "8080808010"),
    ("varlong", 2**63 - 1, "feffffffffffffffff01"),
    ("varlong", -(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(("name", "value", "wire"), CASES)
def test_decode_of_known_bytes_gives_their_value_and_leaves_the_tail(engine, name, value, wire):
    data = bytes.fromhex(wire)
    decode = getattr(engine, f"decode_{name}")
    assert decode(data, 0) == (value, len(data))
    assert decode(b"\xff\xff\xff" + data + b"\xff", 3) == (value, 3 + len(data))


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(("name", "value", "wire"), CASES)
def test_decode_of_any_prefix_is_refused(engine, name, value, wire):
    data = bytes.fromhex(wire)
    for cut in range(len(data)):
        with pytest.raises(MalformedBytes):
            getattr(engine, f"decode_{name}")(data[:cut], 0)


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(("name", "value", "wire"), [c for c in CASES if c[0] in VARINTS])
def test_encode_of_a_value_gives_its_known_bytes(engine, name, value, wire):
    assert getattr(engine, f"encode_{name}")(value) == bytes.fromhex(wire)


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize(
    ("name", "data", "pos", "text"),
    [
        ("int32", "0102030405", 2, "int32 at 2 needs 4 bytes, 3 are left of 5"),
        ("int8", "", 0, "int8 at 0 needs 1 bytes, 0 are left of 0"),
        ("int8", "00", -1, "int8 at -1: outside the 1 bytes given"),
        ("varint", "00", 2, "varint at 2: outside the 1 bytes given"),
        ("varlong", "00", 2**70, f"varlong at {2**70}: outside the 1 bytes given"),
        ("varint", "00ffffffff", 1, "varint at 1 is cut: the data ends at 5"),
        ("unsigned_varint", "80", 0, "unsigned varint at 0 is cut: the data ends at 1"),
        ("varint", "ffffffff10", 0, "varint at 0 is longer than 32 bits"),
        ("unsigned_varint", "808080808000", 0, "unsigned varint at 0 is longer than 32 bits"),
        ("varlong", "ffffffffffffffffff02", 0, "varlong at 0 is longer than 64 bits"),
        ("varlong", "80808080808080808080", 0, "varlong at 0 is longer than 64 bits"),
    ],
)
def test_refusal_says_what_did_not_fit_where(engine, name, data, pos, text):
    with pytest.raises(MalformedBytes) as refusal:
        getattr(engine, f"decode_{name}")(bytes.fromhex(data), pos)
    assert str(refusal.value) == text


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=200)
@given(data=st.binary(max_size=12), pos=st.integers(-2, 13))
@example(data=b"\x80", pos=0)
@example(data=b"\xff" * 4 + b"\x1f", pos=0)
@example(data=b"\xff" * 9 + b"\x02", pos=0)  # 65 bits
@example(data=b"\x80" * 12, pos=1)
@example(data=b"", pos=-(2**80))
def test_native_decode_agrees_with_reference(name, data, pos):
    expected = outcome(getattr(reference, name), data, pos)
    assert outcome(getattr(native, name), data, pos) == expected
    assert outcome(getattr(native, name), memoryview(bytearray(data)), pos) == expected


@pytest.mark.parametrize("name", [f"encode_{name}" for name in VARINTS])
@settings(max_examples=200)
@given(
    value=st.one_of(st.integers(), st.integers(-(2**64), 2**64), st.integers(-(2**32), 2**32)),
)
@example(value=2**32)
@example(value=2**31)
@example(value=-(2**31) - 1)
@example(value=2**63)
@example(value=-(2**63) - 1)
def test_native_encode_agrees_with_reference(name, value):
    assert outcome(getattr(native, name), value) == outcome(getattr(reference, name), value)


@settings(max_examples=200)
@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip_gives_the_value_back(value):
    wire = native.encode_varlong(value)
    assert native.decode_varlong(wire, 0) == (value, len(wire))


@pytest.mark.parametrize("engine", [native, reference])
@pytest.mark.parametrize("pos", [None, "0", 0.0])
def test_position_that_is_no_integer_is_a_type_error(engine, pos):
    with pytest.raises(TypeError):
        engine.decode_int8(b"\x00", pos)


def test_mutated_bytes_crash_neither_engine():
    originals = [bytes.fromhex(wire) for _, _, wire in CASES]

    def check(data: bytes) -> None:
        for name in DECODERS:
            for pos in range(len(data) + 2):
                expected = outcome(getattr(reference, name), data, pos)
                assert outcome(getattr(native, name), data, pos) == expected, name

    assert forked(check, mutations(originals, 500, run_seed())) == 500
