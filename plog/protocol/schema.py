"""Declares Kafka's messages as typed Python: fields, their versions, their types.

A declaration is the only place where a message is described; codec,
documentation and tests derive from it. Owns the checks that make a declaration
sound, and the instances. Encodes nothing.
"""

from __future__ import annotations

import itertools
import re
import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeVar,
    cast,
    dataclass_transform,
)

from plog.errors import PlogError
from plog.types import ZERO_UUID


class Wire(NamedTuple):
    """The wire type of an annotated field."""

    kind: str


Bool = Annotated[bool, Wire("bool")]
Int8 = Annotated[int, Wire("int8")]
Int16 = Annotated[int, Wire("int16")]
UInt16 = Annotated[int, Wire("uint16")]
Int32 = Annotated[int, Wire("int32")]
UInt32 = Annotated[int, Wire("uint32")]
Int64 = Annotated[int, Wire("int64")]
Float64 = Annotated[float, Wire("float64")]
String = Annotated[str, Wire("string")]
Bytes = Annotated[bytes, Wire("bytes")]
Records = Annotated[Any, Wire("records")]
"""A record set: decoded to a memoryview of the frame, encoded from a bytes-like object."""
Uuid = Annotated[uuid.UUID, Wire("uuid")]

FORMAT: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width, as `struct` writes them."""

WIDTH: Final = {kind: struct.calcsize(">" + code) for kind, code in FORMAT.items()}

ZERO: Final[dict[str, Any]] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "uint32": 0,
    "int64": 0,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": ZERO_UUID,
}
"""What a field holds when neither the declaration nor the wire gives it a value."""

MAX_VERSION: Final = 32767

LONGEST_STRING: Final = 32767
"""Bytes of a string at most. Compact lengths could say more, but Kafka refuses that, too."""


class BadDeclaration(PlogError):
    """A message's declaration contradicts itself."""


class Versions(NamedTuple):
    """A range of versions, both ends included; empty when high < low."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __str__(self) -> str:
        if self.high < self.low:
            return "none"
        if self.high == MAX_VERSION:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def covers(self, other: Versions) -> bool:
        """Tell whether every version of `other` is one of these."""
        return other.high < other.low or (self.low <= other.low and other.high <= self.high)


NEVER: Final = Versions(0, -1)
_RANGE: Final = re.compile(r"(\d+)(?:(\+)|-(\d+))?", re.ASCII)


@lru_cache
def parse_versions(text: str | None) -> Versions:
    """Read "4+", "3-7", "2" or None for never.

    Raises:
        BadDeclaration: it is none of these, or runs backwards.
    """
    if text is None:
        return NEVER
    found = _RANGE.fullmatch(text)
    if found is None:
        raise BadDeclaration(f"{text!r} is no range of versions")
    low, plus, high = found.groups()
    span = Versions(int(low), MAX_VERSION if plus else int(high or low))
    if not span.low <= span.high <= MAX_VERSION:
        raise BadDeclaration(f"{text!r} is no range of versions")
    return span


_REQUIRED: Final[Any] = object()
DEFAULT: Final[Any] = object()
"""As a field's `default`: the zero of its type; for a structure, one with all its defaults."""


class _Given(NamedTuple):
    """What `field` was given, until the annotation is known."""

    about: str
    versions: Versions
    nullable: Versions
    default: Any
    tag: int | None
    tagged: Versions
    ignorable: bool


