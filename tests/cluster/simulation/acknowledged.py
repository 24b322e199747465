"""The records of a replicated partition that clients know: they must stay so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tests.cluster.simulation.sim_logs import Hosted, SimLog, SimRecord

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import SimBroker
    from tests.cluster.simulation.cluster import SimCluster


class Acknowledged:
    """Acknowledged and read records, by partition and offset."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._count = 0
        self.is_stopping = False
        """Whether clients write no more."""
        self.records: defaultdict[Hosted, dict[int, SimRecord]] = defaultdict(dict)

    def next_number(self) -> int:
        """Return a number for a new record."""
        self._count += 1
        return self._count

    def note(self, one: Hosted, offset: int, record: SimRecord) -> None:
        """A record was acknowledged: all that may lead next have it, durably."""
        self._note(one, offset, record, "acknowledged")
        written = self._cluster.written_of(one.at)
        if written is not None and written.topic_id == one.topic_id:
            self._check_members(one, written.state.isr, {offset: record})

    def check_members(self, one: Hosted, members: Iterable[int]) -> None:
        """All that are in sync have every record that clients know of: each may lead next.

        Those that have lost a disk are left out. The controller may not know of it yet.
        """
        self._check_members(one, members, self.records[one])

    def _check_members(
        self, one: Hosted, members: Iterable[int], records: Mapping[int, SimRecord]
    ) -> None:
        if self._cluster.is_being_deleted(one.at.topic):
            return
        for member in members:
            broker = self._cluster.brokers[member]
            if broker.has_lost(one):
                continue  # it refuses to lead
            log = broker.sim_logs.get(one)
            for offset, record in records.items():
                if log is None or (offset >= log.start and not log.has_durably(offset, record)):
                    self._cluster.invariants.report(
                        f"clients know {record} of {one.at} at {offset}, and broker {member}, which"
                        f" is in sync, does not have it"
                    )
                    return

    def note_read(self, one: Hosted, offset: int, record: SimRecord) -> None:
        """A consumer may have read a record that is committed and durable."""
        self._note(one, offset, record, "read")

    def _note(self, one: Hosted, offset: int, record: SimRecord, what: str) -> None:
        before = self.records[one].setdefault(offset, record)
        if before != record:
            self._cluster.invariants.report(
                f"{one.at}: {record} is {what} at {offset}, where {before} was"
            )

    def check_leader(self, broker: SimBroker, one: Hosted, log: SimLog, leader_epoch: int) -> None:
        """The newest leader has every record that clients know of.

        One that hears of an earlier leader epoch late does not have to: it can commit nothing.
        """
        written = self._cluster.written_of(one.at)
        if written is None or written.state.leader_epoch != leader_epoch:
            return
        for offset, record in self.records[one].items():
            if offset >= log.start and log.at(offset) != record:
                self._cluster.invariants.report(
                    f"broker {broker.id} leads {one.at} with {log.at(offset)} at {offset},"
                    f" not {record}"
                )
                return

    def check_cut(self, broker: SimBroker, one: Hosted, log: SimLog, to: int) -> None:
        """A follower that is in sync cuts off nothing that clients know of."""
        written = self._cluster.written_of(one.at)
        if written is None or broker.id not in written.state.isr:
            return
        for offset, record in self.records[one].items():
            if offset >= max(to, log.start) and log.at(offset) == record:
                self._cluster.invariants.report(
                    f"broker {broker.id} cuts {one.at} to {to}, and with it {record} at {offset}"
                )
                return

    def check_logs(self) -> str | None:
        """Return the fault of the replicas at the end; None: they have none."""
        for at, written in self._cluster.written().items():
            if written.state.leader < 0:
                continue
            one = Hosted(written.topic_id, at)
            logs = {
                broker: self._cluster.brokers[broker].sim_logs[one] for broker in written.replicas
            }
            leader = logs[written.state.leader]
            for broker, log in logs.items():
                start = max(log.start, leader.start)
                mine, wanted = ([x.at(n) for n in range(start, x.end)] for x in (log, leader))
                if mine != wanted:
                    return f"{at}: broker {broker} has {mine}, the leader {wanted}"
            for offset, record in self.records[one].items():
                if offset >= leader.start and leader.at(offset) != record:
                    return f"{at}: {leader.at(offset)} is at {offset}, {record} was known there"
        return None
