"""The lines of stdin as records, by the properties of Kafka's LineMessageReader."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

Header = tuple[str, bytes | None]


class Line(NamedTuple):
    """A record that a line describes."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


class LineReader:
    """Reads records from lines: `headers TAB key TAB value`, the first two only if asked for.

    Args:
        source: the lines.
        properties: those of Kafka's LineMessageReader; unknown ones are ignored.
        is_prompting: whether to print a prompt before each line.

    Raises:
        ValueError: a property contradicts another one.
    """

    def __init__(
        self, source: BinaryIO, properties: Mapping[str, str], *, is_prompting: bool
    ) -> None:
        def flag(name: str) -> bool:
            return properties.get(name, "false").strip().lower() == "true"

        def text(name: str, default: str) -> bytes:
            return properties.get(name, default).encode()

        self._source = source
        self._is_prompting = is_prompting
        self._parse_key, self._parse_headers = flag("parse.key"), flag("parse.headers")
        self._ignore_error = flag("ignore.error")
        self._key_separator = text("key.separator", "\t")
        self._headers_end = text("headers.delimiter", "\t")
        self._header_separator = text("headers.separator", ",")
        self._header_key_separator = text("headers.key.separator", ":")
        marker = properties.get("null.marker")
        self._null = None if marker is None else marker.encode()
        self._check()

    def _check(self) -> None:
        named = {
            "headers.delimiter": self._headers_end,
            "headers.separator": self._header_separator,
            "headers.key.separator": self._header_key_separator,
        }
        values = list(named.values())
        if len(set(values)) < len(values):
            one, other = next(
                (one, other)
                for number, one in enumerate(named)
                for other in list(named)[number + 1 :]
                if named[one] == named[other]
            )
            raise ValueError(f"{one} and {other} may not be equal")
        if self._null is not None:
            for name, value in {**named, "key.separator": self._key_separator}.items():
                if self._null == value:
                    raise ValueError(f"null.marker and {name} may not be equal")

    def __iter__(self) -> Iterator[Line]:
        """Yield the records.

        Raises:
            ValueError: a line lacks a separator, unless `ignore.error` is set.
        """
        number = 0
        while True:
            if self._is_prompting:
                sys.stdout.write(">")
                sys.stdout.flush()
            line = self._source.readline()
            if not line:
                return
            number += 1
            yield self._record(line.rstrip(b"\n").removesuffix(b"\r"), number)

    def _record(self, line: bytes, number: int) -> Line:
        headers: bytes | None = b""
        left = line
        if self._parse_headers:
            headers, left = self._split(left, self._headers_end, "headers delimiter", number, line)
        key: bytes | None = None
        value = left
        if self._parse_key:
            key, value = self._split(left, self._key_separator, "key separator", number, line)
        return Line(self._or_null(key), self._or_null(value), list(self._headers(headers, number)))

    def _split(
        self, text: bytes, separator: bytes, name: str, number: int, line: bytes
    ) -> tuple[bytes | None, bytes]:
        before, found, after = text.partition(separator)
        if found:
            return before, after
        if self._ignore_error:
            return None, text
        raise ValueError(
            f"No {name} found on line number {number}: '{line.decode('utf-8', 'replace')}'"
        )

    def _headers(self, text: bytes | None, number: int) -> Iterator[Header]:
        if not text or text == self._null:
            return
        for pair in text.split(self._header_separator):
            name, found, value = pair.partition(self._header_key_separator)
            if not found and not self._ignore_error:
                raise ValueError(
                    f"No header key separator found in pair '{pair.decode('utf-8', 'replace')}'"
                    f" on line number {number}"
                )
            yield name.decode(errors="surrogateescape"), self._or_null(value if found else None)

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data is None or data == self._null else data
