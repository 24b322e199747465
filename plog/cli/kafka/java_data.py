"""Bytes as Java's deserializers print them, by the names of their classes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

PACKAGE = "org.apache.kafka.common.serialization."
PRINTABLE = range(0x20, 0x7F)
UUID_TEXT_BYTES = 36


class Undecodable(ValueError):
    """The bytes are no value of the type."""


def _number(code: str, name: str) -> Callable[[bytes], str]:
    number = struct.Struct(f">{code}")

    def decode(data: bytes) -> str:
        if len(data) != number.size:
            raise Undecodable(f"Size of data received by {name}Deserializer is not {number.size}")
        (value,) = number.unpack(data)
        return str(value)

    return decode


def _escaped(data: bytes) -> str:
    return "".join(chr(byte) if byte in PRINTABLE else f"\\x{byte:02X}" for byte in data)


def _uuid(data: bytes) -> str:
    text = data.decode(errors="replace")
    if len(text) != UUID_TEXT_BYTES:
        raise Undecodable("Error parsing data into UUID")
    return str(uuid.UUID(text))


DESERIALIZERS: dict[str, Callable[[bytes], str]] = {
    "StringDeserializer": lambda data: data.decode(errors="replace"),
    "BytesDeserializer": _escaped,
    "ShortDeserializer": _number("h", "Short"),
    "IntegerDeserializer": _number("i", "Integer"),
    "LongDeserializer": _number("q", "Long"),
    "FloatDeserializer": _number("f", "Float"),
    "DoubleDeserializer": _number("d", "Double"),
    "BooleanDeserializer": lambda data: str(data == b"\x01").lower(),
    "UUIDDeserializer": _uuid,
}


def deserializer(class_name: str) -> Callable[[bytes], bytes]:
    """Return the deserializer of a class.

    Raises:
        ValueError: plog has none for the class.
    """
    found = DESERIALIZERS.get(class_name.removeprefix(PACKAGE))
    if found is None:
        raise ValueError(f"{class_name} is not supported: use {', '.join(DESERIALIZERS)}")
    return lambda data: found(data).encode()
