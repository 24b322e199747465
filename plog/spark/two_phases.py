"""Commits each batch of a query as a whole: register a run, decide, commit, abort.

Owns the order of the steps: a crash between any two of them aborts nothing that is decided and
commits nothing that is not. The rules for records belong to `decisions`. Knows neither Spark nor
rows.

Why the cleanup never aborts a transaction that a later run is still writing, or that an earlier
run has just decided to commit:
- Open transactions are listed before the driver is fenced; no task of a later run can have begun.
- Each transaction is ended by its own producer id and epoch. If its transactional id has been used
  again, the new transaction has other numbers.
- A run aborts what others left open only once its own record is written: no earlier driver can
  decide after that.
- Writing the decision, or reading the last one afterwards, shows whether the driver was replaced.

An attempt at a task that Spark began twice may fence the driver of its own run, which then tries
again.

A late attempt aborts its own transaction (`is_late`); if it dies first, the driver does, once the
decision is visible. If both die, the next batch, the next run or the transaction's timeout does.
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
    SecondWrite,
    batch_status,
    commit_batch,
    has_other_plan,
    is_committed_by,
    register_run,
    task_id_prefix,
)
from plog.spark.links import Link
from plog.spark.open_transactions import OpenTransactions, TransactionLost
from plog.spark.sink_options import SinkOptions

log = logging.getLogger(__name__)

FENCED_TIMEOUT_S = 120.0
"""Maximum time a task tries to register its run, or a driver to decide, while others fence it."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0
"""Upper bounds of the random pause before a task tries again."""


class PartialCommit(PlogError):
    """A batch is committed, but one of its transactions was aborted before it could be.

    It happens only if driver and later runs are all down for the transaction's timeout.
    """


class ChangedBatch(PlogError):
    """A committed batch was planned again since; its additional records are not written."""


