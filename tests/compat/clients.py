"""The same few things done with each real client, so that one table of tests covers them all.

A record is (key, value, headers, timestamp in ms); what comes back is read with the same client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE_S = 120
"""What anything may take on a machine that is busy with other tests."""
LARGEST_REQUEST = 12 * 1024 * 1024


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1_700_000_000_000


class Confluent:
    """confluent-kafka, on librdkafka."""

    name = "confluent-kafka"
    writes_null_headers = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: str = "all",
        partition: int = 0,
    ) -> list[int]:
        producer = self.producer(bootstrap, codec=codec, idempotent=idempotent, acks=acks)
        return self.write(producer, topic, records, partition=partition)

    def producer(
        self, bootstrap: str, *, codec: str = "none", idempotent: bool = True, acks: str = "all"
    ) -> Any:
        """Return a producer; an idempotent one asks for its id half a second after it is made."""
        from confluent_kafka import Producer

        return Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": acks,
                "message.max.bytes": LARGEST_REQUEST,
                "linger.ms": 5,
            }
        )

    def write(
        self, producer: Any, topic: str, records: Sequence[Sent], *, partition: int = 0
    ) -> list[int]:
        """Write records; return their offsets."""
        offsets: dict[int, int] = {}
        errors: list[Any] = []
        for index, record in enumerate(records):

            def delivered(error: Any, message: Any, index: int = index) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offsets[index] = message.offset()

            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                headers=list(record.headers) or None,
                timestamp=record.timestamp,
                on_delivery=delivered,
            )
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0, "records are unacknowledged"
        assert not errors, errors
        return [offsets[index] for index in range(len(records))]

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Sent]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.message.max.bytes": LARGEST_REQUEST,
            }
        )
        found: list[Sent] = []
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while len(found) < count:
                messages = consumer.consume(count - len(found), PATIENCE_S)
                assert messages, f"{len(found)} of {count} records came"
                for message in messages:
                    assert message.error() is None, message.error()
                    found.append(
                        Sent(
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            message.timestamp()[1],
                        )
                    )
        finally:
            consumer.close()
        return found


def read_all(
    bootstrap: str, topic: str, partition: int, isolation: str = "read_uncommitted"
) -> list[tuple[int, Sent]]:
    """Return what librdkafka finds in a partition up to its end, with the offsets."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,  # the end is told after it
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[int, Sent]] = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} records came"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            headers = tuple(message.headers() or ())
            record = Sent(message.key(), message.value(), headers, message.timestamp()[1])
            found.append((message.offset(), record))
    finally:
        consumer.close()


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"
    writes_null_headers = False  # it wants bytes

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: str = "all",
        partition: int = 0,
    ) -> list[int]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all" if acks == "all" else int(acks),
            max_request_size=LARGEST_REQUEST,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(PATIENCE_S)
            return [future.get(60).offset for future in futures]
        finally:
            producer.close(30)

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Sent]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            consumer_timeout_ms=30_000,
            max_partition_fetch_bytes=LARGEST_REQUEST,
            check_crcs=True,
        )
        found: list[Sent] = []
        try:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            for message in consumer:
                found.append(
                    Sent(message.key, message.value, tuple(message.headers), message.timestamp)
                )
                if len(found) == count:
                    break
        finally:
            consumer.close()
        assert len(found) == count, f"{len(found)} of {count} records came"
        return found


class AioKafka:
    """aiokafka."""

    name = "aiokafka"
    writes_null_headers = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: str = "all",
        partition: int = 0,
    ) -> list[int]:
        from aiokafka import AIOKafkaProducer

        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all" if acks == "all" else int(acks),
                max_request_size=LARGEST_REQUEST,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=partition,
                        timestamp_ms=record.timestamp,
                    )
                    for record in records
                ]
                return [(await future).offset for future in futures]
            finally:
                await producer.stop()

        return asyncio.run(asyncio.wait_for(run(), 60))

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Sent]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def run() -> list[Sent]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                max_partition_fetch_bytes=LARGEST_REQUEST,
                check_crcs=True,
            )
            await consumer.start()
            try:
                where = TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, offset)
                found = []
                while len(found) < count:
                    message = await consumer.getone()
                    found.append(
                        Sent(message.key, message.value, tuple(message.headers), message.timestamp)
                    )
                return found
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(run(), 60))


class Plog:
    """plog's own client."""

    name = "plog"
    writes_null_headers = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: str = "all",
        partition: int = 0,
    ) -> list[int]:
        from plog.client.producer import Producer

        with Producer(
            bootstrap,
            compression_type=codec,
            enable_idempotence=idempotent,
            acks=acks,
            max_request_size=LARGEST_REQUEST,
        ) as producer:
            deliveries = [
                producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(PATIENCE_S)
            return [delivery.result(PATIENCE_S).offset for delivery in deliveries]

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Sent]:
        from plog.client.consumer import Consumer
        from plog.types import TopicPartition

        found: list[Sent] = []
        with Consumer(bootstrap, max_partition_fetch_bytes=LARGEST_REQUEST) as consumer:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            while len(found) < count:
                records = consumer.poll(30_000)
                assert records, f"{len(found)} of {count} records came"
                found += [Sent(r.key, r.value, r.headers, r.timestamp) for r in records]
        return found


CLIENTS = [Confluent(), KafkaPython(), AioKafka(), Plog()]
