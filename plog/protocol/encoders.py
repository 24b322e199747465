"""Writes the encoder of one (message, version): one flat Python function.

It appends bytes to a list. Neighbours of fixed width, together with the length
behind them, are packed by one `struct.Struct`; tagged fields that hold their
default are left out (KIP-482). A set field that the version lacks is refused,
unless it is ignorable; `misfit` says what did not fit when packing failed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from plog.errors import MalformedBytes, UnsupportedVersion
from plog.protocol.schema import FORMAT, LONGEST_STRING, Field, Struct
from plog.protocol.source import Source

Encoder = Callable[[Any, list[Any]], None]
"""(message, pieces to append to)."""


def compile_encoder(cls: type[Struct], version: int) -> Encoder:
    """Return the encoder of a message."""
    return _Writer(cls, version).write()


def unsigned_varint(value: int) -> bytes:
    """Encode a length, count or tag."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def misfit(message: Struct, version: int) -> MalformedBytes | None:
    """Return what in `message` its wire type cannot hold, the first in order; None if all fits."""
    path = f"{type(message).__name__} v{version} "
    return _misfit(message, path, version)


def _misfit(held: Struct, path: str, version: int) -> MalformedBytes | None:
    positional = [f for f in held.fields if version not in f.tagged]
    tagged = sorted((f for f in held.fields if version in f.tagged), key=lambda f: f.tag or 0)
    for f in positional + tagged:
        if version not in f.versions:
            continue
        value = getattr(held, f.name)
        kind = f.element if f.kind == "array" else f.kind
        if value is None and version in f.nullable:
            continue
        for item in value if f.kind == "array" else [value]:
            fault = None
            if isinstance(item, Struct):
                fault = _misfit(item, f"{path}{f.name}.", version)
            else:
                reason = _why(kind, item)
                fault = MalformedBytes(f"{path}{f.name} cannot hold {reason}") if reason else None
            if fault is not None:
                return fault
    return None


def _why(kind: str, value: Any) -> str:
    """Return why `kind` cannot hold `value`, or nothing."""
    if kind in FORMAT and kind != "uuid":
        try:
            struct.pack(">" + FORMAT[kind], value)
        except (struct.error, OverflowError):
            return repr(value)
    elif kind == "string" and isinstance(value, str):
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            return "a surrogate"
        if size > LONGEST_STRING:
            return f"{size} bytes"
    return ""


def _long(path: str, size: int) -> NoReturn:
    raise MalformedBytes(f"{path} cannot hold {size} bytes")


def _absent(path: str, value: Any) -> NoReturn:
    raise UnsupportedVersion(f"{path} is not in this version, but set to {value!r}")


def _null(path: str) -> NoReturn:
    raise UnsupportedVersion(f"{path} cannot be null in this version")


_CALLED: Final[dict[str, Any]] = {
    "absent": _absent,
    "long": _long,
    "null": _null,
    "uvarint": unsigned_varint,
    "BYTE": [bytes([value]) for value in range(128)],
    "pack": struct.pack,
}


