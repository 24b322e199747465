"""The classic group's machine: scenes with the answers that Kafka's clients expect in them."""

from __future__ import annotations

import pytest

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import (
    Join,
    JoinAnswer,
    Leaving,
    Left,
    MemberView,
    Protocol,
    SyncAnswer,
    Timer,
    TimerKind,
)
from plog.coordinator.group_states import GroupState
from plog.errors import ErrorCode
from tests.coordinator.group_play import RANGE, ROBIN, Play

NONE = ErrorCode.NONE
SESSION = TimerKind.SESSION


def joined(play: Play, token: int) -> JoinAnswer:
    answer = play.answers[token]
    assert isinstance(answer, JoinAnswer)
    return answer


def synced(play: Play, token: int) -> SyncAnswer:
    answer = play.answers[token]
    assert isinstance(answer, SyncAnswer)
    return answer


# -- the ordinary life of a group ------------------------------------------------------------------


def test_first_member_is_told_its_id_then_leads_a_generation_of_its_own() -> None:
    play = Play()
    first = play.join()
    assert joined(play, first) == JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "a")
    assert play.group.state is GroupState.EMPTY
    second = play.join("a")
    assert joined(play, second) == JoinAnswer(
        NONE, "a", 1, "consumer", "range", "a", (MemberView("a", None, b"r"),)
    )
    token = play.sync("a", {"a": b"mine"})
    assert synced(play, token) == SyncAnswer(NONE, "consumer", "range", b"mine")
    assert play.group.state is GroupState.STABLE
    assert play.reasons == ["member a joined"]


def test_old_client_joins_without_knowing_its_id() -> None:
    play = Play()
    assert joined(play, play.join(must_know_id=False)).member_id == "a"


def test_second_member_waits_until_the_first_has_joined_again() -> None:
    play = Play()
    play.stable(1)
    newcomer = play.enter()
    assert newcomer in play.waiting
    assert play.beat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    again = play.join("a", reason="told so")
    assert joined(play, again).leader == "a"
    assert {view.member_id for view in joined(play, again).members} == {"a", "b"}
    assert joined(play, newcomer).members == ()
    assert joined(play, newcomer).generation == 2
    follower = play.sync("b")
    assert follower in play.waiting
    play.sync("a", {"a": b"1", "b": b"2"})
    assert synced(play, follower).assignment == b"2"
    assert play.beat("a") is play.beat("b") is NONE


def test_a_follower_that_asks_again_disturbs_nobody_and_a_leader_begins_a_rebalance() -> None:
    play = Play()
    play.stable(2)
    generation = play.group.generation
    answer = joined(play, play.join("b"))
    assert (answer.generation, answer.leader, answer.members) == (generation, "a", ())
    assert play.group.state is GroupState.STABLE
    play.join("a", reason="topics have changed")
    assert play.reasons[-1] == "the leader a joined again (topics have changed)"
    assert play.group.state is GroupState.PREPARING_REBALANCE


def test_a_follower_with_another_subscription_begins_a_rebalance() -> None:
    play = Play()
    play.stable(2)
    play.join("b", protocols=(Protocol("range", b"other"),))
    assert play.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_missed_its_answer_gets_it_again() -> None:
    play = Play()
    play.join(must_know_id=False)
    again = joined(play, play.join("a"))
    assert again.generation == 1
    assert again.members == (MemberView("a", None, b"r"),)
    assert play.group.state is GroupState.COMPLETING_REBALANCE


