"""kafka-python's codec, an implementation that shares nothing with ours, behind our messages.

Its message classes interpret Kafka's own definitions (of a later release), field
by field and under the same names. `offers` tells which of our messages and
versions it has.
"""

from __future__ import annotations

import importlib
from typing import Any

from plog.protocol.schema import Struct
from tests.protocol.instances import filled

_CLASSES = {
    name: cls
    for family in ("admin", "consumer", "metadata", "producer")
    for name, cls in vars(importlib.import_module(f"kafka.protocol.{family}")).items()
    if isinstance(cls, type) and hasattr(cls, "API_KEY")
}


def offers(cls: type[Struct], version: int) -> bool:
    """Tell whether kafka-python knows this message at this version."""
    theirs = _CLASSES.get(cls.__name__)
    if theirs is None:
        return False
    low, _, high = theirs.json["validVersions"].partition("-")
    return int(low) <= version <= int(high or low)


def encode(message: Struct, version: int) -> bytes:
    """Encode our message by kafka-python."""
    theirs = _CLASSES[type(message).__name__]
    wire: bytes = _to_theirs(theirs, message, version).encode(version=version)
    return wire


def decode(cls: type[Struct], version: int, wire: bytes) -> Any:
    """Decode by kafka-python, into our message."""
    return _from_theirs(cls, _CLASSES[cls.__name__].decode(wire, version=version), version)


OPERATIONS = "authorized_operations"
"""The end of the names of bit fields, which kafka-python shows as sets of bit numbers."""


def _bits(value: int) -> set[int] | None:
    return None if value == -(2**31) else {bit for bit in range(32) if value >> bit & 1}


def _from_bits(bits: set[int] | None) -> int:
    value = sum(1 << bit for bit in ({31} if bits is None else bits))
    return value - (value >> 31 << 32)


def _to_theirs(theirs: Any, held: Struct, version: int) -> Any:
    values = {}
    for f in held.fields:
        value = getattr(held, f.name)
        # Tagged fields that hold their defaults are left out, which is for the caller to do there.
        if version not in f.versions or (version in f.tagged and value == f.default()):
            continue
        if f.struct is not None and value is not None:
            inner = theirs._struct.fields[f.name].data_class
            if f.kind == "array":
                value = [_to_theirs(inner, each, version) for each in value]
            else:
                value = _to_theirs(inner, value, version)
        if f.kind == "int32" and f.name.endswith(OPERATIONS):
            values[OPERATIONS] = _bits(value)
        else:
            values[f.name] = value
    return theirs(version=version, **values)


def _from_theirs(cls: type[Struct], theirs: Any, version: int) -> Any:
    values = {}
    for f in cls.fields:
        if version not in f.versions:
            continue
        if version in f.tagged and f.name not in (theirs.tags or ()):
            continue
        if f.kind == "int32" and f.name.endswith(OPERATIONS):
            values[f.name] = _from_bits(getattr(theirs, OPERATIONS))
            continue
        value = getattr(theirs, f.name)
        if f.struct is not None and value is not None:
            if f.kind == "array":
                value = [_from_theirs(f.struct, each, version) for each in value]
            else:
                value = _from_theirs(f.struct, value, version)
        values[f.name] = value
    return filled(cls, values)