def field(
    about: str,
    *,
    versions: str = "0+",
    nullable: str | None = None,
    default: Any = _REQUIRED,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Describe one field of a message.

    Args:
        about: what it means, in one sentence.
        versions: versions that have the field.
        nullable: versions in which it may be None.
        default: what it holds when nothing is said. Without it constructors demand the field;
            versions that lack the field then leave it at the zero of its type.
        tag: its number among the tagged fields (KIP-482).
        tagged: versions in which it is tagged rather than positional, `versions` by default.
        ignorable: versions without the field drop its value silently instead of refusing it.
    """
    span = parse_versions(versions)
    tagged_span = NEVER
    if tag is not None:
        tagged_span = span if tagged is None else parse_versions(tagged)
    elif tagged is not None:
        raise BadDeclaration(f"tagged versions {tagged} without a tag: {about}")
    return _Given(about, span, parse_versions(nullable), default, tag, tagged_span, ignorable)


class Field(NamedTuple):
    """One field as codec, documentation and tests see it.

    `kind` is a wire type, "struct" or "array"; `element` the kind of an array's elements; `struct`
    the class of a structure or of an array's structures. `fallback` is the default or zero;
    `required` is set if constructors require the field.
    """

    name: str
    about: str
    kind: str
    element: str
    struct: type[Struct] | None
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    required: bool
    fallback: Any

    def default(self) -> Any:
        """Return what the field holds when nothing is said: a list of its own, or a shared value.

        Structures are shared, and refuse to be changed.
        """
        return [] if self.fallback == [] else self.fallback


class Api(NamedTuple):
    """Which request or response a structure is; `flexible` versions are those of KIP-482.

    The key is -1 for structures that are no request or response of their own.
    """

    key: int
    versions: Versions
    flexible: Versions


NO_API: Final = Api(-1, NEVER, NEVER)


class _StructType(type):
    """Takes the fields out of a class's body, so that its instances have slots."""

    def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _StructType:
        given = {key: value for key, value in body.items() if isinstance(value, _Given)}
        if bases and "__slots__" not in body:
            body = {key: value for key, value in body.items() if key not in given}
            body["__slots__"] = tuple(given)
        cls = super().__new__(mcls, name, bases, body)
        if given:
            hints = cls.__annotations__
            if len(hints) != len(given):
                raise BadDeclaration(f"{name}: {sorted(hints.keys() ^ given)} lack type or field()")
            bound = tuple(_bind(f"{name}.{key}", key, hints[key], given[key]) for key in given)
            _check_tags(name, bound)
            cls.fields = bound  # type: ignore[attr-defined]
        return cls


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Struct(metaclass=_StructType):
    """Base of every message and of the structures inside them.

    Fields are keyword arguments, and attributes that may be assigned.
    """

    api: ClassVar[Api] = NO_API
    fields: ClassVar[tuple[Field, ...]] = ()
    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        # Most classes are never instantiated by most processes: the real constructor of a class
        # is compiled by its first use, and takes the place of this one.
        cls = type(self)
        constructor = _constructor(cls)
        type.__setattr__(cls, "__init__", constructor)
        constructor(self, **values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or other.fields is not self.fields:
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self.fields)
        return f"{type(self).__name__}({inside})"


S = TypeVar("S", bound=Struct)


def message(
    *, versions: str, api_key: int = -1, flexible: str | None = None
) -> Callable[[type[S]], type[S]]:
    """Make the decorated structure a message of its own, with versions.

    Args:
        versions: all versions declared, "low-high" or one.
        api_key: the API of a request or response; left out for records of internal topics and for
            structures inside other messages (subscriptions).
        flexible: versions with compact lengths and tagged fields (KIP-482).

    Raises:
        BadDeclaration: fields, tags or versions contradict each other.
    """
    api = Api(api_key, parse_versions(versions), parse_versions(flexible))

    def declare(cls: type[S]) -> type[S]:
        if api.versions.high == MAX_VERSION or not (
            api.flexible == NEVER or api.flexible.low in api.versions
        ):
            raise BadDeclaration(f"{cls.__name__}: versions {versions}, flexible {flexible}")
        _check_versions(cls.__name__, cls, api)
        cls.api = api
        return cls

    return declare


def _bind(where: str, name: str, annotation: Any, given: _Given) -> Field:
    """Join an annotation with what `field` was given."""
    parts = [part for part in getattr(annotation, "__args__", ()) if part is not type(None)]
    optional = type(None) in getattr(annotation, "__args__", ())
    if optional and len(parts) == 1:
        annotation = parts[0]
    if optional != (given.nullable != NEVER):
        raise BadDeclaration(f"{where}: nullable versions go with a type of `| None`")
    if not given.versions.covers(given.nullable):
        raise BadDeclaration(f"{where} is nullable in versions that lack it")
    kind, element, nested = _wire_type(where, annotation)
    if optional and kind in FORMAT:
        raise BadDeclaration(f"{where}: {kind} has no null")
    if given.tag is not None and kind == "records":
        raise BadDeclaration(f"{where}: records stand in no tag")
    default = given.default
    if default is _REQUIRED or default is DEFAULT:
        if kind == "array":
            fallback: Any = []
        elif nested is not None:
            # Needed at all only where some version lacks the field, or its tag may be left out.
            fallback = _unchangeable(where, nested) if default is DEFAULT else None
        else:
            fallback = ZERO[kind]
    else:
        fallback = default
        _check_default(where, kind, optional, default)
    return Field(
        name,
        given.about,
        kind,
        element,
        nested,
        given.versions,
        given.nullable,
        given.tag,
        given.tagged,
        given.ignorable,
        default is _REQUIRED,
        fallback,
    )


def _wire_type(where: str, annotation: Any) -> tuple[str, str, type[Struct] | None]:
    """Return (kind, element, struct) of an annotation without its `| None`."""
    for wire in getattr(annotation, "__metadata__", ()):
        if isinstance(wire, Wire):
            return wire.kind, "", None
    if isinstance(annotation, _StructType):
        return "struct", "", annotation  # type: ignore[return-value]
    if getattr(annotation, "__origin__", None) is list:
        element, deeper, nested = _wire_type(where, annotation.__args__[0])
        if not deeper and element != "records":
            return "array", element, nested
    raise BadDeclaration(f"{where}: no wire type for {annotation!r}")


def _check_default(where: str, kind: str, optional: bool, default: Any) -> None:
    if default is None:
        good = optional
    elif kind == "bool" or kind == "float64" or kind in ("string", "bytes", "uuid"):
        good = type(default) is type(ZERO[kind])
    elif kind == "array":
        good = default == []
    elif kind in FORMAT and type(default) is int:
        bits = 8 * WIDTH[kind]
        low = 0 if kind.startswith("u") else -(1 << bits - 1)
        good = low <= default < low + (1 << bits)
    else:
        good = False
    if not good:
        raise BadDeclaration(f"{where}: {default!r} is no default of type {kind}")


def _check_tags(name: str, fields: tuple[Field, ...]) -> None:
    tagged = sorted((f for f in fields if f.tag is not None), key=lambda f: f.tag or 0)
    if [f.tag for f in tagged] != list(range(len(tagged))):
        raise BadDeclaration(f"{name}: tags {[f.tag for f in tagged]} have gaps or overlap")
    for lower, higher in itertools.pairwise(tagged):
        if not lower.tagged.covers(higher.tagged):
            raise BadDeclaration(f"{name}: tag {higher.tag} is older than tag {lower.tag}")


def _check_versions(where: str, cls: type[Struct], api: Api) -> None:
    """Hold the fields of a structure, wherever in the message it stands, against the versions."""
    for f in cls.fields:
        here = f"{where}.{f.name}"
        if f.versions.low > api.versions.high or f.versions.high < api.versions.low:
            raise BadDeclaration(f"{here} is in no version {api.versions}")
        if f.tag is not None and not (
            f.tagged != NEVER and f.versions.covers(f.tagged) and api.flexible.covers(f.tagged)
        ):
            raise BadDeclaration(f"{here} has its tag where no tags are")
        # Versions of the message without the field, or bytes without the tag, leave it out.
        left_out = f.tag is not None or not f.versions.covers(api.versions)
        if f.kind == "struct" and f.fallback is None and f.nullable == NEVER and left_out:
            raise BadDeclaration(f"{here} needs default=DEFAULT for where it is left out")
        if f.struct is not None:
            _check_versions(here, f.struct, api)


def _refuse_change(self: Struct, name: str, value: object) -> None:
    raise AttributeError(f"{self!r} is a shared default: assign a new {type(self).__name__}")


def _unchangeable(where: str, cls: type[Struct]) -> Struct:
    """Return an instance with all defaults that no holder can change for the others."""
    body = {
        "__slots__": (),
        "__setattr__": _refuse_change,
        # Copies are for changing: they are ordinary instances, which have the same defaults.
        "__reduce__": lambda self: (cls, ()),
        "__reduce_ex__": lambda self, protocol: (cls, ()),
    }
    frozen = _StructType(cls.__name__, (cls,), body)
    instance = object.__new__(cast("type[Struct]", frozen))
    for f in cls.fields:
        if f.required:
            raise BadDeclaration(f"{where}: {cls.__name__}.{f.name} has no default to share")
        # A list could be changed for the others.
        object.__setattr__(instance, f.name, () if f.fallback == [] else f.fallback)
    return instance


def _constructor(cls: type[Struct]) -> Callable[..., None]:
    """Compile the `__init__` of a structure."""
    scope: dict[str, Any] = {"OWN_LIST": object()}
    parameters, body = ["self"], []
    for number, f in enumerate(cls.fields):
        value = f.name
        if f.required:
            parameters.append(f.name)
        elif f.fallback == []:
            parameters.append(f"{f.name}=OWN_LIST")
            value = f"[] if {f.name} is OWN_LIST else {f.name}"
        else:
            scope[f"default{number}"] = f.fallback
            parameters.append(f"{f.name}=default{number}")
        body.append(f"    self.{f.name} = {value}")
    if cls.fields:
        parameters.insert(1, "*")
    text = "\n".join([f"def __init__({', '.join(parameters)}):", *(body or ["    pass"])])
    exec(compile(text, f"<constructor of {cls.__name__}>", "exec"), scope)
    constructor: Callable[..., None] = scope["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor
