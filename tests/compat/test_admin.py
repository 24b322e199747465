"""Administration by other people's clients: topics, configs, records, many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaAdminClient

from tests.compat.clients import PATIENCE_S
from tests.servers import BrokerProcess
from tests.several_brokers import is_led, until_each

NewTopicFixture = Callable[..., str]


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python_admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def fill(broker: BrokerProcess, topic: str, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for n in range(count):
        producer.produce(topic, value=b"%d" % n, partition=0, timestamp=1_000_000 + n * 10)
    assert producer.flush(PATIENCE_S) == 0


def test_topic_created_described_and_deleted(admin: AdminClient, broker: BrokerProcess) -> None:
    topic = NewTopic("adm-1", num_partitions=3, config={"retention.ms": "1234567"})
    admin.create_topics([topic])["adm-1"].result(PATIENCE_S)
    until_each(broker.bootstrap, lambda own: is_led(own, "adm-1", 3))
    described = admin.list_topics(timeout=PATIENCE_S).topics["adm-1"]
    assert sorted(described.partitions) == [0, 1, 2]
    assert {p.leader for p in described.partitions.values()} == set(broker.ids)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])["adm-1"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics(["adm-1"])["adm-1"].result(PATIENCE_S)
    until_each(broker.bootstrap, lambda own: "adm-1" not in own.topics())
    assert "adm-1" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_topic_with_an_unknown_config_is_refused_and_not_created(admin: AdminClient) -> None:
    topic = NewTopic("adm-2", num_partitions=1, config={"retention.mss": "1"})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])["adm-2"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "adm-2" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("adm-3", num_partitions=1)], validate_only=True)["adm-3"].result(
        20
    )
    assert "adm-3" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_more_replicas_than_brokers_are_refused(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("adm-4", 1, 3)])["adm-4"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_partitions_are_added_and_never_taken_away(
    admin: AdminClient, broker: BrokerProcess, new_topic: NewTopicFixture
) -> None:
    topic = new_topic(partitions=2)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(PATIENCE_S)
    until_each(broker.bootstrap, lambda own: is_led(own, topic, 5))
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 5
    with pytest.raises(KafkaException) as refused:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_configs_change_without_a_restart_and_say_where_they_come_from(
    admin: AdminClient, broker: BrokerProcess, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    (future,) = described.values()
    entry = future.result(PATIENCE_S)["max.message.bytes"]
    assert (entry.value, entry.is_default) == ("1000", False)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    errors: list[object] = []
    deadline = time.monotonic() + 60
    while not errors and time.monotonic() < deadline:
        producer.produce(
            topic, value=b"x" * 5_000, on_delivery=lambda error, _: error and errors.append(error)
        )
        producer.flush(10)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_broker_configs_are_described(admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "0")
    (future,) = admin.describe_configs([resource]).values()
    found = future.result(PATIENCE_S)
    assert found["num.partitions"].value == "4"
    assert "advertised.listeners" in found
    assert found["log.dirs"].is_read_only


def test_deleted_records_move_the_start_of_the_log(
    admin: AdminClient, broker: BrokerProcess, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    fill(broker, topic, 100)
    (future,) = admin.delete_records([TopicPartition(topic, 0, 60)]).values()
    assert future.result(PATIENCE_S).low_watermark == 60
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (60, 100)
    consumer.close()


def test_offsets_by_time_are_exact_to_the_record(
    admin: AdminClient, broker: BrokerProcess, new_topic: NewTopicFixture
) -> None:
    topic = new_topic(message_timestamp_before_max_ms=2**63 - 1)
    fill(broker, topic, 1_000, **{"batch.num.messages": 100})
    where = TopicPartition(topic, 0)
    for timestamp, offset in [(0, 0), (1_000_000, 0), (1_005_551, 556), (1_009_990, 999)]:
        (future,) = admin.list_offsets({where: OffsetSpec.for_timestamp(timestamp)}).values()
        assert future.result(PATIENCE_S).offset == offset
    (future,) = admin.list_offsets({where: OffsetSpec.for_timestamp(9_000_000)}).values()
    assert future.result(PATIENCE_S).offset == -1
    (future,) = admin.list_offsets({where: OffsetSpec.max_timestamp()}).values()
    assert (future.result(PATIENCE_S).offset, future.result(20).timestamp) == (999, 1_009_990)


def test_kafka_python_describes_the_cluster_and_its_log_dirs(
    python_admin: KafkaAdminClient, broker: BrokerProcess, new_topic: NewTopicFixture
) -> None:
    topic = new_topic(partitions=2)
    cluster = python_admin.describe_cluster()
    assert cluster["controller_id"] in broker.ids
    assert sorted(one["broker_id"] for one in cluster["brokers"]) == broker.ids
    assert topic in python_admin.list_topics()
    assert python_admin.describe_log_dirs() is not None


@pytest.mark.timeout(240)
def test_a_thousand_partitions_are_written_and_read(
    admin: AdminClient, broker: BrokerProcess
) -> None:
    admin.create_topics([NewTopic("wide", 1000)], operation_timeout=PATIENCE_S)["wide"].result(
        PATIENCE_S
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for n in range(10_000):
        producer.produce("wide", value=b"%d" % n, partition=n % 1000)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("wide", p, 0) for p in range(1000)])
    found: set[int] = set()
    while len(found) < 10_000:
        messages = consumer.consume(500, 10)
        assert messages, f"only {len(found)} records came"
        found.update(int(message.value()) for message in messages)
    consumer.close()
    admin.delete_topics(["wide"])["wide"].result(PATIENCE_S)