class _Writer:
    """Writes one encoder; `_pending` are (format, expression) that wait to be packed together."""

    def __init__(self, cls: type[Struct], version: int) -> None:
        self._cls = cls
        self._version = version
        self._flexible = version in cls.api.flexible
        self._add = "add"
        self._source = Source(**_CALLED)
        self._pending: list[tuple[str, str]] = []

    def write(self) -> Encoder:
        title = f"{self._cls.__name__} v{self._version}"
        with self._source.block("def encode(o, out):"):
            self._source.line("add = out.append")
            self._struct(self._cls, "o", title + " ")
            self._flush()
        return self._source.function("encode", f"encode {title}")

    def _struct(self, cls: type[Struct], held: str, path: str) -> None:
        version, line, block = self._version, self._source.line, self._source.block
        tagged = []
        for f in cls.fields:
            value, here = f"{held}.{f.name}", f"{path}{f.name}"
            if version not in f.versions:
                if not f.ignorable:
                    line(f"if {self._differs(f, value)}: absent({here!r}, {value})")
            elif version in f.tagged:
                tagged.append((f, value, here))
            else:
                self._field(f, value, here)
        if not self._flexible:
            return
        if not tagged:
            self._pending.append(("x", ""))  # a pad byte is the count 0
            return
        self._flush()
        tagged.sort(key=lambda each: each[0].tag or 0)
        number, tags, outer = self._source.name("n"), self._source.name("tags"), self._add
        line(f"{number} = 0")
        line(f"{tags} = []")
        for f, value, here in tagged:
            with block(f"if {self._differs(f, value)}:"):
                body, self._add = self._source.name("body"), self._source.name("add")
                line(f"{body} = []")
                line(f"{self._add} = {body}.append")
                self._field(f, value, here)
                self._flush()
                line(f"{number} += 1")
                line(f"{body} = b''.join({body})")
                line(f"{tags} += uvarint({f.tag}), uvarint(len({body})), {body}")
                self._add = outer
        line(f"{outer}(BYTE[{number}])")
        line(f"if {number}: {outer}(b''.join({tags}))")

    def _differs(self, f: Field, value: str) -> str:
        """Return a condition: the field does not hold its default."""
        if f.fallback == []:
            return f"{value} != []"
        default = self._source.constant(f.fallback, "d")
        if f.fallback is None:
            return f"{value} is not None"
        if f.kind == "struct":
            return f"{value} is not {default} and {value} != {default}"
        return f"{value} != {default}"

    def _field(self, f: Field, value: str, path: str) -> None:
        nullable = self._version in f.nullable
        if f.kind == "array":
            self._array(f, value, path, nullable)
        elif f.struct is not None and nullable:
            self._nullable_struct(f, value, path)
        else:
            self._value(f.kind, f.struct, value, path, nullable)

    def _nullable_struct(self, f: Field, value: str, path: str) -> None:
        line, block = self._source.line, self._source.block
        assert f.struct is not None
        self._flush()
        held = self._source.name("o")
        line(f"{held} = {value}")
        with block(f"if {held} is None:"):
            # In place of the 1 before a structure: an int8, or in a tag a varint (KIP-893).
            line(f"{self._add}({bytes(1) if self._version in f.tagged else bytes([255])!r})")
        with block("else:"):
            self._pending.append(("b", "1"))
            self._struct(f.struct, held, f"{path}.")
            self._flush()

    def _value(
        self, kind: str, nested: type[Struct] | None, value: str, path: str, nullable: bool
    ) -> None:
        """Write the encoding of anything but an array, or a structure that may be null."""
        if kind == "struct":
            assert nested is not None
            self._struct(nested, value, f"{path}.")
        elif kind == "uuid":
            self._pending.append((FORMAT[kind], f"{value}.bytes"))
        elif kind in FORMAT:
            self._pending.append((FORMAT[kind], value))
        else:
            self._sized(kind, value, path, nullable)

    def _sized(self, kind: str, value: str, path: str, nullable: bool) -> None:
        """Write the encoding of a string, bytes or records."""
        line, block = self._source.line, self._source.block
        held = self._source.name("v")
        line(f"{held} = {value}")
        code = "h" if kind == "string" else "i"
        if self._flexible:
            # The varint's width depends on the value: what waits goes first, once for all branches.
            self._flush()
        size = self._source.name("n")
        with block(f"if {held} is None:"):
            if nullable:
                line(f"{size} = -1")
                line(f"{held} = b''")
            else:
                line(f"null({path!r})")
        with block("else:"):
            if kind == "string":
                line(f"{held} = {held}.encode()")
            line(f"{size} = len({held})")
            if kind == "string" and self._flexible:
                # A varint holds more than a string may have; an int16 finds out by itself.
                line(f"if {size} > {LONGEST_STRING}: long({path!r}, {size})")
        self._size(code, size)
        self._flush()
        line(f"{self._add}({held})")

    def _array(self, f: Field, value: str, path: str, nullable: bool) -> None:
        line, block = self._source.line, self._source.block
        held, size = self._source.name("l"), self._source.name("n")
        line(f"{held} = {value}")
        with block(f"if {held} is None:"):
            if nullable:
                line(f"{size} = -1")
                line(f"{held} = ()")
            else:
                line(f"null({path!r})")
        with block("else:"):
            line(f"{size} = len({held})")
        self._size("i", size)
        self._flush()
        if f.element in FORMAT and f.element != "uuid":
            line(f"if {held}: {self._add}(pack(f'>{{{size}}}{FORMAT[f.element]}', *{held}))")
            return
        element = self._source.name("e")
        with block(f"for {element} in {held}:"):
            self._value(f.element, f.struct, element, path, False)
            self._flush()

    def _size(self, code: str, size: str) -> None:
        if self._flexible:
            self._flush()
            self._source.line(
                f"{self._add}(BYTE[{size} + 1] if {size} < 127 else uvarint({size} + 1))"
            )
        else:
            self._pending.append((code, size))

    def _flush(self) -> None:
        """Write the packing of what waits."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        values = [value for code, value in self._pending if code != "x"]
        if values:
            pack = self._source.constant(struct.Struct(">" + codes).pack, "pack")
            self._source.line(f"{self._add}({pack}({', '.join(values)}))")
        else:
            self._source.line(f"{self._add}({bytes(len(codes))!r})")
        self._pending = []
