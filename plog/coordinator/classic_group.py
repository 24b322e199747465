"""A consumer group of the classic protocol as a pure machine: requests and timers in, effects out.

Owns every decision of one group: its members, its leader, its assignor, when a generation is
complete, and the response to each request. Does no I/O and has no clock and no offsets;
`group_coordinator` runs it, executes the effects in order and reports the results as events. The
state that must survive restarts goes through `StoreGroup`; no response shows it before it is
committed.

The protocol is that of KIP-62 (timeouts), KIP-134 (the delay of a first rebalance), KIP-345 (static
members), KIP-394 (ids before membership), KIP-389 (the maximum size of a group) and KIP-814 (a
static leader keeps its assignment).

    EMPTY ---------- join ----------> PREPARING_REBALANCE <--- a change of members ----.
      ^                                 |          ^                                   |
      '------ nobody joined ------------|          |                                   |
                                        v          |                                   |
                              COMPLETING_REBALANCE '------ the leader's Sync ------> STABLE
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod

from plog.coordinator.group_events import (
    NO_MEMBER,
    Answer,
    Effect,
    Event,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Leaving,
    Left,
    MemberView,
    Rebalancing,
    SetTimer,
    StopTimer,
    Stored,
    StoreGroup,
    Sync,
    SyncAnswer,
    Timer,
    TimerFired,
    TimerKind,
    Token,
)
from plog.coordinator.group_states import (
    COMMIT_ANSWERS,
    COMPLETING,
    DEAD,
    EMPTY,
    HEARTBEAT_ANSWERS,
    NEXT_STATES,
    PREPARING,
    STABLE,
    GroupState,
)
from plog.coordinator.roster import Member, Roster
from plog.errors import ErrorCode

NEW_MEMBER_TIMEOUT_MS = 5 * 60_000
"""Session timeout of a joining new member, which cannot send heartbeats yet."""

MOST_PENDING = 5_000
"""Maximum number of pending member ids; the oldest is dropped, and its client joins again."""

JOIN_TIMER, SYNC_TIMER = Timer(TimerKind.JOIN), Timer(TimerKind.SYNC)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A static member that rejoined with a new id, while that is being stored."""

    join: Join
    old: Member
    led: bool


