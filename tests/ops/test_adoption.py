"""What `plog adopt` refuses and leaves alone; tests/compat shows what it carries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from plog.client.admin import Admin
from plog.cluster import znodes
from plog.cluster.znodes import TopicNode
from plog.errors import InconsistentLogDirs, PlogError
from plog.ops.adoption import AdoptionError, Carried, adopt, give_back
from plog.settings.definitions import BrokerSettings
from tests.compat.live_kafka import ZooKeeper
from tests.servers import BrokerProcess, free_port

OTHERS = "on-another-broker"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


_numbers = itertools.count()


@pytest.fixture
def zookeeper(server: ZooKeeper) -> Iterator[str]:
    """A ZooKeeper of one's own: a chroot."""
    chroot = f"/test{next(_numbers)}"
    with server.client() as client:
        client.ensure_path(chroot)
    return f"127.0.0.1:{server.port}{chroot}"


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """A broker that is stopped, with the topics `kept` and `gone`."""
    broker = BrokerProcess(tmp_path, overrides={"broker.id": 0})
    with broker, Admin(broker.bootstrap) as admin:
        for topic in ("kept", "gone"):
            admin.create_topic(topic, partitions=2, configs={"retention.ms": "7000000"})
    return broker


def settings_of(broker: BrokerProcess) -> BrokerSettings:
    return BrokerSettings({"log.dirs": str(broker.log_dirs[0]), "broker.id": "0"})


def forget(broker: BrokerProcess) -> None:
    """Take the store away: what is left is what Kafka's directories hold."""
    for path in broker.log_dirs[0].glob("plog-store*"):
        path.unlink()


def remarks(carried: list[Carried]) -> dict[str, str]:
    return {one.topic: one.remark for one in carried}


class Nodes:
    """What a ZooKeeper holds."""

    def __init__(self, zookeeper: str) -> None:
        self.client = KazooClient(zookeeper)

    def __enter__(self) -> KazooClient:
        self.client.start(60)
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.stop()
        self.client.close()


def add_topic_of_others(zookeeper: str, replicas: tuple[int, ...] = (7,)) -> None:
    with Nodes(zookeeper) as nodes:
        node = TopicNode.decode(nodes.get(znodes.topic_path("kept"))[0])
        other = TopicNode(partitions={0: replicas}, topic_id=None)
        assert node.partitions
        nodes.create(znodes.topic_path(OTHERS), other.encode())


def test_nobody_answers(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plog.ops.adoption.CONNECT_TIMEOUT_S", 1.0)
    with pytest.raises(AdoptionError, match="no ZooKeeper answers at"):
        adopt(settings_of(broker), f"127.0.0.1:{free_port()}")


def test_zookeeper_without_a_cluster_is_refused(broker: BrokerProcess, zookeeper: str) -> None:
    with pytest.raises(AdoptionError, match="knows no cluster"):
        adopt(settings_of(broker), zookeeper)


def test_another_cluster_is_refused_both_ways(broker: BrokerProcess, zookeeper: str) -> None:
    with Nodes(zookeeper) as nodes:
        nodes.create(znodes.CLUSTER_ID, znodes.encode_cluster_id("other"), makepath=True)
    for carry in (adopt, give_back):
        with pytest.raises(AdoptionError, match=r"cluster.* other"):
            carry(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        assert nodes.exists(znodes.TOPICS) is None


def test_broker_that_runs_is_refused_both_ways(broker: BrokerProcess, zookeeper: str) -> None:
    with broker:
        for carry in (adopt, give_back):
            with pytest.raises(InconsistentLogDirs):
                carry(settings_of(broker), zookeeper)


def test_nothing_is_given_to_brokers_that_run(broker: BrokerProcess, zookeeper: str) -> None:
    with Nodes(zookeeper) as nodes:
        nodes.create(znodes.broker_path(0), b"{}", makepath=True)
        with pytest.raises(AdoptionError, match="stop them first"):
            give_back(settings_of(broker), zookeeper)
        assert nodes.exists(znodes.CLUSTER_ID) is None


def test_directories_of_nobody_are_refused(tmp_path: Path, zookeeper: str) -> None:
    with pytest.raises(PlogError, match="no broker has run"):
        give_back(BrokerSettings({"log.dirs": str(tmp_path), "broker.id": "0"}), zookeeper)
    with pytest.raises(AdoptionError, match="which broker this is"):
        give_back(BrokerSettings({"log.dirs": str(tmp_path)}), zookeeper)


def test_topics_of_other_brokers_outlive_the_way_there_and_back(
    broker: BrokerProcess, zookeeper: str
) -> None:
    assert set(remarks(give_back(settings_of(broker), zookeeper))) == {"kept", "gone"}
    add_topic_of_others(zookeeper)
    forget(broker)
    assert remarks(adopt(settings_of(broker), zookeeper)) == {
        "gone": "",
        "kept": "",
        OTHERS: "none of its partitions is in these log directories",
    }
    with broker, Admin(broker.bootstrap) as admin:
        assert set(admin.topics()) == {"kept", "gone"}
        admin.delete_topic("gone")
    assert remarks(give_back(settings_of(broker), zookeeper)) == {
        "gone": "deleted since, and taken out of ZooKeeper",
        "kept": "",
        OTHERS: "it is not from here, and left as it is",
    }
    with Nodes(zookeeper) as nodes:
        assert set(nodes.get_children(znodes.TOPICS)) == {"kept", OTHERS}
        assert nodes.exists("/config/topics/gone") is None


def test_topic_that_is_known_is_left_as_it_is(broker: BrokerProcess, zookeeper: str) -> None:
    give_back(settings_of(broker), zookeeper)
    with broker, Admin(broker.bootstrap) as admin:
        admin.create_partitions("kept", 3)
    found = remarks(adopt(settings_of(broker), zookeeper))
    assert set(found.values()) == {"it is known here already, and left as it is"}
    with broker, Admin(broker.bootstrap) as admin:
        assert len(admin.topic("kept").partitions) == 3


def test_replicas_of_other_brokers_are_told(broker: BrokerProcess, zookeeper: str) -> None:
    give_back(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        path = znodes.topic_path("kept")
        node = TopicNode.decode(nodes.get(path)[0])
        more = TopicNode(partitions={0: (0, 7), 1: (7, 0), 2: (7,)}, topic_id=node.topic_id)
        nodes.set(path, more.encode())
    forget(broker)
    assert remarks(adopt(settings_of(broker), zookeeper))["kept"] == (
        "not here, and made empty: partitions [2]; replicas stay behind on brokers [7]"
    )
