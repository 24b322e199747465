"""A world in which nothing goes wrong that a checker should tell of, though much goes badly.

Producers, logs, a coordinator of transactions and readers take turns by chance: answers are lost,
producers and readers crash, markers come late, high watermarks lag. What their workers would have
written down is the history. By a seed; the world keeps to Kafka's rules:

- What one producer sends is written in its order, once or not at all.
- Nobody reads past the high watermark, and with read_committed not past the first record of a
  transaction without a marker.
- A transaction is decided when nothing of it is under way any more; its markers may come after the
  answer, but before its producer writes to the next one.
"""

from __future__ import annotations

import random
from collections import deque
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
    Isolation,
    OutcomeUnknown,
    Poll,
    Record,
    Send,
    Unknown,
    Why,
)


@dataclass
class Txn:
    """A transaction as the brokers know it."""

    name: str
    partitions: set[TopicPartition] = field(default_factory=set)
    asked: str | None = None
    decided: str | None = None
    marked: set[TopicPartition] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return self.decided is not None and self.marked == self.partitions


@dataclass
class Entry:
    """A record of a log, or with no value a marker."""

    value: int | None
    txn: Txn | None


@dataclass
class Log:
    """A partition."""

    entries: list[Entry] = field(default_factory=list)
    high_watermark: int = 0

    def end_for(self, isolation: Isolation, partition: TopicPartition) -> int:
        """Return the offset before which a reader sees everything."""
        if isolation is Isolation.UNCOMMITTED:
            return self.high_watermark
        seen = self.entries[: self.high_watermark]
        marked = {entry.txn.name for entry in seen if entry.txn and entry.value is None}
        for offset, entry in enumerate(seen):
            if entry.txn and entry.value is not None and entry.txn.name not in marked:
                return offset
        return self.high_watermark


@dataclass
class Producer:
    """One producer for its life, which is one worker."""

    name: str
    under_way: deque[Send] = field(default_factory=deque)
    unanswered: deque[tuple[int, Send]] = field(default_factory=deque)
    txn: Txn | None = None
    before: Txn | None = None
    """The transaction before this one."""
    rests: bool = False
    """It sends nothing until it has begun or ended a transaction."""
    given_up: set[int] = field(default_factory=set)
    """Values of which it has told that their outcome is unknown."""


@dataclass
class Reader:
    """One consumer for its life."""

    name: str
    isolation: Isolation
    positions: dict[TopicPartition, int]


