"""Writes the batches of a streaming query exactly once from `foreachBatch`, in any output mode.

Owns the identity of a batch: Spark's ids of the query, the run and the batch, as `foreachBatch`
reports them. The sink's batch writer does the rest (`sink.ForeachBatchWriter`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from plog.errors import ConfigError, PlogError
from plog.spark.option_values import SERVERS
from plog.spark.sink_options import BATCH_OPTION, QUERY_OPTION, RUN_OPTION, parse
from plog.types import is_legal_topic_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
"""Local properties of a streaming query's thread and tasks; the job group is the run's id."""


class SecondWrite(PlogError):
    """A batch is written twice under one name; the second part would be skipped."""


_written: dict[tuple[str, str, str], tuple[str, int]] = {}
"""By brokers, decisions topic and query: the run and the batch that this process wrote last."""
_lock = threading.Lock()


class BatchSink:
    """A function for `foreachBatch` that writes each batch exactly once.

        sink = BatchSink().option("topic", "changes")
        counts.writeStream.outputMode("update").foreachBatch(sink).option(...).start()

    Call it once for each batch. A query that writes to several sinks gives each another name.

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
            SecondWrite: this batch of the query was written before in this run.
        """
        parsed = parse(self._options)
        query, run = _ids(batch, batch_id)
        if self._name:
            query = f"{self._name}/{query}"  # a slash is part of no name: no prefix of another id
        key = parsed.bootstrap_servers, parsed.decisions_topic, query
        with _lock:
            is_repeated = _written.get(key) == (run, batch_id)
        if is_repeated:
            raise SecondWrite(
                f"plog sink: batch {batch_id} is already written in this run: a BatchSink writes a "
                "batch in one call. Write all rows at once (union), or use another BatchSink with "
                "another name"
            )
        batch.write.format("plog").mode("append").options(
            **{
                **self._options,
                SERVERS: parsed.bootstrap_servers,
                QUERY_OPTION: query,
                RUN_OPTION: run,
                BATCH_OPTION: str(batch_id),
            }
        ).save()
        with _lock:
            _written[key] = run, batch_id


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
