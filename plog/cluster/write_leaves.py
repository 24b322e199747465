"""Leave to begin transactions, given to the partitions that have just joined one.

Owns where it is given: in the log that this broker leads the partition by, if it has one. Never
decides who gets it or for how long: the transaction's coordinator does. No call waits for a disk.
"""

from __future__ import annotations

from collections.abc import Iterable

from plog.cluster.replica_manager import ReplicaManager
from plog.types import TopicPartition


class WriteLeaves:
    """For the event loop's thread.

    What is given is lost with the log, and by every change of the partition's leadership: then a
    write that begins a transaction is asked about when it comes.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def give(
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
                partition.hosted_log.transactions.give_leave(
                    producer_id, producer_epoch, transactional_id, connection
                )

    def is_used(self, at: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        """Tell whether a producer has begun a transaction in a partition."""
        partition = self._replicas.get(at)
        if partition is None or partition.hosted_log is None:
            return False
        return partition.hosted_log.transactions.has_begun(producer_id, producer_epoch)

    def take_back(self, partitions: Iterable[TopicPartition], producer_id: int) -> None:
        """Have a producer's writes asked about again."""
        for at in partitions:
            partition = self._replicas.get(at)
            if partition is not None and partition.hosted_log is not None:
                partition.hosted_log.transactions.end_leave(producer_id)
