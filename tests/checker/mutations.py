"""Mistakes planted in a history that has none: for each kind of anomaly, what brings it about.

A mutation takes the facts of a correct history and chance, and returns the changed events with the
value that they are wrong about, or None where the history has no room for such a mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from plog.types import TopicPartition

from .checks import Kind
from .facts import Facts
from .history import Ack, Assign, Crash, Event, Fail, Isolation, Poll, Record, Send, Unknown, Why

Planted = tuple[list[Event], int]
Mutation = Callable[[list[Event], Facts, random.Random], Planted | None]
Option = TypeVar("Option")

NEVER_SENT = 10**9


def lose_write(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """Nobody has read an owed value without a transaction, which final reads did pass."""
    value = _any(chance, [one for one in _finally_read(facts) if facts.sends[one].txn is None])
    return None if value is None else (_without(events, value), value)


def tear_transaction(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """Nobody has read one value of a transaction of several."""
    read = [one for one in _finally_read(facts) if facts.sends[one].txn is not None]
    txns = [facts.sends[one].txn for one in facts.finally_seen]
    value = _any(chance, [one for one in read if txns.count(facts.sends[one].txn) > 1])
    return None if value is None else (_without(events, value), value)


def write_twice(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A value is read at another offset too."""
    value = _any(chance, sorted(facts.finally_seen))
    if value is None:
        return None
    partition = facts.sends[value].partition
    offset = max(offset for offset, _ in facts.places[partition]) + chance.randrange(1, 3)
    return [*events, *_reading(events[-1].at + 1, partition, (offset, value))], value


