"""How `plog consume` prints a record: by a template, as tab-separated columns, or as JSON.

Owns the fields of a template and the escapes that both `consume` and `produce` accept. Prints keys
and values unchanged, whatever their bytes; only JSON has text for bytes that are not UTF-8.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from plog.cli.output import data_json, time_text

if TYPE_CHECKING:
    from plog.client.consumer import ConsumerRecord

Format = Callable[["ConsumerRecord"], bytes]
"""Returns the bytes to print for a record, its end included."""

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
NULL = "null"
FIELDS = (
    "topic",
    "partition",
    "offset",
    "time",
    "timestamp",
    "timestamp_type",
    "headers",
    "key",
    "value",
    "key_size",
    "value_size",
)
COLUMNS = ("topic", "partition", "offset", "time", "headers", "key", "value")
"""The order of columns; `produce` reads the last three in this order."""

ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
ENDS = (b"\n", b"\0")
"""Escapes that end a record, so that no line feed is added."""

_TOKEN = re.compile(
    r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|(?P<brace>[{}])"
    r"|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|[^{}\\]+",
    re.DOTALL,
)


def template_format(template: str, null: str = NULL) -> Format:
    r"""Compile a template such as '{partition}@{offset} {key}={value}'.

    A line feed follows each record, unless the template ends with the escape \n or \0.

    Args:
        null: the text for a key, a value or a header's value that is null.

    Raises:
        ValueError: no field, an unknown field or escape, or a single brace.
    """
    encoders = _encoders(os.fsencode(null))
    pattern, fields, last = b"", [], b""
    for token in _TOKEN.finditer(template):
        field, last = token["field"], b""
        if field is not None:
            if field not in encoders:
                raise ValueError(f"unknown field {{{field}}}: use {', '.join(FIELDS)}")
            fields.append(encoders[field])
            pattern += b"%b"
            continue
        if token["brace"]:
            brace = token["brace"]
            raise ValueError(f"single {brace} in {template!r}: write {brace * 2} to print it")
        if token["hex"] is not None or token["escape"] is not None:
            text = last = _escaped(token)
        else:
            text = os.fsencode(token[0].replace("{{", "{").replace("}}", "}"))
        pattern += text.replace(b"%", b"%%")
    if not fields:
        names = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise ValueError(f"no field in {template!r}: use {names}")
    if last not in ENDS:
        pattern += b"\n"
    if pattern == b"%b\n" and fields == [encoders["value"]]:
        return _value_format(os.fsencode(null))
    return lambda record: pattern % tuple([encode(record) for encode in fields])


def column_format(columns: set[str], null: str = NULL) -> Format:
    """Print these fields and the value, separated by tabs, in the order of COLUMNS."""
    shown = columns | {"value"}
    return template_format(r"\t".join(f"{{{name}}}" for name in COLUMNS if name in shown), null)


def json_format() -> Format:
    """Print each record as one line of JSON with all its fields, which `produce` can read."""
    encode = json.JSONEncoder(ensure_ascii=False).encode

    def line(record: ConsumerRecord) -> bytes:
        text = encode(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type],
                "key": data_json(record.key),
                "value": data_json(record.value),
                "headers": [[name, data_json(value)] for name, value in record.headers],
            }
        )
        return text.encode() + b"\n"

    return line


def unescape(text: str) -> bytes:
    r"""Replace the escapes \n \t \r \0 \\ and \x1f in an argument; braces have no meaning.

    Raises:
        ValueError: an unknown escape.
    """
    return b"".join(
        _escaped(token)
        if token["hex"] is not None or token["escape"] is not None
        else os.fsencode(token[0])
        for token in _TOKEN.finditer(text)
    )


def separator(text: str | None, option: str) -> bytes | None:
    """Read a separator, which may hold escapes.

    Raises:
        click.BadParameter: it is empty, or has an unknown escape; the message names `option`.
    """
    if text is None:
        return None
    if text == "":
        raise click.BadParameter("the separator is empty", param_hint=option)
    try:
        return unescape(text)
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint=option) from fault


def _escaped(token: re.Match[str]) -> bytes:
    if token["hex"] is not None:
        return bytes.fromhex(token["hex"])
    found = ESCAPES.get(token["escape"])
    if found is None:
        raise ValueError(
            rf"unknown escape \{token['escape']}: use \n \t \r \0 \\ or \x and two digits"
        )
    return found


def _encoders(null: bytes) -> dict[str, Format]:
    """Return how each field prints."""

    def headers(record: ConsumerRecord) -> bytes:
        return b",".join(
            [
                name.encode() + b"=" + (null if data is None else data)
                for name, data in record.headers
            ]
        )

    encoders: dict[str, Format] = {
        "topic": lambda record: record.topic.encode(),
        "partition": lambda record: b"%d" % record.partition,
        "offset": lambda record: b"%d" % record.offset,
        "time": lambda record: time_text(record.timestamp).encode(),
        "timestamp": lambda record: b"%d" % record.timestamp,
        "timestamp_type": lambda record: TIMESTAMP_TYPES[record.timestamp_type].encode(),
        "headers": headers,
        "key": lambda record: null if record.key is None else record.key,
        "value": lambda record: null if record.value is None else record.value,
        "key_size": lambda record: b"%d" % _size(record.key),
        "value_size": lambda record: b"%d" % _size(record.value),
    }
    assert tuple(encoders) == FIELDS
    return encoders


def _size(data: bytes | None) -> int:
    """Return the bytes of a key or value, -1 for null."""
    return -1 if data is None else len(data)


def _value_format(null: bytes) -> Format:
    """Print only values: the usual case, and the one that must be fast."""
    return lambda record: (null if record.value is None else record.value) + b"\n"
