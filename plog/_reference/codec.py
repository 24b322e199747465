"""The protocol's codec, read from the declarations field by field: the oracle of `protocol.codec`.

It takes structures as it finds them (their `api` and `fields`) and shares
nothing else with the compiled codec. KIP-482 describes flexible versions:
compact lengths (one more than the length, 0 for null) and tagged fields behind
each structure, in ascending order.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any, NoReturn

from plog.errors import InvalidRequest, MalformedBytes, UnsupportedVersion
from plog.types import Buffer

INTEGERS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q"}
FIXED = {"bool": "?", "float64": "d", "uuid": "16s"} | INTEGERS
LONGEST_STRING = 32767
ANY_NUMBER = 1 << 62


def decode(
    cls: Any, version: int, data: Buffer, pos: int = 0, *, most_elements: int = ANY_NUMBER
) -> tuple[Any, int]:
    """Decode one message at `pos`; the twin of `protocol.codec.decode`."""
    if version not in cls.api.versions:
        raise InvalidRequest(f"{cls.__name__} has no version {version}")
    reader = _Reader(data, pos, version, version in cls.api.flexible, most_elements)
    message = reader.structure(cls, f"{cls.__name__} v{version}", " ")
    return message, reader.pos


def encode(message: Any, version: int) -> bytes:
    """Encode a message; the twin of `protocol.codec.encode`."""
    name, api = type(message).__name__, message.api
    if version not in api.versions:
        raise UnsupportedVersion(f"{name} has no version {version}")
    writer = _Writer(version, version in api.flexible)
    writer.structure(message, f"{name} v{version} ")
    return bytes(writer.out)


class _Reader:
    def __init__(self, data: Buffer, pos: int, version: int, flexible: bool, most: int) -> None:
        self.view = memoryview(data)
        self.pos = pos
        self.end = len(data)
        self.version = version
        self.flexible = flexible
        self.most = self.unspent = most

    def structure(self, cls: Any, path: str, dot: str) -> Any:
        values = {f.name: f.default() for f in cls.fields}
        tagged = {}
        for f in cls.fields:
            if self.version in f.tagged:
                tagged[f.tag] = f
            elif self.version in f.versions:
                values[f.name] = self.field(f, f"{path}{dot}{f.name}")
        if self.flexible:
            self.tags(tagged, values, path, dot)
        return cls(**values)

    def tags(self, tagged: Any, values: dict[str, Any], path: str, dot: str) -> None:
        here = f"{path} tags"
        last = -1
        number = self.uvarint(here)
        self.spend(number, here)
        for _ in range(number):
            tag = self.uvarint(here)
            if tag <= last:
                self.refuse(f"{here} repeats or misplaces tag {tag} before {self.pos}")
            last = tag
            size = self.uvarint(here)
            self.need(size, here)
            outer, stop = self.end, self.pos + size
            if tag in tagged:
                f, self.end = tagged[tag], stop
                values[f.name] = self.field(f, f"{path}{dot}{f.name}")
                self.end = outer
                if self.pos != stop:
                    self.refuse(f"{path}{dot}{f.name} ends at {self.pos}, its tag says {stop}")
            self.pos = stop

    def field(self, f: Any, path: str) -> Any:
        nullable = self.version in f.nullable
        if f.kind != "array":
            return self.value(f.kind, f.struct, path, nullable)
        count = self.length("int32", path, nullable)
        if count is None:
            return None
        left = self.end - self.pos
        if count * self.least(f.element, f.struct) > left:
            self.refuse(f"{path} counts {count} at {self.pos}, {left} bytes are left")
        self.spend(count, path)
        return [self.value(f.element, f.struct, path, False) for _ in range(count)]

    def value(self, kind: str, cls: Any, path: str, nullable: bool) -> Any:
        if kind == "struct":
            if nullable and self.fixed("int8", path) < 0:
                return None
            return self.structure(cls, path, ".")
        if kind in FIXED:
            value = self.fixed(kind, path)
            return uuid.UUID(bytes=value) if kind == "uuid" else value
        size = self.length("int16" if kind == "string" else "int32", path, nullable)
        if size is None:
            return None
        start = self.pos
        if kind == "string" and size > LONGEST_STRING:
            at_most = f"strings have at most {LONGEST_STRING}"
            self.refuse(f"{path} has {size} bytes at {start}, {at_most}")
        raw = self.take(size, path)
        if kind == "string":
            try:
                return str(raw, "utf-8")
            except UnicodeDecodeError:
                self.refuse(f"{path} is not UTF-8 at {start}")
        return bytes(raw) if kind == "bytes" else raw

    def length(self, kind: str, path: str, nullable: bool) -> int | None:
        size: int = self.uvarint(path) - 1 if self.flexible else self.fixed(kind, path)
        if size >= 0:
            return size
        if nullable:
            return None
        self.refuse(f"{path} is null before {self.pos}")

    def least(self, kind: str, cls: Any) -> int:
        """Return the bytes that an element takes at least."""
        if kind != "struct":
            size = 1 if self.flexible else 2 if kind == "string" else 4
            return struct.calcsize(">" + FIXED[kind]) if kind in FIXED else size
        total = 1 if self.flexible else 0
        for f in cls.fields:
            if self.version in f.versions and self.version not in f.tagged:
                nothing = f.kind == "struct" and self.version in f.nullable
                total += 1 if nothing else self.least(f.kind, f.struct)
        return total

    def uvarint(self, path: str) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1, path)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 2**32:
                return value
        self.refuse(f"{path} has a varint of more than 32 bits before {self.pos}")

    def fixed(self, kind: str, path: str) -> Any:
        code = ">" + FIXED[kind]
        return struct.unpack(code, self.take(struct.calcsize(code), path))[0]

    def take(self, size: int, path: str) -> memoryview:
        self.need(size, path)
        self.pos += size
        return self.view[self.pos - size : self.pos]

    def spend(self, count: int, path: str) -> None:
        """Take a count off the budget of the message."""
        self.unspent -= count
        if self.unspent < 0:
            past = f"past the {self.most} elements of one message"
            self.refuse(f"{path} counts {count} at {self.pos}, {past}")

    def need(self, size: int, path: str) -> None:
        left = max(self.end - self.pos, 0)
        if size > left:
            self.refuse(f"{path} needs {size} bytes at {self.pos}, {left} are left")

    def refuse(self, reason: str) -> NoReturn:
        raise InvalidRequest(reason) from None


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.out = bytearray()
        self.version = version
        self.flexible = flexible

    def structure(self, held: Any, path: str) -> None:
        tagged = []
        for f in held.fields:
            value = getattr(held, f.name)
            here = f"{path}{f.name}"
            if self.version not in f.versions:
                if not f.ignorable and value != f.default():
                    raise UnsupportedVersion(f"{here} is not in this version, but set to {value!r}")
            elif self.version not in f.tagged:
                self.field(f, value, here)
            elif value != f.default():
                tagged.append((f.tag, f, value, here))
        if self.flexible:
            self.uvarint(len(tagged))
            for tag, f, value, here in sorted(tagged, key=lambda each: each[0]):
                outer, self.out = self.out, bytearray()
                self.field(f, value, here)
                body, self.out = self.out, outer
                self.uvarint(tag)
                self.uvarint(len(body))
                self.out += body

    def field(self, f: Any, value: Any, path: str) -> None:
        nullable = self.version in f.nullable
        if f.kind != "array":
            self.value(f.kind, value, path, nullable)
        elif self.length("int32", value, path, nullable):
            for item in value:
                self.value(f.element, item, path, False)

    def value(self, kind: str, value: Any, path: str, nullable: bool) -> None:
        if kind == "struct":
            if nullable:
                self.fixed("int8", -1 if value is None else 1, path)
            if value is not None:
                self.structure(value, f"{path}.")
        elif kind in FIXED:
            self.fixed(kind, value.bytes if kind == "uuid" else value, path)
        else:
            if kind == "string" and value is not None:
                try:
                    value = value.encode()
                except UnicodeEncodeError:
                    raise MalformedBytes(f"{path} cannot hold a surrogate") from None
                if len(value) > LONGEST_STRING:
                    raise MalformedBytes(f"{path} cannot hold {len(value)} bytes")
            if self.length("int16" if kind == "string" else "int32", value, path, nullable):
                self.out += value

    def length(self, kind: str, value: Any, path: str, nullable: bool) -> int:
        if value is None and not nullable:
            raise UnsupportedVersion(f"{path} cannot be null in this version")
        size = -1 if value is None else len(value)
        if self.flexible:
            self.uvarint(size + 1)
        else:
            self.fixed(kind, size, path, f"{size} bytes")
        return max(size, 0)

    def uvarint(self, value: int) -> None:
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def fixed(self, kind: str, value: Any, path: str, shown: str = "") -> None:
        try:
            self.out += struct.pack(">" + FIXED[kind], value)
        except (struct.error, OverflowError):
            raise MalformedBytes(f"{path} cannot hold {shown or repr(value)}") from None
