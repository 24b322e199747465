"""Prints, as JSON, the values of the first records of a partition, hex.

Run as a script by interpreters that find an old release of the client on their path:
`read_values.py <kafka or aiokafka> <bootstrap> <topic> <count>`. Knows nothing of plog's tests.
"""

from __future__ import annotations

import asyncio
import json
import sys

TIMEOUT_S = 60


def read_with_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=TIMEOUT_S * 1000)
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek(where, 0)
    found: list[bytes] = []
    for message in consumer:
        found.append(message.value)
        if len(found) == count:
            break
    consumer.close()
    return found


async def read_with_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def main(package: str, bootstrap: str, topic: str, count: str) -> None:
    if package == "kafka":
        import kafka as client

        found = read_with_kafka_python(bootstrap, topic, int(count))
    else:
        import aiokafka as client

        reading = read_with_aiokafka(bootstrap, topic, int(count))
        found = asyncio.run(asyncio.wait_for(reading, TIMEOUT_S))
    values = [value.hex() for value in found]
    json.dump({"version": client.__version__, "values": values}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