def write_over(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """At the offset of an acknowledged value another one is read."""
    acks = [ack for ack in facts.acks.values() if ack.offset is not None]
    ack = _any(chance, acks)
    if ack is None or ack.offset is None:
        return None
    partition = facts.sends[ack.value].partition
    others = {value for _, value in facts.places[partition]} - {ack.value}
    other = _any(chance, sorted(others))
    if other is None:
        return None
    return [*events, *_reading(events[-1].at + 1, partition, (ack.offset, other))], ack.value


def make_up(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A value is read that nobody sent, or one whose send failed."""
    read = _finally_read(facts)
    if chance.random() < 0.5 and read:
        value = chance.choice(read)
        ack = facts.acks[value]
        return [Fail(ack.worker, value, at=ack.at) if one is ack else one for one in events], value
    partition = chance.choice(list(facts.places) or [TopicPartition("t", 0)])
    return [*events, *_reading(events[-1].at + 1, partition, (0, NEVER_SENT))], NEVER_SENT


def skip(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A reader is not given a value on its way, which a final read has."""
    found = [
        step
        for walk in facts.walks
        if not walk.is_final
        for before, step, after in zip(walk.steps, walk.steps[1:], walk.steps[2:], strict=False)
        if before.offset < step.offset < after.offset
        and step.value in facts.finally_seen
        and facts.stands(step.value)
    ]
    step = _any(chance, found)
    if step is None or step.value is None or not isinstance(step.event, Poll):
        return None
    return _instead(events, step.event, _dropping(step.event, step.value)), step.value


def go_back(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A poll has two records the wrong way round."""
    found = [
        (event, partition, at)
        for event in events
        if isinstance(event, Poll)
        for partition, records in event.records.items()
        for at in range(len(records) - 1)
    ]
    chosen = _any(chance, found)
    if chosen is None:
        return None
    poll, partition, at = chosen
    records = list(poll.records[partition])
    records[at : at + 2] = records[at + 1], records[at]
    changed = replace(poll, records=poll.records | {partition: records})
    return _instead(events, poll, changed), records[at + 1][1]


def read_aborted(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A read_committed reader has a value that was aborted."""
    found = [
        (ack, ack.offset)
        for ack in facts.acks.values()
        if ack.offset is not None
        and (transaction := facts.transaction_of(ack.value))
        and transaction.is_aborted
    ]
    chosen = _any(chance, found)
    if chosen is None:
        return None
    ack, offset = chosen
    partition = facts.sends[ack.value].partition
    return [*events, *_reading(events[-1].at + 1, partition, (offset, ack.value))], ack.value


def read_early(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A read_committed reader has a value before its transaction's commit begins."""
    found = [
        (ack, ack.offset, transaction.commit_begin)
        for ack in facts.acks.values()
        if ack.offset is not None
        and (transaction := facts.transaction_of(ack.value))
        and transaction.commit_begin
        and not transaction.is_aborted
    ]
    chosen = _any(chance, found)
    if chosen is None:
        return None
    ack, offset, commit = chosen
    partition = facts.sends[ack.value].partition
    return [*events, *_reading(commit.at - 5, partition, (offset, ack.value))], ack.value


def write_late(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """A value is written in its transaction when that has ended, as the times or offsets show."""
    found = [
        (ack, transaction.end)
        for ack in facts.acks.values()
        if ack.offset is not None and (transaction := facts.transaction_of(ack.value))
        if transaction.end
    ]
    chosen = _any(chance, found)
    if chosen is None:
        return None
    late, end = chosen
    assert late.offset is not None
    crashed = {event.worker for event in events if isinstance(event, Crash)}
    # The one that is sent later by the new history: itself, or one before it.
    moved = _any(
        chance,
        [
            ack.value
            for ack in facts.acks.values()
            if facts.sends[ack.value].partition == facts.sends[late.value].partition
            and ack.offset is not None
            and ack.offset <= late.offset
            and ack.worker not in crashed
        ],
    )
    if moved is None:
        return None
    changed: list[Event] = []
    for event in events:
        if isinstance(event, Send | Ack | Unknown) and event.value == moved:
            event = replace(event, at=max(event.at, end.at + (1 if isinstance(event, Send) else 2)))
        changed.append(event)
    return changed, late.value


def reorder(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """Two values of a producer and partition have each other's offsets, for whoever was told."""
    found: list[tuple[int, int]] = []
    for places in facts.in_order.values():
        last: dict[tuple[str, str | None], int] = {}
        for _, value, _ in places:
            send = facts.sends[value]
            if value in facts.acks and facts.acks[value].offset is not None:
                producer = (send.worker, send.txn)
                if producer in last:
                    found.append((last[producer], value))
                last[producer] = value
    pair = _any(chance, found)
    if pair is None:
        return None
    first, second = pair
    other = {first: second, second: first}
    changed: list[Event] = []
    for event in events:
        if isinstance(event, Ack) and event.value in other:
            event = replace(event, offset=facts.acks[other[event.value]].offset)
        elif isinstance(event, Poll):
            swapped = {
                partition: [(offset, other.get(value, value)) for offset, value in records]
                for partition, records in event.records.items()
            }
            event = replace(event, records=swapped)
        changed.append(event)
    return changed, first


def overlook(events: list[Event], facts: Facts, chance: random.Random) -> Planted | None:
    """No anomaly: an owed value at an offset that was not told, which nobody has read."""
    value = _any(chance, _finally_read(facts))
    if value is None:
        return None
    ack = facts.acks[value]
    return _instead(_without(events, value), ack, replace(ack, offset=None)), value


MUTATIONS: dict[Kind, Mutation] = {
    Kind.LOST_WRITE: lose_write,
    Kind.DUPLICATE: write_twice,
    Kind.INCONSISTENT_OFFSET: write_over,
    Kind.UNWRITTEN_READ: make_up,
    Kind.SKIPPED_POLL: skip,
    Kind.NON_MONOTONIC_POLL: go_back,
    Kind.ABORTED_READ: read_aborted,
    Kind.INTERMEDIATE_READ: read_early,
    Kind.TORN_TRANSACTION: tear_transaction,
    Kind.LATE_WRITE: write_late,
    Kind.OUT_OF_ORDER: reorder,
}


def _any(chance: random.Random, options: list[Option]) -> Option | None:
    return chance.choice(options) if options else None


def _finally_read(facts: Facts) -> list[int]:
    """Return the owed values that final reads have, at offsets that were told, before the end."""
    return [
        ack.value
        for ack in facts.acks.values()
        if ack.offset is not None
        and facts.is_owed(ack.value)
        and ack.value in facts.finally_seen
        and ack.offset < facts.final_ends.get(facts.sends[ack.value].partition, 0)
    ]


def _instead(events: list[Event], old: Event, new: Event) -> list[Event]:
    return [new if event is old else event for event in events]


def _dropping(poll: Poll, value: int) -> Poll:
    records = {
        partition: [record for record in records if record[1] != value]
        for partition, records in poll.records.items()
    }
    return replace(poll, records=records)


def _without(events: list[Event], value: int) -> list[Event]:
    return [_dropping(event, value) if isinstance(event, Poll) else event for event in events]


def _reading(at: int, partition: TopicPartition, record: Record) -> list[Event]:
    """Return the events of one more reader, which reads one record."""
    return [
        Assign("extra", {partition: record[0]}, Why.REBALANCE, Isolation.COMMITTED, at=at),
        Poll("extra", {partition: [record]}, at=at + 1),
    ]
