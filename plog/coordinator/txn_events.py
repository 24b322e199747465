"""The events and effects of a transactional id's machine.

Plain values without behaviour, so that a scenario can write and compare them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from plog.coordinator.txn_connections import NO_CONNECTION, ClientConnection
from plog.coordinator.txn_states import TxnState
from plog.errors import ErrorCode
from plog.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

Token: TypeAlias = Hashable
"""Identifies a request that waits for its response."""


class Producer(NamedTuple):
    """A producer id and epoch, as a client gives them."""

    id: int
    epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class TxnValue:
    """The value of a transactional id in `__transaction_state`. Times in ms.

    `previous_producer_id` and `next_producer_id` belong to a change of the id after its epochs were
    used up (KIP-890). `client_version` is 2 if the client's epoch rises with each transaction.
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
        """The current producer of the transactional id."""
        return Producer(self.producer_id, self.producer_epoch)


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducer:
    """InitProducerId: a client starts or continues as the producer of the transactional id.

    Args:
        was: the id and epoch of a producer that continues (KIP-360); None for one that starts.
        spare_producer_id: an unused producer id, if one may be necessary.
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
        now_ms: the wall clock, for the log.
        monotonic_ms: start of the timeout, if this event begins the transaction.
        connection: as for `EndTxn`; None for a client of version 2.
        awaits_markers: wait until the transaction before has ended, instead of an error.
    """

    token: Token
    producer: Producer
    partitions: frozenset[TopicPartition]
    now_ms: int
    monotonic_ms: int
    client_version: int = 0
    connection: ClientConnection | None = None
    awaits_markers: bool = True


@dataclass(frozen=True, slots=True)
class EndTxn:
    """EndTxn: commit or abort.

    Args:
        client_version: 2 raises the epoch with the end (v5, KIP-890).
        spare_producer_id: as for `InitProducer`.
        connection: that of the request.
    """

    token: Token
    producer: Producer
    commit: bool
    now_ms: int
    client_version: int = 0
    spare_producer_id: int = NO_PRODUCER_ID
    connection: ClientConnection = NO_CONNECTION


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request with this token has waited long enough."""

    token: Token


@dataclass(frozen=True, slots=True)
class LookAtTimeout:
    """Abort the transaction if its timeout has expired.

    Args:
        now_ms: trusted time, which gives the age of a transaction loaded from the log.
    """

    now_ms: int
    monotonic_ms: int


@dataclass(frozen=True, slots=True)
class LookAtAge:
    """Remove the transactional id if it has been unused for `expiration_ms`.

    Args:
        now_ms: trusted time.
    """

    now_ms: int
    expiration_ms: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a `Store`."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PartitionMarked:
    """A partition's marker is committed; other partitions may still wait."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class MarkerRefused:
    """A partition refuses this coordinator's marker, so the transaction must be ended otherwise."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """The markers of all partitions are committed, or no longer necessary."""

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


# --- effects --------------------------------------------------------------------------------------


class TxnAnswer(NamedTuple):
    """The response to a request: an error, and the producer id and epoch if it returns them."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class Answer:
    """Respond to a request."""

    token: Token
    answer: TxnAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Write the value to the log (None deletes it); report the result with `Stored`."""

    ticket: int
    value: TxnValue | None


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """End the producer's transaction in these partitions.

    Report `PartitionMarked` for each partition, then `MarkersWritten`. If a partition refuses its
    marker, report `MarkerRefused` first, and `PartitionMarked` once the transaction ended there.
    """

    producer: Producer
    commit: bool
    partitions: frozenset[TopicPartition]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class CompleteLater:
    """Storing the completion failed: report `MarkersWritten` again soon."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The transactional id has been removed."""


Effect: TypeAlias = Answer | Store | WriteMarkers | CompleteLater | Forgotten
