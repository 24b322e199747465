"""What this broker knows of the cluster: live brokers, topics, leaders.

Owns an immutable snapshot that UpdateMetadata replaces; readers take the snapshot once
and look things up in it, from any thread, without a lock. Never asks anybody: it
knows what the controller has told, no more.

Absence is not deletion: a topic whose node is unreadable is one that the controller can name, and
no more. `MetadataSnapshot.is_deleted` is the rule.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import FULL
from plog.cluster.znodes import LEADER_DURING_DELETE, NO_LEADER, SECURITY_PROTOCOLS, Endpoint
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.replication import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from plog.types import ZERO_UUID, TopicPartition

_PROTOCOL_NAMES = {number: name for name, number in SECURITY_PROTOCOLS.items()}


class BrokerMetadata(NamedTuple):
    """A live broker; clients are told the endpoint of the listener they came in by."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return where the broker is reached through a listener, if it has it."""
        return self.endpoints.get(listener)


class PartitionMetadata(NamedTuple):
    """A partition as clients are told; `leader_id` -1: nobody leads."""

    partition_index: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    partition_epoch: int


class TopicMetadata(NamedTuple):
    """A topic and its partitions by number."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster at one moment. `version` counts the updates that led here."""

    version: int = 0
    controller_id: int = -1
    controller_epoch: int = -1
    brokers: Mapping[int, BrokerMetadata] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    topic_names: Mapping[uuid.UUID, str] = field(default_factory=dict)
    untold: frozenset[str] = frozenset()
    """Topics that exist, and of which this broker knows nothing else."""
    is_complete: bool = False
    """Whether the controller has named all topics since this broker started."""

    @property
    def live_controller_id(self) -> int:
        """The controller, if it is a live broker; else -1."""
        return self.controller_id if self.controller_id in self.brokers else -1

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """Return a partition, or None if it is not known."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def is_deleted(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a partition that once existed does so no more, by what the controller said.

        A topic that was created again may have fewer partitions than the one before.
        """
        is_named = topic_partition.topic in self.untold
        return self.is_complete and not is_named and self.partition(topic_partition) is None

    def leader_of(self, topic_partition: TopicPartition) -> int:
        """Return the id of a partition's leader; -1 if nobody leads it or it is not known."""
        found = self.partition(topic_partition)
        return NO_LEADER if found is None else found.leader_id

    def has_leaders(self, topic: str, partition_count: int) -> bool:
        """Tell whether a topic has so many partitions, each with a leader."""
        known = self.topics.get(topic)
        return known is not None and all(
            index in known.partitions and known.partitions[index].leader_id != NO_LEADER
            for index in range(partition_count)
        )


