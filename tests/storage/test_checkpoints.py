from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from plog.storage.checkpoints import (
    CheckpointDamaged,
    OffsetCheckpoint,
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
    encode_partition_metadata,
    load_topic_id,
    store_topic_id,
)
from plog.storage.filesystem import Filesystem
from plog.types import TopicPartition

from .storage_logs import Crash, FaultyFilesystem

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-c", 0)


def test_offsets_encode_as_kafka_writes_them() -> None:
    assert encode_offsets({B0: 7, A1: 0, A0: 4711}) == "0\n3\na 0 4711\na 1 0\nb-c 0 7\n"
    assert encode_offsets({}) == "0\n0\n"


def test_offsets_round_trip() -> None:
    offsets = {A0: 1, A1: (1 << 63) - 1, B0: 0}
    assert decode_offsets(encode_offsets(offsets), "f") == offsets


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f:1: version 0 expected"),
        ("1\n0\n", "f:1: version 0 expected"),
        ("0\n", "f:2"),
        ("0\nx\n", "f:2"),
        ("0\n-1\n", "f:2"),
        ("0\n1_0\n", "f:2"),
        ("0\n²\n", "f:2"),
        ("0\n" + "9" * 5000 + "\n", "f:2"),
        ("0\n\x1f1\n", "1 entries announced, 0 found"),  # which int() does not strip
        ("0\n1\na 0 9223372036854775808\n", "at least 0"),
        ("0\n1\n", "1 entries announced, 0 found"),
        ("0\n0\na 0 1\n", "0 entries announced, 1 found"),
        ("0\n1\na 0\n", "f:3: 3 words"),
        ("0\n1\na 0 1 2\n", "f:3: 3 words"),
        ("0\n1\na x 1\n", "at least 0"),
        ("0\n1\na 0 -1\n", "at least 0"),
        ("0\n2\na 0 1\na 0 2\n", "twice"),
    ],
)
def test_damaged_offsets_are_refused_with_their_place(text: str, says: str) -> None:
    with pytest.raises(CheckpointDamaged, match=says):
        decode_offsets(text, "f")


def test_every_prefix_of_a_checkpoint_is_refused() -> None:
    text = encode_offsets({A0: 11, A1: 22, B0: 33})
    for cut in range(len(text) - 1):
        # A cut inside the last number cannot be told; Kafka's format has no checksum.
        if text[:cut].endswith(("b-c 0 3",)):
            continue
        with pytest.raises(CheckpointDamaged):
            decode_offsets(text[:cut], "f")


def test_missing_checkpoint_is_empty(tmp_path: Path) -> None:
    assert OffsetCheckpoint(Filesystem(), tmp_path / "c").load() == {}


def test_unchanged_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    fs = FaultyFilesystem()
    checkpoint = OffsetCheckpoint(fs, tmp_path / "c")
    assert checkpoint.store({A0: 1})
    before = fs.operations
    assert not checkpoint.store({A0: 1})
    assert fs.operations == before
    assert checkpoint.store({A0: 2})


@pytest.mark.parametrize("crash", [False, True])
def test_store_failing_at_any_operation_leaves_old_or_new(tmp_path: Path, crash: bool) -> None:
    path = tmp_path / "c"
    OffsetCheckpoint(Filesystem(), path).store({A0: 1})
    outcomes = set()
    for fail_at in range(20):
        fs = FaultyFilesystem(fail_at, crash=crash)
        try:
            OffsetCheckpoint(fs, path).store({A0: 2})
        except (OSError, Crash):
            outcomes.add(OffsetCheckpoint(Filesystem(), path).load()[A0])
        else:
            assert OffsetCheckpoint(Filesystem(), path).load() == {A0: 2}
            break
        OffsetCheckpoint(Filesystem(), path).store({A0: 1})
    else:
        pytest.fail("twenty operations were not enough for one store")
    assert outcomes == {1, 2}


def test_failed_store_is_tried_again(tmp_path: Path) -> None:
    fs = FaultyFilesystem(2)
    checkpoint = OffsetCheckpoint(fs, tmp_path / "c")
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.store({A0: 5})
    assert checkpoint.store({A0: 5})
    assert checkpoint.load() == {A0: 5}


def test_lowered_offset_stands_against_a_store_collected_before(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(Filesystem(), tmp_path / "c")
    checkpoint.store({A0: 100})
    checkpoint.lift_ceilings()
    collected = {A0: 120, A1: 5}
    checkpoint.lower(A0, 40)
    assert checkpoint.load() == {A0: 40}
    checkpoint.store(collected)
    assert checkpoint.load() == {A0: 40, A1: 5}
    checkpoint.lift_ceilings()
    checkpoint.store({A0: 60, A1: 5})
    assert checkpoint.load() == {A0: 60, A1: 5}


def test_drop_and_put_change_one_partition(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(Filesystem(), tmp_path / "c")
    checkpoint.store({A0: 1, A1: 2})
    checkpoint.drop(A0)
    checkpoint.put(B0, 3)
    assert OffsetCheckpoint(Filesystem(), tmp_path / "c").load() == {A1: 2, B0: 3}


TOPIC_ID = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


def test_partition_metadata_is_as_kafka_writes_it() -> None:
    text = encode_partition_metadata(TOPIC_ID)
    assert text == "version: 0\ntopic_id: Dx4tPEtaaXiHlqW0w9Lh8A"
    assert decode_partition_metadata(text, "f") == TOPIC_ID
    assert decode_partition_metadata(text + "\n", "f") == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0",
        "version: 1\ntopic_id: Dx4tPEtaaXiHlqW0w9Lh8A",
        "version: 0\ntopic_id: short",
    ],
)
def test_damaged_partition_metadata_is_refused(text: str) -> None:
    with pytest.raises(CheckpointDamaged, match=r"^f: "):
        decode_partition_metadata(text, "f")


def test_topic_id_of_a_directory_is_stored_and_loaded(tmp_path: Path) -> None:
    fs = Filesystem()
    assert load_topic_id(fs, tmp_path) is None
    store_topic_id(fs, tmp_path, TOPIC_ID)
    assert load_topic_id(fs, tmp_path) == TOPIC_ID
