"""The ends of the range that a query reads, and the options that set them.

Owns the JSON of partitions and their offsets. Talks to no broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plog.spark.option_values import INT_MAX, LONG_MAX, at_least_0, not_above
from plog.types import TopicPartition

LATEST, EARLIEST = -1, -2
"""The end and the start of a partition, in JSON of offsets."""


@dataclass(frozen=True)
class Bound:
    """One end of the range to read.

    Exactly one of the four is set: `named` (LATEST or EARLIEST) for all partitions, `offsets`
    per partition, `timestamp` (ms) for all, `timestamps` per partition.
    """

    named: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None


AT_LATEST, AT_EARLIEST = Bound(named=LATEST), Bound(named=EARLIEST)


def inverted_bounds(
    what: str,
    starts: Mapping[TopicPartition, int] | None,
    ends: Mapping[TopicPartition, int] | None,
) -> list[str]:
    """Return an error for each partition whose start is above its end."""
    return [
        f"the starting {what} {starts[partition]} for {partition} is above the ending {what} {end}"
        for partition, end in (ends or {}).items()
        if starts is not None and 0 <= end < starts.get(partition, end)
    ]


def json_integer(value: object) -> int:
    """Read a JSON number; true, 1.5 and "7" are not valid offsets."""
    if type(value) is not int:
        raise ValueError(f"{json.dumps(value)} is not a whole number")
    return not_above(value, LONG_MAX)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; refuse duplicate keys, which would lose a value."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return made


def json_object(text: str, example: str) -> dict[str, Any]:
    """Read a JSON object without duplicate keys."""
    try:
        parsed = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as fault:
        raise ValueError(f"invalid JSON ({fault}): expected e.g. {example}") from fault
    if not isinstance(parsed, dict):
        raise ValueError(f"expected e.g. {example}, not {text}")
    return parsed


def _per_partition(text: str) -> dict[TopicPartition, int]:
    example = '{"topic": {"0": 23, "1": 42}}'
    found = {}
    for topic, partitions in json_object(text, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(f"expected e.g. {example}, not {text}")
        for index, value in partitions.items():
            found[TopicPartition(topic, partition_index(index))] = json_integer(value)
    return found


def partition_index(text: str) -> int:
    """Read a partition number: decimal digits without leading zeros."""
    if re.fullmatch(r"0|[1-9][0-9]*", text) is None or int(text) > INT_MAX:
        raise ValueError(f"invalid partition number {text}")
    return int(text)


def _offsets(name: str, allowed: int, forbidden: int) -> Callable[[str], Bound]:
    words = {"latest": LATEST, "earliest": EARLIEST}

    def convert(text: str) -> Bound:
        word = text.strip().lower()
        if words.get(word) == allowed:
            return Bound(named=allowed)
        if word in words:
            raise ValueError(f"a batch query cannot {name} at the {word} offset")
        offsets = _per_partition(text)
        for partition, offset in offsets.items():
            if offset == forbidden or offset < EARLIEST:
                raise ValueError(f"a batch query cannot {name} at offset {offset} of {partition}")
        return Bound(offsets=offsets)

    return convert


def _stream_start(text: str) -> Bound:
    word = text.strip().lower()
    if word in ("latest", "earliest"):
        return AT_LATEST if word == "latest" else AT_EARLIEST
    offsets = _per_partition(text)
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise ValueError(
                f"invalid offset {offset} for {partition}: use -2 (earliest), -1 (latest) or more"
            )
    return Bound(offsets=offsets)


def _timestamp(text: str) -> Bound:
    return Bound(timestamp=at_least_0(text, LONG_MAX))


def _timestamps(text: str) -> Bound:
    timestamps = _per_partition(text)
    for partition, timestamp in timestamps.items():
        if timestamp < 0:
            raise ValueError(f"timestamp {timestamp} for {partition} is below 0")
    return Bound(timestamps=timestamps)


BOUNDS: dict[str, dict[str, Callable[[str], Bound]]] = {
    "start": {
        "startingTimestamp": _timestamp,
        "startingOffsetsByTimestamp": _timestamps,
        "startingOffsets": _offsets("start", EARLIEST, LATEST),
    },
    "end": {
        "endingTimestamp": _timestamp,
        "endingOffsetsByTimestamp": _timestamps,
        "endingOffsets": _offsets("end", LATEST, EARLIEST),
    },
}
"""The options of each end of the range, highest precedence first."""

STREAM_BOUNDS: dict[str, dict[str, Callable[[str], Bound]]] = {
    "start": BOUNDS["start"] | {"startingOffsets": _stream_start}
}
"""The same for streams, which have no end."""
