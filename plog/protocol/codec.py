"""Encodes and decodes messages of any declared version.

Each (message, version) is compiled on first use into flat Python, whose text is
kept in `__source__`. `plog._reference.codec` interprets the same declarations
and is the oracle of the tests.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from plog.errors import InvalidRequest, UnsupportedVersion
from plog.protocol.decoders import ANY_NUMBER, Decoder, compile_decoder
from plog.protocol.encoders import Encoder, compile_encoder, misfit
from plog.protocol.schema import Struct
from plog.types import Buffer

S = TypeVar("S", bound=Struct)

_decoders: dict[tuple[type[Struct], int], Decoder] = {}
_encoders: dict[tuple[type[Struct], int], Encoder] = {}


def decode(
    cls: type[S], version: int, data: Buffer, pos: int = 0, *, most_elements: int = ANY_NUMBER
) -> tuple[S, int]:
    """Decode one message at `pos` and return it with the position after it.

    `records` are views into `data`, writable if it is; everything else is copied. The caller reads
    the bytes after the message. Unknown tagged fields are skipped. `most_elements` limits the
    elements of all arrays, nested ones included, and the tagged fields. Set it for bytes from the
    network, because tiny elements take many times their bytes once decoded.

    Raises:
        InvalidRequest: the bytes are no such message, it counts too many elements, or the version
            is not declared.
    """
    found = _decoders.get((cls, version))
    if found is None:
        if version not in cls.api.versions:
            raise InvalidRequest(f"{cls.__name__} has no version {version}")
        found = _decoders[cls, version] = compile_decoder(cls, version)
    return found(data, pos, most_elements)


def encode(message: Struct, version: int, *, head: bytes = b"") -> bytes:
    """Encode a message, after `head`.

    Raises:
        UnsupportedVersion: the version is not declared, cannot carry a field that is set and not
            ignorable, or has no null for one that is None.
        MalformedBytes: a value is outside its type's range.
    """
    out = [head]
    encode_into = encoder(type(message), version)
    try:
        encode_into(message, out)
    except (struct.error, UnicodeEncodeError) as fault:
        raise misfit(message, version) or fault from fault
    return b"".join(out)


def encoder(cls: type[Struct], version: int) -> Encoder:
    """Return the compiled encoder of a message.

    Raises:
        UnsupportedVersion: the version is not declared.
    """
    found = _encoders.get((cls, version))
    if found is None:
        if version not in cls.api.versions:
            raise UnsupportedVersion(f"{cls.__name__} has no version {version}")
        found = _encoders[cls, version] = compile_encoder(cls, version)
    return found
