"""A producer or a reader that writes down what it does and sees, run as a script.

`python -m tests.checker.workload <role> <settings>`: settings are a JSON object of `bootstrap`,
`topic`, `partitions`, `name` (the worker's in the history), `history` (the file to be written),
`seed`, and by role:

    producer  sends values in transactions, commits most and aborts some; `first_value`,
              `transactional_id`
    plain     sends values without transactions, idempotently; `first_value`
    reader    reads all partitions from their starts, now and then anew from somewhere else
    member    reads what a group gives it, and commits; `group`
    final     reads all partitions from their starts to their ends, and ends

Until stdin ends, all but the last. They are librdkafka's; `plog-reader` and `kafka-python-reader`
do what `reader` does with clients that leave out by themselves what is aborted. What a client
raises that it cannot go on from ends the worker with status 1; whoever runs it starts another one
under another name.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from plog.client.consumer import Consumer as PlogConsumer
from plog.types import TopicPartition

from .history import (
    AbortBegin,
    Aborted,
    Ack,
    Assign,
    Begin,
    CommitBegin,
    Committed,
    EndOfPartition,
    Fail,
    HistoryWriter,
    Isolation,
    OutcomeUnknown,
    Poll,
    Record,
    Send,
    Unknown,
    Why,
)

PATIENCE_S = 20
TRANSACTION_TIMEOUT_MS = 5_000
MOST_SENDS = 30
PLAIN_PAUSE_S = 0.05
ABORTS = 0.2
"""So many of all transactions are aborted on purpose."""
SEEKS = 0.02
"""So often, after a poll, a reader goes elsewhere."""
POLL_S = 0.1
POLL_MS = int(1000 * POLL_S)
MOST_OF_POLL = 200
RECONNECT_MS = 500
SESSION_MS, MAX_POLL_MS = 6_000, 12_000

IsOver = Callable[[], bool]


class Producing:
    """One producer."""

    def __init__(self, settings: dict[str, Any], history: HistoryWriter) -> None:
        self._name, self._topic = settings["name"], settings["topic"]
        self._partitions = settings["partitions"]
        self._chance = random.Random(settings["seed"])
        self._history = history
        self._values = itertools.count(settings["first_value"])
        kind: dict[str, str | int | bool] = {"enable.idempotence": True}
        if "transactional_id" in settings:
            kind["transactional.id"] = settings["transactional_id"]
            kind["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        self._client = Producer({"bootstrap.servers": settings["bootstrap"], **kind})

    def run_plainly(self, is_over: IsOver) -> None:
        """Send without transactions, some at a time, as others need the processors too."""
        while not is_over():
            self._send_some(None)
            while self._client.flush(POLL_S) and not is_over():
                pass  # it tries on for as long as the broker is away
            time.sleep(PLAIN_PAUSE_S)
        self._client.flush(PATIENCE_S)

    def run(self, is_over: IsOver) -> None:
        """Send in transactions."""
        self._client.init_transactions(PATIENCE_S)
        for number in itertools.count():
            if is_over():
                return
            self._transaction(f"{self._name}-{number}")

    def _transaction(self, txn: str) -> None:
        self._history.write(Begin(self._name, txn))
        self._client.begin_transaction()
        self._send_some(txn)
        if self._chance.random() < ABORTS:
            self._abort(txn)
            return
        self._history.write(CommitBegin(self._name, txn))
        while True:
            try:
                self._client.commit_transaction(PATIENCE_S)
            except KafkaException as refused:
                error = refused.args[0]
                if error.retriable():
                    continue
                self._client.poll(0)
                if error.txn_requires_abort():
                    self._abort(txn)
                    return
                self._history.write(OutcomeUnknown(self._name, txn))
                raise
            self._history.write(Committed(self._name, txn))
            return

    def _send_some(self, txn: str | None) -> None:
        for _ in range(self._chance.randint(1, MOST_SENDS)):
            value = next(self._values)
            at = TopicPartition(self._topic, self._chance.randrange(self._partitions))
            self._history.write(Send(self._name, at, value, txn))
            told = partial(self._tell, value)
            self._client.produce(at.topic, b"%d" % value, partition=at.partition, on_delivery=told)
            self._client.poll(0)

    def _abort(self, txn: str) -> None:
        self._history.write(AbortBegin(self._name, txn))
        while True:
            try:
                self._client.abort_transaction(PATIENCE_S)
            except KafkaException as refused:
                if refused.args[0].retriable():
                    continue
                self._history.write(OutcomeUnknown(self._name, txn))
                raise
            self._history.write(Aborted(self._name, txn))
            return

    def _tell(self, value: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._history.write(Ack(self._name, value, message.offset()))
        elif error.code() == KafkaError._PURGE_QUEUE:
            self._history.write(Fail(self._name, value))  # it never left the client
        else:
            self._history.write(Unknown(self._name, value))


class Reading:
    """One consumer; what it was given is written down before anything else happens to it."""

    def __init__(self, settings: dict[str, Any], history: HistoryWriter) -> None:
        self._name, self._topic = settings["name"], settings["topic"]
        self._places = [
            TopicPartition(self._topic, index) for index in range(settings["partitions"])
        ]
        self._chance = random.Random(settings["seed"])
        self._history = history
        self._polled: dict[TopicPartition, list[Record]] = {}
        self._client = Consumer(
            {
                "bootstrap.servers": settings["bootstrap"],
                "group.id": settings.get("group", settings["name"]),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": "group" in settings,
                "auto.commit.interval.ms": 500,
                "isolation.level": Isolation.COMMITTED,
                "enable.partition.eof": True,
                "session.timeout.ms": SESSION_MS,
                "max.poll.interval.ms": MAX_POLL_MS,
            }
        )

    def read_all(self, is_over: IsOver) -> None:
        """Read all partitions, and begin somewhere else now and then."""
        self._assign(Why.REBALANCE)
        while not is_over():
            self._take(self._client.poll(POLL_S))
            if self._chance.random() < SEEKS:
                self._tell()
                at, start = self._chance.choice(self._places), 0
                ends = self._client.get_watermark_offsets(Place(*at), PATIENCE_S, cached=True)
                if ends is not None and ends[1] > 0:
                    start = self._chance.randrange(ends[1])
                self._client.seek(Place(*at, start))
                starts = {at: start}
                self._history.write(Assign(self._name, starts, Why.SEEK))
        self._tell()
        self._client.close()

    def read_as_member(self, is_over: IsOver) -> None:
        """Read what the group gives."""
        self._client.subscribe([self._topic], on_assign=self._given, on_revoke=self._revoked)
        while not is_over():
            self._take(self._client.poll(POLL_S))
        self._tell()
        self._client.close()

    def read_finally(self) -> None:
        """Read everything, to the ends."""
        self._assign(Why.FINAL)
        at_end: set[TopicPartition] = set()
        while len(at_end) < len(self._places):
            message = self._client.poll(POLL_S)
            if message is not None and _is_end(message):
                at_end.add(TopicPartition(self._topic, message.partition()))
            self._take(message)
        self._tell()
        self._client.close()

    def _assign(self, why: Why) -> None:
        self._history.write(Assign(self._name, dict.fromkeys(self._places, 0), why))
        self._client.assign([Place(*at, 0) for at in self._places])

    def _given(self, _client: Consumer, given: list[Place]) -> None:
        self._tell()
        starts = {TopicPartition(one.topic, one.partition): None for one in given}
        self._history.write(Assign(self._name, dict(starts), Why.REBALANCE))

    def _revoked(self, _client: Consumer, _revoked: list[Place]) -> None:
        self._tell()
        self._history.write(Assign(self._name, {}, Why.REBALANCE))

    def _take(self, message: Message | None) -> None:
        if message is None:
            self._tell()
            return
        at = TopicPartition(self._topic, message.partition())
        if _is_end(message):
            self._tell()
            self._history.write(EndOfPartition(self._name, at, message.offset()))
        elif message.error() is None:
            self._polled.setdefault(at, []).append((message.offset(), int(message.value())))
            if sum(map(len, self._polled.values())) >= MOST_OF_POLL:
                self._tell()
        elif not message.error().retriable():
            print(message.error(), file=sys.stderr)  # the client goes on by itself

    def _tell(self) -> None:
        if self._polled:
            self._history.write(Poll(self._name, self._polled))
            self._polled = {}


Polled = dict[TopicPartition, list[Record]]


class OtherConsumer(Protocol):
    """A consumer of all partitions, from their starts on, that is not librdkafka's."""

    def poll(self) -> Polled: ...
    def seek(self, at: TopicPartition, offset: int) -> None: ...
    def close(self) -> None: ...


