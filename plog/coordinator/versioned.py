"""Keys and values of the internal topics: a version as an int16, and a message of that version."""

from __future__ import annotations

import struct
from typing import TypeVar

from plog.errors import CorruptRecord, InvalidRequest
from plog.protocol import codec
from plog.protocol.schema import Struct

_VERSION = struct.Struct(">h")

S = TypeVar("S", bound=Struct)


def version_of(data: bytes) -> int:
    """Return the version that a key or value begins with. Raises CorruptRecord."""
    if len(data) < _VERSION.size:
        raise CorruptRecord(f"{len(data)} bytes are too short for a version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def encode(value: Struct, version: int) -> bytes:
    """Encode a key or value."""
    return _VERSION.pack(version) + codec.encode(value, version)


def decode(cls: type[S], version: int, data: bytes) -> S:
    """Decode what follows the version. Raises CorruptRecord."""
    try:
        return codec.decode(cls, version, data, _VERSION.size)[0]
    except InvalidRequest as fault:
        raise CorruptRecord(f"malformed {cls.__name__} v{version}: {fault}") from fault
