"""The sink of the data source: implements Spark's writers with prepared transactions.

Each task writes in a transaction, leaves it open and reports it; the driver commits or aborts.
`two_phases` has the rules of that, `sink_rows` turns rows into records.
"""

from __future__ import annotations

import functools
import logging
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from plog.client.producer import Producer
from plog.client.transaction_states import PreparedTransaction
from plog.errors import ConfigError, PlogError
from plog.spark import sink_rows
from plog.spark.batch_sink import BATCH, QUERY, RUN
from plog.spark.decisions import TransactionalIds
from plog.spark.links import link_to
from plog.spark.settings_check import missing_in_task, warn_once
from plog.spark.sink_options import AT_LEAST_ONCE, QUERY_OPTION, SinkOptions, StreamBatch, parse
from plog.spark.two_phases import BatchPhases, Phases, StreamPhases
from plog.spark.worker import set_up_worker

log = logging.getLogger(__name__)

ONE_BATCH = 0
"""A batch query has one run and one batch."""


class InconsistentTasks(PlogError):
    """The tasks of a batch report different batches, or some report none."""


@dataclass
class TaskResult(WriterCommitMessage):
    """A task's report to the driver.

    Attributes:
        query, run, batch: the batch that the task belongs to.
        transaction: the transaction left open; None without rows, or with at-least-once.
        already_committed: the batch was committed before, and the task's rows were skipped.
        missing_settings: settings for the sink that the session does not have.
    """

    query: str = ""
    run: str = ""
    batch: int = ONE_BATCH
    transaction: PreparedTransaction | None = None
    already_committed: bool = False
    missing_settings: tuple[str, ...] = ()


