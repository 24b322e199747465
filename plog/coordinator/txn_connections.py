"""The connections of a producer, from which plog recognises its late requests.

Owns the rule for producers whose transactions share an epoch (versions 0 and 1). A delayed request
does not show to which transaction it belongs, but its connection does: a client uses one connection
at a time to a broker for each kind of request. So once the client has used a later connection and
the transaction has ended, a request on an earlier connection belongs to that transaction or to an
older one. Clients differ in which kinds share a connection: Java's producer has one for all,
librdkafka another one for its coordinator, franz-go another one for Produce. Two kinds seen on the
same connection count as sharing it.

Pure, and without memory over a restart or another epoch. Within a transaction no request is late,
so that clients with several connections are rarely refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

from plog.types import TopicPartition


class Way(Enum):
    """Kinds of transactional requests; a client uses one connection at a time for each."""

    COORDINATOR = auto()  # AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
    PRODUCE = auto()
    OFFSETS = auto()  # TxnOffsetCommit


class Sender(NamedTuple):
    """The kind and the connection of a request; later connections have higher numbers."""

    way: Way
    connection: int


class TxnConnections:
    """The connections of one producer, in one epoch."""

    def __init__(self) -> None:
        self._latest: dict[Way, int] = {}
        self._least: dict[Way, int] = {}  # requests on earlier connections are late
        self._shared: set[frozenset[Way]] = set()  # pairs
        self._given: dict[TopicPartition, int] = {}  # the connection with permission to write
        self._asked: set[TopicPartition] = set()

    def is_late(self, sender: Sender) -> bool:
        """Return whether a request belongs to an ended transaction."""
        return sender.connection < self._least.get(sender.way, 0)

    def note(self, sender: Sender) -> None:
        """Record a request that is not late."""
        way, connection = sender
        for other, its in self._latest.items():
            if other is not way and its == connection:
                self._shared.add(frozenset((way, other)))
        self._latest[way] = max(connection, self._latest.get(way, 0))

    def give(self, partitions: Iterable[TopicPartition], connection: int) -> None:
        """Record that first writes on a connection skip verification."""
        self._given |= dict.fromkeys(partitions, connection)

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that first writes were verified after all."""
        self._asked.update(partitions)

    @property
    def unasked(self) -> Mapping[TopicPartition, int]:
        """The connection of the first write that skipped verification, by partition."""
        return {at: by for at, by in self._given.items() if at not in self._asked}

    def end(self, connection: int) -> None:
        """Record the end of a transaction: earlier connections are late from now on."""
        self.note(Sender(Way.COORDINATOR, connection))
        # Not the latest connection of AddPartitionsToTxn: only the end counts.
        latest = {**self._latest, Way.COORDINATOR: connection}
        for way in Way:
            least = max(latest.get(one, 0) for one in self._sharing(way))
            self._least[way] = max(least, self._least.get(way, 0))
        self._given.clear()
        self._asked.clear()

    def _sharing(self, way: Way) -> Iterator[Way]:
        """Yield the kinds that share the connection of a kind, including itself."""
        found = {way}
        while more := {one for pair in self._shared if pair & found for one in pair} - found:
            found |= more
        return iter(found)
