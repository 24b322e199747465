"""Runs of a streaming query that stop before each request, and brokers in memory that they share.

The steps are those of `two_phases`; a schedule decides which run makes the next one, and which run
never makes it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import pytest

from plog.client.transaction_states import PreparedTransaction
from plog.errors import InvalidTxnState, KafkaError, PlogError, ProducerFenced
from plog.spark import two_phases
from plog.spark.decisions import Decision, TransactionalIds
from plog.spark.open_transactions import OpenTransactions
from plog.spark.sink_options import SinkOptions
from plog.spark.two_phases import StreamPhases
from plog.types import TopicPartition

QUERY = "query"
OPTIONS = SinkOptions("brokers")
ENDLESS = 10_000
PATIENCE_S = 30


class Killed(BaseException):
    """The run's process has ended; nothing catches it."""


class Brokers:
    """The decisions topic and the transactions, behind a step for each request."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.driver_epoch = 0
        self.states: dict[PreparedTransaction, str] = {}
        self.rows: dict[PreparedTransaction, tuple[int, int]] = {}  # batch and task
        self.next_batch = 0  # of Spark's checkpoint
        self.step: Callable[[], None] = lambda: None

    def open(self, transactional_id: str, batch: int, task: int) -> PreparedTransaction:
        """Begin a transaction; one that its id has left open is aborted."""
        self.step()
        epoch = 0
        for one in self.states:
            if one.transactional_id == transactional_id:
                epoch = max(epoch, one.producer_epoch + 1)
                if self.states[one] == "open":
                    self.states[one] = "aborted"
        made = PreparedTransaction(transactional_id, 0, epoch)
        self.states[made], self.rows[made] = "open", (batch, task)
        return made

    def visible(self) -> Counter[tuple[int, int]]:
        """Return how often readers of committed records see each task's part of a batch."""
        return Counter(self.rows[one] for one, state in self.states.items() if state == "committed")


class SteppedLog:
    """Stands in for `DecisionLog`; the link is the brokers."""

    def __init__(self, link: Brokers, _options: SinkOptions, query: str) -> None:
        self.brokers, self.query = link, query
        self.tp = TopicPartition("decisions", 0)

    def create_topic(self) -> None:
        self.brokers.step()

    def last(self) -> Decision | None:
        self.brokers.step()
        return self.brokers.decisions[-1] if self.brokers.decisions else None

    last_known = last


class SteppedWriter:
    """Stands in for `DecisionWriter`."""

    def __init__(self, log: SteppedLog, _options: SinkOptions) -> None:
        self._brokers = log.brokers

    def __enter__(self) -> Self:
        self._brokers.step()
        self._brokers.driver_epoch += 1
        self._epoch = self._brokers.driver_epoch
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, decision: Decision) -> None:
        """Write it; a driver that is fenced before the response comes does not know the outcome."""
        self._brokers.step()
        self._check()
        self._brokers.decisions.append(decision)
        self._brokers.step()
        self._check()

    def _check(self) -> None:
        if self._epoch != self._brokers.driver_epoch:
            raise ProducerFenced("a later driver exists")


class SteppedTransactions(OpenTransactions):
    """The real checks, on transactions in memory."""

    _link: Brokers  # type: ignore[assignment]

    def list_open(self) -> dict[PreparedTransaction, int | None]:
        self._link.step()
        return {one: None for one, state in self._link.states.items() if state == "open"}

    def _end(self, one: PreparedTransaction, state: str) -> bool:
        self._link.step()
        if self._link.states[one] == "open":
            self._link.states[one] = state
        return self._link.states[one] == state

    def commit(
        self, transactions: Iterable[PreparedTransaction]
    ) -> list[tuple[PreparedTransaction, KafkaError]]:
        ended = [(one, self._end(one, "committed")) for one in transactions]
        return [(one, InvalidTxnState("it was aborted")) for one, is_so in ended if not is_so]

    def abort(self, transactions: Iterable[PreparedTransaction]) -> None:
        for one in transactions:
            self._end(one, "aborted")


