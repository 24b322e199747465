# ruff: noqa: E501 - one message, whole
"""The metadata cache: snapshots that are replaced, and waiting for one."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest

from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import FULL, INCREMENTAL
from plog.cluster.metadata_cache import MetadataCache
from plog.errors import ErrorCode
from plog.protocol.messages.replication import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from plog.types import ZERO_UUID, TopicPartition

WAIT_S = 40
ID, OTHER = uuid.UUID(int=5), uuid.UUID(int=6)


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache(ControlFence())


def tell(cache: MetadataCache, *topics, brokers=(0, 1), epoch=1, is_full=False) -> ErrorCode:
    """`topics`: (name, id, {index: leader})."""
    request = UpdateMetadataRequest(
        type=FULL if is_full else INCREMENTAL,
        controller_id=0,
        controller_epoch=epoch,
        broker_epoch=-1,
        topic_states=[
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=index, controller_epoch=epoch, leader=leader,
                        leader_epoch=7, isr=[1], zk_version=3, replicas=[1, 2], offline_replicas=[2],
                    )
                    for index, leader in leaders.items()
                ],
            )
            for name, topic_id, leaders in topics
        ],
        live_brokers=[
            UpdateMetadataBroker(
                id=one,
                endpoints=[
                    UpdateMetadataEndpoint(port=9092, host=f"h{one}", listener="A", security_protocol=0),
                    UpdateMetadataEndpoint(port=9093, host=f"h{one}", listener="B", security_protocol=1),
                ],
                rack=None,
            )
            for one in brokers
        ],
    )  # fmt: skip
    return ErrorCode(cache.apply(request).error_code)


def test_told_partitions_and_brokers_are_found(cache) -> None:
    assert tell(cache, ("a", ID, {0: 1, 1: -1})) == ErrorCode.NONE
    snapshot = cache.snapshot
    assert (snapshot.version, snapshot.controller_id, snapshot.live_controller_id) == (1, 0, 0)
    end = snapshot.brokers[1].endpoint("B")
    assert (end.host, end.port, end.security_protocol) == ("h1", 9093, "SSL")
    led = cache.leader(TopicPartition("a", 0))
    assert (led.leader_id, led.leader_epoch, led.isr, led.replicas) == (1, 7, (1,), (1, 2))
    assert (led.offline_replicas, led.partition_epoch) == ((2,), 3)
    assert cache.leader(TopicPartition("a", 1)) is None
    assert cache.contains(TopicPartition("a", 1))
    assert not cache.contains(TopicPartition("a", 2))
    assert cache.topic_name(ID) == "a"
    assert snapshot.has_leaders("a", 1)
    assert not snapshot.has_leaders("a", 2)
    assert not snapshot.has_leaders("b", 0)


def test_later_news_add_to_the_topics_and_replace_the_brokers(cache) -> None:
    tell(cache, ("a", ID, {0: 1}))
    before = cache.snapshot
    tell(cache, ("a", ID, {1: 1}), ("b", OTHER, {0: 1}), brokers=(1,))
    assert set(cache.snapshot.topics["a"].partitions) == {0, 1}
    assert set(cache.snapshot.topics) == {"a", "b"}
    assert set(cache.snapshot.brokers) == {1}
    assert cache.snapshot.live_controller_id == -1
    # Who took the old snapshot still sees the old world.
    assert set(before.topics["a"].partitions) == {0}
    assert set(before.topics) == {"a"}
    with pytest.raises(TypeError):
        before.topics["x"] = None


def test_deleted_topic_is_forgotten_with_its_last_partition(cache) -> None:
    tell(cache, ("a", ID, {0: 1, 1: 1}))
    tell(cache, ("a", ID, {0: -2}))
    assert cache.topic_name(ID) == "a"
    tell(cache, ("a", ID, {1: -2}))
    assert cache.topic("a") is None
    assert cache.topic_name(ID) is None


def test_topic_with_another_id_is_another_topic(cache) -> None:
    tell(cache, ("a", ID, {0: 1, 1: 1}))
    tell(cache, ("a", OTHER, {0: 1}))
    assert set(cache.topic("a").partitions) == {0}
    assert (cache.topic_name(ID), cache.topic_name(OTHER)) == (None, "a")


A0, A2 = TopicPartition("a", 0), TopicPartition("a", 2)


def test_full_update_deletes_the_topics_that_it_does_not_name(cache) -> None:
    tell(cache, ("a", ID, {0: 1, 2: 1}), ("b", OTHER, {0: 1}))
    tell(cache, ("a", ID, {0: 1}), is_full=True)
    assert set(cache.snapshot.topics) == {"a"}
    assert set(cache.topic("a").partitions) == {0}
    assert cache.topic_name(OTHER) is None
    assert cache.is_deleted(TopicPartition("b", 0))
    assert cache.is_deleted(A2)
    assert not cache.is_deleted(A0)


def test_topic_of_which_a_full_update_says_nothing_stays_as_it_was(cache) -> None:
    tell(cache, ("a", ID, {0: 1, 2: 1}))
    before = cache.topic("a")
    for _ in range(2):
        tell(cache, ("a", ZERO_UUID, {}), ("b", OTHER, {0: 1}), is_full=True)
        assert cache.topic("a") == before
        assert cache.topic_name(ID) == "a"
        assert not cache.is_deleted(A2)
    tell(cache, ("a", OTHER, {0: 1}))
    assert (cache.topic_name(ID), cache.topic_name(OTHER)) == (None, "a")
    assert cache.is_deleted(A2)


def test_topic_of_which_nothing_is_known_is_not_a_deleted_one(cache) -> None:
    tell(cache, ("a", ZERO_UUID, {}), is_full=True)
    assert cache.topic("a") is None
    assert not cache.contains(A0)
    assert not cache.is_deleted(A0)
    tell(cache, ("b", OTHER, {0: 1}))
    assert not cache.is_deleted(A0)
    tell(cache, is_full=True)
    assert cache.is_deleted(A0)


@pytest.mark.parametrize("leader", [1, -2])
def test_topic_is_known_once_the_controller_says_more(cache, leader: int) -> None:
    tell(cache, ("a", ZERO_UUID, {}), is_full=True)
    tell(cache, ("a", ID, {0: leader}))
    assert cache.is_deleted(A0) == (leader == -2)
    assert cache.is_deleted(A2)


def test_nothing_is_deleted_before_a_full_update(cache) -> None:
    assert not cache.is_deleted(A0)
    tell(cache, ("b", OTHER, {0: 1}))
    assert not cache.is_deleted(A0)
    tell(cache, ("b", OTHER, {0: 1}), is_full=True)
    assert cache.is_deleted(A0)


def test_news_of_a_deposed_controller_changes_nothing(cache) -> None:
    tell(cache, epoch=2)
    before = cache.snapshot
    assert tell(cache, ("a", ID, {0: 1}), epoch=1) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert cache.snapshot is before


def test_waiting_ends_with_the_news_or_in_time(cache) -> None:
    assert not cache.wait_until(lambda snapshot: "a" in snapshot.topics, 0.01)
    told = threading.Timer(0.02, tell, (cache, ("a", ID, {0: 1})))
    told.start()
    assert cache.wait_until(lambda snapshot: "a" in snapshot.topics, WAIT_S)
    told.join()


def test_waiting_in_a_loop_ends_with_the_news_or_in_time(cache) -> None:
    async def wait() -> None:
        assert await cache.until(lambda snapshot: True, 0)
        assert not await cache.until(lambda snapshot: "a" in snapshot.topics, 0.01)
        waiting = asyncio.ensure_future(cache.until(lambda s: "a" in s.topics, WAIT_S))
        await asyncio.sleep(0)
        await asyncio.to_thread(tell, cache, ("a", ID, {0: 1}))
        assert await waiting

    asyncio.run(wait())
    assert cache._listeners == ()


def test_listener_hears_until_it_cancels(cache) -> None:
    heard: list[int] = []
    cancel = cache.subscribe(lambda snapshot: heard.append(snapshot.version))
    tell(cache)
    cancel()
    tell(cache)
    assert heard == [1]
