"""What a copier and a member ask of their clients, by librdkafka and by plog's own library.

Each call names the time within which it must end: the timeout that the client was given for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from plog.client.group_consumer import GroupConsumer, Listener
from plog.client.producer import Producer as PlogProducer
from plog.client.producer_batch import RecordMetadata
from plog.client.transaction_states import State
from plog.errors import PlogError, RequestTimedOut
from plog.types import TopicPartition

CALL_S = 10.0
"""The timeout of every call that has one."""
POLL_S = 0.1
SESSION_S = 6.0
TRANSACTION_S = 6.0
DELIVERY_S = 10.0
MOST = 50
"""So many records are read by one poll, about."""

Records = list[tuple[TopicPartition, int, int]]
"""Partition, offset and value of each."""
Offsets = dict[TopicPartition, int]
Outcome = Callable[[int | None, bool], None]
"""Called with the offset of a record, or with None and whether it certainly was not written."""
Assigned = Callable[[list[TopicPartition], Records], None]
"""Called with the partitions from now on, and with the records read before in the same poll."""


class Again(Exception):
    """The call may be made again, and nothing else may be."""


class Refused(Exception):
    """The client refuses the call. A transaction can be aborted."""


class Group(Protocol):
    """A member of a group."""

    poll_s: float
    commit_s: float
    close_s: float

    def poll(self) -> Records: ...
    def commit(self, offsets: Offsets) -> None: ...
    def seek(self, at: TopicPartition, offset: int) -> None: ...
    def close(self) -> None: ...


class Transactional(Protocol):
    """A producer with a transactional id."""

    call_s: float
    commit_s: float
    close_s: float
    may_hang: bool
    """Whether `send_offsets` may take longer than its timeout, by a fault of the client."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, at: TopicPartition, value: int, outcome: Outcome) -> None: ...
    def send_offsets(self, offsets: Offsets, group: Any) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class RdGroup:
    """librdkafka's."""

    poll_s = POLL_S
    commit_s = SESSION_S + CALL_S  # it looks for the coordinator, and asks it then
    close_s = SESSION_S + CALL_S

    def __init__(self, bootstrap: str, group: str, topic: str, assigned: Assigned) -> None:
        self._assigned = assigned
        self._found: Records = []
        self.client = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": int(1000 * SESSION_S),
                "heartbeat.interval.ms": 1000,
                "max.poll.interval.ms": 60_000,
                "socket.timeout.ms": int(1000 * CALL_S),
                "reconnect.backoff.max.ms": 1000,
            }
        )
        self.client.subscribe([topic], on_assign=self._given, on_revoke=self._revoked)

    def _given(self, _client: Consumer, given: list[Place]) -> None:
        self._take([TopicPartition(one.topic, one.partition) for one in given])

    def _revoked(self, _client: Consumer, _revoked: list[Place]) -> None:
        self._take([])

    def _take(self, partitions: list[TopicPartition]) -> None:
        found, self._found = self._found, []
        self._assigned(partitions, found)

    def poll(self) -> Records:
        message = self.client.poll(POLL_S)
        while message is not None:
            error = message.error()
            if error is None:
                at = TopicPartition(message.topic(), message.partition())
                self._found.append((at, message.offset(), int(message.value())))
            elif not error.retriable():
                print(error, file=sys.stderr)  # the client goes on by itself
            message = self.client.poll(0) if len(self._found) < MOST else None
        found, self._found = self._found, []
        return found

    def commit(self, offsets: Offsets) -> None:
        try:
            done = self.client.commit(offsets=_places(offsets), asynchronous=False)
        except KafkaException as fault:
            raise Refused(fault) from fault
        for one in done:
            if one.error is not None:
                raise Refused(one.error)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self.client.seek(Place(*at, offset))

    def close(self) -> None:
        self.client.close()


