from __future__ import annotations

import uuid

import pytest

from plog.storage.segment_files import (
    SegmentFile,
    file_name,
    leaving_directory_name,
    parse_directory_name,
    parse_file_name,
)
from plog.types import TopicPartition

UNIQUE = uuid.UUID("0123456789abcdef0123456789abcdef")


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("00000000000000000000.log", SegmentFile(0, ".log", "")),
        ("00000000000000004711.index", SegmentFile(4711, ".index", "")),
        ("00000000000000004711.timeindex.swap", SegmentFile(4711, ".timeindex", ".swap")),
        ("09223372036854775807.log.cleaned", SegmentFile((1 << 63) - 1, ".log", ".cleaned")),
        ("00000000000000000012.snapshot.deleted", SegmentFile(12, ".snapshot", ".deleted")),
    ],
)
def test_segment_file_name_round_trips(name: str, parsed: SegmentFile) -> None:
    assert parse_file_name(name) == parsed
    assert file_name(*parsed) == name


@pytest.mark.parametrize(
    "name",
    [
        "0.log",
        "00000000000000000000",
        "00000000000000000000.log.tmp",
        "00000000000000000000.kafka",
        "-0000000000000000001.log",
        "09223372036854775808.log",  # past the largest offset
        "\u0660\u0660000000000000000000.log",  # digits, but not ASCII ones
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_other_file_names_are_no_segments(name: str) -> None:
    assert parse_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "topic", "partition", "suffix"),
    [
        ("flights-0", "flights", 0, ""),
        ("a-b.c_d-12", "a-b.c_d", 12, ""),
        ("__consumer_offsets-49", "__consumer_offsets", 49, ""),
        (f"flights-0.{UNIQUE.hex}-delete", "flights", 0, "-delete"),
        (f"my-topic.v2-3.{UNIQUE.hex}-future", "my-topic.v2", 3, "-future"),
        (f"x-1.{UNIQUE.hex}-stray", "x", 1, "-stray"),
        # A topic may be called like a leaving directory; only the whole pattern counts.
        ("t.deadbeef-delete-0", "t.deadbeef-delete", 0, ""),
    ],
)
def test_partition_directory_name_is_understood(
    name: str, topic: str, partition: int, suffix: str
) -> None:
    assert parse_directory_name(name) == (TopicPartition(topic, partition), suffix)


@pytest.mark.parametrize(
    "name",
    [
        "flights",
        "flights-",
        "-0",
        "flights-01",
        "flights-x",
        "fl ights-0",
        "..-0",
        "t-99999999999",
        "__cluster_metadata-0",
    ],
)
def test_other_directory_names_are_no_partitions(name: str) -> None:
    assert parse_directory_name(name) is None


def test_leaving_directory_of_a_long_topic_fits_a_file_name() -> None:
    tp = TopicPartition("t" * 249, 2147483647)
    name = leaving_directory_name(tp, "-delete", UNIQUE)
    assert len(name) == 255
    parsed = parse_directory_name(name)
    assert parsed is not None
    assert parsed.suffix == "-delete"
    assert parsed.topic_partition.partition == tp.partition


def test_leaving_directory_of_a_short_topic_keeps_it_whole() -> None:
    name = leaving_directory_name(TopicPartition("flights", 7), "-delete", UNIQUE)
    assert name == "flights-7.0123456789abcdef0123456789abcdef-delete"
