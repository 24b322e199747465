"""What is wrong with a history: a function for each kind of anomaly, which says exactly what it is.

Pure functions of Facts. None trusts what a history does not say: a send without an answer, a
commit whose outcome nobody knows and an offset that nobody was told of prove nothing by themselves.
Each goes over the history a fixed number of times, and sorts at most.

Words used throughout. A value is *acknowledged* by an Ack; it is *owed* when besides it was sent
without a transaction or in one that is told to be committed. A *final read* is a consumer's that
was assigned with Why.FINAL; it is *complete* in a partition once it was told that it is at the end
there. A *walk* is one reader's way through one partition, from an Assign to the next that concerns
it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from plog.types import TopicPartition

from .facts import Facts, Step, Walk
from .history import Event, History, Send

TOLD = 10
"""So many values are named in one anomaly, and so many events shown for them."""


class Kind(StrEnum):
    """The kinds of anomalies."""

    LOST_WRITE = "lost write"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSET = "inconsistent offset"
    UNWRITTEN_READ = "unwritten read"
    SKIPPED_POLL = "skipped poll"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    ABORTED_READ = "aborted read"
    INTERMEDIATE_READ = "intermediate read"
    TORN_TRANSACTION = "torn transaction"
    LATE_WRITE = "write after the transaction's end"
    OUT_OF_ORDER = "out of order"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not be, and the events that show it."""

    kind: Kind
    text: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks found."""

    anomalies: list[Anomaly]
    unseen: list[Send]
    """No anomaly, as readers may have stopped too early; see `unseen`."""

    def of(self, kind: Kind) -> list[Anomaly]:
        """Return the anomalies of one kind."""
        return [one for one in self.anomalies if one.kind is kind]


def check(history: History) -> Verdict:
    """Look for everything.

    Raises:
        HistoryError: the history cannot be true.
    """
    facts = Facts(history)
    return Verdict([found for one in CHECKS for found in one(facts)], list(unseen(facts)))


def unseen(facts: Facts) -> Iterator[Send]:
    """Owed values that no final read of their partition has, or, without one, no reader at all.

    Lost ones and those missing from a torn transaction are left out. What is left stands at or
    behind the place where final reads ended, or at an offset that nobody told: the readers may
    have stopped too early. Who is sure that they began after the last answer and went to the end
    may take it for lost.
    """
    for value, ack in facts.acks.items():
        send = facts.sends[value]
        is_read = send.partition in facts.final_ends
        seen = facts.finally_seen if is_read else facts.polled
        if facts.is_owed(value) and value not in seen and not facts.is_missing(ack.value):
            yield send


def lost_writes(facts: Facts) -> Iterator[Anomaly]:
    """An owed value at an offset before the end of a complete final read, that no final read has.

    Values of a transaction of which final reads do have others are told of by `torn_transactions`.
    """
    torn = {send.value for _, _, missing in _torn(facts) for send in missing}
    for value, ack in facts.acks.items():
        if facts.is_owed(value) and facts.is_missing(value) and value not in torn:
            send = facts.sends[value]
            yield Anomaly(
                Kind.LOST_WRITE,
                f"{value} was acknowledged at offset {ack.offset} of {send.partition}"
                + (f", and {send.txn} committed" if send.txn else "")
                + f"; final reads went on to {facts.final_ends[send.partition]} without it",
                _events(send, ack, facts.end_of(value)),
            )


def duplicates(facts: Facts) -> Iterator[Anomaly]:
    """One value at two or more offsets of its partition, acknowledged or read there."""
    for partition, places in facts.in_order.items():
        offsets: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        for offset, value, event in places:
            offsets[value].append((offset, event))
        for value, found in offsets.items():
            if len(found) > 1:
                yield Anomaly(
                    Kind.DUPLICATE,
                    f"{value} is in {partition} at offsets {_some(offset for offset, _ in found)}",
                    _events(facts.sends[value], *(event for _, event in found)),
                )


def inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    """Two or more values at one offset of a partition, acknowledged or read there."""
    for partition, places in facts.in_order.items():
        values: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        for offset, value, event in places:
            values[offset].append((value, event))
        for offset, found in values.items():
            if len(found) > 1:
                yield Anomaly(
                    Kind.INCONSISTENT_OFFSET,
                    f"offset {offset} of {partition} is {_some(value for value, _ in found)}",
                    _events(*(event for _, event in found)),
                )


def unwritten_reads(facts: Facts) -> Iterator[Anomaly]:
    """A read value that nobody sent to that partition, or whose send failed for certain."""
    told: set[tuple[TopicPartition, int]] = set()
    for walk in facts.walks:
        for step in walk.steps:
            if step.value is None or facts.is_written(walk.partition, step.value):
                continue
            if (walk.partition, step.value) in told:
                continue
            told.add((walk.partition, step.value))
            send = facts.sends.get(step.value)
            if send is None:
                why = "which nobody sent"
            elif send.partition != walk.partition:
                why = f"which was sent to {send.partition}"
            else:
                why = "whose send had failed"
            yield Anomaly(
                Kind.UNWRITTEN_READ,
                f"{_reader(walk, step)} read {step.value}, {why}",
                _events(send, facts.fails.get(step.value), step.event),
            )


def skipped_polls(facts: Facts) -> Iterator[Anomaly]:
    """A walk that goes past the offset of a value that every reader must be shown.

    Such a value was acknowledged, or read by anybody, without a transaction or in a committed one.
    A walk goes from the offset it was assigned, if one is told, over each record it was given to
    the end it was told of. What no final read has is told of by `lost_writes` or
    `torn_transactions`, and not by each reader again.
    """
    standing: dict[TopicPartition, tuple[list[int], list[int]]] = {}
    for partition, places in facts.in_order.items():
        shown = [
            (offset, value)
            for offset, value, _ in places
            if facts.stands(value) and not facts.is_missing(value)
        ]
        standing[partition] = [one for one, _ in shown], [value for _, value in shown]
    for walk in facts.walks:
        offsets, values = standing.get(walk.partition, ([], []))
        position, before = walk.assign.partitions[walk.partition], None
        for step in walk.steps:
            if position is not None and step.offset > position:
                first, last = bisect_left(offsets, position), bisect_left(offsets, step.offset)
                if first < last:
                    passed = values[first:last]
                    told = facts.places[walk.partition]
                    shows = (
                        told[place]
                        for place in zip(offsets[first:last], passed[:TOLD], strict=False)
                    )
                    yield Anomaly(
                        Kind.SKIPPED_POLL,
                        f"{_reader(walk, step)} came there from {position},"
                        f" past {_some(passed)} at offset {_some(offsets[first:last])}",
                        _events(*shows, before.event if before else walk.assign, step.event),
                    )
            position, before = _due_after(step), step


def non_monotonic_polls(facts: Facts) -> Iterator[Anomaly]:
    """A walk that is given an offset before that which was due: it went back, or did not go on."""
    for walk in facts.walks:
        position, before = walk.assign.partitions[walk.partition], None
        for step in walk.steps:
            if step.value is not None and position is not None and step.offset < position:
                yield Anomaly(
                    Kind.NON_MONOTONIC_POLL,
                    f"{_reader(walk, step)} read {step.value} when {position} was due",
                    _events(before.event if before else walk.assign, step.event),
                )
            position, before = _due_after(step), step


def aborted_reads(facts: Facts) -> Iterator[Anomaly]:
    """A read_committed reader has a value of a transaction that is told to be aborted."""
    for walk, step, send in _committed_reads(facts):
        transaction = facts.transaction_of(send.value)
        if transaction is not None and transaction.is_aborted:
            yield Anomaly(
                Kind.ABORTED_READ,
                f"{_reader(walk, step)} read {send.value} of {send.txn}, which is aborted",
                _events(send, transaction.end, step.event),
            )


def intermediate_reads(facts: Facts) -> Iterator[Anomaly]:
    """A read_committed reader has a value before its transaction's commit was asked for, if ever.

    Those of aborted transactions are told of by `aborted_reads`.
    """
    for walk, step, send in _committed_reads(facts):
        transaction = facts.transaction_of(send.value)
        if transaction is None or transaction.is_aborted:
            continue
        commit = transaction.commit_begin
        if commit is None or step.event.at < commit.at:
            when = "before its commit began" if commit else "whose commit nobody asked for"
            yield Anomaly(
                Kind.INTERMEDIATE_READ,
                f"{_reader(walk, step)} read {send.value} of {send.txn}, {when}",
                _events(transaction.begin, send, step.event, commit),
            )


def torn_transactions(facts: Facts) -> Iterator[Anomaly]:
    """A transaction of which final reads have some values and lack others that they should have.

    They should have those that were acknowledged at an offset before the end of a complete final
    read. The transaction is committed, or its commit was asked for and nobody knows what came of
    it: then it may be there or not, but as a whole.
    """
    for txn, seen, missing in _torn(facts):
        transaction = facts.transactions[txn]
        outcome = "is committed" if transaction.is_committed else "may be committed"
        yield Anomaly(
            Kind.TORN_TRANSACTION,
            f"{txn} {outcome}; final reads have {_some(send.value for send in seen)}"
            f" of it, and lack {_some(send.value for send in missing)}",
            _events(
                transaction.commit_begin,
                transaction.end,
                *(facts.acks[send.value] for send in missing[:TOLD]),
            ),
        )


def late_writes(facts: Facts) -> Iterator[Anomaly]:
    """A value of a transaction that was written when the transaction had been told to be over.

    It is, when at its offset or before it stands a value, the same one or anybody's, that was sent
    after the end was told. Producers ask for the end when none of their sends is under way, so
    markers that follow the answer are no excuse.
    """
    for places in facts.in_order.values():
        latest: Send | None = None
        for offset, value, event in places:
            send = facts.sends[value]
            if latest is None or send.at > latest.at:
                latest = send
            end = facts.end_of(value)
            if end is not None and latest.at > end.at:
                how = (
                    "it was sent later"
                    if latest is send
                    else f"behind {latest.value}, which was sent later"
                )
                yield Anomaly(
                    Kind.LATE_WRITE,
                    f"{value} was written at offset {offset} of {send.partition} after {send.txn}"
                    f" had been told to be {end.kind}: {how}",
                    _events(send, end, latest, event),
                )


def out_of_order(facts: Facts) -> Iterator[Anomaly]:
    """A value behind one that its producer sent to the same partition after it.

    Of a value at several offsets the first counts.
    """
    for partition, places in facts.in_order.items():
        furthest: dict[str, tuple[int, Send, Event]] = {}
        met: set[int] = set()
        for offset, value, event in places:
            if value in met:
                continue
            met.add(value)
            send = facts.sends[value]
            if send.worker not in furthest or send.at > furthest[send.worker][1].at:
                furthest[send.worker] = offset, send, event
                continue
            before, other, shown = furthest[send.worker]
            if before < offset and other.at > send.at:
                yield Anomaly(
                    Kind.OUT_OF_ORDER,
                    f"{value} is at offset {offset} of {partition}, behind {other.value} at"
                    f" {before}, which {send.worker} sent after it",
                    _events(send, other, shown, event),
                )


CHECKS: tuple[Callable[[Facts], Iterable[Anomaly]], ...] = (
    lost_writes,
    duplicates,
    inconsistent_offsets,
    unwritten_reads,
    skipped_polls,
    non_monotonic_polls,
    aborted_reads,
    intermediate_reads,
    torn_transactions,
    late_writes,
    out_of_order,
)


def _committed_reads(facts: Facts) -> Iterator[tuple[Walk, Step, Send]]:
    """Yield where read_committed readers have transactional values: each value once, the first."""
    first: dict[int, tuple[Walk, Step]] = {}
    for walk in facts.walks:
        if not walk.is_committed:
            continue
        for step in walk.steps:
            value = step.value
            if value is None or not facts.is_written(walk.partition, value):
                continue
            if facts.sends[value].txn is None:
                continue
            if value not in first or step.event.at < first[value][1].event.at:
                first[value] = walk, step
    for value, (walk, step) in first.items():
        yield walk, step, facts.sends[value]


def _torn(facts: Facts) -> Iterator[tuple[str, list[Send], list[Send]]]:
    """Yield torn transactions with what final reads have of them, and what they lack."""
    for txn, transaction in facts.transactions.items():
        if transaction.commit_begin is None or transaction.is_aborted:
            continue
        missing = [send for send in transaction.sends if facts.is_missing(send.value)]
        if missing:
            seen = [send for send in transaction.sends if send.value in facts.finally_seen]
            if seen:
                yield txn, seen, missing


def _due_after(step: Step) -> int:
    """Return the offset that a walk reads next."""
    return step.offset if step.value is None else step.offset + 1


def _reader(walk: Walk, step: Step) -> str:
    where = f"offset {step.offset}" if step.value is not None else f"the end, {step.offset},"
    return f"{walk.assign.worker}, at {where} of {walk.partition},"


def _some(numbers: Iterable[int]) -> str:
    """Name numbers, the first ones if they are many."""
    all_of_them = list(numbers)
    named = ", ".join(map(str, all_of_them[:TOLD]))
    return named + (f" and {len(all_of_them) - TOLD} more" if len(all_of_them) > TOLD else "")


def _events(*events: Event | None) -> tuple[Event, ...]:
    """Return the events there are, each once, in the order of their times."""
    once = {id(event): event for event in events if event is not None}
    return tuple(sorted(once.values(), key=lambda event: event.at))
