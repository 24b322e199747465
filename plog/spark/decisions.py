"""What a streaming query has decided, as a record, and the rules by which it goes on.

A batch is written by many tasks, each in a transaction that it leaves open (`prepare_transaction`).
It stands, as a whole, once one record says so: the query's decision, which names the batch and its
transactions. Only then are they committed, by the driver or by whoever comes after it.

    task:   has my run entered? no: enter it     (fence who decided before; finish what is decided;
                                                  abort what is open; write the run's record)
            is my batch decided? yes: write nothing
            no: write in a transaction, and leave it open
    driver: is my run still the one? no: give up
            write the decision; commit what it names; abort what else is open

Nobody's life is relied upon: who decides has the transactional id of the query's driver, and
entering takes it away from whoever had it, so that of two runs one decides, and of one batch there
is one decision. Pure: records in, what is to be done out.
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
    """Another run of the query decides now; this one writes nothing more."""


class CheckpointRewound(PlogError):
    """A query goes on at a batch before the last one that stands: with an older checkpoint."""


class DamagedDecision(PlogError):
    """A record in the topic of decisions that is none; whose batch stands is not known."""


class BatchStatus(Enum):
    """Where a batch is for somebody of a run."""

    UNREGISTERED = auto()
    """The run has not entered yet: first it must."""
    PENDING = auto()
    """The batch is not decided: it is to be written."""
    COMMITTED = auto()
    """The batch stands already."""


@dataclass(frozen=True)
class Decision:
    """The last record of a query.

    Attributes:
        run: who decides: the run (Spark's runId) that entered last.
        batch: the last batch that stands; NO_BATCH for none.
        transactions: what makes it, committed or still to be; none once a later run has seen to it.
        earlier: runs before, the latest first; one of them that turns up late enters no more.
        plan: what tells the batch from others of its number (`checkpoint.plan_of`); None where who
            decided did not know.
    """

    run: str
    batch: int = NO_BATCH
    transactions: tuple[PreparedTransaction, ...] = ()
    earlier: tuple[str, ...] = ()
    plan: str | None = None

    def encode(self) -> bytes:
        """Return the record's value: JSON, for whoever looks at the topic."""
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
            DamagedDecision: it is none, or of a version that is not known here.
        """
        try:
            told = json.loads(value)
            if told["version"] != VERSION:
                raise DamagedDecision(f"a decision of version {told['version']!r}")
            transactions = tuple(
                PreparedTransaction(str(name), int(producer), int(epoch))
                for name, producer, epoch in told["transactions"]
            )
            return cls(
                str(told["run"]),
                int(told["batch"]),
                transactions,
                tuple(str(run) for run in told["earlier"]),
                None if (plan := told.get("plan")) is None else str(plan),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise DamagedDecision(f"{value[:200]!r} is no decision: {fault!r}") from fault


def batch_status(last: Decision | None, run: str, batch: int) -> BatchStatus:
    """Tell where a batch is for somebody of this run.

    Raises:
        Fenced: a later run has entered.
    """
    if last is None or (run != last.run and run not in last.earlier):
        return BatchStatus.UNREGISTERED
    if run != last.run:
        raise Fenced(f"run {run} of the query has ended, {last.run} goes on")
    return BatchStatus.COMMITTED if batch <= last.batch else BatchStatus.PENDING


def register_run(last: Decision | None, run: str, batch: int) -> Decision:
    """Return what a run writes that enters, once all that was decided has been committed.

    Args:
        batch: the run's first: the last one that stands, if Spark has not heard of that, or a later
            one.

    Raises:
        CheckpointRewound: it is an earlier one. It would be taken for one that stands, and so would
            all up to the last, with whatever records they have this time.
    """
    if last is None:
        return Decision(run)
    if batch < last.batch:
        raise CheckpointRewound(
            f"the query goes on at batch {batch}, but batch {last.batch} stands already: its "
            "checkpoint is an older one, brought back, and what batches up to that one wrote cannot"
            " be told from what they would write now; begin with a new checkpoint, or have it all "
            "written again by another decisionsTopic"
        )
    return Decision(run, last.batch, (), (last.run, *last.earlier)[:MAX_EARLIER_RUNS], last.plan)


def commit_batch(
    last: Decision,
    batch: int,
    transactions: Iterable[PreparedTransaction],
    plan: str | None = None,
) -> Decision:
    """Return what makes a batch stand."""
    assert batch > last.batch
    return Decision(last.run, batch, tuple(transactions), last.earlier, plan)


def has_other_plan(last: Decision | None, batch: int, plan: str | None) -> bool:
    """Tell whether a batch of this plan is known to be another than that which stands."""
    return (
        last is not None
        and last.batch == batch
        and None not in (last.plan, plan)
        and last.plan != plan
    )


class TransactionalIds:
    """Transactional ids for the tasks of one process: few, and none that may still be needed.

    The transactions of the last decision may have to be committed again, and then nobody may have
    begun another by their ids. So ids go by whether a batch's number is even, and are used again
    two batches later, when there is another decision.

    Args:
        process: something that no other process is called.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._of: dict[str, tuple[str, int, int]] = {}  # by query: run, batch, how many

    def next_id(self, prefix: str, query: str, run: str, batch: int) -> str:
        """Return an id for one more attempt at a task of a batch."""
        last_run, last_batch, count = self._of.get(query, ("", NO_BATCH, 0))
        count = count + 1 if (last_run, last_batch) == (run, batch) else 0
        self._of[query] = run, batch, count
        return f"{task_id_prefix(prefix, query)}{self._process}-{batch % 2}-{count}"


def task_id_prefix(prefix: str, query: str) -> str:
    """Return what the transactional ids of all tasks of a query begin with."""
    return f"{prefix}{query}-task-"


def driver_transactional_id(prefix: str, query: str) -> str:
    """Return the transactional id of who decides for a query."""
    return f"{prefix}{query}-driver"
