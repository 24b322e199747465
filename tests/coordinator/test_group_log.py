"""Records of `__consumer_offsets`: bytes as Kafka writes them, and what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_log import CommittedOffset, GroupKey, OffsetKey
from plog.coordinator.group_states import GroupState
from plog.errors import CorruptRecord
from plog.protocol import codec
from plog.protocol.messages.group_records import GroupMetadataValue, MemberMetadata
from plog.types import TopicPartition
from tests.coordinator.group_play import Play

AT = TopicPartition("orders", 7)


def test_keys_have_the_bytes_that_kafka_gives_them() -> None:
    assert group_log.encode_offset_key("g", AT) == bytes.fromhex(
        "000100016700066f726465727300000007"
    )
    assert group_log.encode_group_key("g") == bytes.fromhex("0002000167")


def test_offset_values_have_the_bytes_that_kafka_gives_them() -> None:
    plain = CommittedOffset(258, 3, "m", 1_000)
    assert group_log.encode_offset(plain) == bytes.fromhex(
        "000300000000000001020000000300016d00000000000003e8"
    )
    expiring = CommittedOffset(258, 3, "m", 1_000, 2_000)
    assert group_log.encode_offset(expiring) == bytes.fromhex(
        "0001000000000000010200016d00000000000003e800000000000007d0"
    )


@pytest.mark.parametrize("version", ["0000", "0001"])
def test_both_versions_of_an_offsets_key_mean_the_same(version: str) -> None:
    key = bytes.fromhex(version + "00016700066f726465727300000007")
    assert group_log.decode_key(key) == OffsetKey("g", AT)


def test_other_keys() -> None:
    assert group_log.decode_key(group_log.encode_group_key("g")) == GroupKey("g")
    assert group_log.decode_key(bytes.fromhex("0003000167")) is None
    assert group_log.decode_key(bytes.fromhex("7fff")) is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1", b"\0\1\0\5ab", b"\0\2\0\3a"])
def test_damaged_keys_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        group_log.decode_key(data)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, CommittedOffset(5, -1, "m", 9)),
        (1, CommittedOffset(5, -1, "m", 9, 11)),
        (2, CommittedOffset(5, -1, "m", 9)),
        (3, CommittedOffset(5, 4, "m", 9)),
        (4, CommittedOffset(5, 4, "m", 9)),
    ],
)
def test_every_version_of_an_offset_is_read(version: int, expected: CommittedOffset) -> None:
    epoch = "00000004" if version >= 3 else ""
    metadata = "026d" if version == 4 else "00016d"
    expires = "000000000000000b" if version == 1 else ""
    tags = "00" if version == 4 else ""
    data = bytes.fromhex(
        f"{version:04x}0000000000000005" + epoch + metadata + "0000000000000009" + expires + tags
    )
    assert group_log.decode_offset(data) == expected


@given(
    offset=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(-1, (1 << 31) - 1),
    metadata=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    committed_ms=st.integers(0, 1 << 50),
)
def test_offsets_are_read_as_written(
    offset: int, epoch: int, metadata: str, committed_ms: int
) -> None:
    committed = CommittedOffset(offset, epoch, metadata, committed_ms)
    assert group_log.decode_offset(group_log.encode_offset(committed)) == committed


def test_a_stable_group_is_read_as_written() -> None:
    play = Play()
    play.stable(3)
    group = play.group
    assignments = {member.member_id: member.assignment for member in group.roster}
    data = group_log.encode_group(group, assignments, 77)
    found = group_log.decode_group("g", data)
    assert group_log.group_since_ms(data) == 77
    assert found.state is GroupState.STABLE
    assert (found.generation, found.protocol_type, found.protocol_name) == (
        group.generation,
        "consumer",
        "range",
    )
    assert found.roster.leader == group.roster.leader
    assert list(found.roster) == list(group.roster)


def test_an_empty_group_is_read_as_written() -> None:
    group = ClassicGroup("g", generation=4, protocol_type="consumer")
    found = group_log.decode_group("g", group_log.encode_group(group, {}, 5))
    assert found.state is GroupState.EMPTY
    assert (found.generation, found.protocol_type, found.protocol_name) == (4, "consumer", None)
    assert found.roster.leader == ""


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=2,
        protocol="range",
        leader="a",
        current_state_timestamp=9,
        members=[
            MemberMetadata(
                member_id="a",
                group_instance_id="one",
                client_id="c",
                client_host="/h",
                rebalance_timeout=30_000,
                session_timeout=10_000,
                subscription=b"s",
                assignment=b"x",
            )
        ],
    )
    found = group_log.decode_group("g", version.to_bytes(2, "big") + codec.encode(value, version))
    (member,) = found.roster
    assert member.assignment == b"x"
    assert member.instance_id == ("one" if version >= 3 else None)
    # Before version 1 a member had one timeout for both.
    assert member.rebalance_timeout_ms == (30_000 if version >= 1 else 10_000)


def group_of(*members: tuple[str, str | None]) -> bytes:
    """Return the record of a group with these members and their instances."""
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=2,
        protocol="range",
        leader=None,
        members=[
            MemberMetadata(
                member_id=member_id,
                group_instance_id=instance_id,
                client_id="c",
                client_host="/h",
                session_timeout=10_000,
                subscription=b"",
                assignment=b"",
            )
            for member_id, instance_id in members
        ],
        current_state_timestamp=9,
    )
    return b"\0\3" + codec.encode(value, 3)


def test_members_have_ids_and_instances_of_their_own() -> None:
    found = group_log.decode_group("g", group_of(("a", "one"), ("b", "two"), ("c", None)))
    assert len(found.roster) == 3
    for members in (
        [("a", None), ("a", None)],
        [("a", "one"), ("a", "two")],
        [("a", "one"), ("b", "one")],
        [("", None)],
    ):
        with pytest.raises(CorruptRecord):
            group_log.decode_group("g", group_of(*members))
