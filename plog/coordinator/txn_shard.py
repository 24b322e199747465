"""The transactional ids that one partition of `__transaction_state` keeps, as they are in memory.

Owns how a partition's records become transactional ids. Executes nothing: `txn_coordinator` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from plog.coordinator import txn_log
from plog.coordinator.replay import Replayed
from plog.coordinator.txn import Txn
from plog.errors import CorruptRecord
from plog.runtime.bounded_lines import BoundedLines

log = logging.getLogger(__name__)

UNREADABLE = "%d further records cannot be read"


@dataclass(slots=True)
class TxnShard:
    """One partition's transactional ids; its leader epoch is the coordinator's, in markers."""

    partition: int
    leader_epoch: int
    txns: dict[str, Txn] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Txn]:
        """Iterate over those that there are now."""
        return iter(list(self.txns.values()))

    def txn(self, transactional_id: str) -> Txn:
        """Return a transactional id, made if it is not there."""
        found = self.txns.get(transactional_id)
        if found is None:
            found = self.txns[transactional_id] = Txn(transactional_id)
        return found

    def drop_idle(self, txn: Txn) -> None:
        """Forget one of which nothing is known."""
        if txn.is_idle and self.txns.get(txn.transactional_id) is txn:
            del self.txns[txn.transactional_id]

    def fill(self, replayed: Replayed) -> None:
        """Make what a log says. A record that cannot be read is told, and left out."""
        unreadable = BoundedLines(log, UNREADABLE)
        for key, entry in replayed.table.items():
            assert entry.value is not None
            try:
                transactional_id = txn_log.decode_key(key)
                if transactional_id is not None:
                    value = txn_log.decode_value(entry.value)
                    self.txns[transactional_id] = Txn(transactional_id, value)
            except CorruptRecord as damage:
                unreadable.error(
                    "__transaction_state-%d: cannot read the record at offset %d: %s",
                    self.partition,
                    entry.offset,
                    damage,
                )
        unreadable.tell_rest()
