"""The connections of a producer, from which plog recognises its late requests.

Owns the rule for producers whose transactions share an epoch (versions 0 and 1). A delayed request
does not show to which transaction it belongs, but its connection does: a client uses one connection
at a time to a broker for each kind of request. So once the client has used a later connection and
the transaction has ended, a request on an earlier connection belongs to that transaction or to an
older one. Clients differ in which kinds share a connection: Java's producer has one for all,
librdkafka another one for its coordinator, franz-go another one for Produce. Two kinds seen on the
same connection of a broker count as sharing it. Connections are compared with those of the same
broker only.

Pure, and without memory over a restart or another epoch. Within a transaction no request is late,
so that clients with several connections are rarely refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import product
from typing import NamedTuple

from plog.types import TopicPartition


class Way(Enum):
    """Kinds of transactional requests; a client uses one connection at a time for each."""

    COORDINATOR = auto()  # AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
    PRODUCE = auto()
    OFFSETS = auto()  # TxnOffsetCommit


class ClientConnection(NamedTuple):
    """A connection of a broker. Its later ones have higher numbers; other brokers' say nothing."""

    broker_id: int
    number: int


NO_CONNECTION = ClientConnection(-1, 0)


class Sender(NamedTuple):
    """The kind and the connection of a request."""

    way: Way
    connection: ClientConnection


Place = tuple[Way, int]
"""A kind of requests, at a broker."""


class TxnConnections:
    """The connections of one producer, in one epoch."""

    def __init__(self) -> None:
        self._latest: dict[Place, int] = {}
        self._least: dict[Place, int] = {}  # requests on earlier connections are late
        self._shared: set[frozenset[Way]] = set()  # pairs
        self._granted: dict[TopicPartition, ClientConnection] = {}  # may write by it unasked
        self._asked: set[TopicPartition] = set()

    def is_late(self, sender: Sender) -> bool:
        """Return whether a request belongs to an ended transaction."""
        way, (broker_id, number) = sender
        return number < self._least.get((way, broker_id), 0)

    def note(self, sender: Sender) -> None:
        """Record a request that is not late."""
        way, (broker_id, number) = sender
        for other in Way:
            if other is not way and self._latest.get((other, broker_id)) == number:
                self._shared.add(frozenset((way, other)))
        self._latest[way, broker_id] = max(number, self._latest.get((way, broker_id), 0))

    def grant(self, partitions: Iterable[TopicPartition], connection: ClientConnection) -> None:
        """Record that first writes on a connection skip verification."""
        self._granted |= dict.fromkeys(partitions, connection)

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that first writes were verified after all."""
        self._asked.update(partitions)

    @property
    def unasked(self) -> Mapping[TopicPartition, ClientConnection]:
        """The connection of the first write that skipped verification, by partition."""
        return {at: by for at, by in self._granted.items() if at not in self._asked}

    def end(self, connection: ClientConnection) -> None:
        """Record the end of a transaction: earlier connections are late from now on."""
        self.note(Sender(Way.COORDINATOR, connection))
        # Not the latest connection of AddPartitionsToTxn: only the end counts.
        latest = {**self._latest, (Way.COORDINATOR, connection.broker_id): connection.number}
        for way, broker_id in product(Way, {broker_id for _, broker_id in latest}):
            least = max(latest.get((one, broker_id), 0) for one in self._sharing(way))
            place = way, broker_id
            self._least[place] = max(least, self._least.get(place, 0))
        self._granted.clear()
        self._asked.clear()

    def _sharing(self, way: Way) -> Iterator[Way]:
        """Yield the kinds that share the connection of a kind, including itself."""
        found = {way}
        while more := {one for pair in self._shared if pair & found for one in pair} - found:
            found |= more
        return iter(found)
