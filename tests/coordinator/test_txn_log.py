"""Records of `__transaction_state`: bytes as Kafka writes them, and what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator import txn_log
from plog.coordinator.replay import Entry, Replayed
from plog.coordinator.txn_events import TxnValue
from plog.coordinator.txn_shard import TxnShard
from plog.coordinator.txn_states import AT_REST, TxnState
from plog.errors import CorruptRecord
from plog.types import TopicPartition

OPEN = TxnValue(
    producer_id=258,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TxnState.ONGOING,
    partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)}),
    updated_ms=1_000,
    started_ms=999,
)


def test_key_has_the_bytes_that_kafka_gives_it() -> None:
    assert txn_log.encode_key("tx") == bytes.fromhex("000000027478")
    assert txn_log.decode_key(bytes.fromhex("000000027478")) == "tx"
    assert txn_log.decode_key(bytes.fromhex("000100027478")) is None


def test_value_has_the_bytes_that_kafka_gives_it() -> None:
    assert txn_log.encode_value(OPEN) == bytes.fromhex(
        "0000"
        "0000000000000102"
        "0003"
        "0000ea60"
        "01"
        "00000002"
        "000161"
        "00000002"
        "00000000"
        "00000002"
        "000162"
        "00000001"
        "00000001"
        "00000000000003e8"
        "00000000000003e7"
    )
    empty = TxnValue(258, 3, 60_000, TxnState.EMPTY, updated_ms=1_000)
    assert txn_log.encode_value(empty) == bytes.fromhex(
        "0000000000000000010200030000ea6000ffffffff00000000000003e8ffffffffffffffff"
    )


def test_value_of_a_client_that_raises_epochs_is_of_version_1() -> None:
    value = TxnValue(
        258,
        3,
        60_000,
        TxnState.COMPLETE_COMMIT,
        frozenset(),
        1_000,
        999,
        previous_producer_id=7,
        client_version=2,
    )
    assert txn_log.encode_value(value) == bytes.fromhex(
        "0001"
        "0000000000000102"
        "0003"
        "0000ea60"
        "04"
        "01"
        "00000000000003e8"
        "00000000000003e7"
        "02"
        "00"
        "08"
        "0000000000000007"
        "02"
        "02"
        "0002"
    )


VALUES = st.builds(
    TxnValue,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(sorted(AT_REST)),
    updated_ms=st.integers(-1, 2**62),
    started_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.sampled_from([0, 2]),
) | st.builds(
    TxnValue,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT]),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 2**31 - 1))
    ),
)


@given(VALUES)
def test_value_is_read_as_it_was_written(value: TxnValue) -> None:
    assert txn_log.decode_value(txn_log.encode_value(value)) == value


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0", b"\0\2" + bytes(60), txn_log.encode_value(OPEN)[:-1]]
)
def test_damaged_values_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        txn_log.decode_value(data)


def test_values_that_contradict_themselves_are_refused() -> None:
    data = bytearray(txn_log.encode_value(OPEN))
    data[16] = TxnState.COMPLETE_ABORT
    with pytest.raises(CorruptRecord, match="CompleteAbort, with 3 partitions"):
        txn_log.decode_value(bytes(data))


@pytest.mark.parametrize("state", [TxnState.DEAD, TxnState.PREPARE_EPOCH_FENCE, 9, 255])
def test_states_that_nobody_stores_are_refused(state: int) -> None:
    data = bytearray(txn_log.encode_value(OPEN))
    data[16] = state
    with pytest.raises(CorruptRecord, match="unknown transaction status"):
        txn_log.decode_value(bytes(data))


def test_shard_takes_what_it_can_read(caplog: pytest.LogCaptureFixture) -> None:
    table = {
        txn_log.encode_key("t"): Entry(txn_log.encode_value(OPEN), 4),
        b"\0\1later": Entry(b"?", 5),
        txn_log.encode_key("bad"): Entry(b"\0\0", 6),
    }
    shard = TxnShard(3, 1)
    shard.fill(Replayed(table=table))
    assert {txn.transactional_id: txn.value for txn in shard} == {"t": OPEN}
    assert "__transaction_state-3: cannot read the record at offset 6" in caplog.text
