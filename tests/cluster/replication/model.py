"""A partition on three brokers and its controller, small enough to try everything that can happen.

The rules are those of the broker, imported: which replicas count and may join, how far is
committed, where logs part, where a follower cuts. Around them stands the least of a cluster that
shows them wrong:

- A record is known by its offset and leader epoch; a log is the epochs of its records.
- A follower makes what it fetches durable within the fetch (its position is the durable end), so a
  crash takes nothing of it. A leader's records of its present epoch may go in a crash until they
  are acknowledged.
- A fetch is one step, and brings one record. What a delayed response would bring is what an earlier
  fetch brought; one that is lost leaves its position at the leader (the step `note`).
- Orders of the controller come late, are left out, or never come. A deposed leader goes on.
- A broker's registration goes when its session is over, whether it lives or not. A registration
  after that is another broker epoch. A disk is replaced only outside the in-sync set.
- The controller removes a broker that is gone from the in-sync set at once, unless it is the last.
  A member that leaves by the leader's proposal is written at once, and the leader hears of it late;
  one that is to join counts from the proposal on, and is written or refused late.

All of this is finite: no count of faults is needed. Things that are never looked at again are made
equal (`settled`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from plog.cluster.replication import isr
from plog.storage.leader_epochs import EpochEnd, EpochStart, LeaderEpochs

BROKERS = (0, 1, 2)
EVERY = 0b111
NO_LEADER = -1
NONE = -1
"""No position, no proposal, no epoch."""

Log = tuple[int, ...]
Step = tuple[str, "State"]
ASKED, ASKED_OF_EARLIER, WRITTEN = 1, 2, 3
"""Of a proposal: asked; asked with an earlier registration of the one that joins; written."""
MEMBERS = [tuple(b for b in BROKERS if mask >> b & 1) for mask in range(EVERY + 1)]


class Lead(NamedTuple):
    """What the leader of an epoch knows. Sets of brokers are bit masks.

    Attributes:
        isr: as it knows the in-sync set.
        proposed: what it has asked for and heard no answer to; NONE.
        asked: how far that is.
        positions: of followers, by broker.
        current: whose position is from its present registration.
    """

    hw: int
    isr: int
    proposed: int
    asked: int
    positions: tuple[int, ...]
    current: int


class Replica(NamedTuple):
    """A broker: the leader epoch that it has heard of last, its log, and what it leads by.

    Attributes:
        waits: records that it has taken and not acknowledged, though it was deposed since. Only a
            broken rule has any: see `Rules.answers_old_waits`.
    """

    epoch: int
    log: Log
    lead: Lead | None = None
    waits: frozenset[tuple[int, int]] = frozenset()


class State(NamedTuple):
    """Everything.

    Attributes:
        leader: as it is written.
        isr: as it is written.
        alive: those that are registered.
        orders: leader and in-sync set of each leader epoch.
        made: how many records there were.
        acked: offset and epoch of each acknowledged record.
    """

    leader: int
    isr: int
    alive: int
    orders: tuple[tuple[int, int], ...]
    made: int
    acked: frozenset[tuple[int, int]]
    replicas: tuple[Replica, ...]


FORGOTTEN = (-2, 0)
"""Instead of orders that no broker can hear any more."""


@dataclass(frozen=True)
class Rules:
    """What can be broken, one at a time, to see that it is found."""

    counts_proposed: bool = True
    """All that may be in the written set by now count: the maximal in-sync set."""
    forgets_positions: bool = True
    """A position counts in the leader epoch of the fetch that brought it."""
    asks_for_registration: bool = True
    """One that joins has fetched in its present registration."""
    elects_in_sync: bool = True
    """Only a member of the in-sync set may lead."""
    answers_old_waits: bool = False
    """A wait of an earlier leadership ends well when the high watermark passes its offset."""
    knows_epoch_start: bool = True
    """One that joins has all below the start of the leader's epoch."""
    goes_back_by_epochs: bool = True
    """A follower cuts where the logs part; else it cuts to the leader's end only."""


# --- the broker's rules on masks ------------------------------------------------------------------


@cache
def maximal(written: int, proposed: int) -> int:
    """See `isr.maximal`."""
    counted = isr.maximal(frozenset(MEMBERS[written]), frozenset(MEMBERS[proposed]))
    return sum(1 << broker for broker in counted)


def start_of(epoch: int, log: Log) -> int:
    """Return where an epoch starts in the log of its leader."""
    return sum(1 for one in log if one < epoch)


@cache
def epochs_of(log: Log, led: int = NONE) -> LeaderEpochs:
    """Return the epochs of a log, with the one that its broker leads by."""
    entries = [EpochStart(epoch, log.index(epoch)) for epoch in sorted(set(log))]
    if led != NONE and led not in log:
        entries = [*(e for e in entries if e.start_offset < len(log)), EpochStart(led, len(log))]
    return LeaderEpochs(entries)


