"""An administrator goes from broker to broker, and the next one's server is behind the others.

What a broker has confirmed counts for the next one, though its own server does not show it yet.
"""

from __future__ import annotations

import pytest

from plog.cluster import topic_removals, znodes
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.config_changes import ConfigChanges
from plog.cluster.features import GROUP_VERSION, Change, Direction, Features
from plog.cluster.store import DeleteOp, Store
from plog.cluster.topic_admin import NewTopic, TopicAdmin
from plog.cluster.znodes import BrokerNode, ConfigEntity, Endpoint
from plog.settings.alterations import Alteration, Operation
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from tests.cluster.simulation.scheduler import Scheduler
from tests.cluster.simulation.zookeeper import SimStore, SimZooKeeper

LAG_MS = 10_000
T = ConfigEntity.topic("t")
NODE = BrokerNode((Endpoint("PLAINTEXT", "h", 9092),), 1, features={GROUP_VERSION: (0, 1)})
pytestmark = pytest.mark.parametrize("seed", range(10))


class Broker:
    """The parts of a broker by which administrators change the cluster."""

    def __init__(self, broker_id: int, store: Store, scheduler: Scheduler) -> None:
        self.store = store
        self.settings = DynamicSettings(BrokerSettings({"broker.id": str(broker_id)}))
        self.topics = TopicAdmin(store, self.settings)
        self.changes = ConfigChanges(
            store, self.settings, broker_id=broker_id, clock=scheduler.clock
        )
        self.configs = ConfigAdmin(store, self.settings, broker_id, written=self.changes.refresh)
        self.features = Features(store)
        self.features.stop()  # its thread

    def set_retention(self, value: int) -> None:
        self.configs.alter(T, [Alteration("retention.ms", Operation.SET, str(value))])


class Cluster:
    """Two brokers and topic t, with a setting. The server of the second one may be behind."""

    def __init__(self, seed: int) -> None:
        scheduler = Scheduler(seed)
        zookeeper = SimZooKeeper(scheduler)
        stores = [SimStore(zookeeper, "first"), SimStore(zookeeper, "second")]
        create_persistent_paths(stores[0])
        for broker_id, store in enumerate(stores):
            store.create(znodes.broker_path(broker_id), NODE.encode(), ephemeral=True)
        self.first, self.second = (Broker(n, store, scheduler) for n, store in enumerate(stores))
        self.behind = stores[1]
        self.first.topics.create(NewTopic("t", 1, configs={"retention.ms": "1"}))

    def remove_topic(self) -> None:
        """Remove the topic, as a controller does."""
        paths = [*self.first.store.descendants(znodes.topic_path("t")), T.path]
        self.first.store.multi([*map(DeleteOp, paths), topic_removals.count_removal()])

    def retention_ms(self) -> str:
        return znodes.decode_config(self.first.store.get(T.path)[0])["retention.ms"]


@pytest.fixture
def cluster(seed: int) -> Cluster:
    return Cluster(seed)


def test_setting_that_was_changed_is_changed_back(cluster: Cluster) -> None:
    cluster.behind.lag(LAG_MS)
    cluster.first.set_retention(2)
    cluster.second.set_retention(1)
    assert cluster.retention_ms() == "1"


def test_leader_of_a_new_topic_has_its_settings(cluster: Cluster) -> None:
    # No notice follows the creation.
    cluster.behind.lag(LAG_MS)
    cluster.first.topics.create(NewTopic("new", 1, configs={"retention.ms": "3"}))
    found = cluster.second.changes.topic_settings(["new"])
    assert found["new"].retention_ms == 3


def test_settings_of_a_new_topic_are_changed(cluster: Cluster) -> None:
    cluster.remove_topic()
    cluster.behind.lag(LAG_MS)
    cluster.first.topics.create(NewTopic("t", 1))
    cluster.second.set_retention(4)
    assert cluster.retention_ms() == "4"


def test_new_topic_grows_and_is_deleted(cluster: Cluster) -> None:
    cluster.behind.lag(LAG_MS)
    created = cluster.first.topics.create(NewTopic("new", 1))
    assert cluster.second.topics.create_partitions("new", 2) == created.topic_id
    cluster.behind.lag(LAG_MS)
    other = cluster.first.topics.create(NewTopic("other", 1))
    assert cluster.second.topics.delete("other", other.topic_id) == other.topic_id


def test_name_of_a_deleted_topic_is_free(cluster: Cluster) -> None:
    cluster.behind.lag(LAG_MS)
    cluster.remove_topic()
    assert cluster.second.topics.create(NewTopic("t", 2)).num_partitions == 2


def test_broker_that_joined_gets_partitions(cluster: Cluster) -> None:
    cluster.behind.lag(LAG_MS)
    cluster.first.store.create(znodes.broker_path(2), NODE.encode())
    cluster.second.topics.create(NewTopic("wide", assignments={0: [2]}))


def test_feature_that_was_set_is_removed(cluster: Cluster) -> None:
    cluster.first.features.update(Change(GROUP_VERSION, 0, Direction.DOWN))
    cluster.behind.sync()
    cluster.behind.lag(LAG_MS)
    cluster.first.features.update(Change(GROUP_VERSION, 1, Direction.UP))
    cluster.second.features.update(Change(GROUP_VERSION, 0, Direction.DOWN))
    assert GROUP_VERSION not in cluster.second.features.finalized.levels
