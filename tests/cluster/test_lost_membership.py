"""Brokers that cannot be members of their cluster any more: they end, and say why."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

from plog.client.admin import Admin
from plog.cluster.znodes import broker_path
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.servers import BrokerProcess
from tests.suspension import resume, suspend
from tests.waiting import until


def test_broker_whose_registration_is_deleted_is_back(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with Brokers(tmp_path, zookeeper.bootstrap, count=2) as brokers, closing(brokers.store()) as zk:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic("t", partitions=4)
        for deleted in (0, 1):  # one of them is the controller
            zk.delete(broker_path(deleted))
            until(lambda at=deleted: zk.exists(broker_path(at)), "registered again")
            assert brokers[deleted].log.count("registration is gone") == 1
        brokers.until_known()
        brokers.all_until(lambda admin: leaders(admin, "t") == {0, 1})


def leaders(admin: Admin, topic: str) -> set[int]:
    """Return the leaders of a topic's partitions; none of a topic that is not known yet."""
    known = admin.topics().get(topic)
    return set() if known is None else {one.leader_id for one in known.partitions.values()}


def test_suspended_broker_whose_id_another_process_took_ends(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    with Brokers(tmp_path, zookeeper.bootstrap, count=2) as brokers:
        first = brokers[1]
        suspend(first.pid)
        brokers.admin_until(0, lambda admin: {node.node_id for node in admin.nodes()} == {0})
        place = tmp_path / str(uuid.uuid4())
        place.mkdir()
        settings = {
            key: value
            for key, value in first.overrides.items()
            if key in ("broker.id", "zookeeper.connect", "zookeeper.session.timeout.ms")
        }
        second = BrokerProcess(place, overrides=settings).start()
        try:
            resume(first.pid)
            assert first.wait() == 1
            assert "stopping with status 1" in first.log
            assert "broker id 1 is registered by another process" in first.log
            assert "controlled shutdown" not in first.log
            with Admin(brokers[0].bootstrap) as admin:
                until(lambda: second.port in {node.port for node in admin.nodes()}, "registered")
        finally:
            second.kill()
            first.kill()
