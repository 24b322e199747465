"""A coordination store that is lost: the broker starts, and serves what its directories hold."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.client.admin import TOPIC, Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.cluster import znodes
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.producer_ids import UNUSED_PRODUCER_IDS, ProducerIds
from plog.cluster.store_rebuild import (
    broker_id_of_topics,
    known_partitions,
    rebuild_store,
)
from plog.cluster.znodes import (
    ConfigEntity,
    PartitionStateNode,
    ProducerIdBlock,
    TopicNode,
    decode_config,
)
from plog.runtime.clock import ManualClock
from plog.storage.filesystem import Filesystem
from plog.storage.inventory import FoundReplica, take_inventory
from plog.types import TopicPartition
from tests.planes import Plane
from tests.servers import BrokerProcess

TIMEOUT_S = 90
STORE = "plog-store.sqlite"
TOPICS = {"flights": 3, "airports.v2": 1}


@pytest.fixture
def broker(plane: Plane, tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path, log_dirs=2)
    yield made
    made.kill()


def fill(broker: BrokerProcess) -> None:
    with Admin(broker.bootstrap) as admin:
        for topic, partitions in TOPICS.items():
            admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "1000000"})
    produce(broker, "first")


def produce(broker: BrokerProcess, word: str) -> None:
    with Producer(broker.bootstrap, enable_idempotence=True) as producer:
        sent = [
            producer.send(topic, f"{word}-{n}".encode(), partition=partition)
            for topic, partitions in TOPICS.items()
            for partition in range(partitions)
            for n in range(10)
        ]
        for one in sent:
            one.result(TIMEOUT_S)


def content(broker: BrokerProcess) -> dict[TopicPartition, list[str]]:
    found: dict[TopicPartition, list[str]] = {}
    with Consumer(broker.bootstrap) as consumer:
        partitions = [p for topic in TOPICS for p in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            for record in consumer.poll(1000):
                at = TopicPartition(record.topic, record.partition)
                found.setdefault(at, []).append((record.value or b"").decode())
    return found


def ids(broker: BrokerProcess) -> dict[str, str]:
    found = {}
    for directory in broker.log_dirs:
        for path in directory.glob("*/partition.metadata"):
            topic = path.parent.name.rpartition("-")[0]
            found[topic] = path.read_text().split()[-1]
    return found


def served_ids(broker: BrokerProcess) -> dict[str, str]:
    with Admin(broker.bootstrap) as admin:
        return {name: str(admin.topic(name).topic_id) for name in TOPICS}


def stores(broker: BrokerProcess) -> list[Path]:
    return [path for directory in broker.log_dirs for path in directory.glob(f"{STORE}*")]


def deleted(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # Every page: whichever holds nodes is among them.
    for at in range(200, len(data), 300):
        data[at] ^= 0x55
    path.write_bytes(data)


def noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("harm", [deleted, emptied, truncated, flipped, noise])
def test_broker_serves_its_data_after_every_copy_of_the_store_is_lost(
    broker: BrokerProcess, harm: Callable[[Path], None], clean: bool
) -> None:
    broker.start()
    fill(broker)
    before, ids_before = content(broker), served_ids(broker)
    if clean:
        broker.stop()
    else:
        broker.kill()
    for path in stores(broker):
        if path.stat().st_size:
            harm(path)
    broker.start()
    assert content(broker) == before
    assert served_ids(broker) == ids_before
    lines = re.findall(r"WARNING .*recovered .* in the coordination store.*", broker.log)
    with Admin(broker.bootstrap) as admin:
        configs = {entry.name: entry for entry in admin.describe_configs(TOPIC, "flights")}
        if harm is not truncated or "2 topics" in broker.log:
            (line,) = lines
            assert "2 topics" in line
            assert "their configs are lost, and retention is off" in line
            assert "airports.v2, flights" in line
            assert configs["retention.ms"].value == "-1"
        else:
            # A log that is cut short is a log: the store of some time ago, whatever it knew then.
            assert configs["retention.ms"].value in ("-1", "1000000")
        # It is a store like any other: topics come and go, producers write.
        produce(broker, "second")
        admin.create_topic("new", partitions=2)
        admin.delete_topic("airports.v2")
    broker.stop()
    broker.start()
    assert len(re.findall(r"recovered .* in the coordination store", broker.log)) == len(lines)
    with Admin(broker.bootstrap) as admin:
        assert sorted(admin.topics()) == ["flights", "new"]
    broker.stop()


def test_producer_ids_go_on_far_above_those_that_were_used(broker: BrokerProcess) -> None:
    broker.start()
    fill(broker)
    broker.stop()
    fs = Filesystem()
    used = max(replica.largest_producer_id for replica in take_inventory(fs, broker.log_dirs))
    assert used >= 0
    for path in stores(broker):
        path.unlink()
    broker.start()
    produce(broker, "second")
    broker.stop()
    after = max(replica.largest_producer_id for replica in take_inventory(fs, broker.log_dirs))
    assert after > used + UNUSED_PRODUCER_IDS


def test_start_that_ends_in_the_middle_of_a_rebuild_is_done_again(broker: BrokerProcess) -> None:
    broker.start()
    fill(broker)
    before = content(broker)
    broker.kill()
    for path in stores(broker):
        path.unlink()
    # A first topic, and no cluster id yet: as a kill leaves it.
    store = EmbeddedStore(broker.log_dirs, clock=ManualClock(10**12))
    create_persistent_paths(store)
    some = [r for r in take_inventory(Filesystem(), broker.log_dirs) if r[0].topic == "flights"]
    rebuild_store(store, 0, some)
    store.close()
    broker.start()
    assert content(broker) == before
    broker.stop()


# -- the rebuild alone -----------------------------------------------------------------------------

ID = uuid.UUID("12345678-1234-4678-9234-567812345678")
OTHER = uuid.UUID("22345678-1234-4678-9234-567812345678")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    made = EmbeddedStore([tmp_path], clock=ManualClock(10**12))
    create_persistent_paths(made)
    yield made
    made.close()


def replica(
    topic: str, partition: int, topic_id: uuid.UUID | None = ID, epoch: int = 0, producer: int = -1
) -> FoundReplica:
    return FoundReplica(TopicPartition(topic, partition), topic_id, epoch, producer)


def test_topic_has_the_id_of_most_of_its_partitions(store: EmbeddedStore) -> None:
    rebuild_store(
        store, 5, [replica("t", 0), replica("t", 1, OTHER), replica("t", 2), replica("t", 3, None)]
    )
    node = TopicNode.decode(store.get("/brokers/topics/t")[0])
    assert node.topic_id == ID
    assert node.partitions == dict.fromkeys(range(4), (5,))
    assert broker_id_of_topics(store) == 5


def test_topic_without_any_id_is_given_one(store: EmbeddedStore) -> None:
    rebuild_store(store, 5, [replica("t", 0, None)])
    assert TopicNode.decode(store.get("/brokers/topics/t")[0]).topic_id is not None


def test_missing_partitions_are_counted_and_leader_epochs_kept(store: EmbeddedStore) -> None:
    rebuild_store(store, 5, [replica("t", 2, epoch=7), replica("t", 0, epoch=-1)])
    epochs = []
    for partition in range(3):
        data, _ = store.get(znodes.partition_state_path(TopicPartition("t", partition)))
        state = PartitionStateNode.decode(data)
        assert (state.leader, state.isr) == (5, (5,))
        epochs.append(state.leader_epoch)
    assert epochs == [0, 0, 7]


def test_state_topics_of_the_brokers_stay_compacted(store: EmbeddedStore) -> None:
    rebuild_store(store, 5, [replica("__consumer_offsets", 0), replica("t", 0)])
    configs = {
        name: decode_config(store.get(ConfigEntity.topic(name).path)[0])
        for name in ("__consumer_offsets", "t")
    }
    assert configs["__consumer_offsets"]["cleanup.policy"] == "compact"
    assert "cleanup.policy" not in configs["t"]


@pytest.mark.parametrize("largest", [0, 999, 5_000_000_123])
def test_next_producer_id_block_is_above_what_clients_may_hold(
    store: EmbeddedStore, largest: int
) -> None:
    for _ in range(2):  # a second time changes nothing
        rebuild_store(store, 5, [replica("t", 0, producer=largest), replica("t", 1, producer=3)])
        block = ProducerIdBlock.decode(store.get(znodes.PRODUCER_ID_BLOCK)[0])
        assert block.last == max(largest, 3) + UNUSED_PRODUCER_IDS


def test_ids_that_nobody_has_written_with_are_not_given_out_again(store: EmbeddedStore) -> None:
    rebuild_store(store, 5, [replica("__transaction_state", 0)])
    assert ProducerIds(store, 5).next() == UNUSED_PRODUCER_IDS


def test_later_partitions_of_a_known_topic_are_taken_up(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    rebuild_store(store, 5, [replica("t", 0)])
    assert known_partitions(store) == {"t": 1}
    namesake = replica("t", 9, OTHER)
    assert rebuild_store(store, 5, [replica("t", 3, epoch=4), namesake]) == []
    assert known_partitions(store) == {"t": 4}
    data, _ = store.get(znodes.partition_state_path(TopicPartition("t", 3)))
    assert PartitionStateNode.decode(data).leader_epoch == 4
    assert "t-9 in the log directories has topic id" in caplog.text
    assert (
        "recovered partitions of topic t in the coordination store: it has 4 again" in caplog.text
    )


def test_producer_ids_stay_where_the_store_knows_those_that_were_seen(store: EmbeddedStore) -> None:
    block = ProducerIdBlock(5, 1000, 1999).encode()
    store.set(znodes.PRODUCER_ID_BLOCK, block)
    rebuild_store(store, 5, [], 1999)
    assert store.get(znodes.PRODUCER_ID_BLOCK)[0] == block
    rebuild_store(store, 5, [], 2000)
    found = ProducerIdBlock.decode(store.get(znodes.PRODUCER_ID_BLOCK)[0])
    assert found.last == 2000 + UNUSED_PRODUCER_IDS


def test_nothing_there_is_nothing_written(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert rebuild_store(store, 5, []) == []
    assert store.children(znodes.TOPICS) == []
    assert store.get(znodes.PRODUCER_ID_BLOCK)[0] == b""
    assert broker_id_of_topics(store) is None
    assert not caplog.records
