"""Faults that are planted into a replica's rules: some history must end in a violation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from plog.cluster.controller_context import ClusterContext
from plog.cluster.replication import fetch_decisions as decisions
from plog.cluster.replication.alter_partition import Batch, Found, Proposals, Settled
from plog.cluster.replication.fetch_decisions import Answer, Asked, Decision, Do, Replica
from plog.cluster.replication.isr import InSyncSet, Outcome, Proposal
from plog.types import TopicPartition
from tests.cluster.simulation.broker import Process
from tests.cluster.simulation.sim_logs import SimLog
from tests.cluster.simulation.sim_replicas import Lead, SimReplicas, Wait
from tests.cluster.simulation.test_histories import Kind, play
from tests.cluster.simulation.test_planted_faults import check_is_found, find

SEEDS = range(2_000, 4_000)
"""The rarest of these faults shows in one of some 850 histories."""


def replicas_of(process: Process) -> SimReplicas:
    assert isinstance(process.replicas, SimReplicas)
    return process.replicas


# -- of leaders ------------------------------------------------------------------------------------


class CountsWritten(InSyncSet):
    @property
    def maximal(self) -> frozenset[int]:
        return self.isr


class CommitsByMajority(InSyncSet):
    def _commit(self) -> None:
        super()._commit()
        positions = sorted([self.log_end_offset, *(f.position for f in self.followers.values())])
        self.high_watermark = max(self.high_watermark, positions[(len(positions) - 1) // 2])


class TakesAnyAnswer(InSyncSet):
    def answered(
        self,
        proposal: Proposal,
        outcome: Outcome,
        isr: Iterable[int] = (),
        partition_epoch: int = -1,
    ) -> None:
        if self.proposal is None:
            self.proposal = proposal
        super().answered(self.proposal, outcome, isr, partition_epoch)


class TakesLateAnswers(Proposals):
    def answered(
        self, batch: Batch, found: Mapping[TopicPartition, Found], now_ms: int
    ) -> list[Settled]:
        self.in_flight = batch
        return super().answered(batch, found, now_ms)


def takes_late_answers(process: Process) -> None:
    replicas_of(process).proposals = TakesLateAnswers()
    replicas_of(process).in_sync_set = TakesAnyAnswer


class TicksAfterPause(InSyncSet):
    def tick(self, now_ms: int, interval_ms: int) -> Proposal | None:
        return super().tick(now_ms, 1 << 40)


def planted(broken: type[InSyncSet]) -> Callable[[Process], None]:
    def plant(process: Process) -> None:
        replicas_of(process).in_sync_set = broken

    plant.__name__ = broken.__name__
    return plant


def acknowledges_what_is_durable_here(process: Process) -> None:
    def durable_end(log: SimLog) -> int:
        return log.durable_end

    replicas_of(process).acknowledged_end = durable_end  # type: ignore[method-assign]


def answers_waits_of_earlier_leads(process: Process) -> None:
    replicas = replicas_of(process)
    kept: dict[TopicPartition, list[Wait]] = {}

    class Leads(dict[TopicPartition, Lead]):
        def pop(self, at: TopicPartition, *default: Any) -> Any:
            if at in self:
                kept[at] = self[at].waits
            return super().pop(at, *default)

        def setdefault(self, at: TopicPartition, lead: Lead) -> Lead:  # type: ignore[override]
            found = super().setdefault(at, lead)
            found.waits += kept.pop(at, [])
            return found

    replicas.leads = Leads()
    replicas.is_owed = lambda wait, log: True  # type: ignore[method-assign]


# -- of followers ----------------------------------------------------------------------------------


def cuts_to_its_high_watermark(process: Process) -> None:
    replicas = replicas_of(process)
    take_up = replicas._take_up

    def cut(at, topic_id, state, request):  # type: ignore[no-untyped-def]
        code = take_up(at, topic_id, state, request)
        if not code and at not in replicas.leads:
            log = replicas.log(at)
            log.cut(max(log.start, log.high_watermark))
        return code

    replicas._take_up = cut  # type: ignore[method-assign]

    def decide(replica: Replica, asked: Asked, answer: Answer) -> Decision:
        return decisions.decide(replica, asked, answer._replace(diverging=None))

    replicas.decide = decide


def cuts_once_in_a_leader_epoch(process: Process) -> None:
    cut_in: set[int] = set()

    def decide(replica: Replica, asked: Asked, answer: Answer) -> Decision:
        if replica.leader_epoch in cut_in:
            answer = answer._replace(diverging=None)
        found = decisions.decide(replica, asked, answer)
        if found.do is Do.CUT:
            cut_in.add(replica.leader_epoch)
        return found

    replicas_of(process).decide = decide


def believes_the_high_watermark_before_it_cuts(process: Process) -> None:
    replicas = replicas_of(process)
    take_one = replicas._take_one

    def take(one, role, asked, found):  # type: ignore[no-untyped-def]
        log = replicas.log(one.at)
        if found.answer.diverging is not None:
            log.high_watermark = min(max(log.high_watermark, found.answer.high_watermark), log.end)
            replicas._note_read(one.at, log)
        return take_one(one, role, asked, found)

    replicas._take_one = take  # type: ignore[method-assign]


MUTANTS = [
    planted(CountsWritten),
    planted(CommitsByMajority),
    planted(TakesAnyAnswer),
    takes_late_answers,
    planted(TicksAfterPause),
    acknowledges_what_is_durable_here,
    answers_waits_of_earlier_leads,
    cuts_to_its_high_watermark,
    cuts_once_in_a_leader_epoch,
    believes_the_high_watermark_before_it_cuts,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_planted_fault_of_a_replica_is_found(mutate: Callable[[Process], None]) -> None:
    check_is_found(mutate, Kind.REPLICAS, SEEDS)


def check_is_found_in_all(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, broken: Callable[..., object]
) -> None:
    """Check a fault of all processes as `check_is_found` does."""
    with monkeypatch.context() as planted:
        planted.setattr(owner, method, broken)
        seed = find(lambda process: None, Kind.REPLICAS, SEEDS)
    play(seed, Kind.REPLICAS)


def test_leader_that_leads_on_once_it_is_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_is_found_in_all(monkeypatch, ClusterContext, "leader_has_returned", lambda *_: False)


def test_election_of_a_member_that_has_lost_its_log_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others were lost before it, and would not be in sync any more."""
    check_is_found_in_all(monkeypatch, ClusterContext, "is_eligible", lambda *_: True)
