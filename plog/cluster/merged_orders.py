"""Two orders of one controller to one broker as one, which says what the later one has changed.

Pure functions over UpdateMetadata and LeaderAndIsr, for a broker that has not got the earlier one.
"""

from __future__ import annotations

from copy import copy

from plog.protocol.messages.replication import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)


def merged_metadata(
    earlier: UpdateMetadataRequest, later: UpdateMetadataRequest
) -> UpdateMetadataRequest:
    """Return one update of some topics for two.

    A topic with another id is another topic: the earlier one's partitions go with its id.
    """
    topics = {topic.topic_name: topic for topic in earlier.topic_states}
    for topic in later.topic_states:
        known = topics.get(topic.topic_name)
        states = [] if known is None or known.topic_id != topic.topic_id else known.partition_states
        by_index = {one.partition_index: one for one in (*states, *topic.partition_states)}
        topics[topic.topic_name] = UpdateMetadataTopicState(
            topic_name=topic.topic_name,
            topic_id=topic.topic_id,
            partition_states=list(by_index.values()),
        )
    merged = copy(later)
    merged.topic_states = list(topics.values())
    return merged


def merged_leader_and_isr(
    earlier: LeaderAndIsrRequest, later: LeaderAndIsrRequest
) -> LeaderAndIsrRequest:
    """Return one order for two. A replica that is new in the earlier one is new to the broker."""
    topics = {(topic.topic_name, topic.topic_id): topic for topic in earlier.topic_states}
    for topic in later.topic_states:
        name, topic_id = topic.topic_name, topic.topic_id
        known = topics.get((name, topic_id))
        by_index: dict[int, LeaderAndIsrPartitionState] = {}
        for one in (*(known.partition_states if known else ()), *topic.partition_states):
            before = by_index.get(one.partition_index)
            by_index[one.partition_index] = after = copy(one)
            after.is_new = one.is_new or (before is not None and before.is_new)
        topics[name, topic_id] = LeaderAndIsrTopicState(
            topic_name=name, topic_id=topic_id, partition_states=list(by_index.values())
        )
    merged = copy(later)
    merged.topic_states = list(topics.values())
    leaders = {one.broker_id: one for one in (*earlier.live_leaders, *later.live_leaders)}
    merged.live_leaders = list(leaders.values())
    return merged
