"""The vocabulary of a transactional id: what happens to its machine, and what it wants done.

Plain values, so that a scenario can write them down and compare them. No behaviour.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from plog.coordinator.txn_states import TxnState
from plog.errors import ErrorCode
from plog.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

Token: TypeAlias = Hashable
"""Names a request that waits for its answer."""


class Producer(NamedTuple):
    """A producer id and the epoch that its holder believes in."""

    id: int
    epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class TxnValue:
    """What `__transaction_state` says of a transactional id. Times in ms.

    `previous_producer_id` and `next_producer_id` are those that a used-up epoch has brought
    (KIP-890); `client_version` is 2 for clients that raise their epoch with each transaction.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TxnState
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = NO_TIMESTAMP
    started_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def producer(self) -> Producer:
        """Who may use the transactional id."""
        return Producer(self.producer_id, self.producer_epoch)


# --- what happens ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducer:
    """InitProducerId: somebody wants to be the producer of the transactional id.

    Args:
        was: who it believes to be (KIP-360); None for a producer that starts.
        spare_producer_id: an id that nobody has had, if one may be needed.
    """

    token: Token
    timeout_ms: int
    now_ms: int
    was: Producer | None = None
    spare_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn, or the first write of a client of version 2.

    Args:
        now_ms: what the clock says, for the log.
        monotonic_ms: from when on the transaction's time is counted, if it begins by this.
        connection: as for `EndTxn`; None for a client of version 2.
    """

    token: Token
    producer: Producer
    partitions: frozenset[TopicPartition]
    now_ms: int
    monotonic_ms: int
    client_version: int = 0
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class EndTxn:
    """EndTxn: commit or abort.

    Args:
        client_version: 2 raises the epoch with the end (v5, KIP-890).
        spare_producer_id: as for `InitProducer`.
        connection: the number of the connection that it came by; later ones have higher numbers.
    """

    token: Token
    producer: Producer
    commit: bool
    now_ms: int
    client_version: int = 0
    spare_producer_id: int = NO_PRODUCER_ID
    connection: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Whoever waits with this token waits no longer."""

    token: Token


@dataclass(frozen=True, slots=True)
class LookAtTimeout:
    """Abort a transaction that has taken too long.

    Args:
        now_ms: the time that is believed: since a start it alone tells how old a transaction is.
    """

    now_ms: int
    monotonic_ms: int


@dataclass(frozen=True, slots=True)
class LookAtAge:
    """Forget the transactional id if nobody has used it for so long.

    Args:
        now_ms: the time that is believed.
    """

    now_ms: int
    expiration_ms: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a `Store`."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PartitionMarked:
    """A partition has its marker, safely, and others may not yet."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class MarkerRefused:
    """A partition takes no marker of this coordinator: somebody else has to end what is open."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """Every partition has its marker, safely, or needs none any more."""

    now_ms: int


Event: TypeAlias = (
    InitProducer
    | AddPartitions
    | EndTxn
    | GiveUp
    | LookAtTimeout
    | LookAtAge
    | Stored
    | PartitionMarked
    | MarkerRefused
    | MarkersWritten
)


# --- what is to be done ---------------------------------------------------------------------------


class TxnAnswer(NamedTuple):
    """What a request is told; the producer that it is from now on, for those who ask."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request."""

    token: Token
    answer: TxnAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Write the value down, None to delete it; say with `Stored` what became of it."""

    ticket: int
    value: TxnValue | None


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """End the producer's transaction in these partitions.

    Say so with `PartitionMarked` for each, and with `MarkersWritten`. One that refuses its marker
    is told of with `MarkerRefused` before, and has it once the transaction has ended there.
    """

    producer: Producer
    commit: bool
    partitions: frozenset[TopicPartition]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class CompleteLater:
    """The markers are written, and the log would not take it: say `MarkersWritten` again soon."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Nothing is kept of the transactional id any more."""


Effect: TypeAlias = Answer | Store | WriteMarkers | CompleteLater | Forgotten
