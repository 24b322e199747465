"""One topic on its way out: waiting, stopping, removing.

A pure machine for one topic; `topic_deletions` has one for each name under /admin/delete_topics,
and sends what the phases call for. Never touches the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from plog.types import TopicPartition


class Phase(Enum):
    """How far a deletion is."""

    WAITING = "waiting"  # a broker is away, or could not: deleting now would leave a replica
    STOPPING = "stopping"  # brokers were told to delete; some have not answered yet
    REMOVING = "removing"  # every replica is gone; the topic's nodes are being removed


class Step(Enum):
    """What moves a deletion on, or back."""

    REPLICAS_ONLINE = "brokers online"
    REPLICA_LOST = "replica lost"
    REPLICAS_DELETED = "replicas deleted"


TRANSITIONS: Final = {
    (Phase.WAITING, Step.REPLICAS_ONLINE): Phase.STOPPING,
    (Phase.STOPPING, Step.REPLICA_LOST): Phase.WAITING,
    (Phase.STOPPING, Step.REPLICAS_DELETED): Phase.REMOVING,
}
"""Any other step leaves the phase as it is."""


@dataclass(slots=True)
class TopicDeletion:
    """The deletion of one topic.

    Invariant: `left` is what brokers have not confirmed yet; it is empty but in STOPPING.
    `refused` is what a broker could not delete; asking it again before its next start
    would get the same answer.
    """

    name: str
    phase: Phase = Phase.WAITING
    left: set[tuple[int, TopicPartition]] = field(default_factory=set)
    refused: set[tuple[int, TopicPartition]] = field(default_factory=set)

    def _step(self, step: Step) -> bool:
        after = TRANSITIONS.get((self.phase, step))
        if after is None:
            return False
        self.phase = after
        return True

    def on_replicas_online(self, replicas: Iterable[tuple[int, TopicPartition]]) -> bool:
        """Every broker can be asked: start, if not started. Tells whether to send requests."""
        wanted = set(replicas)
        if wanted & self.refused or not self._step(Step.REPLICAS_ONLINE):
            return False
        self.left = wanted
        return True

    def on_broker_lost(self, broker_id: int) -> None:
        """A broker is gone: wait for it, unless it has confirmed all it had."""
        self.refused = {one for one in self.refused if one[0] != broker_id}
        if any(broker == broker_id for broker, _ in self.left) and self._step(Step.REPLICA_LOST):
            self.left = set()

    def on_refused(self, broker_id: int, partition: TopicPartition) -> None:
        """A broker could not delete a replica: wait until that may have changed."""
        if (broker_id, partition) in self.left and self._step(Step.REPLICA_LOST):
            self.refused.add((broker_id, partition))
            self.left = set()

    def on_usable(self, broker_id: int, partition: TopicPartition) -> None:
        """A replica has become usable again: it may be possible to delete it now."""
        self.refused.discard((broker_id, partition))

    def on_deleted(self, broker_id: int, partition: TopicPartition) -> bool:
        """A replica is gone. Tells whether it was the last: the nodes can be removed."""
        self.left.discard((broker_id, partition))
        return not self.left and self._step(Step.REPLICAS_DELETED)
