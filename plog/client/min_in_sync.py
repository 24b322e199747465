"""How many replicas in sync acks=all needs, and which partitions have fewer.

Owns the client's form of the rule: min.insync.replicas of the topic, but no more than there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plog.client.admin import TOPIC, Admin
from plog.client.metadata import PartitionInfo, TopicInfo
from plog.types import TopicPartition

MIN_IN_SYNC = "min.insync.replicas"


def least_in_sync(admin: Admin, topics: Iterable[TopicInfo]) -> dict[str, int]:
    """Return min.insync.replicas of those topics that have several replicas."""
    found = {}
    for topic in topics:
        if any(len(part.replicas) > 1 for part in topic.partitions.values()):
            entries = admin.describe_configs(TOPIC, topic.name, [MIN_IN_SYNC])
            values = [one.value for one in entries if one.name == MIN_IN_SYNC]
            found[topic.name] = int(values[0] or 1) if values else 1
    return found


def needed_in_sync(least: Mapping[str, int], topic: str, part: PartitionInfo) -> int:
    """Return how many replicas in sync acks=all needs.

    Args:
        least: min.insync.replicas by topic; 1 for others.
    """
    return min(least.get(topic, 1), len(part.replicas))


def under_min_isr(topics: Iterable[TopicInfo], least: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions with fewer replicas in sync than acks=all needs."""
    return [
        TopicPartition(topic.name, index)
        for topic in topics
        for index, part in sorted(topic.partitions.items())
        if len(part.isr) < needed_in_sync(least, topic.name, part)
    ]
