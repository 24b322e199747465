"""Writes the batches of a streaming query exactly once from `foreachBatch`, in any output mode.

Owns the identity of a batch: Spark's ids of the query, the run and the batch, as `foreachBatch`
reports them. The sink's batch writer does the rest (`sink.ForeachBatchWriter`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from plog.errors import ConfigError
from plog.spark.decisions import NO_BATCH, SecondWrite
from plog.spark.option_values import SERVERS
from plog.spark.sink_options import BATCH_OPTION, QUERY_OPTION, RUN_OPTION, parse
from plog.types import is_legal_topic_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
"""Local properties of a streaming query's thread and tasks; the job group is the run's id."""


MAX_RUNS = 1000
"""Runs whose last batch is remembered: those that wrote most recently."""
_last_batches: dict[tuple[str, str], int] = {}
"""By query (with the sink's name) and run: the last batch that this process began to write.

The brokers are no part of the key: one cluster has many addresses. Nor is the decisions topic:
sinks without it in common still share their transactional ids, and abort each other's transactions.
"""
_lock = threading.Lock()


class BatchSink:
    """A function for `foreachBatch` that writes each batch exactly once.

        sink = BatchSink().option("topic", "changes")
        counts.writeStream.outputMode("update").foreachBatch(sink).option(...).start()

    Call it once for each batch. A query that writes to several sinks gives each another name, even
    if they write to different clusters.

    Args:
        name: distinguishes several sinks of one query; part of their transactional ids.
        options: those of the sink (see `option`).
    """

    def __init__(self, name: str = "", options: Mapping[str, object] | None = None) -> None:
        if name and not is_legal_topic_name(name):
            raise ConfigError(
                f"plog sink: invalid sink name {name!r}: use 1-249 characters from a-z A-Z 0-9 . _ "
                "- (not '.' or '..')"
            )
        self._name = name
        self._options: dict[str, str] = {}
        self.options(**(options or {}))

    def option(self, key: str, value: object) -> Self:
        """Set an option of the sink, with the names of `writeStream.format("plog")`."""
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: object) -> Self:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch, unless an earlier attempt has committed it.

        Raises:
            ConfigError: an option is invalid, or this is not a call by `foreachBatch`.
            SecondWrite: this run has already called a sink of this name for this batch.
        """
        parsed = parse(self._options)
        query, run = _ids(batch, batch_id)
        if self._name:
            query = f"{self._name}/{query}"  # a slash is part of no name: no prefix of another id
        writer = (
            batch.write.format("plog")
            .mode("append")
            .options(
                **{
                    **self._options,
                    SERVERS: parsed.bootstrap_servers,
                    QUERY_OPTION: query,
                    RUN_OPTION: run,
                    BATCH_OPTION: str(batch_id),
                }
            )
        )
        _begin_batch(query, run, batch_id)
        writer.save()


def _begin_batch(query: str, run: str, batch_id: int) -> None:
    """Remember a batch before it is written, even if that fails: it may be committed all the same.

    An error that leaves `foreachBatch` ends the run, so Spark calls again only in another one.

    Raises:
        SecondWrite: the run has already begun this batch, or a later one.
    """
    with _lock:
        last = _last_batches.pop((query, run), NO_BATCH)
        _last_batches[query, run] = max(last, batch_id)  # last in the dict: the most recent run
        if len(_last_batches) > MAX_RUNS:
            del _last_batches[next(iter(_last_batches))]
    if batch_id <= last:
        earlier = "a first one" if batch_id == last else f"one for batch {last}"
        raise SecondWrite(
            f"plog sink: call for batch {batch_id} after {earlier} in the same run: its rows would "
            "be skipped. Write all rows of a batch in one call (union), or use another BatchSink "
            "with another name. After a call that failed, let its error end the query: the next "
            "run writes the batch"
        )


def _ids(batch: DataFrame, batch_id: int) -> tuple[str, str]:
    """Return the ids of the query and of its run."""
    try:
        context = batch.sparkSession.sparkContext
    except AttributeError as fault:
        raise ConfigError(
            "plog sink: BatchSink does not support Spark Connect, which does not report a query's "
            'id to foreachBatch; use writeStream.format("plog") in complete or append mode'
        ) from fault
    query, number, run = (context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
    if not query or not run or number != str(batch_id):
        raise ConfigError(
            f"plog sink: this is not foreachBatch's call for batch {batch_id} ({BATCH} is "
            f"{number}): call a BatchSink in the function that foreachBatch calls, with its batch "
            "id, and in its thread"
        )
    try:
        uuid.UUID(run)
    except ValueError:
        raise ConfigError(
            f"plog sink: {RUN} is {run!r}, not the id of the query's run: do not call setJobGroup "
            "before a BatchSink writes"
        ) from None
    return query, run
