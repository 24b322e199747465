"""Reads Java's properties syntax, the syntax of Kafka's configuration files.

Owns the syntax: comments, separators, escapes, lines that go on. Knows no keys.
The bytes are UTF-8 (of which ASCII, all that Kafka's keys and most values need,
is a part); Java would take bytes above 127 for Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from plog.errors import ConfigError

_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACE = " \t\f"
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    """One key and value, and the number of the line on which it begins."""

    key: str
    value: str
    line: int


def load_properties(path: Path | str) -> list[Entry]:
    """Read the entries of a file, in order; one key may come several times.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, or has a malformed escape.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from error
    return parse_properties(text, str(path))


def parse_properties(text: str, source: str) -> list[Entry]:
    """Read the entries of a text; `source` names it in errors.

    Raises:
        ConfigError: listing every malformed escape.
    """
    entries: list[Entry] = []
    faults: list[str] = []
    for number, line in _logical_lines(text):
        raw_key, raw_value = _split(line)
        try:
            entries.append(Entry(_unescape(raw_key), _unescape(raw_value), number))
        except ValueError as reason:
            faults.append(f"{source}:{number}: {reason}")
    if faults:
        raise ConfigError("\n".join(faults))
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = enumerate(_LINE_END.split(text), start=1)
    for number, line in lines:
        logical = line.lstrip(_SPACE)
        if not logical or logical[0] in "#!":
            continue
        while _goes_on(logical):
            # Only the first line of an entry can be blank or a comment.
            logical = logical[:-1] + next(lines, (0, ""))[1].lstrip(_SPACE)
        if logical:
            yield number, logical


def _goes_on(line: str) -> bool:
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Cut at the first ``=``, ``:`` or space that is not escaped."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _SPACE:
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return key, rest


def _unescape(raw: str) -> str:
    if "\\" not in raw:
        return raw
    # Java's \uXXXX are UTF-16 units: a pair of them can be one character.
    units: list[str] = []
    at = 0
    while at < len(raw):
        if raw[at] != "\\":
            units.append(raw[at])
            at += 1
        elif raw[at + 1 : at + 2] == "u":
            digits = raw[at + 2 : at + 6]
            if re.fullmatch(r"[0-9a-fA-F]{4}", digits) is None:
                raise ValueError(f"malformed escape {raw[at : at + 6]!r}")
            units.append(chr(int(digits, 16)))
            at += 6
        else:
            units.append(_ESCAPED.get(raw[at + 1 : at + 2], raw[at + 1 : at + 2]))
            at += 2
    try:
        return "".join(units).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("an escape is half of a surrogate pair") from None
