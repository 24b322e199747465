"""Steps between the command lines of `script_cases`: they give a broker records and members."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from confluent_kafka import Consumer

from plog.client.producer import Producer
from tests.servers import BrokerProcess
from tests.waiting import until

STAMP = 1_700_000_000_000
SECOND_MS = 1000
"""Between the timestamps of two records."""


def write_records(
    broker: BrokerProcess, _: ExitStack, topic: str, count: str, partition: str = "0"
) -> None:
    """Write a batch of records with keys, values, headers and timestamps."""
    with Producer(broker.bootstrap, linger_ms=60_000) as producer:
        _send(producer, topic, int(count), int(partition))


def write_batches(broker: BrokerProcess, _: ExitStack, topic: str, count: str) -> None:
    """Write a number of batches of one record each."""
    with Producer(broker.bootstrap) as producer:
        for n in range(int(count)):
            _send(producer, topic, 1, 0, first=n)
            producer.flush()


def write_transaction(
    broker: BrokerProcess, ended: ExitStack, topic: str, transactional_id: str, end: str
) -> None:
    """Write a record in a transaction; commit or abort it, or leave it open until the end."""
    producer = Producer(broker.bootstrap, transactional_id=transactional_id)
    ended.callback(producer.close, timeout_s=0)
    producer.init_transactions()
    producer.begin_transaction()
    _send(producer, topic, 1, 0)
    producer.flush()
    if end == "commit":
        producer.commit_transaction()
    elif end == "abort":
        producer.abort_transaction()


def _send(producer: Producer, topic: str, count: int, partition: int, first: int = 0) -> None:
    for n in range(first, first + count):
        producer.send(
            topic,
            b"v%d" % n,
            key=b"k%d" % n,
            headers=[("h", b"%d" % n)],
            partition=partition,
            timestamp_ms=STAMP + n * SECOND_MS,
        )


def join_group(
    broker: BrokerProcess, ended: ExitStack, group: str, topic: str, *settings: str
) -> None:
    """Have one member in a group until the end; it has all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": "reader",
            "enable.auto.commit": False,
            **dict(setting.split("=") for setting in settings),
        }
    )
    ended.callback(consumer.close)
    consumer.subscribe([topic])

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    until(is_assigned, "assigned")


STEPS: dict[str, Callable[..., None]] = {
    "records": write_records,
    "batches": write_batches,
    "transaction": write_transaction,
    "member": join_group,
}
