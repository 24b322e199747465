"""What the controller knows: live brokers, topics, assignments and partition states.

Owns the questions asked of that knowledge. Decides nothing and does no I/O; only the
controller's machine changes it, and only the controller's thread may look.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plog.cluster.znodes import NO_LEADER, Endpoint, PartitionStateNode, TopicNode
from plog.types import NO_EPOCH, TopicPartition


class LiveBroker(NamedTuple):
    """A registered broker; `epoch` is the transaction that created its node."""

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None


class PartitionState(NamedTuple):
    """A partition's state node and its version, the partition epoch.

    The state of an unreadable node names no leader, and no epoch to go on from.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int
    leader_recovery_state: int = 0
    leader_broker_epoch: int = NO_EPOCH

    @property
    def is_readable(self) -> bool:
        """Whether the node could be read: otherwise the controller must not write over it."""
        return self.leader_epoch != NO_EPOCH

    @staticmethod
    def unreadable(version: int) -> PartitionState:
        """Return what stands for a node that cannot be read."""
        return PartitionState(NO_LEADER, NO_EPOCH, (), NO_EPOCH, version)

    def to_node(self) -> PartitionStateNode:
        """Return what the node holds; its version is the store's to count."""
        return PartitionStateNode(
            self.controller_epoch,
            self.leader,
            self.leader_epoch,
            self.isr,
            self.leader_recovery_state,
            self.leader_broker_epoch,
        )

    @staticmethod
    def of_node(node: PartitionStateNode, version: int) -> PartitionState:
        """Return the state that a node at `version` holds."""
        return PartitionState(
            node.leader,
            node.leader_epoch,
            node.isr,
            node.controller_epoch,
            version,
            node.leader_recovery_state,
            node.leader_broker_epoch,
        )


class Assignment(NamedTuple):
    """The replicas of a partition, preferred leader first; the others while it is being moved."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = ",".join(map(str, self.replicas))
        for what, replicas in (("adding", self.adding), ("removing", self.removing)):
            if replicas:
                text += f", {what} {','.join(map(str, replicas))}"
        return text


def assignments_of(node: TopicNode) -> dict[int, Assignment]:
    """Return the assignment of each partition of a topic's node."""
    return {
        index: Assignment(
            replicas, node.adding_replicas.get(index, ()), node.removing_replicas.get(index, ())
        )
        for index, replicas in sorted(node.partitions.items())
    }


def node_with(node: TopicNode, assignments: Mapping[int, Assignment]) -> TopicNode:
    """Return a topic's node with these assignments of its partitions."""
    return TopicNode(
        node.topic_id,
        {index: one.replicas for index, one in assignments.items()},
        {index: one.adding for index, one in assignments.items() if one.adding},
        {index: one.removing for index, one in assignments.items() if one.removing},
    )


@dataclass(slots=True)
class Topic:
    """A topic as its node has it."""

    topic_id: uuid.UUID
    partitions: dict[int, Assignment]


@dataclass(slots=True)
class ClusterContext:
    """Everything the controller decides by.

    Invariant: every key of `states` is a partition of a topic in `topics`. The reverse
    does not hold: a partition none of whose replicas was ever online has no state yet.
    """

    controller_id: int
    epoch: int
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    unreadable: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Topics whose nodes cannot be read, and the partitions that have a node.

    `topics` has those that were read before, as they were then.
    """
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    offline_replicas: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """Replicas of live brokers whose log is not usable (failed directory, damage)."""
    eligible_replicas: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """Replicas that may lead, as their brokers have said since they registered.

    Of partitions with several replicas.
    """
    shutting_down: set[int] = field(default_factory=set)

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield every partition, by topic and number."""
        for name in sorted(self.topics):
            yield from self.partitions_of(name)

    def partitions_of(self, topic: str) -> Iterator[TopicPartition]:
        """Yield the partitions of a topic, if there is such a topic."""
        known = self.topics.get(topic)
        for index in sorted(known.partitions if known else ()):
            yield TopicPartition(topic, index)

    def partitions_on(self, broker_id: int) -> Iterator[TopicPartition]:
        """Yield the partitions that have a replica on a broker."""
        for partition in self.partitions():
            if broker_id in self.assignment(partition).replicas:
                yield partition

    def assignment(self, partition: TopicPartition) -> Assignment:
        """Return the assignment of a known partition."""
        return self.topics[partition.topic].partitions[partition.partition]

    def knows(self, partition: TopicPartition) -> bool:
        """Tell whether the topic has this partition."""
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.partition in topic.partitions

    def is_replicated(self, partition: TopicPartition) -> bool:
        """Tell whether a known partition has several replicas."""
        return len(self.assignment(partition).replicas) > 1

    def is_online(self, broker_id: int, partition: TopicPartition) -> bool:
        """Tell whether a replica can serve: its broker lives and stays, its log is usable."""
        return (
            broker_id in self.brokers
            and broker_id not in self.shutting_down
            and (broker_id, partition) not in self.offline_replicas
        )

    def online(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the replicas that can serve, in assignment order."""
        return tuple(r for r in self.assignment(partition).replicas if self.is_online(r, partition))

    def offline(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the replicas that cannot serve, in assignment order."""
        replicas = self.assignment(partition).replicas
        return tuple(r for r in replicas if not self.is_online(r, partition))

    def is_eligible(self, broker_id: int, partition: TopicPartition) -> bool:
        """Tell whether a replica in sync is known to have all records. A lone one always leads.

        Otherwise the other members have to stay in sync when it is elected: should it refuse to
        lead, one of them has all acknowledged records.
        """
        return (broker_id, partition) in self.eligible_replicas or not self.is_replicated(partition)

    def brokers_in_turn(self) -> list[int]:
        """Return the live brokers, the controller's own last.

        It carries an order out before the next one is sent, and the others need not wait for that.
        """
        return sorted(self.brokers, key=lambda one: (one == self.controller_id, one))

    def topic_names(self) -> set[str]:
        """Return the names of all topics."""
        return {*self.topics, *self.unreadable}

    def names_by_id(self) -> dict[uuid.UUID, str]:
        """Return the names of topics by their ids."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def has_leader(self, partition: TopicPartition) -> bool:
        """Tell whether the partition has a leader that can serve."""
        state = self.states.get(partition)
        return (
            state is not None
            and state.leader != NO_LEADER
            and self.is_online(state.leader, partition)
            and not self.leader_has_returned(partition)
        )

    def is_led_by(self, broker_id: int, partition: TopicPartition) -> bool:
        """Tell whether a broker leads the partition, and can serve."""
        return self.has_leader(partition) and self.states[partition].leader == broker_id

    def leader_has_returned(self, partition: TopicPartition) -> bool:
        """Tell whether the leader has registered again since it was chosen.

        It may have lost what others copied from it. In its old epoch it would write other records
        at the same offsets, and epochs would not tell them apart. A lone replica has no others.
        """
        state = self.states[partition]
        return (
            state.leader in self.brokers
            and state.leader_broker_epoch != self.brokers[state.leader].epoch
            and self.is_replicated(partition)
        )

    def broker_epoch(self, broker_id: int) -> int:
        """Return the epoch of a broker's registration; -1 if it has none."""
        known = self.brokers.get(broker_id)
        return NO_EPOCH if known is None else known.epoch

    def drop_topic(self, name: str) -> None:
        """Forget a topic."""
        for partition in list(self.partitions_of(name)):
            self.states.pop(partition, None)
        for replicas in (self.offline_replicas, self.eligible_replicas):
            replicas.difference_update([one for one in replicas if one[1].topic == name])
        self.topics.pop(name, None)
        self.unreadable.pop(name, None)
