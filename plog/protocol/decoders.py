"""Writes the decoder of one (message, version): one flat Python function.

Neighbours of fixed width, together with the length or the first byte of the
varint behind them, are read by one `struct.Struct`; fields that the version
lacks cost one assignment. Every read is held against `end` first, and every
count against the bytes that its elements need at least, so that nothing is
allocated on the word of a length. Counts of arrays and tagged fields also come
off one budget per message: an element of two bytes grows to some sixty as an
object, so that the size of a message alone bounds neither memory nor time.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

from plog.errors import InvalidRequest
from plog.protocol.schema import FORMAT, LONGEST_STRING, WIDTH, Field, Struct
from plog.protocol.source import Source
from plog.types import Buffer

Decoder = Callable[[Buffer, int, int], tuple[Any, int]]

ANY_NUMBER: Final = 1 << 62
"""A budget of elements that no message exceeds: counts have 32 bits, and all but the last are
held against the bytes that are there."""

_LONGEST_COPY: Final = 1 << 20
"""Slices of bytes are cut faster than those of a view, but the copy of a message that is mostly
one field, or refused, would only double its memory."""


def compile_decoder(cls: type[Struct], version: int) -> Decoder:
    """Return the decoder of a message: (data, pos, most elements) to (instance, position)."""
    return _Writer(cls, version).write()


def least_bytes(cls: type[Struct], version: int, flexible: bool) -> int:
    """Return how many bytes a structure takes at least."""
    total = int(flexible)
    for f in cls.fields:
        if version in f.versions and version not in f.tagged:
            total += _least(f.kind, f.struct, version in f.nullable, version, flexible)
    return total


def _least(
    kind: str, nested: type[Struct] | None, nullable: bool, version: int, flexible: bool
) -> int:
    if kind == "struct":
        assert nested is not None
        return 1 if nullable else least_bytes(nested, version, flexible)
    return WIDTH.get(kind) or (1 if flexible else 2 if kind == "string" else 4)


# -- what the written text calls


def _cut(pos: int, end: int, wanted: tuple[tuple[str, int], ...]) -> NoReturn:
    """Name the first of several neighbours that does not fit."""
    for path, width in wanted:
        if width > end - pos:
            _short(path, width, pos, end)
        pos += width
    raise AssertionError("all of them fit")


def _short(path: str, width: int, pos: int, end: int) -> NoReturn:
    raise InvalidRequest(f"{path} needs {width} bytes at {pos}, {max(end - pos, 0)} are left")


def _count(path: str, count: int, pos: int, end: int) -> NoReturn:
    raise InvalidRequest(f"{path} counts {count} at {pos}, {end - pos} bytes are left")


def _many(path: str, count: int, pos: int, most: int) -> NoReturn:
    raise InvalidRequest(f"{path} counts {count} at {pos}, past the {most} elements of one message")


def _null(path: str, pos: int) -> NoReturn:
    raise InvalidRequest(f"{path} is null before {pos}")


def _long(path: str, size: int, pos: int) -> NoReturn:
    raise InvalidRequest(f"{path} has {size} bytes at {pos}, strings have at most {LONGEST_STRING}")


def _text(path: str, pos: int) -> NoReturn:
    raise InvalidRequest(f"{path} is not UTF-8 at {pos}")


def _misplaced(path: str, tag: int, pos: int) -> NoReturn:
    raise InvalidRequest(f"{path} repeats or misplaces tag {tag} before {pos}")


def _length(path: str, pos: int, stop: int) -> NoReturn:
    raise InvalidRequest(f"{path} ends at {pos}, its tag says {stop}")


def _uvarint(data: Buffer, pos: int, end: int, path: str) -> tuple[int, int]:
    value = shift = 0
    while True:
        if pos >= end:
            _short(path, 1, pos, end)
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 and value < 1 << 32:
            return value, pos
        if shift > 28:
            raise InvalidRequest(f"{path} has a varint of more than 32 bits before {pos}")


def skip_tags(data: Buffer, pos: int, end: int, path: str, most: int = ANY_NUMBER) -> int:
    """Return the position after a section of at most `most` unknown tagged fields.

    Raises:
        InvalidRequest: it is cut short, its tags do not ascend or are too many.
    """
    count, pos = _uvarint(data, pos, end, path)
    if count > most:
        _many(path, count, pos, most)
    return _skip_tags(data, pos, end, count, path)


def _skip_tags(data: Buffer, pos: int, end: int, count: int, path: str) -> int:
    last = -1
    for _ in range(count):
        tag, pos = _uvarint(data, pos, end, path)
        if tag <= last:
            _misplaced(path, tag, pos)
        last = tag
        size, pos = _uvarint(data, pos, end, path)
        if size > end - pos:
            _short(path, size, pos, end)
        pos += size
    return pos


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> uuid.UUID:
    """Topic ids come again and again, and making a UUID is slow."""
    return uuid.UUID(bytes=raw)


_CALLED: Final[dict[str, Any]] = {
    "cut": _cut,
    "short": _short,
    "count": _count,
    "many": _many,
    "null": _null,
    "long": _long,
    "text": _text,
    "misplaced": _misplaced,
    "length": _length,
    "uvarint": _uvarint,
    "skip_tags": _skip_tags,
    "uuid": _uuid,
    "unpack_from": struct.unpack_from,
    "new": object.__new__,
}


class _Read(NamedTuple):
    """One of several neighbours that are read together."""

    code: str
    width: int
    target: str
    path: str


class _Writer:
    """Writes one decoder; `_pending` are reads of fixed width that wait to be joined."""

    def __init__(self, cls: type[Struct], version: int) -> None:
        self._cls = cls
        self._version = version
        self._flexible = version in cls.api.flexible
        self._end = "end"
        self._source = Source(**_CALLED)
        self._pending: list[_Read] = []
        self._after: list[str] = []

    def write(self) -> Decoder:
        title = f"{self._cls.__name__} v{self._version}"
        with self._source.block("def decode(data, pos, most):"):
            if _has_records(self._cls):
                # Views of the frame: writable when the frame is, and nothing is copied.
                self._source.line("view = memoryview(data)")
            else:
                self._source.line(
                    f"if data.__class__ is not bytes and len(data) <= {_LONGEST_COPY}: "
                    "data = bytes(data)"
                )
            self._source.line("end = len(data)")
            self._source.line("left = most")
            made = self._struct(self._cls, title, "")
            self._flush()
            self._source.line(f"return {made}, pos")
        return self._source.function("decode", f"decode {title}")

    def _struct(self, cls: type[Struct], path: str, dot: str) -> str:
        """Write the reading of a structure; return the variable that holds it."""
        line = self._source.line
        made = self._source.name("o")
        line(f"{made} = new({self._source.constant(cls, 'C')})")
        tagged = []
        for f in cls.fields:
            target, here = f"{made}.{f.name}", f"{path}{dot or ' '}{f.name}"
            if self._version not in f.versions or self._version in f.tagged:
                default = "[]" if f.fallback == [] else self._source.constant(f.fallback, "d")
                line(f"{target} = {default}")
                if self._version in f.versions:
                    tagged.append((f, target, here))
            else:
                self._field(f, target, here)
        if self._flexible:
            self._tags(sorted(tagged, key=lambda each: each[0].tag or 0), path)
        return made

    def _field(self, f: Field, target: str, path: str) -> None:
        nullable = self._version in f.nullable
        if f.kind == "array":
            self._array(f, target, path, nullable)
        elif f.struct is not None and nullable:
            self._nullable_struct(f, target, path)
        else:
            self._value(f.kind, f.struct, target, path, nullable)

    def _value(
        self, kind: str, nested: type[Struct] | None, target: str, path: str, nullable: bool
    ) -> None:
        """Write the reading of anything but an array, or a structure that may be null."""
        if kind == "struct":
            assert nested is not None
            # Its last fields may still wait to be read; the object is complete after them.
            made = self._struct(nested, path, ".")
            self._after.append(f"{target} = {made}")
        elif kind == "uuid":
            held = self._source.name("u")
            self._read("16s", 16, held, path)
            self._after.append(f"{target} = uuid({held})")
        elif kind in FORMAT:
            self._read(FORMAT[kind], WIDTH[kind], target, path)
        else:
            self._sized(kind, target, path, nullable)

    def _nullable_struct(self, f: Field, target: str, path: str) -> None:
        assert f.struct is not None
        there = self._source.name("n")
        self._read("b", 1, there, path)
        self._flush()
        # An int8, whose null is -1, or in a tag a varint, whose null is 0 (KIP-893).
        with self._source.block(f"if {there} < {int(self._version in f.tagged)}:"):
            self._source.line(f"{target} = None")
        with self._source.block("else:"):
            made = self._struct(f.struct, path, ".")
            self._flush()
            self._source.line(f"{target} = {made}")

    def _sized(self, kind: str, target: str, path: str, nullable: bool) -> None:
        """Write the reading of a string, bytes or records."""
        line, block = self._source.line, self._source.block
        size = self._size("h" if kind == "string" else "i", path)
        with block(f"if {size} < 0:"):
            line(f"{target} = None" if nullable else f"null({path!r}, pos)")
        with block("else:"):
            if kind == "string" and self._flexible:
                line(f"if {size} > {LONGEST_STRING}: long({path!r}, {size}, pos)")
            line(f"stop = pos + {size}")
            line(f"if stop > {self._end}: short({path!r}, {size}, pos, {self._end})")
            if kind == "string":
                line(f"try: {target} = str(data[pos:stop], 'utf-8')")
                line(f"except UnicodeDecodeError: text({path!r}, pos)")
            elif kind == "bytes":
                line(f"{target} = bytes(data[pos:stop])")
            else:
                line(f"{target} = view[pos:stop]")
            line("pos = stop")

    def _array(self, f: Field, target: str, path: str, nullable: bool) -> None:
        line, block = self._source.line, self._source.block
        number = self._size("i", path)
        width = _least(f.element, f.struct, False, self._version, self._flexible)
        assert width > 0, f"{path}: elements of no bytes could be counted without end"
        with block(f"if {number} < 0:"):
            line(f"{target} = None" if nullable else f"null({path!r}, pos)")
        needed = number if width == 1 else f"{number} * {width}"
        with block(f"elif {needed} > {self._end} - pos:"):
            line(f"count({path!r}, {number}, pos, {self._end})")
        with block("else:"):
            self._spend(number, path)
            if f.element in FORMAT and f.element != "uuid":
                packed = f"f'>{{{number}}}{FORMAT[f.element]}'"
                line(f"{target} = list(unpack_from({packed}, data, pos))")
                line(f"pos += {needed}")
                return
            held, add = self._source.name("l"), self._source.name("add")
            line(f"{target} = {held} = []")
            line(f"{add} = {held}.append")
            with block(f"for _ in range({number}):"):
                if f.struct is not None:
                    element = self._struct(f.struct, path, ".")
                else:
                    element = self._source.name("e")
                    self._value(f.element, None, element, path, False)
                self._flush()
                line(f"{add}({element})")

    def _tags(self, tagged: list[tuple[Field, str, str]], path: str) -> None:
        line, block = self._source.line, self._source.block
        path = f"{path} tags"
        number = self._first_byte(path)
        if not tagged:
            with block(f"if {number}:"):
                self._spend(number, path)
                line(f"pos = skip_tags(data, pos, {self._end}, {number}, {path!r})")
            return
        last, tag, size, stop = (self._source.name(hint) for hint in ("last", "tag", "n", "stop"))
        outer = self._end
        with block(f"if {number}:"):
            self._spend(number, path)
            line(f"{last} = -1")
            with block(f"for _ in range({number}):"):
                line(f"{tag}, pos = uvarint(data, pos, {outer}, {path!r})")
                line(f"if {tag} <= {last}: misplaced({path!r}, {tag}, pos)")
                line(f"{last} = {tag}")
                line(f"{size}, pos = uvarint(data, pos, {outer}, {path!r})")
                line(f"if {size} > {outer} - pos: short({path!r}, {size}, pos, {outer})")
                line(f"{stop} = pos + {size}")
                word = "if"
                for f, target, here in tagged:
                    with block(f"{word} {tag} == {f.tag}:"):
                        self._end = stop
                        self._field(f, target, here)
                        self._flush()
                        self._end = outer
                        line(f"if pos != {stop}: length({here!r}, pos, {stop})")
                    word = "elif"
                with block("else:"):
                    line(f"pos = {stop}")

    def _spend(self, number: str, path: str) -> None:
        """Write how a count comes off the message's budget, before anything is made of it."""
        self._source.line(f"left -= {number}")
        self._source.line(f"if left < 0: many({path!r}, {number}, pos, most)")

    def _size(self, code: str, path: str) -> str:
        """Write the reading of a length or count, negative for null; return its variable."""
        if self._flexible:
            number = self._first_byte(path)
            self._source.line(f"{number} -= 1")
            return number
        number = self._source.name("n")
        self._read(code, struct.calcsize(">" + code), number, path)
        self._flush()
        return number

    def _first_byte(self, path: str) -> str:
        """Write the reading of an unsigned varint, whose first byte joins the reads before it."""
        number = self._source.name("n")
        self._read("B", 1, number, path)
        self._flush()
        self._source.line(
            f"if {number} > 127: {number}, pos = uvarint(data, pos - 1, {self._end}, {path!r})"
        )
        return number

    def _read(self, code: str, width: int, target: str, path: str) -> None:
        self._pending.append(_Read(code, width, target, path))

    def _flush(self) -> None:
        """Write the waiting reads as one, then what depends on them."""
        line = self._source.line
        if self._pending:
            total = sum(read.width for read in self._pending)
            wanted = self._source.constant(
                tuple((read.path, read.width) for read in self._pending), "w"
            )
            line(f"if {total} > {self._end} - pos: cut(pos, {self._end}, {wanted})")
            targets = ", ".join(read.target for read in self._pending)
            codes = "".join(read.code for read in self._pending)
            if codes == "B":
                line(f"{targets} = data[pos]")
            else:
                unpack = self._source.constant(struct.Struct(">" + codes).unpack_from, "unpack")
                comma = "," if len(self._pending) == 1 else ""
                line(f"{targets}{comma} = {unpack}(data, pos)")
            line(f"pos += {total}")
        self._pending = []
        after, self._after = self._after, []
        for statement in after:
            line(statement)


def _has_records(cls: type[Struct]) -> bool:
    return any(
        f.kind == "records" or (f.struct is not None and _has_records(f.struct)) for f in cls.fields
    )