@dataclass(slots=True)
class ClassicGroup:
    """One group. Only the owner's thread may call it.

    Args:
        initial_delay_ms: how long the first rebalance of an empty group waits for more members.
    """

    group_id: str
    initial_delay_ms: int = 0
    state: GroupState = EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    roster: Roster = field(default_factory=Roster)
    pending: dict[str, None] = field(default_factory=dict)
    """Assigned member ids that have not joined yet; the oldest first."""
    _unsynced: set[str] = field(default_factory=set)
    _first_wait_left_ms: int | None = None  # delay left of the first rebalance
    _grew: bool = False  # whether members joined in the current part of that delay
    _last_ticket: int = 0
    _assigning: StoreGroup | None = None
    _replacing: dict[int, _Replaced] = field(default_factory=dict)
    _out: list[Effect] = field(default_factory=list)

    def on(self, event: Event) -> list[Effect]:
        """Process an event; return the effects to execute, in order."""
        self._take(event)
        out, self._out = self._out, []
        return out

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        raise TypeError(f"not an event of a group: {event!r}")

    def resume(self) -> list[Effect]:
        """Return the effects after loading from the log: the members' session timers."""
        return [self._session(member) for member in self.roster]

    def die(self, error: ErrorCode) -> list[Effect]:
        """End the group, which was deleted or has moved; waiting requests get the error."""
        for member in self.roster:
            self._dismiss(member, error)
        for replaced in self._replacing.values():
            self._refuse_join(replaced.join, error)
        for member_id in list(self.pending):
            self._drop_pending(member_id)
        # The result of a pending store no longer matters.
        self._replacing.clear()
        self._assigning = None
        self._do(StopTimer(JOIN_TIMER), StopTimer(SYNC_TIMER))
        self._become(DEAD)
        out, self._out = self._out, []
        return out

    def disturb(self, reason: str) -> list[Effect]:
        """Make all members join again."""
        self._rebalance(reason)
        out, self._out = self._out, []
        return out

    def hear(self, member_id: str) -> list[Effect]:
        """Restart the session of a member that has committed."""
        member = self.roster.get(member_id)
        if member is None or member.joining is not None or member.syncing is not None:
            return []
        return [self._session(member)]

    def refuse_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error of an offset commit; NONE to accept it.

        An empty group accepts commits without a generation: from tools, and from consumers with
        manual assignment.
        """
        if self.state is EMPTY and generation < 0:
            return ErrorCode.NONE
        refusal = self._refuse_member(member_id, instance_id, generation)
        return COMMIT_ANSWERS[self.state] if refusal is ErrorCode.NONE else refusal

    def refuse_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return the error of a transactional offset commit; NONE to accept it (KIP-447).

        Producers before TxnOffsetCommit v3 name no member: their transactional ids fence them.
        """
        if self.state is DEAD:
            return COMMIT_ANSWERS[DEAD]
        if generation < 0 and (
            self.state is EMPTY or (member_id == NO_MEMBER and instance_id is None)
        ):
            return ErrorCode.NONE
        return self._refuse_member(member_id, instance_id, generation)

    # -- JoinGroup ---------------------------------------------------------------------------

    @_take.register
    def _on_join(self, join: Join) -> None:
        if self.state is DEAD:
            self._refuse_join(join, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room_for(join):
            self._refuse_surplus(join)
        elif not self._can_use(join):
            self._refuse_join(join, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif join.member_id == NO_MEMBER:
            self._join_first(join)
        elif join.member_id in self.pending:
            self._join_pending(join)
        else:
            self._join_again(join)

    def _has_room_for(self, join: Join) -> bool:
        """Return whether the group has room for a new or rejoining member.

        A group may exceed its maximum size after that was lowered. Members then stay, but in a
        rebalance only waiting members have a place: the first ones to join get it.
        """
        if len(self.roster) < join.capacity:
            return True
        known = self.roster.get(join.member_id) or self.roster.of_instance(join.instance_id)
        if self.state is not PREPARING:
            return known is not None
        if known is not None and known.joining is not None:
            return True
        return sum(member.joining is not None for member in self.roster) < join.capacity

    def _refuse_surplus(self, join: Join) -> None:
        """Refuse a client for which there is no room; remove it if it was a member."""
        known = self.roster.get(join.member_id)
        if join.member_id == NO_MEMBER:
            known = self.roster.of_instance(join.instance_id)
        elif self._refuse_member(join.member_id, join.instance_id) is not ErrorCode.NONE:
            known = None  # the id belongs to another instance
        self._refuse_join(join, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER)
        if known is not None:
            self._dismiss(known, ErrorCode.UNKNOWN_MEMBER_ID)
            self._after_losing(f"member {known.member_id} was removed: the group is full")

    def _can_use(self, join: Join) -> bool:
        """Return whether all members would still have an assignor in common."""
        if not join.protocol_type or (self.roster and join.protocol_type != self.protocol_type):
            return False
        return self.roster.supports(join.protocols)

    def _join_first(self, join: Join) -> None:
        old = self.roster.of_instance(join.instance_id)
        if old is not None:
            self._replace(join, old)
        elif join.instance_id is not None:
            self._add(join, join.new_member_id)
        elif join.must_know_id:
            self._give_out(join)
            self._refuse_join(join, ErrorCode.MEMBER_ID_REQUIRED, join.new_member_id)
        else:
            self._add(join, join.new_member_id)

    def _give_out(self, join: Join) -> None:
        """Assign a member id, and wait for the client to join with it."""
        while len(self.pending) >= MOST_PENDING:
            self._drop_pending(next(iter(self.pending)))
        self.pending[join.new_member_id] = None
        timer = Timer(TimerKind.PENDING, join.new_member_id)
        self._do(SetTimer(timer, join.session_timeout_ms))

    def _drop_pending(self, member_id: str) -> None:
        """Stop waiting for a member id."""
        del self.pending[member_id]
        self._do(StopTimer(Timer(TimerKind.PENDING, member_id)))

    def _join_pending(self, join: Join) -> None:
        if self.roster.of_instance(join.instance_id) is not None:
            self._refuse_join(join, ErrorCode.FENCED_INSTANCE_ID)
            return
        self._drop_pending(join.member_id)
        self._add(join, join.member_id)

    def _join_again(self, join: Join) -> None:
        refusal = self._refuse_member(join.member_id, join.instance_id)
        if refusal is not ErrorCode.NONE:
            self._refuse_join(join, refusal)
            return
        member = self.roster[join.member_id]
        changed = member.protocols != join.protocols
        if self.state is STABLE and member.member_id == self.roster.leader:
            # A leader joins again to get a new assignment, for example for new topics.
            reason = f"the leader {member.member_id} joined again"
        elif self.state is PREPARING or changed:
            reason = f"member {member.member_id} joined with other subscriptions"
        else:
            # It may have missed the response; a retry must not cause a rebalance.
            self._tell_generation(member, join.token)
            return
        self._wait_again(member, join)
        self._rebalance(reason + _in_brackets(join.reason))

    def _add(self, join: Join, member_id: str) -> None:
        if not self.roster:
            self.protocol_type = join.protocol_type
        member = Member.of(join, member_id)
        member.joining = join.token
        self.roster.add(member)
        self._grew = True
        self._do(SetTimer(Timer(TimerKind.SESSION, member_id), NEW_MEMBER_TIMEOUT_MS))
        self._rebalance(f"member {member_id} joined" + _in_brackets(join.reason))

    def _wait_again(self, member: Member, join: Join) -> None:
        """Update a member from its request; it waits for the next generation."""
        self.roster.renew(member, join)
        self._give_up_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.joining = join.token
        self._do(StopTimer(Timer(TimerKind.SESSION, member.member_id)))

    # -- a static member rejoins (KIP-345) -- --------------------------------------------------

    def _replace(self, join: Join, old: Member) -> None:
        """Give a static member a new id; the old id is fenced."""
        led = self.roster.leader == old.member_id
        self._dismiss(old, ErrorCode.FENCED_INSTANCE_ID)
        member = Member.of(join, join.new_member_id)
        member.assignment = old.assignment
        self._enrol(member, leads=led)
        if self.state is STABLE and self.roster.elect_protocol() == self.protocol_name:
            stored = self._store({one.member_id: one.assignment for one in self.roster})
            self._replacing[stored.ticket] = _Replaced(join, old, led)
            return
        member.joining = join.token
        self._rebalance(f"static member {member.instance_id} rejoined as {member.member_id}")

    def _enrol(self, member: Member, *, leads: bool) -> None:
        """Add the member that replaces another one."""
        self.roster.add(member)
        if leads:
            self.roster.leader = member.member_id
        self._do(self._session(member))

    def _replaced(self, replaced: _Replaced, error: ErrorCode) -> None:
        join = replaced.join
        member = self.roster.get(join.new_member_id)
        if member is None:
            self._refuse_join(join, ErrorCode.UNKNOWN_MEMBER_ID)
        elif error is not ErrorCode.NONE:
            # The log still has the old id: after a restart it must match the one that clients use.
            self._dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._enrol(replaced.old, leads=replaced.led)
            self._refuse_join(join, error)
        elif self.state is not STABLE:
            self._refuse_join(join, ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            self._tell_replaced(join, member, replaced.old.member_id, led=replaced.led)

    def _tell_replaced(self, join: Join, member: Member, old_id: str, *, led: bool) -> None:
        """Respond to a static member with the current generation.

        A leader keeps its assignment (KIP-814). An older client cannot skip the assignment: its
        response names the old id as the leader, so that it acts as a follower, sends SyncGroup and
        gets its previous assignment.
        """
        if led and join.can_skip_assignment:
            members = self.roster.views(self.protocol_name)
            self._answer_join(join.token, member, members=members, skip_assignment=True)
        else:
            self._answer_join(join.token, member, leader=old_id if led else self.roster.leader)

    # -- a rebalance ---------------------------------------------------------------------------

    def _rebalance(self, reason: str) -> None:
        """Start a rebalance, unless one is preparing; complete it if all members have joined."""
        if self.state is not PREPARING:
            self._begin_rebalance(reason)
        if self._first_wait_left_ms is None and not self.pending and self._all_joined():
            self._complete()

    def _begin_rebalance(self, reason: str) -> None:
        if self.state is COMPLETING:
            self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._assigning = None
        self._unsynced.clear()
        self._do(StopTimer(SYNC_TIMER), Rebalancing(self.generation, reason))
        timeout_ms = self.roster.rebalance_timeout_ms()
        delay_ms = min(self.initial_delay_ms, timeout_ms) if self.state is EMPTY else 0
        self._become(PREPARING)
        if delay_ms:
            self._first_wait_left_ms = timeout_ms - delay_ms
            self._grew = False
        self._do(SetTimer(JOIN_TIMER, delay_ms or timeout_ms))

    def _all_joined(self) -> bool:
        return all(member.joining is not None for member in self.roster)

    def _join_time_is_up(self) -> None:
        if self._first_wait_left_ms and self._grew:
            delay_ms = min(self.initial_delay_ms, self._first_wait_left_ms)
            self._first_wait_left_ms -= delay_ms
            self._grew = False
            self._do(SetTimer(JOIN_TIMER, delay_ms))
            return
        self._complete()

    def _complete(self) -> None:
        """Form the next generation from the members that joined."""
        self._first_wait_left_ms = None
        for member in self.roster:
            if member.joining is None and member.instance_id is None:
                self._dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
        joined = [member for member in self.roster if member.joining is not None]
        if self.roster and not joined:
            # Only static members, which may be absent until their sessions expire.
            self._do(SetTimer(JOIN_TIMER, self.roster.rebalance_timeout_ms()))
            return
        self._do(StopTimer(JOIN_TIMER))
        self.generation += 1
        self.protocol_name = self.roster.elect_protocol()
        if not joined:
            self.roster.leader = NO_MEMBER
            self._become(EMPTY)
            self._store({})
            return
        if all(member.member_id != self.roster.leader for member in joined):
            self.roster.leader = joined[0].member_id
        self._become(COMPLETING)
        self._unsynced = {member.member_id for member in self.roster}
        self._do(SetTimer(SYNC_TIMER, self.roster.rebalance_timeout_ms()))
        for member in joined:
            token, member.joining = member.joining, None
            self._tell_generation(member, token)

    def _tell_generation(self, member: Member, token: Token) -> None:
        leads = self.state is COMPLETING and member.member_id == self.roster.leader
        members = self.roster.views(self.protocol_name) if leads else ()
        self._answer_join(token, member, members=members)
        self._do(self._session(member))

    # -- SyncGroup -----------------------------------------------------------------------------

    @_take.register
    def _on_sync(self, sync: Sync) -> None:
        refusal = self._refuse_sync(sync)
        if refusal is not ErrorCode.NONE:
            self._do(Answer(sync.token, SyncAnswer(refusal)))
            return
        member = self.roster[sync.member_id]
        self._unsynced.discard(member.member_id)
        self._give_up_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is STABLE:
            self._answer_sync(member, sync.token)
            return
        member.syncing = sync.token
        self._do(StopTimer(Timer(TimerKind.SESSION, member.member_id)))
        if member.member_id == self.roster.leader and self._assigning is None:
            self._assigning = self._store(
                {one.member_id: sync.assignments.get(one.member_id, b"") for one in self.roster}
            )

    def _refuse_sync(self, sync: Sync) -> ErrorCode:
        refusal = self._refuse_member(sync.member_id, sync.instance_id, sync.generation)
        if refusal is not ErrorCode.NONE:
            return refusal
        if sync.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if sync.protocol_name not in (None, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    def _sync_time_is_up(self) -> None:
        late = [member for member in self.roster if member.member_id in self._unsynced]
        for member in late:
            self._dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if late:
            names = ", ".join(member.member_id for member in late)
            self._after_losing(f"members that did not send SyncGroup: {names}")

    def _assigned(self, assignments: Mapping[str, bytes], error: ErrorCode) -> None:
        self._assigning = None
        if error is not ErrorCode.NONE:
            self._fail_syncs(error)
            self._rebalance(f"the assignment could not be stored: {error.name}")
            return
        self._become(STABLE)
        self.roster.assign(assignments)
        for member in self.roster:
            if member.syncing is not None:
                token, member.syncing = member.syncing, None
                self._answer_sync(member, token)

    def _answer_sync(self, member: Member, token: Token) -> None:
        answer = SyncAnswer(
            ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment
        )
        self._do(Answer(token, answer), self._session(member))

    def _fail_syncs(self, error: ErrorCode) -> None:
        self.roster.assign({})
        for member in self.roster:
            if member.syncing is not None:
                self._give_up_sync(member, error)
                self._do(self._session(member))

    # -- Heartbeat, LeaveGroup, time -----------------------------------------------------------

    @_take.register
    def _on_heartbeat(self, beat: Heartbeat) -> None:
        refusal = self._refuse_member(beat.member_id, beat.instance_id, beat.generation)
        if refusal is ErrorCode.NONE:
            refusal = HEARTBEAT_ANSWERS[self.state]
            member = self.roster[beat.member_id]
            if member.joining is None and member.syncing is None:
                self._do(self._session(member))
        self._do(Answer(beat.token, refusal))

    @_take.register
    def _on_leave(self, leave: Leave) -> None:
        gone: list[str] = []
        errors = [self._leave(leaving, gone) for leaving in leave.members]
        if gone:
            self._after_losing("; ".join(gone))
        elif self.state is PREPARING:
            self._rebalance("")
        self._do(Answer(leave.token, Left(tuple(errors))))

    def _leave(self, leaving: Leaving, gone: list[str]) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id, static = leaving.member_id, self.roster.of_instance(leaving.instance_id)
        if member_id == NO_MEMBER and static is not None:
            member_id = static.member_id
        if member_id in self.pending:
            self._drop_pending(member_id)
            return ErrorCode.NONE
        refusal = self._refuse_member(member_id, leaving.instance_id)
        if refusal is ErrorCode.NONE:
            self._dismiss(self.roster[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
            gone.append(f"member {member_id} left" + _in_brackets(leaving.reason))
        return refusal

    @_take.register
    def _on_timer(self, fired: TimerFired) -> None:
        kind, member_id = fired.timer
        if kind is TimerKind.JOIN and self.state is PREPARING:
            self._join_time_is_up()
        elif kind is TimerKind.SYNC and self.state in (COMPLETING, STABLE):
            self._sync_time_is_up()
        elif kind is TimerKind.PENDING and member_id in self.pending:
            del self.pending[member_id]
            if self.state is PREPARING:
                self._rebalance("")
        elif kind is TimerKind.SESSION and member_id in self.roster:
            member = self.roster[member_id]
            self._dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._after_losing(f"member {member_id} timed out after {member.session_timeout_ms} ms")

    @_take.register
    def _on_stored(self, stored: Stored) -> None:
        if self._assigning is not None and stored.ticket == self._assigning.ticket:
            self._assigned(self._assigning.assignments, stored.error)
        elif stored.ticket in self._replacing:
            self._replaced(self._replacing.pop(stored.ticket), stored.error)

    # -- helpers ---------------------------------------------------------------------------

    def _refuse_member(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> ErrorCode:
        """Return why this is not a member of this generation; NONE if it is."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        refusal = self.roster.refusal(member_id, instance_id)
        if refusal is not ErrorCode.NONE:
            return refusal
        if generation is not None and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _dismiss(self, member: Member, error: ErrorCode) -> None:
        """Remove a member, and respond to its waiting requests."""
        self.roster.remove(member)
        self._unsynced.discard(member.member_id)
        self._do(StopTimer(Timer(TimerKind.SESSION, member.member_id)))
        self._give_up_join(member, error)
        self._give_up_sync(member, error)

    def _after_losing(self, reason: str) -> None:
        if self.state in (PREPARING, COMPLETING, STABLE):
            self._rebalance(reason)

    def _give_up_join(self, member: Member, error: ErrorCode) -> None:
        if member.joining is not None:
            token, member.joining = member.joining, None
            self._do(Answer(token, JoinAnswer(error, member.member_id)))

    def _give_up_sync(self, member: Member, error: ErrorCode) -> None:
        if member.syncing is not None:
            token, member.syncing = member.syncing, None
            self._do(Answer(token, SyncAnswer(error)))

    def _refuse_join(self, join: Join, error: ErrorCode, member_id: str | None = None) -> None:
        answered = join.member_id if member_id is None else member_id
        self._do(Answer(join.token, JoinAnswer(error, answered)))

    def _answer_join(
        self,
        token: Token,
        member: Member,
        *,
        leader: str | None = None,
        members: tuple[MemberView, ...] = (),
        skip_assignment: bool = False,
    ) -> None:
        """Respond to a member's JoinGroup; `leader` may name another leader (see above)."""
        answer = JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.roster.leader if leader is None else leader,
            members,
            skip_assignment,
        )
        self._do(Answer(token, answer))

    def _store(self, assignments: Mapping[str, bytes]) -> StoreGroup:
        self._last_ticket += 1
        effect = StoreGroup(self._last_ticket, assignments)
        self._do(effect)
        return effect

    def _session(self, member: Member) -> SetTimer:
        return SetTimer(Timer(TimerKind.SESSION, member.member_id), member.session_timeout_ms)

    def _become(self, state: GroupState) -> None:
        assert state in NEXT_STATES[self.state], (self.state, state)
        self.state = state

    def _do(self, *effects: Effect) -> None:
        self._out.extend(effects)


def _in_brackets(reason: str) -> str:
    return f" ({reason})" if reason else ""
