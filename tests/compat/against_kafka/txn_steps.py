"""Steps of the cases about transactions.

Transactional ids, groups and topics are called by the case's own names. A producer is called by its
connection (`via`), and says the id and the epoch that it was told there last, by InitProducerId or
by an end of version 2, unless a step says others: `by` is added to the epoch, and `who` stands for
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.messages.producers import (
    DescribeProducersRequest,
    InitProducerIdRequest,
    TopicRequest,
)
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.compat.against_kafka.ask import topics_of
from tests.compat.against_kafka.group_steps import group_id
from tests.compat.against_kafka.group_steps import who as member_id
from tests.compat.against_kafka.pair import Side, Step
from tests.handlers.wire import make_batch, produce_request

Known: TypeAlias = tuple[int, int] | None
NOBODY = 987_654_321
"""A producer id that neither broker has given."""
MANY_SINCE, MEMBERS_SINCE, EPOCHS_SINCE, WAS_SINCE = 4, 3, 2, 3
STAMP = 1_700_000_000_000


def transactional_id(side: Side, name: str) -> str:
    """Return what the case's id is really called; one without a name has none."""
    return side.name(name) if name else ""


def producer(side: Side, via: str, by: int, who: Known) -> tuple[int, int]:
    """Return a producer's id and epoch."""
    known, epoch = side.producers.get(via, (NOBODY, 0)) if who is None else who
    return known, epoch + by


def init(
    name: str = "x",
    version: int = 5,
    *,
    via: str = "p",
    timeout_ms: int = 60_000,
    again: bool = False,
    by: int = 0,
    who: Known = None,
) -> Step:
    """InitProducerId; `again` by who it is by now (KIP-360), or by `who`."""

    def make(side: Side) -> InitProducerIdRequest:
        was = producer(side, via, by, who) if again or who is not None else (-1, -1)
        return InitProducerIdRequest(
            transactional_id=transactional_id(side, name),
            transaction_timeout_ms=timeout_ms,
            producer_id=was[0],
            producer_epoch=was[1],
        )

    return Step(make, version, via=via)


def add(
    *topics: tuple[str, Sequence[int]],
    name: str = "x",
    version: int = 3,
    via: str = "p",
    by: int = 0,
    who: Known = None,
) -> Step:
    """AddPartitionsToTxn, as producers ask."""

    def make(side: Side) -> AddPartitionsToTxnRequest:
        known, epoch = producer(side, via, by, who)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id(side, name),
            v3_and_below_producer_id=known,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics_of(AddPartitionsToTxnTopic, side, topics),
        )

    return Step(make, version, via=via)


def add_many(
    *transactions: tuple[str, str, Sequence[tuple[str, Sequence[int]]]],
    version: int = 5,
    verify: bool = False,
    by: int = 0,
    who: Known = None,
) -> Step:
    """AddPartitionsToTxn, as brokers ask: of transactional ids, each with its producer's name."""

    def one(
        side: Side, name: str, via: str, topics: Sequence[tuple[str, Sequence[int]]]
    ) -> AddPartitionsToTxnTransaction:
        known, epoch = producer(side, via, by, who)
        return AddPartitionsToTxnTransaction(
            transactional_id=transactional_id(side, name),
            producer_id=known,
            producer_epoch=epoch,
            verify_only=verify,
            topics=topics_of(AddPartitionsToTxnTopic, side, topics),
        )

    def make(side: Side) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(transactions=[one(side, *asked) for asked in transactions])

    return Step(make, version)


def add_offsets(
    group: str = "g",
    *,
    name: str = "x",
    version: int = 4,
    via: str = "p",
    by: int = 0,
    who: Known = None,
) -> Step:
    def make(side: Side) -> AddOffsetsToTxnRequest:
        known, epoch = producer(side, via, by, who)
        return AddOffsetsToTxnRequest(
            transactional_id=transactional_id(side, name),
            producer_id=known,
            producer_epoch=epoch,
            group_id=group_id(side, group),
        )

    return Step(make, version, via=via)


