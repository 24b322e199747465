"""What an answer says, as facts by path, and where two answers say different things.

A fact is a text: error codes by their names, what is one broker's own (addresses, ids, sizes of
disks) by whether it is there. Lists of structures are looked at by what names their items.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from plog._native import batch, records
from plog.errors import ErrorCode
from plog.protocol.schema import Struct
from tests.compat.against_kafka.pair import CLOSED, PREFIX, Side

ABSENT = "absent"
NAMES = (
    "name", "topic", "topic_name", "topic_id", "key", "resource_name", "partition_index", "index",
    "partition", "partition_id", "api_key", "broker_id", "node_id", "log_dir", "batch_index",
    "group_id", "member_id", "group_instance_id", "transactional_id", "feature",
)  # fmt: skip
"""Fields that say which item of a list a structure is; the first that it has counts."""
ASSIGNMENTS = ("assignment", "target_assignment")
"""Fields that hold what a member of a consumer group (KIP-848) has, or is to have."""
CODEC_MASK, LOG_APPEND_TIME = 7, 8
RECENT_MS = 600_000


class Difference(NamedTuple):
    """A path at which the two say different things."""

    path: str
    kafka: str
    plog: str


def differences(kafka: Mapping[str, str], plog: Mapping[str, str]) -> set[Difference]:
    """Compare facts; of an item that one side lacks only that is told.

    plog says in words why it refuses something also where Kafka says nothing.
    """
    found = set()
    for path in kafka.keys() | plog.keys():
        ours, theirs = plog.get(path, ABSENT), kafka.get(path, ABSENT)
        says_more = (
            path.endswith("error_message") and ours == "given" and theirs in ("None", "empty")
        )
        if ours != theirs and not says_more and not _within_absent(path, kafka, plog):
            found.add(Difference(path, theirs, ours))
    return found


def _within_absent(path: str, kafka: Mapping[str, str], plog: Mapping[str, str]) -> bool:
    parts = path.split("/")
    above = ("/".join(parts[:end]) for end in range(1, len(parts)))
    return any((kafka.get(one) == "present") != (plog.get(one) == "present") for one in above)


def facts(side: Side, answer: Any, version: int) -> dict[str, str]:
    """Return what an answer says."""
    if answer == CLOSED:
        return {"answer": CLOSED}
    return dict(_of_struct(side, answer, version, ""))


def _of_struct(side: Side, found: Struct, version: int, at: str) -> Iterator[tuple[str, str]]:
    for declared in type(found).fields:
        if version in declared.versions or version in declared.tagged:
            value = getattr(found, declared.name)
            yield from _of_value(side, declared.name, value, version, at + declared.name)


def _of_value(
    side: Side, name: str, value: Any, version: int, at: str
) -> Iterator[tuple[str, str]]:
    if name in SHOWN:
        shown = SHOWN[name](value)
        if shown is not None:
            yield at, shown
    elif name == "records":
        yield from _of_records(side, value, at)
    elif isinstance(value, Struct) and name in ASSIGNMENTS:
        yield at, _assigned(side, value)
    elif isinstance(value, Struct):
        yield from _of_struct(side, value, version, f"{at}/")
    elif isinstance(value, list) and value and isinstance(value[0], Struct):
        seen: set[str] = set()
        for item in value:
            named = _named(side, item)
            if PREFIX.match(named) or getattr(item, "is_internal", False):
                continue  # another case's topic, or one that Kafka makes for its groups
            while named in seen:
                named += "'"
            seen.add(named)
            yield f"{at}/{named}", "present"
            yield from _of_struct(side, item, version, f"{at}/{named}/")
        if not seen:
            yield at, "[]"
    elif name == "partitions":
        yield at, str(sorted(value))  # Kafka's order is that of its hashes, and so of names
    elif isinstance(value, str):
        yield at, side.plain_text(value)
    elif isinstance(value, uuid.UUID):
        yield at, side.name_of(value)
    else:
        yield at, str(value)


def _named(side: Side, item: Struct) -> str:
    for name in NAMES:
        value = getattr(item, name, None)
        if value not in (None, ""):
            if isinstance(value, uuid.UUID):
                return side.name_of(value)
            return side.plain_text(str(value))
    return "?"


def _assigned(side: Side, found: Struct) -> str:
    """Tell an assignment in one text: one side may have none, and what the other has is looked at
    all the same."""
    told = []
    for topic in found.topic_partitions:
        called = side.name_of(topic.topic_id).removeprefix("id of ")
        named = side.plain_text(getattr(topic, "topic_name", called))
        shown = called if named == called else f"{called} named {named}"
        told.append(f"{shown} {sorted(topic.partitions)}")
    return ", ".join(sorted(told)) or "no partitions"


def _of_records(side: Side, data: Any, at: str) -> Iterator[tuple[str, str]]:
    """Tell batches by their headers and records; bytes only where no broker compresses them."""
    if data is None:
        yield at, "None"
        return
    whole = bytes(data)
    pos = 0
    while pos + batch.HEADER_BYTES <= len(whole):
        header = batch.read_header(whole, pos)
        if pos + header.size_bytes > len(whole):
            break
        told = header._asdict()
        told.pop("position")
        if header.attributes & (CODEC_MASK | LOG_APPEND_TIME) or header.producer_id >= 0:
            told.pop("crc")
        if header.attributes & CODEC_MASK:
            told.pop("batch_length")
        if header.producer_id == side.producer_id or any(
            header.producer_id == one for one, _ in side.producers.values()
        ):
            told["producer_id"] = "of the case"
        if header.attributes & LOG_APPEND_TIME or header.is_control:
            told["max_timestamp"] = _moment(header.max_timestamp)
        if header.is_control:  # a marker, which has the broker's time
            told["base_timestamp"] = _moment(header.base_timestamp)
        where = f"{at}/batch at {header.base_offset}"
        yield where, "present"
        for name, value in told.items():
            yield f"{where}/{name}", str(value)
        for record in records.walk(whole[pos : pos + header.size_bytes]):
            is_ours = record.timestamp_type or header.is_control
            shown = record._replace(timestamp=0) if is_ours else record
            yield f"{where}/record {record.offset}", str(tuple(shown))
        pos += header.size_bytes
    if pos < len(whole):
        yield f"{at}/cut", f"{len(whole) - pos} bytes"


# -- fields whose values are a broker's own


def _presence(value: object) -> str:
    return "None" if value is None else "given" if value else "empty"


def _moment(value: int) -> str:
    return "now" if abs(value - time.time() * 1000) < RECENT_MS else str(value)


def _number(value: int) -> str:
    return str(value) if value <= 0 else "a number"


def _id(value: int) -> str:
    return str(value) if value < 0 else "an id"


def _error(code: int) -> str:
    return ErrorCode(code).name


def _nothing(value: object) -> None:
    return None


SHOWN: Mapping[str, Callable[[Any], str | None]] = {
    "error_code": _error,
    "topic_config_error_code": _error,
    "partition_error_code": _error,
    "error_message": _presence,
    "batch_index_error_message": _presence,
    "documentation": _presence,
    "cluster_id": _presence,
    "throttle_time_ms": _nothing,
    "port": _number,
    "session_id": _number,
    "producer_id": _id,
    "total_bytes": _number,
    "usable_bytes": _number,
    "log_append_time_ms": _moment,
    "transaction_start_time_ms": _moment,
    "last_timestamp": _moment,
    "finalized_features_epoch": _number,
    "subscribed_topic_names": lambda names: str(sorted(PREFIX.sub("", name) for name in names)),
}
"""By field: what is told of it, None for nothing."""
