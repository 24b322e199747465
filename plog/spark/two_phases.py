"""Batches that stand as a whole: who enters, decides, commits and gives up, on real brokers.

Owns the order of the steps, by which nothing that is decided is aborted and nothing that is not is
committed, whoever dies in between; what follows from a record is `decisions`'. Knows neither Spark
nor rows.

Why nothing that somebody still writes is aborted by who cleans up: what is open is listed before
the one who decides is replaced, when no task of a later run can have begun, and each transaction is
ended by its own numbers. One that its transactional id's next producer has begun has others. That
nobody had been replaced shows when the decision is written, or in the last one, read afterwards.

What is opened later, by an attempt that is late, that attempt aborts itself (`is_late`), or who has
decided does, once everybody can see that. If both die over it, the next batch does, or the next
run, or the transaction's timeout.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable
from typing import Protocol

from plog.client.transaction_states import PreparedTransaction
from plog.errors import PlogError, ProducerFenced
from plog.spark.checkpoint import plan_of
from plog.spark.decision_log import DecisionLog, DecisionWriter
from plog.spark.decisions import (
    BatchStatus,
    Decision,
    batch_status,
    commit_batch,
    has_other_plan,
    register_run,
    task_id_prefix,
)
from plog.spark.links import Link
from plog.spark.open_transactions import OpenTransactions, TransactionLost
from plog.spark.sink_options import SinkOptions

log = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 120.0
"""How long a task tries to enter its run while others of it do."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0
"""At most, before a task tries again."""


class PartialCommit(PlogError):
    """A batch stands, but a transaction of it was aborted before anybody committed it.

    It takes everybody who could have committed it to be away for the transaction's timeout.
    """


class ChangedBatch(PlogError):
    """A batch stands, and was planned anew since: what it has more this time is not written."""


