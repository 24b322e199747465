"""Anomalies that are planted are found, and nothing in histories that have none."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog.types import TopicPartition

from .checks import Kind, Verdict, check
from .facts import Facts
from .history import (
    AbortBegin,
    Aborted,
    Ack,
    Assign,
    Begin,
    CommitBegin,
    Committed,
    Crash,
    EndOfPartition,
    Event,
    Fail,
    History,
    HistoryError,
    HistoryWriter,
    Isolation,
    OutcomeUnknown,
    Poll,
    Record,
    Send,
    Unknown,
    Why,
    read_history,
)
from .mutations import MUTATIONS, Mutation, Planted, overlook
from .report import report
from .world import World

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
WORLDS = {"seed": st.integers(0, 2**32), "steps": st.integers(0, 500)}
ALONE = {
    Kind.LOST_WRITE,
    Kind.UNWRITTEN_READ,
    Kind.SKIPPED_POLL,
    Kind.ABORTED_READ,
    Kind.INTERMEDIATE_READ,
    Kind.TORN_TRANSACTION,
}
"""Of these a mistake looks like nothing else; the others break more than one rule."""
RECORDS = 20_000
MANY_RECORDS = 200_000
"""So many, with `--long`, that a pass of quadratic cost would not end before the timeout."""


def judge(*events: Event) -> Verdict:
    """Check events that happened one after the other."""
    return check(History([replace(event, at=at) for at, event in enumerate(events)]))


def expect(kind: Kind, events: list[Event], shown: list[Event]) -> str:
    """Expect one anomaly, shown by just these events, and return its text."""
    (found,) = judge(*events).anomalies
    assert found.kind is kind
    assert [replace(one, at=0) for one in found.events] == [replace(one, at=0) for one in shown]
    return found.text


def expect_nothing(*events: Event) -> None:
    assert judge(*events) == Verdict([], [])


def write(
    value: int, offset: int, *, at: TopicPartition = A, txn: str | None = None, by: str = "p"
) -> list[Event]:
    return [Send(by, at, value, txn), Ack(by, value, offset)]


def commit(txn: str, by: str = "p") -> list[Event]:
    return [CommitBegin(by, txn), Committed(by, txn)]


def abort(txn: str, by: str = "p") -> list[Event]:
    return [AbortBegin(by, txn), Aborted(by, txn)]


def read(*records: Record, at: TopicPartition = A, by: str = "c") -> Poll:
    return Poll(by, {at: list(records)})


def finally_read(*records: Record, end: int, at: TopicPartition = A) -> list[Event]:
    by = f"f-{at}"
    polls = [Poll(by, {at: [record]}) for record in records]
    return [Assign(by, {at: 0}, Why.FINAL), *polls, EndOfPartition(by, at, end)]


C_READS_A = Assign("c", {A: 0}, Why.REBALANCE)


# Lost and unseen.


def test_acknowledged_value_that_final_reads_pass_is_lost() -> None:
    lost = write(1, 0)
    text = expect(
        Kind.LOST_WRITE, [*lost, *write(2, 1), *finally_read((1, 2), end=2)], [lost[0], lost[1]]
    )
    assert text == "1 was acknowledged at offset 0 of t-0; final reads went on to 2 without it"


def test_committed_transaction_that_final_reads_pass_is_lost() -> None:
    lost = write(1, 0, txn="x")
    ended = commit("x")
    text = expect(
        Kind.LOST_WRITE,
        [Begin("p", "x"), *lost, *ended, *write(2, 2), *finally_read((2, 2), end=3)],
        [*lost, ended[1]],
    )
    assert "and x committed" in text


def test_value_before_the_end_that_a_final_read_was_told_is_lost_without_one_behind_it() -> None:
    expect(Kind.LOST_WRITE, [*write(1, 0), *finally_read(end=1)], write(1, 0))


def test_value_that_was_read_once_and_that_final_reads_pass_is_lost() -> None:
    events = [*write(1, 0), *write(2, 1), C_READS_A, read((0, 1), (1, 2))]
    expect(Kind.LOST_WRITE, [*events, *finally_read((1, 2), end=2)], write(1, 0))


def test_value_that_one_of_two_final_reads_has_is_not_lost() -> None:
    other = [Assign("g", {A: 0}, Why.FINAL), Poll("g", {A: [(0, 1), (1, 2)]})]
    ended = finally_read((1, 2), end=2)
    verdict = judge(*write(1, 0), *write(2, 1), *other, *ended)
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL]
    assert verdict.unseen == []


@pytest.mark.parametrize(
    "answer", [Unknown("p", 1), Fail("p", 1), None], ids=["unknown", "failed", "none"]
)
def test_value_that_nobody_acknowledged_is_not_lost(answer: Event | None) -> None:
    sent = [Send("p", A, 1), *([answer] if answer else [])]
    expect_nothing(*sent, *write(2, 1), *finally_read((1, 2), end=2))


def test_value_of_a_transaction_that_is_not_known_to_be_committed_is_not_lost() -> None:
    events = [Begin("p", "x"), *write(1, 0, txn="x")]
    for ended in ([], abort("x"), [CommitBegin("p", "x"), OutcomeUnknown("p", "x")]):
        expect_nothing(*events, *ended, *write(2, 2), *finally_read((2, 2), end=3))


def test_value_behind_the_end_of_final_reads_is_unseen() -> None:
    verdict = judge(*write(1, 0), *write(2, 1), *finally_read((0, 1), end=1))
    assert verdict.anomalies == []
    assert [send.value for send in verdict.unseen] == [2]


def test_value_is_unseen_until_anybody_reads_it() -> None:
    assert [send.value for send in judge(*write(1, 0)).unseen] == [1]
    expect_nothing(*write(1, 0), C_READS_A, read((0, 1)))


def test_value_read_only_before_a_final_read_that_did_not_reach_it_is_unseen() -> None:
    events = [*write(1, 0), *write(2, 1), C_READS_A, read((0, 1), (1, 2))]
    verdict = judge(*events, *finally_read((0, 1), end=1))
    assert [send.value for send in verdict.unseen] == [2]


def test_final_read_that_was_not_told_of_the_end_shows_no_loss() -> None:
    *incomplete, _ = finally_read((1, 2), end=2)
    verdict = judge(*write(1, 0), *write(2, 1), *incomplete)
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL]
    assert [send.value for send in verdict.unseen] == [1]


# Places.


def test_value_at_two_offsets_is_a_duplicate() -> None:
    first, second = read((0, 1)), read((1, 1))
    send = Send("p", A, 1)
    text = expect(Kind.DUPLICATE, [send, C_READS_A, first, second], [send, first, second])
    assert text == "1 is in t-0 at offsets 0, 1"


def test_value_acknowledged_and_read_at_different_offsets_is_a_duplicate() -> None:
    send, ack = write(1, 0)
    polled = read((1, 1))
    shown = Assign("c", {A: None}, Why.REBALANCE)
    expect(Kind.DUPLICATE, [send, ack, shown, polled], [send, ack, polled])


def test_value_read_twice_at_its_offset_is_no_duplicate() -> None:
    other = Assign("d", {A: 0}, Why.REBALANCE)
    expect_nothing(*write(1, 0), C_READS_A, read((0, 1)), other, read((0, 1), by="d"))


def test_two_values_at_one_offset_are_inconsistent() -> None:
    other = Assign("d", {A: 0}, Why.REBALANCE)
    sends: list[Event] = [Send("p", A, 1), Send("p", A, 2)]
    one, two = read((0, 1)), read((0, 2), by="d")
    text = expect(Kind.INCONSISTENT_OFFSET, [*sends, C_READS_A, one, other, two], [one, two])
    assert text == "offset 0 of t-0 is 1, 2"


def test_one_offset_of_two_partitions_is_consistent() -> None:
    assigned = Assign("c", {A: 0, B: 0}, Why.REBALANCE)
    expect_nothing(
        *write(1, 0), *write(2, 0, at=B), assigned, Poll("c", {A: [(0, 1)], B: [(0, 2)]})
    )


def test_value_that_nobody_sent_is_unwritten() -> None:
    polled = read((0, 1))
    assert "nobody sent" in expect(Kind.UNWRITTEN_READ, [C_READS_A, polled], [polled])


def test_value_in_another_partition_is_unwritten() -> None:
    send, polled = Send("p", B, 1), read((0, 1))
    text = expect(Kind.UNWRITTEN_READ, [send, C_READS_A, polled], [send, polled])
    assert "sent to t-1" in text


def test_value_whose_send_failed_is_unwritten() -> None:
    send, fail, polled = Send("p", A, 1), Fail("p", 1), read((0, 1))
    expect(Kind.UNWRITTEN_READ, [send, fail, C_READS_A, polled], [send, fail, polled])


def test_value_of_unknown_outcome_may_be_read() -> None:
    expect_nothing(Send("p", A, 1), Unknown("p", 1), C_READS_A, read((0, 1)))
    expect_nothing(Send("p", A, 1), C_READS_A, read((0, 1)), Crash("p"))


# Polls.


def three() -> list[Event]:
    """Three values that somebody has read."""
    written = [*write(1, 0), *write(2, 1), *write(3, 2)]
    return [*written, Assign("d", {A: 0}, Why.REBALANCE), read((0, 1), (1, 2), (2, 3), by="d")]


def test_poll_that_passes_an_acknowledged_value_skips_it() -> None:
    first, second = read((0, 1)), read((2, 3))
    (ack,) = [one for one in three() if isinstance(one, Ack) and one.value == 2]
    text = expect(Kind.SKIPPED_POLL, [*three(), C_READS_A, first, second], [ack, first, second])
    assert text == "c, at offset 2 of t-0, came there from 1, past 2 at offset 1"


def test_values_are_skipped_before_the_first_poll_and_before_the_end() -> None:
    verdict = judge(*three(), C_READS_A, read((1, 2)), EndOfPartition("c", A, 3))
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL] * 2
    assert [re.findall(r"past (\d)", one.text) for one in verdict.anomalies] == [["1"], ["3"]]


def test_value_is_skipped_within_a_poll() -> None:
    verdict = judge(*three(), C_READS_A, read((0, 1), (2, 3)))
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL]


@pytest.mark.parametrize("why", [Why.SEEK, Why.REBALANCE])
def test_nothing_is_skipped_from_one_assignment_to_the_next(why: Why) -> None:
    expect_nothing(*three(), C_READS_A, read((0, 1)), Assign("c", {A: 2}, why), read((2, 3)))
    expect_nothing(*three(), C_READS_A, read((0, 1)), Assign("c", {A: None}, why), read((2, 3)))


def test_seek_in_another_partition_excuses_nothing() -> None:
    assigned = Assign("c", {A: 0, B: 0}, Why.REBALANCE)
    verdict = judge(*three(), assigned, read((0, 1)), Assign("c", {B: 0}, Why.SEEK), read((2, 3)))
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL]


def test_values_of_unknown_failed_and_aborted_sends_are_not_skipped() -> None:
    events = [*write(1, 0), Begin("q", "x"), *write(2, 1, txn="x", by="q"), *abort("x", "q")]
    events += [Send("p", A, 4), Unknown("p", 4), Send("p", A, 5), Fail("p", 5), *write(3, 4)]
    expect_nothing(*events, C_READS_A, read((0, 1)), read((4, 3)), EndOfPartition("c", A, 5))


def test_value_of_a_committed_transaction_is_skipped() -> None:
    events = [*write(1, 0), Begin("q", "x"), *write(2, 1, txn="x", by="q"), *commit("x", "q")]
    events += [*write(3, 3), Assign("d", {A: 1}, Why.REBALANCE), read((1, 2), by="d")]
    verdict = judge(*events, C_READS_A, read((0, 1)), read((3, 3)))
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL]


def test_value_that_only_readers_have_told_of_is_skipped() -> None:
    events = [Send("p", A, 1), Send("p", A, 2), Assign("d", {A: 0}, Why.REBALANCE)]
    events += [read((0, 1), (1, 2), by="d")]
    verdict = judge(*events, C_READS_A, read((1, 2)))
    assert [one.kind for one in verdict.anomalies] == [Kind.SKIPPED_POLL]


def test_poll_that_goes_back_is_not_monotonic() -> None:
    first, second = read((0, 1), (1, 2)), read((0, 1))
    text = expect(
        Kind.NON_MONOTONIC_POLL,
        [*write(1, 0), *write(2, 1), C_READS_A, first, second],
        [first, second],
    )
    assert text == "c, at offset 0 of t-0, read 1 when 2 was due"


def test_poll_that_stays_or_begins_too_early_is_not_monotonic() -> None:
    again = read((0, 1))
    events = write(1, 0)
    expect(Kind.NON_MONOTONIC_POLL, [*events, C_READS_A, again, again], [again, again])
    behind = Assign("c", {A: 1}, Why.REBALANCE)
    expect(Kind.NON_MONOTONIC_POLL, [*events, behind, again], [behind, again])


@pytest.mark.parametrize("why", [Why.SEEK, Why.REBALANCE])
def test_reader_may_go_back_by_an_assignment(why: Why) -> None:
    events = [*write(1, 0), *write(2, 1), C_READS_A, read((0, 1), (1, 2))]
    expect_nothing(*events, Assign("c", {A: 0}, why), read((0, 1)))


# Transactions.


def test_value_of_an_aborted_transaction_is_an_aborted_read() -> None:
    send, ack = write(1, 0, txn="x")
    ended, polled = abort("x"), read((0, 1))
    for events in (
        [Begin("p", "x"), send, ack, *ended, C_READS_A, polled],
        [Begin("p", "x"), send, *ended, C_READS_A, polled],
    ):
        text = expect(Kind.ABORTED_READ, events, [send, ended[1], polled])
        assert text == "c, at offset 0 of t-0, read 1 of x, which is aborted"


def test_value_read_before_its_transaction_is_aborted_is_an_aborted_read() -> None:
    send, ack = write(1, 0, txn="x")
    ended, polled = abort("x"), read((0, 1))
    events = [Begin("p", "x"), send, ack, C_READS_A, polled, *ended]
    expect(Kind.ABORTED_READ, events, [send, polled, ended[1]])


def test_whoever_reads_uncommitted_may_have_what_is_aborted_or_open() -> None:
    assigned = Assign("c", {A: 0}, Why.REBALANCE, Isolation.UNCOMMITTED)
    events = [Begin("p", "x"), *write(1, 0, txn="x"), assigned, read((0, 1))]
    expect_nothing(*events)
    expect_nothing(*events, *abort("x"))
    expect_nothing(*events, *commit("x"))


def test_value_read_before_its_commit_begins_is_an_intermediate_read() -> None:
    begin, (send, ack), ended = Begin("p", "x"), write(1, 0, txn="x"), commit("x")
    polled = read((0, 1))
    expect(
        Kind.INTERMEDIATE_READ,
        [begin, send, ack, C_READS_A, polled, *ended],
        [begin, send, polled, ended[0]],
    )
    # Nobody has asked for the commit: the producer is gone.
    expect(
        Kind.INTERMEDIATE_READ,
        [begin, send, ack, C_READS_A, polled, Crash("p")],
        [begin, send, polled],
    )


def test_value_read_while_its_commit_goes_on_is_right() -> None:
    asked, told = commit("x")
    expect_nothing(Begin("p", "x"), *write(1, 0, txn="x"), asked, C_READS_A, read((0, 1)), told)
    expect_nothing(Begin("p", "x"), *write(1, 0, txn="x"), asked, C_READS_A, read((0, 1)))


def in_both(*ended: Event) -> list[Event]:
    """A transaction of two values in one partition and one in another."""
    written = [*write(1, 0, txn="x"), *write(2, 1, txn="x"), *write(3, 0, at=B, txn="x")]
    return [Begin("p", "x"), *written, *ended]


@pytest.mark.parametrize(
    "ended",
    [
        pytest.param(commit("x"), id="committed"),
        pytest.param([CommitBegin("p", "x"), OutcomeUnknown("p", "x")], id="unknown"),
        pytest.param([CommitBegin("p", "x")], id="unanswered"),
    ],
)
def test_transaction_that_is_there_in_part_is_torn(ended: list[Event]) -> None:
    ack = Ack("p", 3, 0)
    shown = [one for one in ended if isinstance(one, CommitBegin | Committed)]
    text = expect(
        Kind.TORN_TRANSACTION,
        [*in_both(*ended), *finally_read((0, 1), (1, 2), end=3), *finally_read(end=2, at=B)],
        [ack, *shown],
    )
    assert text.endswith("; final reads have 1, 2 of it, and lack 3")


def test_transaction_is_torn_within_a_partition() -> None:
    events = [*in_both(*commit("x")), *finally_read((1, 2), end=3)]
    verdict = judge(*events, *finally_read((0, 3), end=2, at=B))
    assert [one.kind for one in verdict.anomalies] == [Kind.TORN_TRANSACTION]
    assert verdict.unseen == []


def test_transaction_of_unknown_outcome_is_whole_or_not_there() -> None:
    events = in_both(CommitBegin("p", "x"), OutcomeUnknown("p", "x"))
    whole = [*finally_read((0, 1), (1, 2), end=3), *finally_read((0, 3), end=2, at=B)]
    expect_nothing(*events, *whole)
    expect_nothing(*events, *finally_read(end=3), *finally_read(end=2, at=B))


def test_transaction_of_which_final_reads_have_not_reached_a_part_is_not_torn() -> None:
    events = in_both(CommitBegin("p", "x"), OutcomeUnknown("p", "x"))
    one = finally_read((0, 1), (1, 2), end=3)
    expect_nothing(*events, *one)
    expect_nothing(*events, *one, *finally_read(end=0, at=B))


def test_value_without_an_answer_tears_no_transaction() -> None:
    events = [Begin("p", "x"), *write(1, 0, txn="x"), Send("p", A, 2, "x"), Unknown("p", 2)]
    expect_nothing(*events, *commit("x"), *finally_read((0, 1), end=3))


def test_value_sent_and_written_after_its_transaction_ended_is_late() -> None:
    ended, (send, ack) = abort("x"), write(1, 5, txn="x")
    text = expect(Kind.LATE_WRITE, [Begin("p", "x"), *ended, send, ack], [ended[1], send, ack])
    assert text.endswith("told to be aborted: it was sent later")


def test_value_behind_one_that_was_sent_after_the_end_is_late() -> None:
    late, ended = Send("p", A, 1, "x"), abort("x")
    later = write(2, 5, by="q")
    raw = Assign("c", {A: 5}, Why.REBALANCE, Isolation.UNCOMMITTED)
    polled = read((5, 2), (6, 1))
    text = expect(
        Kind.LATE_WRITE,
        [Begin("p", "x"), late, *ended, *later, raw, polled],
        [late, ended[1], later[0], polled],
    )
    assert text.endswith("aborted: behind 2, which was sent later")


def test_value_sent_after_the_end_that_was_refused_or_is_nowhere_is_right() -> None:
    ended = abort("x")
    for answer in (Fail("p", 1), Unknown("p", 1)):
        expect_nothing(Begin("p", "x"), *ended, Send("p", A, 1, "x"), answer)


def test_value_before_those_that_were_sent_after_the_end_is_right() -> None:
    events = [Begin("p", "x"), *write(1, 0, txn="x"), *commit("x"), *write(2, 2)]
    expect_nothing(*events, *finally_read((0, 1), (2, 2), end=3))


# Order.


def test_values_of_a_producer_the_wrong_way_round_are_out_of_order() -> None:
    first, second = write(1, 1), write(2, 0)
    events = [first[0], *second, first[1], *finally_read((0, 2), (1, 1), end=2)]
    text = expect(Kind.OUT_OF_ORDER, events, [first[0], *second, first[1]])
    assert text == "1 is at offset 1 of t-0, behind 2 at 0, which p sent after it"


def test_values_of_two_producers_or_partitions_have_no_order() -> None:
    read_a = finally_read((0, 2), (1, 1), end=2)
    expect_nothing(Send("p", A, 1), Send("q", A, 2), Ack("q", 2, 0), Ack("p", 1, 1), *read_a)
    events = [*write(1, 5), *write(2, 0, at=B)]
    expect_nothing(*events, *finally_read((5, 1), end=6), *finally_read((0, 2), end=1, at=B))


def test_answers_may_come_in_any_order() -> None:
    first, second = write(1, 0), write(2, 1)
    expect_nothing(first[0], second[0], second[1], first[1], *finally_read((0, 1), (1, 2), end=2))


# Histories that cannot be.


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([Send("p", A, 1), Send("q", A, 1)], "second time"),
        ([Ack("p", 1, 0)], "nobody sent"),
        ([*write(1, 0), Ack("p", 1, 1)], "after the last one"),
        ([*write(1, 0), Fail("p", 1)], "after the last one"),
        ([Send("p", A, 1, "x")], "nobody began"),
        ([CommitBegin("p", "x")], "nobody began"),
        ([Begin("p", "x"), Begin("q", "x")], "of one name"),
        ([Begin("p", "x"), *commit("x"), Aborted("q", "x")], "ends twice"),
        ([read((0, 1))], "without being assigned"),
        ([C_READS_A, read((0, 1), at=B)], "without being assigned"),
        ([C_READS_A, EndOfPartition("c", B, 0)], "without being assigned"),
        ([Assign("c", {A: 0}, Why.FINAL, Isolation.UNCOMMITTED)], "what is committed"),
        ([Crash("p"), Send("p", A, 1)], "after its crash"),
    ],
)
def test_history_that_cannot_be_is_refused(events: list[Event], why: str) -> None:
    with pytest.raises(HistoryError, match=why):
        judge(*events)


# Random histories.


@settings(max_examples=300)
@given(**WORLDS, partitions=st.integers(1, 3), settles=st.booleans())
def test_world_in_which_nothing_goes_wrong(
    seed: int, steps: int, partitions: int, settles: bool
) -> None:
    world = World(seed, steps, partitions=partitions, settles=settles)
    verdict = check(world.history)
    assert verdict.anomalies == []
    assert verdict.unseen == [] or not settles


def test_world_has_everything() -> None:
    """The random histories hold every kind of event, and transactions of every outcome."""
    kinds: set[type[Event]] = set()
    outcomes: set[tuple[bool, str | None]] = set()
    for seed in range(20):
        facts = Facts(history := World(seed, 500).history)
        kinds |= {type(event) for event in history.events}
        for transaction in facts.transactions.values():
            seen = any(send.value in facts.finally_seen for send in transaction.sends)
            outcomes.add((seen, transaction.end.kind if transaction.end else None))
    assert len(kinds) == 14
    assert outcomes >= {(True, "committed"), (True, None), (False, None), (False, "aborted")}


def plant(mutation: Mutation, seed: int, steps: int) -> Planted:
    """Plant a mistake in the first world from a seed on that has room for it."""
    for number in range(seed, seed + 200):
        history = World(number, steps).history
        planted = mutation(history.events, Facts(history), random.Random(number))
        if planted is not None:
            return planted
    pytest.fail("no world has room for it")


@pytest.mark.parametrize("kind", list(Kind))
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), steps=st.integers(300, 500))
def test_mistake_in_a_world_is_found(kind: Kind, seed: int, steps: int) -> None:
    events, value = plant(MUTATIONS[kind], seed, steps)
    verdict = check(History(events))
    texts = [one.text for one in verdict.of(kind)]
    assert any(re.search(rf"\b{value}\b", text) for text in texts), (value, texts)
    if kind in ALONE:
        assert verdict.of(kind) == verdict.anomalies


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), steps=st.integers(300, 500))
def test_value_that_nobody_has_read_in_a_world_is_unseen(seed: int, steps: int) -> None:
    events, value = plant(overlook, seed, steps)
    verdict = check(History(events))
    assert [send.value for send in verdict.unseen] == [value]
    assert verdict.anomalies == []


# Size, and the report.


def large_history(count: int) -> list[Event]:
    """So many records of ten producers, half in transactions, read by three consumers."""
    events: list[Event] = []
    logs: dict[TopicPartition, list[int | None]] = {
        TopicPartition("t", number): [] for number in range(8)
    }
    partitions = list(logs)
    for batch in range(count // 100):
        by = f"p{batch % 10}"
        txn = f"x{batch}" if batch % 2 else None
        if txn:
            events.append(Begin(by, txn))
        partition = partitions[batch % len(partitions)]
        values = range(batch * 100, batch * 100 + 100)
        base = len(logs[partition])
        logs[partition] += values
        events += [Send(by, partition, value, txn) for value in values]
        events += [Ack(by, value, base + at) for at, value in enumerate(values)]
        if txn:
            events += commit(txn, by)
            logs[partition].append(None)
    for by, why in (("c1", Why.REBALANCE), ("c2", Why.REBALANCE), ("f", Why.FINAL)):
        events.append(Assign(by, dict.fromkeys(logs, 0), why))
        for partition, log in logs.items():
            records = [(offset, value) for offset, value in enumerate(log) if value is not None]
            for at in range(0, len(records), 500):
                events.append(Poll(by, {partition: records[at : at + 500]}))
            events.append(EndOfPartition(by, partition, len(log)))
    return [replace(event, at=at) for at, event in enumerate(events)]


each_size = pytest.mark.parametrize(
    "count", [RECORDS, pytest.param(MANY_RECORDS, marks=pytest.mark.long)]
)


@each_size
def test_large_history_is_checked(
    tmp_path: Path, record_property: Callable[..., None], count: int
) -> None:
    path = tmp_path / "history"
    events = large_history(count)
    times = [time.perf_counter()]
    with HistoryWriter(path) as writer:
        for event in events:
            writer.write(event)
    times.append(time.perf_counter())
    history = read_history([path])
    times.append(time.perf_counter())
    verdict = check(history)
    times.append(time.perf_counter())
    assert verdict == Verdict([], [])
    assert len(history.events) == len(events)
    wrote, did_read, checked = (after - before for before, after in pairwise(times))
    record_property(
        "figures",
        f"checker, {count} records, {len(events)} events, {path.stat().st_size / 1e6:.0f} MB:"
        f" written in {wrote:.1f} s, read in {did_read:.1f} s, checked in {checked:.1f} s",
    )


@each_size
def test_large_history_that_is_all_wrong_is_checked(count: int) -> None:
    """Anomalies without number cost no more: each is told once, and in few words."""
    events: list[Event] = [C_READS_A, Assign("f", {A: 0}, Why.FINAL), Begin("p", "x")]
    for value in range(count):
        events += write(value, count * 4 - value, txn="x")
    events += commit("x")
    events += [read((value, value)) for value in range(count)]
    events += [EndOfPartition("f", A, count * 8)]
    verdict = judge(*events)
    assert len(verdict.of(Kind.DUPLICATE)) > 10_000
    assert len("\n".join(report(History(events), verdict))) < 200_000


def test_report_counts_every_kind_and_tells_the_first() -> None:
    events = [C_READS_A, *(read((value, value)) for value in range(30)), *write(99, 99)]
    history = History([replace(event, at=at * 10**9) for at, event in enumerate(events)])
    lines = list(report(history, check(history), most=20))
    assert lines[0] == "33 events of 2 workers: 1 values sent, 30 records read"
    counts = {line[2:36].strip(): int(line[36:]) for line in lines if line.startswith("  ")}
    assert set(Kind) < set(counts)
    assert {name for name, count in counts.items() if count} == {
        Kind.UNWRITTEN_READ,
        "(unseen, which may be too early)",
    }
    assert counts[Kind.UNWRITTEN_READ] == 30
    told = [line for line in lines if line.startswith("unwritten read: ")]
    assert len(told) == 21
    assert told[0].endswith("nobody sent [c poll 1.000000]")
    assert told[-1] == "unwritten read: and 10 more"
    assert lines[-1] == "unseen: 99 in t-0 [p send 31.000000]"
