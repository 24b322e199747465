"""The table of a transactional producer's states, and what failures make of a transaction."""

from __future__ import annotations

import itertools

import pytest

from plog.client.transaction_states import (
    ASKED,
    FATAL,
    HEARD,
    Call,
    News,
    ProducerIdentity,
    Progress,
    State,
    TransactionAborted,
)
from plog.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidTxnState,
    PlogError,
    ProducerFenced,
    RequestTimedOut,
    error_for,
)
from plog.types import TopicPartition

U, R, T, P, C, A, E, F = State
"""Uninitialized, ready, in transaction, prepared, committing, aborting, abortable error, fatal."""

# What is there to do in each state, and what then; every other call is refused.
TABLE = {
    (U, Call.INIT): U,
    (R, Call.BEGIN): T,
    (T, Call.SEND): T,
    (T, Call.SEND_OFFSETS): T,
    (T, Call.PREPARE): P,
    (T, Call.COMMIT): C,
    (T, Call.ABORT): A,
    (P, Call.COMMIT): C,
    (P, Call.ABORT): A,
    (C, Call.COMMIT): C,
    (A, Call.ABORT): A,
    (E, Call.ABORT): A,
}


def progress_at(state: State) -> Progress:
    made = Progress("tx")
    made.state = state
    return made


@pytest.mark.parametrize(("state", "call"), list(itertools.product(State, Call)))
def test_each_call_in_each_state(state: State, call: Call) -> None:
    progress = progress_at(state)
    following = TABLE.get((state, call))
    if following is None:
        with pytest.raises(InvalidTxnState, match=rf"{call.value}.*'tx'.*{state.value}"):
            progress.ask(call)
        with pytest.raises(InvalidTxnState):
            progress.check(call)
        assert progress.state is state
    else:
        progress.check(call)
        assert progress.state is state
        progress.ask(call)
        assert progress.state is following


def reachable() -> set[State]:
    edges = [(at, to) for (at, _), to in [*ASKED.items(), *HEARD.items()]]
    found = {State.UNINITIALIZED}
    while True:
        more = {to for at, to in edges if at in found} - found
        if not more:
            return found
        found |= more


def test_every_state_is_reached_and_all_but_the_fatal_one_are_left() -> None:
    assert reachable() == set(State)
    for state in set(State) - {State.FATAL_ERROR}:
        assert any(at is state and to is not state for (at, _), to in ASKED.items()) or any(
            at is state and to not in (state, State.FATAL_ERROR) for (at, _), to in HEARD.items()
        )
    assert {to for (at, _), to in [*ASKED.items(), *HEARD.items()] if at is F} == {F}


def test_no_news_but_those_of_the_table_change_anything() -> None:
    assert {(at, news) for at, news in HEARD if news is not News.REFUSED} == {
        (U, News.INITIALIZED),
        (C, News.ENDED),
        (A, News.ENDED),
        (T, News.FAILED),
        (P, News.FAILED),
        (C, News.FAILED),
    }


@pytest.mark.parametrize("code", sorted(set(ErrorCode) - {ErrorCode.NONE}))
def test_failure_costs_the_transaction_or_the_producer(code: ErrorCode) -> None:
    progress = progress_at(State.IN_TRANSACTION)
    fault = error_for(code)
    told = progress.fail(fault, is_unsure=False)
    assert progress.error is told
    assert progress.state is (State.FATAL_ERROR if code in FATAL else State.ABORTABLE_ERROR)
    if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        assert isinstance(told, ProducerFenced)
    else:
        assert told is fault


def test_first_failure_is_what_commit_raises() -> None:
    progress = progress_at(State.IN_TRANSACTION)
    first = InvalidRecord("first")
    progress.fail(first, is_unsure=False)
    progress.fail(RequestTimedOut("second"), is_unsure=False)
    with pytest.raises(InvalidRecord, match="first"):
        progress.ask(Call.COMMIT)
    with pytest.raises(InvalidTxnState, match="call abort_transaction: first") as refusal:
        progress.ask(Call.SEND)
    assert refusal.value.__cause__ is first
    assert not isinstance(progress.drop_reason(), InvalidRecord)
    assert progress.drop_reason().__cause__ is first
    progress.ask(Call.ABORT)
    progress.ended()
    progress.ask(Call.BEGIN)
    progress.ask(Call.COMMIT)
    assert progress.error is None


@pytest.mark.parametrize("call", list(Call))
def test_fatal_failure_is_what_every_call_raises(call: Call) -> None:
    progress = progress_at(State.ABORTING)
    progress.refuse(InvalidTxnState("odd"))
    progress.fail(RequestTimedOut("later"), is_unsure=False)
    progress.ended()
    with pytest.raises(InvalidTxnState, match="odd"):
        progress.ask(call)


@pytest.mark.parametrize("state", [State.IN_TRANSACTION, State.COMMITTING, State.ABORTING])
def test_what_is_unsure_stays_so_until_there_is_a_new_epoch(state: State) -> None:
    progress = progress_at(state)
    progress.fail(TransactionAborted("x"), is_unsure=True)
    progress.fail(TransactionAborted("y"), is_unsure=False)
    assert progress.is_unsure
    progress.initialized(ProducerIdentity(7, 3))
    assert not progress.is_unsure
    assert progress.producer == (7, 3)
    assert progress.state is not State.READY


def test_next_transaction_begins_with_nothing_joined() -> None:
    progress = progress_at(State.READY)
    progress.ask(Call.BEGIN)
    progress.asked_to_join()
    progress.has_joined()
    progress.joined.add(TopicPartition("t", 0))
    progress.groups.add("g")
    progress.ask(Call.COMMIT)
    progress.ended_there()
    progress.ended()
    assert progress.state is State.READY
    progress.ask(Call.BEGIN)
    assert (progress.joined, progress.groups) == (set(), set())
    assert (progress.may_be_open, progress.is_open) == (False, False)


@pytest.mark.parametrize("state", list(State))
def test_records_are_taken_where_the_table_has_it(state: State) -> None:
    assert progress_at(state).takes_records is ((state, Call.SEND) in TABLE)


@pytest.mark.parametrize("state", list(State))
def test_records_are_dropped_only_of_what_will_not_be_committed(state: State) -> None:
    assert progress_at(state).is_dropping is (state in (A, E, F))
    assert isinstance(progress_at(state).drop_reason(), PlogError)