def test_a_second_join_of_one_member_ends_the_first() -> None:
    play = Play()
    play.stable(2)
    first = play.join("a")
    second = play.join("a")
    assert joined(play, first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second in play.waiting


# -- the assignor ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ([("range",)], "range"),
        ([("range", "robin"), ("robin", "range"), ("robin", "range")], "robin"),
        ([("range", "robin"), ("robin",)], "robin"),
        ([("range", "robin"), ("robin", "range")], "range"),
        ([("sticky", "range"), ("cooperative", "range")], "range"),
    ],
)
def test_assignor_is_the_most_preferred_that_all_can_use(
    preferences: list[tuple[str, ...]], chosen: str
) -> None:
    play = Play(ClassicGroup("g", initial_delay_ms=100))
    tokens = [
        play.join(must_know_id=False, protocols=tuple(Protocol(name, b"") for name in names))
        for names in preferences
    ]
    play.pass_ms(60_000)
    assert {joined(play, token).protocol_name for token in tokens} == {chosen}


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": (ROBIN,)},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": ()},
    ],
)
def test_a_member_that_shares_nothing_with_the_others_is_refused(
    changes: dict[str, object],
) -> None:
    play = Play()
    play.stable(1)
    refused = joined(play, play.join(**changes))
    assert refused == JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert play.group.state is GroupState.STABLE


def test_an_empty_group_takes_another_type() -> None:
    play = Play()
    play.stable(1)
    assert play.leave(Leaving("a")) == (NONE,)
    assert play.group.state is GroupState.EMPTY
    token = play.join(must_know_id=False, protocol_type="connect")
    assert joined(play, token).protocol_type == "connect"


# -- the first rebalance waits (KIP-134) -----------------------------------------------------------


def test_the_first_rebalance_waits_as_long_as_members_come_but_not_for_ever() -> None:
    play = Play(ClassicGroup("g", initial_delay_ms=3_000))
    tokens = [play.join(must_know_id=False, rebalance_timeout_ms=10_000)]
    for _ in range(3):
        play.pass_ms(2_900)
        tokens.append(play.join(must_know_id=False, rebalance_timeout_ms=10_000))
        assert play.waiting == tokens
    play.pass_ms(1_300)
    assert play.now_ms == 10_000
    assert not play.waiting
    assert play.group.generation == 1


def test_the_first_rebalance_ends_when_nobody_came_within_the_delay() -> None:
    play = Play(ClassicGroup("g", initial_delay_ms=3_000))
    token = play.join(must_know_id=False)
    play.pass_ms(2_999)
    assert token in play.waiting
    play.pass_ms(1)
    assert joined(play, token).generation == 1


# -- members that are silent, late or gone ---------------------------------------------------------


def test_a_silent_member_is_taken_out_after_its_session() -> None:
    play = Play()
    play.stable(2)
    for _ in range(3):
        play.pass_ms(9_000)
        assert play.beat("b") is NONE or play.group.state is not GroupState.STABLE
    assert [member.member_id for member in play.group.roster] == ["b"]
    assert play.reasons[-1] == "member a timed out after 10000 ms"
    assert joined(play, play.join("b")).leader == "b"


def test_a_member_that_waits_is_not_silent() -> None:
    play = Play()
    play.stable(2)
    waits = play.join("a")
    for _ in range(6):
        play.pass_ms(9_000)
        play.beat("b")
    assert waits in play.waiting
    play.pass_ms(6_000)  # the rebalance's time is up, and b has not joined
    assert [member.member_id for member in play.group.roster] == ["a"]
    assert joined(play, waits).generation == 3


def test_a_newcomer_that_waits_is_not_waited_for_without_end() -> None:
    play = Play()
    play.stable(1, rebalance_timeout_ms=3_600_000)
    waits = play.enter(rebalance_timeout_ms=3_600_000)
    for _ in range(34):
        play.pass_ms(9_000)
        play.beat("a")
    assert joined(play, waits).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_never_asks_for_its_assignment_is_taken_out() -> None:
    play = Play()
    play.stable(2)
    play.join("a")
    play.join("b")
    leader = play.sync("a", {"a": b"1", "b": b"2"})
    assert synced(play, leader).error is NONE
    for _ in range(7):
        play.beat("b")
        play.beat("a")
        play.pass_ms(9_000)
    assert [member.member_id for member in play.group.roster] == ["a"]
    assert play.reasons[-1] == "members that did not send SyncGroup: b"


def test_a_leader_that_never_assigns_is_taken_out_and_the_others_join_again() -> None:
    play = Play()
    play.stable(2)
    play.join("a")
    play.join("b")
    follower = play.sync("b")
    for _ in range(7):
        play.beat("a")
        play.pass_ms(9_000)
    assert synced(play, follower).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert joined(play, play.join("b")).leader == "b"


