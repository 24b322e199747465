"""What a consumer group has decided and its log does not safely hold yet, and who waits for it.

Owns the order: one batch of records is written at a time, what is decided meanwhile goes with the
next one, and an answer is told once everything is safe that it may rest on. Writes nothing itself.
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
    """Records that are written together, and what is answered once they are safe.

    `others` are those of a classic group that has become this one, or that it becomes.
    """

    records: list[Record] = field(default_factory=list)
    others: list[Pair] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def pairs(self, group_id: str) -> list[Pair]:
        """Return what is to be written; a group must be removed before it is of another type."""
        return [
            *(pair for pair in self.others if pair.value is None),
            *(
                Pair(consumer_log.encode_key(group_id, one.key), consumer_log.encode_value(one))
                for one in in_order(self.records)
            ),
            *(pair for pair in self.others if pair.value is not None),
        ]


def in_order(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the last record of each key, as Kafka's brokers take them one by one.

    They remove no group and no member of which they still know anything else, and add nothing to
    what they do not know: else they give up the whole partition. So removals come first, by kind
    from the last to the first, and then the rest from the first to the last.
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
    """What was written and could not be made safe: it may stand in the log all the same."""

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return self._writing is not None or self._next is not None

    @property
    def changes_classic(self) -> bool:
        """Whether the record of a classic group is being written or deleted."""
        return any(batch.others for batch in self._batches())

    def gathering(self) -> Batch:
        """Return the batch that will be written next, to be added to."""
        if self._next is None:
            self._next = Batch()
        return self._next

    def answer_later(self, answer: Answer) -> bool:
        """Take an answer that rests on what is here; False if nothing is."""
        batch = self._next or self._writing
        if batch is None:
            return False
        batch.answers.append(answer)
        return True

    def begin(self, stored: Table) -> Batch | None:
        """Return the batch to be written now; None if one is being written, or there is none.

        Args:
            stored: what is safe: it is written again where the log may say something else.
        """
        if self._writing is not None or self._next is None:
            return None
        batch, self._next = self._next, None
        mended = self.suspects - {record.key for record in batch.records}
        batch.records[:0] = [Record(key, stored.get(key)) for key in mended]
        self._writing = batch
        return batch

    def written(self, stored: Table) -> list[Answer]:
        """Take in that the batch is safe, and return who is to be told."""
        batch, self._writing = self._writing, None
        assert batch is not None, "nothing was being written"
        self.suspects.clear()
        for record in batch.records:
            stored.apply(record)
        return batch.answers

    def failed(self) -> list[Answer]:
        """Take in that the batch is not safe, give everything up, and return who has waited."""
        batches = list(self._batches())
        self._writing = self._next = None
        self.suspects.update(record.key for batch in batches for record in batch.records)
        return [answer for batch in batches for answer in batch.answers]

    def _batches(self) -> Iterator[Batch]:
        return (batch for batch in (self._writing, self._next) if batch is not None)
