"""The records of a consumer group that are not committed yet, and the responses that wait for them.

Owns the order: one batch of records is written at a time, and later records go into the next one. A
response is sent once all records that it may depend on are committed. Writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from plog.cluster.own_appends import Pair
from plog.coordinator import consumer_log
from plog.coordinator.consumer_table import Key, Record, Table
from plog.coordinator.group_events import Answer


@dataclass(slots=True)
class Batch:
    """Records to write together, and the responses to send once they are committed.

    `others` are records of the classic group before or after a change of protocol.
    """

    records: list[Record] = field(default_factory=list)
    others: list[Pair] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def pairs(self, group_id: str) -> list[Pair]:
        """Return the records to write; a group's removal precedes its records of another type."""
        return [
            *(pair for pair in self.others if pair.value is None),
            *(
                Pair(consumer_log.encode_key(group_id, one.key), consumer_log.encode_value(one))
                for one in in_order(self.records)
            ),
            *(pair for pair in self.others if pair.value is not None),
        ]


def in_order(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the last record of each key, in an order that Kafka's brokers accept.

    A Kafka broker fails to load the partition if a record removes a group or member that has other
    records, or adds to an unknown one. So removals come first, in reverse order of their types,
    then the other records in order.
    """
    last = {record.key: record for record in records}
    for key in sorted(last, reverse=True):
        if last[key].value is None:
            yield last[key]
    for key in sorted(last):
        if last[key].value is not None:
            yield last[key]


@dataclass(slots=True)
class Unsafe:
    """The batch that is being written, and the one after it."""

    _writing: Batch | None = None
    _next: Batch | None = None
    suspects: set[Key] = field(default_factory=set)
    """Keys of failed writes: their records may be in the log nevertheless."""

    def __bool__(self) -> bool:
        """Return whether there are records."""
        return self._writing is not None or self._next is not None

    @property
    def changes_classic(self) -> bool:
        """Whether the record of a classic group is being written or deleted."""
        return any(batch.others for batch in self._batches())

    def gathering(self) -> Batch:
        """Return the next batch, to add records to it."""
        if self._next is None:
            self._next = Batch()
        return self._next

    def answer_later(self, answer: Answer) -> bool:
        """Add a response that depends on these records; return False if there are none."""
        batch = self._next or self._writing
        if batch is None:
            return False
        batch.answers.append(answer)
        return True

    def begin(self, stored: Table) -> Batch | None:
        """Return the batch to write now; None if one is being written, or there is none.

        Args:
            stored: the committed records; those of `suspects` are written again.
        """
        if self._writing is not None or self._next is None:
            return None
        batch, self._next = self._next, None
        mended = self.suspects - {record.key for record in batch.records}
        batch.records[:0] = [Record(key, stored.get(key)) for key in mended]
        self._writing = batch
        return batch

    def written(self, stored: Table) -> list[Answer]:
        """Move the committed batch to `stored`; return the responses to send."""
        batch, self._writing = self._writing, None
        assert batch is not None, "nothing was being written"
        self.suspects.clear()
        for record in batch.records:
            stored.apply(record)
        return batch.answers

    def failed(self) -> list[Answer]:
        """Drop all records after a failed write; return the waiting responses."""
        batches = list(self._batches())
        self._writing = self._next = None
        self.suspects.update(record.key for batch in batches for record in batch.records)
        return [answer for batch in batches for answer in batch.answers]

    def _batches(self) -> Iterator[Batch]:
        return (batch for batch in (self._writing, self._next) if batch is not None)
