"""Partitions on their way into a transaction, before the first batch for them goes out.

Owns which of them wait, and when the coordinator is asked again. For the sender's thread, on a
connection of its own.
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
    """What the sender has to have joined.

    Args:
        cluster: the sender's.

    Attributes:
        due: when (time.monotonic()) there is something to ask of itself.
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
        """Tell whether a partition is in the transaction; if not, it is asked for."""
        if self._progress.is_dropping:
            return False
        if queue.partition in self._progress.joined:
            return True
        self._wanted.add(queue.partition)
        queue.last_fault = queue.last_fault or self._fault
        return False

    def ask(self) -> bool:
        """Have what waits join, if it is time; tell whether it has."""
        wanted, self._wanted, self.due = self._wanted, set(), FOREVER
        if self._progress.is_dropping:
            # The next transaction waits for nothing that this one has waited for.
            self._failures, self._fault, self._ask_at = 0, None, 0.0
            return False
        if not wanted:
            return False
        if time.monotonic() < self._ask_at:
            self.due = self._ask_at
            return False
        if self._coordinator.opened_at < self._transactions.opened_at:
            # By an older connection than that of the last end a coordinator takes it for a request
            # of the transaction before, which has been on its way since.
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
        # The markers of the transaction before are waited for as a matter of course.
        if fault.code != ErrorCode.CONCURRENT_TRANSACTIONS and str(fault) != str(self._fault):
            log.warning("%s; trying again", fault)
        self._fault = fault

    def interrupt(self) -> None:
        """Make a wait for the coordinator end soon. Thread-safe."""
        self._coordinator.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._coordinator.forget()
