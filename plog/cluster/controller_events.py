"""The controller's vocabulary: what happens to its machine, and what it wants done.

Plain values, so that a scenario can write them down and compare them. No behaviour.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from plog.cluster.controller_context import Assignment, LiveBroker, PartitionState
from plog.cluster.znodes import TopicNode
from plog.errors import ErrorCode
from plog.types import TopicPartition


class ElectionType(Enum):
    """Kafka's kinds of elections an administrator can ask for (ElectLeaders)."""

    PREFERRED = 0
    UNCLEAN = 1


class StateWrite(NamedTuple):
    """A state to write over the one at `expected_epoch`; None: the partition has none yet."""

    partition: TopicPartition
    state: PartitionState
    expected_epoch: int | None


class PartitionUpdate(NamedTuple):
    """A partition as LeaderAndIsr and UpdateMetadata tell it."""

    partition: TopicPartition
    topic_id: uuid.UUID
    state: PartitionState
    assignment: Assignment
    offline: tuple[int, ...] = ()
    is_new: bool = False


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failover:
    """This broker has become the controller, and its context is loaded."""

    deletions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BrokersRead:
    """The live brokers, all of them."""

    brokers: Mapping[int, LiveBroker]


@dataclass(frozen=True, slots=True)
class TopicNamesRead:
    """The names of all topics."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class TopicsRead:
    """Assignments of some topics; None where the node is gone again.

    `unreadable`: topics whose nodes cannot be read, and the partitions that have a node.
    """

    topics: Mapping[str, TopicNode | None]
    unreadable: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeletionsRead:
    """The topics whose deletion is asked for, all of them."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """What became of a WriteStates: the written ones, and what the others hold instead."""

    written: tuple[StateWrite, ...]
    conflicts: Mapping[TopicPartition, PartitionState | None]
    token: int | None = None


@dataclass(frozen=True, slots=True)
class StatesRead:
    """The states of some partitions; None where there is none (yet)."""

    states: Mapping[TopicPartition, PartitionState | None]


@dataclass(frozen=True, slots=True)
class UncleanRead:
    """For each topic asked about, whether it allows unclean elections."""

    allowed: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered:
    """Which replicas a broker could and could not take up.

    `incomplete`: those of `online` that may lack records, and refuse to lead.
    """

    broker_id: int
    broker_epoch: int
    online: tuple[TopicPartition, ...]
    offline: tuple[TopicPartition, ...]
    incomplete: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainAnswered:
    """A leader has drained partitions, or its followers are too slow."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DrainsEnded:
    """The leader of partitions has drained them, or is gone and no longer has to."""

    partitions: tuple[TopicPartition, ...]
    went_on: tuple[ShutdownAsked | ElectionsAsked | IsrsProposed, ...] = ()
    """The questions that have heard of it."""


@dataclass(frozen=True, slots=True)
class StopReplicaAnswered:
    """Which replicas a broker has deleted, and which it could not."""

    broker_id: int
    broker_epoch: int
    deleted: tuple[TopicPartition, ...]
    failed: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """The nodes of a deleted topic are gone."""

    name: str


@dataclass(frozen=True, slots=True)
class LogDirFailed:
    """Brokers say that they have lost a log directory."""

    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectionsAsked:
    """An administrator asks for elections: of these partitions, or of all (None).

    `token` names the question in the Reply; None: nobody waits.
    """

    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None
    token: int | None = None


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """A broker is about to stop and wants its leaderships moved."""

    broker_id: int
    broker_epoch: int
    token: int


class ProposedIsr(NamedTuple):
    """An in-sync set as a leader proposes it, over the state that the leader knows.

    `broker_epochs`: those that the leader saw of its members, -1 where it does not know (KIP-903).
    """

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = 0


@dataclass(frozen=True, slots=True)
class IsrsProposed:
    """A leader proposes in-sync sets (AlterPartition). The answer has the states that follow."""

    broker_id: int
    broker_epoch: int
    isrs: Mapping[TopicPartition, ProposedIsr]
    token: int


@dataclass(frozen=True, slots=True)
class ReassignmentsAsked:
    """An administrator moves partitions to these replicas; None: the move is to be given up."""

    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    token: int
    may_change_factor: bool = True


@dataclass(frozen=True, slots=True)
class MovesAsked:
    """An administrator asks which partitions move: of these, or of all (None)."""

    partitions: tuple[TopicPartition, ...] | None
    token: int


