"""Metrics of the group and transaction coordinators.

The page's thread reads them. It copies the tables; their values are replaced as a whole, so it
never sees a half-changed value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.coordinator.txn_states import TxnState
from plog.ops.metrics.families import Collector, Family
from plog.runtime.clock import Clock

GROUPS = Family("plog_groups", "Consumer groups by state.", ("state",))
MEMBERS = Family("plog_group_members", "Group members.")
MEMBERS_BYTES = Family("plog_group_members_bytes", "Approximate memory of group members.")
MAX_MEMBERS_BYTES = Family("plog_group_members_max_bytes", "Value of group.members.max.bytes.")
REBALANCES = Family("plog_group_rebalances_total", "Rebalances started.")
TRANSACTIONAL_IDS = Family("plog_transactional_ids", "Transactional ids by state.", ("state",))
ENDED = Family(
    "plog_transactions_ended_total", "Transactions committed or aborted, by outcome.", ("outcome",)
)
OLDEST = Family("plog_oldest_transaction_seconds", "Age of the oldest open transaction.")
MARKERS_DUE = Family("plog_markers_due", "Transaction markers not written yet.")
MS_IN_S = 1000


class _States:
    """Counts by state. A state that has been seen stays, at 0."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._seen: set[str] = set()

    def of(self, counts: Counter[str]) -> Iterator[Metric]:
        self._seen |= counts.keys()
        if self._seen:
            yield self._family.of(((state,), counts[state]) for state in sorted(self._seen))


class Groups(Collector):
    """The consumer groups of this broker."""

    families = (GROUPS, MEMBERS, MEMBERS_BYTES, MAX_MEMBERS_BYTES, REBALANCES)

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups
        self._states = _States(GROUPS)

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        states: Counter[str] = Counter()
        members, members_bytes = 0, 0
        for group in self._groups.groups():
            states[group.machine.state.value] += 1
            members += group.member_count
            members_bytes += group.members_size
        yield from self._states.of(states)
        yield MEMBERS.one(members)
        yield MEMBERS_BYTES.one(members_bytes)
        yield MAX_MEMBERS_BYTES.one(self._groups.max_members_bytes)
        yield REBALANCES.one(self._groups.rebalances)


class Transactions(Collector):
    """The transactions of this broker."""

    families = (TRANSACTIONAL_IDS, ENDED, OLDEST, MARKERS_DUE)

    def __init__(self, transactions: TxnCoordinator, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock
        self._states = _States(TRANSACTIONAL_IDS)

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        now_ms = oldest_ms = self._clock.now_ms()
        states: Counter[str] = Counter()
        for txn in self._transactions.txns():
            value = txn.value
            if value is None:
                continue  # expired since the table was copied
            states[value.state.label] += 1
            if value.state is TxnState.ONGOING:
                oldest_ms = min(oldest_ms, value.started_ms)
        yield from self._states.of(states)
        ended = self._transactions.ended
        outcomes = [((name,), ended[is_commit]) for name, is_commit in OUTCOMES if ended[is_commit]]
        if outcomes:
            yield ENDED.of(outcomes)
        yield OLDEST.one((now_ms - oldest_ms) / MS_IN_S)
        yield MARKERS_DUE.one(self._transactions.markers_due)


OUTCOMES = (("commit", True), ("abort", False))
