"""The formatters of kafka-console-consumer, with the properties that they read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from plog.cli.kafka.java_data import deserializer
from plog.client.consumer import ConsumerRecord

DEFAULT_CLASS = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
PACKAGES = ("org.apache.kafka.tools.consumer.", "kafka.tools.")
OLD_PACKAGE = "kafka.tools."
TIMESTAMP_TYPES = {0: b"CreateTime", 1: b"LogAppendTime"}
Decode = Callable[[bytes], bytes]


class Formatter(Protocol):
    """Turns a record into the bytes to print."""

    def format(self, record: ConsumerRecord) -> bytes:
        """Return the bytes of a record.

        Raises:
            ValueError: a deserializer cannot read the record.
        """


class Plain:
    """Prints the fields that the properties select, in Kafka's order."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        def flag(name: str, default: str = "false") -> bool:
            return properties.get(name, default).strip().lower() == "true"

        def text(name: str, default: str) -> bytes:
            return properties.get(name, default).encode()

        def decode(name: str) -> Decode:
            known = properties.get(f"{name}.deserializer")
            return deserializer(known) if known else lambda data: data

        self._timestamp = flag("print.timestamp")
        self._partition = flag("print.partition")
        self._offset = flag("print.offset")
        self._headers = flag("print.headers")
        self._key = flag("print.key")
        self._value = flag("print.value", "true")
        self._separator = text("key.separator", "\t")
        self._line_end = text("line.separator", "\n")
        self._header_separator = text("headers.separator", ",")
        self._null = text("null.literal", "null")
        self._decode_key, self._decode_value = decode("key"), decode("value")
        self._decode_header = decode("headers")

    def format(self, record: ConsumerRecord) -> bytes:
        """Return a line with the fields of a record."""
        fields: list[bytes] = []
        if self._timestamp:
            kind = TIMESTAMP_TYPES.get(record.timestamp_type)
            has_time = kind is not None and record.timestamp >= 0
            fields.append(b"%s:%d" % (kind, record.timestamp) if has_time else b"NO_TIMESTAMP")
        if self._partition:
            fields.append(b"Partition:%d" % record.partition)
        if self._offset:
            fields.append(b"Offset:%d" % record.offset)
        if self._headers:
            headers = [
                name.encode(errors="surrogateescape")
                + b":"
                + self._data(value, self._decode_header)
                for name, value in record.headers
            ]
            fields.append(self._header_separator.join(headers) or b"NO_HEADERS")
        if self._key:
            fields.append(self._data(record.key, self._decode_key))
        if self._value:
            fields.append(self._data(record.value, self._decode_value))
        return self._separator.join(fields) + self._line_end

    def _data(self, data: bytes | None, decode: Decode) -> bytes:
        return self._null if data is None else decode(data)


class Nothing:
    """Prints nothing."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        pass

    def format(self, record: ConsumerRecord) -> bytes:
        """Return no bytes."""
        return b""


class Logging(Plain):
    """Prints the fields, and logs the record on stderr."""

    def format(self, record: ConsumerRecord) -> bytes:
        """Return the fields of a record."""
        kind = TIMESTAMP_TYPES.get(record.timestamp_type, b"NoTimestampType").decode()
        key, value = (
            "null" if data is None else data.decode(errors="replace")
            for data in (record.key, record.value)
        )
        sys.stderr.write(f"INFO {kind}:{record.timestamp}, key:{key}, value:{value}\n")
        return super().format(record)


FORMATTERS: dict[str, Callable[[Mapping[str, str]], Formatter]] = {
    "DefaultMessageFormatter": Plain,
    "NoOpMessageFormatter": Nothing,
    "LoggingMessageFormatter": Logging,
}


def formatter(class_name: str, properties: Mapping[str, str]) -> Formatter:
    """Return the formatter of a class.

    Raises:
        ValueError: plog has none for the class, or no deserializer of a property's class.
    """
    for package in PACKAGES:
        known = FORMATTERS.get(class_name.removeprefix(package))
        if known is None or not class_name.startswith(package):
            continue
        if package == OLD_PACKAGE:
            newer = PACKAGES[0] + class_name.removeprefix(package)
            sys.stderr.write(
                f"WARNING: {class_name} is deprecated and will be removed in the next major"
                f" release. Please use {newer} instead\n"
            )
        return known(properties)
    raise ValueError(f"{class_name} is not supported: use {', '.join(FORMATTERS)}")