def use_stepped_parts(patch: pytest.MonkeyPatch) -> None:
    """Have `two_phases` use the parts in memory."""
    patch.setattr(two_phases, "DecisionLog", SteppedLog)
    patch.setattr(two_phases, "DecisionWriter", SteppedWriter)
    patch.setattr(two_phases, "OpenTransactions", SteppedTransactions)
    patch.setattr(two_phases, "_pause", lambda: None)
    patch.setattr(StreamPhases, "_wait_for_registration", lambda *_: None)


class Workers:
    """The Python processes of tasks: one task at a time, and used again by later tasks."""

    def __init__(self, name: str) -> None:
        self._name, self._idle, self._count = name, list[TransactionalIds](), 0

    @contextmanager
    def one(self) -> Iterator[TransactionalIds]:
        """Occupy a process that is idle, or a new one; yield its transactional ids."""
        if not self._idle:
            self._idle.append(TransactionalIds(f"{self._name}{self._count}"))
            self._count += 1
        process = self._idle.pop()
        yield process
        self._idle.append(process)


class SteppedRun:
    """A run in a thread of its own, which goes on only when it is given steps.

    Args:
        until: the run ends when batches below this number are committed.
        workers: those of its tasks; several runs may share them.
    """

    def __init__(
        self, brokers: Brokers, name: str, until: int, tasks: int, workers: Workers
    ) -> None:
        self._brokers, self._name, self._until, self._tasks = brokers, name, until, tasks
        self._workers = workers
        self._given, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._is_killed = False
        self.has_ended = False
        self.steps = 0
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._stopped.acquire(timeout=PATIENCE_S)

    def give(self, steps: int = ENDLESS) -> None:
        """Let it make steps, or end."""
        self._brokers.step = self._wait
        for _ in range(steps):
            if self.has_ended:
                return
            self.steps += 1
            self._given.release()
            assert self._stopped.acquire(timeout=PATIENCE_S), f"{self._name} hangs"

    def kill(self) -> None:
        """End it where it is."""
        self._is_killed = True
        self.give()
        self._thread.join(PATIENCE_S)

    def _wait(self) -> None:
        self._stopped.release()
        self._given.acquire()
        if self._is_killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._wait()
            self._work()
        except (PlogError, Killed) as fault:
            self.fault = fault
        finally:
            self.has_ended = True
            self._stopped.release()

    def _work(self) -> None:
        batch = self._brokers.next_batch
        while batch < self._until:
            self._write(batch)
            self._brokers.next_batch = max(self._brokers.next_batch, batch + 1)
            batch += 1

    def _phases(self) -> StreamPhases:
        return StreamPhases(self._brokers, OPTIONS, QUERY, self._name)  # type: ignore[arg-type]

    def _write(self, batch: int) -> None:
        """Write a batch as the sink does: its tasks, and then its driver."""
        phases = self._phases()
        written = []
        try:
            for task in range(self._tasks):
                with self._workers.one() as ids:
                    if not phases.must_write(batch):
                        break
                    one = self._attempt(phases, ids, batch, task)
                    if one is not None:
                        written.append(one)
            if written:
                phases.commit(batch, written)
        except PlogError:
            if written:  # else the driver has heard of no task
                phases.abort(batch, written)
            raise

    def _attempt(
        self, phases: StreamPhases, ids: TransactionalIds, batch: int, task: int
    ) -> PreparedTransaction | None:
        """Write a task's part; None if it came too late."""
        one = self._brokers.open(ids.next_id("p-", QUERY, self._name, batch), batch, task)
        if not phases.is_late(batch):
            return one
        self._brokers.step()
        self._brokers.states[one] = "aborted"
        return None


class SecondAttempt(SteppedRun):
    """A second attempt at the first task of batch 0, of which the driver never hears.

    Spark's speculation starts such attempts.

    Args:
        name: the run's.
    """

    def __init__(self, brokers: Brokers, name: str, workers: Workers) -> None:
        super().__init__(brokers, name, until=1, tasks=1, workers=workers)

    def _work(self) -> None:
        phases = self._phases()
        with self._workers.one() as ids:
            if phases.must_write(0):
                self._attempt(phases, ids, 0, 0)
