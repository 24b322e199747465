"""The replicas that this broker has refused, by what must change before it can take them up.

Owns the reasons. Never asks the controller again: `replica_manager` does, which repeats its orders.

Threads: changed under the replica manager's lock; read by any.
"""

from __future__ import annotations

from collections.abc import Iterable

from plog.errors import KafkaStorageError
from plog.storage.file_errors import is_refusal
from plog.types import TopicPartition


class RefusedReplicas:
    """Replicas that were refused, and why."""

    def __init__(self) -> None:
        self._without_space: set[TopicPartition] = set()
        self._lost: set[TopicPartition] = set()
        self._recovered: set[TopicPartition] = set()

    def lacked_space(self, at: TopicPartition) -> bool:
        """Whether only space or file descriptors were missing."""
        return at in self._without_space

    def without_space(self, topic: str | None = None) -> list[TopicPartition]:
        """Return those that lack space or file descriptors, of one topic or of all."""
        return sorted(at for at in list(self._without_space) if topic in (None, at.topic))

    def is_lost(self, at: TopicPartition) -> bool:
        """Whether its log is gone, and there was no leader from which it could be copied."""
        return at in self._lost

    def may_come_again(self, at: TopicPartition) -> bool:
        """Whether an order that was refused may come once more, in the same leader epoch."""
        return at in self._without_space or at in self._lost or at in self._recovered

    def on_lost(self, at: TopicPartition) -> None:
        """Its log is gone; the next leader can give all of it back."""
        self._lost.add(at)

    def on_failure(self, at: TopicPartition, failure: KafkaStorageError) -> None:
        """Its log cannot be used."""
        self._recovered.discard(at)
        cause = failure.__cause__
        if isinstance(cause, OSError) and is_refusal(cause):
            self._without_space.add(at)
        else:
            self._without_space.discard(at)

    def on_recovered(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Logs that these were refused for have been recovered since."""
        self._recovered.update(topic_partitions)

    def forget(self, at: TopicPartition) -> None:
        """It was taken up, or deleted."""
        for refused in (self._without_space, self._lost, self._recovered):
            refused.discard(at)
