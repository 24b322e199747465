"""Transactions as administrators see them, and end them (KIP-664)."""

from __future__ import annotations

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.producers import DescribeProducersRequest, TopicRequest
from plog.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from plog.types import TopicPartition
from tests.handlers.wire import Speaker, fresh_name
from tests.transactions.conftest import Enter
from tests.transactions.transactor import read

NONE = ErrorCode.NONE


def listed(wire: Speaker, version: int = 1, **asked: object) -> set[str]:
    request = ListTransactionsRequest(
        **{"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | asked
    )
    answer = wire.ask(request, version)
    assert answer.error_code == NONE
    return {one.transactional_id for one in answer.transaction_states}


def test_transactions_are_listed_by_a_pattern_of_their_ids(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    prefix = fresh_name()
    idle, busy = enter(f"{prefix}-idle"), enter(f"{prefix}-busy")
    busy.send(at)
    ids = {idle.transactional_id, busy.transactional_id}
    for pattern, expected in {
        f"{prefix}-.*": ids,
        f"{prefix}-(idle|none)": {idle.transactional_id},
        prefix: set(),  # the whole id has to match
        f"(?i){prefix.upper()}-BUSY": {busy.transactional_id},
    }.items():
        assert listed(wire, 2, transactional_id_pattern=pattern) == expected
    assert listed(wire, 2, transactional_id_pattern=f"{prefix}.*", state_filters=["Ongoing"]) == {
        busy.transactional_id
    }
    for everything in ("", None):
        assert listed(wire, 2, transactional_id_pattern=everything) >= ids
    for invalid in ("(", "a{0,1000}" * 3_000):
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], transactional_id_pattern=invalid
        )
        answer = wire.ask(request, 2)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert answer.transaction_states == []


def test_transactions_are_listed_by_state_producer_and_duration(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    idle, busy = enter(), enter()
    busy.send(at)
    mine = {idle.transactional_id, busy.transactional_id}
    assert listed(wire, 0) >= mine
    assert listed(wire, state_filters=["Ongoing"]) & mine == {busy.transactional_id}
    assert listed(wire, producer_id_filters=[idle.producer.id]) == {idle.transactional_id}
    assert busy.transactional_id not in listed(wire, duration_filter=3_600_000)
    assert busy.transactional_id in listed(wire, duration_filter=0)
    request = ListTransactionsRequest(
        state_filters=["Ongoing", "Dreaming"], producer_id_filters=[], duration_filter=-1
    )
    assert wire.ask(request, 1).unknown_state_filters == ["Dreaming"]


def test_transaction_is_described(enter: Enter, at: TopicPartition) -> None:
    one = enter()
    other = TopicPartition(at.topic, 2)
    one.send(other)
    one.send(at)
    found = one.described()
    assert found.error_code == NONE
    assert found.transaction_state == "Ongoing"
    assert (found.producer_id, found.producer_epoch) == one.producer
    assert found.transaction_timeout_ms == one.timeout_ms
    assert found.transaction_start_time_ms > 0
    (topic,) = found.topics
    assert (topic.topic, topic.partitions) == (at.topic, [0, 2])


def test_producers_of_a_partition_are_described(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    one = enter()
    offset = one.send(at, b"a", b"b")
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=at.topic, partition_indexes=[0, 99])]
    )
    (topic,) = wire.ask(request, 0).topics
    known, unknown = topic.partitions
    (entry,) = known.active_producers
    assert (entry.producer_id, entry.producer_epoch) == one.producer
    assert (entry.last_sequence, entry.current_txn_start_offset) == (1, offset)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def write_marker(
    wire: Speaker,
    at: TopicPartition,
    producer: tuple[int, int],
    *,
    commit: bool,
    epoch: int,
    version: int = 1,
    transaction_version: int = 0,
) -> ErrorCode:
    producer_id, producer_epoch = producer
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=commit,
                topics=[WritableTxnMarkerTopic(name=at.topic, partition_indexes=[at.partition])],
                coordinator_epoch=epoch,
                transaction_version=transaction_version,
            )
        ]
    )
    (marker,) = wire.ask(request, version).markers
    (topic,) = marker.topics
    (part,) = topic.partitions
    return ErrorCode(part.error_code)


def test_administrator_ends_a_transaction_that_hangs(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    one = enter()
    one.send(at, b"no")
    assert write_marker(wire, at, one.producer, commit=False, epoch=50) is NONE
    assert read(wire, at) == []
    older = write_marker(wire, at, one.producer, commit=True, epoch=49)
    assert older is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    stale = (one.producer.id, one.producer.epoch - 1)
    assert write_marker(wire, at, stale, commit=True, epoch=50) is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    nowhere = TopicPartition(at.topic, 99)
    assert write_marker(wire, nowhere, one.producer, commit=True, epoch=50) is (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_marker_of_transaction_version_2_has_an_epoch_of_its_own(
    wire: Speaker, enter: Enter, at: TopicPartition, transaction_version: int
) -> None:
    one = enter()
    one.send(at, b"yes")
    of_writes = one.producer
    next_epoch = (one.producer.id, one.producer.epoch + 1)
    errors = [
        write_marker(
            wire,
            at,
            producer,
            commit=True,
            epoch=50,
            version=2,
            transaction_version=transaction_version,
        )
        for producer in (of_writes, next_epoch)
    ]
    has_own = transaction_version == 2
    assert errors == [ErrorCode.INVALID_PRODUCER_EPOCH if has_own else NONE, NONE]
    assert read(wire, at) == [b"yes"]


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_whether_partitions_are_in_a_transaction(
    wire: Speaker, enter: Enter, at: TopicPartition, version: int
) -> None:
    one = enter()
    one.send(at)
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.producer.id,
                producer_epoch=one.producer.epoch,
                verify_only=True,
                topics=[AddPartitionsToTxnTopic(name=at.topic, partitions=[0, 1])],
            )
        ]
    )
    answer = wire.ask(request, version)
    assert answer.error_code == NONE
    (result,) = answer.results_by_transaction
    (topic,) = result.topic_results
    lacking = ErrorCode.TRANSACTION_ABORTABLE
    assert [one.partition_error_code for one in topic.results_by_partition] == [NONE, lacking]
