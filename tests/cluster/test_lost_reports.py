"""Lost replicas while ZooKeeper does not answer: the controller hears of them later."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.broker.test_lost_replicas import damage, partition_state
from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce, speak
from tests.waiting import until

SESSION_MS = 12_000
"""It outlives the server. In another session the controller would ask without a report."""
LEADERLESS = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [0])


def test_partition_that_is_damaged_while_zookeeper_hangs_has_no_leader_later(
    tmp_path: Path, own_zookeeper: Ensemble
) -> None:
    settings = {"zookeeper_session_timeout_ms": SESSION_MS}
    with Brokers(tmp_path, own_zookeeper.bootstrap, 1, **settings) as brokers:
        (broker,) = brokers.brokers
        with closing(speak(broker.port)) as client:
            topic, _ = create_topic(client)
            assert produce(client, topic, make_batch([b"v"])).error_code == ErrorCode.NONE
            own_zookeeper.pause(1)
            damage(broker, TopicPartition(topic, 0))
            assert fetch_one(client, topic, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            until(lambda: "no connection to ZooKeeper" in broker.log, "the connection is lost")
            own_zookeeper.kill(1)  # with what the broker has sent
            own_zookeeper.start(1)
            until(lambda: partition_state(client, topic) == LEADERLESS, "reported")
