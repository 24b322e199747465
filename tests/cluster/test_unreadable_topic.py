"""A topic whose node another program overwrites is not a deleted one, also for new controllers.

Three brokers have an open transaction and a group's offsets. The node of their topic becomes
unreadable, another controller is elected, and the node is repaired later. Nothing may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from plog.client.admin import Admin
from plog.cluster import znodes
from plog.cluster.store import Store
from plog.errors import ErrorCode
from tests.cluster.processes import Brokers
from tests.cluster.spanning import IDS, Parts, Play, at_last
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import fresh_name
from tests.routed import Routed
from tests.waiting import until

BEFORE, OPEN = b"before", b"open"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    made = Brokers(
        tmp_path_factory.mktemp("cluster"),
        zookeeper.bootstrap,
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=3,
        transaction_state_log_num_partitions=3,
    )
    with made:
        yield made


def elect_again(cluster: Brokers, store: Store) -> None:
    """Have a controller elected; return once all brokers have its metadata."""
    epoch = znodes.decode_controller_epoch(store.get(znodes.CONTROLLER_EPOCH)[0])
    store.delete(znodes.CONTROLLER)
    until(
        lambda: znodes.decode_controller_epoch(store.get(znodes.CONTROLLER_EPOCH)[0]) > epoch,
        "another controller",
    )
    topic = fresh_name()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=3)
    cluster.all_until(lambda admin: topic in admin.topics())


@pytest.mark.parametrize("restarts", [False, True], ids=["goes-on", "coordinator-restarts"])
def test_commit_and_offsets_outlive_an_unreadable_topic(cluster: Brokers, restarts: bool) -> None:
    parts = Parts(coordinator=0, away=1, third=2)
    with closing(Routed(cluster.ports, home=2)) as wire, closing(cluster.store()) as store:
        play = Play(cluster, wire, parts, group_on=2, own_epochs=True)
        play.write(BEFORE, offset=1)
        play.one.finish(commit=True)
        play.write(OPEN)
        path = znodes.topic_path(play.places[0].topic)
        written, _ = store.get(path)
        store.set(path, b"junk")
        elect_again(cluster, store)
        assert play.offset() == 1
        if restarts:
            cluster[parts.coordinator].kill()
            cluster[parts.coordinator].start()
            cluster.until_known()
            play.described()
            assert at_last(lambda: play.one.end(commit=True)) is ErrorCode.NONE
            # The coordinator knows neither the partitions nor their leaders.
            elect_again(cluster, store)
            assert play.described().transaction_state == "PrepareCommit"
            assert play.due == {*play.places.values()}
        else:
            assert play.one.end(commit=True) is ErrorCode.NONE
            play.await_state("CompleteCommit")
            for broker_id in IDS:
                assert play.seen(broker_id) == [BEFORE, OPEN]
        store.set(path, written)
        play.await_state("CompleteCommit")
        play.goes_on(BEFORE, OPEN, offset=1)
