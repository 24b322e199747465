"""A worker that consumes, transforms and produces, exactly once, run as a script.

`transactional_worker.py <client> <settings>`: the client is confluent-kafka, kafka-python, aiokafka
or plog, the settings are a JSON object of `bootstrap`, `group`, `source`, `target`,
`transactional_id`, `batch` (most records of a transaction), `abort_every` (0 for never),
`session_ms`, `max_poll_ms`, and of confluent-kafka `each_ms` (when a transaction ends, see `Job`).
It copies each record to the same partition of the target, commits its offset with the same
transaction, and aborts every so-manieth on purpose, until its stdin ends. Whatever its client
raises ends it, with status 1: whoever runs it starts it anew. Each line that it prints is JSON:

    {"committed": 17}     so many records, of a transaction
    {"aborted": 5}

`java/TransactionalWorker.java` does the same.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

POLL_S = 0.1
PATIENCE_S = 60
TRANSACTION_TIMEOUT_MS = 10_000
STUCK_S = 25
"""A turn of librdkafka that takes longer is given up, and the worker with it: a transactional call
may wait for ever, whatever time it was given (librdkafka issues 5456, 5511), when the connection by
which it asks for the group's coordinator is the one by which the client began anew."""


def tell(**said: object) -> None:
    print(json.dumps(said), flush=True)


class Turns:
    """Which transactions are to be aborted."""

    def __init__(self, abort_every: int) -> None:
        self._every = abort_every
        self._numbers = itertools.count(1)

    def aborts(self) -> bool:
        return bool(self._every) and next(self._numbers) % self._every == 0


def run_confluent(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

    protocol: dict[str, Any] = {
        "partition.assignment.strategy": "range",
        "session.timeout.ms": settings["session_ms"],
        "heartbeat.interval.ms": settings["session_ms"] // 10,
    }
    if settings["protocol"] == "consumer":
        protocol = {"group.protocol": "consumer"}
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": settings["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "max.poll.interval.ms": settings["max_poll_ms"],
            **protocol,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "transactional.id": settings["transactional_id"],
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    )
    producer.init_transactions(PATIENCE_S)
    consumer.subscribe([settings["source"]])
    turns = Turns(settings["abort_every"])
    each_s = settings["each_ms"] / 1000

    def take(most: int, timeout_s: float) -> list[Any]:
        messages = consumer.consume(most, timeout_s)
        for message in messages:
            error = message.error()
            # On a busy host two calls may be further apart; the next one joins the group again.
            if error is not None and error.code() != KafkaError._MAX_POLL_EXCEEDED:
                raise RuntimeError(error)
        return [message for message in messages if message.error() is None]

    def take_more(messages: list[Any], until_s: float) -> None:
        """Have a transaction of these go on until then, with what comes if there is room."""
        while (left_s := until_s - time.monotonic()) > 0:
            more = []
            if len(messages) < settings["batch"]:
                more = take(settings["batch"] - len(messages), left_s)
            else:
                time.sleep(left_s)
            copy(more)
            messages += more

    def copy(messages: list[Any]) -> None:
        for message in messages:
            producer.produce(settings["target"], message.value(), partition=message.partition())

    def commits(messages: list[Any], member: Any) -> bool:
        """End the transaction, unless it is one to abort, or its offsets are refused.

        They are if the group has rebalanced since it began, or if a heartbeat has moved the member
        of a KIP-848 group on by an epoch meanwhile.
        """
        ends = {(one.topic(), one.partition()): one.offset() + 1 for one in messages}
        try:
            producer.send_offsets_to_transaction(
                [TopicPartition(*at, end) for at, end in ends.items()], member, PATIENCE_S
            )
            if turns.aborts():
                return False
            producer.commit_transaction(PATIENCE_S)
        except KafkaException as refused:
            if not refused.args[0].txn_requires_abort():
                raise
            return False
        return True

    def rewind() -> None:
        for one in consumer.committed(consumer.assignment(), PATIENCE_S):
            start = max(one.offset, 0)
            consumer.seek(TopicPartition(one.topic, one.partition, start))

    while not is_over():
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        messages = take(1 if each_s else settings["batch"], POLL_S)
        if not messages:
            continue
        end_s = time.monotonic() + each_s
        # Who it is now: what it took for itself before a rebalance may be another's behind it.
        member = consumer.consumer_group_metadata()
        producer.begin_transaction()
        copy(messages)
        take_more(messages, end_s)
        if commits(messages, member):
            tell(committed=len(messages))
        else:
            producer.abort_transaction(PATIENCE_S)
            rewind()
            tell(aborted=len(messages))
    faulthandler.cancel_dump_traceback_later()
    consumer.close()


