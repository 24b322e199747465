"""Transactions against bad luck: coordinators and leaders that refuse, move and say nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from plog._native import batch
from plog.client.group_consumer import GroupMetadata
from plog.client.producer import Producer, ProducerClosed, TransactionAborted
from plog.client.transaction_states import State
from plog.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    RequestTimedOut,
)
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.groups import FindCoordinatorRequest
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from plog.types import TopicPartition
from tests.client.fake_broker import CLOSE, SILENCE, TxnBroker, produced
from tests.waiting import until

WAIT_S = 60
PARTITIONS = 3


@pytest.fixture
def fake() -> Iterator[TxnBroker]:
    with TxnBroker(PARTITIONS) as running:
        yield running


def producer_of(fake: TxnBroker, **options) -> Producer:
    arguments = {
        "transactional_id": "tx",
        "retry_backoff_ms": 1,
        "linger_ms": 1,
        "max_block_ms": 20_000,
        **options,
    }
    producer = Producer(fake.bootstrap, **arguments)
    producer.init_transactions()
    return producer


def headers(fake: TxnBroker) -> list[batch.BatchHeader]:
    return [
        batch.read_header(data.records)
        for request in fake.requests
        if isinstance(request, ProduceRequest)
        for topic in request.topic_data
        for data in topic.partition_data
    ]


def of_kind(fake: TxnBroker, kind: type) -> list:
    return [request for request in fake.requests if isinstance(request, kind)]


PASSING = [
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    CLOSE,
]


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ],
    ids=lambda key: key.name.lower(),
)
def test_coordinator_that_moves_loads_and_is_busy_is_waited_for(
    fake: TxnBroker, key: ApiKey
) -> None:
    fake.lots[key] = list(PASSING)
    with producer_of(fake) as producer:
        for n in range(2):
            with producer.transaction():
                producer.send("t", b"%d" % n, partition=0)
                producer.send_offsets_to_transaction(
                    {TopicPartition("t", 0): n}, GroupMetadata("g")
                )
    assert fake.lots[key] == []
    assert fake.ends == [True, True]
    assert fake.ledgers[0].values == [b"0", b"1"]
    # The same producer all the time.
    assert {(h.producer_epoch, h.is_transactional) for h in headers(fake)} == {(0, True)}


def test_each_partition_joins_once_before_its_first_batch(fake: TxnBroker) -> None:
    with producer_of(fake, batch_size=100) as producer:
        for _ in range(2):
            with producer.transaction():
                for n in range(60):
                    producer.send("t", b"%d" % n, partition=n % PARTITIONS)
    assert {request.transactional_id for request in of_kind(fake, ProduceRequest)} == {"tx"}
    joined: set[int] = set()
    for request in fake.requests:
        if isinstance(request, AddPartitionsToTxnRequest):
            (topic,) = request.v3_and_below_topics
            assert not joined & set(topic.partitions)
            joined.update(topic.partitions)
        elif isinstance(request, ProduceRequest):
            assert {d.index for t in request.topic_data for d in t.partition_data} <= joined
        elif isinstance(request, EndTxnRequest):
            assert joined == set(range(PARTITIONS))
            joined.clear()
    found = headers(fake)
    assert all(h.is_transactional and h.producer_id == 77 for h in found)
    for ledger in fake.ledgers:
        assert len(ledger.values) == 40
    # Sequences go on from one transaction to the next.
    assert max(h.last_sequence for h in found) == 39


def test_transaction_without_anything_in_it_ends_with_nobody_asked(fake: TxnBroker) -> None:
    with producer_of(fake, linger_ms=50_000) as producer:
        with producer.transaction():
            pass
        producer.begin_transaction()
        dropped = producer.send("t", b"x", partition=0)
        producer.abort_transaction()
        with pytest.raises(TransactionAborted, match="aborted"):
            dropped.result(0)
        with producer.transaction():
            producer.send("t", b"y", partition=0)
    assert fake.count(AddPartitionsToTxnRequest) == 1
    assert fake.ends == [True]
    assert fake.count(InitProducerIdRequest) == 1
    assert fake.ledgers[0].values == [b"y"]


def test_abort_of_what_was_acknowledged_keeps_the_epoch(fake: TxnBroker) -> None:
    with producer_of(fake) as producer:
        producer.begin_transaction()
        producer.send("t", b"0", partition=0).result(WAIT_S)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"1", partition=0)
    assert fake.ends == [False, True]
    assert fake.count(InitProducerIdRequest) == 1
    assert [h.base_sequence for h in headers(fake)] == [0, 1]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_RECORD,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
def test_refused_batch_is_aborted_and_the_next_epoch_begins_at_0(
    fake: TxnBroker, code: ErrorCode
) -> None:
    with producer_of(fake) as producer:
        with producer.transaction():
            producer.send("t", b"0", partition=0)
        lots = [(code, False)]
        fake.luck = lambda _request: lots.pop() if lots else None
        with pytest.raises(KafkaError) as fault, producer.transaction():
            producer.send("t", b"no", partition=0)
        assert fault.value.code == code
        assert producer._transactions.progress.state is State.READY
        with producer.transaction():
            producer.send("t", b"1", partition=0)
    assert fake.ends == [True, False, True]
    inits = of_kind(fake, InitProducerIdRequest)
    assert [(one.producer_id, one.producer_epoch) for one in inits] == [(-1, -1), (77, 0)]
    assert [(h.producer_epoch, h.base_sequence) for h in headers(fake)] == [(0, 0), (0, 1), (1, 0)]
    assert fake.ledgers[0].values == [b"0", b"1"]


def test_batches_behind_one_that_is_tried_again_keep_their_numbers(fake: TxnBroker) -> None:
    with producer_of(fake, linger_ms=0, batch_size=100) as producer, producer.transaction():
        producer.send("t", b"first", partition=0).result(WAIT_S)
        lots = [(ErrorCode.NOT_ENOUGH_REPLICAS, False)]
        # Those behind it come out of order, and must only wait for it.
        fake.luck = lambda _request: lots.pop() if lots else None
        for n in range(100):
            producer.send("t", b"%d" % n, partition=0)
    assert fake.ledgers[0].values == [b"first", *(b"%d" % n for n in range(100))]
    assert fake.ends == [True]
    assert {h.producer_epoch for h in headers(fake)} == {0}


def test_batch_that_is_too_large_is_split_within_its_transaction(fake: TxnBroker) -> None:
    with producer_of(fake, linger_ms=50_000) as producer:
        lots = [(ErrorCode.MESSAGE_TOO_LARGE, False)]
        fake.luck = lambda _request: lots.pop() if lots else None
        with producer.transaction():
            for n in range(10):
                producer.send("t", b"%d" % n, partition=0)
    assert fake.ledgers[0].values == [b"%d" % n for n in range(10)]
    found = headers(fake)
    assert len(found) == 3
    assert all(h.is_transactional for h in found)


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
)
def test_refused_producer_is_of_no_more_use(fake: TxnBroker, code: ErrorCode) -> None:
    with producer_of(fake) as producer:
        fake.luck = lambda _request: (code, False)
        producer.begin_transaction()
        sent = [producer.send("t", b"x", partition=n) for n in range(PARTITIONS)]
        expected = ProducerFenced if code == ErrorCode.INVALID_PRODUCER_EPOCH else KafkaError
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(expected):
                call()
        assert all(one.done() for one in sent)
        assert producer._transactions.progress.state is State.FATAL_ERROR
    assert fake.count(EndTxnRequest) == 0


@pytest.mark.parametrize(
    ("key", "code", "state"),
    [
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.PRODUCER_FENCED, State.FATAL_ERROR),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED, State.ABORTABLE_ERROR),
        (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED, State.ABORTABLE_ERROR),
        (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, State.FATAL_ERROR),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, State.ABORTABLE_ERROR),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_EPOCH, State.FATAL_ERROR),
        (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED, State.FATAL_ERROR),
        (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, State.FATAL_ERROR),
    ],
)
def test_refusal_of_a_coordinator(
    fake: TxnBroker, key: ApiKey, code: ErrorCode, state: State
) -> None:
    with producer_of(fake) as producer:
        fake.lots[key] = [code]
        producer.begin_transaction()
        sent = producer.send("t", b"x", partition=0)
        with pytest.raises(KafkaError) as fault:  # noqa: PT012 - whichever of the two calls it is
            if key != ApiKey.ADD_PARTITIONS_TO_TXN:
                producer.send_offsets_to_transaction(
                    {TopicPartition("t", 0): 1}, GroupMetadata("g")
                )
            producer.commit_transaction()
        fenced = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        assert fault.value.code == (ErrorCode.PRODUCER_FENCED if code in fenced else code)
        assert producer._transactions.progress.state is state
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            with pytest.raises(TransactionAborted):
                sent.result(WAIT_S)
        if state is State.ABORTABLE_ERROR:
            producer.abort_transaction()
            with producer.transaction():
                producer.send("t", b"y", partition=0)
            assert fake.ends[-1] is True


def test_records_given_up_cost_the_transaction_with_the_reason(fake: TxnBroker) -> None:
    refused = (ErrorCode.NOT_ENOUGH_REPLICAS, False)
    # By its value: one more of its requests may be on its way when it is given up.
    fake.luck = lambda request: refused if produced(request) == [b"no"] else None
    with producer_of(fake, delivery_timeout_ms=400) as producer:
        with (
            pytest.raises(RequestTimedOut, match=r"never acknowledged.*NOT_ENOUGH"),
            producer.transaction(),
        ):
            producer.send("t", b"no", partition=0)
        with producer.transaction():
            producer.send("t", b"yes", partition=0)
    assert fake.ends == [False, True]
    assert fake.ledgers[0].values == [b"yes"]
    assert [(h.producer_epoch, h.base_sequence) for h in headers(fake)][-1] == (1, 0)


def test_records_that_cannot_join_are_given_up_with_the_reason(fake: TxnBroker) -> None:
    fake.lots[ApiKey.ADD_PARTITIONS_TO_TXN] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 1000
    # Of no transaction at all, by what it has heard.
    fake.lots[ApiKey.END_TXN] = [ErrorCode.INVALID_TXN_STATE]
    with producer_of(fake, delivery_timeout_ms=400) as producer:
        with (
            pytest.raises(RequestTimedOut, match=r"never sent.*CONCURRENT_TRANSACTIONS"),
            producer.transaction(),
        ):
            producer.send("t", b"no", partition=0)
        fake.lots.clear()
        with producer.transaction():
            producer.send("t", b"yes", partition=0)
    assert fake.ends == [True]
    assert fake.ledgers[0].values == [b"yes"]
    # What asked to join may be on its way still: the new epoch keeps it out.
    assert fake.epoch == 1


def test_abort_waits_for_what_is_in_flight_and_raises_the_epoch(fake: TxnBroker) -> None:
    asked = threading.Event()

    def silent(request, header):
        asked.set()
        return SILENCE

    with producer_of(fake, linger_ms=0, request_timeout_ms=400) as producer:
        fake.answers[ApiKey.PRODUCE] = silent
        producer.begin_transaction()
        sent = producer.send("t", b"no", partition=0)
        assert asked.wait(WAIT_S)
        began = time.monotonic()
        producer.abort_transaction()
        assert time.monotonic() - began > 0.2
        with pytest.raises(TransactionAborted):
            sent.result(0)
        # Not sent again, and an epoch that keeps it out, should it be on its way still.
        assert fake.count(ProduceRequest) == 1
        fake.answers[ApiKey.PRODUCE] = fake.produce
        with producer.transaction():
            producer.send("t", b"yes", partition=0)
    assert fake.ends == [False, True]
    assert [(h.producer_epoch, h.base_sequence) for h in headers(fake)] == [(0, 0), (1, 0)]


def test_end_without_an_answer_is_asked_for_again(fake: TxnBroker) -> None:
    with producer_of(fake, request_timeout_ms=300, max_block_ms=700) as producer:
        fake.lots[ApiKey.END_TXN] = [SILENCE] * 100
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        with pytest.raises(RequestTimedOut, match="gave up after max_block_ms"):
            producer.commit_transaction()
        # It may be committed, so it cannot be aborted any more.
        with pytest.raises(InvalidTxnState, match="committing"):
            producer.abort_transaction()
        with pytest.raises(InvalidTxnState, match="committing"):
            producer.send("t", b"y", partition=0)
        fake.lots.clear()
        producer.commit_transaction()
        assert fake.ends == [True]
        with producer.transaction():
            producer.send("t", b"y", partition=0)
    assert fake.ends == [True, True]


def test_abort_goes_on_where_it_was_when_the_new_epoch_was_not_answered(fake: TxnBroker) -> None:
    with producer_of(fake, request_timeout_ms=300, max_block_ms=700) as producer:
        fake.lots[ApiKey.INIT_PRODUCER_ID] = [SILENCE] * 100
        lots = [(ErrorCode.INVALID_RECORD, False)]
        fake.luck = lambda _request: lots.pop() if lots else None
        producer.begin_transaction()
        producer.send("t", b"no", partition=0)
        with pytest.raises(InvalidRecord):
            producer.commit_transaction()
        with pytest.raises(RequestTimedOut):
            producer.abort_transaction()
        fake.lots.clear()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"yes", partition=0)
    assert fake.ends == [False, True]
    assert fake.epoch == 1


@pytest.mark.parametrize(("what", "epoch"), [("flush", 0), ("offsets", 1)])
def test_interrupted_call_leaves_a_transaction_that_can_be_aborted(
    fake: TxnBroker, monkeypatch: pytest.MonkeyPatch, what: str, epoch: int
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with producer_of(fake) as producer:
        with monkeypatch.context() as patched:
            if what == "flush":
                patched.setattr(producer, "_settle", interrupted)
            else:
                patched.setattr(producer._transactions, "_commit_offsets", interrupted)
            producer.begin_transaction()
            producer.send("t", b"no", partition=0).result(WAIT_S)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - whichever of the two calls it is
                producer.send_offsets_to_transaction(
                    {TopicPartition("t", 0): 1}, GroupMetadata("g")
                )
                producer.commit_transaction()
            with pytest.raises(TransactionAborted, match="KeyboardInterrupt"):
                producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"yes", partition=0)
    assert fake.ends == [False, True]
    # An offset may be on its way still; records are not.
    assert fake.epoch == epoch


def test_callback_may_not_end_a_transaction(fake: TxnBroker) -> None:
    with producer_of(fake) as producer:
        told = []

        def delivered(_metadata, _error):
            for call in (producer.commit_transaction, producer.abort_transaction):
                try:
                    call()
                except RuntimeError as refusal:
                    told.append(str(refusal))

        with producer.transaction():
            producer.send("t", b"x", partition=0, on_delivery=delivered)
    assert told == ["a delivery callback must not wait for the producer"] * 2
    assert fake.ends == [True]


def test_close_wakes_who_waits_for_a_coordinator(fake: TxnBroker) -> None:
    fake.lots[ApiKey.FIND_COORDINATOR] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 10_000
    producer = Producer(fake.bootstrap, transactional_id="tx")
    failed: list[BaseException] = []

    def init() -> None:
        try:
            producer.init_transactions()
        except ProducerClosed as closed:
            failed.append(closed)

    waiting = threading.Thread(target=init)
    waiting.start()
    until(lambda: fake.count(FindCoordinatorRequest) > 1)
    producer.close(0)
    waiting.join(WAIT_S)
    assert len(failed) == 1


def test_close_in_the_middle_of_a_commit_commits_nothing(
    fake: TxnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of(fake)
    # Time enough to commit between the end of the records and the end of the sender.
    monkeypatch.setattr(producer._sender._cluster, "close", lambda: time.sleep(0.3))
    asked = threading.Event()

    def silent(request, header):
        asked.set()
        return SILENCE

    fake.answers[ApiKey.PRODUCE] = silent
    producer.begin_transaction()
    producer.send("t", b"x", partition=0)
    failed: list[BaseException] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except ProducerClosed as closed:
            failed.append(closed)

    waiting = threading.Thread(target=commit)
    waiting.start()
    assert asked.wait(WAIT_S)
    producer.close(0)
    waiting.join(WAIT_S)
    assert len(failed) == 1
    assert fake.count(EndTxnRequest) == 0


def test_record_that_waited_until_its_transaction_was_over_is_of_no_other(fake: TxnBroker) -> None:
    known = threading.Event()
    refused: list[BaseException] = []

    def metadata(request, header):
        answer = fake.metadata(request, header)
        if not known.is_set():
            answer.topics = [
                fake.describe(t.name, 0 if t.name == "t" else ErrorCode.LEADER_NOT_AVAILABLE)
                for t in request.topics
            ]
        return answer

    fake.answers[ApiKey.METADATA] = metadata
    with producer_of(fake) as producer:

        def send() -> None:
            try:
                producer.send("late", b"x", partition=0)
            except InvalidTxnState as refusal:
                refused.append(refusal)

        with producer.transaction():
            producer.send("t", b"y", partition=0)
            waiting = threading.Thread(target=send)
            waiting.start()
            until(lambda: producer._accumulator.wanted_topics() == {"late"})
        known.set()
        waiting.join(WAIT_S)
        assert len(refused) == 1
    assert fake.ledgers[0].values == [b"y"]


def test_offsets_name_the_member(fake: TxnBroker) -> None:
    with producer_of(fake) as producer, producer.transaction():
        producer.send_offsets_to_transaction(
            {TopicPartition("t", 1): 5, TopicPartition("u", 0): 6},
            GroupMetadata("g", 3, "member", "instance"),
        )
        producer.send_offsets_to_transaction({}, GroupMetadata("h"))
    (request,) = of_kind(fake, TxnOffsetCommitRequest)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 3, "member")
    assert (request.group_instance_id, request.transactional_id) == ("instance", "tx")
    assert {
        (topic.name, part.partition_index): part.committed_offset
        for topic in request.topics
        for part in topic.partitions
    } == {("t", 1): 5, ("u", 0): 6}
