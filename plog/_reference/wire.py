"""Big-endian integers and varints, written to be read: the oracle of `plog._native.wire`."""

from __future__ import annotations

from collections.abc import Callable

from plog.errors import MalformedBytes
from plog.types import Buffer

Decoder = Callable[[Buffer, int], tuple[int, int]]
Encoder = Callable[[int], bytes]


def _fixed(name: str, width: int, *, signed: bool) -> Decoder:
    def decode(data: Buffer, pos: int) -> tuple[int, int]:
        view = memoryview(data).cast("B")
        _check_position(name, view, pos)
        if len(view) - pos < width:
            raise MalformedBytes(
                f"{name} at {pos} needs {width} bytes, {len(view) - pos} are left of {len(view)}"
            )
        return int.from_bytes(view[pos : pos + width], "big", signed=signed), pos + width

    return decode


def _unsigned(name: str, bits: int, data: Buffer, pos: int) -> tuple[int, int]:
    """Read seven bits per byte, the lowest first; a set high bit says that another byte follows."""
    view = memoryview(data).cast("B")
    _check_position(name, view, pos)
    value = shift = 0
    for behind, byte in enumerate(view[pos:], pos + 1):
        value |= (byte & 0x7F) << shift
        shift += 7
        # A varint may be padded with zeros, but not beyond the bytes its type can need.
        if value >> bits or (byte & 0x80 and shift >= bits):
            raise MalformedBytes(f"{name} at {pos} is longer than {bits} bits")
        if not byte & 0x80:
            return value, behind
    raise MalformedBytes(f"{name} at {pos} is cut: the data ends at {len(view)}")


def _check_position(name: str, view: memoryview, pos: int) -> None:
    if not 0 <= pos <= len(view):
        raise MalformedBytes(f"{name} at {pos}: outside the {len(view)} bytes given")


def _zigzag(name: str, bits: int) -> Decoder:
    def decode(data: Buffer, pos: int) -> tuple[int, int]:
        raw, behind = _unsigned(name, bits, data, pos)
        return (raw >> 1) ^ -(raw & 1), behind

    return decode


decode_int8 = _fixed("int8", 1, signed=True)
decode_int16 = _fixed("int16", 2, signed=True)
decode_int32 = _fixed("int32", 4, signed=True)
decode_int64 = _fixed("int64", 8, signed=True)
decode_uint32 = _fixed("uint32", 4, signed=False)
decode_varint = _zigzag("varint", 32)
decode_varlong = _zigzag("varlong", 64)


def decode_unsigned_varint(data: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes at `pos`; return it and the position behind it."""
    return _unsigned("unsigned varint", 32, data, pos)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise OverflowError(f"{value} does not fit the {name}'s range {least}..{most}")


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_unsigned_varint(value: int) -> bytes:
    """Return the 1 to 5 bytes of `value`; OverflowError unless it is an unsigned 32-bit number."""
    _check_range("unsigned varint", value, 0, 2**32 - 1)
    return _encode(value)


def encode_varint(value: int) -> bytes:
    """Return the 1 to 5 zigzag bytes of `value`; OverflowError unless it has 32 signed bits."""
    _check_range("varint", value, -(2**31), 2**31 - 1)
    return _encode(value * 2 if value >= 0 else -value * 2 - 1)


def encode_varlong(value: int) -> bytes:
    """Return the 1 to 10 zigzag bytes of `value`; OverflowError unless it has 64 signed bits."""
    _check_range("varlong", value, -(2**63), 2**63 - 1)
    return _encode(value * 2 if value >= 0 else -value * 2 - 1)
