"""What the coordinators count of groups and transactions, for the metrics page.

Read in the page's thread: tables are copied, and what they hold is replaced, never half changed.
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
    """One figure: the metric, what it says, its one label (or none), the value."""

    name: str
    text: str
    label: tuple[str, str] | None
    value: float


def groups_of(groups: GroupCoordinator) -> Iterator[Sample]:
    """Yield what there is to say of groups."""
    states: Counter[str] = Counter()
    members, members_bytes = 0, 0
    for group in groups.groups():
        states[group.machine.state.value] += 1
        members += group.member_count
        members_bytes += group.members_size
    for state in GROUP_STATES:
        yield Sample("plog_groups", "Groups by state.", ("state", state), states[state])
    yield Sample("plog_group_members", "Members of all groups.", None, members)
    text = "Memory that members take, about; of group.members.max.bytes."
    yield Sample("plog_group_members_bytes", text, None, members_bytes)
    text = "Rebalances that have begun."
    yield Sample("plog_group_rebalances_total", text, None, groups.rebalances)


def transactions_of(transactions: TxnCoordinator, now_ms: int) -> Iterator[Sample]:
    """Yield what there is to say of transactions, at a time."""
    states: Counter[TxnState] = Counter()
    oldest_ms = now_ms
    for txn in transactions.txns():
        value = txn.value
        if value is None:
            continue  # forgotten since the table was copied
        states[value.state] += 1
        if value.state is TxnState.ONGOING:
            oldest_ms = min(oldest_ms, value.started_ms)
    name, text = "plog_transactional_ids", "Transactional ids by state."
    for state in TXN_STATES:
        yield Sample(name, text, ("state", state.label), states[state])
    name, text = "plog_transactions_ended_total", "Transactions decided, by outcome."
    for commit, outcome in ((True, "commit"), (False, "abort")):
        yield Sample(name, text, ("outcome", outcome), transactions.ended[commit])
    name, text = "plog_oldest_transaction_seconds", "How long the oldest open one has been."
    yield Sample(name, text, None, max(now_ms - oldest_ms, 0) / MS_IN_S)
    name, text = "plog_markers_due", "Partitions that wait for the end of a transaction."
    yield Sample(name, text, None, transactions.markers_due)