def test_an_id_that_was_given_out_is_waited_for_and_forgotten() -> None:
    play = Play()
    play.stable(1)
    play.join()
    assert list(play.group.pending) == ["b"]
    play.join("a")
    assert play.group.state is GroupState.PREPARING_REBALANCE
    play.pass_ms(10_000)
    assert not play.group.pending
    assert play.group.state is GroupState.COMPLETING_REBALANCE
    assert joined(play, play.join("b")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_that_nobody_comes_back_with_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plog.coordinator.classic_group.MOST_PENDING", 3)
    play = Play()
    for _ in "abcde":
        play.join()
    assert list(play.group.pending) == ["c", "d", "e"]
    assert set(play.timers) == {Timer(TimerKind.PENDING, name) for name in "cde"}
    assert joined(play, play.join("b")).error is ErrorCode.UNKNOWN_MEMBER_ID
    play.join("d")
    assert "d" in play.group.roster


# -- LeaveGroup ------------------------------------------------------------------------------------


def test_leaving_begins_a_rebalance_of_those_who_stay() -> None:
    play = Play()
    play.stable(3)
    assert play.leave(Leaving("b", reason="closed"), Leaving("x"), Leaving("c")) == (
        NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        NONE,
    )
    assert play.reasons[-1] == "member b left (closed); member c left"
    assert joined(play, play.join("a")).generation == play.group.generation


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    play = Play()
    play.stable(2)
    waits = play.join("a")
    play.leave(Leaving("a"))
    assert joined(play, waits).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.beat("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_may_leave() -> None:
    play = Play()
    play.join()
    assert play.leave(Leaving("a")) == (NONE,)
    assert not play.timers


def test_a_group_that_all_have_left_is_stored_as_empty() -> None:
    play = Play(stores_at_once=False)
    play.join(must_know_id=False)
    play.leave(Leaving("a"))
    assert play.group.state is GroupState.EMPTY
    assert [dict(effect.assignments) for effect in play.unstored] == [{}]
    assert not play.timers


# -- what must be safe first -----------------------------------------------------------------------


def test_nobody_is_told_of_an_assignment_before_it_is_safe() -> None:
    play = Play(stores_at_once=False)
    play.join(must_know_id=False)
    token = play.sync("a", {"a": b"1"})
    assert token in play.waiting
    play.store()
    assert synced(play, token).assignment == b"1"


def test_an_assignment_that_cannot_be_stored_is_made_anew() -> None:
    play = Play(stores_at_once=False)
    play.join(must_know_id=False)
    token = play.sync("a", {"a": b"1"})
    play.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert synced(play, token).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.group.state is GroupState.PREPARING_REBALANCE
    assert joined(play, play.join("a")).generation == 2


def test_an_assignment_that_is_safe_too_late_is_nobodys() -> None:
    play = Play(stores_at_once=False)
    play.join(must_know_id=False)
    token = play.sync("a", {"a": b"1"})
    play.enter()
    assert synced(play, token).error is ErrorCode.REBALANCE_IN_PROGRESS
    play.store()
    assert play.group.state is GroupState.PREPARING_REBALANCE
    assert play.group.roster["a"].assignment == b""


# -- static members (KIP-345) ----------------------------------------------------------------------


def static(play: Play, names: list[str]) -> None:
    """Make the group stable with static members; their ids are a, b, c."""
    for name in names:
        play.join(instance_id=name)
        for member in play.group.roster:
            if member.joining is None:
                play.join(member.member_id, instance_id=member.instance_id)
    play.all_sync()
    assert play.group.state is GroupState.STABLE


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    play = Play()
    static(play, ["one", "two"])
    generation = play.group.generation
    back = joined(play, play.join(instance_id="two"))
    assert (back.member_id, back.generation, back.leader) == ("c", generation, "a")
    assert not back.skip_assignment
    assert synced(play, play.sync("c")).assignment == b"for b"
    assert play.beat("b") is ErrorCode.UNKNOWN_MEMBER_ID
    token = play.sync("b", instance_id="two")
    assert synced(play, token).error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_comes_back_keeps_its_assignment() -> None:
    play = Play()
    static(play, ["one", "two"])
    back = joined(play, play.join(instance_id="one"))
    assert back.skip_assignment
    assert back.leader == back.member_id == "c"
    assert {view.instance_id for view in back.members} == {"one", "two"}


def test_an_older_static_leader_is_told_that_somebody_else_leads() -> None:
    play = Play()
    static(play, ["one", "two"])
    back = joined(play, play.join(instance_id="one", can_skip_assignment=False))
    assert (back.member_id, back.leader, back.members) == ("c", "a", ())
    assert synced(play, play.sync("c")).assignment == b"for a"
    assert play.group.state is GroupState.STABLE


def test_a_static_member_with_another_assignor_begins_a_rebalance() -> None:
    play = Play()
    static(play, ["one"])
    play.join(instance_id="one", protocols=(ROBIN, RANGE))
    assert play.group.state is GroupState.COMPLETING_REBALANCE
    assert play.group.protocol_name == "roundrobin"


def test_a_replacement_that_cannot_be_stored_leaves_the_old_member() -> None:
    play = Play()
    static(play, ["one"])
    play.stores_at_once = False
    token = play.join(instance_id="one")
    play.store(ErrorCode.NOT_COORDINATOR)
    assert joined(play, token).error is ErrorCode.NOT_COORDINATOR
    assert play.beat("a") is NONE
    assert play.group.roster.leader == "a"


def test_two_clients_of_one_name_fence_each_other_while_they_join() -> None:
    play = Play(ClassicGroup("g", initial_delay_ms=1_000))
    first = play.join(instance_id="one")
    second = play.join(instance_id="one")
    assert joined(play, first).error is ErrorCode.FENCED_INSTANCE_ID
    play.pass_ms(60_000)
    assert joined(play, second).error is NONE


def test_a_static_member_that_does_not_join_again_stays_until_its_session_ends() -> None:
    play = Play()
    static(play, ["one", "two"])
    play.join("a", instance_id="one")
    play.pass_ms(9_000)
    assert len(play.group.roster) == 2
    play.pass_ms(1_000)
    assert len(play.group.roster) == 1
    assert play.group.state is GroupState.COMPLETING_REBALANCE


def test_a_static_member_may_be_taken_out_by_its_name() -> None:
    play = Play()
    static(play, ["one", "two"])
    assert play.leave(Leaving("", "two"), Leaving("a", "two"), Leaving("", "three")) == (
        NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )


# -- who is refused --------------------------------------------------------------------------------


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    play = Play()
    play.stable(2)
    assert joined(play, play.join(capacity=2)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(play, play.join("b", capacity=2)).error is NONE


def test_a_stable_group_that_is_too_large_keeps_its_members() -> None:
    play = Play()
    play.stable(3)
    assert joined(play, play.join("c", capacity=2)).error is NONE
    assert joined(play, play.join(capacity=2)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert play.beat("a") is play.beat("b") is play.beat("c") is NONE


def test_of_a_group_that_is_too_large_the_last_to_join_again_are_taken_out() -> None:
    play = Play()
    play.stable(4)
    play.execute(play.group.disturb("it is too large"))
    first, second = play.join("c", capacity=2), play.join("b", capacity=2)
    again = play.join("c", capacity=2)
    assert joined(play, first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert joined(play, play.join("a", capacity=2)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert play.waiting == [second, again]
    assert joined(play, play.join("d", capacity=2)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(play, again).generation == joined(play, second).generation
    assert [member.member_id for member in play.group.roster] == ["b", "c"]
    assert play.beat("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_newcomer_may_wait_in_the_place_of_who_has_not_joined_again() -> None:
    play = Play()
    play.stable(2)
    play.execute(play.group.disturb("looked at"))
    newcomer = play.join(must_know_id=False, capacity=2)
    known = play.join("b", capacity=2)
    assert play.waiting == [newcomer, known]
    assert joined(play, play.join(capacity=2)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(play, play.join("a", capacity=2)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(play, newcomer).error is joined(play, known).error is NONE


@pytest.mark.parametrize("knows_its_id", [True, False])
def test_a_static_member_for_which_there_is_no_room_is_out(knows_its_id: bool) -> None:
    play = Play()
    static(play, ["one", "two"])
    ids = [member.member_id for member in play.group.roster]
    play.execute(play.group.disturb("it is too large"))
    waits = play.join(ids[0], instance_id="one", capacity=1)
    refused = play.join(ids[1] if knows_its_id else "", instance_id="two", capacity=1)
    assert joined(play, refused).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(play, waits).error is NONE
    assert [member.instance_id for member in play.group.roster] == ["one"]


def test_who_is_fenced_takes_nobody_out_of_a_full_group() -> None:
    play = Play()
    static(play, ["one", "two"])
    ids = [member.member_id for member in play.group.roster]
    play.execute(play.group.disturb("it is too large"))
    play.join(ids[0], instance_id="one", capacity=1)
    play.join("stranger", instance_id="two", capacity=1)
    assert ids[1] in play.group.roster


def test_generations_are_told_apart() -> None:
    play = Play()
    play.stable(1)
    assert play.beat("a", 7) is ErrorCode.ILLEGAL_GENERATION
    assert synced(play, play.sync("a", generation=0)).error is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("named", [{"protocol_type": "connect"}, {"protocol_name": "roundrobin"}])
def test_sync_for_another_protocol_is_refused(named: dict[str, str]) -> None:
    play = Play()
    play.stable(1)
    answer = synced(play, play.sync("a", **named))
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_commits_by_state() -> None:
    play = Play()
    refuse = play.group.refuse_commit
    assert refuse("", None, -1) is NONE
    play.join(must_know_id=False)
    assert refuse("a", None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refuse("", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    play.sync("a")
    assert refuse("a", None, 1) is NONE
    assert refuse("a", None, 0) is ErrorCode.ILLEGAL_GENERATION
    assert refuse("b", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    play.enter()
    assert refuse("a", None, 1) is NONE
    play.execute(play.group.die(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert refuse("a", None, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_dead_group_answers_all_that_wait_and_refuses_the_rest() -> None:
    play = Play()
    play.stable(2)
    play.join("a")
    play.join()
    play.execute(play.group.die(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert not play.waiting
    assert not play.timers
    assert joined(play, play.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.beat("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert synced(play, play.sync("a")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.leave(Leaving("a")) == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)


def test_a_dead_group_answers_a_static_member_that_comes_back_and_is_being_stored() -> None:
    play = Play()
    static(play, ["one", "two"])
    play.stores_at_once = False
    twice = [play.join(instance_id="one") for _ in range(2)]
    play.execute(play.group.die(ErrorCode.REBALANCE_IN_PROGRESS))
    assert not play.waiting
    assert {joined(play, token).error for token in twice} == {ErrorCode.REBALANCE_IN_PROGRESS}
    play.store()
    play.store(ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize("error", [NONE, ErrorCode.NOT_COORDINATOR])
def test_what_becomes_of_an_assignment_is_nothing_to_a_dead_group(error: ErrorCode) -> None:
    play = Play(stores_at_once=False)
    play.join(must_know_id=False)
    waits = play.sync("a", {"a": b"1"})
    play.execute(play.group.die(ErrorCode.NOT_COORDINATOR))
    assert synced(play, waits).error is ErrorCode.NOT_COORDINATOR
    play.store(error)
    assert play.group.state is GroupState.DEAD


def test_answers_of_a_leave_have_their_order() -> None:
    play = Play()
    assert play.leave() == Left(()).errors
    assert play.leave(Leaving("x")) == (ErrorCode.UNKNOWN_MEMBER_ID,)


def test_sessions_of_a_group_that_was_read_begin_anew() -> None:
    play = Play()
    play.stable(2)
    play.timers.clear()
    play.execute(play.group.resume())
    assert play.timers.keys() == {Timer(SESSION, "a"), Timer(SESSION, "b")}


def test_unknown_events_are_refused() -> None:
    with pytest.raises(TypeError, match="not an event"):
        ClassicGroup("g").on(Join)  # type: ignore[arg-type]
