"""What compaction knows of the transactions in a log that it reads, batch by batch.

Owns which batches belong to aborted transactions, and which markers have nothing left to mark.
Sees batches in the order of the log. The aborted ones are known from `.txnindex`.
"""

from __future__ import annotations

from collections.abc import Iterable

from plog._native.batch import BatchHeader
from plog.storage.transaction_index import AbortedTransaction


class EndedTransactions:
    """The transactions of one pass over a log, from its first segment on.

    Args:
        aborted: those that overlap what is read, in the order of their markers.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # The last one is the next to begin.
        self._to_come = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._with_records: set[int] = set()  # producers, of the transactions that are open here
        self.kept: list[AbortedTransaction] = []
        """Aborted ones whose records this pass has met: their index entries have to stay."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Tell whether the records of a batch, no control batch, were aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        self._with_records.add(header.producer_id)
        return header.producer_id in self._aborted

    def is_idle(self, header: BatchHeader) -> bool:
        """Tell whether a marker's transaction has no records any more."""
        self._begin_up_to(header.last_offset)
        aborted = self._aborted.get(header.producer_id)
        had_records = header.producer_id in self._with_records
        self._with_records.discard(header.producer_id)
        if aborted is not None and aborted.last_offset == header.base_offset:
            del self._aborted[header.producer_id]
            if had_records:
                self.kept.append(aborted)
        return not had_records

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            begun = self._to_come.pop()
            self._aborted[begun.producer_id] = begun
