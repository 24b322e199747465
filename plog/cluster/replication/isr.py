"""The in-sync set of a partition, as its leader keeps it, and what it commits: pure.

Owns which replicas count, may join and are late, and how far a partition is committed (KIP-497,
KIP-903, KIP-966). A follower's position is the end of its durable records. Reads no clock and sends
nothing: fetches, appends, answers and times in, the high watermark and proposals out. A proposal
goes to the controller, which answers it or gives the partition another leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

NO_POSITION: Final = -1
"""Of a follower that has not fetched in this leader epoch."""
NO_BROKER_EPOCH: Final = -1
NEVER: Final = -1
"""As the time of what has not happened in this leader epoch."""
MOST_TICKS_LATE: Final = 2
"""A tick that comes later than this many intervals after the one before: the process was paused."""


# --- the rules ------------------------------------------------------------------------------------


def maximal(isr: frozenset[int], proposed: frozenset[int]) -> frozenset[int]:
    """Return the replicas that count: those of the written set, and of the one that may be by now.

    The next leader is one of them, whether the proposal was accepted or not.
    """
    return isr | proposed


def committed(high_watermark: int, log_end_offset: int, positions: Iterable[int]) -> int:
    """Return the end of the committed records: all replicas that count have those below.

    Args:
        high_watermark: so far. It never goes back in a leader epoch.
        positions: of all that count, without the leader's.
    """
    return max(high_watermark, min([log_end_offset, *positions]))


def shown_to_followers(high_watermark: int, durable_end: int) -> int:
    """Return the high watermark that a leader's answers to followers have.

    A follower's readers see no more than what survives a loss of power here, too: the follower may
    not be in sync yet, and then this broker alone may lead next.
    """
    return min(high_watermark, durable_end)


def may_join(position: int, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower has all that is, or was ever, committed.

    The leader of an epoch may not know yet what the one before has committed. All of it lies below
    the start of its own epoch (KAFKA-7128).
    """
    return position >= max(high_watermark, epoch_start)


def is_fresh(confirmed_ms: Iterable[int], now_ms: int, within_ms: int) -> bool:
    """Return whether a leader knows that it was one so lately.

    A process that was stopped does not know that another broker leads by now. That one is a member
    of the in-sync set, and has not fetched from this one since.

    Args:
        confirmed_ms: `Follower.confirmed_ms` of all that count. Without any, no other broker can
            lead.
    """
    return all(one != NEVER and now_ms - one <= within_ms for one in confirmed_ms)