class _Writer(ABC):
    """The common part of batch and stream writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        sink_rows.check(schema, options.topic)
        self.options = options

    @abstractmethod
    def _phases(self, part: TaskResult) -> Phases:
        """Return the commit protocol for a task's batch."""

    def _write_task(self, part: TaskResult, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's rows in a transaction that stays open for the driver."""
        set_up_worker()
        part.missing_settings = missing_in_task()
        options = self.options
        if options.delivery == AT_LEAST_ONCE:
            with self._producer() as producer:
                self._send(producer, rows)
            return part
        phases = self._phases(part)
        if not phases.must_write(part.batch):
            part.already_committed = True
            _consume(rows)
            return part
        name = transactional_ids().next_id(options.id_prefix, part.query, part.run, part.batch)
        with self._producer(name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            self._send(producer, rows)
            if phases.is_late(part.batch):
                producer.abort_transaction()
                part.already_committed = True
            else:
                part.transaction = producer.prepare_transaction()
        return part

    @contextmanager
    def _producer(self, transactional_id: str | None = None) -> Iterator[Producer]:
        options = self.options
        more: dict[str, object] = {}
        if transactional_id is not None:
            more["transactional_id"] = transactional_id
            more["transaction_timeout_ms"] = options.transaction_timeout_ms
        producer = Producer(
            options.bootstrap_servers,
            client_id=options.client_id,
            request_timeout_ms=options.request_timeout_ms,
            **{**DEFAULTS, **options.producer, **more},
        )
        try:
            yield producer
        except BaseException:
            producer.close(CLOSE_TIMEOUT_S)
            raise
        producer.close()

    def _send(self, producer: Producer, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            for topic, rows in sink_rows.by_topic(batch, self.options.topic):
                producer.send_rows(topic, rows)
        producer.flush()

    def _commit_batch(self, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [one for one in messages if isinstance(one, TaskResult)]
        warn_once(parts[0].missing_settings if parts else ())
        if self.options.delivery == AT_LEAST_ONCE or not messages:
            return
        if len(parts) < len(messages):
            missing = len(messages) - len(parts)
            raise InconsistentTasks(
                f"{missing} of the {len(messages)} tasks of batch {batch} sent no report"
            )
        if len({(one.query, one.run, one.batch, one.already_committed) for one in parts}) != 1:
            raise InconsistentTasks(f"the tasks of batch {batch} disagree about it: {parts}")
        part = parts[0]
        if part.batch != batch:
            raise InconsistentTasks(f"the tasks of batch {batch} wrote batch {part.batch}")
        if part.already_committed:
            self._phases(part).check_replay(batch)
        else:
            self._phases(part).commit(batch, _transactions(parts))

    def _abort_batch(self, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [
            one for one in messages if isinstance(one, TaskResult) and not one.already_committed
        ]
        if self.options.delivery == AT_LEAST_ONCE or not parts:
            return
        try:
            self._phases(parts[0]).abort(batch, _transactions(parts))
        except PlogError as fault:
            # The next run aborts them, or their timeout does.
            log.warning(
                "plog sink: cannot abort batch %d of query %s; its next run or the transaction "
                "timeout will: %s",
                batch,
                parts[0].query,
                fault,
            )


class PlogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each once."""

    def _phases(self, part: TaskResult) -> Phases:
        return StreamPhases(link_to(self.options), self.options, part.query, part.run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's rows of a batch."""
        task = TaskContext.get()
        assert task is not None
        query, run, batch = (task.getLocalProperty(name) for name in (QUERY, RUN, BATCH))
        if not query or not run or not batch:
            raise ConfigError(
                f"plog sink: this Spark release does not set {QUERY}, {RUN} and {BATCH} for tasks, "
                "which exactly-once needs; use delivery=at-least-once"
            )
        return self._write_task(TaskResult(query, run, int(batch)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch."""
        self._commit_batch(batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort a batch after a task or `commit` has failed."""
        self._abort_batch(batchId, messages)


class PlogWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a batch query: all become visible at once, or none."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.query = str(uuid.uuid4())  # pickled for the tasks, too

    def _phases(self, part: TaskResult) -> Phases:
        return BatchPhases(link_to(self.options), self.options, part.query)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's rows."""
        return self._write_task(TaskResult(self.query, self.query), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows."""
        self._commit_batch(ONE_BATCH, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the rows."""
        self._abort_batch(ONE_BATCH, messages)


class ForeachBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch of a streaming query that `foreachBatch` received, once."""

    def __init__(self, options: SinkOptions, schema: StructType, batch: StreamBatch) -> None:
        super().__init__(options, schema)
        self.batch = batch

    def _phases(self, part: TaskResult) -> Phases:
        return StreamPhases(link_to(self.options), self.options, part.query, part.run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's rows of the batch."""
        return self._write_task(TaskResult(*self.batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch."""
        self._commit_batch(self.batch.number, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the batch after a task or `commit` has failed."""
        self._abort_batch(self.batch.number, messages)


DEFAULTS = {"linger_ms": 50, "batch_size": 512 * 1024, "max_block_ms": 120_000}
"""Producer defaults: rows come in thousands, and no caller waits for a single one."""
CLOSE_TIMEOUT_S = 10.0


def _consume(rows: Iterable[pa.RecordBatch]) -> None:
    """Read a task's rows and drop them: Spark keeps an aggregation's state only for read rows."""
    for _ in rows:
        pass


def _transactions(parts: Iterable[TaskResult]) -> list[PreparedTransaction]:
    return [one.transaction for one in parts if one.transaction is not None]


@functools.cache
def _transactional_ids_of(pid: int) -> TransactionalIds:
    return TransactionalIds(uuid.uuid4().hex)


def transactional_ids() -> TransactionalIds:
    """Return this process's transactional ids; a forked process has its own."""
    return _transactional_ids_of(os.getpid())


def stream_writer(options: Mapping[str, str], schema: StructType) -> PlogStreamWriter:
    """Return the writer of a streaming query; Spark itself checks the output mode.

    Raises:
        ConfigError: an option or a column is invalid.
    """
    parsed = parse(options)
    if parsed.stream_batch is not None:
        raise ConfigError(f"plog sink: {QUERY_OPTION} applies to foreachBatch only")
    return PlogStreamWriter(parsed, schema)


def writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> PlogWriter | ForeachBatchWriter:
    """Return the writer of a batch query, or of a stream's batch in `foreachBatch`.

    Raises:
        ConfigError: an option or a column is invalid, or the mode is overwrite.
        KafkaError: no broker responds within kafka.request.timeout.ms. Without this check each
            task would fail after kafka.max.block.ms, which is longer, and be retried.
    """
    if overwrite:
        raise ConfigError('plog sink: a topic cannot be overwritten; use .mode("append")')
    parsed = parse(options)
    batch = parsed.stream_batch
    made = (
        PlogWriter(parsed, schema) if batch is None else ForeachBatchWriter(parsed, schema, batch)
    )
    link = link_to(parsed)
    link.retry(lambda: link.cluster.refresh([]))
    return made
