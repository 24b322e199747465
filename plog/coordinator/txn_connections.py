"""By which connections a producer speaks, and which of its requests come late.

Owns the rule for producers whose transactions share an epoch (versions 0 and 1): of them a request
that a network has kept back says nothing of the transaction that it belonged to. What tells is that
its client has given up the connection that it came by: a client has one at a time to a broker for
requests of a kind, so once a later one was used, and the transaction has ended, what comes by an
earlier one is of that transaction or of one before. Which kinds share a connection differs from
client to client (Java's producer has one for all, librdkafka another one for its coordinator,
franz-go another one for Produce): two kinds that came by the same one are taken to share it.

Pure, and forgetful: a restart or another epoch begins anew. Within a transaction nothing is late,
so that who uses several connections is refused as little as can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

from plog.types import TopicPartition


class Way(Enum):
    """Kinds of requests of a transaction; of each, a client uses one connection at a time."""

    COORDINATOR = auto()  # AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
    PRODUCE = auto()
    OFFSETS = auto()  # TxnOffsetCommit


class Sender(NamedTuple):
    """How a request came: the number of its connection; later ones have higher numbers."""

    way: Way
    connection: int


class TxnConnections:
    """The connections of one producer, in one epoch."""

    def __init__(self) -> None:
        self._latest: dict[Way, int] = {}
        self._least: dict[Way, int] = {}  # what comes by an earlier one is late
        self._shared: set[frozenset[Way]] = set()  # pairs
        self._given: dict[TopicPartition, int] = {}  # by which connection there is leave to write
        self._asked: set[TopicPartition] = set()

    def is_late(self, sender: Sender) -> bool:
        """Tell whether a request is of a transaction that has ended."""
        return sender.connection < self._least.get(sender.way, 0)

    def note(self, sender: Sender) -> None:
        """Take in a request that is not late."""
        way, connection = sender
        for other, its in self._latest.items():
            if other is not way and its == connection:
                self._shared.add(frozenset((way, other)))
        self._latest[way] = max(connection, self._latest.get(way, 0))

    def give(self, partitions: Iterable[TopicPartition], connection: int) -> None:
        """Take in that nobody will be asked about the first writes by a connection."""
        self._given |= dict.fromkeys(partitions, connection)

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """Take in that somebody was asked about a first write all the same."""
        self._asked.update(partitions)

    @property
    def unasked(self) -> Mapping[TopicPartition, int]:
        """By which connection the first write in a partition came, if there was one."""
        return {at: by for at, by in self._given.items() if at not in self._asked}

    def end(self, connection: int) -> None:
        """Take in the end of a transaction: what it was spoken by before is of the past."""
        self.note(Sender(Way.COORDINATOR, connection))
        # Not the latest by which partitions joined: the end is what counts.
        latest = {**self._latest, Way.COORDINATOR: connection}
        for way in Way:
            least = max(latest.get(one, 0) for one in self._sharing(way))
            self._least[way] = max(least, self._least.get(way, 0))
        self._given.clear()
        self._asked.clear()

    def _sharing(self, way: Way) -> Iterator[Way]:
        """Return the kinds that come by the same connection as one does, itself among them."""
        found = {way}
        while more := {one for pair in self._shared if pair & found for one in pair} - found:
            found |= more
        return iter(found)
