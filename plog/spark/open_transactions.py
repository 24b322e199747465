"""The transactions that tasks leave open: which there are, and how they are ended by others.

Owns the requests. Who may end which, and when, `two_phases` says.
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
"""Of its timeout, or a quarter of that, each transaction must have left when its batch is decided:
a coordinator may move, and who decides may die, before the last of them is committed."""
MAX_ABORT_DELAY_MS = 60_000
"""Coordinators abort what has taken too long within so long. One that is open for longer still was
not begun when it seems: the clocks of driver and broker differ."""


class TransactionLost(PlogError):
    """A task's transaction is not open any more, or not for long: its batch cannot stand."""


class OpenTransactions:
    """Those of the tasks of one query.

    Args:
        link: to the brokers.
        prefix: what their transactional ids begin with.
    """

    def __init__(self, link: Link, options: SinkOptions, prefix: str) -> None:
        self._link, self._options, self._prefix = link, options, prefix

    def list_open(self) -> dict[PreparedTransaction, int | None]:
        """Return those that nobody has decided to end, and when each was begun (ms since 1970).

        Raises:
            KafkaError: a broker does not say for as long as a request may take.
        """
        return self._link.patiently(self._list_open)

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
        """Look whether all of these are among those that are open, and will be for long enough.

        Raises:
            TransactionLost: one is not.
        """
        timeout_ms = self._options.transaction_timeout_ms
        least_ms = min(MIN_LEFT_MS, timeout_ms // 4)
        now_ms = time.time_ns() // 1_000_000
        for one in wanted:
            if one not in listed:
                why = "is not open any more"
            else:
                started_ms = listed[one]
                left_ms = timeout_ms if started_ms is None else started_ms + timeout_ms - now_ms
                if not -MAX_ABORT_DELAY_MS < left_ms < least_ms:
                    continue
                why = f"is open for {max(left_ms, 0)} ms more alone, too little to be sure of"
            raise TransactionLost(
                f"the transaction of {one.transactional_id} {why}; a batch has to be written and"
                f" committed within kafka.transaction.timeout.ms={timeout_ms}, which begins with"
                " the first record that a task writes"
            )

    def commit(
        self, transactions: Iterable[PreparedTransaction]
    ) -> list[tuple[PreparedTransaction, KafkaError]]:
        """Commit these; done again, it changes nothing.

        Returns those that ended otherwise before, with what their coordinator said.

        Raises:
            KafkaError: a coordinator does not answer; some may be committed.
        """
        torn: list[tuple[PreparedTransaction, KafkaError]] = []
        for one in transactions:
            try:
                self._link.transactions.end(one, commit=True)
            except (ProducerFenced, InvalidTxnState) as fault:
                torn.append((one, fault))
            except KafkaError as fault:
                if fault.code != ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                    raise
                # Ids that nobody uses are forgotten after days, when nothing of them is open.
                log.warning(
                    "the transaction of %s has ended days ago; whether it was committed, nobody "
                    "knows any more",
                    one.transactional_id,
                )
        return torn

    def abort(self, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort these, unless they have ended; their timeout does, where that cannot be asked."""
        for one in transactions:
            try:
                self._link.transactions.end(one, commit=False)
            except KafkaError as fault:
                log.info("%s is not aborted: %s", one.transactional_id, fault)
