"""What every client is made to do where its traffic is looked at, and the records it has to see.

It writes in rounds, a few records to every partition of some topics and a flush; once half of the
rounds are written it reads them, and then every further round as it comes, with Fetches out while
it writes. Settings are the clients' own defaults. `java/Traffic.java` does the same in Java.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from plog.types import TopicPartition
from tests.compat.clients import Sent

PATIENCE_S = 90
LARGE = 100_000


class Shape(NamedTuple):
    """How much of it."""

    partitions: int = 12
    rounds: int = 20
    records_per_round: int = 2

    def total(self, topics: int) -> int:
        return topics * self.partitions * self.rounds * self.records_per_round


def record(at: TopicPartition, number: int) -> Sent:
    """Return a partition's record at an offset; some lack a key, a value or headers.

    The first dozen of partition 0 are together more than a Fetch asks for by default, a megabyte.
    """
    key = None if number % 7 == 3 else f"{at.partition}:{number}".encode()
    size = LARGE if at.partition == 0 and number < 12 else number * 37 % 400
    text = f"{at.topic}/{at.partition}/{number} " + "v" * size
    value = None if number % 14 == 5 else text.encode()
    headers = (("number", b"%d" % number), ("empty", b"")) if number % 2 == 0 else ()
    return Sent(key, value, headers)


class Found(NamedTuple):
    """A record that a client has read."""

    at: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Client(Protocol):
    """A producer and a consumer of one library."""

    def start(self, bootstrap: str) -> None: ...
    def write(self, records: Iterable[tuple[TopicPartition, Sent]]) -> None: ...
    def read_from_start(self, partitions: Sequence[TopicPartition]) -> None: ...
    def poll(self) -> list[Found]: ...
    def close(self) -> None: ...


def run(client: Client, bootstrap: str, topics: Sequence[str], shape: Shape) -> None:
    partitions = [TopicPartition(t, index) for t in topics for index in range(shape.partitions)]
    ends = dict.fromkeys(partitions, 0)

    def write(round_: int) -> None:
        numbers = range(round_ * shape.records_per_round, (round_ + 1) * shape.records_per_round)
        client.write([(at, record(at, number)) for number in numbers for at in partitions])

    def read_until(rounds: int) -> None:
        wanted = rounds * shape.records_per_round
        deadline = time.monotonic() + PATIENCE_S
        while any(end < wanted for end in ends.values()):
            assert time.monotonic() < deadline, f"of {wanted} records each there came {ends}"
            for found in client.poll():
                number = ends[found.at]
                sent = record(found.at, number)
                assert found == (found.at, number, sent.key, sent.value, sent.headers)
                ends[found.at] += 1
        assert set(ends.values()) == {wanted}

    half = shape.rounds // 2
    client.start(bootstrap)
    try:
        for round_ in range(half):
            write(round_)
        client.read_from_start(partitions)
        for round_ in range(half, shape.rounds):
            read_until(round_)
            write(round_)
        read_until(shape.rounds)
    finally:
        client.close()


class Confluent:
    """confluent-kafka, on librdkafka."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings
        self._consumer: Any = None

    def start(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer, Producer

        self._producer = Producer({"bootstrap.servers": bootstrap, **self._settings})
        # It wants the name of a group; committing to it needs a coordinator.
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )

    def write(self, records: Iterable[tuple[TopicPartition, Sent]]) -> None:
        errors = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        for at, one in records:
            self._producer.produce(
                at.topic,
                value=one.value,
                key=one.key,
                partition=at.partition,
                headers=list(one.headers) or None,
                on_delivery=delivered,
            )
        assert self._producer.flush(PATIENCE_S) == 0, "records are unacknowledged"
        assert not errors, errors

    def read_from_start(self, partitions: Sequence[TopicPartition]) -> None:
        from confluent_kafka import OFFSET_BEGINNING
        from confluent_kafka import TopicPartition as Where

        self._consumer.assign([Where(*at, OFFSET_BEGINNING) for at in partitions])

    def poll(self) -> list[Found]:
        found = []
        # It would wait for as many as were asked for.
        while (message := self._consumer.poll(0 if found else 0.5)) is not None:
            assert message.error() is None, message.error()
            found.append(
                Found(
                    TopicPartition(message.topic(), message.partition()),
                    message.offset(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
        return found

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings

    def start(self, bootstrap: str) -> None:
        from kafka import KafkaConsumer, KafkaProducer

        self._producer = KafkaProducer(bootstrap_servers=bootstrap, **self._settings)
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap)

    def write(self, records: Iterable[tuple[TopicPartition, Sent]]) -> None:
        futures = [
            self._producer.send(
                at.topic,
                value=one.value,
                key=one.key,
                headers=list(one.headers),
                partition=at.partition,
            )
            for at, one in records
        ]
        self._producer.flush(PATIENCE_S)
        for future in futures:
            future.get(PATIENCE_S)

    def read_from_start(self, partitions: Sequence[TopicPartition]) -> None:
        from kafka import TopicPartition as Where

        wheres = [Where(*at) for at in partitions]
        self._consumer.assign(wheres)
        self._consumer.seek_to_beginning(*wheres)

    def poll(self) -> list[Found]:
        return [
            Found(TopicPartition(*where), one.offset, one.key, one.value, tuple(one.headers))
            for where, records in self._consumer.poll(500).items()
            for one in records
        ]

    def close(self) -> None:
        self._consumer.close()
        self._producer.close(PATIENCE_S)


class AioKafka:
    """aiokafka; its loop runs while it is asked for something."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, PATIENCE_S))

    def start(self, bootstrap: str) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        async def start() -> None:
            self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **self._settings)
            self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
            await self._producer.start()
            await self._consumer.start()

        self._loop = asyncio.new_event_loop()
        self._run(start())

    def write(self, records: Iterable[tuple[TopicPartition, Sent]]) -> None:
        async def write() -> None:
            futures = [
                await self._producer.send(
                    at.topic,
                    value=one.value,
                    key=one.key,
                    headers=list(one.headers),
                    partition=at.partition,
                )
                for at, one in records
            ]
            await asyncio.gather(*futures)

        self._run(write())

    def read_from_start(self, partitions: Sequence[TopicPartition]) -> None:
        from aiokafka import TopicPartition as Where

        async def seek() -> None:
            wheres = [Where(*at) for at in partitions]
            self._consumer.assign(wheres)
            await self._consumer.seek_to_beginning(*wheres)

        self._run(seek())

    def poll(self) -> list[Found]:
        return [
            Found(TopicPartition(*where), one.offset, one.key, one.value, tuple(one.headers))
            for where, records in self._run(self._consumer.getmany(timeout_ms=500)).items()
            for one in records
        ]

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._run(self._producer.stop())
        self._loop.close()
