"""A consumer group of KIP-848 as a pure machine: requests and timers in, effects out.

Owns every decision of one group: its members, its epochs, the assignment, and the response to each
request. Its state is a `Table` of records. Each change is a record that takes effect at once; no
response shows it before it is committed. If records cannot be committed, the caller rebuilds the
group from the committed ones.

Three steps follow every heartbeat. A change of the member's subscription, or of its topics, starts
a new group epoch. A new epoch gets a new assignment. The member then takes the next step towards
its assignment (`reconciliation`). `classic_members` handles members of the classic protocol, so
that a group's clients can be upgraded one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatchmethod

from plog.coordinator import classic_members
from plog.coordinator.consumer_core import GroupCore
from plog.coordinator.consumer_events import (
    Beat,
    ConsumerEffect,
    ConsumerEvent,
    Resolution,
)
from plog.coordinator.consumer_table import (
    NO_TIMEOUT,
    Key,
    Kind,
    Subscriber,
)
from plog.coordinator.group_events import (
    NO_GENERATION,
    NO_MEMBER,
    Answer,
    BeatAnswer,
    Heartbeat,
    Join,
    Leave,
    StopTimer,
    Sync,
    Timer,
    TimerFired,
    TimerKind,
)
from plog.coordinator.reconciliation import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    Current,
    MemberState,
)
from plog.coordinator.topic_regex import Pattern
from plog.errors import ErrorCode, KafkaError, error_for

EPOCHS_SINCE = 9
"""From this version on, OffsetCommit has the member's epoch."""