class MetadataCache:
    """The present snapshot, and who wants to know of the next.

    `apply` is called by one thread at a time (the controller's, or the one that takes
    orders from a controller elsewhere); everything else may be called from any thread.
    """

    def __init__(self, fence: ControlFence) -> None:
        self._fence = fence
        self._snapshot = MetadataSnapshot()
        self._changed = threading.Condition()
        self._listeners: tuple[Callable[[MetadataSnapshot], None], ...] = ()

    # -- lookups -----------------------------------------------------------------------------

    @property
    def snapshot(self) -> MetadataSnapshot:
        """The cluster as known now. Take it once for lookups that belong together."""
        return self._snapshot

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic by name."""
        return self._snapshot.topics.get(name)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id."""
        return self._snapshot.topic_names.get(topic_id)

    def leader(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """Return a partition that has a leader; None if it is unknown or nobody leads it."""
        found = self._snapshot.partition(topic_partition)
        return None if found is None or found.leader_id == NO_LEADER else found

    def contains(self, topic_partition: TopicPartition) -> bool:
        """Tell whether the partition exists, as far as this broker was told."""
        return self._snapshot.partition(topic_partition) is not None

    def is_deleted(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a partition that once existed does so no more."""
        return self._snapshot.is_deleted(topic_partition)

    # -- updates -----------------------------------------------------------------------------

    def apply(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Take up what the controller says: all brokers, and the topics it names, or all topics.

        A full update names all topics that exist. What this broker knows of one stays, if the
        update says nothing of its partitions.
        """
        try:
            self._fence.admit(request.controller_epoch, request.broker_epoch)
        except KafkaError as refusal:
            return UpdateMetadataResponse(error_code=refusal.code)
        before = self._snapshot
        topics, names, untold = dict(before.topics), dict(before.topic_names), set(before.untold)
        is_full = request.type == FULL
        if is_full:
            named = {one.topic_name for one in request.topic_states if not one.partition_states}
            topics = {name: one for name, one in topics.items() if name in named}
            names = {topic_id: name for topic_id, name in names.items() if name in named}
            untold = named - topics.keys()
        for state in request.topic_states:
            if state.partition_states:
                untold.discard(state.topic_name)
                _update_topic(
                    topics, names, state.topic_name, state.topic_id, state.partition_states
                )
        brokers = {
            broker.id: BrokerMetadata(
                broker.id,
                MappingProxyType(
                    {
                        end.listener: Endpoint(
                            end.listener,
                            end.host,
                            end.port,
                            _PROTOCOL_NAMES.get(end.security_protocol, "PLAINTEXT"),
                        )
                        for end in broker.endpoints
                    }
                ),
                broker.rack,
            )
            for broker in request.live_brokers
        }
        after = MetadataSnapshot(
            before.version + 1,
            request.controller_id,
            request.controller_epoch,
            MappingProxyType(brokers),
            MappingProxyType(topics),
            MappingProxyType(names),
            frozenset(untold),
            before.is_complete or is_full,
        )
        with self._changed:
            self._snapshot = after
            self._changed.notify_all()
            listeners = self._listeners
        for listener in listeners:
            listener(after)
        return UpdateMetadataResponse(error_code=ErrorCode.NONE)

    # -- waiting -----------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[MetadataSnapshot], None]) -> Callable[[], None]:
        """Have `listener` called after each update, on the updating thread. Returns its cancel."""
        with self._changed:
            self._listeners = (*self._listeners, listener)

        def cancel() -> None:
            with self._changed:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return cancel

    def wait_until(self, predicate: Callable[[MetadataSnapshot], bool], timeout_s: float) -> bool:
        """Block until a snapshot satisfies `predicate`; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: predicate(self._snapshot), timeout_s)

    async def until(self, predicate: Callable[[MetadataSnapshot], bool], timeout_s: float) -> bool:
        """Wait, inside an asyncio loop, as `wait_until` does."""
        loop = asyncio.get_running_loop()
        satisfied = asyncio.Event()

        def look(snapshot: MetadataSnapshot) -> None:
            if predicate(snapshot):
                loop.call_soon_threadsafe(satisfied.set)

        cancel = self.subscribe(look)
        try:
            if predicate(self._snapshot):
                return True
            async with asyncio.timeout(timeout_s):
                await satisfied.wait()
            return True
        except TimeoutError:
            return predicate(self._snapshot)
        finally:
            cancel()


def _update_topic(
    topics: dict[str, TopicMetadata],
    names: dict[uuid.UUID, str],
    name: str,
    topic_id: uuid.UUID,
    states: list[UpdateMetadataPartitionState],
) -> None:
    known = topics.get(name)
    # A topic with another id is another topic: nothing of the old one remains.
    if known is not None and known.topic_id != topic_id:
        names.pop(known.topic_id, None)
        known = None
    partitions = dict(known.partitions) if known else {}
    for state in states:
        if state.leader == LEADER_DURING_DELETE:
            partitions.pop(state.partition_index, None)
            continue
        partitions[state.partition_index] = PartitionMetadata(
            state.partition_index,
            state.leader,
            state.leader_epoch,
            tuple(state.replicas),
            tuple(state.isr),
            tuple(state.offline_replicas),
            state.zk_version,
        )
    if partitions:
        topics[name] = TopicMetadata(name, topic_id, MappingProxyType(partitions))
        if topic_id != ZERO_UUID:
            names[topic_id] = name
    else:
        topics.pop(name, None)
        names.pop(topic_id, None)
