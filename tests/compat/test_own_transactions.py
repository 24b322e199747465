"""plog's own transactional producer on a live Kafka 3.9: what it says is what Kafka understands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plog.client.admin import Admin
from plog.client.group_consumer import (
    CommitFailed,
    GroupConsumer,
    GroupMetadata,
    OffsetAndMetadata,
)
from plog.client.producer import Producer
from plog.errors import InvalidRecord, ProducerFenced
from plog.types import TopicPartition
from tests.client.test_transactions import COMMITTED, PARTITIONS, read_all
from tests.compat.live_kafka import kafka
from tests.waiting import until

GROUP = "g"


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    where = tmp_path_factory.mktemp("kafka")
    extra = "group.initial.rebalance.delay.ms=0\n"
    with kafka(where, where / "data", extra) as (broker, _), Admin(broker.bootstrap) as admin:
        admin.create_topic("t", partitions=PARTITIONS)
        admin.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
        yield broker.bootstrap


def test_transactions_on_kafka(bootstrap: str) -> None:
    with Producer(bootstrap, transactional_id="tx") as producer:
        producer.init_transactions()
        for n in range(20):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send("t", b"%d" % n, partition=partition)
            if n % 5 == 1:
                producer.flush()
                producer.abort_transaction()
            elif n % 5 == 2:
                # Without a key: refused, so that its numbers lead nowhere (KIP-360).
                producer.send("compacted", b"v")
                with pytest.raises(InvalidRecord):
                    producer.commit_transaction()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        with Producer(bootstrap, transactional_id="tx") as next_one:
            producer.begin_transaction()
            producer.send("t", b"no", partition=0).result(60)
            next_one.init_transactions()
            with pytest.raises(ProducerFenced):
                producer.commit_transaction()
            with next_one.transaction():
                next_one.send("t", b"99", partition=0)
    committed = [b"%d" % n for n in range(20) if n % 5 not in (1, 2)]
    found = read_all(bootstrap, "t")
    assert found == {0: [*committed, b"99"], 1: committed, 2: committed}


def test_offsets_in_transactions_on_kafka(bootstrap: str) -> None:
    at = TopicPartition("t", 0)
    with (
        Producer(bootstrap, transactional_id="offsets") as producer,
        GroupConsumer(
            bootstrap, GROUP, isolation_level=COMMITTED, enable_auto_commit=False
        ) as consumer,
    ):
        producer.init_transactions()
        consumer.subscribe(["t"])
        until(lambda: consumer.poll(100) or consumer.assignment())
        with producer.transaction():
            producer.send_offsets_to_transaction({at: 3}, consumer.group_metadata)
        assert consumer.committed([at]) == {at: OffsetAndMetadata(3)}
        producer.begin_transaction()
        producer.send_offsets_to_transaction({at: 5}, consumer.group_metadata)
        producer.abort_transaction()
        assert consumer.committed([at]) == {at: OffsetAndMetadata(3)}
        told = OffsetAndMetadata(4, "whose: Zoë", 0)
        with producer.transaction():
            producer.send_offsets_to_transaction({at: told}, consumer.group_metadata)
        assert consumer.committed([at]) == {at: told}
        told = OffsetAndMetadata(3, "by hand", 0)
        consumer.commit({at: told})
        assert consumer.committed([at]) == {at: told}
        producer.begin_transaction()
        with pytest.raises(CommitFailed):
            producer.send_offsets_to_transaction({at: 7}, GroupMetadata(GROUP, 99, "nobody"))
        producer.abort_transaction()
        assert consumer.committed([at]) == {at: told}
