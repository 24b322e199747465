"""Bytes that are no message: both engines refuse them alike, in bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from plog._reference import codec as reference
from plog.errors import InvalidRequest
from plog.protocol import codec
from plog.protocol.messages.fetch import FetchRequest, FetchResponse
from plog.protocol.messages.list_offsets import ListOffsetsRequest
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.schema import Struct
from tests.agreement.harness import forked, mutations, outcome, run_seed
from tests.protocol.instances import VERSIONS, sample

Case = tuple[type[Struct], int, bytes]

LARGE = ("7fffffff", "80000000", "7fff", "ffffffff0f", "ffffffff07", "ffffffff1f", "8080808000")
"""Lengths, counts, tags and malformed varints, laid over every place of a message."""


def agree(case: Case) -> None:
    cls, version, data = case
    compiled = outcome(codec.decode, cls, version, data)
    assert compiled == outcome(reference.decode, cls, version, data)
    if compiled[0] == "error":
        assert compiled[1] is InvalidRequest
    else:
        message, end = compiled[1]
        assert end <= len(data)
        # What decodes can be written; not always as it was: tags may repeat their defaults.
        wire = codec.encode(message, version)
        assert wire == reference.encode(message, version)
        assert codec.decode(cls, version, wire) == (message, len(wire))


class Cases:
    """Cases that come out the same each time they are asked for, for parent and child."""

    def __init__(self, seed: int, kind: str) -> None:
        self.seed, self.kind = seed, kind

    def __iter__(self) -> Iterator[Case]:
        for cls, version in VERSIONS:
            rng = random.Random(f"{self.seed} {cls.__name__} {version}")
            wires = [codec.encode(sample(cls, version, rng), version) for _ in range(2)]
            for data in getattr(self, self.kind)(wires, rng):
                yield cls, version, data

    def junk(self, wires: list[bytes], rng: random.Random) -> Iterator[bytes]:
        for _ in range(30):
            yield rng.randbytes(rng.randrange(80))
            yield bytes(rng.choice((0, 0, 0, 1, 2, 5, 127, 255)) for _ in range(rng.randrange(80)))

    def damaged(self, wires: list[bytes], rng: random.Random) -> Iterator[bytes]:
        yield from mutations(wires, 60, rng.randrange(2**32))

    def lies(self, wires: list[bytes], rng: random.Random) -> Iterator[bytes]:
        wire = wires[0]
        for at in sorted(rng.sample(range(len(wire)), min(len(wire), 25))):
            for number in LARGE:
                over = bytes.fromhex(number)
                yield wire[:at] + over + wire[at + len(over) :]


@pytest.mark.parametrize("kind", ["junk", "damaged", "lies"])
def test_damaged_bytes_get_one_answer_within_bounded_memory(kind):
    assert forked(agree, Cases(run_seed(), kind), memory_bytes=64 << 20) > 10_000


@pytest.mark.parametrize(
    ("cls", "version", "wire", "reason"),
    [
        (
            MetadataRequest,
            0,
            "7fffffff",
            "MetadataRequest v0 topics counts 2147483647 at 4, 0 bytes are left",
        ),
        (MetadataRequest, 0, "ffffffff", "MetadataRequest v0 topics is null before 4"),
        (
            MetadataRequest,
            0,
            "00000001 0005 6162",
            "MetadataRequest v0 topics.name needs 5 bytes at 6, 2 are left",
        ),
        (
            MetadataRequest,
            0,
            "00000001 0002 c328",
            "MetadataRequest v0 topics.name is not UTF-8 at 6",
        ),
        (
            MetadataRequest,
            9,
            "ffffffffff00",
            "MetadataRequest v9 topics has a varint of more than 32 bits before 5",
        ),
        (
            MetadataRequest,
            9,
            "02 818002" + "61" * 32768 + "00 00000000",
            "MetadataRequest v9 topics.name has 32768 bytes at 4, strings have at most 32767",
        ),
        # The smallest topic takes 2 bytes, its name and its tags: one is not believed.
        (
            MetadataRequest,
            9,
            "0201",
            "MetadataRequest v9 topics counts 1 at 1, 1 bytes are left",
        ),
    ],
)
def test_reason_names_field_and_position(cls, version, wire, reason):
    data = bytes.fromhex(wire)
    found = outcome(codec.decode, cls, version, data)
    assert found == outcome(reference.decode, cls, version, data)
    assert found == ("error", InvalidRequest, reason)


LIST_OFFSETS = "ffffffff 00 03" + 2 * ("02 61 04" + 3 * ("00000000" * 4 + "00") + "00") + "00"
"""ListOffsetsRequest v6: two topics of three partitions each, without tags."""


def test_elements_of_nested_arrays_come_off_one_budget():
    data = bytes.fromhex(LIST_OFFSETS)
    for engine in (codec, reference):
        message, end = engine.decode(ListOffsetsRequest, 6, data, most_elements=8)
        assert end == len(data)
        assert [len(topic.partitions) for topic in message.topics] == [3, 3]
    for most, reason in (
        (7, "ListOffsetsRequest v6 topics.partitions counts 3 at 64, past the 7 elements of"),
        (4, "ListOffsetsRequest v6 topics.partitions counts 3 at 9, past the 4 elements of"),
        (1, "ListOffsetsRequest v6 topics counts 2 at 6, past the 1 elements of"),
    ):
        agree_within(ListOffsetsRequest, 6, data, most, f"{reason} one message")


def agree_within(
    cls: type[Struct], version: int, data: bytes, most: int, reason: str | None = None
) -> None:
    found = outcome(within(codec.decode, most), cls, version, data)
    assert found == outcome(within(reference.decode, most), cls, version, data)
    if reason is not None:
        assert found == ("error", InvalidRequest, reason)


def within(decode: Any, most: int) -> Any:
    return partial(decode, most_elements=most)


def test_both_engines_agree_within_every_small_budget():
    seed = run_seed()
    for cls, version in VERSIONS:
        data = codec.encode(sample(cls, version, random.Random(f"{seed} {version}")), version)
        for most in (0, 1, 2, 3, 5, 8):
            agree_within(cls, version, data, most)


@pytest.mark.parametrize("count", [1, 3])
def test_tagged_fields_come_off_the_budget_of_elements(count):
    data = tags(*[(9 + n, "") for n in range(count)])
    at = len(bytes.fromhex(EMPTY_FETCH)) + 1
    reason = f"FetchRequest v15 tags counts {count} at {at}, past the {count - 1} elements"
    agree_within(FetchRequest, 15, data, count - 1, f"{reason} of one message")
    agree_within(FetchRequest, 15, data, count)
    assert codec.decode(FetchRequest, 15, data, most_elements=count)[1] == len(data)
    unknown = bytes.fromhex("00 00000000") + data[at - 1 :]
    agree_within(MetadataRequest, 9, unknown, count - 1)
    assert codec.decode(MetadataRequest, 9, b"\0\0\0\0" + data[at - 1 :], most_elements=count)


def test_one_count_beyond_the_budget_allocates_nothing():
    data = bytes.fromhex("00800000") + bytes(16 << 20)
    tracemalloc.start()
    try:
        for engine in (codec, reference):
            with pytest.raises(InvalidRequest, match="counts 8388608 at 4, past the 5 elements"):
                engine.decode(MetadataRequest, 0, bytearray(data), most_elements=5)
        # The bytearray is the test's own.
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) - (8 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_long_message_is_decoded_alike_from_every_kind_of_bytes(kind):
    names = [f"topic-{n:06}" for n in range(100_000)]
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=True,
    )
    wire = codec.encode(message, 9)
    assert len(wire) > 1 << 20
    assert codec.decode(MetadataRequest, 9, kind(wire)) == (message, len(wire))


EMPTY_FETCH = "000001f4 00000001 03200000 00 00000000 ffffffff 01 01 01"
"""FetchRequest v15 without topics, up to its tagged fields."""


def tags(*fields: tuple[int, str]) -> bytes:
    body = b"".join(
        bytes([tag, len(bytes.fromhex(raw))]) + bytes.fromhex(raw) for tag, raw in fields
    )
    return bytes.fromhex(EMPTY_FETCH) + bytes([len(fields)]) + body


CLUSTER = (0, "03 6162")
STATE = (1, "00000007 0000000000000009 00")


@pytest.mark.parametrize("engine", [codec, reference], ids=["compiled", "reference"])
@pytest.mark.parametrize(
    ("fields", "cluster_id", "replica_id"),
    [
        ([], None, -1),
        ([CLUSTER], "ab", -1),
        ([STATE], None, 7),
        ([CLUSTER, STATE], "ab", 7),
        ([CLUSTER, STATE, (2, "ff"), (99, "")], "ab", 7),
        ([STATE, (5, "0102030405")], None, 7),
        ([(0, "00")], None, -1),
    ],
)
def test_known_tags_are_read_and_unknown_ones_skipped(engine, fields, cluster_id, replica_id):
    data = tags(*fields)
    message, end = engine.decode(FetchRequest, 15, data + b"tail")
    assert end == len(data)
    assert (message.cluster_id, message.replica_state.replica_id) == (cluster_id, replica_id)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([CLUSTER, CLUSTER], "tags repeats or misplaces tag 0"),
        ([STATE, CLUSTER], "tags repeats or misplaces tag 0"),
        ([CLUSTER, (7, ""), (7, "")], "tags repeats or misplaces tag 7"),
        ([(9, ""), STATE], "tags repeats or misplaces tag 1"),
        ([(0, "03 616200")], "cluster_id ends at"),
        ([(0, "04 6162"), STATE], "cluster_id needs 3 bytes"),
        ([(1, "00000007 0000000000000009 00 00")], "replica_state ends at"),
        ([(1, "00000007")], "replica_state.replica_epoch needs 8 bytes"),
    ],
)
def test_tag_out_of_order_or_of_another_length_is_refused(fields, reason):
    data = tags(*fields)
    found = outcome(codec.decode, FetchRequest, 15, data)
    assert found == outcome(reference.decode, FetchRequest, 15, data)
    assert found[:2] == ("error", InvalidRequest)
    assert reason in found[2]


def test_tag_cannot_reach_beyond_the_message():
    data = bytes.fromhex(EMPTY_FETCH) + b"\x01\x07\x05abcd"
    found = outcome(codec.decode, FetchRequest, 15, data)
    assert found == outcome(reference.decode, FetchRequest, 15, data)
    assert "needs 5 bytes" in found[2]


@pytest.mark.parametrize("engine", [codec, reference], ids=["compiled", "reference"])
def test_records_are_a_view_of_the_frame_null_and_empty_told_apart(engine):
    for raw, expected in (("ffffffff", None), ("00000000", b""), ("00000003", b"abc")):
        wire = bytearray(
            bytes.fromhex("00000001 0001 74 00000001 00000000 0000 0000000000000000" + raw)
            + (expected or b"")
        )
        answer, end = engine.decode(FetchResponse, 0, wire)
        assert end == len(wire)
        records = answer.responses[0].partitions[0].records
        assert records == expected
        if expected:
            records[0] = ord("X")
            assert wire.endswith(b"Xbc")
