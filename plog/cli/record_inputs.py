"""How `plog produce` reads a record from a line: text with separators, or JSON as `consume` prints.

Owns the rules for valid lines. Never guesses: a line that breaks a rule is refused with the reason.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from plog.printable import printable

Header: TypeAlias = tuple[str, bytes | None]
Input: TypeAlias = tuple[bytes | None, bytes | None, Sequence[Header], int | None, int | None]
"""Value, key, headers; then the partition and the timestamp in ms, None where the line has none."""
Reader: TypeAlias = Callable[[bytes], Input | None]
"""Returns the record of a line, or None for a blank line of JSON. Raises InvalidLine."""

FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
MAX_QUOTED = 40
MAX_PARTITION = 2**31 - 1
MAX_TIMESTAMP = 2**63 - 1


class InvalidLine(ValueError):
    """A line is not a record; the text says why."""


def text_reader(
    *,
    key_separator: bytes | None = None,
    header_separator: bytes | None = None,
    null: bytes | None = None,
    require_key: bool = True,
) -> Reader:
    """Read lines of HEADERS, KEY and VALUE, each but the last followed by its separator.

    Args:
        header_separator: the line begins with headers such as a=1,b=2, or with none.
        null: a key, value or header value that equals it is null.
        require_key: refuse a line without the key separator; otherwise it is a value without a key.
    """
    if key_separator is None and header_separator is None and null is None:
        return _value

    def read(line: bytes) -> Input:
        text = _without_end(line)
        key: bytes | None = None
        headers: Sequence[Header] = ()
        if header_separator is not None:
            listed, found, rest = text.partition(header_separator)
            if not found:
                raise InvalidLine(
                    f"no header separator {_quoted(header_separator)} in {_quoted(text)}"
                )
            headers, text = _headers(listed, null), rest
        if key_separator is not None:
            first, found, rest = text.partition(key_separator)
            if found:
                key, text = None if first == null else first, rest
            elif require_key:
                raise InvalidLine(f"no key separator {_quoted(key_separator)} in {_quoted(text)}")
        return None if text == null else text, key, headers, None, None

    return read


def json_reader(*, keep_partitions: bool = True) -> Reader:
    """Read lines as `plog consume --json` prints them.

    `value` is required, so that a misspelt name does not write a tombstone. The topic, the offset
    and the type of the timestamp have no effect.

    Args:
        keep_partitions: return the partitions of the lines.
    """

    def read(line: bytes) -> Input | None:
        fields = _json(line)
        if fields is None:
            return None
        for name in fields:
            if name not in FIELDS:
                shown = _quoted(name.encode(errors="backslashreplace"))
                raise InvalidLine(f"unknown field {shown}: use {', '.join(FIELDS)}")
        if "value" not in fields:
            raise InvalidLine("no field 'value': write null for a tombstone")
        partition = _number(fields, "partition", 0, MAX_PARTITION)
        timestamp = _number(fields, "timestamp", -1, MAX_TIMESTAMP)
        return (
            _data(fields["value"], "value"),
            _data(fields.get("key"), "key"),
            _header_list(fields.get("headers")),
            partition if keep_partitions else None,
            None if timestamp == -1 else timestamp,
        )

    return read


def _value(line: bytes) -> Input:
    """Read a line as a value: the usual case, and the one that must be fast."""
    return _without_end(line), None, (), None, None


def _without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _headers(text: bytes, null: bytes | None) -> list[Header]:
    headers: list[Header] = []
    for entry in text.split(b",") if text else ():
        name, equals, value = entry.partition(b"=")
        if not equals:
            raise InvalidLine(f"header {_quoted(entry)} is not NAME=VALUE")
        try:
            headers.append((name.decode(), None if value == null else value))
        except UnicodeDecodeError as fault:
            raise InvalidLine(f"header name {_quoted(name)} is not UTF-8") from fault
    return headers


def _json(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if the line is blank."""
    try:
        text = line.decode()
    except UnicodeDecodeError as fault:
        raise InvalidLine(f"not UTF-8 at byte {fault.start + 1}: {_quoted(line)}") from fault
    if not text or text.isspace():
        return None
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as fault:
        raise InvalidLine(
            f"not JSON: {fault.msg} at character {fault.colno}: {_quoted(line)}"
        ) from fault
    except (ValueError, RecursionError) as fault:  # too many digits, or nested too deep
        raise InvalidLine(f"not JSON that can be read: {_quoted(line)}") from fault
    if not isinstance(fields, dict):
        raise InvalidLine(f"not a JSON object: {_quoted(line)}")
    return fields


def _data(value: object, name: str) -> bytes | None:
    """Read text, null or {"base64": ...}."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("base64"), str):
            return b64decode(value["base64"], validate=True)
    except UnicodeEncodeError as fault:
        raise InvalidLine(
            f"{name} has half of a surrogate pair, which is not a character"
        ) from fault
    except (binascii.Error, ValueError) as fault:
        raise InvalidLine(f"{name} is not valid base64: {fault}") from fault
    raise InvalidLine(f'{name} is not text, null or {{"base64": "..."}}')


def _header_list(value: object) -> Sequence[Header]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidLine("headers are not a list of [name, value]")
    headers: list[Header] = []
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise InvalidLine("headers are not a list of [name, value]")
        name, data = entry
        _data(name, "header name")
        headers.append((name, _data(data, "header value")))
    return headers


def _number(fields: dict[str, Any], name: str, lowest: int, highest: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not lowest <= value <= highest:
        raise InvalidLine(f"{name} is not a number from {lowest} to {highest}")
    return value


def _quoted(data: bytes) -> str:
    """Return the beginning of some bytes in quotes, for a message."""
    # A character has at most 4 bytes.
    text = _without_end(data[: 4 * MAX_QUOTED + 4]).decode(errors="backslashreplace")
    if len(text) > MAX_QUOTED:
        text = text[:MAX_QUOTED] + "..."
    return f"'{printable(text)}'"