class OfPlog:
    """plog's own consumer."""

    def __init__(self, bootstrap: str, places: list[TopicPartition]) -> None:
        self._client = PlogConsumer(
            bootstrap, auto_offset_reset="earliest", isolation_level=Isolation.COMMITTED
        )
        self._client.assign(places)
        self.seek, self.close = self._client.seek, self._client.close

    def poll(self) -> Polled:
        polled: Polled = {}
        for one in self._client.poll(POLL_MS):
            at = TopicPartition(one.topic, one.partition)
            polled.setdefault(at, []).append((one.offset, int(one.value or b"")))
        return polled


class OfKafkaPython:
    """kafka-python's consumer."""

    def __init__(self, bootstrap: str, places: list[TopicPartition]) -> None:
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition as KafkaPythonPlace

        self._client = KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=str(Isolation.COMMITTED),
            max_poll_records=MOST_OF_POLL,
            # By itself it soon pauses for longer than a broker lives here.
            reconnect_backoff_max_ms=RECONNECT_MS,
        )
        self._places = {at: KafkaPythonPlace(*at) for at in places}
        self._client.assign(list(self._places.values()))
        self.close = self._client.close

    def poll(self) -> Polled:
        found = self._client.poll(POLL_MS).items()
        return {
            TopicPartition(*at): [(one.offset, int(one.value)) for one in some]
            for at, some in found
        }

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._client.seek(self._places[at], offset)


