"""Replicas that are lost while the broker runs: clients hear of it, and the others serve."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.types import TopicPartition
from tests.handlers.wire import (
    Speaker,
    create_topic,
    eventually,
    fetch_one,
    make_batch,
    produce,
    speak,
)
from tests.servers import BrokerProcess


def partition_state(client: Speaker, topic: str) -> tuple[int, int, list[int]]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    (found,) = client.ask(request, 9).topics
    (partition,) = found.partitions
    return partition.error_code, partition.leader_id, partition.offline_replicas


def damage(broker: BrokerProcess, at: TopicPartition) -> None:
    """Make the first batch of a partition none; whoever reads it finds that out."""
    segment = broker.log_dirs[0] / str(at) / "00000000000000000000.log"
    with segment.open("r+b") as file:
        file.seek(16)
        file.write(b"\xfd")  # the magic byte


@pytest.mark.usefixtures("plane")
def test_partition_found_damaged_has_no_leader_any_more(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, closing(speak(broker.port)) as client:
        damaged, _ = create_topic(client)
        other, _ = create_topic(client)
        for topic in (damaged, other):
            assert produce(client, topic, make_batch([b"v"])).error_code == ErrorCode.NONE
        damage(broker, TopicPartition(damaged, 0))
        assert fetch_one(client, damaged, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        lost = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [0])
        eventually(lambda: partition_state(client, damaged) == lost, "without a leader")
        assert partition_state(client, other) == (ErrorCode.NONE, 0, [])
        assert produce(client, other, make_batch([b"w"])).error_code == ErrorCode.NONE
