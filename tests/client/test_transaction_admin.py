"""Transactions as administrators see them: real ones, and coordinators and leaders that move."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from plog.client.metadata import Node
from plog.client.partition_producers import ActiveProducer, OpenTransaction
from plog.client.transaction_admin import (
    HangingTransaction,
    TransactionAdmin,
    TransactionDescription,
    will_end,
)
from plog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NotLeaderOrFollower,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsResponse
from plog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from plog.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from plog.protocol.messages.transactions import (
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsResponse,
    TopicData,
    TransactionState,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from plog.types import TopicPartition
from tests.client.fake_broker import FakeBroker
from tests.handlers.wire import NOW_MS, speak
from tests.servers import BrokerProcess
from tests.transactions.hanging import COORDINATOR_EPOCH, leave_hanging
from tests.transactions.transactor import Transactor, read

NONE = ErrorCode.NONE
HOUR_MS = 3_600_000
_numbers = itertools.count()

Enter = Callable[..., Transactor]


@pytest.fixture
def enter(broker: BrokerProcess) -> Iterator[Enter]:
    """Make producers of a new transactional id each."""
    with ExitStack() as open_ones:

        def make() -> Transactor:
            wire = open_ones.enter_context(closing(speak(broker.port)))
            return Transactor(wire, f"tx{next(_numbers)}").start()

        yield make


@pytest.fixture
def at(new_topic: Callable[..., str]) -> TopicPartition:
    return TopicPartition(new_topic(2), 0)


@pytest.fixture
def txns(bootstrap: str) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(bootstrap) as admin:
        yield admin


def hanging(admin: TransactionAdmin, *at: TopicPartition, longer_than_ms: int = 0):
    found, faults = admin.hanging(at, longer_than_ms=longer_than_ms, now_ms=NOW_MS)
    assert faults == {}
    return found


# -- as coordinators know them ---------------------------------------------------------------------


def test_transactions_are_listed_by_state_producer_and_duration(
    txns: TransactionAdmin, enter: Enter, at: TopicPartition
) -> None:
    idle, busy = enter(), enter()
    busy.send(at)

    def listed(*args, **kwargs) -> set[str]:
        return {one.transactional_id for one in txns.transactions(*args, **kwargs)}

    mine = {idle.transactional_id, busy.transactional_id}
    assert listed() >= mine
    assert listed(["Ongoing"]) & mine == {busy.transactional_id}
    assert listed(producer_ids=[idle.producer.id]) == {idle.transactional_id}
    assert busy.transactional_id not in listed(longer_than_ms=HOUR_MS)
    assert busy.transactional_id in listed(longer_than_ms=0)
    (one,) = txns.transactions(producer_ids=[busy.producer.id])
    assert one.coordinator_id == txns.describe(busy.transactional_id).coordinator.node_id
    assert one == (busy.transactional_id, one.coordinator_id, busy.producer.id, "Ongoing")


def test_transaction_is_described_while_it_is_open_and_after(
    txns: TransactionAdmin, broker: BrokerProcess, enter: Enter, at: TopicPartition
) -> None:
    one = enter()
    second = TopicPartition(at.topic, 1)
    one.send(second)
    one.send(at)
    found = txns.describe(one.transactional_id)
    assert (found.transactional_id, found.state) == (one.transactional_id, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == one.producer
    assert found.timeout_ms == one.timeout_ms
    assert found.partitions == (at, second)
    assert found.started_ms is not None
    assert abs(found.started_ms - time.time() * 1000) < HOUR_MS
    assert found.coordinator.node_id in broker.ids
    one.finish(commit=False)
    found = txns.describe(one.transactional_id)
    assert (found.state, found.started_ms, found.partitions) == ("CompleteAbort", None, ())


def test_transactional_id_nobody_has_heard_of_is_said_so(txns: TransactionAdmin) -> None:
    with pytest.raises(TransactionalIdNotFound, match="id 'nobody': it does not exist"):
        txns.describe("nobody")
    with pytest.raises(KafkaError, match="the transactional id is empty"):
        txns.describe("")


# -- as partitions know them -----------------------------------------------------------------------


def test_producers_are_told_with_their_open_transactions(
    txns: TransactionAdmin, enter: Enter, at: TopicPartition
) -> None:
    done, busy = enter(), enter()
    done.send(at, b"a")
    done.finish(commit=True)
    start = busy.send(at, b"b", b"c")
    second = TopicPartition(at.topic, 1)
    told = txns.producers([at, second])
    assert told.faults == {}
    assert told.producers[second] == []
    by_id = {one.producer_id: one for one in told.producers[at]}
    first = by_id[done.producer.id]
    assert (first.coordinator_epoch, first.txn_start_offset) == (0, -1)
    assert by_id[busy.producer.id] == (*busy.producer, -1, 1, NOW_MS, start)
    assert txns.open_since(at, start).producer == by_id[busy.producer.id]
    with pytest.raises(InvalidTxnState, match=f"{at} since offset 0"):
        txns.open_since(at, 0)


def test_partitions_that_are_not_there_are_said_so(
    txns: TransactionAdmin, at: TopicPartition
) -> None:
    assert txns.partitions_of(at.topic) == [at, TopicPartition(at.topic, 1)]
    assert txns.partitions_of(at.topic, [1]) == [TopicPartition(at.topic, 1)]
    assert {at, TopicPartition(at.topic, 1)} <= set(txns.all_partitions())
    with pytest.raises(UnknownTopicOrPartition, match=f"{at.topic}-77"):
        txns.partitions_of(at.topic, [77])
    with pytest.raises(UnknownTopicOrPartition, match="'nowhere'"):
        txns.partitions_of("nowhere")
    gone = TopicPartition(at.topic, 77)
    told = txns.producers([gone, at])
    assert told.producers == {at: []}
    assert isinstance(told.faults[gone], UnknownTopicOrPartition)


# -- both ------------------------------------------------------------------------------------------


def test_transaction_that_hangs_is_found_and_aborted(
    txns: TransactionAdmin, enter: Enter, at: TopicPartition
) -> None:
    one, other = enter(), enter()
    start = leave_hanging(one, at, b"hangs")
    second = TopicPartition(at.topic, 1)
    other.send(second, b"goes on")
    (found,) = hanging(txns, at, second)
    assert found.transactional_id == one.transactional_id
    assert found.transaction.identity == (at, *one.producer, start)
    assert read(one.wire, at) == []
    producer = found.transaction.producer
    assert producer.marker_epoch == COORDINATOR_EPOCH
    txns.abort(
        at,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=producer.marker_epoch,
    )
    assert hanging(txns, at, second) == []
    later = enter()
    later.send(at, b"later")
    later.finish(commit=True)
    assert read(one.wire, at) == [b"later"]
    other.finish(commit=True)
    assert read(other.wire, at) == [b"later"]


def test_transaction_is_not_looked_at_before_its_time(
    txns: TransactionAdmin, enter: Enter, at: TopicPartition
) -> None:
    leave_hanging(enter(), at, b"hangs")
    assert hanging(txns, at, longer_than_ms=1) == []
    for now_ms, count in [(NOW_MS + 999, 0), (NOW_MS + 1000, 1)]:
        found, _ = txns.hanging([at], longer_than_ms=1000, now_ms=now_ms)
        assert len(found) == count


def test_marker_of_somebody_older_is_refused(
    txns: TransactionAdmin, enter: Enter, at: TopicPartition
) -> None:
    one = enter()
    leave_hanging(one, at, b"hangs")
    with pytest.raises(TransactionCoordinatorFenced, match="coordinator of a later epoch"):
        txns.abort(
            at,
            producer_id=one.producer.id,
            producer_epoch=one.producer.epoch,
            coordinator_epoch=COORDINATOR_EPOCH - 1,
        )
    txns.abort(
        at,
        producer_id=one.producer.id,
        producer_epoch=one.producer.epoch,
        coordinator_epoch=COORDINATOR_EPOCH,
    )
    one.start()
    one.join(at)
    assert one.produce(at, b"newer").error_code == NONE
    with pytest.raises(InvalidProducerEpoch, match="a later epoch of the producer"):
        txns.abort(
            at,
            producer_id=one.producer.id,
            producer_epoch=one.producer.epoch - 1,
            coordinator_epoch=COORDINATOR_EPOCH,
        )
    with pytest.raises(UnknownTopicOrPartition):
        txns.abort(
            TopicPartition(at.topic, 77), producer_id=1, producer_epoch=0, coordinator_epoch=0
        )


# -- who will end what -----------------------------------------------------------------------------

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COORDINATOR = Node(1, "h", 1, None)


def opened(epoch: int = 5, at: TopicPartition = T0) -> OpenTransaction:
    return OpenTransaction(at, ActiveProducer(1, epoch, -1, 0, 0, 7))


@pytest.mark.parametrize(
    ("state", "epoch", "partitions", "expected"),
    [
        ("Ongoing", 5, (T0, T1), True),
        ("Ongoing", 5, (T1,), False),
        ("Ongoing", 6, (T0,), False),
        ("Ongoing", 4, (T0,), False),
        ("PrepareCommit", 5, (T0,), True),
        ("PrepareCommit", 6, (T0,), True),  # version 2 raises the epoch with the end
        ("PrepareAbort", 6, (T0,), True),  # of a producer that is fenced
        ("PrepareAbort", 4, (T0,), False),  # whose marker will be refused
        ("PrepareAbort", 6, (T1,), False),
        ("CompleteCommit", 5, (), False),
        ("Empty", 5, (), False),
    ],
)
def test_coordinator_ends_what_it_knows_of(
    state: str, epoch: int, partitions: tuple[TopicPartition, ...], expected: bool
) -> None:
    owner = TransactionDescription("x", COORDINATOR, 1, epoch, state, 1000, None, partitions)
    assert will_end(owner, opened()) is expected


# -- brokers that move, and brokers that do not tell -----------------------------------------------


def described_producers(*start_offsets: int, error: ErrorCode = NONE) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name="t",
                partitions=[
                    PartitionResponse(
                        partition_index=0,
                        error_code=error,
                        active_producers=[
                            ProducerState(
                                producer_id=1,
                                producer_epoch=5,
                                coordinator_epoch=-1,
                                current_txn_start_offset=start,
                            )
                            for start in start_offsets
                        ],
                    )
                ],
            )
        ]
    )


def listed_transactions(*names: str, error: ErrorCode = NONE) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        error_code=error,
        unknown_state_filters=[],
        transaction_states=[
            ListedTransaction(transactional_id=name, producer_id=1, transaction_state="Ongoing")
            for name in names
        ],
    )


def described_transaction(
    *partitions: int, error: ErrorCode = NONE, epoch: int = 5
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(
                error_code=error,
                transactional_id="x",
                transaction_state="Ongoing",
                transaction_timeout_ms=1000,
                transaction_start_time_ms=1,
                producer_id=1,
                producer_epoch=epoch,
                topics=[TopicData(topic="t", partitions=list(partitions))],
            )
        ]
    )


def marked(error: ErrorCode) -> WriteTxnMarkersResponse:
    part = WritableTxnMarkerPartitionResult(partition_index=0, error_code=error)
    topic = WritableTxnMarkerTopicResult(name="t", partitions=[part])
    return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=1, topics=[topic])])


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    """A broker with one partition, in which producer 1 has a transaction open since offset 7."""
    with FakeBroker() as broker:
        broker.answers[ApiKey.FIND_COORDINATOR] = lambda *_: FindCoordinatorResponse(
            error_code=NONE, node_id=1, host="ignored", port=1
        )
        broker.answers[ApiKey.DESCRIBE_PRODUCERS] = lambda *_: described_producers(7)
        broker.answers[ApiKey.LIST_TRANSACTIONS] = lambda *_: listed_transactions("x")
        broker.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda *_: described_transaction()
        yield broker


@pytest.fixture
def by_fake(fake: FakeBroker) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(fake.bootstrap, request_timeout_ms=500) as admin:
        yield admin


def test_transaction_that_its_coordinator_has_forgotten_hangs(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    found = hanging(by_fake, T0)
    assert found == [HangingTransaction(by_fake.open_since(T0, 7), "x")]
    fake.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda *_: described_transaction(0)
    assert hanging(by_fake, T0) == []


def test_transaction_of_the_epoch_before_hangs_although_its_id_has_another_open(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    fake.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda *_: described_transaction(0, epoch=6)
    assert hanging(by_fake, T0) == [HangingTransaction(by_fake.open_since(T0, 7), "x")]


def test_transaction_of_an_id_that_has_expired_hangs(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    fake.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda *_: described_transaction(
        error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
    assert [one.transactional_id for one in hanging(by_fake, T0)] == [None]
    fake.answers[ApiKey.LIST_TRANSACTIONS] = lambda *_: listed_transactions()
    assert [one.transactional_id for one in hanging(by_fake, T0)] == [None]


@pytest.mark.parametrize("then", [(), (-1,), (9,)], ids=["forgotten", "ended", "the next one"])
def test_transaction_that_ends_while_it_is_judged_does_not_hang(
    fake: FakeBroker, by_fake: TransactionAdmin, then: tuple[int, ...]
) -> None:
    told = iter([described_producers(7), described_producers(*then)])
    fake.answers[ApiKey.DESCRIBE_PRODUCERS] = lambda *_: next(told)
    assert hanging(by_fake, T0) == []
    assert fake.count(DescribeProducersRequest) == 2


def test_nothing_is_said_to_hang_while_coordinators_do_not_tell(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    fake.answers[ApiKey.LIST_TRANSACTIONS] = lambda *_: listed_transactions(
        error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    with pytest.raises(KafkaError, match="broker 1: its coordinator is still loading"):
        hanging(by_fake, T0)
    fake.answers[ApiKey.LIST_TRANSACTIONS] = lambda *_: listed_transactions("x")
    fake.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda *_: described_transaction(
        error=ErrorCode.NOT_COORDINATOR
    )
    with pytest.raises(KafkaError, match="'x': its coordinator is moving"):
        hanging(by_fake, T0)


def test_coordinator_that_is_chosen_and_moves_and_loads_is_waited_for(fake: FakeBroker) -> None:
    found = iter([ErrorCode.COORDINATOR_NOT_AVAILABLE, *[NONE] * 9])
    told = iter([ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NONE])
    fake.answers[ApiKey.FIND_COORDINATOR] = lambda *_: FindCoordinatorResponse(
        error_code=next(found), node_id=1, host="ignored", port=1
    )
    fake.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda *_: described_transaction(
        0, error=next(told)
    )
    with TransactionAdmin(fake.bootstrap) as admin:
        assert admin.describe("x").partitions == (T0,)
    asked = [one for one in fake.requests if isinstance(one, FindCoordinatorRequest)]
    assert [(one.key, one.key_type) for one in asked] == [("x", 1)] * 4


def test_coordinator_that_does_not_come_is_given_up(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    fake.answers[ApiKey.FIND_COORDINATOR] = lambda *_: FindCoordinatorResponse(
        error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1, host="", port=-1
    )
    with pytest.raises(CoordinatorNotAvailable, match="id 'x': no broker coordinates it"):
        by_fake.describe("x")


def test_leader_that_moves_is_waited_for(fake: FakeBroker, by_fake: TransactionAdmin) -> None:
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = iter([described_producers(error=moved), described_producers(7)])
    fake.answers[ApiKey.DESCRIBE_PRODUCERS] = lambda *_: next(told)
    assert by_fake.open_since(T0, 7).partition == T0
    written = iter([moved, NONE])
    fake.answers[ApiKey.WRITE_TXN_MARKERS] = lambda *_: marked(next(written))
    by_fake.abort(T0, producer_id=1, producer_epoch=5, coordinator_epoch=2)
    assert fake.count(WriteTxnMarkersRequest) == 2
    (marker,) = next(
        one for one in fake.requests if isinstance(one, WriteTxnMarkersRequest)
    ).markers
    assert (marker.producer_id, marker.producer_epoch) == (1, 5)
    assert (marker.transaction_result, marker.coordinator_epoch) == (False, 2)


def test_leader_that_does_not_come_leaves_its_partition_unjudged(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    fake.answers[ApiKey.DESCRIBE_PRODUCERS] = lambda *_: described_producers(
        error=ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    found, faults = by_fake.hanging([T0], longer_than_ms=0, now_ms=NOW_MS)
    assert found == []
    assert isinstance(faults[T0], NotLeaderOrFollower)
    assert str(faults[T0]).startswith("producers of t-0: ")


def test_answer_that_leaves_the_partition_out_is_none(
    fake: FakeBroker, by_fake: TransactionAdmin
) -> None:
    fake.answers[ApiKey.DESCRIBE_PRODUCERS] = lambda *_: DescribeProducersResponse(topics=[])
    with pytest.raises(KafkaError, match="response lacks the partition"):
        by_fake.open_since(T0, 7)
    fake.answers[ApiKey.WRITE_TXN_MARKERS] = lambda *_: WriteTxnMarkersResponse(markers=[])
    with pytest.raises(KafkaError, match="lacks the partition"):
        by_fake.abort(T0, producer_id=1, producer_epoch=5, coordinator_epoch=2)


def test_older_broker_is_not_asked_for_what_it_cannot_tell() -> None:
    with FakeBroker() as fake, TransactionAdmin(fake.bootstrap) as admin:
        served = fake.api_versions(None, None).api_keys
        (older,) = [one for one in served if one.api_key == ApiKey.LIST_TRANSACTIONS]
        older.max_version = 0
        fake.answers[ApiKey.API_VERSIONS] = lambda *_: ApiVersionsResponse(
            error_code=0, api_keys=served
        )
        fake.answers[ApiKey.LIST_TRANSACTIONS] = lambda *_: listed_transactions("x")
        assert [one.transactional_id for one in admin.transactions()] == ["x"]
        with pytest.raises(UnsupportedVersion):
            admin.transactions(longer_than_ms=5)
