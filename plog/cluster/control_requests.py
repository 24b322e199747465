"""The controller's requests to brokers as messages, and brokers' answers as events.

Pure translation between the controller's vocabulary and LeaderAndIsr, UpdateMetadata
and StopReplica (versions 7, 8 and 4, those of a 3.9 controller). Sends nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import (
    LeaderAndIsrAnswered,
    PartitionUpdate,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    StopReplicaAnswered,
)
from plog.cluster.znodes import SECURITY_PROTOCOLS, Endpoint
from plog.errors import ErrorCode
from plog.protocol.messages.replication import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from plog.types import ZERO_UUID, TopicPartition

ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse: TypeAlias = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse

INCREMENTAL: Final = 1
FULL: Final = 2
"""Types of UpdateMetadata. Kafka's brokers look at it only if the sender is a KRaft controller."""

DRAIN: Final = 3
"""The type of a LeaderAndIsr that has a leader drain partitions. plog's own: Kafka's end with 2."""

INCOMPLETE: Final = ErrorCode.INELIGIBLE_REPLICA
"""The code in a broker's answer to LeaderAndIsr if it has taken a replica up that may lack records.

plog's own use of the code: Kafka's brokers do not know which of their replicas lack records.
"""

USABLE: Final = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, INCOMPLETE)
"""What a broker says to LeaderAndIsr of a replica whose log it can use: the order may be known."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends: what brokers compare to fence a controller that has been replaced."""

    controller_id: int
    controller_epoch: int
    inter_broker_listener: str


def leader_and_isr(
    sender: Sender, broker_epoch: int, send: SendLeaderAndIsr
) -> LeaderAndIsrRequest:
    """Return the request that tells a broker what it leads and follows."""
    return LeaderAndIsrRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        type=DRAIN if send.drains else 0,
        topic_states=[
            LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    LeaderAndIsrPartitionState(
                        partition_index=one.partition.partition,
                        controller_epoch=one.state.controller_epoch,
                        leader=one.state.leader,
                        leader_epoch=one.state.leader_epoch,
                        isr=list(one.state.isr),
                        partition_epoch=one.state.partition_epoch,
                        replicas=list(one.assignment.replicas),
                        adding_replicas=list(one.assignment.adding),
                        removing_replicas=list(one.assignment.removing),
                        is_new=one.is_new,
                        leader_recovery_state=one.state.leader_recovery_state,
                    )
                    for one in updates
                ],
            )
            for name, topic_id, updates in _by_topic(send.partitions)
        ],
        live_leaders=[
            LeaderAndIsrLiveLeader(broker_id=broker.id, host_name=end.host, port=end.port)
            for broker in send.live_leaders
            if (end := _endpoint(broker, sender.inter_broker_listener)) is not None
        ],
    )


def update_metadata(
    sender: Sender, broker_epoch: int, send: SendUpdateMetadata
) -> UpdateMetadataRequest:
    """Return the request that tells a broker about the cluster."""
    return UpdateMetadataRequest(
        controller_id=sender.controller_id,
        type=FULL if send.is_full else INCREMENTAL,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=one.partition.partition,
                        controller_epoch=one.state.controller_epoch,
                        leader=one.state.leader,
                        leader_epoch=one.state.leader_epoch,
                        isr=list(one.state.isr),
                        zk_version=one.state.partition_epoch,
                        replicas=list(one.assignment.replicas),
                        offline_replicas=list(one.offline),
                    )
                    for one in updates
                ],
            )
            for name, topic_id, updates in [
                *_by_topic(send.partitions),
                *((name, ZERO_UUID, []) for name in send.untold),
            ]
        ],
        live_brokers=[
            UpdateMetadataBroker(
                id=broker.id,
                endpoints=[
                    UpdateMetadataEndpoint(
                        port=end.port,
                        host=end.host,
                        listener=end.listener,
                        security_protocol=SECURITY_PROTOCOLS[end.security_protocol],
                    )
                    for end in broker.endpoints
                ],
                rack=broker.rack,
            )
            for broker in send.live_brokers
        ],
    )


def stop_replica(sender: Sender, broker_epoch: int, send: SendStopReplica) -> StopReplicaRequest:
    """Return the request that tells a broker to stop replicas, or to delete them."""
    states: dict[str, list[StopReplicaPartitionState]] = {}
    for (topic, index), leader_epoch in zip(send.partitions, send.leader_epochs, strict=True):
        states.setdefault(topic, []).append(
            StopReplicaPartitionState(
                partition_index=index, leader_epoch=leader_epoch, delete_partition=send.delete
            )
        )
    return StopReplicaRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            StopReplicaTopicState(topic_name=name, partition_states=partitions)
            for name, partitions in states.items()
        ],
    )


def leader_and_isr_answered(
    broker: LiveBroker, names: Mapping[uuid.UUID, str], response: LeaderAndIsrResponse
) -> LeaderAndIsrAnswered:
    """Read which replicas the broker has and has not got; other errors say nothing of that.

    An order that is not new was obeyed before, and its response may have been lost.

    Args:
        names: of the topics, by id. Others are of no interest any more.
    """
    codes = {
        TopicPartition(names[topic.topic_id], partition.partition_index): partition.error_code
        for topic in response.topics
        if topic.topic_id in names
        for partition in topic.partition_errors
    }
    return LeaderAndIsrAnswered(
        broker.id,
        broker.epoch,
        online=tuple(tp for tp, code in codes.items() if code in USABLE),
        offline=tuple(tp for tp, code in codes.items() if code == ErrorCode.KAFKA_STORAGE_ERROR),
        incomplete=tuple(tp for tp, code in codes.items() if code == INCOMPLETE),
    )


def stop_replica_answered(broker: LiveBroker, response: StopReplicaResponse) -> StopReplicaAnswered:
    """Read which replicas the broker has deleted."""
    codes = {
        TopicPartition(one.topic_name, one.partition_index): one.error_code
        for one in response.partition_errors
    }
    return StopReplicaAnswered(
        broker.id,
        broker.epoch,
        deleted=tuple(tp for tp, code in codes.items() if code == ErrorCode.NONE),
        failed=tuple(tp for tp, code in codes.items() if code != ErrorCode.NONE),
    )


def _by_topic(
    updates: Iterable[PartitionUpdate],
) -> list[tuple[str, uuid.UUID, list[PartitionUpdate]]]:
    topics: dict[str, tuple[str, uuid.UUID, list[PartitionUpdate]]] = {}
    for one in updates:
        name = one.partition.topic
        topics.setdefault(name, (name, one.topic_id, []))[2].append(one)
    return list(topics.values())


def _endpoint(broker: LiveBroker, listener: str) -> Endpoint | None:
    return next((end for end in broker.endpoints if end.listener == listener), None)