class AssignmentWrite(NamedTuple):
    """What a topic's node is to say of a partition, in place of what it said."""

    partition: TopicPartition
    assignment: Assignment
    expected: Assignment


@dataclass(frozen=True, slots=True)
class AssignmentsWritten:
    """What became of a WriteAssignments: those that are written, and what the others' nodes say."""

    written: tuple[AssignmentWrite, ...]
    found: Mapping[TopicPartition, Assignment]
    token: int | None = None


@dataclass(frozen=True, slots=True)
class BalanceTick:
    """Time to look whether preferred leaders should lead again."""

    imbalance_percentage: int


@dataclass(frozen=True, slots=True)
class InternalTopicsTick:
    """Time to look whether the brokers' own topics have as many replicas as these say."""

    factors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UncleanEnabled:
    """Unclean elections were switched on: for a topic, or by default (None)."""

    topic: str | None


Event: TypeAlias = (
    Failover
    | BrokersRead
    | TopicNamesRead
    | TopicsRead
    | DeletionsRead
    | StatesWritten
    | StatesRead
    | UncleanRead
    | LeaderAndIsrAnswered
    | DrainAnswered
    | DrainsEnded
    | StopReplicaAnswered
    | TopicRemoved
    | LogDirFailed
    | ElectionsAsked
    | ShutdownAsked
    | IsrsProposed
    | ReassignmentsAsked
    | MovesAsked
    | AssignmentsWritten
    | BalanceTick
    | InternalTopicsTick
    | UncleanEnabled
)


Outcome: TypeAlias = ErrorCode | PartitionState


# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Write partition states, fenced by the controller epoch. Answered by StatesWritten."""

    writes: tuple[StateWrite, ...]
    token: int | None = None


@dataclass(frozen=True, slots=True)
class WriteAssignments:
    """Write assignments into topics' nodes, fenced. Answered by AssignmentsWritten.

    `why`: to be logged; without it an administrator has asked, or a move has ended.
    """

    writes: tuple[AssignmentWrite, ...]
    token: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """Tell a broker what it leads and follows. Answered by LeaderAndIsrAnswered, later.

    `drains`: it is to drain those that it leads, as another broker leads next. Answered by
    DrainAnswered.
    """

    broker_id: int
    partitions: tuple[PartitionUpdate, ...]
    live_leaders: tuple[LiveBroker, ...]
    drains: bool = False


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """Tell brokers about the cluster: all live brokers and some partitions, or all of them.

    `is_full`: other topics do not exist. A broker that was away has missed deletions.
    `untold`: topics that do exist, of which brokers keep what they know.
    """

    broker_ids: tuple[int, ...]
    partitions: tuple[PartitionUpdate, ...]
    live_brokers: tuple[LiveBroker, ...]
    is_full: bool = False
    untold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    """Tell a broker to stop replicas, and to delete them. Answered later if it deletes."""

    broker_id: int
    partitions: tuple[TopicPartition, ...]
    leader_epochs: tuple[int, ...]
    delete: bool


@dataclass(frozen=True, slots=True)
class LoadTopics:
    """Watch and read these topics. Answered by TopicsRead."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadStates:
    """Read the states of these partitions. Answered by StatesRead."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LoadUnclean:
    """Read whether these topics allow unclean elections. Answered by UncleanRead."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Remove the nodes of a topic whose replicas are all deleted. Answered by TopicRemoved."""

    name: str


@dataclass(frozen=True, slots=True)
class DropDeletions:
    """Remove requests to delete topics that do not exist."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadDeletions:
    """Read again which deletions are requested. Answered by DeletionsRead, later."""


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Start talking to a broker."""

    broker: LiveBroker


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """Stop talking to a broker; requests not yet answered never will be."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to whoever holds the token: a code per partition, or one for the whole question.

    To ShutdownAsked: the partitions that the broker still leads, each with NONE. To IsrsProposed:
    the state of a partition whose in-sync set is as proposed. To MovesAsked: the assignments.
    """

    token: int
    results: Mapping[TopicPartition, Outcome | Assignment]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Feed:
    """Give this event to the machine once the effects before it, and their answers, are done."""

    event: Event


Effect: TypeAlias = (
    WriteStates
    | WriteAssignments
    | SendLeaderAndIsr
    | SendUpdateMetadata
    | SendStopReplica
    | LoadTopics
    | LoadStates
    | LoadUnclean
    | RemoveTopic
    | DropDeletions
    | ReadDeletions
    | OpenChannel
    | CloseChannel
    | Reply
    | Feed
)
