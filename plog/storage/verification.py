"""Which transactional writes a log may begin a transaction with (KIP-890).

Owns the tickets that writers hold while they ask the transaction's coordinator whether the
partition is in it. A marker takes the ticket away: what was approved of before it must not
begin a transaction after it, which nobody would ever end.
"""

from __future__ import annotations

from dataclasses import dataclass

from plog._native.batch import BatchHeader


@dataclass(frozen=True, eq=False, slots=True)
class Verification:
    """A ticket; its identity is what counts.

    `giver` is who knows it, as long as the log is there that it was asked of. `from_zero`: the
    epoch is the transaction's own, so that nothing may come before sequence 0.
    """

    giver: Verifications
    producer_id: int
    producer_epoch: int
    from_zero: bool = False


class Verifications:
    """The tickets of one log, at most one for each producer. Under the log's lock."""

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}
        self._holders: dict[Verification, int] = {}

    def __len__(self) -> int:
        """Return how many are out."""
        return len(self._by_producer)

    def begin(
        self, producer_id: int, producer_epoch: int, *, from_zero: bool = False
    ) -> Verification:
        """Return the ticket of a producer, a new one if it has none such of this epoch.

        Where a later epoch has one, an earlier one gets what is not valid: it is fenced.
        """
        found = self._by_producer.get(producer_id)
        if found is None or (found.producer_epoch, found.from_zero) != (producer_epoch, from_zero):
            fresh = Verification(self, producer_id, producer_epoch, from_zero)
            if found is not None and found.producer_epoch > producer_epoch:
                return fresh
            self.end(producer_id)
            found = self._by_producer[producer_id] = fresh
            self._holders[fresh] = 0
        self._holders[found] += 1
        return found

    def is_valid(self, ticket: Verification | None, header: BatchHeader) -> bool:
        """Tell whether a ticket still stands, and is of the producer of a batch."""
        return (
            ticket is not None
            and self._by_producer.get(header.producer_id) is ticket
            and ticket.producer_epoch == header.producer_epoch
        )

    def has_given(self, ticket: Verification) -> bool:
        """Tell whether a ticket is of this log; else of one that was here before it."""
        return ticket.giver is self

    def end(self, producer_id: int, *, but_epoch: int | None = None) -> None:
        """Take a producer's ticket away, if it has one, unless it is of an epoch."""
        found = self._by_producer.get(producer_id)
        if found is not None and found.producer_epoch != but_epoch:
            del self._by_producer[producer_id], self._holders[found]

    def drop(self, ticket: Verification) -> None:
        """Take a ticket back that was not approved of; another request may hold it too."""
        if self._by_producer.get(ticket.producer_id) is ticket:
            self._holders[ticket] -= 1
            if self._holders[ticket] == 0:
                self.end(ticket.producer_id)