def end(
    *,
    commit: bool = True,
    name: str = "x",
    version: int = 4,
    via: str = "p",
    by: int = 0,
    who: Known = None,
) -> Step:
    def make(side: Side) -> EndTxnRequest:
        known, epoch = producer(side, via, by, who)
        return EndTxnRequest(
            transactional_id=transactional_id(side, name),
            producer_id=known,
            producer_epoch=epoch,
            committed=commit,
        )

    return Step(make, version, via=via)


def commit_offsets(
    *parts: tuple[str, int, int],
    group: str = "g",
    name: str = "x",
    version: int = 4,
    via: str = "p",
    by: int = 0,
    who: Known = None,
    member: str = "",
    instance: str | None = None,
    generation: int | None = -1,
    metadata: str | None = "m",
) -> Step:
    """TxnOffsetCommit: topic, partition, offset; `generation` None is the one told last."""

    def partition(index: int, offset: int) -> TxnOffsetCommitRequestPartition:
        return TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )

    def make(side: Side) -> TxnOffsetCommitRequest:
        known, epoch = producer(side, via, by, who)
        given: dict[str, object] = {}
        if version >= MEMBERS_SINCE:
            given = {
                "generation_id": side.generation if generation is None else generation,
                "member_id": member_id(side, via, member),
                "group_instance_id": instance,
            }
        return TxnOffsetCommitRequest(
            transactional_id=transactional_id(side, name),
            group_id=group_id(side, group),
            producer_id=known,
            producer_epoch=epoch,
            topics=topics_of(
                TxnOffsetCommitRequestTopic,
                side,
                (
                    (topic, [partition(*rest) for _, *rest in some])
                    for topic, some in groupby(parts, itemgetter(0))
                ),
            ),
            **given,
        )

    return Step(make, version, via=via)


def mark(
    *topics: tuple[str, Sequence[int]],
    commit: bool = True,
    version: int = 1,
    via: str = "p",
    by: int = 0,
    who: Known = None,
    coordinator_epoch: int = 0,
    times: int = 1,
    own_epoch: bool = False,
) -> Step:
    """WriteTxnMarkers, of one producer."""

    def make(side: Side) -> WriteTxnMarkersRequest:
        known, epoch = producer(side, via, by, who)
        marker = WritableTxnMarker(
            producer_id=known,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=topics_of(WritableTxnMarkerTopic, side, topics),
            coordinator_epoch=coordinator_epoch,
            transaction_version=2 if own_epoch else 1,
        )
        return WriteTxnMarkersRequest(markers=[marker] * times)

    return Step(make, version)


def write(
    topic: str = "t",
    index: int = 0,
    *,
    sequence: int = 0,
    name: str | None = "x",
    version: int = 11,
    via: str = "p",
    by: int = 0,
    who: Known = None,
    transactional: bool = True,
) -> Step:
    """Produce one record with a transaction."""

    def make(side: Side) -> ProduceRequest:
        batch = make_batch(
            [b"v"],
            timestamps=[STAMP],
            producer=(*producer(side, via, by, who), sequence),
            transactional=transactional,
        )
        request = produce_request([(side.name(topic), index, batch)])
        request.transactional_id = None if name is None else transactional_id(side, name)
        return request

    return Step(make, version, via=via)


def producers(*topics: tuple[str, Sequence[int]]) -> Step:
    """DescribeProducers."""
    return Step(
        lambda side: DescribeProducersRequest(topics=topics_of(TopicRequest, side, topics)), 0
    )


def described(*names: str, until: tuple[str, str] | None = None) -> Step:
    def make(side: Side) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(
            transactional_ids=[transactional_id(side, name) for name in names]
        )

    return Step(make, 0, until=until)


def comes(state: str, name: str = "x") -> Step:
    """Wait until a transactional id is in a state."""
    return described(name, until=(f"transaction_states/{name}/transaction_state", state))


def listed(
    version: int = 1,
    *,
    states: Sequence[str] = (),
    of: Sequence[str | int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> Step:
    """ListTransactions; `of` are producers by their names, or ids.

    A pattern is of the case's own ids: they begin with its prefix.
    """

    def make(side: Side) -> ListTransactionsRequest:
        ids = [producer(side, one, 0, None)[0] if isinstance(one, str) else one for one in of]
        return ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=ids,
            duration_filter=duration_ms,
            transactional_id_pattern=transactional_id(side, pattern) if pattern else pattern,
        )

    return Step(make, version)
