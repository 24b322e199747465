"""Declarations against Kafka's own, where a copy of Kafka's message definitions is at hand.

PLOG_REFERENCE names the folder that holds `kafka-messages`; without it,
`../shared/reference` beside the checkout is looked at. Where there is none,
there is nothing to compare with, and these tests do not exist.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from plog.protocol.schema import ZERO, Field, Struct, Versions, parse_versions
from tests.protocol.instances import MESSAGES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = (
    Path(os.environ.get("PLOG_REFERENCE") or ROOT.parent / "shared" / "reference")
    / "kafka-messages"
)


RENAMED = {
    "AlterPartitionTopic": "TopicData",
    "AlterPartitionState": "PartitionData",
    "AlterPartitionTopicResponse": "TopicData",
    "AlterPartitionStateResponse": "PartitionData",
    "ListedTransaction": "TransactionState",
    "AssignedPartitions": "Assignment",
    "DescribedConsumerGroup": "DescribedGroup",
    "ListedConfigResource": "ClientMetricsResource",
}
"""Structures of ours whose names say more than Kafka's: `replication`, `transactions`, others."""

OLDER_NAMES = {
    "ListConfigResourcesRequest": "ListClientMetricsResourcesRequest",
    "ListConfigResourcesResponse": "ListClientMetricsResourcesResponse",
}
"""What the copy calls messages that Kafka has renamed since."""
OLDER_FIELDS = {
    "ListConfigResourcesResponse": {"config_resources": "client_metrics_resources"},
    "ListedConfigResource": {"resource_name": "name"},
}
"""And their fields."""


def definition(name: str) -> dict[str, Any]:
    """Return Kafka's definition of a message, which is JSON with comments."""
    name = OLDER_NAMES.get(name, name)
    lines = (FOLDER / f"{name}.json").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = json.loads(
        "\n".join(line for line in lines if not line.strip().startswith("//"))
    )
    return found


def snake_case(name: str) -> str:
    """Return topic_id for TopicId, and is_kraft_controller for isKRaftController."""
    name = name.replace("KRaft", "Kraft")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def among(text: str | None, span: Versions) -> set[int]:
    """Return those versions of `span` that Kafka's text names."""
    named = parse_versions(None if text == "none" else text)
    return {version for version in range(span.low, span.high + 1) if version in named}


def is_in_all(present: set[int], span: Versions) -> bool:
    """Tell whether no version lacks a field: then it does not matter whether it is ignorable."""
    return len(present) == span.high - span.low + 1


def facts_of_ours(f: Field, span: Versions) -> dict[str, Any]:
    present = among(str(f.versions), span)
    inside = f.struct.__name__ if f.struct is not None else f.element or f.kind
    return {
        "type": ("[]" if f.kind == "array" else "") + inside,
        "versions": present,
        "nullable": among(str(f.nullable), span) & present,
        "tag": f.tag,
        "tagged": among(str(f.tagged), span),
        "ignorable": f.ignorable and not is_in_all(present, span),
        "default": "a structure" if f.kind == "struct" and f.fallback is not None else f.fallback,
    }


def facts_of_theirs(their: dict[str, Any], span: Versions, ours: Field) -> dict[str, Any]:
    present = among(their["versions"], span)
    kind = their["type"]
    if ours.struct is not None:
        # Ours may have the family in front, where two would have one name in a module.
        name, theirs = ours.struct.__name__, kind.removeprefix("[]")
        if RENAMED.get(name) == theirs or name.endswith(theirs):
            kind = ("[]" if kind.startswith("[]") else "") + name
    return {
        "type": kind,
        "versions": present,
        "nullable": among(their.get("nullableVersions"), span) & present,
        "tag": their.get("tag"),
        "tagged": among(their.get("taggedVersions"), span),
        "ignorable": their.get("ignorable", False) and not is_in_all(present, span),
        "default": default_of_theirs(their, ours),
    }


def default_of_theirs(their: dict[str, Any], ours: Field) -> Any:
    kind, text = their["type"], str(their.get("default") or "")
    if text == "null":
        return None
    if text == "" and ours.fallback is None and kind == "string" and ours.tag is None:
        # Text that may be null is None with us where nothing is said, "" in Kafka. No byte
        # depends on it: constructors only.
        return None
    if kind.startswith("[]"):
        return []
    if kind not in ZERO:
        # One that no version lacks and no tag leaves out never needs its default. It is null only
        # by the word: of null itself Kafka makes a structure, too.
        needed = ours.tag is not None or ours.fallback is not None
        return "a structure" if needed else None
    if text == "":
        return ZERO[kind]
    if kind == "bool":
        return text.lower() == "true"
    if kind == "uuid":
        return uuid.UUID(text)
    return text if kind == "string" else int(text, 0)


def compare(
    cls: type[Struct], theirs: list[dict[str, Any]], common: dict[str, Any], span: Versions
) -> list[str]:
    """Return what differs, for every field of a structure and of those inside it."""
    known = [f for f in theirs if among(f["versions"], span)]
    fields = [f for f in cls.fields if among(str(f.versions), span)]
    older = OLDER_FIELDS.get(cls.__name__, {})
    names = [older.get(f.name, f.name) for f in fields]
    if names != [snake_case(f["name"]) for f in known]:
        return [f"{cls.__name__}: fields {[snake_case(f['name']) for f in known]} in this order"]
    wrong = []
    for ours, their in zip(fields, known, strict=True):
        mine, expected = facts_of_ours(ours, span), facts_of_theirs(their, span, ours)
        wrong += [
            f"{cls.__name__}.{ours.name}: {fact} is {mine[fact]}, Kafka's {expected[fact]}"
            for fact in mine
            if mine[fact] != expected[fact]
        ]
        if ours.struct is not None:
            inside = their.get("fields") or common[their["type"].removeprefix("[]")]
            present = mine["versions"]
            wrong += compare(ours.struct, inside, common, Versions(min(present), max(present)))
    return wrong


if FOLDER.is_dir():

    @pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
    def test_declaration_says_what_kafkas_says(cls):
        theirs = definition(cls.__name__)
        # `tests/compat/test_kafka_versions.py` compares the versions that are newer than the copy.
        newest = parse_versions(theirs["validVersions"]).high
        span = Versions(cls.api.versions.low, min(cls.api.versions.high, newest))
        assert cls.api.key == theirs["apiKey"]
        assert span.low in parse_versions(theirs["validVersions"])
        assert span.high in parse_versions(theirs["validVersions"])
        assert among(str(cls.api.flexible), span) == among(theirs["flexibleVersions"], span)
        common = {each["name"]: each["fields"] for each in theirs.get("commonStructs", [])}
        wrong = compare(cls, theirs["fields"], common, span)
        assert not wrong, "\n".join(wrong)


def test_names_become_pythons():
    names = {"TopicId": "topic_id", "isKRaftController": "is_kraft_controller", "v0Host": "v0_host"}
    assert {name: snake_case(name) for name in names} == names
