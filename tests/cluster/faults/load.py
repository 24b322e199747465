"""The load, run as scripts: what a worker does and sees goes to a history, its calls to a ledger.

`python -m tests.cluster.faults.load ROLE SETTINGS`; the roles:

    feeder  sends values to the topic `in`, idempotently and without transactions
    copier  reads `in` in a group, and writes each value to `out` in a transaction that also
            commits the group's offsets; some are aborted
    member  reads `out` in another group, and commits after each poll
    asker   creates topics, and asks about the group, the transactions and the ends of `out`

A copy's value is that of the record it copies plus a multiple of `SOURCES`, as each value of a
history is sent once. The worker ends with stdin. It ends with status 1 at a failure from which its
client cannot go on; the harness starts another one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.client.transaction_admin import TransactionAdmin
from plog.errors import PlogError
from plog.types import TopicPartition
from tests.checker.history import (
    AbortBegin,
    Aborted,
    Ack,
    Assign,
    Begin,
    CommitBegin,
    Committed,
    Event,
    Fail,
    HistoryWriter,
    OutcomeUnknown,
    Poll,
    Record,
    Send,
    Unknown,
    Why,
)

from .calls import CallWriter
from .clients import (
    CALL_S,
    DELIVERY_S,
    GROUPS,
    TRANSACTIONAL,
    Again,
    Offsets,
    Records,
    Refused,
)

INPUT, OUTPUT = "in", "out"
CREATED = "made-"
"""Begins the name of each topic that is made meanwhile."""
OF_WORKER = 10_000_000
"""So many values has a worker."""
SOURCES = 1_000 * OF_WORKER
ABORTS = 0.1
FEED = 20
FEED_PAUSE_S = 0.1
ASK_PAUSE_S = 0.3

IsOver = Callable[[], bool]


class Worker:
    """What the roles share."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name: str = settings["name"]
        self.bootstrap: str = settings["bootstrap"]
        self.partitions: int = settings["partitions"]
        self.number: int = settings["number"]
        self.settings = settings
        self.chance = random.Random(settings["seed"] + self.number)
        place = Path(settings["directory"])
        self._history = HistoryWriter(place / f"{self.name}.jsonl")
        self.calls = CallWriter(place / f"{self.name}.calls")

    def tell(self, event: Event) -> None:
        self._history.write(event)

    def again(self, name: str, allowed_s: float, call: Callable[[], None]) -> None:
        """Make a call, and again for as long as the client wants just that."""
        while True:
            try:
                with self.calls.call(name, allowed_s):
                    call()
                return
            except Again:
                continue

    def outcome(self, value: int, offset: int | None, is_certain: bool) -> None:
        """Write down what became of a record."""
        if offset is not None:
            self.tell(Ack(self.name, value, offset))
        elif is_certain:
            self.tell(Fail(self.name, value))
        else:
            self.tell(Unknown(self.name, value))


class Feeder(Worker):
    """Sends values."""

    def run(self, is_over: IsOver) -> None:
        client = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(1000 * DELIVERY_S),
                "reconnect.backoff.max.ms": 1000,
            }
        )
        values = itertools.count(self.number * OF_WORKER)
        while not is_over():
            for value in itertools.islice(values, FEED):
                at = TopicPartition(INPUT, self.chance.randrange(self.partitions))
                self.tell(Send(self.name, at, value))
                delivered = partial(self._delivered, value)
                client.produce(
                    at.topic, b"%d" % value, partition=at.partition, on_delivery=delivered
                )
            with self.calls.call("flush", DELIVERY_S):
                is_sent = client.flush(DELIVERY_S) == 0
            if is_sent:
                self.calls.progress()
            time.sleep(FEED_PAUSE_S)

    def _delivered(self, value: int, error: KafkaError | None, message: Message) -> None:
        self.outcome(value, None if error is not None else message.offset(), False)


