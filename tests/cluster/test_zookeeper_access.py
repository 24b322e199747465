"""Brokers with a user and a password at ZooKeeper: they alone change the nodes of their cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from plog.client.admin import SET, TOPIC, Admin
from plog.client.group_consumer import GroupConsumer
from plog.client.producer import Producer
from plog.cluster import znodes
from plog.cluster.session_file import end_last
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.several_brokers import until_topic_is_known
from tests.waiting import until

PARTITIONS = 6
WAIT_S = 40
RIGHT = {"zookeeper_digest": "plog:secret", "zookeeper_set_acl": "true"}
WRONG = {"zookeeper.digest": "plog:guess", "zookeeper.set.acl": "true"}
NONE = {"zookeeper.set.acl": "false"}
REFUSED = "\nplog: ZooKeeper refuses this broker access to {path}: check zookeeper.digest\n"


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    with Brokers(tmp_path, zookeeper.bootstrap, **RIGHT) as running:
        yield running


@pytest.fixture
def client(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    """A client of ZooKeeper without a user."""
    with zookeeper.client() as running:
        yield running


def nodes_below(client: KazooClient, root: str) -> Iterator[str]:
    """Yield a path, and those of all nodes below it."""
    yield root
    for name in client.get_children(root):
        yield from nodes_below(client, f"{root}/{name}")


def root_of(brokers: Brokers) -> str:
    return f"/{brokers.connect.partition('/')[2]}"


def use(brokers: Brokers, topic: str) -> None:
    """Create a topic with a setting, write to all partitions in a transaction, read in a group."""
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
        until_topic_is_known(brokers.bootstrap, topic)
        admin.alter_configs(TOPIC, topic, [("retention.ms", SET, "3600000")])
    with Producer(brokers.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send(topic, b"%d" % partition, partition=partition)
        producer.commit_transaction()
    found: list[int] = []
    with GroupConsumer(brokers.bootstrap, topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while len(found) < PARTITIONS:
            found += [int(record.value or b"") for record in consumer.poll(10_000)]
        consumer.commit()
    assert sorted(found) == list(range(PARTITIONS))


def test_no_other_client_changes_a_node_of_the_cluster(
    brokers: Brokers, client: KazooClient
) -> None:
    use(brokers, "t")
    root = root_of(brokers)
    nodes = list(nodes_below(client, root))
    assert {f"{root}/{name}" for name in ("controller", "brokers/ids/2")} < set(nodes)
    changes: tuple[Callable[[str], object], ...] = (
        lambda path: client.set(path, b"changed"),
        lambda path: client.create(f"{path}/another"),
        lambda path: client.set_acls(path, client.get_acls(path)[0]),
    )
    client.add_auth("digest", WRONG["zookeeper.digest"])
    for path in nodes:
        for change in changes:
            with pytest.raises(NoAuthError):
                change(path)
        if path != root:  # the node above that is everybody's
            with pytest.raises(NoAuthError):
                client.delete(path)


def test_broker_has_its_rights_in_each_session(brokers: Brokers) -> None:
    use(brokers, "first")
    brokers[1].kill()
    brokers.start()
    use(brokers, "second")
    with closing(brokers.store()) as store:
        node = znodes.broker_path(1)
        before = store.get(node)[1].czxid
        assert end_last(brokers[1].log_dirs[0], brokers.connect, within_s=WAIT_S)
        until(lambda: (found := store.exists(node)) and found.czxid > before, "registered again")
    brokers.until_known()
    use(brokers, "third")


@pytest.mark.parametrize("user", [WRONG, NONE], ids=["wrong password", "no user"])
@pytest.mark.parametrize(
    ("broker_id", "path"),
    [(2, "/latest_producer_id_block"), (3, "/cluster/id")],
    ids=["known", "new"],
)
def test_broker_with_another_user_is_refused(
    brokers: Brokers, client: KazooClient, user: dict[str, str], broker_id: int, path: str
) -> None:
    broker = brokers[2]
    broker.stop()
    nodes = list(nodes_below(client, root_of(brokers)))
    right = dict(broker.overrides)
    broker.overrides |= {**user, "broker.id": broker_id}
    if user is NONE:
        del broker.overrides["zookeeper.digest"]
    if broker_id != 2:
        broker.overrides["log.dirs"] = str(broker.directory / "other")
    with suppress(AssertionError):  # it listens for a moment, or has ended already
        broker.start()
    assert broker.wait() == 1
    assert broker.log.endswith(REFUSED.format(path=path))
    brokers.until_known()
    assert list(nodes_below(client, root_of(brokers))) == nodes
    broker.overrides = right
    brokers.start()
