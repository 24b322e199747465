"""What a history says, put together: who sent what, how transactions ended, what readers passed.

Gathered in one pass over the events; tests/checker/checks.py compares it. A history that breaks the
rules of tests/checker/history.py is refused here, so that no check takes a worker's mistake for the
broker's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from plog.types import TopicPartition

from .history import (
    AbortBegin,
    Aborted,
    Ack,
    Assign,
    Begin,
    CommitBegin,
    Committed,
    Crash,
    EndOfPartition,
    Event,
    Fail,
    History,
    HistoryError,
    Isolation,
    OutcomeUnknown,
    Poll,
    Send,
    Unknown,
    Why,
)


@dataclass(slots=True)
class Transaction:
    """What is known of a transaction."""

    begin: Begin
    sends: list[Send] = field(default_factory=list)
    commit_begin: CommitBegin | None = None
    end: Committed | Aborted | None = None

    @property
    def is_committed(self) -> bool:
        return isinstance(self.end, Committed)

    @property
    def is_aborted(self) -> bool:
        return isinstance(self.end, Aborted)


@dataclass(slots=True)
class Step:
    """A record that a reader was given, or, without a value, that it is at the end."""

    offset: int
    value: int | None
    event: Poll | EndOfPartition


@dataclass(slots=True)
class Walk:
    """One reader's way through one partition, from an assignment or seek to the next."""

    partition: TopicPartition
    assign: Assign
    steps: list[Step] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        return self.assign.why is Why.FINAL

    @property
    def is_committed(self) -> bool:
        return self.assign.isolation is Isolation.COMMITTED


