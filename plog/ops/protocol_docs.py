"""Generates ``docs/protocol.md`` from the declared messages.

Run ``python -m plog.ops.protocol_docs docs/protocol.md``. A test fails while the file does not
match the declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from plog.ops import generated_page
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import request_class, response_class
from plog.protocol.schema import NEVER, ZERO, Field, Struct

HEAD = """\
# Messages

The messages that plog encodes and decodes.
This page is generated from `plog/protocol/messages/`. <!-- checkout -->
Do not edit it; run `python -m plog.ops.protocol_docs docs/protocol.md`. <!-- checkout -->
A broker reports the versions that it supports (ApiVersions). [SKIPPED.md](SKIPPED.md) lists what it
does not support.

Types are Kafka's. `?` marks a nullable field, with the versions if not all. `[]` marks an array;
the fields of its elements follow as `array.field`. Flexible versions have compact lengths and
tagged fields (KIP-482). A field without versions is in all of them. Versions without an ignorable
field drop it. Versions without any other field refuse a message that sets it.
"""


def page() -> str:
    """Return the whole page."""
    apis = [
        (key, request, response)
        for key in ApiKey
        if (request := request_class(key)) and (response := response_class(key))
    ]
    lines = [HEAD, "| key | API | versions | flexible |", "|--:|---|---|---|"]
    for key, request, _ in apis:
        name = request.__name__.removesuffix("Request")
        api = request.api
        lines.append(
            f"| {int(key)} | [{name}](#{name.lower()}) | {api.versions} | {api.flexible} |"
        )
    for _, request, response in apis:
        lines += ["", f"## {request.__name__.removesuffix('Request')}"]
        for cls in (request, response):
            lines += ["", f"### {cls.__name__}", "", inspect.getdoc(cls) or "", ""]
            lines += _table(cls)
    return "\n".join(lines) + "\n"


def _table(cls: type[Struct]) -> list[str]:
    rows = [_row(f, path) for f, path in _fields(cls, "")]
    if not rows:
        return ["No fields."]
    head = ["| field | type | versions | default | |", "|---|---|---|---|---|"]
    return head + rows


def _fields(cls: type[Struct], path: str) -> Iterator[tuple[Field, str]]:
    for f in cls.fields:
        yield f, f"{path}{f.name}"
        if f.struct is not None:
            yield from _fields(f.struct, f"{path}{f.name}.")


def _row(f: Field, path: str) -> str:
    kind = f.struct.__name__ if f.struct is not None else f.element or f.kind
    if f.kind == "array":
        kind = f"[]{kind}"
    if f.nullable != NEVER:
        kind += "?" if f.nullable == f.versions else f"? {f.nullable}"
    versions = "" if str(f.versions) == "0+" else str(f.versions)
    if f.tag is not None:
        where = "" if f.tagged == f.versions else f" in {f.tagged}"
        versions = f"{versions} tag {f.tag}{where}".lstrip()
    about = f.about + (" Ignorable." if f.ignorable else "")
    cells = [f"`{path}`", kind, versions, _default(f), about.replace("|", "\\|")]
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _default(f: Field) -> str:
    if f.required or f.struct is not None or f.fallback == []:
        return ""
    if f.fallback is None:
        return "null"
    if f.fallback == ZERO[f.kind] and f.kind in ("string", "bytes", "records", "uuid"):
        return "empty" if f.kind != "uuid" else "zero"
    return str(f.fallback).lower() if isinstance(f.fallback, bool) else str(f.fallback)


if __name__ == "__main__":
    generated_page.write(page())