@dataclass(slots=True)
class ConsumerGroup(GroupCore):
    """One group. Only the owner's thread may call it."""

    # -- events ------------------------------------------------------------------------------

    def on(self, event: ConsumerEvent) -> list[ConsumerEffect]:
        """Process an event; return the effects to execute, in order."""
        self._take(event)
        return self.effects()

    @singledispatchmethod
    def _take(self, event: ConsumerEvent) -> None:
        raise TypeError(f"not an event of a consumer group: {event!r}")

    # -- ConsumerGroupHeartbeat --------------------------------------------------------------

    @_take.register
    def _on_beat(self, beat: Beat) -> None:
        try:
            answer = self._beat(beat)
        except KafkaError as refusal:
            answer = BeatAnswer(ErrorCode(refusal.code), str(refusal))
        self.do(Answer(beat.token, answer))

    def _beat(self, beat: Beat) -> BeatAnswer:
        if self.is_dead:
            raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being deleted")
        if beat.epoch in (LEAVING_EPOCH, AWAY_EPOCH):
            return self._leave(beat)
        self._check(beat)
        static = self.member_of_instance(beat.instance_id)
        if static is not None and static != beat.member_id:
            self.replace(static, beat.member_id)
        before = self.table.current(beat.member_id)
        self.follow(beat.member_id, self._told(beat))
        current = self.reconcile(beat.member_id, beat.owned)
        self.start_session(beat.member_id)
        is_news = beat.epoch == JOINING_EPOCH or beat.is_full or current.assigned != before.assigned
        if beat.owned == current.assigned:
            self.unheard.discard(beat.member_id)
        elif is_news:
            self.unheard.add(beat.member_id)
        # It may have missed the response: librdkafka repeats a slow heartbeat unchanged, and so
        # without its owned partitions.
        is_told = is_news or beat.member_id in self.unheard
        return BeatAnswer(
            member_id=beat.member_id,
            epoch=current.epoch,
            interval_ms=self.rules.heartbeat_interval_ms,
            assigned=current.assigned if is_told else None,
        )

    def _check(self, beat: Beat) -> None:
        """Validate a heartbeat. Raises KafkaError."""
        if beat.assignor is not None and beat.assignor not in self.rules.assignors:
            known = ", ".join(self.rules.assignors)
            raise error_for(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"unsupported assignor {beat.assignor[:100]!r}: use one of {known}",
            )
        static = self.member_of_instance(beat.instance_id)
        is_other = static is not None and static != beat.member_id
        if beat.epoch == JOINING_EPOCH:
            if static is None and beat.member_id not in self.table.members:
                self.check_room()
            if static is not None and is_other and not self._is_released(static):
                raise error_for(ErrorCode.UNRELEASED_INSTANCE_ID, _in_use(beat, static))
        elif static is not None and is_other:
            raise error_for(ErrorCode.FENCED_INSTANCE_ID, _in_use(beat, static))
        elif static is None and beat.instance_id is not None:
            raise error_for(ErrorCode.UNKNOWN_MEMBER_ID, _no_member_with(beat))
        else:
            self._check_epoch(beat)
        if beat.regex and beat.regex not in self.table.wanted_regexes:
            Pattern(beat.regex)

    def _is_released(self, static: str) -> bool:
        """Return whether another client may replace a static member.

        A classic static member leaves without a request when it restarts.
        """
        is_classic = self.table.members[static].classic is not None
        return is_classic or self.table.current(static).epoch == AWAY_EPOCH

    def _check_epoch(self, beat: Beat) -> None:
        if beat.member_id not in self.table.members:
            raise error_for(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown member id {beat.member_id}")
        current = self.table.current(beat.member_id)
        if beat.epoch == current.epoch:
            return
        # It may have missed the response with its epoch; it uses only its own partitions.
        missed = beat.epoch == current.previous_epoch and beat.epoch < current.epoch
        if not (missed and beat.owned is not None and beat.owned <= current.assigned):
            raise error_for(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"the member is at epoch {current.epoch}, not {beat.epoch}: it must join again",
            )

    def _told(self, beat: Beat) -> Subscriber:
        """Return the member updated from a heartbeat."""
        known = self.table.members.get(beat.member_id, Subscriber())
        timeout_ms = beat.rebalance_timeout_ms
        return Subscriber(
            instance_id=known.instance_id if beat.instance_id is None else beat.instance_id,
            rack_id=known.rack_id if beat.rack_id is None else beat.rack_id,
            client_id=beat.client_id,
            client_host=beat.client_host,
            topics=known.topics if beat.topics is None else beat.topics,
            regex=known.regex if beat.regex is None else beat.regex or None,
            rebalance_timeout_ms=(
                known.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms
            ),
            assignor=known.assignor if beat.assignor is None else beat.assignor,
        )

    def _leave(self, beat: Beat) -> BeatAnswer:
        member_id = beat.member_id
        if beat.instance_id is not None:
            static = self.member_of_instance(beat.instance_id)
            if static is None:
                raise error_for(ErrorCode.UNKNOWN_MEMBER_ID, _no_member_with(beat))
            if static != member_id:
                raise error_for(ErrorCode.FENCED_INSTANCE_ID, _in_use(beat, static))
        elif member_id not in self.table.members:
            raise error_for(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown member id {member_id}")
        if beat.epoch == AWAY_EPOCH and beat.instance_id is not None:
            current = self.table.current(member_id)
            away = Current(AWAY_EPOCH, current.epoch, MemberState.STABLE, current.assigned)
            self.write(Key(Kind.CURRENT, member_id), away)
            self.do(StopTimer(Timer(TimerKind.REVOKE, member_id)))
        else:
            self.remove([member_id], f"member {member_id} left")
        return BeatAnswer(member_id=member_id, epoch=beat.epoch)

    # -- other events --------------------------------------------------------------------------

    @_take.register
    def _on_resolution(self, found: Resolution) -> None:
        self.take_resolution(found)

    @_take.register
    def _on_timer(self, fired: TimerFired) -> None:
        kind, member_id = fired.timer
        member = self.table.members.get(member_id)
        if member is None or self.is_dead:
            return
        if kind is TimerKind.SESSION:
            why = f"timed out after {self.session_ms(member)} ms"
        elif kind is TimerKind.REVOKE:
            if self.table.current(member_id).state is not MemberState.UNREVOKED_PARTITIONS:
                return
            why = f"did not revoke its partitions within {member.rebalance_timeout_ms} ms"
        else:
            why = f"did not finish {kind.value} within {member.rebalance_timeout_ms} ms"
        self.remove([member_id], f"member {member_id} {why}")

    # -- members of the classic protocol -------------------------------------------------------

    @_take.register
    def _on_join(self, join: Join) -> None:
        classic_members.on_join(self, join)

    @_take.register
    def _on_sync(self, sync: Sync) -> None:
        classic_members.on_sync(self, sync)

    @_take.register
    def _on_heartbeat(self, beat: Heartbeat) -> None:
        classic_members.on_heartbeat(self, beat)

    @_take.register
    def _on_leave(self, leave: Leave) -> None:
        classic_members.on_leave(self, leave)

    # -- commits -------------------------------------------------------------------------------

    def refuse_commit(self, member_id: str, epoch: int, version: int | None) -> ErrorCode:
        """Return the error of an offset commit; NONE to accept it.

        Args:
            version: version of OffsetCommit; None in a transaction.
        """
        if self.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.table.members:
            return ErrorCode.NONE
        if version is None and epoch == NO_GENERATION and member_id == NO_MEMBER:
            return ErrorCode.NONE
        refusal = self.refuse_epoch(member_id, epoch)
        member = self.table.members.get(member_id)
        if member is not None and member.classic is None:
            if version is not None and version < EPOCHS_SINCE:
                return ErrorCode.UNSUPPORTED_VERSION
            if version is None and refusal is ErrorCode.STALE_MEMBER_EPOCH:
                return ErrorCode.ILLEGAL_GENERATION  # TxnOffsetCommit has no error for epochs
        return refusal

    def refuse_epoch(self, member_id: str, epoch: int) -> ErrorCode:
        """Return why this is not a member at this epoch; NONE if it is."""
        member = self.table.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self.table.current(member_id).epoch:
            return ErrorCode.NONE
        is_classic = member.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def _in_use(beat: Beat, member_id: str) -> str:
    return f"instance id {beat.instance_id!r} is used by member {member_id}"


def _no_member_with(beat: Beat) -> str:
    return f"no member has instance id {beat.instance_id!r}"