def run_kafka_python(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(
        settings["source"],
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // 10,
        max_poll_interval_ms=settings["max_poll_ms"],
        max_poll_records=settings["batch"],
    )
    producer = KafkaProducer(
        bootstrap_servers=settings["bootstrap"],
        transactional_id=settings["transactional_id"],
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    producer.init_transactions()
    turns = Turns(settings["abort_every"])
    while not is_over():
        found = consumer.poll(1000)
        messages = [message for some in found.values() for message in some]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.send(settings["target"], message.value, partition=message.partition)
        offsets = {at: OffsetAndMetadata(some[-1].offset + 1, "", -1) for at, some in found.items()}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        if turns.aborts():
            producer.abort_transaction()
            for at in consumer.assignment():
                consumer.seek(at, consumer.committed(at) or 0)
            tell(aborted=len(messages))
        else:
            producer.commit_transaction()
            tell(committed=len(messages))
    producer.close(PATIENCE_S)
    consumer.close()


async def run_aiokafka(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = AIOKafkaConsumer(
        settings["source"],
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // 10,
        max_poll_interval_ms=settings["max_poll_ms"],
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=settings["bootstrap"],
        transactional_id=settings["transactional_id"],
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    await producer.start()
    await consumer.start()
    turns = Turns(settings["abort_every"])
    while not is_over():
        found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=settings["batch"])
        messages = [message for some in found.values() for message in some]
        if not messages:
            continue
        await producer.begin_transaction()
        for message in messages:
            await producer.send(settings["target"], message.value, partition=message.partition)
        offsets = {at: some[-1].offset + 1 for at, some in found.items()}
        await producer.send_offsets_to_transaction(offsets, settings["group"])
        if turns.aborts():
            await producer.abort_transaction()
            committed = {at: await consumer.committed(at) for at in consumer.assignment()}
            for at in consumer.assignment() & committed.keys():  # some may have gone meanwhile
                consumer.seek(at, committed[at] or 0)
            tell(aborted=len(messages))
        else:
            await producer.commit_transaction()
            tell(committed=len(messages))
    await producer.stop()
    await consumer.stop()


def run_plog(settings: dict[str, Any], is_over: Callable[[], bool]) -> None:
    from plog.client.group_consumer import GroupConsumer
    from plog.client.producer import Producer

    with (
        Producer(
            settings["bootstrap"],
            transactional_id=settings["transactional_id"],
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        ) as producer,
        GroupConsumer(
            settings["bootstrap"],
            settings["group"],
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=settings["session_ms"],
            heartbeat_interval_ms=settings["session_ms"] // 10,
            max_poll_interval_ms=settings["max_poll_ms"],
            max_poll_records=settings["batch"],
        ) as consumer,
    ):
        producer.init_transactions()
        consumer.subscribe([settings["source"]])
        turns = Turns(settings["abort_every"])
        while not is_over():
            messages = consumer.poll(int(POLL_S * 1000))
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.send(settings["target"], message.value, partition=message.partition)
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata)
            if turns.aborts():
                producer.abort_transaction()
                committed = consumer.committed(consumer.assignment())
                for at in consumer.assignment():
                    consumer.seek(at, committed.get(at, 0))
                tell(aborted=len(messages))
            else:
                producer.commit_transaction()
                tell(committed=len(messages))


def main() -> None:
    client, settings = sys.argv[1], json.loads(sys.argv[2])
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    match client:
        case "confluent-kafka":
            run_confluent(settings, over.is_set)
        case "kafka-python":
            run_kafka_python(settings, over.is_set)
        case "aiokafka":
            asyncio.run(run_aiokafka(settings, over.is_set))
        case "plog":
            run_plog(settings, over.is_set)
        case _:
            sys.exit(f"no client is called {client}")


if __name__ == "__main__":
    main()
