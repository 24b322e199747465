"""Kafka's own client, the old line and the newest, and franz-go against a broker: every codec."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plog.types import TopicPartition
from tests.compat.clients import CODECS, Confluent
from tests.compat.programs import JAVA, RELEASES_OF_FRANZ_GO, Java, Program, Run
from tests.compat.traffic import Shape, record
from tests.servers import BrokerProcess

SHAPE = Shape(partitions=8, rounds=2, records_per_round=8)

# The two lines of Java's differ in how long they linger by default.
SETTINGS: list[dict[str, object]] = [
    {"linger_ms": 0},
    {"linger_ms": 5},
    *({"compression_type": codec} for codec in CODECS[1:]),
    {"enable_idempotence": "false"},
    {"enable_idempotence": "false", "acks": 1},
]
UNACKNOWLEDGED: dict[str, object] = {"enable_idempotence": "false", "acks": 0}
"""For Java: who is told no offsets cannot compare them, as franz-go's program does."""


@pytest.mark.parametrize("client", [*JAVA, *RELEASES_OF_FRANZ_GO], ids=lambda client: client.name)
def test_client_writes_and_reads(
    client: Program, broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    def topics() -> list[str]:
        return [new_topic(SHAPE.partitions) for _ in range(2)]

    # One process for all: to start one takes longer than to run any of them.
    more = [UNACKNOWLEDGED] if isinstance(client, Java) else []
    runs = [Run(topics(), settings) for settings in [*SETTINGS, *more]]
    client.run(broker.bootstrap, SHAPE, *runs)
    # What it checked it had also written; another client sees the same.
    count = SHAPE.rounds * SHAPE.records_per_round
    for one in runs:
        last = TopicPartition(one.topics[-1], SHAPE.partitions - 1)
        found = Confluent().consume(broker.bootstrap, last.topic, count, partition=last.partition)
        assert [sent[:3] for sent in found] == [record(last, n)[:3] for n in range(count)]
