"""The states of a transactional producer as a table, and the state of its transaction.

Owns which call is allowed in which state, and which failure ends the transaction and which the
producer. Pure: calls and events in, states out; sends no request. The application's thread and the
sender's use it, under a lock of its own.

    UNINITIALIZED -- init --> READY -- begin --> IN_TRANSACTION -- commit --> COMMITTING --.
                               ^  ^                  |    '--- abort --> ABORTING --.       |
                               |  |               failure                  ^        |       |
                               |  |                  v                     |      ended   ended
                               |  |           ABORTABLE_ERROR -- abort ----'        |       |
                               |  '-------------------------------------------------'       |
                               '------------------------------------------------------------'
    IN_TRANSACTION -- prepare --> PREPARED: everything is written, and any client with the
    producer's id and epoch may end the transaction (KIP-939). Commit, abort and failures lead on as
    above. A producer that is fenced or refused for good goes from every state to FATAL_ERROR.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from plog.errors import ErrorCode, InvalidTxnState, KafkaError, PlogError, ProducerFenced
from plog.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition


class State(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class Call(Enum):
    """A call of the application."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


class News(Enum):
    """An event."""

    INITIALIZED = "the producer has an id and an epoch"
    ENDED = "the transaction has ended as requested"
    FAILED = "a request or a record of the transaction failed"
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
    # Again, after no response came in time. The first request may have succeeded, so the opposite
    # call is no longer allowed.
    (State.COMMITTING, Call.COMMIT): State.COMMITTING,
    (State.ABORTING, Call.ABORT): State.ABORTING,
}
"""The next state for each allowed call; other calls are refused."""

HEARD: Mapping[tuple[State, News], State] = {
    (State.UNINITIALIZED, News.INITIALIZED): State.READY,
    (State.COMMITTING, News.ENDED): State.READY,
    (State.ABORTING, News.ENDED): State.READY,
    (State.IN_TRANSACTION, News.FAILED): State.ABORTABLE_ERROR,
    (State.PREPARED, News.FAILED): State.ABORTABLE_ERROR,
    (State.COMMITTING, News.FAILED): State.ABORTABLE_ERROR,
    **{(state, News.REFUSED): State.FATAL_ERROR for state in State},
}
"""The next state after an event; other events change nothing."""

DROPPING = frozenset({State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR})
"""States in which no record is sent, because the transaction will not be committed."""

FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
FATAL = FENCED | {
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}
"""Errors that every later transaction of this producer would get, too."""


class TransactionAborted(PlogError):
    """The record was not sent: its transaction is aborted, or cannot be committed any more."""


class ProducerIdentity(NamedTuple):
    """The producer id and epoch of all batches of a transaction."""

    id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class PreparedTransaction(NamedTuple):
    """A written transaction that any client with these numbers may end (KIP-939)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Progress:
    """The state of a transactional producer, and the parts of its transaction. Thread-safe.

    Attributes:
        takes_records: whether `ASKED` allows `send`.
        is_dropping: whether records that have not been sent are dropped.
        producer: its id and epoch; changed only while no record is in flight.
        error: the first failure, if the transaction or the producer is in an error state.
        joined: partitions that the coordinator has added to the transaction.
        groups: groups whose offsets the transaction commits.
        may_be_open: a partition or group was sent to the coordinator, which may wait for an end.
        is_open: the coordinator has added a partition or group.
        is_unsure: the outcome of sequence numbers, or of a request, is unknown. Only a new epoch
            keeps delayed requests out of the next transaction (KIP-360).
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
        """The state of the producer."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        # Stored, because every record and batch reads them: a look-up in the table takes half as
        # long as adding a record.
        self.takes_records = (state, Call.SEND) in ASKED
        self.is_dropping = state in DROPPING

    # -- calls

    def ask(self, call: Call) -> None:
        """Change the state for a call of the application.

        Raises:
            InvalidTxnState: the call is not allowed in this state. In an error state its cause is
                the first failure. `prepare` and `commit` raise the failure itself, and after a
                fatal failure every call does.
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
        """Check whether a call is allowed, without changing the state. Raises as `ask`."""
        if (self.state, call) not in ASKED:
            raise self._refusal(call)

    def _refusal(self, call: Call) -> PlogError:
        error = self.error
        if error is not None and (
            self.state is State.FATAL_ERROR
            or (self.state is State.ABORTABLE_ERROR and call in (Call.PREPARE, Call.COMMIT))
        ):
            return error
        what = f"{call.value}: transactional id {self.transactional_id!r} is in state"
        if error is None or self.state is not State.ABORTABLE_ERROR:
            return InvalidTxnState(f"{what} {self.state.value!r}")
        refusal = InvalidTxnState(f"{what} {self.state.value!r}; call abort_transaction: {error}")
        refusal.__cause__ = error
        return refusal

    def drop_reason(self) -> TransactionAborted:
        """Return the error of dropped records."""
        why = "is aborted" if self.error is None else f"cannot be committed: {self.error}"
        reason = TransactionAborted(f"record not sent, its transaction {why}")
        reason.__cause__ = self.error
        return reason

    # -- events

    def initialized(self, producer: ProducerIdentity) -> None:
        """Store the producer's new id and epoch; sequences start at 0."""
        with self._lock:
            self.producer, self.is_unsure = producer, False
            self._hear(News.INITIALIZED)

    def asked_to_join(self) -> None:
        """Note that a partition or group is about to be sent to the coordinator."""
        self.may_be_open = True

    def has_joined(self) -> None:
        """Note that the coordinator has added a partition or group."""
        self.is_open = True

    def ended_there(self) -> None:
        """Note that the coordinator has ended the transaction."""
        self.may_be_open = self.is_open = False

    def ended(self) -> None:
        """Note that the transaction has ended."""
        with self._lock:
            self._hear(News.ENDED)
            if self.state is State.READY:
                self.error = None

    def fail(self, fault: PlogError, *, is_unsure: bool) -> PlogError:
        """Note a failure; return the error to raise.

        Args:
            is_unsure: the failed batch had sequence numbers, or its outcome is unknown.
        """
        is_fatal = isinstance(fault, KafkaError) and fault.code in FATAL
        return self._fail(fault, News.REFUSED if is_fatal else News.FAILED, is_unsure=is_unsure)

    def refuse(self, fault: PlogError) -> PlogError:
        """Note a failure after which the producer cannot continue; return the error to raise."""
        return self._fail(fault, News.REFUSED, is_unsure=True)

    def _fail(self, fault: PlogError, news: News, *, is_unsure: bool) -> PlogError:
        error = self._described(fault)
        with self._lock:
            self.is_unsure = self.is_unsure or is_unsure
            before = self.state
            self._hear(news)
            if self.state is not before:
                self.error = error
        return error

    def _described(self, fault: PlogError) -> PlogError:
        if not isinstance(fault, KafkaError) or fault.code not in FENCED:
            return fault
        fenced = ProducerFenced(
            f"transactional id {self.transactional_id!r} has another producer, or its transaction"
            f" exceeded transaction_timeout_ms: {fault}"
        )
        fenced.__cause__ = fault
        return fenced

    def _hear(self, news: News) -> None:
        self.state = HEARD.get((self.state, news), self.state)
