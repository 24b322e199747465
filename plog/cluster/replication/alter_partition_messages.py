"""Proposals of in-sync sets and their outcomes as AlterPartition has them, for both ends.

Leaders send version 3; brokers of Kafka may send older ones, without topic ids or broker epochs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from itertools import groupby

from plog.cluster.controller_context import PartitionState
from plog.cluster.controller_events import Outcome, ProposedIsr
from plog.cluster.replication.alter_partition import Batch, Found, Written
from plog.errors import ErrorCode, error_for
from plog.protocol.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionState,
    AlterPartitionStateResponse,
    AlterPartitionTopic,
    AlterPartitionTopicResponse,
    BrokerState,
)
from plog.types import NO_EPOCH, TopicPartition

BROKER_EPOCHS_SINCE = 3
"""From this version on a request has the broker epoch of each member (KIP-903)."""
TOPIC_IDS_SINCE = 2
"""From this version on a request has topic ids."""
NO_LEADER = -1

NameOf = Callable[[AlterPartitionTopic], str | None]
"""Returns a topic's name; None: no topic is known by its id."""


# -- as a leader -----------------------------------------------------------------------------------


def request_of(
    batch: Batch, ids: Mapping[str, uuid.UUID], *, broker_id: int, broker_epoch: int
) -> AlterPartitionRequest:
    """Return the request for a batch; partitions of topics without an id are left out."""
    known = sorted(at for at in batch if at.topic in ids)
    return AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=[
            AlterPartitionTopic(
                topic_id=ids[topic],
                partitions=[
                    AlterPartitionState(
                        partition_index=at.partition,
                        leader_epoch=batch[at].leader_epoch,
                        new_isr_with_epochs=[
                            BrokerState(broker_id=member, broker_epoch=epoch)
                            for member, epoch in batch[at].members
                        ],
                        partition_epoch=batch[at].partition_epoch,
                    )
                    for at in partitions
                ],
            )
            for topic, partitions in groupby(known, key=lambda at: at.topic)
        ],
    )


def found_in(
    response: AlterPartitionResponse, ids: Mapping[str, uuid.UUID]
) -> dict[TopicPartition, Found]:
    """Return what a response says of each partition."""
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(names[topic.topic_id], one.partition_index): error_for(one.error_code).code
        if one.error_code != ErrorCode.NONE
        else Written(one.leader_epoch, tuple(one.isr), one.partition_epoch)
        for topic in response.topics
        if topic.topic_id in names
        for one in topic.partitions
    }


def proposed_of(batch: Batch) -> dict[TopicPartition, ProposedIsr]:
    """Return a batch as the controller takes it in this process."""
    return {
        at: ProposedIsr(
            tuple(member for member, _ in proposal.members),
            tuple(epoch for _, epoch in proposal.members),
            proposal.leader_epoch,
            proposal.partition_epoch,
        )
        for at, proposal in batch.items()
    }


def found_of(outcomes: Mapping[TopicPartition, Outcome]) -> dict[TopicPartition, Found]:
    """Return the controller's outcomes in this process as a leader takes them."""
    return {
        at: Written(outcome.leader_epoch, outcome.isr, outcome.partition_epoch)
        if isinstance(outcome, PartitionState)
        else outcome
        for at, outcome in outcomes.items()
    }


# -- as the controller -----------------------------------------------------------------------------


def proposed_in(
    request: AlterPartitionRequest, version: int, name_of: NameOf
) -> dict[TopicPartition, ProposedIsr]:
    """Return the proposals of a request, of the topics that are known."""
    return {
        TopicPartition(name, one.partition_index): _proposed(one, version)
        for topic in request.topics
        if (name := name_of(topic)) is not None
        for one in topic.partitions
    }


def response_of(
    request: AlterPartitionRequest, name_of: NameOf, outcomes: Mapping[TopicPartition, Outcome]
) -> AlterPartitionResponse:
    """Return the response, in the order of the request. UNKNOWN_TOPIC_ID: the topic is unknown."""
    return AlterPartitionResponse(
        error_code=ErrorCode.NONE,
        topics=[_answered(topic, name_of(topic), outcomes) for topic in request.topics],
    )


def _proposed(one: AlterPartitionState, version: int) -> ProposedIsr:
    if version >= BROKER_EPOCHS_SINCE:
        isr = tuple(member.broker_id for member in one.new_isr_with_epochs)
        epochs = tuple(member.broker_epoch for member in one.new_isr_with_epochs)
    else:
        isr = tuple(one.new_isr)
        epochs = (NO_EPOCH,) * len(isr)
    return ProposedIsr(
        isr, epochs, one.leader_epoch, one.partition_epoch, one.leader_recovery_state
    )


def _answered(
    topic: AlterPartitionTopic, name: str | None, outcomes: Mapping[TopicPartition, Outcome]
) -> AlterPartitionTopicResponse:
    return AlterPartitionTopicResponse(
        topic_name=topic.topic_name,
        topic_id=topic.topic_id,
        partitions=[
            _outcome(
                one.partition_index,
                ErrorCode.UNKNOWN_TOPIC_ID
                if name is None
                else outcomes[TopicPartition(name, one.partition_index)],
            )
            for one in topic.partitions
        ],
    )


def _outcome(index: int, outcome: Outcome) -> AlterPartitionStateResponse:
    if isinstance(outcome, PartitionState):
        return AlterPartitionStateResponse(
            partition_index=index,
            error_code=ErrorCode.NONE,
            leader_id=outcome.leader,
            leader_epoch=outcome.leader_epoch,
            isr=list(outcome.isr),
            leader_recovery_state=outcome.leader_recovery_state,
            partition_epoch=outcome.partition_epoch,
        )
    return AlterPartitionStateResponse(
        partition_index=index,
        error_code=outcome,
        leader_id=NO_LEADER,
        leader_epoch=NO_EPOCH,
        isr=[],
        partition_epoch=NO_EPOCH,
    )
