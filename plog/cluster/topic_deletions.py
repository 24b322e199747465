"""The topics that the controller deletes, and what it sends to brokers for it.

Owns which deletions there are. `topic_deletion` knows how far each one is.
"""

from __future__ import annotations

from collections.abc import Iterable

from plog.cluster.announcements import update_metadata, updates_as_deleted
from plog.cluster.controller_context import ClusterContext
from plog.cluster.controller_events import (
    Effect,
    RemoveTopic,
    SendStopReplica,
    StopReplicaAnswered,
)
from plog.cluster.topic_deletion import Phase, TopicDeletion
from plog.types import TopicPartition

EPOCH_DURING_DELETE = -2
"""Leader epoch of a StopReplica that belongs to a deletion: newer than any."""


class TopicDeletions:
    """The deletions of a controller, by the names of their topics."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self.by_name: dict[str, TopicDeletion] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def announced(self) -> set[str]:
        """Return the names of the topics whose deletion brokers have heard of."""
        return {name for name, one in self.by_name.items() if one.phase is not Phase.WAITING}

    # -- their life ----------------------------------------------------------------------------

    def begin(self, names: Iterable[str]) -> None:
        """Begin the deletions of known topics that are new."""
        for name in sorted(self._context.topics.keys() & names):
            self.by_name.setdefault(name, TopicDeletion(name))

    def end(self, name: str) -> None:
        """Forget a topic whose nodes this controller has removed."""
        if deletion := self.by_name.pop(name, None):
            assert deletion.phase is Phase.REMOVING

    def give_up(self, name: str) -> bool:
        """Forget a topic whose nodes another has removed; return whether it was being deleted."""
        return self.by_name.pop(name, None) is not None

    # -- what brokers are sent -----------------------------------------------------------------

    def resume(self) -> list[Effect]:
        """Have replicas deleted where all their brokers can be asked."""
        effects: list[Effect] = []
        for name, deletion in sorted(self.by_name.items()):
            effects += self._resume(name, deletion)
        return effects

    def _resume(self, name: str, deletion: TopicDeletion) -> list[Effect]:
        context = self._context
        replicas = [
            (replica, tp)
            for tp in context.partitions_of(name)
            for replica in context.assignment(tp).replicas
        ]
        # A broker can delete a replica that it cannot serve, a damaged one say.
        if not all(replica in context.brokers for replica, _ in replicas):
            return []
        if not deletion.on_replicas_online(replicas):
            return []
        effects = update_metadata(context, context.brokers, updates_as_deleted(context, name))
        for delete in (False, True):
            for broker_id in sorted({replica for replica, _ in replicas}):
                mine = tuple(tp for replica, tp in replicas if replica == broker_id)
                effects.append(_stop_replica(broker_id, mine, delete=delete))
        return effects

    def delete_unreadable(self, names: Iterable[str]) -> list[Effect]:
        """Delete topics of which only the partitions' numbers are known: any broker may have one.

        A broker that is away sets its logs aside when it starts (`stray_logs`).
        """
        effects: list[Effect] = []
        context = self._context
        unknown = context.unreadable.keys() - context.topics.keys()
        for name in sorted(unknown & set(names)):
            partitions = tuple(TopicPartition(name, one) for one in context.unreadable[name])
            to = sorted(context.brokers) if partitions else []
            effects += [_stop_replica(one, partitions, delete=True) for one in to]
            effects.append(RemoveTopic(name))
        return effects

    # -- what brokers say ----------------------------------------------------------------------

    def on_broker_lost(self, broker_id: int) -> None:
        """A broker is gone."""
        for deletion in self.by_name.values():
            deletion.on_broker_lost(broker_id)

    def on_usable(self, broker_id: int, partition: TopicPartition) -> None:
        """A replica has become usable again."""
        if deletion := self.by_name.get(partition.topic):
            deletion.on_usable(broker_id, partition)

    def on_stop_replica_answered(self, event: StopReplicaAnswered) -> list[Effect]:
        """Count the replicas that are gone; with the last one the topic's nodes go."""
        for partition in event.failed:
            if deletion := self.by_name.get(partition.topic):
                deletion.on_refused(event.broker_id, partition)
        done = [
            deletion.name
            for partition in event.deleted
            if (deletion := self.by_name.get(partition.topic))
            and deletion.on_deleted(event.broker_id, partition)
        ]
        return [RemoveTopic(name) for name in done]


def _stop_replica(
    broker_id: int, partitions: tuple[TopicPartition, ...], *, delete: bool
) -> SendStopReplica:
    epochs = (EPOCH_DURING_DELETE,) * len(partitions)
    return SendStopReplica(broker_id, partitions, epochs, delete)