class Copier(Worker):
    """Copies in transactions."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        kind = settings["client"]
        self._producer = TRANSACTIONAL[kind](self.bootstrap, settings["transactional_id"])
        self._group = GROUPS[kind](self.bootstrap, settings["group"], INPUT, lambda *_: None)
        self._copies = itertools.count(self.number * OF_WORKER)

    def run(self, is_over: IsOver) -> None:
        try:
            self._run(is_over)
        finally:  # whatever happens, each record has its outcome
            with self.calls.call("close producer", self._producer.close_s):
                self._producer.close()

    def _run(self, is_over: IsOver) -> None:
        self.again("init", self._producer.call_s, self._producer.init)
        for number in itertools.count():
            if is_over():
                break
            with self.calls.call("poll", self._group.poll_s):
                found = self._group.poll()
            if found:
                self._copy(f"{self.name}-{number}", found)
        with self.calls.call("close", self._group.close_s):
            self._group.close()

    def _copy(self, txn: str, found: Records) -> None:
        self.tell(Begin(self.name, txn))
        self._producer.begin()
        try:
            self._fill(txn, found)
            self.tell(CommitBegin(self.name, txn))
            self.again("commit", self._producer.commit_s, self._producer.commit)
        except Refused as refusal:
            print(f"{txn}: {refusal}", file=sys.stderr)
            self._give_up(txn, found)
        except BaseException:
            self.tell(OutcomeUnknown(self.name, txn))
            raise
        else:
            self.tell(Committed(self.name, txn))
            self.calls.progress()

    def _fill(self, txn: str, found: Records) -> None:
        ends: Offsets = {}
        for at, offset, source in found:
            value = source + SOURCES * next(self._copies)
            to = TopicPartition(OUTPUT, self.chance.randrange(self.partitions))
            self.tell(Send(self.name, to, value, txn))
            self._producer.send(to, value, partial(self.outcome, value))
            ends[at] = offset + 1
        send_offsets = partial(self._send_offsets, ends)
        self.again("send offsets", self._producer.call_s, send_offsets)
        if self.chance.random() < ABORTS:
            raise Refused("on purpose")

    def _send_offsets(self, ends: Offsets) -> None:
        if not self._producer.may_hang:
            self._producer.send_offsets(ends, self._group)
            return
        watch = threading.Timer(self._producer.call_s + 1.0, self._end_hanging)
        watch.start()
        try:
            self._producer.send_offsets(ends, self._group)
        finally:
            watch.cancel()

    def _end_hanging(self) -> None:
        self.calls.give_up()
        os._exit(1)

    def _give_up(self, txn: str, found: Records) -> None:
        self.tell(AbortBegin(self.name, txn))
        try:
            self.again("abort", self._producer.call_s, self._producer.abort)
        except BaseException:
            self.tell(OutcomeUnknown(self.name, txn))
            raise
        self.tell(Aborted(self.name, txn))
        starts: Offsets = {}
        for at, offset, _ in found:
            starts.setdefault(at, offset)
        for at, start in starts.items():
            self._group.seek(at, start)


class Member(Worker):
    """Reads what its group gives it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        make = GROUPS[settings["client"]]
        self._group = make(self.bootstrap, settings["group"], OUTPUT, self._assigned)

    def _assigned(self, partitions: list[TopicPartition], before: Records) -> None:
        self._read(before)
        self.tell(Assign(self.name, dict.fromkeys(partitions), Why.REBALANCE))

    def _read(self, found: Records) -> None:
        polled: dict[TopicPartition, list[Record]] = {}
        for at, offset, value in found:
            polled.setdefault(at, []).append((offset, value))
        if polled:
            self.tell(Poll(self.name, polled))

    def run(self, is_over: IsOver) -> None:
        while not is_over():
            with self.calls.call("poll", self._group.poll_s):
                found = self._group.poll()
            self._read(found)
            if found:
                self._commit({at: offset + 1 for at, offset, _ in found})
        with self.calls.call("close", self._group.close_s):
            self._group.close()

    def _commit(self, offsets: Offsets) -> None:
        try:
            with self.calls.call("commit offsets", self._group.commit_s):
                self._group.commit(offsets)
        except Refused as refusal:
            print(refusal, file=sys.stderr)  # another member may have the partitions
        else:
            self.calls.committed(offsets)
            self.calls.progress()


class Asker(Worker):
    """Asks what administrators ask, and creates topics."""

    def run(self, is_over: IsOver) -> None:
        group, name = self.settings["group"], self.settings["transactional_id"]
        places = [TopicPartition(OUTPUT, index) for index in range(self.partitions)]
        with ExitStack() as stack:
            admin, groups, transactions, consumer = (
                stack.enter_context(one(self.bootstrap, request_timeout_ms=int(1000 * CALL_S)))
                for one in (Admin, GroupAdmin, TransactionAdmin, Consumer)
            )
            for number in itertools.count():
                if is_over():
                    return
                made = f"{CREATED}{self.number}-{number}"
                asked = {
                    made: partial(admin.create_topic, made, partitions=1),
                    "describe group": partial(groups.describe, group),
                    "committed": partial(groups.committed, group),
                    "describe transaction": partial(transactions.describe, name),
                    "end offsets": partial(consumer.end_offsets, places),
                }
                done = [self._is_answered(what, ask) for what, ask in asked.items()]
                if all(done):
                    self.calls.progress()
                time.sleep(ASK_PAUSE_S)

    def _is_answered(self, what: str, ask: Callable[[], object]) -> bool:
        try:
            with self.calls.call(what, 2 * CALL_S):
                ask()
        except PlogError as fault:
            print(f"{what}: {fault}", file=sys.stderr)
            return False
        return True


ROLES = {"feeder": Feeder, "copier": Copier, "member": Member, "asker": Asker}


def main() -> None:
    """Run one worker."""
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    worker = ROLES[sys.argv[1]](json.loads(sys.argv[2]))
    worker.run(over.is_set)


if __name__ == "__main__":
    main()
