"""Proposals of in-sync sets on their way: one request at a time, and none is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.cluster.replication.alter_partition import (
    MOST_IN_REQUEST,
    MOST_RETRY_MS,
    OUTCOMES,
    RETRY_MS,
    Batch,
    Found,
    Proposals,
    Settled,
    Written,
)
from plog.cluster.replication.isr import Outcome, Proposal
from plog.errors import ErrorCode
from plog.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def proposal(
    leader_epoch: int = 5, partition_epoch: int = 7, isr: tuple[int, ...] = (0, 1)
) -> Proposal:
    return Proposal(leader_epoch, partition_epoch, tuple((one, 10 + one) for one in isr))


def taken(proposals: Proposals, now_ms: int = 0) -> Batch:
    batch = proposals.take(now_ms)
    assert batch is not None
    return batch


def test_proposals_that_come_while_a_request_is_away_go_together_in_the_next() -> None:
    proposals = Proposals()
    assert proposals.take(0) is None
    proposals.put(A, proposal())
    first = taken(proposals)
    proposals.put(B, proposal(6))
    proposals.put(TopicPartition("c", 0), proposal(7))
    assert (proposals.take(0), proposals.due_ms()) == (None, None)
    written = Written(5, (0, 1), 8)
    assert proposals.answered(first, {A: written}, 3) == [
        Settled(A, proposal(), Outcome.ACCEPTED, (0, 1), 8)
    ]
    assert [*taken(proposals, 3)] == [B, TopicPartition("c", 0)]


def test_request_without_an_answer_is_sent_again_as_it_was_later_and_later() -> None:
    proposals, now_ms = Proposals(), 0
    proposals.put(A, proposal())
    pauses = []
    for _ in range(8):
        proposals.failed(taken(proposals, now_ms), now_ms)
        due_ms = proposals.due_ms()
        assert due_ms is not None
        assert proposals.take(due_ms - 1) is None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000, 1000]
    assert (RETRY_MS, MOST_RETRY_MS) == (50, 1000)
    batch = taken(proposals, now_ms)
    assert batch == {A: proposal()}
    proposals.answered(batch, {A: Written(5, (0, 1), 8)}, now_ms)
    proposals.put(B, proposal())
    proposals.failed(taken(proposals, now_ms), now_ms)
    assert proposals.due_ms() == now_ms + RETRY_MS


@pytest.mark.parametrize("code", ErrorCode)
def test_error_settles_a_proposal_or_leaves_it_open(code: ErrorCode) -> None:
    proposals = Proposals()
    proposals.put(A, proposal())
    settled = proposals.answered(taken(proposals), {A: code}, 0)
    if code in OUTCOMES:
        assert settled == [Settled(A, proposal(), OUTCOMES[code])]
        assert (len(proposals), proposals.due_ms()) == (0, None)
    else:
        assert settled == []
        assert taken(proposals, RETRY_MS) == {A: proposal()}


def test_partition_that_the_answer_leaves_out_is_asked_again() -> None:
    proposals = Proposals()
    proposals.put(A, proposal())
    assert proposals.answered(taken(proposals), {B: Written(5, (0,), 8)}, 0) == []
    assert taken(proposals, RETRY_MS) == {A: proposal()}


def test_state_of_another_leader_epoch_supersedes_the_proposal() -> None:
    proposals = Proposals()
    proposals.put(A, proposal())
    assert proposals.answered(taken(proposals), {A: Written(6, (0, 1), 9)}, 0) == [
        Settled(A, proposal(), Outcome.SUPERSEDED)
    ]


def test_proposal_of_a_later_epoch_outlives_the_answer_to_an_earlier_one() -> None:
    proposals = Proposals()
    proposals.put(A, proposal(5))
    first = taken(proposals)
    proposals.drop(A)
    proposals.put(A, proposal(6))
    assert proposals.answered(first, {A: ErrorCode.FENCED_LEADER_EPOCH}, 0) == [
        Settled(A, proposal(5), Outcome.SUPERSEDED)
    ]
    assert taken(proposals) == {A: proposal(6)}


def test_late_answer_to_a_request_that_was_given_up_settles_nothing() -> None:
    proposals = Proposals()
    proposals.put(A, proposal())
    first = taken(proposals)
    proposals.failed(first, 0)
    second = taken(proposals, RETRY_MS)
    assert first == second
    assert proposals.answered(first, {A: Written(5, (0, 1), 8)}, RETRY_MS) == []
    proposals.failed(first, RETRY_MS)
    assert proposals.take(RETRY_MS) is None, "the second request is still away"


def test_partitions_that_the_controller_does_not_know_do_not_keep_others_back() -> None:
    proposals = Proposals()
    for n in range(MOST_IN_REQUEST + 1):
        proposals.put(TopicPartition("t", n), proposal())
    batch = taken(proposals)
    assert len(batch) == MOST_IN_REQUEST
    assert proposals.answered(batch, dict.fromkeys(batch, ErrorCode.NOT_CONTROLLER), 0) == []
    assert next(iter(taken(proposals, RETRY_MS))) == TopicPartition("t", MOST_IN_REQUEST)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from([A, B])),
        st.tuples(st.just("drop"), st.sampled_from([A, B])),
        st.tuples(st.sampled_from(["write", "refuse", "silence", "late"]), st.just(A)),
    ),
    max_size=30,
)


@given(STEPS)
def test_every_proposal_is_settled_replaced_or_dropped(
    steps: list[tuple[str, TopicPartition]],
) -> None:
    proposals, now_ms = Proposals(), 0
    open_: dict[TopicPartition, Proposal] = {}
    batches: list[Batch] = []
    for epoch, (what, partition) in enumerate(steps):
        now_ms += MOST_RETRY_MS
        if what == "put":
            open_[partition] = proposal(epoch)
            proposals.put(partition, open_[partition])
        elif what == "drop":
            open_.pop(partition, None)
            proposals.drop(partition)
        if (batch := proposals.take(now_ms)) is not None:
            batches.append(batch)
        if not batches:
            continue
        batch = batches[0] if what == "late" else batches[-1]
        if what == "silence":
            proposals.failed(batch, now_ms)
        elif what in ("write", "refuse", "late"):
            is_known = what != "refuse"
            found: dict[TopicPartition, Found] = {
                at: Written(one.leader_epoch, (0,), 1) if is_known else ErrorCode.NOT_CONTROLLER
                for at, one in batch.items()
            }
            for one in proposals.answered(batch, found, now_ms):
                if open_.get(one.partition) == one.proposal:
                    del open_[one.partition]
    last = proposals.in_flight
    if last is not None:
        proposals.failed(last, now_ms)
    rest = proposals.take(now_ms + MOST_RETRY_MS)
    assert (rest or {}) == open_
