"""A broker that misses the order to delete a replica sets its log aside once it is back."""

from __future__ import annotations

from pathlib import Path

from plog.client.admin import Admin
from plog.client.reassignments import ReassignmentAdmin
from plog.types import TopicPartition
from tests.cluster.processes import Brokers, ids_of
from tests.compat.live_kafka import ZooKeeper
from tests.waiting import until

from .live import EVERY, create, produce, read, until_in_sync

TOPIC = "t"
AT = TopicPartition(TOPIC, 0)


def test_log_of_a_partition_that_moved_while_its_broker_hung_is_set_aside(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with Brokers(tmp_path, zookeeper.bootstrap) as brokers:
        hangs = next(one for one in EVERY if one != brokers.controller)
        staying = [one for one in EVERY if one != hangs]
        create(brokers, TOPIC)
        produce(brokers, TOPIC, range(100))
        others = ",".join(brokers[one].bootstrap for one in staying)
        with brokers[hangs].suspended():
            with Admin(others) as admin:
                until(lambda: hangs not in ids_of(admin), "it is away")
            with ReassignmentAdmin(others) as admin:
                admin.reassign({AT: staying})
                until(lambda: not admin.moves(), "moved")
        (log_dir,) = brokers[hangs].log_dirs
        until(lambda: [*log_dir.glob(f"{AT}.*-stray")], "set aside")
        assert not (log_dir / str(AT)).exists()
        assert f"set aside the log of {AT} as" in brokers[hangs].log
        until_in_sync(brokers, TOPIC, staying)
        assert read(brokers, TOPIC, 100) == list(range(100))
