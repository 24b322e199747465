"""The transactions in the partitions that this broker leads, for their coordinator.

Finds the log of each partition. The coordinator decides which guards are granted, and for how long.
"""

from __future__ import annotations

from collections.abc import Iterable

from plog.cluster.replica_manager import ReplicaManager
from plog.types import TopicPartition


class LedTransactions:
    """For the event loop's thread.

    A guard that was granted ahead is lost with the log, and by every change of the partition's
    leadership. Then the coordinator is asked when the write comes that begins a transaction.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def leads(self, at: TopicPartition) -> bool:
        """Return whether this broker leads a partition now."""
        partition = self._replicas.get(at)
        return partition is not None and partition.is_leader

    def grant_ahead(
        self,
        partitions: Iterable[TopicPartition],
        producer_id: int,
        producer_epoch: int,
        transactional_id: str,
        connection: int,
    ) -> None:
        """Let a producer begin its transaction in partitions, by what comes by a connection."""
        for at in partitions:
            partition = self._replicas.get(at)
            if partition is not None and partition.is_leader and partition.hosted_log is not None:
                partition.hosted_log.transactions.grant_ahead(
                    producer_id, producer_epoch, transactional_id, connection
                )

    def revoke(self, partitions: Iterable[TopicPartition], producer_id: int) -> None:
        """Have the coordinator asked about a producer's writes again."""
        for at in partitions:
            partition = self._replicas.get(at)
            if partition is not None and partition.hosted_log is not None:
                partition.hosted_log.transactions.revoke(producer_id)

    def has_begun(self, at: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a producer has begun a transaction in a partition that is led here."""
        partition = self._replicas.get(at)
        if partition is None or not partition.is_leader or partition.hosted_log is None:
            return False
        return partition.hosted_log.transactions.has_begun(producer_id, producer_epoch)

    def has_open(self, at: TopicPartition, producer_id: int) -> bool:
        """Return whether a producer has a transaction of any epoch open in a partition.

        Raises:
            UnknownTopicOrPartition, NotLeaderOrFollower, KafkaStorageError: it is unknown.
        """
        return self._replicas.leader(at).log.transactions.has_open(producer_id)
