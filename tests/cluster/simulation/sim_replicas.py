"""Replicas that follow and lead: the machines of the broker over models of logs.

`InSyncSet` and `fetch_decisions` are the broker's. The threads around them, disks and the network
are the simulation's. A follower fetches from each leader in turn, one request at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from plog.cluster.control_requests import INCOMPLETE, USABLE
from plog.cluster.controller_events import IsrsProposed, Outcome
from plog.cluster.replication import fetch_decisions as decisions
from plog.cluster.replication.alter_partition import Batch, Proposals
from plog.cluster.replication.alter_partition_messages import found_of, proposed_of
from plog.cluster.replication.fetch_decisions import Answer, Asked, Do, Range
from plog.cluster.replication.isr import InSyncSet, Proposal, shown_to_followers
from plog.cluster.stray_logs import Topics
from plog.errors import ErrorCode
from plog.protocol.messages.replication import LeaderAndIsrPartitionState, LeaderAndIsrRequest
from plog.storage.leader_epochs import UnknownEpoch
from plog.types import TopicPartition
from tests.cluster.simulation.model_replicas import ModelReplicas, Role
from tests.cluster.simulation.network import Connection
from tests.cluster.simulation.sim_logs import Hosted, SimLog, SimRecord

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process

LAG_TIME_MS = 4_000
TICK_MS = 1_000
MOST_RECORDS = 3
"""In a response."""
BUSY_MS, IDLE_MS = 20, 1_000
"""At most so long a follower pauses, after a response with records and after one without."""
FETCH_TIMEOUT_MS = 3_000
PROPOSAL_TIMEOUT_MS = 3_000
ANSWER_IS_LOST = 0.1
APPENDS = 0.3
"""How often a leader gets records, per tick."""


NO_RANGE = Range(-1, -1)


class SimFetch(NamedTuple):
    """A follower's request."""

    broker_id: int
    broker_epoch: int
    asked: Mapping[Hosted, Asked]


class Fetched(NamedTuple):
    """The answer for one partition, with the range that is asked for in a second request."""

    answer: Answer
    records: tuple[SimRecord, ...]
    range: Range


@dataclass
class Wait:
    """An acks=all request that is not answered."""

    offset: int
    record: SimRecord
    truncations: int


@dataclass
class Lead:
    """A partition that this process leads."""

    isr: InSyncSet
    waits: list[Wait] = field(default_factory=list)