class OtherReading:
    """Reads by a client that is not librdkafka's."""

    def __init__(
        self,
        settings: dict[str, Any],
        history: HistoryWriter,
        make: Callable[[str, list[TopicPartition]], OtherConsumer],
    ) -> None:
        self._name, self._history = settings["name"], history
        self._chance = random.Random(settings["seed"])
        self._places = [
            TopicPartition(settings["topic"], index) for index in range(settings["partitions"])
        ]
        self._client = make(settings["bootstrap"], self._places)

    def read_all(self, is_over: IsOver) -> None:
        """Read all partitions, and begin somewhere before now and then."""
        furthest = dict.fromkeys(self._places, 0)
        self._history.write(Assign(self._name, dict(furthest), Why.REBALANCE))
        while not is_over():
            polled = self._client.poll()
            if polled:
                self._history.write(Poll(self._name, polled))
            for at, records in polled.items():
                furthest[at] = max(furthest[at], records[-1][0])
            if self._chance.random() < SEEKS:
                at = self._chance.choice(self._places)
                start = self._chance.randint(0, furthest[at])
                self._client.seek(at, start)
                self._history.write(Assign(self._name, {at: start}, Why.SEEK))
        self._client.close()


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def main() -> None:
    """Run one worker."""
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with HistoryWriter(Path(settings["history"])) as history:
        match role:
            case "producer":
                Producing(settings, history).run(over.is_set)
            case "plain":
                Producing(settings, history).run_plainly(over.is_set)
            case "plog-reader":
                OtherReading(settings, history, OfPlog).read_all(over.is_set)
            case "kafka-python-reader":
                OtherReading(settings, history, OfKafkaPython).read_all(over.is_set)
            case "reader":
                Reading(settings, history).read_all(over.is_set)
            case "member":
                Reading(settings, history).read_as_member(over.is_set)
            case "final":
                Reading(settings, history).read_finally()
            case _:
                sys.exit(f"no role is called {role}")


if __name__ == "__main__":
    main()
