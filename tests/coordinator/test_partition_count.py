"""The number of partitions that keys are spread over: fixed when a broker first knows the topic."""

from __future__ import annotations

import logging
import uuid

import pytest

from plog.cluster.control_fence import ControlFence
from plog.cluster.metadata_cache import MetadataCache
from plog.coordinator.partition_count import PartitionCount
from tests.cluster.test_metadata_cache import tell

TOPIC, PLANNED = "__consumer_offsets", 50
ID, OTHER = uuid.UUID(int=5), uuid.UUID(int=6)


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache(ControlFence())


def tell_of(cache: MetadataCache, *partitions: int, topic_id: uuid.UUID = ID) -> None:
    tell(cache, (TOPIC, topic_id, dict.fromkeys(partitions, 0)))


def test_topic_that_does_not_exist_will_have_the_planned_number(cache: MetadataCache) -> None:
    count = PartitionCount(cache, TOPIC, PLANNED)
    tell(cache, ("t", OTHER, {0: 0}))
    assert count() == PLANNED


@pytest.mark.parametrize("is_known_at_start", [True, False])
def test_partitions_that_are_added_are_not_counted_and_one_line_warns_of_them(
    cache: MetadataCache, caplog: pytest.LogCaptureFixture, is_known_at_start: bool
) -> None:
    caplog.set_level(logging.INFO, "plog")
    if is_known_at_start:
        tell_of(cache, 0, 1)
    count = PartitionCount(cache, TOPIC, PLANNED)
    if is_known_at_start:
        assert count() == 2
    tell_of(cache, 0, 1)
    tell_of(cache, 2)
    tell_of(cache, 1, 2)
    assert count() == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "__consumer_offsets was extended to 3 partitions: this broker goes on with 2" in (
        record.getMessage()
    )


def test_partition_of_which_nothing_is_known_is_counted(cache: MetadataCache) -> None:
    count = PartitionCount(cache, TOPIC, PLANNED)
    tell_of(cache, 0, 3)
    tell_of(cache, 1, 2)
    assert count() == 4


def test_another_topic_of_the_same_name_has_a_number_of_its_own(
    cache: MetadataCache, caplog: pytest.LogCaptureFixture
) -> None:
    count = PartitionCount(cache, TOPIC, PLANNED)
    tell_of(cache, 0)
    tell_of(cache, 0, 1, 2, topic_id=OTHER)
    assert count() == 3
    assert caplog.records == []


def test_closed_count_follows_no_updates(
    cache: MetadataCache, caplog: pytest.LogCaptureFixture
) -> None:
    count = PartitionCount(cache, TOPIC, PLANNED)
    tell_of(cache, 0)
    count.close()
    tell_of(cache, 1)
    assert caplog.records == []