class RdTransactional:
    """librdkafka's.

    It may wait for ever for a group coordinator that was away for a moment:
    https://github.com/confluentinc/librdkafka/issues/5456 and 5511.
    """

    call_s = CALL_S
    commit_s = CALL_S
    close_s = 2 * CALL_S
    may_hang = True

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(1000 * TRANSACTION_S),
                "reconnect.backoff.max.ms": 1000,
                "linger.ms": 2,
            }
        )

    def _ask(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments, CALL_S)
        except KafkaException as fault:
            error = fault.args[0]
            self._client.poll(0)
            if error.txn_requires_abort():
                raise Refused(error) from fault
            if error.retriable():
                raise Again(error) from fault
            raise

    def init(self) -> None:
        self._ask(self._client.init_transactions)

    def begin(self) -> None:
        self._client.begin_transaction()

    def send(self, at: TopicPartition, value: int, outcome: Outcome) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                outcome(message.offset(), False)
            else:
                outcome(None, error.code() == KafkaError._PURGE_QUEUE)

        try:
            self._client.produce(
                at.topic, b"%d" % value, partition=at.partition, on_delivery=delivered
            )
        except KafkaException as fault:
            outcome(None, True)
            raise Refused(fault) from fault
        self._client.poll(0)

    def send_offsets(self, offsets: Offsets, group: Any) -> None:
        metadata = group.client.consumer_group_metadata()
        self._ask(self._client.send_offsets_to_transaction, _places(offsets), metadata)

    def commit(self) -> None:
        self._ask(self._client.commit_transaction)

    def abort(self) -> None:
        self._ask(self._client.abort_transaction)

    def close(self) -> None:
        if self._client.flush(CALL_S):
            self._client.purge()
            self._client.flush(CALL_S)


class PlogGroup:
    """plog's own."""

    poll_s = POLL_S + 2 * CALL_S  # a broker that does not answer holds it, and then another
    commit_s = CALL_S
    close_s = 2 * CALL_S

    def __init__(self, bootstrap: str, group: str, topic: str, assigned: Assigned) -> None:
        self.client = GroupConsumer(
            bootstrap,
            group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=int(1000 * SESSION_S),
            heartbeat_interval_ms=1000,
            request_timeout_ms=int(1000 * CALL_S),
        )
        given = Listener(
            lambda _: assigned(self.client.assignment(), []), lambda _: assigned([], [])
        )
        self.client.subscribe([topic], given)

    def poll(self) -> Records:
        return [
            (TopicPartition(one.topic, one.partition), one.offset, int(one.value or b""))
            for one in self.client.poll(int(1000 * POLL_S))
        ]

    def commit(self, offsets: Offsets) -> None:
        try:
            self.client.commit(offsets)
        except PlogError as fault:
            raise Refused(fault) from fault

    def seek(self, at: TopicPartition, offset: int) -> None:
        self.client.seek(at, offset)

    def close(self) -> None:
        self.client.close()


class PlogTransactional:
    """plog's own."""

    call_s = CALL_S
    commit_s = DELIVERY_S + CALL_S  # it waits for the records, and asks the coordinator then
    close_s = 2 * CALL_S
    may_hang = False

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._client = PlogProducer(
            bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=int(1000 * TRANSACTION_S),
            max_block_ms=int(1000 * CALL_S),
            request_timeout_ms=int(1000 * CALL_S),
            delivery_timeout_ms=int(1000 * DELIVERY_S),
        )

    @property
    def _state(self) -> State:
        assert self._client._transactions is not None
        return self._client._transactions.progress.state

    def init(self) -> None:
        try:
            self._client.init_transactions()
        except RequestTimedOut as fault:
            raise Again(fault) from fault

    def begin(self) -> None:
        self._client.begin_transaction()

    def send(self, at: TopicPartition, value: int, outcome: Outcome) -> None:
        def delivered(where: RecordMetadata | None, _error: PlogError | None) -> None:
            outcome(None if where is None else where.offset, False)

        try:
            self._client.send(
                at.topic, b"%d" % value, partition=at.partition, on_delivery=delivered
            )
        except PlogError as fault:
            outcome(None, True)
            raise Refused(fault) from fault

    def send_offsets(self, offsets: Offsets, group: Any) -> None:
        try:
            self._client.send_offsets_to_transaction(offsets, group.client.group_metadata)
        except PlogError as fault:
            raise self._abortable(fault) from fault

    def commit(self) -> None:
        try:
            self._client.commit_transaction()
        except RequestTimedOut as fault:
            if self._state is State.COMMITTING:
                raise Again(fault) from fault
            raise self._abortable(fault) from fault
        except PlogError as fault:
            raise self._abortable(fault) from fault

    def _abortable(self, fault: PlogError) -> Exception:
        return Refused(fault) if self._state is State.ABORTABLE_ERROR else fault

    def abort(self) -> None:
        try:
            self._client.abort_transaction()
        except RequestTimedOut as fault:
            raise Again(fault) from fault

    def close(self) -> None:
        self._client.close(CALL_S)


GROUPS: dict[str, Callable[[str, str, str, Assigned], Group]] = {
    "rd": RdGroup,
    "plog": PlogGroup,
}
TRANSACTIONAL: dict[str, Callable[[str, str], Transactional]] = {
    "rd": RdTransactional,
    "plog": PlogTransactional,
}


def _places(offsets: Offsets) -> list[Place]:
    return [Place(*at, offset) for at, offset in offsets.items()]
