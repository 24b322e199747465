"""kafka-delete-records: delete the records below an offset of each partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plog.cli.kafka.config import Clients
from plog.cli.kafka.options import Given, Options
from plog.cli.kafka.texts import java_text
from plog.errors import KafkaError
from plog.types import TopicPartition

OPTIONS = Options(
    "Delete the records below an offset of each partition.",
    """
    --bootstrap-server HOST:PORT  Address of a broker. Required.
    --offset-json-file FILE       JSON with the partitions and offsets; -1 for all. Required.
    --command-config FILE         Properties of the client.
    """,
)
VERSION = 1


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    given.require("bootstrap-server", "offset-json-file")
    path = given.text("offset-json-file")
    try:
        text = Path(path).read_text("utf-8")
    except OSError as fault:
        raise ValueError(f"Unable to read file {path}") from fault
    offsets = _read(text)
    with Clients(given) as clients:
        print("Executing records delete operation")
        lines = [_delete(clients, at, offset) for at, offset in sorted(offsets.items())]
    print("Records delete operation completed:")
    for line in lines:
        print(line)
    return 0


def _delete(clients: Clients, at: TopicPartition, offset: int) -> str:
    try:
        start = clients.admin.delete_records({at: offset})[at]
    except KafkaError as fault:
        return f"partition: {at}\terror: {java_text(fault)}"
    return f"partition: {at}\tlow_watermark: {start}"


def _read(text: str) -> dict[TopicPartition, int]:
    """Read the offsets.

    Raises:
        ValueError: the file has another form, or a partition twice.
    """
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as fault:
        raise ValueError("The input string is not a valid JSON") from fault
    version = whole.get("version", VERSION) if isinstance(whole, dict) else VERSION
    if version != VERSION:
        raise ValueError(f"Not supported version field value {version}")
    if not isinstance(whole, dict) or "partitions" not in whole:
        raise ValueError("Missing partitions field")
    offsets: dict[TopicPartition, int] = {}
    twice = set()
    for entry in whole["partitions"]:
        at = TopicPartition(_field(entry, "topic", str), _field(entry, "partition", int))
        if at in offsets:
            twice.add(str(at))
        offsets[at] = _field(entry, "offset", int)
    if twice:
        raise ValueError(
            f"Offset json file contains duplicate topic partitions: {','.join(sorted(twice))}"
        )
    return offsets


def _field(entry: Any, name: str, kind: type) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise ValueError(f"No such field exists: `{name}`")
    value = entry[name]
    if type(value) is not kind:
        kind_text = "a number" if kind is int else "text"
        raise ValueError(f"Expected {kind_text} for `{name}`, received {json.dumps(value)}")
    return value
