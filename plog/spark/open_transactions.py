"""The transactions that tasks leave open: lists, checks, commits and aborts them.

Owns the requests. `two_phases` decides which transactions may be ended, and when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from plog.client.transaction_admin import ONGOING
from plog.client.transaction_states import PreparedTransaction
from plog.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    PlogError,
    ProducerFenced,
    TransactionalIdNotFound,
)
from plog.spark.links import Link
from plog.spark.sink_options import SinkOptions

log = logging.getLogger(__name__)

MIN_LEFT_MS = 60_000
"""Each transaction needs this much of its timeout left (or a quarter of it) when its batch is
decided: a coordinator may move, or the driver die, before the last one is committed."""
MAX_ABORT_DELAY_MS = 60_000
"""Coordinators abort a timed-out transaction within this time. If one is open for even longer, its
start time is wrong: the clocks of driver and broker differ."""


class TransactionLost(PlogError):
    """A task's transaction has ended, or will soon: its batch cannot be committed."""


class OpenTransactions:
    """The open transactions of one query's tasks.

    Args:
        link: the connections to the brokers.
        prefix: the common prefix of their transactional ids.
    """

    def __init__(self, link: Link, options: SinkOptions, prefix: str) -> None:
        self._link, self._options, self._prefix = link, options, prefix

    def list_open(self) -> dict[PreparedTransaction, int | None]:
        """Return the ongoing transactions, with the start time of each (ms since 1970).

        Raises:
            KafkaError: a broker does not respond within the request timeout.
        """
        return self._link.retry(self._list_open)

    def _list_open(self) -> dict[PreparedTransaction, int | None]:
        found = {}
        admin = self._link.transactions
        for listed in admin.transactions(states=[ONGOING]):
            if not listed.transactional_id.startswith(self._prefix):
                continue
            try:
                now = admin.describe(listed.transactional_id)
            except TransactionalIdNotFound:
                continue
            if now.state == ONGOING:
                one = now.transactional_id, now.producer_id, now.producer_epoch
                found[PreparedTransaction(*one)] = now.started_ms
        return found

    def check(
        self,
        wanted: Iterable[PreparedTransaction],
        listed: Mapping[PreparedTransaction, int | None],
    ) -> None:
        """Check that all of these are open, with enough of their timeout left.

        Raises:
            TransactionLost: one is not.
        """
        timeout_ms = self._options.transaction_timeout_ms
        least_ms = min(MIN_LEFT_MS, timeout_ms // 4)
        now_ms = time.time_ns() // 1_000_000
        for one in wanted:
            if one not in listed:
                why = "is no longer open"
            else:
                started_ms = listed[one]
                left_ms = timeout_ms if started_ms is None else started_ms + timeout_ms - now_ms
                if not -MAX_ABORT_DELAY_MS < left_ms < least_ms:
                    continue
                why = f"has only {max(left_ms, 0)} ms left, too little to commit it safely"
            raise TransactionLost(
                f"transaction {one.transactional_id} {why}: the batch took too long for "
                f"kafka.transaction.timeout.ms={timeout_ms}, counted from a task's first record. "
                "Use smaller batches (maxOffsetsPerTrigger), or raise the option and the broker's "
                "transaction.max.timeout.ms"
            )

    def commit(
        self, transactions: Iterable[PreparedTransaction]
    ) -> list[tuple[PreparedTransaction, KafkaError]]:
        """Commit these transactions; idempotent.

        Returns those that were aborted before, with the coordinator's error.

        Raises:
            KafkaError: a coordinator does not respond; some may be committed.
        """
        aborted: list[tuple[PreparedTransaction, KafkaError]] = []
        for one in transactions:
            try:
                self._link.transactions.end(one, commit=True)
            except (ProducerFenced, InvalidTxnState) as fault:
                aborted.append((one, fault))
            except KafkaError as fault:
                if fault.code != ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                    raise
                # Brokers forget unused ids after days, once their transactions have ended.
                log.warning(
                    "plog sink: outcome of transaction %s is unknown: it ended days ago, and the "
                    "brokers have expired its id (transactional.id.expiration.ms)",
                    one.transactional_id,
                )
        return aborted

    def abort(self, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort these unless they have ended; where that fails, their timeout aborts them."""
        for one in transactions:
            try:
                self._link.transactions.end(one, commit=False)
            except KafkaError as fault:
                log.info("cannot abort transaction %s: %s", one.transactional_id, fault)
