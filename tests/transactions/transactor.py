"""A transactional producer that speaks the protocol by hand, one request at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from plog.coordinator.txn_events import NO_PRODUCER, Producer
from plog.errors import ErrorCode
from plog.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from plog.protocol.messages.produce import PartitionProduceResponse
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    TransactionState,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from plog.types import ZERO_UUID, TopicPartition
from tests.committed import kept_records
from tests.coordinator.conftest import TRANSACTION, await_coordinator
from tests.handlers.wire import (
    NOW_MS,
    WAIT_MS,
    Speaker,
    fetch_request,
    fetched,
    flat,
    id_of,
    make_batch,
    produce_request,
)
from tests.waiting import until

TIMEOUT_MS = 60_000
UNCOMMITTED, COMMITTED = 0, 1
"""Isolation levels."""


@dataclass
class Transactor:
    """What it was told last is what it says next. Versions are those of Java 3.9.

    With `own_epochs` those of Java 4: each transaction has an epoch of its own, and what is written
    joins by itself (KIP-890).
    """

    wire: Speaker
    transactional_id: str
    timeout_ms: int = TIMEOUT_MS
    own_epochs: bool = False
    producer: Producer = NO_PRODUCER
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def init(self, version: int = 4, was: Producer = NO_PRODUCER) -> ErrorCode:
        """Ask once to be the producer."""
        answer = self.wire.ask(
            InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.timeout_ms,
                producer_id=was.id,
                producer_epoch=was.epoch,
            ),
            version,
        )
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.NONE:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return error

    def start(self) -> Transactor:
        """Be the producer, as soon as there is room for one."""
        await_coordinator(self.wire, self.transactional_id, TRANSACTION)
        come_again = (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        )

        def is_done() -> bool:
            error = self.init()
            assert error is ErrorCode.NONE or error in come_again, error
            return error is ErrorCode.NONE

        until(is_done, "the producer")
        return self

    def add(self, *partitions: TopicPartition, version: int = 3) -> list[ErrorCode]:
        """Ask once; an error for each partition, in their order."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        answer = self.wire.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer.id,
                v3_and_below_producer_epoch=self.producer.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=some)
                    for name, some in topics.items()
                ],
            ),
            version,
        )
        return [
            ErrorCode(one.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    def join(self, *partitions: TopicPartition) -> None:
        """Have partitions join, as soon as the transaction before has ended."""
        if self.own_epochs:
            return

        def is_in() -> bool:
            errors = set(self.add(*partitions))
            assert errors in ({ErrorCode.NONE}, {ErrorCode.CONCURRENT_TRANSACTIONS}), errors
            return errors == {ErrorCode.NONE}

        until(is_in, "joined")

    def produce(
        self,
        at: TopicPartition,
        *values: bytes,
        version: int | None = None,
        sequence: int | None = None,
        transactional_id: str | None = "",
        codec: int = 0,
        timestamp: int = NOW_MS,
        timeout_ms: int = WAIT_MS,
    ) -> PartitionProduceResponse:
        """Send a batch of the transaction, numbered on unless it is given a number."""
        first = self.sequences.get(at, 0) if sequence is None else sequence
        values = values or (b"v",)
        batch = make_batch(
            values,
            timestamps=[timestamp] * len(values),
            producer=(*self.producer, first),
            transactional=True,
            codec=codec,
        )
        request = produce_request([(*at, batch)], timeout_ms=timeout_ms)
        request.transactional_id = (
            self.transactional_id if transactional_id == "" else transactional_id
        )
        if version is None:
            version = 12 if self.own_epochs else 11
        (part,) = flat(self.wire.ask(request, version))
        if part.error_code == ErrorCode.NONE:
            self.sequences[at] = first + len(values)
        return part

    def send(self, at: TopicPartition, *values: bytes) -> int:
        """Have a partition join and send a batch to it; return its offset."""
        self.join(at)
        part = self.produce(at, *values)
        assert part.error_code == ErrorCode.NONE, part
        return int(part.base_offset)

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        if self.own_epochs:
            return ErrorCode.NONE
        answer = self.wire.ask(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer.id,
                producer_epoch=self.producer.epoch,
                group_id=group,
            ),
            version,
        )
        return ErrorCode(answer.error_code)

    def commit_offset(
        self,
        group: str,
        at: TopicPartition,
        offset: int,
        *,
        version: int | None = None,
        member: tuple[str, int] = ("", -1),
    ) -> ErrorCode:
        member_id, generation = member
        if version is None:
            most = 6 if self.own_epochs else 3
            version = self.wire.version_for(TxnOffsetCommitRequest, at_most=most)
        answer = self.wire.ask(
            TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group,
                producer_id=self.producer.id,
                producer_epoch=self.producer.epoch,
                generation_id=generation,
                member_id=member_id,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=at.topic,
                        topic_id=id_of(self.wire, at.topic) if version >= 6 else ZERO_UUID,
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=at.partition,
                                committed_offset=offset,
                                committed_metadata="",
                            )
                        ],
                    )
                ],
            ),
            version,
        )
        (topic,) = answer.topics
        (part,) = topic.partitions
        return ErrorCode(part.error_code)

    def end(self, *, commit: bool, version: int | None = None) -> ErrorCode:
        """Ask once."""
        if version is None:
            version = 5 if self.own_epochs else 3
        answer = self.wire.ask(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer.id,
                producer_epoch=self.producer.epoch,
                committed=commit,
            ),
            version,
        )
        error = ErrorCode(answer.error_code)
        if self.own_epochs and error is ErrorCode.NONE:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return error

    def finish(self, *, commit: bool) -> None:
        """End the transaction, and wait until every partition knows."""
        assert self.end(commit=commit) is ErrorCode.NONE
        done = "CompleteCommit" if commit else "CompleteAbort"
        until(lambda: self.described().transaction_state == done, done)

    def described(self) -> TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        (state,) = self.wire.ask(request, 0).transaction_states
        assert isinstance(state, TransactionState)
        return state


def committed_offset(
    wire: Speaker, group: str, at: TopicPartition, *, require_stable: bool = False
) -> tuple[ErrorCode, int]:
    """Return what a group has committed, -1 for nothing."""
    answer = wire.ask(
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[
                        OffsetFetchRequestTopics(name=at.topic, partition_indexes=[at.partition])
                    ],
                )
            ],
            require_stable=require_stable,
        ),
        9,
    )
    (found,) = answer.groups
    (topic,) = found.topics
    (part,) = topic.partitions
    return ErrorCode(part.error_code), int(part.committed_offset)


def read(wire: Speaker, at: TopicPartition, *, committed: bool = True) -> list[bytes | None]:
    """Return what a reader makes of a partition: without markers and without what was aborted."""
    level = COMMITTED if committed else UNCOMMITTED
    (part,) = fetched(wire.ask(fetch_request((*at, 0), isolation_level=level), 12)).values()
    assert part.error_code == ErrorCode.NONE
    return [record.value for record in kept_records(part)[0]]
