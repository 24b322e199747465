"""Orders that are not new, and every order by which a coordinator loses its partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from tests.cluster.in_sync_sets import FakeSet

from .test_replica_manager import A0, ID, ME, NONE, OTHER_ID, PEER, STALE, Broker, leader_and_isr

BOTH = (ME, PEER)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def order(broker: Broker, *, leader: int, epoch: int, version: int, isr: tuple[int, ...]) -> int:
    """Send LeaderAndIsr with a version of the state; return the partition's code."""
    request = leader_and_isr(A0, leader, epoch, isr, ID, False)
    request.topic_states[0].partition_states[0].partition_epoch = version
    answer = broker.send(request)
    return int(answer.topics[0].partition_errors[0].error_code)


def test_leader_takes_no_set_from_an_order_of_its_own_epoch(broker: Broker) -> None:
    """Sets come by answers to its proposals, or in a later leader epoch (KAFKA-13790)."""
    assert broker.lead(epoch=3, isr=BOTH) == NONE
    partition = broker.replicas.get(A0)
    led = broker.in_sync_sets.led[A0]
    assert isinstance(led, FakeSet)
    led.isr, led.partition_epoch = (ME,), 4
    partition.take_in_sync(led)
    for version in (3, 5):
        assert order(broker, leader=ME, epoch=3, version=version, isr=BOTH) == STALE
        found = partition.leadership
        assert (found.isr, found.partition_epoch) == ((ME,), 4)
        assert broker.in_sync_sets.led[A0] is led
    assert order(broker, leader=ME, epoch=4, version=6, isr=BOTH) == NONE
    assert (partition.leadership.isr, partition.leadership.partition_epoch) == (BOTH, 6)
    assert broker.in_sync_sets.led[A0] is not led


def test_follower_keeps_its_leader_in_an_order_of_the_same_epoch(broker: Broker) -> None:
    assert broker.lead(leader=PEER, epoch=3, isr=BOTH) == NONE
    assert order(broker, leader=ME, epoch=3, version=9, isr=BOTH) == STALE
    assert broker.replicas.get(A0).leadership.leader == PEER
    assert broker.fetchers.following == {A0: PEER}


def damage(broker: Broker) -> None:
    broker.logs.offline[A0] = "damaged"
    broker.replicas.on_damage(A0, "damaged")


ENDS: dict[str, Callable[[Broker], object]] = {
    "another leads": lambda broker: broker.lead(leader=PEER, epoch=6, isr=BOTH),
    "no leader": lambda broker: broker.lead(leader=-1, epoch=6),
    "stopped": lambda broker: broker.stop(delete=False, epoch=6),
    "stopped in the same epoch": lambda broker: broker.stop(delete=False, epoch=5),
    "deleted": lambda broker: broker.stop(epoch=-2),
    "deleted in the same epoch": lambda broker: broker.stop(epoch=5),
    "disk failed": lambda broker: broker.replicas.on_log_dir_failure(Path("/d0"), "it failed"),
    "damaged": damage,
}


@pytest.mark.parametrize("end", ENDS)
def test_coordinator_hears_of_every_way_to_lose_a_partition(broker: Broker, end: str) -> None:
    """KAFKA-16118, KAFKA-19274, KAFKA-20115: it would answer from memory for another's log."""
    assert broker.lead(epoch=5, isr=BOTH) == NONE
    partition = broker.replicas.get(A0)
    broker.roles.clear()
    ENDS[end](broker)
    assert broker.roles == [([], [partition])]


def test_coordinator_of_a_topic_that_was_created_again_is_another(broker: Broker) -> None:
    """The leader epoch begins at 0 again (KAFKA-19274)."""
    assert broker.lead() == NONE
    before = broker.replicas.get(A0)
    assert broker.stop() == NONE
    assert broker.lead(topic_id=OTHER_ID) == NONE
    after = broker.replicas.get(A0)
    assert broker.roles == [([before], []), ([], [before]), ([after], [])]


def test_stale_stop_takes_nothing_from_a_coordinator(broker: Broker) -> None:
    assert broker.lead(epoch=5) == NONE
    broker.roles.clear()
    assert broker.stop(epoch=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert broker.roles == []
