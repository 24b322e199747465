"""What the workers of a run did and saw: the events, the files they write, and reading these.

A file has one event a line, as JSON, each written out before its worker goes on; so a worker that
is killed leaves all but, at most, a cut last line. Every worker has a file of its own; those of a
run are read together and put in order by time. What they mean is judged by tests/checker/checks.py.

Three rules make a history mean something:

- An event is made in the moment that it tells of: a begin, a send, a commit before it is asked for;
  an answer or a poll once it is there. Then "before" between two workers of a host is certain.
- A worker is one producer or one consumer for its life. Who makes another, or is started again
  after a crash, takes a new name.
- A value is a number, and sent once in a run; so is the name of a transaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from plog.types import TopicPartition

Record = tuple[int, int]
"""The offset and the value of a record that a consumer was given."""


class HistoryError(ValueError):
    """A history that cannot be true: of the workers' making, not the broker's."""


class Why(StrEnum):
    """Why a consumer reads from where it does."""

    REBALANCE = "rebalance"
    """It has just these partitions from now on, by a group or by its own choice."""
    SEEK = "seek"
    """It goes elsewhere in these; what else it has stays."""
    FINAL = "final"
    """As REBALANCE; it reads each from the log's start, when nobody writes any more."""


class Isolation(StrEnum):
    """What a consumer wants of transactions."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class Event:
    """What a worker did or was told at a time (CLOCK_MONOTONIC, ns)."""

    kind: ClassVar[str]
    worker: str
    at: int = field(default_factory=time.monotonic_ns, kw_only=True)


@dataclass(frozen=True, slots=True)
class Begin(Event):
    """A producer begins a transaction."""

    kind = "begin"
    txn: str


@dataclass(frozen=True, slots=True)
class Send(Event):
    """A producer is about to send a value, in a transaction or without."""

    kind = "send"
    partition: TopicPartition
    value: int
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Ack(Event):
    """The value is written; the offset is None where the broker did not say it."""

    kind = "ack"
    value: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Fail(Event):
    """The value is not written, and never will be."""

    kind = "fail"
    value: int


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """The value may be written or not; an Ack or a Fail can follow."""

    kind = "unknown"
    value: int


@dataclass(frozen=True, slots=True)
class CommitBegin(Event):
    """A producer is about to ask for a commit."""

    kind = "commit-begin"
    txn: str


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """The transaction is committed."""

    kind = "committed"
    txn: str


@dataclass(frozen=True, slots=True)
class AbortBegin(Event):
    """A producer is about to ask for an abort."""

    kind = "abort-begin"
    txn: str


@dataclass(frozen=True, slots=True)
class Aborted(Event):
    """The transaction is aborted, by whoever writes this, and surely was not committed."""

    kind = "aborted"
    txn: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown(Event):
    """The commit or abort got no answer that says what has become of the transaction."""

    kind = "outcome-unknown"
    txn: str


@dataclass(frozen=True, slots=True)
class Assign(Event):
    """A consumer has partitions to read; with each the offset it reads from, None if unknown."""

    kind = "assign"
    partitions: dict[TopicPartition, int | None]
    why: Why
    isolation: Isolation = Isolation.COMMITTED


@dataclass(frozen=True, slots=True)
class Poll(Event):
    """A consumer was given records, in this order in each partition."""

    kind = "poll"
    records: dict[TopicPartition, list[Record]]


@dataclass(frozen=True, slots=True)
class EndOfPartition(Event):
    """A consumer was told that it is at the end; `offset` is what it would read next."""

    kind = "end-of-partition"
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Crash(Event):
    """The worker is gone; whoever ended it writes this, into another file."""

    kind = "crash"


KINDS: dict[str, type[Event]] = {
    one.kind: one
    for one in (
        *(Begin, Send, Ack, Fail, Unknown),
        *(CommitBegin, Committed, AbortBegin, Aborted, OutcomeUnknown),
        *(Assign, Poll, EndOfPartition, Crash),
    )
}
FIELDS = {one: tuple(field.name for field in fields(one)) for one in KINDS.values()}


def to_line(event: Event) -> str:
    """Return the event's line, without the newline."""
    told: dict[str, Any] = {"at": event.at, "worker": event.worker, "kind": event.kind}
    for name in FIELDS[type(event)][2:]:
        value = getattr(event, name)
        if isinstance(value, TopicPartition):
            value = str(value)
        elif isinstance(value, dict):
            value = {str(partition): what for partition, what in value.items()}
        told[name] = value
    return json.dumps(told, separators=(",", ":"))


_partitions: dict[str, TopicPartition] = {}


def _to_partition(text: str) -> TopicPartition:
    if text not in _partitions:
        topic, _, number = text.rpartition("-")
        _partitions[text] = TopicPartition(topic, int(number))
    return _partitions[text]


FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "partition": _to_partition,
    "partitions": lambda found: {_to_partition(one): start for one, start in found.items()},
    "records": lambda found: {
        _to_partition(one): [(offset, value) for offset, value in records]
        for one, records in found.items()
    },
    "why": Why,
    "isolation": Isolation,
}


def from_line(line: str | bytes) -> Event:
    """Return the event that a line tells of.

    Raises:
        HistoryError: it is no event.
    """
    try:
        told = json.loads(line)
        kind = KINDS[told.pop("kind")]
        for name in told.keys() & FROM_JSON.keys():
            told[name] = FROM_JSON[name](told[name])
        return kind(**told)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HistoryError(f"no event: {error!r} in {line!r}") from error


class HistoryWriter:
    """Writes a new file of events. Threads may share one; processes have one each."""

    def __init__(self, path: Path) -> None:
        # Not one that is there: its last line may be cut.
        self._file = path.open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, event: Event) -> None:
        """Write an event out: from here on it outlives the worker, though not the host."""
        self._file.write(to_line(event).encode() + b"\n")
        self._file.flush()


@dataclass
class History:
    """The events of a run in the order of their times, and what could not be read."""

    events: list[Event]
    cut: list[str] = field(default_factory=list)
    """A sentence for each file whose last line is cut."""

    def __post_init__(self) -> None:
        # Stable: events of one file and one time stay in the order in which they were written.
        self.events = sorted(self.events, key=lambda event: event.at)


def read_history(paths: Iterable[Path]) -> History:
    """Read the files of one run. A line counts once its newline is there.

    Raises:
        HistoryError: a line that is not cut is no event.
        OSError: a file cannot be read.
    """
    events: list[Event] = []
    cut: list[str] = []
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    cut.append(f"{path}: line {number}, the last, is cut after {len(line)} bytes")
                    continue
                try:
                    events.append(from_line(line))
                except HistoryError as error:
                    raise HistoryError(f"{path}:{number}: {error}") from error
    return History(events, cut)