class SimReplicas(ModelReplicas):
    """The replicas of a process."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._scheduler = process.scheduler
        self._random = process.scheduler.random
        self._cluster = process.cluster
        self._logs = process.broker.sim_logs
        self.leads: dict[TopicPartition, Lead] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        self._fetching: set[int] = set()
        self._connections: dict[int, Connection] = {}
        self.decide = decisions.decide
        self.shown_to_followers = shown_to_followers
        self.in_sync_set: type[InSyncSet] = InSyncSet
        self.proposals = Proposals()

    # -- its life ----------------------------------------------------------------------------

    def load(self, topics: Topics) -> None:
        """Begin with the logs of the directory, and make them durable.

        Their high watermarks are from some time ago.
        """
        super().load(topics)
        for log in self._logs.values():
            log.durable_end = log.end
            log.high_watermark = self._random.randint(log.start, max(log.start, log.high_watermark))

    # -- orders ------------------------------------------------------------------------------

    def hosted(self, at: TopicPartition) -> Hosted:
        """Return the partition with its topic's id."""
        return Hosted(self._broker.logs[at], at)

    def log(self, at: TopicPartition) -> SimLog:
        """Return the log of a replica that is here."""
        return self._logs[self.hosted(at)]

    def _take_up(
        self,
        at: TopicPartition,
        topic_id: uuid.UUID,
        state: LeaderAndIsrPartitionState,
        request: LeaderAndIsrRequest,
    ) -> ErrorCode:
        one = Hosted(topic_id, at)
        leads = state.leader == self._broker.id
        log = self._logs.get(one)
        known = self.roles.get(at)
        is_later = known is None or state.leader_epoch > known.leader_epoch
        # Also an order without a leader: else the controller would take this one for usable, have
        # it lead, hear that it cannot, and so on.
        if not 0 <= state.leader != self._broker.id and is_later and self._broker.has_lost(one):
            return ErrorCode.KAFKA_STORAGE_ERROR
        code = super()._take_up(at, topic_id, state, request)
        if code != ErrorCode.NONE:
            return INCOMPLETE if code in USABLE and self._broker.has_lost(one) else code
        if log is None:
            log = self._logs[one] = SimLog(is_incomplete=one in self._broker.lost)
            self._broker.lost.discard(one)
        self._leader_of[at] = state.leader
        if leads:
            self._lead(at, log, state)
        else:
            self._lead_no_more(at)
            if state.leader >= 0:
                self._fetch_soon(state.leader)
        return INCOMPLETE if self._broker.has_lost(one) else code

    def _lead(self, at: TopicPartition, log: SimLog, state: LeaderAndIsrPartitionState) -> None:
        lead = self.leads.setdefault(
            at, Lead(self.in_sync_set(self._broker.id, LAG_TIME_MS, self._cluster.least_in_sync))
        )
        self.proposals.drop(at)  # it was of an earlier leader epoch
        log.epochs = log.epochs.assign(state.leader_epoch, log.end)
        lead.isr.lead(
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=state.isr,
            replicas=state.replicas,
            log_end_offset=log.end,
            high_watermark=log.high_watermark,
            now_ms=self._now_ms(),
        )
        self._cluster.acknowledged.check_leader(
            self._broker, self.hosted(at), log, state.leader_epoch
        )
        self._settle(at, lead)

    def _stop(self, at: TopicPartition, leader_epoch: int, *, deletes: bool) -> ErrorCode:
        topic_id = self._broker.logs.get(at)
        code = super()._stop(at, leader_epoch, deletes=deletes)
        if code == ErrorCode.NONE:
            self._lead_no_more(at)
            self._leader_of.pop(at, None)
            if deletes and topic_id is not None:
                self._logs.pop(Hosted(topic_id, at), None)
        return code

    def _lead_no_more(self, at: TopicPartition) -> None:
        self.leads.pop(at, None)
        self.proposals.drop(at)

    def _now_ms(self) -> int:
        return self._scheduler.clock.since_boot_ms()

    # -- leading -----------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Late members leave, clients write, retention goes on."""
        for at, lead in list(self.leads.items()):
            self._shrink(at, lead)
            if self._is_written():
                self._append(at, lead)
        self._send_proposals()
        for leader in sorted(set(self._leader_of.values()) - {self._broker.id, -1}):
            self._fetch_soon(leader)

    def _shrink(self, at: TopicPartition, lead: Lead) -> None:
        proposal = lead.isr.tick(self._now_ms(), TICK_MS)
        if proposal is not None and self._scheduler.now_ms - self._process.resumed_ms < LAG_TIME_MS:
            self._cluster.invariants.report(
                f"{self._process.owner} was paused, and takes followers of {at} for late"
            )
        self._propose(at, lead, proposal)

    def _is_written(self) -> bool:
        if self._process.is_stopping or self._cluster.acknowledged.is_stopping:
            return False
        return self._random.random() < APPENDS

    def _append(self, at: TopicPartition, lead: Lead) -> None:
        log, epoch = self.log(at), lead.isr.leader_epoch
        for _ in range(self._random.randint(1, 3)):
            record = SimRecord(epoch, self._cluster.acknowledged.next_number())
            if lead.isr.is_enough:
                lead.waits.append(Wait(log.end, record, log.truncations))
            log.append(record)
        lead.isr.appended(log.end)
        self._settle(at, lead)
        self._flush_later(log, lambda: self._flushed(at))

    def _flush_later(self, log: SimLog, then: Callable[[], None]) -> None:
        end, truncations = log.end, log.truncations

        def flush() -> None:
            if not self._process.is_alive:
                return
            if log.truncations == truncations:
                log.durable_end = max(log.durable_end, min(end, log.end))
            then()

        self._scheduler.soon(f"disk of {self._process.owner}", flush, self._broker.flush_ms)

    def _flushed(self, at: TopicPartition) -> None:
        if (lead := self.leads.get(at)) is not None:
            self._settle(at, lead)

    def _settle(self, at: TopicPartition, lead: Lead) -> None:
        """Take the high watermark over, and answer requests that are safe."""
        log = self.log(at)
        log.high_watermark = max(log.high_watermark, min(lead.isr.high_watermark, log.end))
        still = []
        for wait in lead.waits:
            if not self.is_owed(wait, log):
                continue
            if wait.offset < self.acknowledged_end(log) and lead.isr.is_enough:
                self._cluster.acknowledged.note(self.hosted(at), wait.offset, wait.record)
            else:
                still.append(wait)
        lead.waits = still
        self._note_read(at, log)

    def _note_read(self, at: TopicPartition, log: SimLog) -> None:
        """A consumer reads the last record that is committed, if it is durable here."""
        last = min(log.high_watermark, log.durable_end) - 1
        if (record := log.at(last)) is not None:
            self._cluster.acknowledged.note_read(self.hosted(at), last, record)

    def acknowledged_end(self, log: SimLog) -> int:
        """Return the end of the records that all in sync have, durably."""
        return min(log.high_watermark, log.durable_end)

    def is_owed(self, wait: Wait, log: SimLog) -> bool:
        """Return whether a request may still be answered well."""
        return log.truncations == wait.truncations

    # -- proposals ---------------------------------------------------------------------------

    def _propose(self, at: TopicPartition, lead: Lead, proposal: Proposal | None) -> None:
        if proposal is not None:
            self.proposals.put(at, proposal)
            self._settle(at, lead)
            self._send_proposals()

    def _send_proposals(self) -> None:
        batch = self.proposals.take(self._now_ms())
        if batch is None:
            return
        proposed = proposed_of(batch)
        for at, one in proposed.items():
            self._cluster.note_proposed(self.hosted(at), one)
        broker_id, broker_epoch = self._broker.id, self._process.fence.broker_epoch
        future: Future[Mapping[TopicPartition, Outcome]] = Future()
        future.add_done_callback(partial(self._answer_later, batch))
        self._process.ask_controller(
            lambda token: IsrsProposed(broker_id, broker_epoch, proposed, token), future
        )
        owner = f"proposals of {self._process.owner}"
        self._scheduler.after(PROPOSAL_TIMEOUT_MS, owner, lambda: self._failed(batch))

    def _answer_later(self, batch: Batch, future: Future[Mapping[TopicPartition, Outcome]]) -> None:
        if future.cancelled() or self._random.random() < ANSWER_IS_LOST:
            return
        found = None if future.exception() else future.result()
        delay_ms = self._random.choice([10, 10, PROPOSAL_TIMEOUT_MS, 2 * PROPOSAL_TIMEOUT_MS])
        owner = f"answers to {self._process.owner}"
        self._scheduler.after(delay_ms, owner, lambda: self._answered(batch, found))

    def _failed(self, batch: Batch) -> None:
        self.proposals.failed(batch, self._now_ms())

    def _answered(self, batch: Batch, found: Mapping[TopicPartition, Outcome] | None) -> None:
        if not self._process.is_running():
            return
        if found is None:
            self._failed(batch)
            return
        for one in self.proposals.answered(batch, found_of(found), self._now_ms()):
            if (lead := self.leads.get(one.partition)) is not None:
                lead.isr.answered(one.proposal, one.outcome, one.isr, one.partition_epoch)
                self._settle(one.partition, lead)
        self._send_proposals()

    # -- answering fetches -------------------------------------------------------------------

    def answer(self, fetch: SimFetch) -> dict[Hosted, Fetched]:
        """Answer a follower's request."""
        return {one: self._answer(one, asked, fetch) for one, asked in fetch.asked.items()}

    def _answer(self, one: Hosted, asked: Asked, fetch: SimFetch) -> Fetched:
        lead = self.leads.get(one.at)
        if lead is None or self._broker.logs.get(one.at) != one.topic_id:
            return refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if asked.leader_epoch < lead.isr.leader_epoch:
            return refusal(ErrorCode.FENCED_LEADER_EPOCH)
        if asked.leader_epoch > lead.isr.leader_epoch:
            return refusal(ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = self.log(one.at)
        bounds = Range(log.start, log.end)
        try:
            diverging = log.epochs.divergence(asked.last_epoch, asked.position, log.end)
        except UnknownEpoch:
            return refusal(ErrorCode.OFFSET_OUT_OF_RANGE, bounds)
        if diverging is None and not log.start <= asked.position <= log.end:
            return refusal(ErrorCode.OFFSET_OUT_OF_RANGE, bounds)
        records: tuple[SimRecord, ...] = ()
        if diverging is None:
            self._note(one.at, lead, asked, fetch)
            first = asked.position - log.start
            records = tuple(log.records[first : first + MOST_RECORDS])
        shown = self.shown_to_followers(log.high_watermark, log.durable_end)
        answer = Answer(ErrorCode.NONE, shown, log.start, diverging)
        return Fetched(answer, records, bounds)

    def _note(self, at: TopicPartition, lead: Lead, asked: Asked, fetch: SimFetch) -> None:
        """A follower has all below the position that it asks for."""
        now_ms = self._now_ms()
        if lead.isr.fetched(fetch.broker_id, fetch.broker_epoch, asked.position, now_ms):
            if lead.isr.proposal is None:
                self._propose(at, lead, lead.isr.propose_joiner(fetch.broker_id, now_ms))
            self._settle(at, lead)

    # -- following ---------------------------------------------------------------------------

    def _fetch_soon(self, leader: int, at_most_ms: int = BUSY_MS) -> None:
        if leader not in self._fetching:
            self._fetching.add(leader)
            owner = f"fetcher of {self._process.owner} from {leader}"
            self._scheduler.soon(owner, lambda: self._fetch(leader), at_most_ms)

    def _fetch(self, leader: int) -> None:
        self._fetching.discard(leader)
        if not self._process.is_running():
            return
        asked = {}
        for at, one in self._leader_of.items():
            role = self.roles.get(at)
            if one == leader and role is not None and not role.leads:
                log = self.log(at)
                if log.durable_end == log.end:
                    replica = log.as_replica(role.leader_epoch)
                    asked[self.hosted(at)] = decisions.ask(replica)
        connection = Connection.made(self._process, leader, self._connections.get(leader))
        if not asked or connection is None:
            return
        self._connections[leader] = connection
        self._fetching.add(leader)
        fetch = SimFetch(self._broker.id, self._process.fence.broker_epoch, asked)
        is_open = [True]

        def answered(found: dict[Hosted, Fetched]) -> None:
            if is_open.pop():
                is_open.append(False)
                self._fetching.discard(leader)
                self._take(leader, asked, found)

        def timed_out() -> None:
            if is_open.pop():
                connection.is_usable = False
                self._fetching.discard(leader)
            is_open.append(False)

        connection.call(fetch, answered, self._cluster.slow_fetches)
        owner = f"fetcher of {self._process.owner} from {leader}"
        self._scheduler.after(FETCH_TIMEOUT_MS, owner, timed_out)

    def _take(
        self, leader: int, asked: Mapping[Hosted, Asked], found: Mapping[Hosted, Fetched]
    ) -> None:
        has_more = False
        for one, answer in found.items():
            role = self.roles.get(one.at)
            known = self._broker.logs.get(one.at)
            if role is not None and not role.leads and known == one.topic_id:
                has_more |= self._take_one(one, role, asked[one], answer)
        self._fetch_soon(leader, BUSY_MS if has_more else IDLE_MS)

    def _take_one(self, one: Hosted, role: Role, asked: Asked, found: Fetched) -> bool:
        """Decide, and do it; return whether to fetch again at once."""
        log = self._logs[one]
        replica = log.as_replica(role.leader_epoch)
        decision = self.decide(replica, asked, found.answer)
        if decision.do is Do.ASK_RANGE:
            decision = decisions.decide_by_range(replica, asked, found.range)
        match decision.do:
            case Do.APPEND:
                for record in found.records:
                    log.append(record)
                after = log.as_replica(role.leader_epoch)
                log.high_watermark = decisions.high_watermark_after(after, decision.high_watermark)
                log.advance_start(decision.log_start_offset)
                self._note_read(one.at, log)
                if not found.records:
                    log.is_incomplete = False
                else:
                    self._flush_later(log, lambda: None)
                return bool(found.records)
            case Do.CUT:
                self._cluster.acknowledged.check_cut(self._broker, one, log, decision.offset)
                log.cut(decision.offset)
                return True
            case Do.RESTART:
                log.restart(decision.offset)
                return True
            case _:
                return decision.do is Do.FETCH_AGAIN


def refusal(error: ErrorCode, bounds: Range = NO_RANGE) -> Fetched:
    """Return the answer for a partition that is not read."""
    return Fetched(Answer(error, -1, -1, None), (), bounds)
