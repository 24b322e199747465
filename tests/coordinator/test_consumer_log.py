"""Records of consumer groups in `__consumer_offsets`: bytes as Kafka writes them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator import consumer_log
from plog.coordinator.assignors import IdPartition
from plog.coordinator.consumer_log import ConsumerKey
from plog.coordinator.consumer_table import (
    ClassicSide,
    Key,
    Kind,
    Record,
    Resolved,
    Subscriber,
    Topic,
    Value,
)
from plog.coordinator.group_events import Protocol
from plog.coordinator.reconciliation import Current, MemberState
from plog.errors import CorruptRecord

ID = uuid.UUID(int=1)
ID_HEX = "00000000000000000000000000000001"
HAS = frozenset({IdPartition(ID, 0), IdPartition(ID, 2)})
HAS_HEX = "02" + ID_HEX + "03" + "00000000" + "00000002" + "00"
MEMBER = Subscriber("i", "r", "c", "/h", frozenset({"t"}), "x.*", 30_000, "range")
CLASSIC = Subscriber(
    client_id="c", client_host="/h", classic=ClassicSide(10_000, (Protocol("range", b"m"),))
)

CASES: list[tuple[Key, str, Value, str]] = [
    (Key(Kind.EPOCH), "0003" "000167", 7, "0000" "00000007" "00"),
    (
        Key(Kind.TOPICS),
        "0004" "000167",
        {"t": Topic(ID, 3)},
        "0000" "02" + ID_HEX + "0274" "00000003" "01" "00" "00",
    ),
    (
        Key(Kind.MEMBER, "m"),
        "0005" "000167" "00016d",
        MEMBER,
        "0000" "0269" "0272" "0263" "032f68" "02" "0274" "04782e2a" "00007530" "0672616e6765"
        "01" "00" "01" "00",
    ),
    (
        Key(Kind.MEMBER, "m"),
        "0005" "000167" "00016d",
        CLASSIC,
        "0000" "00" "00" "0263" "032f68" "01" "01" "ffffffff" "00"
        "01" "00" "10" "01" "00002710" "02" "0672616e6765" "026d" "00" "00",
    ),
    (Key(Kind.TARGET_EPOCH), "0006" "000167", 7, "0000" "00000007" "00"),
    (Key(Kind.TARGET, "m"), "0007" "000167" "00016d", HAS, "0000" + HAS_HEX + "00"),
    (
        Key(Kind.CURRENT, "m"),
        "0008" "000167" "00016d",
        Current(7, 6, MemberState.UNREVOKED_PARTITIONS, HAS, frozenset({IdPartition(ID, 1)})),
        "0000" "00000007" "00000006" "01" + HAS_HEX + "02" + ID_HEX + "02" "00000001" "00" "00",
    ),
    (
        Key(Kind.REGEX, "x.*"),
        "0010" "000167" "0003782e2a",
        Resolved(frozenset({"xa", "xb"}), 9, 1_000),
        "0000" "03" "037861" "037862" "0000000000000009" "00000000000003e8" "00",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "key_hex", "value", "value_hex"), CASES)
def test_records_have_the_bytes_that_kafka_gives_them(
    key: Key, key_hex: str, value: Value, value_hex: str
) -> None:
    assert consumer_log.encode_key("g", key).hex() == key_hex
    assert consumer_log.decode_key(bytes.fromhex(key_hex)) == ConsumerKey("g", key)
    encoded = consumer_log.encode_value(Record(key, value))
    assert encoded is not None
    assert encoded.hex() == value_hex
    assert consumer_log.decode_value(key.kind, encoded) == value


def test_member_that_plog_wrote_without_a_tag_is_none_of_the_classic_protocol() -> None:
    written = bytes.fromhex("000000000263032f680100ffffffff0000")
    member = Subscriber(client_id="c", client_host="/h")
    assert consumer_log.decode_value(Kind.MEMBER, written) == member


@pytest.mark.parametrize(("key", "key_hex", "value", "value_hex"), CASES)
def test_records_that_are_cut_short_are_refused(
    key: Key, key_hex: str, value: Value, value_hex: str
) -> None:
    data = bytes.fromhex(value_hex)
    for cut in range(len(data)):
        with pytest.raises(CorruptRecord):
            consumer_log.decode_value(key.kind, data[:cut])
    name = bytes.fromhex(key_hex)
    for cut in range(2, len(name)):
        with pytest.raises(CorruptRecord):
            consumer_log.decode_key(name[:cut])


def test_fields_that_newer_brokers_have_added_are_passed_over() -> None:
    # Kafka 4.1's hash of the topics: tag 0, eight bytes.
    with_hash = bytes.fromhex("0000000000070100080000000000000005")
    assert consumer_log.decode_value(Kind.EPOCH, with_hash) == 7
    racks = "02" + ID_HEX + "0274000000010200000000020272000000"
    assert consumer_log.decode_value(Kind.TOPICS, bytes.fromhex("0000" + racks)) == {
        "t": Topic(ID, 1)
    }


def test_a_state_that_is_not_known_makes_the_member_join_anew() -> None:
    data = bytes.fromhex("0000000000070000000663010100")
    current = consumer_log.decode_value(Kind.CURRENT, data)
    assert isinstance(current, Current)
    assert current.state is MemberState.UNKNOWN


@pytest.mark.parametrize("key_hex", ["0002000167", "0000", "0009000167", "7fff"])
def test_keys_of_others_are_nobodys(key_hex: str) -> None:
    assert consumer_log.decode_key(bytes.fromhex(key_hex)) is None


PARTITIONS = st.frozensets(st.builds(IdPartition, st.uuids(), st.integers(0, 99)), max_size=5)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(PARTITIONS, PARTITIONS, st.integers(-2, 1 << 30), st.sampled_from(list(MemberState)))
def test_assignments_are_read_as_written(
    assigned: frozenset[IdPartition],
    revoking: frozenset[IdPartition],
    epoch: int,
    state: MemberState,
) -> None:
    current = Current(epoch, epoch, state, assigned, revoking)
    key = Key(Kind.CURRENT, "m")
    data = consumer_log.encode_value(Record(key, current))
    assert data is not None
    assert consumer_log.decode_value(key.kind, data) == current


@given(TEXT, TEXT)
def test_keys_are_read_as_written(group: str, name: str) -> None:
    for key in (Key(Kind.EPOCH), Key(Kind.MEMBER, name), Key(Kind.REGEX, name)):
        data = consumer_log.encode_key(group, key)
        assert consumer_log.decode_key(data) == ConsumerKey(group, key)