def fresh_within_ms(lag_time_ms: int, session_timeout_ms: int, fetch_wait_ms: int) -> int:
    """Return how old a follower's fetch may be, for its leader to count as one.

    No other broker is elected before the session of a stopped one has ended, of which a part may
    have passed before the stop. An idle follower fetches each `fetch_wait_ms`, and is confirmed by
    the fetch after that.
    """
    return min(lag_time_ms, max(session_timeout_ms // 2, 4 * fetch_wait_ms))


# --- the machine ----------------------------------------------------------------------------------


class Outcome(Enum):
    """What the controller says of a proposal, or what became of the question."""

    ACCEPTED = auto()
    INELIGIBLE = auto()
    """A broker that was to join is not alive, or has restarted since. Nothing was written."""
    SUPERSEDED = auto()
    """The controller has another state: an order with a later leader epoch follows."""
    UNKNOWN = auto()
    """There was no answer, or not by the controller. The same question has to be asked again."""


class Proposal(NamedTuple):
    """A set that the controller is asked to write. `members`: broker ids with broker epochs."""

    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]

    @property
    def isr(self) -> frozenset[int]:
        """The broker ids."""
        return frozenset(broker_id for broker_id, _ in self.members)


@dataclass(slots=True)
class Follower:
    """A follower, as its leader knows it. Times are of a clock that goes on in a suspended host.

    Attributes:
        broker_epoch: of the registration under which it has fetched: one that has restarted since
            may have lost what it had.
        position: its log has everything below, durably.
        end_before: the leader's log end offset when the fetch before the last one came.
        fetched_ms: when its last fetch came.
        caught_up_ms: when it last had all that the leader had.
        confirmed_ms: it followed in this leader epoch then, or later: when the fetch before its
            last one came. The last one may have waited in a socket while this process was stopped;
            it was sent after the answer to the one before.
    """

    broker_epoch: int = NO_BROKER_EPOCH
    position: int = NO_POSITION
    end_before: int = 0
    fetched_ms: int = 0
    caught_up_ms: int = 0
    confirmed_ms: int = NEVER


@dataclass(slots=True)
class InSyncSet:
    """The in-sync set of a partition that `broker_id` leads.

    Args:
        lag_time_ms: replica.lag.time.max.ms.
        least_in_sync: min.insync.replicas. With fewer members nothing more is committed.
    """

    broker_id: int
    lag_time_ms: int
    least_in_sync: int = 1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: frozenset[int] = frozenset()
    """As it was last known to be written."""
    proposal: Proposal | None = None
    """What the controller was asked and has not answered. It is asked again until it does."""
    epoch_start: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    followers: dict[int, Follower] = field(default_factory=dict)
    _ticked_ms: int = 0
    _resumed_ms: int = 0
    """No follower is blamed for what it did not do before."""

    # -- what it is --------------------------------------------------------------------------

    @property
    def maximal(self) -> frozenset[int]:
        """The replicas that count."""
        return maximal(self.isr, self.isr if self.proposal is None else self.proposal.isr)

    @property
    def is_enough(self) -> bool:
        """Whether so many count that more may be committed."""
        return len(self.maximal) >= self.least_in_sync

    # -- what happens ------------------------------------------------------------------------

    def lead(
        self,
        *,
        leader_epoch: int,
        partition_epoch: int,
        isr: Iterable[int],
        replicas: Iterable[int],
        log_end_offset: int,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        """The controller has given a new leader epoch, to a new leader or to the one that there is.

        What followers had in another epoch counts no more: they may have cut it off.
        """
        if leader_epoch <= self.leader_epoch:
            raise ValueError(f"leader epoch {leader_epoch} after {self.leader_epoch}")
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.isr = frozenset(isr)
        self.proposal = None
        self._ticked_ms = self._resumed_ms = now_ms
        self.epoch_start = self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark
        self.followers = {
            broker_id: Follower(fetched_ms=now_ms, caught_up_ms=now_ms)
            for broker_id in replicas
            if broker_id != self.broker_id
        }
        self._commit()

    def appended(self, log_end_offset: int) -> None:
        """The leader's log has grown."""
        self.log_end_offset = log_end_offset
        self._commit()

    def fetched(self, broker_id: int, broker_epoch: int, position: int, now_ms: int) -> bool:
        """A follower fetches, in this leader epoch; return whether it is one, of its present life.

        What counts is when its request came, not when it was answered: a leader with a slow disk
        would take its followers for late (KAFKA-8733).
        """
        follower = self.followers.get(broker_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        if position >= self.log_end_offset:
            follower.caught_up_ms = now_ms
        elif position >= follower.end_before and broker_epoch == follower.broker_epoch:
            # It has all that there was when it asked before.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        if follower.position != NO_POSITION and broker_epoch == follower.broker_epoch:
            follower.confirmed_ms = follower.fetched_ms
        follower.broker_epoch = broker_epoch
        follower.position = position
        follower.end_before = self.log_end_offset
        follower.fetched_ms = now_ms
        self._commit()
        return True

    def propose_joiner(self, broker_id: int, now_ms: int) -> Proposal | None:
        """Return the proposal by which a follower joins, if it may and nothing else is asked.

        It counts from now on, so it has all that is committed before the answer.
        """
        follower = self.followers.get(broker_id)
        if follower is None or self.proposal is not None or broker_id in self.isr:
            return None
        if not may_join(follower.position, self.high_watermark, self.epoch_start):
            return None
        if not self.is_enough and self._is_behind(follower, now_ms):
            # The high watermark stands still. One that is far behind would join, be late, and
            # leave, again and again (KAFKA-19996).
            return None
        return self._propose(self.isr | {broker_id})

    def tick(self, now_ms: int, interval_ms: int) -> Proposal | None:
        """Look at the time, each `interval_ms`; return the proposal by which late members leave.

        After a pause of the whole process every fetch is old. All members get their time again.
        """
        before_ms, self._ticked_ms = self._ticked_ms, now_ms
        if now_ms - before_ms > MOST_TICKS_LATE * interval_ms:
            self._resumed_ms = now_ms
        late = {broker_id for broker_id in self.isr if self._is_late(broker_id, now_ms)}
        if not late or self.proposal is not None:
            return None
        return self._propose(self.isr - late)

    def answered(
        self,
        proposal: Proposal,
        outcome: Outcome,
        isr: Iterable[int] = (),
        partition_epoch: int = -1,
    ) -> None:
        """The controller has answered a proposal; an answer to another one is ignored.

        Args:
            isr: the set that is written now, if the proposal was accepted.
            partition_epoch: and its version.
        """
        if proposal != self.proposal or outcome in (Outcome.UNKNOWN, Outcome.SUPERSEDED):
            return
        self.proposal = None
        if outcome is Outcome.ACCEPTED:
            self.isr = frozenset(isr)
            self.partition_epoch = partition_epoch
        self._commit()

    # -- how ---------------------------------------------------------------------------------

    def _propose(self, members: frozenset[int]) -> Proposal:
        self.proposal = Proposal(
            self.leader_epoch,
            self.partition_epoch,
            tuple((broker_id, self._broker_epoch_of(broker_id)) for broker_id in sorted(members)),
        )
        self._commit()
        return self.proposal

    def _broker_epoch_of(self, broker_id: int) -> int:
        follower = self.followers.get(broker_id)
        return NO_BROKER_EPOCH if follower is None else follower.broker_epoch

    def _is_late(self, broker_id: int, now_ms: int) -> bool:
        follower = self.followers.get(broker_id)
        if follower is None or follower.position == self.log_end_offset:
            return False
        return self._is_behind(follower, now_ms)

    def _is_behind(self, follower: Follower, now_ms: int) -> bool:
        """Return whether it has lacked some of the leader's records for too long."""
        return now_ms - max(follower.caught_up_ms, self._resumed_ms) > self.lag_time_ms

    def _commit(self) -> None:
        if self.is_enough:
            self.high_watermark = committed(
                self.high_watermark,
                self.log_end_offset,
                positions_of(self.followers, self.maximal - {self.broker_id}),
            )


def positions_of(followers: Mapping[int, Follower], members: Iterable[int]) -> list[int]:
    """Return the positions of members; one that is no replica any more has none."""
    return [
        followers[member].position if member in followers else NO_POSITION for member in members
    ]