class World:
    """Does `steps` things by chance, then settles, if told so, and reads everything."""

    def __init__(self, seed: int, steps: int, *, partitions: int = 2, settles: bool = True) -> None:
        self.chance = random.Random(seed)
        self.now = self.chance.randrange(10**6)
        self.events: list[Event] = []
        self.logs = {TopicPartition("t", number): Log() for number in range(partitions)}
        self.txns: list[Txn] = []
        self.orphans: list[Txn] = []
        """Transactions whose producer is gone."""
        self.names = 0
        self.values = 0
        self.producers = [self._new_producer() for _ in range(2)]
        self.readers = [self._new_reader() for _ in range(2)]
        doings = [self._produce] * 10 + [self._deliver] * 10 + [self._answer] * 8
        doings += [self._advance] * 4 + [self._end] * 3 + [self._mark] * 5 + [self._read] * 8
        doings += [self._crash, self._resolve, self._resolve, self._move]
        for _ in range(steps):
            self.chance.choice(doings)()
        if settles:
            self._settle()
        for _ in range(self.chance.choice((1, 2))):
            self._read_all(completely=settles or self.chance.random() < 0.5)

    @property
    def history(self) -> History:
        return History(self.events)

    def _tell(self, kind: type[Event], worker: str, *told: object) -> None:
        self.now += self.chance.randrange(10, 1000)
        self.events.append(kind(worker, *told, at=self.now))

    def _new_name(self, role: str) -> str:
        self.names += 1
        return f"{role}{self.names}"

    def _new_producer(self) -> Producer:
        return Producer(self._new_name("p"))

    def _replace(self, producer: Producer) -> None:
        """Have a new producer in the place of one whose transaction others are to end."""
        if producer.txn is not None:
            self.orphans.append(producer.txn)
        self.producers[self.producers.index(producer)] = self._new_producer()

    # Producers.

    def _produce(self) -> None:
        producer = self.chance.choice(self.producers)
        if producer.rests:
            if producer.txn is None and not producer.under_way:
                producer.rests = False
                producer.txn = Txn(self._new_name("x"))
                self.txns.append(producer.txn)
                self._tell(Begin, producer.name, producer.txn.name)
        else:
            self.values += 1
            partition = self.chance.choice(list(self.logs))
            txn = producer.txn.name if producer.txn else None
            self._tell(Send, producer.name, partition, self.values, txn)
            sent = self.events[-1]
            assert isinstance(sent, Send)
            producer.under_way.append(sent)
            producer.rests = self.chance.random() < 0.2

    def _deliver(self) -> None:
        """Have a send reach its log, or get lost."""
        producer = self.chance.choice(self.producers)
        if not producer.under_way or (producer.before and not producer.before.is_complete):
            return
        if self.chance.random() < 0.05 and producer.txn is None:
            # It is given up while it is under way, and may yet be written.
            value = producer.under_way[0].value
            if value not in producer.given_up:
                producer.given_up.add(value)
                self._tell(Unknown, producer.name, value)
            return
        send = producer.under_way.popleft()
        if self.chance.random() < 0.1:
            if self.chance.random() < 0.5:
                self._tell(Fail, producer.name, send.value)
            elif send.value not in producer.given_up:
                self._tell(Unknown, producer.name, send.value)
            return
        log = self.logs[send.partition]
        producer.unanswered.append((len(log.entries), send))
        self._append(send, producer.txn)

    def _append(self, send: Send, txn: Txn | None) -> None:
        self.logs[send.partition].entries.append(Entry(send.value, txn))
        if txn is not None:
            txn.partitions.add(send.partition)

    def _answer(self) -> None:
        producer = self.chance.choice(self.producers)
        if not producer.unanswered:
            return
        offset, send = producer.unanswered[0]
        if offset >= self.logs[send.partition].high_watermark:
            return
        producer.unanswered.popleft()
        lot = self.chance.random()
        if lot < 0.9:
            self._tell(Ack, producer.name, send.value, offset if lot > 0.03 else None)
        elif send.value not in producer.given_up:
            self._tell(Unknown, producer.name, send.value)

    def _crash(self) -> None:
        if self.chance.random() < 0.5:
            reader = self.chance.choice(self.readers)
            self._tell(Crash, reader.name)
            self.readers[self.readers.index(reader)] = self._new_reader()
            return
        producer = self.chance.choice(self.producers)
        self._tell(Crash, producer.name)
        for send in producer.under_way:
            # What is under way may yet be written, until the first that is not.
            if (producer.before and not producer.before.is_complete) or self.chance.random() < 0.5:
                break
            self._append(send, producer.txn)
        self._replace(producer)

    # Transactions.

    def _end(self) -> None:
        """Have a producer end its transaction: ask, then hear of it, or not."""
        producer = self.chance.choice(self.producers)
        txn = producer.txn
        if txn is None or not producer.rests or producer.under_way or producer.unanswered:
            return
        if producer.before and not producer.before.is_complete:
            return
        if txn.asked is None:
            txn.asked = "commit" if self.chance.random() < 0.7 else "abort"
            kind = CommitBegin if txn.asked == "commit" else AbortBegin
            self._tell(kind, producer.name, txn.name)
            return
        lot = self.chance.random()
        if lot > 0.1:
            txn.decided = txn.asked
        if lot > 0.2:
            told = Committed if txn.decided == "commit" else Aborted
            self._tell(told, producer.name, txn.name)
            producer.txn, producer.before = None, txn
            producer.rests = self.chance.random() < 0.5
        else:
            self._tell(OutcomeUnknown, producer.name, txn.name)
            self._replace(producer)

    def _resolve(self) -> None:
        """Decide the transaction of a producer that is gone; a successor may tell of an abort."""
        if not self.orphans:
            return
        txn = self.orphans.pop(self.chance.randrange(len(self.orphans)))
        if txn.decided is None:
            txn.decided = self.chance.choice((txn.asked, "abort")) or "abort"
        if txn.asked is None and self.chance.random() < 0.5:
            self._mark_all(txn)
            self._tell(Aborted, self.producers[0].name, txn.name)

    def _mark(self) -> None:
        for txn in self.txns:
            if txn.decided and not txn.is_complete:
                self._write_marker(txn, min(txn.partitions - txn.marked))
                return

    def _mark_all(self, txn: Txn) -> None:
        for partition in txn.partitions - txn.marked:
            self._write_marker(txn, partition)

    def _write_marker(self, txn: Txn, partition: TopicPartition) -> None:
        self.logs[partition].entries.append(Entry(None, txn))
        txn.marked.add(partition)

    def _advance(self) -> None:
        log = self.chance.choice(list(self.logs.values()))
        log.high_watermark = self.chance.randint(log.high_watermark, len(log.entries))

    def _settle(self) -> None:
        """Let everything come to its end, but for what nobody tells."""
        self.orphans += [producer.txn for producer in self.producers if producer.txn]
        for log in self.logs.values():
            log.high_watermark = len(log.entries)
        for producer in self.producers:
            while producer.unanswered:
                offset, send = producer.unanswered.popleft()
                self._tell(Ack, producer.name, send.value, offset)
        while self.orphans:
            self._resolve()
        for txn in self.txns:
            self._mark_all(txn)
        for log in self.logs.values():
            log.high_watermark = len(log.entries)

    # Readers.

    def _new_reader(self) -> Reader:
        reader = Reader(self._new_name("c"), self.chance.choice(list(Isolation)), {})
        self._assign(reader, Why.REBALANCE)
        return reader

    def _assign(self, reader: Reader, why: Why) -> None:
        chosen = [one for one in self.logs if self.chance.random() < 0.7]
        if why is Why.SEEK:
            chosen = [one for one in chosen if one in reader.positions]
        else:
            reader.positions.clear()
        started = {
            one: self.chance.randint(0, self.logs[one].end_for(reader.isolation, one))
            for one in chosen
        }
        reader.positions.update(started)
        told = {
            one: start if self.chance.random() < 0.7 else None for one, start in started.items()
        }
        self._tell(Assign, reader.name, told, why, reader.isolation)

    def _move(self) -> None:
        self._assign(
            self.chance.choice(self.readers), self.chance.choice((Why.SEEK, Why.REBALANCE))
        )

    def _read(self) -> None:
        reader = self.chance.choice(self.readers)
        self._poll(reader, self.chance.randrange(1, 20))

    def _poll(self, reader: Reader, most: int) -> None:
        polled: dict[TopicPartition, list[Record]] = {}
        ended = []
        for partition, position in reader.positions.items():
            end = self.logs[partition].end_for(reader.isolation, partition)
            last = min(end, position + most)
            entries = enumerate(self.logs[partition].entries[position:last], position)
            records = [
                (offset, entry.value)
                for offset, entry in entries
                if entry.value is not None
                and (
                    reader.isolation is Isolation.UNCOMMITTED
                    or entry.txn is None
                    or entry.txn.decided == "commit"
                )
            ]
            if records:
                polled[partition] = records
            reader.positions[partition] = max(position, last)
            if reader.positions[partition] >= end:
                ended.append(partition)
        if polled:
            self._tell(Poll, reader.name, polled)
        for partition in ended:
            self._tell(EndOfPartition, reader.name, partition, reader.positions[partition])

    def _read_all(self, *, completely: bool) -> None:
        reader = Reader(self._new_name("f"), Isolation.COMMITTED, dict.fromkeys(self.logs, 0))
        self._tell(Assign, reader.name, dict(reader.positions), Why.FINAL, reader.isolation)
        ends = {one: log.end_for(reader.isolation, one) for one, log in self.logs.items()}
        while any(reader.positions[one] < end for one, end in ends.items()):
            self._poll(reader, self.chance.randrange(1, 30))
            if not completely and self.chance.random() < 0.3:
                return
        self._poll(reader, 1)
