"""Metrics of the group and transaction coordinators, for the metrics page.

The page's thread reads them. It copies the tables; their values are replaced as a whole, so it
never sees a half-changed value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from plog.coordinator.consumer_events import GroupState as ConsumerState
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.group_states import GroupState
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.coordinator.txn_states import NEXT_STATES, TxnState

GROUP_STATES = tuple(
    sorted({state.value for state in (*GroupState, *ConsumerState)} - {GroupState.DEAD.value})
)
TXN_STATES = tuple(NEXT_STATES)
MS_IN_S = 1000


class Sample(NamedTuple):
    """One sample: name, help text, label (or None) and value."""

    name: str
    text: str
    label: tuple[str, str] | None
    value: float


def groups_of(groups: GroupCoordinator) -> Iterator[Sample]:
    """Yield the metrics of consumer groups."""
    states: Counter[str] = Counter()
    members, members_bytes = 0, 0
    for group in groups.groups():
        states[group.machine.state.value] += 1
        members += group.member_count
        members_bytes += group.members_size
    for state in GROUP_STATES:
        yield Sample("plog_groups", "Consumer groups by state.", ("state", state), states[state])
    yield Sample("plog_group_members", "Group members.", None, members)
    text = "Approximate memory of group members; limited by group.members.max.bytes."
    yield Sample("plog_group_members_bytes", text, None, members_bytes)
    text = "Rebalances started."
    yield Sample("plog_group_rebalances_total", text, None, groups.rebalances)


def transactions_of(transactions: TxnCoordinator, now_ms: int) -> Iterator[Sample]:
    """Yield the metrics of transactions at a time."""
    states: Counter[TxnState] = Counter()
    oldest_ms = now_ms
    for txn in transactions.txns():
        value = txn.value
        if value is None:
            continue  # expired since the table was copied
        states[value.state] += 1
        if value.state is TxnState.ONGOING:
            oldest_ms = min(oldest_ms, value.started_ms)
    name, text = "plog_transactional_ids", "Transactional ids by state."
    for state in TXN_STATES:
        yield Sample(name, text, ("state", state.label), states[state])
    name, text = "plog_transactions_ended_total", "Transactions committed or aborted, by outcome."
    for commit, outcome in ((True, "commit"), (False, "abort")):
        yield Sample(name, text, ("outcome", outcome), transactions.ended[commit])
    name, text = "plog_oldest_transaction_seconds", "Age of the oldest open transaction."
    yield Sample(name, text, None, max(now_ms - oldest_ms, 0) / MS_IN_S)
    name, text = "plog_markers_due", "Transaction markers not written yet."
    yield Sample(name, text, None, transactions.markers_due)
