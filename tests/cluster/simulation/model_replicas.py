"""A model of `ReplicaManager` without logs: which replicas a broker has, in which roles.

Histories without logs use it instead of `ReplicaManager`. Those with logs compare the two, order by
order.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from plog.cluster.control_requests import DRAIN
from plog.cluster.stray_logs import Topics
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.replication import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from plog.types import TopicPartition

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process


class Role(NamedTuple):
    """What a replica is in a leader epoch."""

    leader_epoch: int
    leads: bool


class ModelReplicas:
    """Obeys orders as `ReplicaManager` does, without logs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._broker = process.broker
        self.roles: dict[TopicPartition, Role] = {}

    def prepare(self) -> None:
        """Nothing is read before `load`."""

    def load(self, topics: Topics) -> None:
        """Begin with the logs of the directory, without strays."""
        for at, topic_id in list(self._broker.logs.items()):
            if topics.why_stray(at, topic_id, self._broker.id) is not None:
                self._broker.cluster.invariants.check_stray(self._broker, at, topic_id)
                del self._broker.logs[at]

    def on_tick(self) -> None:
        """Nothing happens by time."""

    def shut_down(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is left open."""

    def apply_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """See `ReplicaManager.apply_leader_and_isr`."""
        try:
            self._process.fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return LeaderAndIsrResponse(error_code=refusal.code, topics=[])
        if request.type == DRAIN:
            return LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=[])
        topics = []
        for topic in request.topic_states:
            errors = []
            for one in topic.partition_states:
                at = TopicPartition(topic.topic_name, one.partition_index)
                code = self._take_up(at, topic.topic_id, one, request)
                errors.append(
                    LeaderAndIsrPartitionError(partition_index=at.partition, error_code=code)
                )
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=topics)

    def _take_up(
        self,
        at: TopicPartition,
        topic_id: uuid.UUID,
        state: LeaderAndIsrPartitionState,
        request: LeaderAndIsrRequest,
    ) -> ErrorCode:
        if self._broker.id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._broker.logs.get(at, topic_id) != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        known = self.roles.get(at)
        if known is not None and state.leader_epoch <= known.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        leads = state.leader == self._broker.id
        if leads:
            self._broker.cluster.invariants.check_leader(
                self._process, at, topic_id, state.leader_epoch, request
            )
        self._broker.logs[at] = topic_id
        self.roles[at] = Role(state.leader_epoch, leads)
        return ErrorCode.NONE

    def apply_stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """See `ReplicaManager.apply_stop_replica`."""
        try:
            self._process.fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return StopReplicaResponse(error_code=refusal.code, partition_errors=[])
        errors = []
        for topic in request.topic_states:
            for one in topic.partition_states:
                at = TopicPartition(topic.topic_name, one.partition_index)
                code = self._stop(at, one.leader_epoch, deletes=one.delete_partition)
                errors.append(
                    StopReplicaPartitionError(
                        topic_name=at.topic, partition_index=at.partition, error_code=code
                    )
                )
        return StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=errors)

    def _stop(self, at: TopicPartition, leader_epoch: int, *, deletes: bool) -> ErrorCode:
        known = self.roles.get(at)
        if known is not None and 0 <= leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not deletes:
            if known is not None:
                self.roles[at] = known._replace(leads=False)
        else:
            self.roles.pop(at, None)
            if (topic_id := self._broker.logs.pop(at, None)) is not None:
                self._broker.cluster.invariants.check_deletion(self._broker, at, topic_id)
        return ErrorCode.NONE
