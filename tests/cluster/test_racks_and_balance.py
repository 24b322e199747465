"""Racks, and the balance of leaders without a request for it, on brokers as processes."""

from __future__ import annotations

from pathlib import Path

from plog.client.admin import Admin
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper

TOPIC = "t"
PARTITIONS = 12
RACKS = ["north", "north", "south"]
SETTINGS = {"leader.imbalance.check.interval.seconds": 1, "controlled.shutdown.enable": "false"}


def leaders(admin: Admin) -> dict[int, int]:
    return {index: one.leader_id for index, one in admin.topic(TOPIC).partitions.items()}


def test_replicas_are_in_all_racks_and_their_preferred_leaders_lead_again(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    brokers = Brokers(tmp_path, zookeeper.bootstrap, **SETTINGS)
    for one, rack in zip(brokers.brokers, RACKS, strict=True):
        one.overrides["broker.rack"] = rack
    with brokers, Admin(brokers.bootstrap) as admin:
        assert [node.rack for node in sorted(admin.nodes())] == RACKS
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=2)
        brokers.all_until(lambda one: TOPIC in one.topics())
        replicas = {index: one.replicas for index, one in admin.topic(TOPIC).partitions.items()}
        for pair in replicas.values():
            assert {RACKS[broker_id] for broker_id in pair} == {"north", "south"}
        preferred = {index: pair[0] for index, pair in replicas.items()}
        assert {*preferred.values()} == {0, 1, 2}
        brokers.all_until(lambda one: leaders(one) == preferred)
        lost = (brokers.controller + 1) % 3
        brokers.lose(lost)
        others = {pair[0] if pair[0] != lost else pair[1] for pair in replicas.values()}
        brokers.all_until(lambda one: {*leaders(one).values()} == others)
        brokers.start()
        brokers.all_until(lambda one: leaders(one) == preferred)
