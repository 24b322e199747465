"""The brokers' own topics get more replicas once more brokers are there."""

from __future__ import annotations

from pathlib import Path

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper

TOPIC = "__consumer_offsets"
AT = TopicPartition("t", 0)


def test_topic_that_a_lone_broker_has_made_gets_replicas_on_others(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    brokers = Brokers(
        tmp_path,
        zookeeper.bootstrap,
        offsets_topic_num_partitions=3,
        leader_imbalance_check_interval_seconds=1,
    )
    first = brokers[0]
    try:
        first.overrides["offsets.topic.replication.factor"] = 1
        with first, Admin(first.bootstrap) as topics, GroupAdmin(first.bootstrap) as groups:
            topics.create_topic(AT.topic, partitions=1)
            groups.commit("g", {AT: 7})
        del first.overrides["offsets.topic.replication.factor"]
        brokers.start()
        brokers.all_until(is_spread)
        first.kill()
        others = ",".join(one.bootstrap for one in brokers.brokers[1:])
        with GroupAdmin(others) as groups:
            assert groups.committed("g") == {AT: 7}
    finally:
        brokers.kill()


def is_spread(admin: Admin) -> bool:
    """Tell whether all replicas of each partition are in sync, and the leads on all brokers."""
    parts = admin.topic(TOPIC).partitions.values()
    return all(len(part.isr) == 3 for part in parts) and len({one.leader_id for one in parts}) == 3