@cache
def divergence(leader: Log, led: int, log: Log) -> EpochEnd | None:
    """See `LeaderEpochs.divergence`."""
    last = log[-1] if log else NONE
    return epochs_of(leader, led).divergence(last, len(log), len(leader))


@cache
def cut(log: Log, diverging: EpochEnd) -> Log:
    """Return what a follower keeps of its log."""
    return log[: epochs_of(log).end_in_common(diverging, len(log))]


# --- steps ----------------------------------------------------------------------------------------


def beginning() -> State:
    """Everything is empty; broker 0 leads in epoch 0, and all have heard so."""
    lead = Lead(0, EVERY, NONE, 0, (NONE,) * 3, 0)
    replicas = tuple(Replica(0, (), lead if broker == 0 else None) for broker in BROKERS)
    return State(0, EVERY, EVERY, ((0, EVERY),), 0, frozenset(), replicas)


def with_replica(state: State, broker: int, replica: Replica) -> State:
    """Return the state with one broker's replica replaced."""
    replicas = list(state.replicas)
    replicas[broker] = replica
    return state._replace(replicas=tuple(replicas))


@dataclass(frozen=True)
class Model:
    """All steps from a state, within bounds.

    Args:
        records: that are ever made.
        epochs: leader epochs.
    """

    records: int
    epochs: int
    rules: Rules = Rules()

    def steps(self, state: State) -> Iterator[Step]:
        """Yield each step's name and the state after it."""
        for broker in BROKERS:
            replica = state.replicas[broker]
            if replica.lead is not None:
                yield from self._as_leader(state, broker, replica, replica.lead)
            elif replica.epoch >= 0:
                yield from self._as_follower(state, broker, replica)
            if state.alive >> broker & 1:
                yield from self._as_registered(state, broker, replica)
            else:
                yield from self._as_gone(state, broker, replica)

    def _is_newest(self, state: State, broker: int) -> bool:
        replica = state.replicas[broker]
        return state.leader == broker and replica.epoch == len(state.orders) - 1

    def _as_leader(self, state: State, broker: int, replica: Replica, lead: Lead) -> Iterator[Step]:
        if state.made < self.records:
            record = (len(replica.log), replica.epoch)
            waits = replica.waits | {record} if self.rules.answers_old_waits else replica.waits
            longer = Replica(
                replica.epoch,
                (*replica.log, replica.epoch),
                self._commit(broker, lead, len(replica.log) + 1),
                waits,
            )
            yield (
                f"produce {broker}",
                with_replica(state, broker, longer)._replace(made=state.made + 1),
            )
        if (record := self._unacknowledged(state, replica, lead)) is not None:
            yield f"acknowledge {broker}", state._replace(acked=state.acked | {record})
        if lead.asked == WRITTEN:
            heard = lead._replace(isr=lead.proposed, proposed=NONE, asked=0)
            yield f"hear {broker}", self._led(state, broker, replica, heard)
        elif self._is_newest(state, broker):
            if lead.proposed != NONE:
                yield self._answered(state, broker, replica, lead)
            else:
                yield from self._proposals(state, broker, replica, lead)

    def _unacknowledged(self, state: State, replica: Replica, lead: Lead) -> tuple[int, int] | None:
        """Return the first record that may be acknowledged. Here the leader makes it durable."""
        for offset in range(lead.hw):
            record = offset, replica.log[offset]
            if record not in state.acked:
                return record
        for record in sorted(replica.waits):
            if record[0] < lead.hw and record not in state.acked:
                return record
        return None

    def _proposals(self, state: State, broker: int, replica: Replica, lead: Lead) -> Iterator[Step]:
        start = self._start(replica)
        for other in BROKERS:
            if other == broker:
                continue
            bit = 1 << other
            if lead.isr & bit:
                fewer = lead.isr & ~bit
                asked = lead._replace(proposed=fewer, asked=WRITTEN)
                after = state._replace(isr=fewer)
                yield f"shrink {broker} {MEMBERS[fewer]}", self._led(after, broker, replica, asked)
            elif isr.may_join(lead.positions[other], lead.hw, start) and (
                lead.positions[other] != NONE
            ):
                is_current = lead.current & bit
                asked = lead._replace(
                    proposed=lead.isr | bit, asked=ASKED if is_current else ASKED_OF_EARLIER
                )
                yield f"propose {broker} {other}", self._led(state, broker, replica, asked)

    def _start(self, replica: Replica) -> int:
        knows = self.rules.knows_epoch_start
        return start_of(replica.epoch, replica.log) if knows else 0

    def _answered(self, state: State, broker: int, replica: Replica, lead: Lead) -> Step:
        """A follower is to join: the controller writes it or refuses."""
        is_alive = not lead.proposed & ~state.isr & ~state.alive
        may_join = is_alive and lead.asked == ASKED
        if self.rules.asks_for_registration and not may_join:
            refused = lead._replace(proposed=NONE, asked=0)
            return f"refuse {broker}", self._led(state, broker, replica, refused)
        grown = lead._replace(isr=lead.proposed, proposed=NONE, asked=0)
        after = state._replace(isr=lead.proposed)
        return f"grow {broker} {MEMBERS[lead.proposed]}", self._led(after, broker, replica, grown)

    def _led(self, state: State, broker: int, replica: Replica, lead: Lead) -> State:
        led = replica._replace(lead=self._commit(broker, lead, len(replica.log)))
        return with_replica(state, broker, led)

    def _commit(self, broker: int, lead: Lead, end: int) -> Lead:
        counts = self.rules.counts_proposed and lead.proposed != NONE
        counted = maximal(lead.isr, lead.proposed) if counts else lead.isr
        positions = [lead.positions[one] for one in MEMBERS[counted] if one != broker]
        hw = isr.committed(lead.hw, end, positions)
        return lead if hw == lead.hw else lead._replace(hw=hw)

    def _as_follower(self, state: State, broker: int, replica: Replica) -> Iterator[Step]:
        leader = state.orders[replica.epoch][0]
        if leader < 0 or leader == broker:
            return
        source = state.replicas[leader]
        if source.epoch != replica.epoch or source.lead is None:
            return  # it refuses fetches of another epoch
        log, end = replica.log, len(replica.log)
        if self.rules.goes_back_by_epochs:
            diverging = divergence(source.log, source.epoch, log)
        else:
            diverging = EpochEnd(NONE, len(source.log)) if end > len(source.log) else None
        if diverging is not None:
            kept = cut(log, diverging) if self.rules.goes_back_by_epochs else log[: len(source.log)]
            yield f"cut {broker}", with_replica(state, broker, replica._replace(log=kept))
            return
        positions = list(source.lead.positions)
        positions[broker] = end
        noted = source.lead._replace(
            positions=tuple(positions), current=source.lead.current | 1 << broker
        )
        after = self._led(state, leader, source, noted)
        yield f"note {broker}", after
        if end < len(source.log):
            fetched = replica._replace(log=source.log[: end + 1])
            yield f"fetch {broker}", with_replica(after, broker, fetched)

    def _as_registered(self, state: State, broker: int, replica: Replica) -> Iterator[Step]:
        for epoch in range(replica.epoch + 1, len(state.orders)):
            heard = self._ordered(broker, replica, epoch, state.orders[epoch])
            yield f"hear {broker} epoch {epoch}", with_replica(state, broker, heard)
        if broker != state.leader >= 0 and state.isr >> broker & 1 and self._may_elect(state):
            yield f"elect {broker}", self._elected(state, broker, state.isr)
        alive = state.alive & ~(1 << broker)
        others = state.isr & ~(1 << broker)
        name = f"lose the session {broker}"
        if state.leader != broker and (not state.isr >> broker & 1 or not others):
            yield name, state._replace(alive=alive)
        elif self._may_elect(state):
            gone = state._replace(alive=alive)
            kept = others or state.isr
            if state.leader != broker:
                yield name, self._elected(gone, state.leader, kept)
                return
            candidates = others & alive
            if not candidates and not self.rules.elects_in_sync:
                candidates = alive
            for candidate in MEMBERS[candidates] or (NO_LEADER,):
                in_sync = candidate == NO_LEADER or kept >> candidate & 1
                yield name, self._elected(gone, candidate, kept if in_sync else 1 << candidate)

    def _may_elect(self, state: State) -> bool:
        return len(state.orders) < self.epochs

    def _elected(self, state: State, leader: int, members: int) -> State:
        return state._replace(leader=leader, isr=members, orders=(*state.orders, (leader, members)))

    def _ordered(
        self, broker: int, replica: Replica, epoch: int, order: tuple[int, int]
    ) -> Replica:
        leader, members = order
        if leader != broker:
            return replica._replace(epoch=epoch, lead=None)
        before = replica.lead
        lead = Lead(0, members, NONE, 0, (NONE,) * 3, 0)
        if before is not None:
            lead = lead._replace(hw=before.hw)
            if not self.rules.forgets_positions:
                lead = lead._replace(positions=before.positions, current=before.current)
        lead = self._commit(broker, lead, len(replica.log))
        return replica._replace(epoch=epoch, lead=lead)

    def _as_gone(self, state: State, broker: int, replica: Replica) -> Iterator[Step]:
        registered = state._replace(
            alive=state.alive | 1 << broker, replicas=without_registration(state.replicas, broker)
        )
        returns = state.leader == NO_LEADER and state.isr >> broker & 1
        if returns and self._may_elect(state):
            registered = self._elected(registered, broker, state.isr)
        if not returns or self._may_elect(state):
            epoch = len(registered.orders) - 1
            if epoch > replica.epoch:
                replica = self._ordered(broker, replica, epoch, registered.orders[epoch])
            yield f"register {broker}", with_replica(registered, broker, replica)
        replica = state.replicas[broker]
        if replica.lead is not None:
            durable = start_of(replica.epoch, replica.log)
            for offset, epoch in enumerate(replica.log):
                if (offset, epoch) in state.acked:
                    durable = max(durable, offset + 1)
            for end in range(durable, len(replica.log) + 1):
                yield (
                    f"crash {broker} to {end}",
                    with_replica(state, broker, Replica(NONE, replica.log[:end])),
                )
        if not state.isr >> broker & 1 and (replica.log or replica.epoch >= 0):
            yield f"replace the disk {broker}", with_replica(state, broker, Replica(NONE, ()))

    # -- states that are alike ---------------------------------------------------------------

    def settled(self, state: State) -> State:
        """Return the state without what can never matter again."""
        newest = len(state.orders) - 1
        replicas = []
        for broker, replica in enumerate(state.replicas):
            if replica.lead is not None:
                lead = self._settled_lead(state, broker, replica, replica.lead)
                replica = Replica(replica.epoch, replica.log, lead, replica.waits)
            elif not state.alive >> broker & 1 and replica.epoch >= 0:
                leader = state.orders[replica.epoch][0]
                source = state.replicas[leader]
                if leader < 0 or source.epoch != replica.epoch or source.lead is None:
                    replica = Replica(NONE, replica.log, None, replica.waits)  # nothing to fetch
            replicas.append(replica)
        orders = tuple(
            order
            if epoch == newest
            or any(
                one.epoch == epoch or (state.alive >> broker & 1 and one.epoch < epoch)
                for broker, one in enumerate(replicas)
            )
            else FORGOTTEN
            for epoch, order in enumerate(state.orders)
        )
        return State(
            state.leader, state.isr, state.alive, orders, state.made, state.acked, tuple(replicas)
        )

    def _settled_lead(self, state: State, broker: int, replica: Replica, lead: Lead) -> Lead:
        hw, written, proposed, asked, positions, current = lead
        is_newest = replica.epoch == len(state.orders) - 1
        if not is_newest and proposed != NONE and asked != WRITTEN:
            written, proposed, asked = (
                maximal(written, proposed),
                NONE,
                0,
            )  # it will not be answered any more
        counted = written if proposed == NONE else maximal(written, proposed)
        if not is_newest and not asked:
            for one in MEMBERS[counted]:
                behind = one != broker and positions[one] <= hw
                if behind and state.replicas[one].epoch != replica.epoch:
                    return Lead(hw, EVERY, NONE, 0, (NONE,) * 3, 0)  # it commits nothing any more
        start = self._start(replica)
        kept = []
        for one, position in enumerate(positions):
            if counted >> one & 1:
                matters = position > hw
            else:
                matters = is_newest and isr.may_join(position, hw, start)
            kept.append(position if matters and one != broker else NONE)
            if kept[one] == NONE or written >> one & 1 or not is_newest:
                current &= ~(1 << one)
        return Lead(hw, written, proposed, asked, tuple(kept), current)


def without_registration(replicas: tuple[Replica, ...], broker: int) -> tuple[Replica, ...]:
    """Return replicas whose leaders know a broker's position from an earlier registration."""
    return tuple(
        replica
        if replica.lead is None
        else replica._replace(lead=_of_earlier(replica.lead, 1 << broker))
        for replica in replicas
    )


def _of_earlier(lead: Lead, bit: int) -> Lead:
    joins = lead.asked == ASKED and lead.proposed & ~lead.isr & bit
    return lead._replace(
        current=lead.current & ~bit, asked=ASKED_OF_EARLIER if joins else lead.asked
    )


# --- what must hold -------------------------------------------------------------------------------


def lost(state: State) -> tuple[int, int] | None:
    """Return an acknowledged record that a member of the written in-sync set does not have.

    Each of them may be the next leader.
    """
    for record in state.acked:
        offset, epoch = record
        for member in MEMBERS[state.isr]:
            log = state.replicas[member].log
            if offset >= len(log) or log[offset] != epoch:
                return record
    return None
