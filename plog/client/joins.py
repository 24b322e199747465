"""Add partitions to a transaction before their first batch is sent.

Owns which partitions wait, and when the coordinator is asked again. Used by the sender's thread, on
a connection of its own.
"""

from __future__ import annotations

import logging
import random
import time

from plog.client.accumulator import FOREVER, PartitionQueue
from plog.client.metadata import Cluster
from plog.client.transactions import FIRST_BACKOFF_S, MAX_BACKOFF_S, Transactions
from plog.errors import ErrorCode, KafkaError, PlogError
from plog.types import TopicPartition

log = logging.getLogger(__name__)


class Joins:
    """The partitions that the sender wants to add to the transaction.

    Args:
        cluster: the sender's.

    Attributes:
        due: the time (time.monotonic()) of the next attempt.
    """

    def __init__(self, transactions: Transactions, cluster: Cluster) -> None:
        self._transactions = transactions
        self._progress = transactions.progress
        self._coordinator = transactions.coordinator_by(cluster)
        self._wanted: set[TopicPartition] = set()
        self._failures = 0  # in a row
        self._ask_at = 0.0
        self._fault: KafkaError | None = None
        self.due = FOREVER

    def may_send(self, queue: PartitionQueue) -> bool:
        """Return whether a partition is in the transaction; if not, note it for `ask`."""
        if self._progress.is_dropping:
            return False
        if queue.partition in self._progress.joined:
            return True
        self._wanted.add(queue.partition)
        queue.last_fault = queue.last_fault or self._fault
        return False

    def ask(self) -> bool:
        """Add the waiting partitions, if it is time; return whether that succeeded."""
        wanted, self._wanted, self.due = self._wanted, set(), FOREVER
        if self._progress.is_dropping:
            # The next transaction does not wait for this one's partitions.
            self._failures, self._fault, self._ask_at = 0, None, 0.0
            return False
        if not wanted:
            return False
        if time.monotonic() < self._ask_at:
            self.due = self._ask_at
            return False
        if not self._transactions.is_older_than(self._coordinator):
            # On a connection older than that of the last end, a coordinator would take the request
            # for a delayed one of the previous transaction.
            self._coordinator.forget()
        try:
            self._transactions.join(self._coordinator, wanted)
        except PlogError as fault:
            if isinstance(fault, KafkaError) and fault.retriable:
                self._back_off(fault)
            else:
                self._progress.fail(fault, is_unsure=False)
            return False
        self._failures, self._fault = 0, None
        return True

    def _back_off(self, fault: KafkaError) -> None:
        backoff_s = min(FIRST_BACKOFF_S * 2**self._failures, MAX_BACKOFF_S)
        self._ask_at = self.due = time.monotonic() + backoff_s * random.uniform(0.8, 1.2)
        self._failures = min(self._failures + 1, 10)
        # No warning for the usual wait for the markers of the previous transaction.
        if fault.code != ErrorCode.CONCURRENT_TRANSACTIONS and str(fault) != str(self._fault):
            log.warning("%s; trying again", fault)
        self._fault = fault

    def interrupt(self) -> None:
        """End a wait for the coordinator. Thread-safe."""
        self._coordinator.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._coordinator.forget()