class Phases(Protocol):
    """The steps of tasks and driver for one batch."""

    def must_write(self, batch: int) -> bool:
        """Return whether a task has to write its part; False if the batch is committed."""

    def is_late(self, batch: int) -> bool:
        """Return whether the batch was decided without a task's part, which it then aborts."""

    def commit(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Commit a batch that its tasks have written."""

    def check_replay(self, batch: int) -> None:
        """Check that a committed batch whose rows were skipped is the same as before."""

    def abort(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Abort everything written for a batch, unless it is committed."""


class StreamPhases:
    """The batches of one streaming query, for a task or for the driver. Not thread-safe.

    Args:
        link: the connections to the brokers.
        query: the query's id, which all its runs share.
        run: the id of this run.
    """

    def __init__(self, link: Link, options: SinkOptions, query: str, run: str) -> None:
        self._options, self._query, self._run = options, query, run
        self._log = DecisionLog(link, options, query)
        self._open = OpenTransactions(link, options, task_id_prefix(options.id_prefix, query))

    def must_write(self, batch: int) -> bool:
        """Return whether a task has to write its part of a batch; False if it is committed.

        Raises:
            Fenced: a later run of the query has registered.
            CheckpointRewound: the query's checkpoint is older than the last committed batch.
            PartialCommit: as for `commit`, for the batch before.
            KafkaError: the brokers do not respond.
        """
        # Once a run has registered only its own driver writes records, between batches: there is
        # no need to wait for open transactions.
        status = batch_status(self._log.last_known(), self._run, batch)
        if status is BatchStatus.UNREGISTERED:
            status = self._register(batch)
        if status is BatchStatus.COMMITTED:
            log.info("batch %d of query %s is already committed", batch, self._query)
        return status is BatchStatus.PENDING

    def _register(self, batch: int) -> BatchStatus:
        self._log.create_topic()
        deadline = time.monotonic() + FENCED_TIMEOUT_S
        attempts = 0
        while True:
            leftovers = self._open.list_open()
            status = batch_status(self._log.last_known(), self._run, batch)
            if status is not BatchStatus.UNREGISTERED:
                return status
            try:
                with DecisionWriter(self._log, self._options) as driver:
                    last = self._log.last()
                    status = batch_status(last, self._run, batch)
                    if status is not BatchStatus.UNREGISTERED:
                        return status
                    now = register_run(last, self._run, batch)
                    if last is not None:
                        self._commit(last)
                    driver.write(now)
            except ProducerFenced:
                # Most likely another task of this run registers it, or another run does.
                if time.monotonic() > deadline:
                    raise
                self._wait_for_registration(batch, attempts)
                attempts += 1
            else:
                self._open.abort(leftovers)
                log.info("registered run %s of query %s", self._run, self._query)
                return batch_status(now, self._run, batch)

    def _wait_for_registration(self, batch: int, attempts: int) -> None:
        """Wait until the run is registered, longer each time: many tasks fence each other."""
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
        """Return whether the batch was committed without the part that a task has written.

        Raises:
            Fenced: a later run of the query has registered.
            KafkaError: the brokers do not respond.
        """
        return batch_status(self._log.last_known(), self._run, batch) is BatchStatus.COMMITTED

    def commit(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Write the decision for a batch that its tasks have written, and commit it.

        Raises:
            TransactionLost: a transaction has ended already, or will soon; nothing is committed.
            Fenced: another run of the query has registered; nothing is committed.
            PartialCommit: it is committed, except a transaction that was aborted meanwhile.
            KafkaError: a broker refuses or does not respond; the next run finds out whether the
                batch is committed, and finishes it.
        """
        decision = self._decide(batch, transactions)
        self._commit(decision)
        others = self._open.list_open().keys() - set(transactions)
        # If another run has registered meanwhile, these may belong to its tasks.
        if others and self._log.last() == decision:
            self._open.abort(others)

    def _decide(self, batch: int, transactions: Collection[PreparedTransaction]) -> Decision:
        """Write the decision; again if an attempt at a task has fenced this driver. Return it."""
        deadline = time.monotonic() + FENCED_TIMEOUT_S
        written: Decision | None = None
        while True:
            # Checked before this driver fences another one.
            status = batch_status(self._log.last_known(), self._run, batch)
            if status is BatchStatus.COMMITTED and written is None:
                raise TransactionLost(f"{self._named(batch)} is already committed")
            try:
                with DecisionWriter(self._log, self._options) as driver:
                    last = self._log.last()
                    if written is None or written != last:
                        written = self._decision(last, batch, transactions)
                        self._open.check(transactions, self._open.list_open())
                        driver.write(written)
                    return written
            except ProducerFenced:
                # Either an attempt at a task of this run tried to register it, or another run does.
                if time.monotonic() > deadline:
                    raise
                _pause()

    def _decision(
        self, last: Decision | None, batch: int, transactions: Collection[PreparedTransaction]
    ) -> Decision:
        """Return the decision that commits a batch after the last one."""
        status = batch_status(last, self._run, batch)
        if last is None or status is BatchStatus.UNREGISTERED:
            raise TransactionLost(
                f"{self._named(batch)}: the record of this run is missing in decisions topic "
                f"partition {self._log.tp}; was the topic deleted? Restart the query"
            )
        if status is BatchStatus.COMMITTED:
            raise TransactionLost(f"{self._named(batch)} is already committed")
        return commit_batch(last, batch, transactions, plan_of(self._options.checkpoint, batch))

    def _named(self, batch: int) -> str:
        return f"batch {batch} of query {self._query}"

    def check_replay(self, batch: int) -> None:
        """Check that a committed batch whose rows were skipped is the same as before.

        Its plan is compared as far as it is known.

        Raises:
            SecondWrite: this run itself has committed it, so these rows are others.
            ChangedBatch: it was planned again since.
            KafkaError: the brokers do not respond.
        """
        last = self._log.last()
        if is_committed_by(last, self._run, batch):
            raise SecondWrite(
                f"batch {batch} of query {self._query} is already committed by this run, so a "
                "second write of it was skipped: write all rows of a batch at once"
            )
        if not has_other_plan(last, batch, plan_of(self._options.checkpoint, batch)):
            return
        text = (
            f"batch {batch} of query {self._query} is already committed, but Spark planned it "
            "again: its checkpoint was restored from a backup or lost its last offsets. Records "
            "that only the new plan has are not written"
        )
        if self._options.fail_on_changed_batch:
            raise ChangedBatch(
                f"{text}. Set failOnChangedBatch=false to continue without them, or start from a "
                "new checkpoint"
            )
        log.error("%s", text)

    def abort(self, batch: int, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort all open transactions; if the batch is decided, commit it instead.

        Raises: as `commit`.
        """
        batch_status(self._log.last_known(), self._run, batch)  # before a later driver is fenced
        listed = self._open.list_open()  # includes attempts that sent the driver no result
        with DecisionWriter(self._log, self._options):
            last = self._log.last()
            if last is not None and batch_status(last, self._run, batch) is BatchStatus.COMMITTED:
                self._commit(last)
            else:
                self._open.abort(listed.keys() | set(transactions))

    def _commit(self, decision: Decision) -> None:
        aborted = self._open.commit(decision.transactions)
        if not aborted:
            return
        if self._log.last() != decision:
            # A later driver may use an id for a later batch: then this batch is finished.
            raise ProducerFenced(f"query {self._query} has a newer driver")
        ids = ", ".join(one.transactional_id for one, _ in aborted)
        text = (
            f"batch {decision.batch} of query {self._query} is only partly committed: the records "
            f"of transactions {ids} are lost, because they timed out before the driver or a new "
            f"run committed them ({aborted[0][1]})"
        )
        if self._options.fail_on_torn_batch:
            raise PartialCommit(f"{text}. Set failOnTornBatch=false to continue without them")
        log.error("%s", text)


def _pause() -> None:
    """Wait a random time before a driver that was fenced tries again."""
    time.sleep(random.uniform(0, FIRST_PAUSE_S))


class BatchPhases:
    """The only batch of a batch query; no later run finishes it.

    Its transactions are committed one after the other, within milliseconds. If the driver dies in
    between, the others time out and are aborted.
    """

    def __init__(self, link: Link, options: SinkOptions, query: str) -> None:
        self._query = query
        self._open = OpenTransactions(link, options, task_id_prefix(options.id_prefix, query))

    def must_write(self, batch: int) -> bool:
        """Return True: every task writes."""
        return True

    def is_late(self, batch: int) -> bool:
        """Return False: it is not known; a late transaction ends by its timeout."""
        return False

    def commit(self, batch: int, transactions: Collection[PreparedTransaction]) -> None:
        """Commit the tasks' transactions.

        Raises:
            TransactionLost: one of them has ended already, or will soon; nothing is committed.
            PartialCommit: one ended during the commit; the others are committed.
            KafkaError: a broker refuses or does not respond; some may be committed.
        """
        listed = self._open.list_open()
        self._open.check(transactions, listed)
        aborted = self._open.commit(transactions)
        if aborted:
            ids = ", ".join(one.transactional_id for one, _ in aborted)
            raise PartialCommit(
                f"the write is only partly committed: the records of transactions {ids} are lost, "
                f"because they ended during the commit ({aborted[0][1]})"
            )
        self._open.abort(listed.keys() - set(transactions))

    def check_replay(self, batch: int) -> None:
        """Do nothing: a batch query's batch is never delivered again."""

    def abort(self, batch: int, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort transactions that are still open; committed ones stay committed."""
        self._open.abort(transactions)