class Phases(Protocol):
    """How tasks and the driver go about a batch."""

    def must_write(self, batch: int) -> bool:
        """Tell a task whether it is to write its part; else the batch stands already."""

    def is_late(self, batch: int) -> bool:
        """Tell a task whose part is written that nobody will name it; it has to abort it then."""

    def commit(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Make a batch stand that its tasks have written."""

    def check_plan(self, batch: int) -> None:
        """See to it that a batch that stands, and has come again, is the one that it was."""

    def abort(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Abort what was written of a batch, unless it stands."""


class StreamPhases:
    """The batches of one streaming query, for a task or for the driver. Not thread-safe.

    Args:
        link: to the brokers.
        query: the query's id, which it keeps over runs.
        run: the id of this run of it.
    """

    def __init__(self, link: Link, options: SinkOptions, query: str, run: str) -> None:
        self._options, self._query, self._run = options, query, run
        self._log = DecisionLog(link, options, query)
        self._open = OpenTransactions(link, options, task_id_prefix(options.id_prefix, query))

    def must_write(self, batch: int) -> bool:
        """Tell a task whether it is to write its part of a batch; else the batch stands already.

        Raises:
            Fenced: a later run of the query has entered.
            CheckpointRewound: the query's checkpoint is older than what stands.
            PartialCommit: as for `decide`, of the batch before.
            KafkaError: the brokers do not say.
        """
        # Behind the record of a run that has entered only its own driver writes, between batches:
        # nobody has to be waited for.
        where = batch_status(self._log.last_known(), self._run, batch)
        if where is BatchStatus.UNREGISTERED:
            where = self._register(batch)
        if where is BatchStatus.COMMITTED:
            log.info("batch %d of query %s stands already", batch, self._query)
        return where is BatchStatus.PENDING

    def _register(self, batch: int) -> BatchStatus:
        self._log.create_topic()
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        attempts = 0
        while True:
            leftovers = self._open.list_open()
            where = batch_status(self._log.last_known(), self._run, batch)
            if where is not BatchStatus.UNREGISTERED:
                return where
            try:
                with DecisionWriter(self._log, self._options) as driver:
                    last = self._log.last()
                    where = batch_status(last, self._run, batch)
                    if where is not BatchStatus.UNREGISTERED:
                        return where
                    now = register_run(last, self._run, batch)
                    if last is not None:
                        self._commit(last)
                    self._open.abort(leftovers)
                    driver.write(now)
            except ProducerFenced:
                # Another task of this run enters, most likely, or another run.
                if time.monotonic() > deadline:
                    raise
                self._wait_for_registration(batch, attempts)
                attempts += 1
            else:
                log.info("run %s of query %s has entered", self._run, self._query)
                return batch_status(now, self._run, batch)

    def _wait_for_registration(self, batch: int, attempts: int) -> None:
        """Wait for longer each time, or until somebody has: of many who try at once, none does."""
        longest_s = min(FIRST_PAUSE_S * 2**attempts, MAX_PAUSE_S)
        until = time.monotonic() + random.uniform(0, longest_s)
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, FIRST_PAUSE_S))
            if (
                batch_status(self._log.last_known(), self._run, batch)
                is not BatchStatus.UNREGISTERED
            ):
                return

    def is_late(self, batch: int) -> bool:
        """Tell a task that has written its part whether the batch stands without it.

        Raises:
            Fenced: a later run of the query has entered.
            KafkaError: the brokers do not say.
        """
        return batch_status(self._log.last_known(), self._run, batch) is BatchStatus.COMMITTED

    def commit(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Make a batch stand that its tasks have written, and commit it.

        Raises:
            TransactionLost: one of them has ended already, or is about to; nothing stands.
            Fenced: another run of the query has entered; nothing stands.
            PartialCommit: it stands, but for a transaction that was aborted meanwhile.
            KafkaError: a broker refuses or does not answer; the next run finds out whether it
                stands, and finishes it.
        """
        what = f"batch {batch} of query {self._query}"
        if batch_status(self._log.last_known(), self._run, batch) is BatchStatus.COMMITTED:
            # Who comes too late disturbs nobody.
            raise TransactionLost(f"{what} has been decided already")
        with DecisionWriter(self._log, self._options) as driver:
            last = self._log.last()
            where = batch_status(last, self._run, batch)
            if last is None or where is BatchStatus.UNREGISTERED:
                raise TransactionLost(f"{what}: {self._log.tp} has lost what its tasks wrote there")
            if where is BatchStatus.COMMITTED:
                raise TransactionLost(f"{what} has been decided already")
            plan = plan_of(self._options.checkpoint, batch)
            decision = commit_batch(last, batch, transactions, plan)
            self._open.check(transactions, self._open.list_open())
            driver.write(decision)
        self._commit(decision)
        others = self._open.list_open().keys() - set(transactions)
        # Unless another run has entered meanwhile, whose tasks' they may be.
        if others and self._log.last() == decision:
            self._open.abort(others)

    def check_plan(self, batch: int) -> None:
        """See to it that a batch that stands was not planned anew since, as far as that is known.

        Raises:
            ChangedBatch: it was.
            KafkaError: the brokers do not say.
        """
        if not has_other_plan(self._log.last(), batch, plan_of(self._options.checkpoint, batch)):
            return
        text = (
            f"batch {batch} of query {self._query} stands, and was planned anew since: the query's "
            "checkpoint is an older one, brought back, or has lost its last offsets; what the batch"
            " has now that it had not then is not written"
        )
        if self._options.fail_on_changed_batch:
            raise ChangedBatch(f"{text}; failOnChangedBatch=false goes on without that")
        log.error("%s", text)

    def abort(self, batch: int, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort all that is open, unless the batch has been decided, which is finished then.

        Raises: as `decide`.
        """
        batch_status(self._log.last_known(), self._run, batch)  # who comes too late disturbs nobody
        listed = self._open.list_open()  # with what attempts write that told nothing
        with DecisionWriter(self._log, self._options):
            last = self._log.last()
            if last is not None and batch_status(last, self._run, batch) is BatchStatus.COMMITTED:
                self._commit(last)
            else:
                self._open.abort(listed.keys() | set(transactions))

    def _commit(self, decision: Decision) -> None:
        torn = self._open.commit(decision.transactions)
        if not torn:
            return
        if self._log.last() != decision:
            # Somebody has gone on, and may use an id for a later batch: then this one is finished.
            raise ProducerFenced(f"query {self._query} has another driver by now")
        lost = ", ".join(one.transactional_id for one, _ in torn)
        text = (
            f"batch {decision.batch} of query {self._query} stands, but the records of {lost} are "
            f"lost: they were aborted before anybody could commit them ({torn[0][1]})"
        )
        if self._options.fail_on_torn_batch:
            raise PartialCommit(f"{text}; failOnTornBatch=false goes on without them")
        log.error("%s", text)


class BatchPhases:
    """The only batch of a query that is none of a stream: nobody comes back to finish it.

    It stands from the first commit to the last, some milliseconds apart. A driver that dies between
    them leaves the rest to its timeout.
    """

    def __init__(self, link: Link, options: SinkOptions, query: str) -> None:
        self._query = query
        self._open = OpenTransactions(link, options, task_id_prefix(options.id_prefix, query))

    def must_write(self, batch: int) -> bool:
        """Tell that a task is to write."""
        return True

    def is_late(self, batch: int) -> bool:
        """Tell that it is not known; a transaction that nobody names ends by its timeout."""
        return False

    def commit(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Commit what tasks have written.

        Raises:
            TransactionLost: one of their transactions has ended already, or is about to; nothing
                stands.
            PartialCommit: one has ended in this very moment; the others stand.
            KafkaError: a broker refuses or does not answer; some may stand.
        """
        listed = self._open.list_open()
        self._open.check(transactions, listed)
        torn = self._open.commit(transactions)
        if torn:
            lost = ", ".join(one.transactional_id for one, _ in torn)
            raise PartialCommit(
                f"the records of {lost} are lost, others were written ({torn[0][1]})"
            )
        self._open.abort(listed.keys() - set(transactions))

    def check_plan(self, batch: int) -> None:
        """Do nothing: none of its tasks is ever told that it stands."""

    def abort(self, batch: int, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort what is still open; what has been committed stays."""
        self._open.abort(transactions)
