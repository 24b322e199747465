"""Messages of every declared version, made from the declarations.

`strategy` gives hypothesis instances of one version; `sample` gives a seeded
generator's, for tests that run thousands of cases in a child process; `build`
makes a message of plain Python values, as the golden table writes them down.
"""

from __future__ import annotations

import importlib
import random
import uuid
from typing import Any

from hypothesis import strategies as st

from plog.protocol import framing
from plog.protocol.schema import FORMAT, WIDTH, Field, Struct

MODULES = [importlib.import_module(f"plog.protocol.messages.{name}") for name in framing.FAMILIES]
MESSAGES: list[type[Struct]] = sorted(
    (
        cls
        for module in MODULES
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Struct) and cls.api.key >= 0
    ),
    key=lambda cls: (cls.api.key, cls.__name__),
)
VERSIONS = [
    (cls, version)
    for cls in MESSAGES
    for version in range(cls.api.versions.low, cls.api.versions.high + 1)
]
"""Every message at every version."""

BY_NAME = {cls.__name__: cls for cls in MESSAGES}


def name_of(value: object) -> str:
    """Return what pytest shall call a message or version."""
    return value.__name__ if isinstance(value, type) else str(value)


def _integers(kind: str) -> tuple[int, int]:
    bits = 8 * WIDTH[kind]
    return (0, (1 << bits) - 1) if kind.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "string": _TEXT,
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=80),
    "uuid": st.uuids(),
} | {kind: st.integers(*_integers(kind)) for kind in FORMAT if "int" in kind}


def strategy(cls: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Return a strategy of messages or structures that `version` can carry."""
    return st.fixed_dictionaries(
        {f.name: _field(f, version) for f in cls.fields if version in f.versions}
    ).map(lambda values: filled(cls, values))


def _field(f: Field, version: int) -> st.SearchStrategy[Any]:
    kind = f.element if f.kind == "array" else f.kind
    one = SIMPLE[kind] if f.struct is None else strategy(f.struct, version)
    if f.kind == "array":
        one = st.lists(one, max_size=2)
    if version in f.nullable:
        one = one | st.none()
    if version in f.tagged:
        one = one | st.builds(f.default)
    return one


def sample(cls: type[Struct], version: int, rng: random.Random) -> Any:
    """Return one message that `version` can carry, with something in each array."""
    values = {}
    for f in cls.fields:
        if version in f.versions and not (version in f.tagged and rng.random() < 0.3):
            values[f.name] = _sample_field(f, version, rng)
    return filled(cls, values)


def _sample_field(f: Field, version: int, rng: random.Random) -> Any:
    if version in f.nullable and rng.random() < 0.2:
        return None
    if f.kind == "array":
        return [_sample_one(f.element, f.struct, version, rng) for _ in range(rng.choice((1, 2)))]
    return _sample_one(f.kind, f.struct, version, rng)


def _sample_one(kind: str, struct: type[Struct] | None, version: int, rng: random.Random) -> Any:
    if struct is not None:
        return sample(struct, version, rng)
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.uniform(-1e9, 1e9)
        case "string":
            return rng.choice(("", "a", "orders", "größe", "x" * 130))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 61, 130)))
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128))
    return rng.choice((0, 1, rng.randint(*_integers(kind)), _integers(kind)[1]))


def filled(cls: type[Struct], values: dict[str, Any]) -> Any:
    """Return an instance with `values`, every other field at its default."""
    return cls(**{f.name: f.default() for f in cls.fields} | values)


def build(cls: type[Struct], values: dict[str, Any]) -> Any:
    """Return an instance of plain values: structures as dicts, uuids as text."""
    by_name = {f.name: f for f in cls.fields}
    return filled(cls, {name: _build(by_name[name], value) for name, value in values.items()})


def _build(f: Field, value: Any) -> Any:
    if isinstance(value, list):
        return [_build_one(f, item) for item in value]
    return value if value is None else _build_one(f, value)


def _build_one(f: Field, value: Any) -> Any:
    if f.struct is not None:
        return build(f.struct, value)
    return uuid.UUID(value) if "uuid" in (f.kind, f.element) else value


def plain(held: Any, version: int) -> Any:
    """Return the plain values of a message: `build` undone; defaults of tagged fields left out."""
    if isinstance(held, Struct):
        return {
            f.name: plain(getattr(held, f.name), version)
            for f in held.fields
            if version in f.versions
            and not (version in f.tagged and getattr(held, f.name) == f.default())
        }
    if isinstance(held, list):
        return [plain(item, version) for item in held]
    if isinstance(held, uuid.UUID):
        return str(held)
    return bytes(held) if isinstance(held, memoryview) else held
