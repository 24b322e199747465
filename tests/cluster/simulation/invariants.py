"""What must hold at every step of a history, whatever happens.

Judges by what ZooKeeper has committed, which no broker of the simulation can see at once.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from plog.cluster import znodes
from plog.cluster.control_requests import ControlRequest
from plog.cluster.node_tree import NodeTree, Plan
from plog.cluster.partition import Partition
from plog.cluster.store import NoNode
from plog.cluster.znodes import LEADER_DURING_DELETE, PartitionStateNode, TopicNode
from plog.protocol.messages.replication import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from plog.types import TopicPartition
from tests.cluster.simulation.sim_logs import Hosted

if TYPE_CHECKING:
    from tests.cluster.simulation.broker import Process, SimBroker
    from tests.cluster.simulation.cluster import SimCluster

STATE = "/state"


decoded_topic = lru_cache(TopicNode.decode)
decoded_state = lru_cache(PartitionStateNode.decode)
"""Histories look at the same bytes again and again."""


class Replicated(NamedTuple):
    """A partition of one life of a topic."""

    topic_id: uuid.UUID
    partition: TopicPartition


class Epochs(NamedTuple):
    """Epochs of a partition's state: they only grow."""

    leader_epoch: int
    controller_epoch: int


class Invariants:
    """The commits so far, and the violations that were seen."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._tree: NodeTree = cluster.zookeeper.tree
        self.violations: list[str] = []
        self._elected: dict[int, int] = {}
        """The session that each controller epoch belongs to."""
        self._epochs: dict[Replicated, Epochs] = {}
        self._announced: dict[Replicated, int] = {}
        """The leader epochs that controllers have written."""
        self._ruled: dict[tuple[int, Replicated], int] = {}
        """The newest leader epoch that was written in a controller epoch."""
        self._leaders: dict[tuple[Replicated, int], int] = {}
        """The leader of each leader epoch."""
        self._at_registration: dict[int, dict[Replicated, int]] = {}
        """By broker epoch: the leader epochs that controllers had written by then."""
        self._registered_by: dict[int, int] = {}
        """By broker epoch: the session."""
        self._led_by: dict[tuple[Replicated, int], str] = {}
        """The process that has led in each leader epoch, of partitions with several replicas."""
        cluster.zookeeper.on_commit.append(self._on_commit)

    def report(self, violation: str) -> None:
        """Write down what must not have happened."""
        self._cluster.scheduler.note(f"VIOLATION: {violation}")
        self.violations.append(violation)

    @property
    def controller_epoch(self) -> int:
        """The newest one; 0 before the first election."""
        return max(self._elected, default=0)

    # -- commits -----------------------------------------------------------------------------

    def _on_commit(self, plan: Plan, session: int) -> None:
        for path, node in plan.rows.items():
            if node is None:
                continue
            if path == znodes.CONTROLLER_EPOCH:
                self._elected[znodes.decode_controller_epoch(node.data)] = session
            elif path.endswith(STATE):
                self._on_state(path, decoded_state(node.data), session)
            elif path.startswith(znodes.BROKER_IDS + "/") and node.czxid == plan.zxid:
                self._at_registration[plan.zxid] = dict(self._announced)
                self._registered_by[plan.zxid] = session

    def _on_state(self, path: str, state: PartitionStateNode, session: int) -> None:
        _, _, _, name, _, index, _ = path.split("/")
        topic = self._topic(name)
        if topic is None or topic.topic_id is None:
            self.report(f"{path} is written without a topic")
            return
        one = Replicated(topic.topic_id, TopicPartition(name, int(index)))
        epochs = Epochs(state.leader_epoch, state.controller_epoch)
        before = self._epochs.get(one, epochs)
        if epochs.leader_epoch < before.leader_epoch:
            self.report(f"{path} goes from {before} back to {epochs}")
        if epochs.controller_epoch < before.controller_epoch:
            self.report(f"{path} goes from {before} back to {epochs}")
        leader = self._leaders.setdefault((one, state.leader_epoch), state.leader)
        if leader != state.leader:
            self.report(f"{path}: {leader} and {state.leader} lead in {epochs}")
        self._epochs[one] = epochs
        if self._cluster.is_replicated:
            self._cluster.acknowledged.check_members(Hosted(one.topic_id, one.partition), state.isr)
        if self._elected.get(state.controller_epoch) == session:
            self._announced[one] = state.leader_epoch
            self._ruled[state.controller_epoch, one] = state.leader_epoch

    def _topic(self, name: str) -> TopicNode | None:
        try:
            return decoded_topic(self._tree.get(znodes.topic_path(name))[0])
        except NoNode:
            return None

    def _has_replica(self, broker: SimBroker, one: Replicated) -> bool:
        topic = self._topic(one.partition.topic)
        if topic is None or topic.topic_id != one.topic_id:
            return False
        return broker.id in topic.partitions.get(one.partition.partition, ())

    def _has_several_replicas(self, one: Replicated) -> bool:
        topic = self._topic(one.partition.topic)
        return (
            topic is not None
            and topic.topic_id == one.topic_id
            and len(topic.partitions.get(one.partition.partition, ())) > 1
        )

    # -- orders ------------------------------------------------------------------------------

    def check_sender(self, order: ControlRequest, sender: Process) -> None:
        """Orders of a controller epoch come from the one process that was elected with it."""
        if self._elected.get(order.controller_epoch) not in sender.store.sessions:
            self.report(f"{sender.owner} rules in controller epoch {order.controller_epoch}")
        machine = sender.controller.machine
        if machine is not None and machine.context.epoch != order.controller_epoch:
            self.report(f"{sender.owner} orders what it has read in epoch {machine.context.epoch}")
        if not isinstance(order, StopReplicaRequest):
            self._check_states(order, sender)

    def _check_states(
        self, order: LeaderAndIsrRequest | UpdateMetadataRequest, sender: Process
    ) -> None:
        """A controller announces no state from before one that it has written."""
        for topic in order.topic_states:
            for state in topic.partition_states:
                at = TopicPartition(topic.topic_name, state.partition_index)
                one = Replicated(topic.topic_id, at)
                written = self._ruled.get((order.controller_epoch, one), state.leader_epoch)
                if state.leader_epoch < written and state.leader != LEADER_DURING_DELETE:
                    self.report(
                        f"{sender.owner} announces epoch {state.leader_epoch} of {at}, and had"
                        f" written {written}"
                    )

    def is_known(self, order: ControlRequest, to: Process) -> bool:
        """Return whether the epochs of an order have been committed, and it is for this process."""
        found = self._tree.exists(znodes.broker_path(to.broker.id))
        return (
            order.controller_epoch <= self.controller_epoch
            and found is not None
            and order.broker_epoch == found.czxid
            and to.store.is_own(found.ephemeral_owner)
        )

    def check_unknown(self, order: ControlRequest, to: Process, reason: Exception) -> None:
        """An order whose epochs have been committed is not taken for a forged one."""
        if self.is_known(order, to):
            self.report(f"broker {to.broker.id} does not believe an order: {reason}")

    def check_obeyed(self, order: ControlRequest, to: Process, broker_epoch: int) -> None:
        """An order for an earlier registration is refused, and one for an earlier process."""
        session = self._registered_by.get(order.broker_epoch)
        if order.broker_epoch < broker_epoch or session not in to.store.sessions:
            self.report(f"{to.owner} obeys an order for its life {order.broker_epoch}")

    # -- replicas ----------------------------------------------------------------------------

    def check_leader(
        self,
        process: Process,
        at: TopicPartition,
        topic_id: uuid.UUID,
        leader_epoch: int,
        order: LeaderAndIsrRequest,
    ) -> None:
        """A broker leads in epochs that name it, and in none from before its registration.

        An earlier controller may not know the states of then; its orders end soon. No process leads
        in an epoch in which another has: that one may have lost what followers have copied.
        """
        one = Replicated(topic_id, at)
        if self._has_several_replicas(one):
            by = self._led_by.setdefault((one, leader_epoch), process.owner)
            if by != process.owner:
                self.report(f"{process.owner} leads {at} in epoch {leader_epoch}, as {by} has")
        written = self._leaders.get((one, leader_epoch))
        if written != process.broker.id:
            self.report(f"{process.owner} leads {at} in epoch {leader_epoch}, which is {written}'s")
        known = self._at_registration.get(process.fence.broker_epoch, {}).get(one, leader_epoch)
        if order.controller_epoch == self.controller_epoch and leader_epoch < known:
            self.report(
                f"{process.owner} leads {at} in epoch {leader_epoch}, by an order for an earlier"
                f" life: it was {known} when it registered"
            )

    def check_append(self, broker: SimBroker, partition: Partition) -> None:
        """A record is accepted in a leader epoch that names the broker, and while its topic exists.

        One leader for each leader epoch, that is.
        """
        at, leader_epoch = partition.topic_partition, partition.leadership.leader_epoch
        one = Replicated(partition.topic_id, at)
        leader = self._leaders.get((one, leader_epoch))
        if leader != broker.id:
            self.report(f"broker {broker.id} appends to {at} in {leader}'s epoch {leader_epoch}")
        if not self._has_replica(broker, one):
            self.report(f"broker {broker.id} appends to {at} of {one.topic_id}, which is gone")

    def is_newest_leader(self, broker: SimBroker, partition: Partition) -> bool:
        """Return whether a broker leads a partition in the newest leader epoch of all."""
        one = Replicated(partition.topic_id, partition.topic_partition)
        epoch = partition.leadership.leader_epoch
        return self._leaders.get((one, epoch)) == broker.id and self._epochs[one][0] == epoch

    def check_stray(self, broker: SimBroker, at: TopicPartition, topic_id: uuid.UUID) -> None:
        """Only logs that are no replicas any more are set aside."""
        if self._has_replica(broker, Replicated(topic_id, at)):
            self.report(f"broker {broker.id} sets the log of {at} aside, which it should have")

    def check_deletion(self, broker: SimBroker, at: TopicPartition, topic_id: uuid.UUID) -> None:
        """Only logs of topics that are being deleted, or gone, are deleted."""
        is_asked = self._tree.exists(znodes.delete_topic_path(at.topic)) is not None
        if not is_asked and self._has_replica(broker, Replicated(topic_id, at)):
            self.report(f"broker {broker.id} deletes the log of {at}, whose topic stays")