class Facts:
    """A history, by value, transaction, partition and reader.

    Raises:
        HistoryError: it cannot be true.
    """

    def __init__(self, history: History) -> None:
        self.sends: dict[int, Send] = {}
        self.acks: dict[int, Ack] = {}
        self.fails: dict[int, Fail] = {}
        self.transactions: dict[str, Transaction] = {}
        self.walks: list[Walk] = []
        self._crashed: set[str] = set()
        self._reading: dict[str, dict[TopicPartition, Walk]] = {}
        for event in history.events:
            self._take(event)

        self.places: dict[TopicPartition, dict[tuple[int, int], Event]] = defaultdict(dict)
        """In each partition the (offset, value) that anybody was told of, and by what event."""
        self.polled: set[int] = set()
        self.finally_seen: set[int] = set()
        """The values that a final read has seen."""
        self.final_ends: dict[TopicPartition, int] = {}
        """Before which offset a complete final read has seen all of a partition."""
        self._find_places()
        self.in_order: dict[TopicPartition, list[tuple[int, int, Event]]] = {
            partition: self._order(places) for partition, places in self.places.items()
        }
        """The same as (offset, value, event), by offset, at one offset by time of the send."""

    def is_written(self, partition: TopicPartition, value: int) -> bool:
        """Tell whether a value can be in a partition at all."""
        send = self.sends.get(value)
        return send is not None and send.partition == partition and value not in self.fails

    def transaction_of(self, value: int) -> Transaction | None:
        """Return the transaction in which a value was sent."""
        txn = self.sends[value].txn
        return None if txn is None else self.transactions[txn]

    def end_of(self, value: int) -> Committed | Aborted | None:
        """Return how the transaction ended in which a value was sent, if that was told."""
        transaction = self.transaction_of(value)
        return None if transaction is None else transaction.end

    def stands(self, value: int) -> bool:
        """Tell whether a value is visible to everyone wherever it is in a log."""
        transaction = self.transaction_of(value)
        return transaction is None or transaction.is_committed

    def is_owed(self, value: int) -> bool:
        """Tell whether it was promised that the value is there for good."""
        return value in self.acks and self.stands(value)

    def is_missing(self, value: int) -> bool:
        """Tell whether final reads passed the offset of an acknowledged value, and none has it."""
        ack = self.acks.get(value)
        if ack is None or ack.offset is None or value in self.finally_seen:
            return False
        return ack.offset < self.final_ends.get(self.sends[value].partition, 0)

    def _order(self, places: dict[tuple[int, int], Event]) -> list[tuple[int, int, Event]]:
        ordered = sorted(places, key=lambda place: (place[0], self.sends[place[1]].at))
        return [(*place, places[place]) for place in ordered]

    def _take(self, event: Event) -> None:
        if event.worker in self._crashed:
            raise HistoryError(f"{event.worker} goes on after its crash: {event}")
        match event:
            case Begin():
                if event.txn in self.transactions:
                    raise HistoryError(f"a second transaction of one name: {event}")
                self.transactions[event.txn] = Transaction(event)
            case Send():
                if event.value in self.sends:
                    raise HistoryError(f"a value is sent a second time: {event}")
                self.sends[event.value] = event
                if event.txn is not None:
                    self._transaction(event, event.txn).sends.append(event)
            case Ack() | Fail() | Unknown():
                self._take_answer(event)
            case CommitBegin():
                transaction = self._transaction(event, event.txn)
                transaction.commit_begin = transaction.commit_begin or event
            case Committed() | Aborted():
                transaction = self._transaction(event, event.txn)
                if transaction.end is not None:
                    raise HistoryError(f"a transaction ends twice: {transaction.end}, {event}")
                transaction.end = event
            case AbortBegin() | OutcomeUnknown():
                self._transaction(event, event.txn)
            case Assign():
                self._take_assign(event)
            case Poll():
                for partition, records in event.records.items():
                    steps = self._walk(event, partition).steps
                    steps.extend(Step(offset, value, event) for offset, value in records)
            case EndOfPartition():
                steps = self._walk(event, event.partition).steps
                steps.append(Step(event.offset, None, event))
            case Crash():
                self._crashed.add(event.worker)

    def _take_answer(self, event: Ack | Fail | Unknown) -> None:
        if event.value not in self.sends:
            raise HistoryError(f"an answer to what nobody sent: {event}")
        if event.value in self.acks or event.value in self.fails:
            raise HistoryError(f"an answer after the last one: {event}")
        if isinstance(event, Ack):
            self.acks[event.value] = event
        elif isinstance(event, Fail):
            self.fails[event.value] = event

    def _take_assign(self, event: Assign) -> None:
        if event.why is Why.FINAL and event.isolation is not Isolation.COMMITTED:
            raise HistoryError(f"a final read has to be of what is committed: {event}")
        walks = {partition: Walk(partition, event) for partition in event.partitions}
        self.walks += walks.values()
        if event.why is Why.SEEK:
            self._reading.setdefault(event.worker, {}).update(walks)
        else:
            self._reading[event.worker] = walks

    def _transaction(self, event: Event, txn: str) -> Transaction:
        if txn not in self.transactions:
            raise HistoryError(f"of a transaction that nobody began: {event}")
        return self.transactions[txn]

    def _walk(self, event: Event, partition: TopicPartition) -> Walk:
        walk = self._reading.get(event.worker, {}).get(partition)
        if walk is None:
            raise HistoryError(f"{partition} is read without being assigned: {event}")
        return walk

    def _find_places(self) -> None:
        for ack in self.acks.values():
            if ack.offset is not None:
                partition = self.sends[ack.value].partition
                self.places[partition][ack.offset, ack.value] = ack
        for walk in self.walks:
            places, ends = self.places[walk.partition], self.final_ends
            for step in walk.steps:
                if step.value is None:
                    if walk.is_final:
                        ends[walk.partition] = max(ends.get(walk.partition, 0), step.offset)
                elif self.is_written(walk.partition, step.value):
                    places.setdefault((step.offset, step.value), step.event)
                    self.polled.add(step.value)
                    if walk.is_final:
                        self.finally_seen.add(step.value)
