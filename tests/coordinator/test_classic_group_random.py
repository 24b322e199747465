"""Random lives of a classic group: whatever comes in whatever order, these things hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import JoinAnswer, Leaving, Timer, TimerKind
from plog.coordinator.group_states import GroupState
from plog.errors import ErrorCode
from tests.coordinator.group_play import RANGE, ROBIN, Play

IDS = st.sampled_from(["a", "b", "c", "d", "e", "f", "x"])
INSTANCES = st.sampled_from([None, None, "one", "two"])
DEATHS = st.sampled_from([None] * 8 + [ErrorCode.NOT_COORDINATOR])  # most lives are long
CAPACITIES = st.sampled_from([4, 4, 2])
PROTOCOLS = st.sampled_from([(RANGE,), (RANGE, ROBIN), (ROBIN, RANGE), (ROBIN,)])


class Lives(RuleBasedStateMachine):
    """Requests, time and a log that is late or refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.play = Play(ClassicGroup("g", initial_delay_ms=1_000), stores_at_once=False)
        self.generation = 0

    @rule(
        instance=INSTANCES,
        protocols=PROTOCOLS,
        knows=st.booleans(),
        skips=st.booleans(),
        capacity=CAPACITIES,
    )
    def join_first(
        self,
        instance: str | None,
        protocols: tuple[object, ...],
        knows: bool,
        skips: bool,
        capacity: int,
    ) -> None:
        self.play.join(
            instance_id=instance,
            protocols=protocols,
            must_know_id=not knows,
            can_skip_assignment=skips,
            capacity=capacity,
        )

    @rule(member=IDS, instance=INSTANCES, protocols=PROTOCOLS, capacity=CAPACITIES)
    def join(
        self, member: str, instance: str | None, protocols: tuple[object, ...], capacity: int
    ) -> None:
        self.play.join(member, instance_id=instance, protocols=protocols, capacity=capacity)

    @rule()
    def disturb(self) -> None:
        if self.play.group.state is not GroupState.EMPTY:
            self.play.execute(self.play.group.disturb("looked at"))

    @rule(member=IDS, instance=INSTANCES)
    def sync(self, member: str, instance: str | None) -> None:
        self.play.sync(member, {"a": b"1", "b": b"2"}, instance_id=instance)

    @rule(member=IDS)
    def beat(self, member: str) -> None:
        self.play.beat(member)

    @rule(members=st.lists(st.tuples(st.one_of(IDS, st.just("")), INSTANCES), max_size=3))
    def leave(self, members: list[tuple[str, str | None]]) -> None:
        self.play.leave(*(Leaving(*one) for one in members))

    @rule(duration_ms=st.sampled_from([1, 900, 5_000, 9_999, 60_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.play.pass_ms(duration_ms)

    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]))
    def store(self, error: ErrorCode) -> None:
        if self.play.unstored:
            self.play.store(error)

    @rule(error=DEATHS)
    def die(self, error: ErrorCode | None) -> None:
        """It moves, or becomes another one; what was under way changes nothing any more."""
        if error is None:
            return
        play = self.play
        play.execute(play.group.die(error))
        assert not play.waiting
        assert not play.timers
        while play.unstored:
            play.store(error if len(play.unstored) % 2 else ErrorCode.NONE)
        assert play.group.state is GroupState.DEAD
        self.begin()

    @invariant()
    def generations_rise(self) -> None:
        assert self.play.group.generation >= self.generation
        self.generation = self.play.group.generation

    @invariant()
    def states_fit_members(self) -> None:
        group, roster = self.play.group, self.play.group.roster
        assert (roster.leader in roster) == bool(roster)
        if group.state is GroupState.EMPTY:
            assert not roster
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert roster
            assert all(member.joining is None for member in roster)
            assert roster.elect_protocol() is not None
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert all(member.syncing is None for member in roster)

    @invariant()
    def size_is_that_of_the_members(self) -> None:
        roster = self.play.group.roster
        assert roster.size == sum(member.size for member in roster)

    @invariant()
    def whoever_does_not_wait_has_a_session(self) -> None:
        for member in self.play.group.roster:
            if member.joining is None and member.syncing is None:
                assert Timer(TimerKind.SESSION, member.member_id) in self.play.timers

    @invariant()
    def whoever_waits_is_waited_for(self) -> None:
        """A request waits with a member, or for the log; and something will end its wait."""
        group, timers = self.play.group, self.play.timers
        held = {
            token
            for member in group.roster
            for token in (member.joining, member.syncing)
            if token is not None
        }
        held |= {one.join.token for one in group._replacing.values()}
        assert set(self.play.waiting) == held
        if group.state is GroupState.PREPARING_REBALANCE:
            assert Timer(TimerKind.JOIN) in timers
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert Timer(TimerKind.SYNC) in timers or self.play.unstored

    @invariant()
    def no_timers_of_strangers(self) -> None:
        group = self.play.group
        for kind, member_id in self.play.timers:
            if kind is TimerKind.SESSION:
                assert member_id in group.roster
            if kind is TimerKind.PENDING:
                assert member_id in group.pending

    @invariant()
    def one_leader_of_a_generation_is_told_the_members(self) -> None:
        leaders: dict[int, set[str]] = {}
        for answer in self.play.answers.values():
            if isinstance(answer, JoinAnswer) and answer.members and not answer.skip_assignment:
                leaders.setdefault(answer.generation, set()).add(answer.member_id)
        assert all(len(ids) == 1 for ids in leaders.values())


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=200, stateful_step_count=60)
