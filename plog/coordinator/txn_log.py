"""What a record of `__transaction_state` says, and how it is written.

Owns the versions: 0 is written wherever it can say all there is, so that Kafka 3.9 and older
brokers read it, and 1 where an epoch was raised by the end of a transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter

from plog.coordinator.txn_events import TxnValue
from plog.coordinator.txn_states import AT_REST, EMPTY, NEXT_STATES, TxnState
from plog.coordinator.versioned import decode, encode, version_of
from plog.errors import CorruptRecord
from plog.protocol.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from plog.types import NO_PRODUCER_ID, TopicPartition

KEY = 0
PLAIN_VALUE, FLEXIBLE_VALUE = 0, 1

_STATES: Mapping[int, TxnState] = {int(state): state for state in NEXT_STATES}
"""Those that are stored: of the others nothing follows."""


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    return encode(TransactionLogKey(transactional_id=transactional_id), KEY)


def decode_key(data: bytes) -> str | None:
    """Decode a key; None for kinds of keys that are not known here. Raises CorruptRecord."""
    version = version_of(data)
    if version != KEY:
        return None
    return str(decode(TransactionLogKey, version, data).transactional_id)


def encode_value(value: TxnValue) -> bytes:
    """Encode a value."""
    is_plain = (
        value.client_version == 0
        and value.previous_producer_id == NO_PRODUCER_ID
        and value.next_producer_id == NO_PRODUCER_ID
    )
    version = PLAIN_VALUE if is_plain else FLEXIBLE_VALUE
    found = TransactionLogValue(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.state,
        transaction_partitions=(
            None if value.state is EMPTY else list(_by_topic(value.partitions))
        ),
        transaction_last_update_timestamp_ms=value.updated_ms,
        transaction_start_timestamp_ms=value.started_ms,
        client_transaction_version=value.client_version,
    )
    return encode(found, version)


def decode_value(data: bytes) -> TxnValue:
    """Decode a value. Raises CorruptRecord."""
    found = decode(TransactionLogValue, version_of(data), data)
    state = _STATES.get(found.transaction_status)
    if state is None:
        raise CorruptRecord(f"unknown transaction status {found.transaction_status}")
    partitions = frozenset(
        TopicPartition(one.topic, index)
        for one in found.transaction_partitions or ()
        for index in one.partition_ids
    )
    if partitions and state in AT_REST:
        raise CorruptRecord(f"{state.label}, with {len(partitions)} partitions in a transaction")
    return TxnValue(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        updated_ms=found.transaction_last_update_timestamp_ms,
        started_ms=found.transaction_start_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        client_version=found.client_transaction_version,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[PartitionsSchema]:
    for topic, some in groupby(sorted(partitions), attrgetter("topic")):
        yield PartitionsSchema(topic=topic, partition_ids=[at.partition for at in some])
