"""Decision records of a streaming query, and the rules that follow from them.

Each task writes its part of a batch in a transaction and leaves it open (`prepare_transaction`).
One record, the decision, commits the whole batch: it names the batch and its transactions. Only
then are the transactions committed, by the driver or by the query's next run.

    task:   run not registered?       register it   (fence the previous driver; finish its last
                                                    decision; write the run's record; abort
                                                    transactions that were open before)
            batch already committed?  write nothing
            otherwise                 write in a transaction, and leave it open
    driver: a later run registered?   give up
            otherwise                 write the decision; commit its transactions; abort the rest

Safe against crashes: only the holder of the driver's transactional id may decide. A new run takes
the id over and so fences the old one; each batch gets exactly one decision.

Pure: records in, the next step out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from plog.client.transaction_states import PreparedTransaction
from plog.errors import PlogError

VERSION = 1
MAX_EARLIER_RUNS = 20
NO_BATCH = -1


class Fenced(PlogError):
    """A later run of the query has registered; this run writes nothing more."""


class CheckpointRewound(PlogError):
    """The query restarts before its last committed batch: its checkpoint is an older one."""


class SecondWrite(PlogError):
    """A run writes a batch a second time; the rows of that write would be skipped."""


class DamagedDecision(PlogError):
    """A decision record cannot be read, so the last committed batch is unknown."""


class BatchStatus(Enum):
    """The state of a batch, as a run sees it."""

    UNREGISTERED = auto()
    """The run has to register first."""
    PENDING = auto()
    """The batch has no decision yet: tasks write it."""
    COMMITTED = auto()
    """The batch is committed already."""


@dataclass(frozen=True)
class Decision:
    """The last record of a query.

    Attributes:
        run: the run (Spark's runId) that registered last.
        batch: the last committed batch; NO_BATCH for none.
        transactions: the batch's transactions; empty once a later run has finished them.
        earlier: previous runs, latest first. None of them may register again.
        plan: identifies the batch's plan (`checkpoint.plan_of`); None where the driver did not
            know it.
    """

    run: str
    batch: int = NO_BATCH
    transactions: tuple[PreparedTransaction, ...] = ()
    earlier: tuple[str, ...] = ()
    plan: str | None = None

    def encode(self) -> bytes:
        """Return the record's value: JSON, readable in the topic."""
        return json.dumps(
            {
                "version": VERSION,
                "run": self.run,
                "batch": self.batch,
                "transactions": [list(one) for one in self.transactions],
                "earlier": list(self.earlier),
                "plan": self.plan,
            }
        ).encode()

    @classmethod
    def decode(cls, value: bytes) -> Decision:
        """Read a record's value.

        Raises:
            DamagedDecision: the value is no decision, or its version is unknown.
        """
        try:
            fields = json.loads(value)
            if fields["version"] != VERSION:
                raise DamagedDecision(
                    f"decision record has version {fields['version']!r}; this plog reads version "
                    f"{VERSION}: run the query with the plog release that wrote it, or a newer one"
                )
            transactions = tuple(
                PreparedTransaction(str(name), int(producer), int(epoch))
                for name, producer, epoch in fields["transactions"]
            )
            return cls(
                str(fields["run"]),
                int(fields["batch"]),
                transactions,
                tuple(str(run) for run in fields["earlier"]),
                None if (plan := fields.get("plan")) is None else str(plan),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise DamagedDecision(
                f"invalid decision record {value[:200]!r} ({fault!r}): another program writes to "
                "the decisions topic; use a decisionsTopic that only this sink writes"
            ) from fault


def batch_status(last: Decision | None, run: str, batch: int) -> BatchStatus:
    """Return the state of a batch for this run.

    Raises:
        Fenced: a later run has registered.
    """
    if last is None or (run != last.run and run not in last.earlier):
        return BatchStatus.UNREGISTERED
    if run != last.run:
        raise Fenced(
            f"run {run} was replaced by run {last.run} of the same query; it writes nothing more"
        )
    return BatchStatus.COMMITTED if batch <= last.batch else BatchStatus.PENDING


def register_run(last: Decision | None, run: str, batch: int) -> Decision:
    """Return the record that registers a run, once the last decision has been finished.

    Args:
        batch: the run's first batch: the last committed one, if Spark does not know that it is
            committed, or a later one.

    Raises:
        CheckpointRewound: it is an earlier one. That batch and all up to the last committed one
            would be skipped, whatever records they have this time.
    """
    if last is None:
        return Decision(run)
    if batch < last.batch:
        raise CheckpointRewound(
            f"checkpoint is older than the sink: batch {last.batch} is already committed, but the "
            f"query restarts at batch {batch}. Start from a new checkpoint, or set another "
            "decisionsTopic to rewrite everything (duplicates included)"
        )
    return Decision(run, last.batch, (), (last.run, *last.earlier)[:MAX_EARLIER_RUNS], last.plan)


def commit_batch(
    last: Decision,
    batch: int,
    transactions: Iterable[PreparedTransaction],
    plan: str | None = None,
) -> Decision:
    """Return the decision that commits a batch."""
    assert batch > last.batch
    return Decision(last.run, batch, tuple(transactions), last.earlier, plan)


def is_committed_by(last: Decision | None, run: str, batch: int) -> bool:
    """Tell whether a batch is known to be committed by this run, not by an earlier one.

    Spark delivers a committed batch again to a later run only. Registration leaves no transactions
    in the record. An empty batch has none either, so its run is not known.
    """
    return (
        last is not None
        and last.run == run
        and (batch < last.batch or (batch == last.batch and bool(last.transactions)))
    )


def has_other_plan(last: Decision | None, batch: int, plan: str | None) -> bool:
    """Tell whether a batch is committed with a plan that is known to differ from this one."""
    return (
        last is not None
        and last.batch == batch
        and None not in (last.plan, plan)
        and last.plan != plan
    )


class TransactionalIds:
    """Transactional ids for the tasks of one process: few, and never one that is still needed.

    The transactions of the last decision may have to be committed again. Until then no other
    transaction may use their ids. So ids alternate between even and odd batches, and an id is
    used again two batches later, after the next decision.

    Args:
        process: a name that no other process has.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._of: dict[str, tuple[str, int, int]] = {}  # by query: run, batch, count

    def next_id(self, prefix: str, query: str, run: str, batch: int) -> str:
        """Return an id for one more attempt at a task of a batch."""
        last_run, last_batch, count = self._of.get(query, ("", NO_BATCH, 0))
        count = count + 1 if (last_run, last_batch) == (run, batch) else 0
        self._of[query] = run, batch, count
        return f"{task_id_prefix(prefix, query)}{self._process}-{batch % 2}-{count}"


def task_id_prefix(prefix: str, query: str) -> str:
    """Return the common prefix of the transactional ids of a query's tasks."""
    return f"{prefix}{query}-task-"


def driver_transactional_id(prefix: str, query: str) -> str:
    """Return the transactional id of a query's driver."""
    return f"{prefix}{query}-driver"
