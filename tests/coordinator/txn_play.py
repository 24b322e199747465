"""Runs a transactional id's machine by hand: a clock that is set, a log that is safe when asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from plog.coordinator.txn import EPOCH_PER_TRANSACTION, Txn
from plog.coordinator.txn_connections import ClientConnection
from plog.coordinator.txn_events import (
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
    TxnAnswer,
    TxnValue,
    WriteMarkers,
)
from plog.coordinator.txn_states import TxnState
from plog.errors import ErrorCode
from plog.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 60_000
EXPIRATION_MS = 1_000_000


def at(number: int) -> ClientConnection:
    """Return a connection of the coordinator's broker."""
    return ClientConnection(0, number)


class Play:
    """A transactional id, its log and its answers; tokens and new producer ids are numbers."""

    def __init__(self, value: TxnValue | None = None, *, stores_at_once: bool = True) -> None:
        self.txn = Txn("t", value)
        self.stores_at_once = stores_at_once
        self.now_ms = 1_000
        self.monotonic_ms = 0
        self.connection = 7
        self.answers: dict[int, TxnAnswer] = {}
        self.asked: list[int] = []
        self.unstored: list[Store] = []
        self.log: list[TxnValue | None] = [] if value is None else [value]
        self.markers: list[WriteMarkers] = []
        self.later = 0
        self.forgotten = 0
        self._tokens = itertools.count()
        self._ids = itertools.count(100)

    def feed(self, event: Event) -> None:
        self.do(self.txn.on(event))

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(token, answer):
                    assert isinstance(token, int)
                    assert token not in self.answers, "answered twice"
                    self.answers[token] = answer
                case Store():
                    assert not self.unstored, "two on their way"
                    self.unstored.append(effect)
                    if self.stores_at_once:
                        self.store()
                case WriteMarkers():
                    self.markers.append(effect)
                case CompleteLater():
                    self.later += 1
                case Forgotten():
                    self.forgotten += 1

    def store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Have what is on its way arrive, or fail."""
        stored = self.unstored.pop()
        if error is ErrorCode.NONE:
            self.log.append(stored.value)
        self.feed(Stored(stored.ticket, error))

    # -- requests; each returns its token ----------------------------------------------------

    def init(self, was: Producer | None = None) -> int:
        token = self._token()
        spare = next(self._ids)
        self.feed(InitProducer(token, TIMEOUT_MS, self.now_ms, was, spare))
        return token

    def add(
        self,
        producer: Producer,
        *partitions: TopicPartition,
        version: int = 0,
        awaits_markers: bool = True,
    ) -> int:
        token = self._token()
        joins = frozenset(partitions)
        by = at(self.connection) if version < EPOCH_PER_TRANSACTION else None
        self.feed(
            AddPartitions(
                token,
                producer,
                joins,
                self.now_ms,
                self.monotonic_ms,
                version,
                by,
                awaits_markers,
            )
        )
        return token

    def end(self, producer: Producer, *, commit: bool, raises: bool = False) -> int:
        token = self._token()
        version = EPOCH_PER_TRANSACTION if raises else 0
        spare = next(self._ids)
        self.feed(EndTxn(token, producer, commit, self.now_ms, version, spare, at(self.connection)))
        return token

    def commit(self, producer: Producer, *, raises: bool = False) -> int:
        return self.end(producer, commit=True, raises=raises)

    def abort(self, producer: Producer, *, raises: bool = False) -> int:
        return self.end(producer, commit=False, raises=raises)

    def give_up(self, token: int) -> None:
        self.feed(GiveUp(token))

    def mark(self, *partitions: TopicPartition) -> None:
        """Have the markers that are due be written, or some of them."""
        for at in partitions:
            self.feed(PartitionMarked(at))
        if partitions:
            return
        self.markers.clear()
        self.feed(MarkersWritten(self.now_ms))

    def refuse(self, *partitions: TopicPartition) -> None:
        """Have partitions refuse their markers."""
        for at in partitions:
            self.feed(MarkerRefused(at))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.monotonic_ms += ms
        self.feed(LookAtTimeout(self.now_ms, self.monotonic_ms))
        self.feed(LookAtAge(self.now_ms, EXPIRATION_MS))

    # -- what is seen ------------------------------------------------------------------------

    @property
    def state(self) -> TxnState:
        assert self.txn.value is not None
        return self.txn.value.state

    def error(self, token: int) -> ErrorCode:
        return self.answers[token].error

    def producer(self, token: int) -> Producer:
        error, producer = self.answers[token]
        assert error is ErrorCode.NONE
        return producer

    def begun(self, *partitions: TopicPartition, version: int = 0) -> Producer:
        """Return a producer that has a transaction open."""
        producer = self.producer(self.init())
        assert self.error(self.add(producer, *(partitions or (A,)), version=version)) == 0
        return producer

    def _token(self) -> int:
        token = next(self._tokens)
        self.asked.append(token)
        return token
