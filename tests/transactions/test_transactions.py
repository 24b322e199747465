"""Transactions as their producers and their readers see them, request by request."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.types import TopicPartition
from tests.coordinator.members import Later
from tests.handlers.wire import WAIT_MS, Speaker, fetch_one, make_batch, produce, speak, walk_all
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.conftest import SETTINGS, Enter
from tests.transactions.hanging import COORDINATOR_EPOCH, leave_hanging
from tests.transactions.test_administration import write_marker
from tests.transactions.transactor import COMMITTED, UNCOMMITTED, Transactor, read
from tests.waiting import until

NONE = ErrorCode.NONE
LATEST = -1
WAITS_S = 0.2
"""For a request to come and wait; one that comes later finds the same."""


def end_of(wire: Speaker, at: TopicPartition, isolation_level: int) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(
                name=at.topic,
                partitions=[ListOffsetsPartition(partition_index=at.partition, timestamp=LATEST)],
            )
        ],
    )
    (topic,) = wire.ask(request, 7).topics
    (part,) = topic.partitions
    assert part.error_code == NONE
    return int(part.offset)


# -- what readers see ------------------------------------------------------------------------------


def test_committed_records_are_seen_once_they_are(
    wire: Speaker, enter_any: Enter, at: TopicPartition
) -> None:
    one = enter_any()
    assert one.send(at, b"a", b"b") == 0
    assert read(wire, at) == []
    assert read(wire, at, committed=False) == [b"a", b"b"]
    assert (end_of(wire, at, COMMITTED), end_of(wire, at, UNCOMMITTED)) == (0, 2)
    one.finish(commit=True)
    assert read(wire, at) == [b"a", b"b"]
    assert (end_of(wire, at, COMMITTED), end_of(wire, at, UNCOMMITTED)) == (3, 3)


def test_aborted_records_are_named_to_readers_of_committed_ones(
    wire: Speaker, enter_any: Enter, at: TopicPartition
) -> None:
    one = enter_any()
    one.send(at, b"no")
    one.finish(commit=False)
    one.send(at, b"yes")
    one.finish(commit=True)
    part = fetch_one(wire, at.topic, 0, isolation_level=COMMITTED)
    assert [(a.producer_id, a.first_offset) for a in part.aborted_transactions] == [
        (one.producer.id, 0)
    ]
    assert [record.offset for record in walk_all(part.records)] == [0, 1, 2, 3]
    assert read(wire, at) == [b"yes"]
    assert read(wire, at, committed=False) == [b"no", b"yes"]
    assert fetch_one(wire, at.topic, 0).aborted_transactions is None
    assert fetch_one(wire, at.topic, 2, isolation_level=COMMITTED).aborted_transactions == []


def test_reader_waits_for_the_earliest_open_transaction(
    wire: Speaker, enter_any: Enter, at: TopicPartition
) -> None:
    slow, quick = enter_any(), enter_any()
    slow.send(at, b"slow")
    quick.send(at, b"quick")
    assert produce(wire, at.topic, make_batch([b"plain"])).error_code == NONE
    quick.finish(commit=True)
    assert read(wire, at) == []
    slow.finish(commit=True)
    assert read(wire, at) == [b"slow", b"quick", b"plain"]


@pytest.mark.parametrize("aborted_before", [False, True])
def test_reader_that_waited_is_told_of_the_abort_that_it_waited_for(
    wire: Speaker, enter_any: Enter, at: TopicPartition, aborted_before: bool
) -> None:
    one = enter_any()
    if aborted_before:
        one.send(at, b"no")
        one.finish(commit=False)
    begin = one.send(at, b"no")
    waiting = Later(
        lambda: fetch_one(
            wire, at.topic, begin, isolation_level=COMMITTED, max_wait_ms=WAIT_MS, min_bytes=1
        )
    )
    time.sleep(WAITS_S)
    one.finish(commit=False)
    part = waiting.get()
    assert part.high_watermark > begin
    assert [a.first_offset for a in part.aborted_transactions] == [begin]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_transactions_of_every_codec(
    wire: Speaker, enter_any: Enter, at: TopicPartition, codec: int
) -> None:
    one = enter_any()
    one.join(at)
    for n in range(3):
        assert one.produce(at, b"%d" % n, codec=codec).error_code == NONE
    one.finish(commit=True)
    assert read(wire, at) == [b"0", b"1", b"2"]


def test_markers_are_the_bytes_that_kafka_writes(
    wire: Speaker, enter_any: Enter, at: TopicPartition
) -> None:
    one = enter_any()
    one.send(at, b"v")
    one.finish(commit=True)
    part = fetch_one(wire, at.topic, 1)
    data = bytes(part.records)
    assert len(data) == 78
    assert data[22] == 0x30  # control, transactional
    (marker,) = walk_all(data)
    assert marker.key == b"\0\0\0\1"
    assert marker.value is not None
    assert marker.value[:2] == b"\0\0"


# -- who may write ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_partition_that_is_not_in_the_transaction_takes_no_record(
    wire: Speaker, enter: Enter, at: TopicPartition, version: int, expected: ErrorCode
) -> None:
    one = enter()
    one.send(TopicPartition(at.topic, 1), b"elsewhere")
    assert one.produce(at, version=version).error_code == expected
    assert one.produce(at, version=version, transactional_id=None).error_code == (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    one.finish(commit=True)
    assert read(wire, at, committed=False) == []


def test_record_that_comes_after_the_end_is_of_no_transaction(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    one = enter()
    one.send(at, b"in time")
    one.finish(commit=True)
    late = one.produce(at, b"late")
    assert late.error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert read(wire, at, committed=False) == [b"in time"]
    assert end_of(wire, at, COMMITTED) == 2


def test_repeated_batch_is_answered_as_the_first_was(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    one = enter()
    one.join(at)
    first = one.produce(at, b"v", sequence=0)
    again = one.produce(at, b"v", sequence=0)
    assert (again.error_code, again.base_offset) == (NONE, first.base_offset)
    one.finish(commit=True)
    after = one.produce(at, b"v", sequence=0)
    assert (after.error_code, after.base_offset) == (NONE, first.base_offset)
    assert end_of(wire, at, UNCOMMITTED) == 2


def test_batch_outside_the_open_transaction_is_refused(
    wire: Speaker, enter_any: Enter, at: TopicPartition
) -> None:
    one = enter_any()
    one.send(at, b"v")
    plain = make_batch([b"plain"], producer=(*one.producer, 1))
    assert produce(wire, at.topic, plain).error_code == ErrorCode.INVALID_TXN_STATE
    one.finish(commit=True)
    assert read(wire, at) == [b"v"]


def test_new_producer_fences_the_old_one_and_aborts_what_it_has_begun(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    old = enter()
    old.send(at, b"no")
    new = enter(old.transactional_id)
    assert new.producer.id == old.producer.id
    assert new.producer.epoch > old.producer.epoch
    assert old.produce(at, b"no").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    for version, error in (
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
        (3, ErrorCode.PRODUCER_FENCED),
    ):
        assert old.add(at, version=version) == [error]
        assert old.end(commit=True, version=version) is error
        assert old.add_offsets("g", version=version) is error
    for version, error in (
        (3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, ErrorCode.PRODUCER_FENCED),
    ):
        assert old.init(version, was=old.producer) is error
    new.send(at, b"yes")
    new.finish(commit=True)
    assert read(wire, at) == [b"yes"]


def test_transaction_that_takes_too_long_is_aborted(
    wire: Speaker, enter: Enter, at: TopicPartition
) -> None:
    one = enter(timeout_ms=300)
    one.send(at, b"no")
    until(lambda: one.described().transaction_state == "CompleteAbort")
    assert read(wire, at) == []
    assert one.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert one.produce(at, b"no").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.init() is NONE
    one.send(at, b"yes")
    one.finish(commit=True)
    assert read(wire, at) == [b"yes"]


def test_transaction_whose_marker_is_refused_is_complete_once_it_is_ended_there(
    wire: Speaker, enter_any: Enter, at: TopicPartition
) -> None:
    one = enter_any()
    other = TopicPartition(at.topic, 1)
    one.send(other, b"elsewhere")
    leave_hanging(one, at, b"hangs")
    # Where its marker was taken it is committed. It is not over: nobody may begin the next one.
    until(lambda: read(wire, other) == [b"elsewhere"])
    assert read(wire, at) == []
    assert one.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    plain = make_batch([b"plain"], producer=(one.producer.id, one.producer.epoch + 1, 0))
    assert produce(wire, at.topic, plain).error_code == ErrorCode.INVALID_TXN_STATE
    assert one.described().transaction_state == "PrepareCommit"
    aborted = write_marker(wire, at, one.producer, commit=False, epoch=COORDINATOR_EPOCH)
    assert aborted is NONE
    until(lambda: one.described().transaction_state == "CompleteCommit")
    one.start()
    one.send(other, b"next")
    one.finish(commit=True)
    assert read(wire, other) == [b"elsewhere", b"next"]
    assert read(wire, at) == []


# -- what is asked of the coordinator --------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_that_cannot_be_had(enter: Enter, timeout_ms: int) -> None:
    one = enter()
    one.timeout_ms = timeout_ms
    assert one.init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_longest_timeout_is_the_brokers(plane: Plane, tmp_path: Path) -> None:
    overrides = {**SETTINGS, "transaction.max.timeout.ms": 5000}
    with (
        BrokerProcess(tmp_path, overrides=overrides) as broker,
        closing(speak(broker.port)) as wire,
    ):
        one = Transactor(wire, "tx", timeout_ms=5000).start()
        one.timeout_ms = 5001
        assert one.init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert one.described().transaction_timeout_ms == 5000
        one.timeout_ms = 5000
        assert one.init() is NONE


def test_unknown_partition_keeps_the_others_out(enter: Enter, at: TopicPartition) -> None:
    one = enter()
    unknown = TopicPartition(at.topic, 99)
    assert one.add(at, unknown) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert one.described().transaction_state == "Empty"


def test_ends_that_are_asked_for_again(enter: Enter, at: TopicPartition) -> None:
    one = enter()
    assert one.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    one.send(at)
    one.finish(commit=True)
    assert one.end(commit=True) is NONE
    assert one.end(commit=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_a_producers_requests(
    wire: Speaker, enter: Enter, at: TopicPartition, version: int
) -> None:
    one = enter()
    group = f"g{version}"
    assert one.add(at, version=version) == [NONE]
    assert one.produce(at, b"v", version=3 + version).error_code == NONE
    until(lambda: one.add_offsets(group, version=version) is NONE)
    assert one.commit_offset(group, at, 1, version=version) is NONE
    assert one.end(commit=True, version=version) is NONE
    until(lambda: one.described().transaction_state == "CompleteCommit")
    assert read(wire, at) == [b"v"]


def test_strangers_are_unknown(enter: Enter, at: TopicPartition) -> None:
    one = enter()
    one.producer = Producer(one.producer.id + 1_000_000, 0)
    assert one.add(at) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert one.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert one.produce(at).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    one.transactional_id = "nobody's"
    assert one.add(at) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert one.described().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
