"""A transactional id as a pure machine: requests, the clock and the log in, effects out.

Owns every decision about one transactional id: its producer, the partitions in its transaction, the
outcome, and the response to each request. Does no I/O and has no clock; `txn_coordinator` runs it,
executes the effects in order and reports their results as events.

A value counts only once it is in the log. While a value is being stored, other requests get
CONCURRENT_TRANSACTIONS; a value that could not be stored has no effect. AddPartitions is an
exception: it waits for another AddPartitions and for the last transaction's markers, because both
take only a moment. A request from another broker does not wait for markers.

The protocol is KIP-98, with KIP-360 (a producer continues after an error) and KIP-890 (version 2:
each end raises the epoch, so that a late request cannot affect a later transaction).

    EMPTY --- add ---> ONGOING --- end ---> PREPARE_COMMIT --- markers ---> COMPLETE_COMMIT --.
      ^                  ^ | '- end, time,  PREPARE_ABORT ---- markers ---> COMPLETE_ABORT ---|
      |                  | |    a new producer ^                                              |
      '---- init --------|-|-------------------'----- end (version 2) ------------------------|
                         '-'------------------------- add ------------------------------------'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import NamedTuple

from plog.coordinator.txn_connections import Sender, TxnConnections, Way
from plog.coordinator.txn_events import (
    NO_PRODUCER,
    AddPartitions,
    Answer,
    CompleteLater,
    Effect,
    EndTxn,
    Event,
    Forgotten,
    GiveUp,
    InitProducer,
    LookAtAge,
    LookAtTimeout,
    MarkerRefused,
    MarkersWritten,
    PartitionMarked,
    Producer,
    Store,
    Stored,
    Token,
    TxnAnswer,
    TxnValue,
    WriteMarkers,
)
from plog.coordinator.txn_states import (
    AT_REST,
    EMPTY,
    END_ANSWERS,
    NEXT_STATES,
    OF_OUTCOME,
    ONGOING,
    PREPARED,
)
from plog.errors import ErrorCode
from plog.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

FIRST_EPOCH = 0
LARGEST_EPOCH = 32767
LAST_EPOCH = LARGEST_EPOCH - 1
"""The last epoch of a producer: the largest one is reserved to fence it."""
MOST_WAITING = 8
"""Limits clients that send more than one request at a time; others get an error."""

EPOCH_PER_TRANSACTION = 2
"""From this client version on, each end of a transaction raises the epoch."""


class _Storing(NamedTuple):
    """A value being written to the log, and the response to send once it is stored."""

    ticket: int
    value: TxnValue | None
    token: Token | None
    answer: TxnAnswer
    last_epoch: int


@dataclass(slots=True)
class Txn:
    """One transactional id. Only the owner's thread may call it.

    `value` is the value in the log; None while there is none.
    """

    transactional_id: str
    value: TxnValue | None = None
    _last_epoch: int = NO_EPOCH  # the producer's epoch before the latest; not in the log
    _storing: _Storing | None = None
    _waiting: list[AddPartitions] = field(default_factory=list)  # in order of arrival
    connections: TxnConnections = field(default_factory=TxnConnections)  # of the producer
    _begun_ms: int | None = None  # of the monotonic clock; None if unknown
    _not_due: set[TopicPartition] = field(default_factory=set)  # markers written or refused
    _last_ticket: int = 0
    _out: list[Effect] = field(default_factory=list)

    def on(self, event: Event) -> list[Effect]:
        """Process an event; return the effects to execute, in order."""
        self._take(event)
        out, self._out = self._out, []
        return out

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        raise TypeError(f"not an event of a transactional id: {event!r}")

    def resume(self) -> list[Effect]:
        """Return the effects after loading from the log: writing the due markers."""
        if self.value is not None and self.value.state in PREPARED:
            return [self._markers(self.value)]
        return []

    @property
    def needs_producer_id(self) -> bool:
        """Whether the next event may use up a new producer id."""
        return self.value is None or self.value.producer_epoch >= LAST_EPOCH

    @property
    def is_idle(self) -> bool:
        """Whether there is no value and none is being stored, so that it may be dropped."""
        return self.value is None and self._storing is None

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions in the transaction; while it ends, those that still get a marker.

        Used to find hanging transactions (KIP-664). Excludes partitions that refused their marker,
        although the transaction still waits for them.
        """
        return frozenset() if self.value is None else self.value.partitions - self._not_due

    def missing(
        self, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode | frozenset[TopicPartition]:
        """Return the partitions that are not in the producer's open transaction, or an error.

        A partition leader verifies a producer's first write this way (KIP-890). Otherwise a late
        write could belong to no transaction, to the next one, or to one that never ends.
        """
        refusal = self._refuse(producer)
        if refusal is not ErrorCode.NONE:
            return refusal
        assert self.value is not None
        if self.value.state in PREPARED or self._is_deciding:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return frozenset(partitions) - self.value.partitions

    def takes(
        self, producer: Producer, sender: Sender, asked: Iterable[TopicPartition] = ()
    ) -> bool:
        """Record a request's connection; return False if it belongs to an earlier transaction.

        For clients of version 1, whose transactions share an epoch.

        Args:
            asked: partitions of the write that have no permission yet.
        """
        if self._refuse(producer) is not ErrorCode.NONE:
            return True  # the caller finds the error
        if self.connections.is_late(sender):
            return False
        self.connections.note(sender)
        self.connections.ask(asked)
        return True

    @property
    def _is_deciding(self) -> bool:
        storing = None if self._storing is None else self._storing.value
        return storing is not None and storing.state in PREPARED

    @property
    def _is_joining(self) -> bool:
        storing = None if self._storing is None else self._storing.value
        return storing is not None and storing.state is ONGOING

    # -- producers ---------------------------------------------------------------------------

    def _refuse(self, producer: Producer) -> ErrorCode:
        """Return why this is not the current producer; NONE if it is."""
        if self.value is None or producer.id != self.value.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.epoch != self.value.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def _is_next(self, value: TxnValue, producer: Producer) -> bool:
        """Return whether this is the next producer id, used once the markers are written."""
        is_chosen = value.state in PREPARED and value.next_producer_id != NO_PRODUCER_ID
        return is_chosen and producer == Producer(value.next_producer_id, FIRST_EPOCH)

    def _has_been(self, value: TxnValue, producer: Producer) -> bool:
        """Return whether this was the producer of the last ended transaction."""
        if producer.id == value.producer_id:
            return producer.epoch == value.producer_epoch - 1
        return producer == Producer(value.previous_producer_id, LAST_EPOCH) and (
            value.producer_epoch == FIRST_EPOCH
        )

    # -- InitProducerId ----------------------------------------------------------------------

    @_take.register
    def _on_init(self, init: InitProducer) -> None:
        value = self.value
        if self._storing is not None:
            self._answer(init.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif value is None:
            self._become_new(init)
        elif init.was is not None and not self._may_go_on(value, init.was):
            self._answer(init.token, ErrorCode.PRODUCER_FENCED)
        elif value.state in PREPARED:
            self._answer(init.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif value.state is ONGOING:
            # First end the transaction, which fences the old producer; the client retries.
            refusal = self._refuse_going_on(value, init.was)
            if refusal is not ErrorCode.NONE:
                self._answer(init.token, refusal)
            else:
                again = TxnAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
                if init.was is None:
                    self._abort_for_another(value, init.now_ms, init.token, again)
                else:
                    self._abort_unended(value, init.now_ms, init.token, again)
        else:
            self._begin_epoch(value, init)

    def _may_go_on(self, value: TxnValue, was: Producer) -> bool:
        """Return whether this may have been the producer; callers compare epochs later."""
        return was.id == value.producer_id or (
            was.id == value.previous_producer_id and was.epoch >= LAST_EPOCH
        )

    def _refuse_going_on(self, value: TxnValue, was: Producer | None) -> ErrorCode:
        if was is None or was.epoch in (value.producer_epoch, self._last_epoch):
            return ErrorCode.NONE
        return ErrorCode.PRODUCER_FENCED

    def _become_new(self, init: InitProducer) -> None:
        fresh = Producer(init.spare_producer_id, FIRST_EPOCH)
        value = TxnValue(*fresh, init.timeout_ms, EMPTY, updated_ms=init.now_ms)
        self._store(value, init.token, TxnAnswer(ErrorCode.NONE, fresh))

    def _begin_epoch(self, value: TxnValue, init: InitProducer) -> None:
        was = init.was
        if was is not None and was.epoch not in (value.producer_epoch, self._last_epoch):
            self._answer(init.token, ErrorCode.PRODUCER_FENCED)
            return
        is_behind = was is not None and was.epoch != value.producer_epoch
        if was is not None and is_behind and value.producer_epoch < LARGEST_EPOCH:
            # It missed a response, or the end of its transaction: return its current epoch.
            epoch, last_epoch, producer_id = value.producer_epoch, was.epoch, value.producer_id
        elif value.producer_epoch < LAST_EPOCH:
            epoch, producer_id = value.producer_epoch + 1, value.producer_id
            last_epoch = NO_EPOCH if was is None else value.producer_epoch
        elif init.spare_producer_id == NO_PRODUCER_ID:
            self._answer(init.token, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        else:
            epoch, producer_id = FIRST_EPOCH, init.spare_producer_id
            last_epoch = NO_EPOCH if was is None else value.producer_epoch
        is_new_id = producer_id != value.producer_id
        begun = replace(
            value,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=init.timeout_ms,
            state=EMPTY,
            partitions=frozenset(),
            updated_ms=init.now_ms,
            started_ms=NO_TIMESTAMP,
            previous_producer_id=value.producer_id if is_new_id else value.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
        self._store(begun, init.token, TxnAnswer(ErrorCode.NONE, begun.producer), last_epoch)

    # -- AddPartitions -----------------------------------------------------------------------

    @_take.register
    def _on_add(self, add: AddPartitions) -> None:
        value = self.value
        refusal = self._refuse(add.producer)
        if value is not None and self._is_next(value, add.producer):
            refusal = ErrorCode.NONE  # it waits for the markers
        elif add.connection is not None and not self.takes(
            add.producer, Sender(Way.COORDINATOR, add.connection)
        ):
            refusal = ErrorCode.INVALID_PRODUCER_EPOCH
        if refusal is not ErrorCode.NONE:
            self._answer(add.token, refusal)
            return
        assert value is not None
        is_ending = value.state in PREPARED
        may_wait = (is_ending and add.awaits_markers) or self._is_joining
        if may_wait and len(self._waiting) < MOST_WAITING:
            self._waiting.append(add)
        elif self._storing is not None or is_ending:
            self._answer(add.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif value.state is ONGOING and add.partitions <= value.partitions:
            self._answer(add.token, ErrorCode.NONE)
        else:
            is_open = value.state is ONGOING
            if not is_open:
                self._begun_ms = add.monotonic_ms
            self._store(
                replace(
                    value,
                    state=ONGOING,
                    partitions=value.partitions | add.partitions,
                    updated_ms=add.now_ms,
                    started_ms=value.started_ms if is_open else add.now_ms,
                    client_version=add.client_version,
                ),
                add.token,
                TxnAnswer(ErrorCode.NONE),
                self._last_epoch,
            )

    @_take.register
    def _on_give_up(self, give_up: GiveUp) -> None:
        for add in self._waiting:
            if add.token == give_up.token:
                self._waiting.remove(add)
                self._answer(add.token, ErrorCode.CONCURRENT_TRANSACTIONS)
                return

    # -- the end -----------------------------------------------------------------------------

    @_take.register
    def _on_end(self, end: EndTxn) -> None:
        value = self.value
        raises = end.client_version >= EPOCH_PER_TRANSACTION
        if value is not None and raises and self._is_told_again(value, end):
            self._tell_end_again(value, end)
            return
        refusal = self._refuse(end.producer)
        if value is not None and self._is_next(value, end.producer):
            refusal = ErrorCode.CONCURRENT_TRANSACTIONS
        if refusal is ErrorCode.NONE and not raises and self._is_late(end):
            refusal = ErrorCode.INVALID_PRODUCER_EPOCH
        if refusal is not ErrorCode.NONE:
            self._answer(end.token, refusal)
            return
        assert value is not None
        if self._storing is not None:
            self._answer(end.token, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        answer = END_ANSWERS[value.state, end.commit]
        if raises and value.state in AT_REST:
            # No transaction of this epoch has ended: not a retry, and nothing to commit.
            answer = ErrorCode.INVALID_TXN_STATE if end.commit else None
        if answer is not None:
            self._answer(end.token, answer)
            return
        self.connections.end(end.connection)
        if not raises:
            # Also if version 2 began it: its markers then have no epoch of their own.
            decided = replace(
                self._decided(value, commit=end.commit, now_ms=end.now_ms),
                client_version=end.client_version,
            )
            self._store(decided, end.token, TxnAnswer(ErrorCode.NONE), self._last_epoch)
        else:
            self._end_epoch(value, end)

    def _is_late(self, end: EndTxn) -> bool:
        """Return whether an end may belong to an earlier transaction with the same epoch.

        Without an open transaction an end changes nothing, and its response may be repeated.
        """
        assert self.value is not None
        sender = Sender(Way.COORDINATOR, end.connection)
        return self.value.state is ONGOING and self.connections.is_late(sender)

    def _is_told_again(self, value: TxnValue, end: EndTxn) -> bool:
        if value.producer_epoch == LARGEST_EPOCH and value.next_producer_id == NO_PRODUCER_ID:
            return False  # this was a fence: an end in the last epoch assigns another id
        if value.state in PREPARED:
            # The value still has the old id, even if the next one is chosen.
            before = Producer(value.producer_id, value.producer_epoch - 1)
            return end.producer == before and value.client_version >= EPOCH_PER_TRANSACTION
        return (
            value.state in AT_REST
            and value.state is not EMPTY
            and (
                value.client_version >= EPOCH_PER_TRANSACTION
                and self._has_been(value, end.producer)
            )
        )

    def _tell_end_again(self, value: TxnValue, end: EndTxn) -> None:
        answer = END_ANSWERS[value.state, end.commit]
        assert answer is not None
        told = value.producer if answer is ErrorCode.NONE else NO_PRODUCER
        self._answer(end.token, answer, told)

    def _end_epoch(self, value: TxnValue, end: EndTxn) -> None:
        decided = replace(
            self._decided(value, commit=end.commit, now_ms=end.now_ms),
            producer_epoch=min(value.producer_epoch + 1, LARGEST_EPOCH),
            client_version=end.client_version,
        )
        told = decided.producer
        if value.producer_epoch >= LAST_EPOCH:
            if end.spare_producer_id == NO_PRODUCER_ID:
                self._answer(end.token, ErrorCode.CONCURRENT_TRANSACTIONS)
                return
            decided = replace(decided, next_producer_id=end.spare_producer_id)
            told = Producer(end.spare_producer_id, FIRST_EPOCH)
        self._store(decided, end.token, TxnAnswer(ErrorCode.NONE, told), value.producer_epoch)

    def _decided(self, value: TxnValue, *, commit: bool, now_ms: int) -> TxnValue:
        prepared, _ = OF_OUTCOME[commit]
        return replace(value, state=prepared, updated_ms=now_ms)

    def _abort_for_another(
        self, value: TxnValue, now_ms: int, token: Token | None, answer: TxnAnswer
    ) -> None:
        """Abort for a starting producer, and fence the previous one.

        With an epoch for each transaction, one more epoch is not enough: the old producer would
        get it as the response to its EndTxn. So the fence takes one epoch and the end another, as
        in Kafka 4.0.
        """
        by = 2 if value.client_version >= EPOCH_PER_TRANSACTION else 1
        self._store(self._aborted(value, now_ms, by), token, answer)

    def _abort_unended(
        self, value: TxnValue, now_ms: int, token: Token | None, answer: TxnAnswer
    ) -> None:
        """Abort in an epoch that the producer gets if it aborts too, or continues (KIP-588)."""
        self._store(self._aborted(value, now_ms, 1), token, answer, value.producer_epoch)

    def _aborted(self, value: TxnValue, now_ms: int, later_by: int) -> TxnValue:
        return replace(
            self._decided(value, commit=False, now_ms=now_ms),
            producer_epoch=min(value.producer_epoch + later_by, LARGEST_EPOCH),
        )

    @_take.register
    def _on_marker(self, written: PartitionMarked) -> None:
        self._not_due.add(written.partition)

    @_take.register
    def _on_refused_marker(self, refused: MarkerRefused) -> None:
        self._not_due.add(refused.partition)

    @_take.register
    def _on_markers(self, written: MarkersWritten) -> None:
        value = self.value
        if value is None or value.state not in PREPARED or self._storing is not None:
            return
        _, complete = OF_OUTCOME[PREPARED[value.state]]
        done = replace(value, state=complete, partitions=frozenset(), updated_ms=written.now_ms)
        last_epoch = self._last_epoch
        if value.next_producer_id != NO_PRODUCER_ID:
            done = replace(
                done,
                producer_id=value.next_producer_id,
                producer_epoch=FIRST_EPOCH,
                previous_producer_id=value.producer_id,
                next_producer_id=NO_PRODUCER_ID,
            )
        self._store(done, None, TxnAnswer(ErrorCode.NONE), last_epoch)

    # -- time --------------------------------------------------------------------------------

    @_take.register
    def _on_timeout(self, look: LookAtTimeout) -> None:
        value = self.value
        if value is None or value.state is not ONGOING:
            return
        if self._begun_ms is None:
            # Loaded from the log: from now on use the monotonic clock.
            self._begun_ms = look.monotonic_ms - max(look.now_ms - value.started_ms, 0)
        is_late = look.monotonic_ms - self._begun_ms > value.timeout_ms
        if is_late and self._storing is None:
            self._abort_unended(value, look.now_ms, None, TxnAnswer(ErrorCode.NONE))

    @_take.register
    def _on_age(self, look: LookAtAge) -> None:
        value = self.value
        if value is None or self._storing is not None or value.state not in AT_REST:
            return
        if look.now_ms - value.updated_ms >= look.expiration_ms:
            self._store(None, None, TxnAnswer(ErrorCode.NONE))

    # -- the log -----------------------------------------------------------------------------

    @_take.register
    def _on_stored(self, stored: Stored) -> None:
        storing = self._storing
        if storing is None or storing.ticket != stored.ticket:
            return
        self._storing = None
        if stored.error is not ErrorCode.NONE:
            if storing.token is not None:
                self._answer(storing.token, stored.error)
            elif self.value is not None and self.value.state in PREPARED:
                self._out.append(CompleteLater())
        else:
            before = self.value and self.value.producer
            self.value, self._last_epoch = storing.value, storing.last_epoch
            self._not_due.clear()
            if before != (self.value and self.value.producer):
                self.connections = TxnConnections()  # the new epoch reveals late requests
            if storing.token is not None:
                self._answer(storing.token, *storing.answer)
            if storing.value is None:
                self._out.append(Forgotten())
            elif storing.value.state in PREPARED:
                self._out.append(self._markers(storing.value))
        if self.value is None or self.value.state not in PREPARED:
            waiting, self._waiting = self._waiting, []
            for add in waiting:
                self._on_add(add)

    def _store(
        self,
        value: TxnValue | None,
        token: Token | None,
        answer: TxnAnswer,
        last_epoch: int = NO_EPOCH,
    ) -> None:
        if self.value is not None and value is not None:
            assert value.state in NEXT_STATES[self.value.state], (self.value, value)
        self._last_ticket += 1
        self._storing = _Storing(self._last_ticket, value, token, answer, last_epoch)
        self._out.append(Store(self._last_ticket, value))

    def _markers(self, value: TxnValue) -> WriteMarkers:
        return WriteMarkers(
            value.producer, PREPARED[value.state], value.partitions, value.client_version
        )

    def _answer(self, token: Token, error: ErrorCode, producer: Producer = NO_PRODUCER) -> None:
        self._out.append(Answer(token, TxnAnswer(error, producer)))
