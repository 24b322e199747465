"""Where a request holds text: found in the declarations, so that no API can be forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from plog.protocol.api_keys import ApiKey
from plog.protocol.schema import Struct, Versions
from tests.protocol.instances import filled
from tests.served import SERVED


class Place(NamedTuple):
    """A field of a request, by the path of names to it, and the served versions that have it."""

    key: ApiKey
    path: str
    versions: Versions

    def __str__(self) -> str:
        return f"{self.key.name} {self.path}"


def every_place() -> Iterator[Place]:
    """Yield each string, and each array of strings, in the requests of the APIs that are served."""
    for key, handler in sorted(SERVED.items()):
        served = Versions(handler.min_version, handler.max_version)
        for path, versions in _places(handler.request, served):
            yield Place(ApiKey(key), path, versions)


def _places(cls: type[Struct], within: Versions) -> Iterator[tuple[str, Versions]]:
    for f in cls.fields:
        versions = Versions(max(within.low, f.versions.low), min(within.high, f.versions.high))
        if versions.high < versions.low:
            continue
        if f.struct is not None:
            for path, some in _places(f.struct, versions):
                yield f"{f.name}.{path}", some
        elif "string" in (f.kind, f.element):
            yield f.name, versions


def put(message: Struct, path: str, value: object) -> None:
    """Put a value at every such place of a message; where there is no structure yet, make one."""
    name, _, rest = path.partition(".")
    (found,) = [f for f in message.fields if f.name == name]
    if not rest:
        setattr(message, name, [value] if found.kind == "array" else value)
        return
    if found.kind != "array":
        put(getattr(message, name), rest, value)
        return
    assert found.struct is not None
    if not getattr(message, name):
        setattr(message, name, [filled(found.struct, {})])
    for one in getattr(message, name):
        put(one, rest, value)
