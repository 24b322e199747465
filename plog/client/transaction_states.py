"""The states of a transactional producer as a table, and what one transaction has come to.

Owns every decision about what may be asked when, and which failure costs the transaction and which
the producer. Pure: calls and news in, states out; asks no broker. Two threads use it, the
application's and the sender's, under a lock of its own.

    UNINITIALIZED -- init --> READY -- begin --> IN_TRANSACTION -- commit --> COMMITTING --.
                               ^  ^                  |    '--- abort --> ABORTING --.       |
                               |  |               failure                  ^        |       |
                               |  |                  v                     |      ended   ended
                               |  |           ABORTABLE_ERROR -- abort ----'        |       |
                               |  '-------------------------------------------------'       |
                               '------------------------------------------------------------'
    IN_TRANSACTION -- prepare --> PREPARED: everything is written, and whoever has the producer's
    numbers may end the transaction (KIP-939); from there commit, abort and failures go as above.
    From each of them a producer that is fenced, or refused for good, goes to FATAL_ERROR.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from plog.errors import ErrorCode, InvalidTxnState, KafkaError, PlogError, ProducerFenced
from plog.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition


class State(Enum):
    """What a transactional producer is at."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class Call(Enum):
    """What the application asks for."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


class News(Enum):
    """What has happened."""

    INITIALIZED = "there is a producer id and an epoch"
    ENDED = "the transaction has ended as it was asked to"
    FAILED = "something of the transaction failed"
    REFUSED = "the producer is fenced, or refused for good"


ASKED: Mapping[tuple[State, Call], State] = {
    (State.UNINITIALIZED, Call.INIT): State.UNINITIALIZED,
    (State.READY, Call.BEGIN): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Call.SEND): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Call.SEND_OFFSETS): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Call.PREPARE): State.PREPARED,
    (State.IN_TRANSACTION, Call.COMMIT): State.COMMITTING,
    (State.IN_TRANSACTION, Call.ABORT): State.ABORTING,
    (State.PREPARED, Call.COMMIT): State.COMMITTING,
    (State.PREPARED, Call.ABORT): State.ABORTING,
    (State.ABORTABLE_ERROR, Call.ABORT): State.ABORTING,
    # Once more, after no answer came in time. What was asked for may have happened, so the other
    # thing cannot be asked for any more.
    (State.COMMITTING, Call.COMMIT): State.COMMITTING,
    (State.ABORTING, Call.ABORT): State.ABORTING,
}
"""What follows a call; one that is not here is refused."""

HEARD: Mapping[tuple[State, News], State] = {
    (State.UNINITIALIZED, News.INITIALIZED): State.READY,
    (State.COMMITTING, News.ENDED): State.READY,
    (State.ABORTING, News.ENDED): State.READY,
    (State.IN_TRANSACTION, News.FAILED): State.ABORTABLE_ERROR,
    (State.PREPARED, News.FAILED): State.ABORTABLE_ERROR,
    (State.COMMITTING, News.FAILED): State.ABORTABLE_ERROR,
    **{(state, News.REFUSED): State.FATAL_ERROR for state in State},
}
"""What follows news; where they are not here, nothing changes."""

DROPPING = frozenset({State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR})
"""No record goes out: none of this transaction will be committed."""

FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
FATAL = FENCED | {
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}
"""Refusals that no later transaction of this producer would escape."""


class TransactionAborted(PlogError):
    """The record was not sent: its transaction is aborted, or cannot be committed any more."""


class ProducerIdentity(NamedTuple):
    """The numbers that all batches of a transaction carry."""

    id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class PreparedTransaction(NamedTuple):
    """A transaction that is written, and ends as whoever has these numbers decides (KIP-939)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Progress:
    """What the producer of a transactional id is at, and what its transaction holds. Thread-safe.

    Attributes:
        takes_records: whether `send` can be asked for, by `ASKED`.
        is_dropping: whether records that have not been sent are dropped.
        producer: its id and epoch; changed only while no record is on its way.
        error: why the transaction, or the producer, is in an error state; the first failure.
        joined: partitions that the coordinator has said to be in the transaction.
        groups: groups whose offsets are in it.
        may_be_open: the coordinator was asked for something to join, so it may wait for an end.
        is_open: it said that something has.
        is_unsure: the fate of numbers, or of a request, is unknown. Only a new epoch keeps what may
            still be on its way out of the next transaction (KIP-360).
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.producer = ProducerIdentity()
        self.error: PlogError | None = None
        self.joined: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self.may_be_open = self.is_open = self.is_unsure = False
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """What the producer is at."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        # Kept, as they are asked for every record and batch: to look a state up in a table costs
        # half as much as to add a record.
        self.takes_records = (state, Call.SEND) in ASKED
        self.is_dropping = state in DROPPING

    # -- what is asked for

    def ask(self, call: Call) -> None:
        """Go on as the application wants.

        Raises:
            InvalidTxnState: that cannot be asked for now. In an error state its cause is the first
                failure; `prepare` and `commit` raise that itself, and every call a fatal one.
        """
        with self._lock:
            following = ASKED.get((self.state, call))
            if following is None:
                raise self._refusal(call)
            self.state = following
            if call is Call.BEGIN:
                self.joined.clear()
                self.groups.clear()
                self.may_be_open = self.is_open = False

    def check(self, call: Call) -> None:
        """Look whether something can be asked for, and change nothing. Raises as `ask`."""
        if (self.state, call) not in ASKED:
            raise self._refusal(call)

    def _refusal(self, call: Call) -> PlogError:
        error = self.error
        if error is not None and (
            self.state is State.FATAL_ERROR
            or (self.state is State.ABORTABLE_ERROR and call in (Call.PREPARE, Call.COMMIT))
        ):
            return error
        what = f"{call.value}: transactional id {self.transactional_id!r} is at"
        if error is None or self.state is not State.ABORTABLE_ERROR:
            return InvalidTxnState(f"{what}: {self.state.value}")
        refusal = InvalidTxnState(
            f"{what}: {self.state.value}; the transaction can only be aborted: {error}"
        )
        refusal.__cause__ = error
        return refusal

    def drop_reason(self) -> TransactionAborted:
        """Return what dropped records fail with."""
        why = "it is aborted" if self.error is None else f"it cannot be committed: {self.error}"
        reason = TransactionAborted(f"not sent with its transaction: {why}")
        reason.__cause__ = self.error
        return reason

    # -- what happens

    def initialized(self, producer: ProducerIdentity) -> None:
        """Take note of who the producer is from now on; sequences start at 0."""
        with self._lock:
            self.producer, self.is_unsure = producer, False
            self._hear(News.INITIALIZED)

    def asked_to_join(self) -> None:
        """Take note that the coordinator is about to be asked for something to join."""
        self.may_be_open = True

    def has_joined(self) -> None:
        """Take note that the coordinator has let something join."""
        self.is_open = True

    def ended_there(self) -> None:
        """Take note that the coordinator waits for no end any more."""
        self.may_be_open = self.is_open = False

    def ended(self) -> None:
        """Take note that the transaction is over."""
        with self._lock:
            self._hear(News.ENDED)
            if self.state is State.READY:
                self.error = None

    def fail(self, fault: PlogError, *, is_unsure: bool) -> PlogError:
        """Take note of a failure; return what the application is told of it.

        Args:
            is_unsure: what failed had numbers, or its fate is unknown.
        """
        is_fatal = isinstance(fault, KafkaError) and fault.code in FATAL
        return self._fail(fault, News.REFUSED if is_fatal else News.FAILED, is_unsure=is_unsure)

    def refuse(self, fault: PlogError) -> PlogError:
        """Take note of a failure that the producer cannot go on after; return what is told."""
        return self._fail(fault, News.REFUSED, is_unsure=True)

    def _fail(self, fault: PlogError, news: News, *, is_unsure: bool) -> PlogError:
        told = self._told(fault)
        with self._lock:
            self.is_unsure = self.is_unsure or is_unsure
            before = self.state
            self._hear(news)
            if self.state is not before:
                self.error = told
        return told

    def _told(self, fault: PlogError) -> PlogError:
        if not isinstance(fault, KafkaError) or fault.code not in FENCED:
            return fault
        told = ProducerFenced(
            f"transactional id {self.transactional_id!r} has another producer, or its transaction"
            f" took longer than it may: {fault}"
        )
        told.__cause__ = fault
        return told

    def _hear(self, news: News) -> None:
        self.state = HEARD.get((self.state, news), self.state)
