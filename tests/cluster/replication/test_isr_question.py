"""How leaders ask the controller for in-sync sets: both ends agree, also over the wire."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.cluster.controller_context import PartitionState
from plog.cluster.controller_events import Outcome, ProposedIsr
from plog.cluster.replication.alter_partition import Batch, Found, Written
from plog.cluster.replication.alter_partition_messages import (
    found_in,
    found_of,
    proposed_in,
    proposed_of,
    request_of,
    response_of,
)
from plog.cluster.replication.isr import Proposal
from plog.cluster.replication.isr_question import IsrQuestion
from plog.errors import ErrorCode, KafkaError, NetworkException, NotController
from plog.protocol.codec import decode, encode
from plog.protocol.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
)
from plog.types import TopicPartition

OWN, OTHER = 3, 2
VERSION = 3
IDS = {"a": uuid.UUID(int=1001), "b": uuid.UUID(int=1002)}
AT = TopicPartition("a", 0)


def name_of(topic: AlterPartitionTopic) -> str | None:
    return next((name for name, one in IDS.items() if one == topic.topic_id), None)


PROPOSALS = st.builds(
    Proposal,
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 99)), max_size=3).map(tuple),
)
PARTITIONS = st.builds(TopicPartition, st.sampled_from([*IDS]), st.integers(0, 3))
OUTCOMES = st.one_of(
    st.sampled_from([ErrorCode.NOT_CONTROLLER, ErrorCode.INELIGIBLE_REPLICA]),
    st.builds(
        PartitionState,
        leader=st.integers(0, 3),
        leader_epoch=st.integers(0, 9),
        isr=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        controller_epoch=st.integers(0, 9),
        partition_epoch=st.integers(0, 9),
        leader_recovery_state=st.integers(0, 1),
    ),
)


@given(st.dictionaries(PARTITIONS, PROPOSALS, max_size=6).map(Batch), st.data())
def test_other_end_of_the_wire_is_as_this_process(batch: Batch, data: st.DataObject) -> None:
    request, _ = decode(
        AlterPartitionRequest,
        VERSION,
        encode(request_of(batch, IDS, broker_id=OWN, broker_epoch=7), VERSION),
    )
    assert (request.broker_id, request.broker_epoch) == (OWN, 7)
    assert proposed_in(request, VERSION, name_of) == proposed_of(batch)
    outcomes: dict[TopicPartition, Outcome] = {at: data.draw(OUTCOMES) for at in batch}
    response, _ = decode(
        AlterPartitionResponse,
        VERSION,
        encode(response_of(request, name_of, outcomes), VERSION),
    )
    assert found_in(response, IDS) == found_of(outcomes)


def test_topics_that_one_end_does_not_know_are_left_out() -> None:
    batch = Batch({AT: Proposal(1, 1, ((0, 5),)), TopicPartition("c", 0): Proposal(1, 1, ())})
    request = request_of(batch, IDS, broker_id=OWN, broker_epoch=7)
    assert [topic.topic_id for topic in request.topics] == [IDS["a"]]
    assert proposed_in(request, VERSION, lambda topic: None) == {}
    response = response_of(request, lambda topic: None, {})
    assert found_in(response, IDS) == {AT: ErrorCode.UNKNOWN_TOPIC_ID}
    assert found_in(response, {}) == {}


def test_error_that_is_unknown_here_is_one() -> None:
    request = request_of(Batch({AT: Proposal(1, 1, ())}), IDS, broker_id=OWN, broker_epoch=7)
    response = response_of(request, name_of, {AT: ErrorCode.NOT_CONTROLLER})
    response.topics[0].partitions[0].error_code = 999
    assert found_in(response, IDS) == {AT: ErrorCode.UNKNOWN_SERVER_ERROR}


class Elsewhere:
    """Another broker, which answers for the partition, or not."""

    def __init__(self, answer: int | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[int, AlterPartitionRequest]] = []

    def ask(
        self, broker_id: int, request: AlterPartitionRequest, _: type
    ) -> Future[AlterPartitionResponse]:
        self.asked.append((broker_id, request))
        future: Future[AlterPartitionResponse] = Future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer:
            future.set_result(AlterPartitionResponse(error_code=self.answer, topics=[]))
        else:
            state = PartitionState(OWN, 4, (OWN, 1), 2, 9)
            future.set_result(response_of(request, name_of, {AT: state}))
        return future


class Here:
    """The controller of this process."""

    def __init__(self, *, is_active: bool) -> None:
        self.is_active = is_active

    def propose_isrs(
        self, broker_id: int, broker_epoch: int, isrs: Mapping[TopicPartition, ProposedIsr]
    ) -> Future[dict[TopicPartition, Outcome]]:
        assert (broker_id, broker_epoch) == (OWN, 7)
        future: Future[dict[TopicPartition, Outcome]] = Future()
        future.set_result({at: PartitionState(OWN, 4, one.isr, 2, 9) for at, one in isrs.items()})
        return future


def ask(
    controller_id: int, elsewhere: Elsewhere, *, is_active: bool = False
) -> Mapping[TopicPartition, Found]:
    topics = {name: SimpleNamespace(topic_id=one) for name, one in IDS.items()}
    snapshot = SimpleNamespace(live_controller_id=controller_id, topics=topics)
    question = IsrQuestion(
        OWN,
        fence=cast(Any, SimpleNamespace(broker_epoch=7)),
        controller=cast(Any, Here(is_active=is_active)),
        metadata=cast(Any, SimpleNamespace(snapshot=snapshot)),
        peers=cast(Any, elsewhere),
    )
    return question(Batch({AT: Proposal(4, 8, ((1, 5), (OWN, -1)))})).result(timeout=10)


def test_controller_of_this_process_is_asked_there() -> None:
    elsewhere = Elsewhere(0)
    assert ask(OTHER, elsewhere, is_active=True) == {AT: Written(4, (1, OWN), 9)}
    assert elsewhere.asked == []


def test_controller_elsewhere_is_asked_over_the_wire() -> None:
    elsewhere = Elsewhere(0)
    assert ask(OTHER, elsewhere) == {AT: Written(4, (OWN, 1), 9)}
    ((asked, request),) = elsewhere.asked
    assert (asked, request.broker_id, request.broker_epoch) == (OTHER, OWN, 7)


@pytest.mark.parametrize(
    ("controller_id", "answer", "error"),
    [
        (-1, 0, NotController),
        (OWN, 0, NotController),
        (OTHER, ErrorCode.NOT_CONTROLLER, NotController),
        (OTHER, ErrorCode.STALE_BROKER_EPOCH, KafkaError),
        (OTHER, 999, KafkaError),
        (OTHER, NetworkException("lost"), NetworkException),
    ],
)
def test_question_without_an_answer_fails(
    controller_id: int, answer: int | Exception, error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(controller_id, Elsewhere(answer))
