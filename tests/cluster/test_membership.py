"""A broker's membership, by events: sessions that are suspended, expire, and have successors."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.cluster.membership import (
    MAX_RETRY_MS,
    RETRY_MS,
    TABLE,
    Effect,
    Membership,
    Orders,
    State,
)
from tests.conftest import ROOT

DRAWING = re.compile(r"^```membership\n(.*?)^```$", re.M | re.S)
TIMEOUT_MS = 18_000
REGISTER, RESIGN = Effect.REGISTER, Effect.RESIGN
REPORT, LOOK = Effect.REPORT, Effect.LOOK
JOINED = (Effect.READ_AGAIN, Effect.STAND)


def member(session_id: int = 1, epoch: int = 10) -> Membership:
    one = Membership(TIMEOUT_MS)
    assert one.connected(session_id) == Orders((REGISTER,))
    assert one.registered(session_id, epoch) == Orders(JOINED)
    assert (one.state, one.broker_epoch) == (State.MEMBER, epoch)
    return one


def test_short_silence_changes_nothing() -> None:
    one = member()
    assert one.suspended(1_000) == Orders(())
    assert one.tick(1_000 + TIMEOUT_MS - 1) == Orders(())
    assert one.connected(1) == Orders((LOOK,))
    assert (one.state, one.broker_epoch) == (State.MEMBER, 10)


def test_long_silence_ends_the_controllers_role_before_the_servers_say_so() -> None:
    one = member()
    one.suspended(1_000)
    assert one.tick(1_000 + TIMEOUT_MS) == Orders((RESIGN,))
    assert one.tick(1_000 + 2 * TIMEOUT_MS) == Orders(())
    assert one.connected(1) == Orders((*JOINED, LOOK)), "the session was kept after all"
    one.suspended(60_000)
    one.tick(60_000 + TIMEOUT_MS)
    assert one.lost() == Orders(())
    assert one.connected(2) == Orders((REGISTER,))


def test_broker_registers_again_in_the_next_session() -> None:
    one = member()
    one.suspended(0)
    assert one.lost() == Orders((RESIGN,))
    assert one.connected(2) == Orders((REGISTER,))
    assert one.registered(2, 20) == Orders(JOINED)
    assert one.broker_epoch == 20


def test_next_session_that_comes_without_a_word_is_noticed() -> None:
    one = member()
    one.suspended(0)
    assert one.connected(2) == Orders((RESIGN, REGISTER))
    one = member()
    assert one.connected(2) == Orders((RESIGN, REGISTER))


def test_answer_for_an_earlier_session_does_not_count() -> None:
    one = Membership(TIMEOUT_MS)
    one.connected(1)
    one.suspended(0)
    one.connected(2)
    assert one.registered(1, 10) == Orders(())
    assert one.failed(1) == Orders(())
    assert one.state is State.JOINING
    assert one.registered(2, 20) == Orders(JOINED)


def test_registration_is_tried_again_ever_later() -> None:
    one = Membership(TIMEOUT_MS)
    one.connected(1)
    pauses = []
    for _ in range(7):
        pauses.append(one.failed(1).retry_ms)
        assert one.retry() == Orders((REGISTER,))
    assert pauses == [RETRY_MS, 1_000, 2_000, 4_000, 8_000, MAX_RETRY_MS, MAX_RETRY_MS]
    one.registered(1, 5)
    one.lost()
    one.connected(2)
    assert one.failed(2).retry_ms == RETRY_MS


def test_retry_of_an_attempt_that_is_over_does_nothing() -> None:
    one = Membership(TIMEOUT_MS)
    one.connected(1)
    one.failed(1)
    one.suspended(0)
    assert one.retry() == Orders(())
    assert one.state is State.OUTSIDE


def test_lost_replicas_are_reported_until_it_is_written() -> None:
    one = member()
    assert one.replicas_lost() == Orders((REPORT,))
    assert one.failed(1) == Orders((Effect.RETRY_LATER,), RETRY_MS)
    assert one.retry() == Orders((REPORT, LOOK))
    assert one.failed(1).retry_ms == 2 * RETRY_MS
    one.reported()
    assert one.retry() == Orders((LOOK,)), "it is written meanwhile"
    one.replicas_lost()
    assert one.failed(1).retry_ms == RETRY_MS


def test_lost_replicas_are_reported_once_there_is_a_connection() -> None:
    one = Membership(TIMEOUT_MS)
    assert one.replicas_lost() == Orders(())
    one.connected(1)
    assert one.registered(1, 10) == Orders((*JOINED, REPORT))
    one.suspended(0)
    assert one.failed(1) == Orders(()), "the connection was lost before the answer"
    assert one.connected(1) == Orders((REPORT, LOOK))
    one.suspended(0)
    one.tick(TIMEOUT_MS)
    assert one.connected(1) == Orders((*JOINED, REPORT, LOOK))
    one.lost()
    one.connected(2)
    assert one.registered(2, 20) == Orders((*JOINED, REPORT))
    one.reported()
    one.suspended(0)
    assert one.connected(2) == Orders((LOOK,))


def test_broker_whose_registration_is_gone_registers_again() -> None:
    one = member()
    assert one.node_changed() == Orders((LOOK,))
    assert one.gone(1) == Orders((RESIGN, REGISTER))
    assert one.gone(1) == one.node_changed() == Orders(()), "it is about to register"
    assert one.registered(1, 20) == Orders(JOINED)
    assert one.broker_epoch == 20
    assert one.gone(2) == Orders(()), "that is of the next session"


def test_registration_is_looked_for_until_the_store_answers() -> None:
    one = member()
    one.node_changed()
    assert one.failed(1) == Orders((Effect.RETRY_LATER,), RETRY_MS)
    assert one.retry() == Orders((LOOK,))
    assert one.failed(1).retry_ms == 2 * RETRY_MS
    one.suspended(0)
    assert one.node_changed() == Orders(())
    assert one.connected(1) == Orders((LOOK,))
    assert one.failed(1).retry_ms == RETRY_MS


def test_broker_whose_registration_another_process_replaced_ends() -> None:
    one = member()
    assert one.gone(1) == Orders((RESIGN, REGISTER))
    assert one.taken(1) == Orders((Effect.END,))


def test_broker_whose_id_is_taken_ends() -> None:
    one = member()
    one.suspended(0)
    one.lost()
    one.connected(2)
    assert one.taken(1) == Orders(()), "it was asked for in an earlier session"
    assert one.taken(2) == Orders((Effect.END,))
    assert one.state is State.ENDED
    assert one.connected(3) == Orders(())


@pytest.mark.parametrize("state", [state for state in State if state is not State.ENDED])
def test_broker_whose_client_has_failed_ends(state: State) -> None:
    one = member()
    one.state = state
    stands = state in (State.MEMBER, State.SUSPENDED)
    assert one.no_client() == Orders((RESIGN, Effect.END) if stands else (Effect.END,))
    assert one.state is State.ENDED


def test_each_state_is_left_and_reached() -> None:
    assert {state for state, _ in TABLE} == set(State) - {State.ENDED}
    assert {state for state, _ in TABLE.values()} == set(State)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("connected"), st.booleans()),
        st.sampled_from(
            [
                (one,)
                for one in (
                    "suspended",
                    "lost",
                    "registered",
                    "failed",
                    "taken",
                    "no client",
                    "retry",
                    "gone",
                    "late",
                )
            ]
        ),
        st.tuples(st.just("pass"), st.integers(0, 2 * TIMEOUT_MS)),
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_controller_is_one_only_while_its_registration_may_stand(
    events: list[tuple[object, ...]],
) -> None:
    one, now_ms, session, epoch = Membership(TIMEOUT_MS), 0, 1, 0
    stands = has_ended = False
    asked: list[int] = []
    silent_since: int | None = 0
    for name, *given_ in events:
        match name:
            case "connected":
                session += bool(given_[0])
                orders, silent_since = one.connected(session), None
            case "suspended":
                if silent_since is None:
                    silent_since = now_ms
                orders = one.suspended(now_ms)
            case "lost":
                session += 1  # the next connection is in another
                silent_since = now_ms
                orders = one.lost()
            case "registered" | "late" | "failed" | "taken" if asked:
                of = asked.pop(0 if name == "late" else -1)
                epoch += 1
                match name:
                    case "failed":
                        orders = one.failed(of)
                    case "taken":
                        orders = one.taken(of)
                    case _:
                        orders = one.registered(of, epoch)
            case "no client":
                orders = one.no_client()
            case "gone":
                orders = one.gone(session)
            case "retry":
                orders = one.retry()
            case "pass":
                now_ms += int(str(given_[0]))
                orders = one.tick(now_ms)
            case _:
                continue
        for effect in orders.effects:
            match effect:
                case Effect.REGISTER:
                    assert not stands, "it resigns before it registers again"
                    asked.append(one.session_id)
                case Effect.STAND:
                    assert one.state is State.MEMBER
                    stands = True
                case Effect.END:
                    assert not has_ended
                    has_ended = True
                case Effect.RESIGN:
                    assert stands
                    stands = False
        assert stands == (one.state in (State.MEMBER, State.SUSPENDED))
        assert has_ended == (one.state is State.ENDED)
        if stands and name == "pass" and silent_since is not None:
            assert now_ms - silent_since < TIMEOUT_MS


def test_architecture_draws_every_state() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (drawing,) = DRAWING.findall(page)
    assert set(re.findall(r"[A-Z_]{2,}", drawing)) == {state.name for state in State}
