"""The common parts of the jobs: options, config files, times, sessions, tables, progress, queries.

    @click.command()
    @job.config_option
    @job.bootstrap_option
    @click.option("--from", "start_ms", type=job.UTC_TIME)
    def main(bootstrap_server: str, start_ms: int | None) -> None:
        with job.session("my job") as spark:
            ...

Imports Spark only when a session begins, so that `--help` and usage errors are quick.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from plog.cli.output import SECOND_MS, UNITS_S
from plog.errors import PlogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])
Options = Sequence[tuple[str, str]]
"""Options of a source or a sink: names and values."""
REFUSAL = re.compile(
    r"^plog\.[\w.]+\.((?:ChangedBatch|ConfigError|DataLoss|NoLaterRecord|OffsetOutOfRange|Fenced"
    r"|PartialCommit|TransactionLost|UnknownTopicOrPartition|CheckpointRewound): .+)$",
    re.MULTILINE,
)
"""The last line of a traceback in a query's exception, for errors that the user can resolve.

For all other errors the whole traceback is printed.
"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEFT_OUT = "left_out"
"""The name of an observed metric that is reported at a query's end (see `report_queries`)."""
PROGRESS_INTERVAL_S = 10.0
"""How often a job reports its progress if stderr is not a terminal."""
CTRL_C_ENDS = "running; Ctrl-C ends it, and the next run resumes there"
POLL_INTERVAL_S = 0.2
"""How often a job asks Spark whether its queries are running."""
LISTENER_TIMEOUT_S = 60.0
"""Maximum wait for Spark's report of a query's end."""


class UtcTime(click.ParamType):
    """A time in ISO 8601 (UTC unless it has an offset) or in ms since 1970; converted to ms."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in ms since 1970."""
        if isinstance(value, int):
            return value
        try:
            return utc_ms(str(value))
        except ValueError as fault:
            self.fail(
                f"invalid time {value!r} ({fault}): use e.g. 2013-07-01 or 2013-07-01T15:30",
                param,
                ctx,
            )


UTC_TIME = UtcTime()


def utc_ms(text: str) -> int:
    """Return a time in ms since 1970 (see UtcTime).

    Raises:
        ValueError: the text is not a time.
    """
    # 20130701 is a day in ISO 8601; present times in ms have more digits.
    if text.isdecimal() and len(text) > 8:
        return int(text)
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH) // timedelta(
        milliseconds=1
    )


def utc_text(at_ms: int) -> str:
    """Return a time in ms since 1970 as readable text."""
    return (EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M:%S")


def duration_option(duration_ms: int) -> str:
    """Return a duration as options take it, exactly, in its largest whole unit: `90s`, `2h`."""
    for unit, seconds in UNITS_S.items():
        if duration_ms % (seconds * SECOND_MS) == 0:
            return f"{duration_ms // (seconds * SECOND_MS)}{unit}"
    return f"{duration_ms}ms"


class KeyValue(click.ParamType):
    """An option of a source or a sink, NAME=VALUE; converted to a pair."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the name and the value."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"invalid option {value!r}: use NAME=VALUE", param, ctx)
        return name, text


def _read_config(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as fault:
        raise click.BadParameter(f"{path}: {fault}") from fault
    options = {
        spelled.lstrip("-"): option
        for option in ctx.command.params
        if isinstance(option, click.Option) and option.expose_value
        for spelled in option.opts
    }
    unknown = sorted(given.keys() - options.keys())
    if unknown:
        raise click.BadParameter(
            f"{path}: unknown option {', '.join(unknown)}; use {', '.join(options)}"
        )
    ctx.default_map = {
        **(ctx.default_map or {}),
        **{
            str(options[name].name): _of_option(f"{path}: {name}", options[name], value)
            for name, value in given.items()
        },
    }


def _of_option(where: str, option: click.Option, value: Any) -> Any:
    """Return an option's value in a config file as the command line would give it."""
    if not option.multiple:
        if isinstance(value, list | dict):
            raise click.BadParameter(f"{where} takes one value")
        return _plain(value)
    if isinstance(value, dict):
        if not isinstance(option.type, KeyValue):
            raise click.BadParameter(f"{where} takes one value or a list, not a table")
        return [f"{name}={text}" for name, text in _pairs(value)]
    return [_plain(one) for one in (value if isinstance(value, list) else [value])]


def _pairs(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and values of a table; TOML reads a name with dots as nested tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _pairs(value, f"{before}{name}.")
        else:
            # As Spark and Kafka spell booleans.
            text = str(value).lower() if isinstance(value, bool) else str(_plain(value))
            yield before + name, text


def _plain(value: Any) -> Any:
    """Return a TOML value as the command line would give it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if isinstance(value, bool) else str(value)


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_config,
    is_eager=True,
    expose_value=False,
    metavar="FILE",
    help="Read options from a TOML file, by their long names without dashes. "
    "The command line takes precedence.",
)
bootstrap_option = click.option(
    "--bootstrap-server",
    # Not `envvar`: that would take precedence over the file of --config.
    default=lambda: os.environ.get("PLOG_BOOTSTRAP_SERVER") or "127.0.0.1:9092",
    show_default="PLOG_BOOTSTRAP_SERVER, else 127.0.0.1:9092",
    help="A broker's host:port.",
)


def _of_format(what: str, example: str) -> Callable[[AnyCommand], AnyCommand]:
    return click.option(
        f"--{what}-option",
        f"{what}_options",
        type=KeyValue(),
        multiple=True,
        metavar="NAME=VALUE",
        help=f"Further option of the {what} (docs/SPARK.md), e.g. {example}. Repeatable.",
    )


source_option = _of_format("source", "failOnDataLoss=false")
sink_option = _of_format("sink", "kafka.transaction.timeout.ms=600000")


@contextmanager
def session(name: str, **settings: str) -> Iterator[SparkSession]:
    """Run a block with a Spark session in UTC.

    Errors that the user can resolve end the job with their message, without a traceback.

    Args:
        settings: further Spark settings, with _ instead of the dots in their names.
    """
    from pyspark.errors import AnalysisException, StreamingQueryException

    from plog.spark import session as sessions

    defaults = {
        "spark_sql_session_timeZone": "UTC",
        # Few other programs read INT96, Spark's default.
        "spark_sql_parquet_outputTimestampType": "TIMESTAMP_MICROS",
    }
    spark = sessions.session(name, **defaults | settings)
    try:
        yield spark
    except PlogError as fault:
        raise click.ClickException(str(fault)) from fault
    except AnalysisException as fault:
        # For example the user's SQL; without the JVM's stack.
        raise click.ClickException(str(fault).partition("\n\nJVM stacktrace")[0]) from fault
    except StreamingQueryException as fault:
        refused = REFUSAL.search(str(fault))
        if refused is None:
            raise
        raise click.ClickException(refused[1]) from fault
    finally:
        spark.stop()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; whole numbers are right-aligned, with commas."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        is_number = any(isinstance(row[number], int) for row in rows)
        table.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe has no width of its own
    console.print(table)


@contextmanager
def progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Report on stderr how many of Spark's tasks are done while a block runs.

    On a terminal this is one line that is updated; otherwise a line every ten seconds.
    """
    done = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    terminal = sys.stderr.isatty()

    def report() -> None:
        begun = time.monotonic()
        while not done.wait(0.5 if terminal else PROGRESS_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            tasks = sum(stage.numTasks for stage in known)
            finished = sum(stage.numCompletedTasks for stage in known)
            line = f"{what}: {finished} of {tasks} tasks, {time.monotonic() - begun:.0f} s"
            click.echo(f"\r\033[K{line}" if terminal else line, err=True, nl=not terminal)

    reporter = threading.Thread(target=report, name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
        if terminal:
            click.echo("\r\033[K", err=True, nl=False)


@contextmanager
def report_queries(spark: SparkSession, dropped: str) -> Iterator[Counter[str]]:
    """Report on stderr the work of a block's queries, and the batches in which Spark dropped rows.

    Yields the number of dropped rows by query name; it is complete after the block. The metric
    LEFT_OUT (`DataFrame.observe`) is reported at a query's end.

    Args:
        dropped: describes the rows, after "Spark has dropped" and a number.
    """
    from py4j.protocol import Py4JError
    from pyspark.sql.streaming.listener import StreamingQueryListener

    lost, ended = Counter[str](), threading.Condition()
    running: dict[Any, tuple[str, Counter[str]]] = {}

    class Reporter(StreamingQueryListener):
        """Receives every batch, and a query's end after all of its batches."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            running[event.runId] = (event.name, Counter())

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            batch = event.progress
            if batch.runId not in running:  # started before the block
                return
            running[batch.runId][1].update(
                batches=1,
                records=batch.numInputRows,
                left_out=sum(
                    seen[LEFT_OUT] for seen in batch.observedMetrics.values() if LEFT_OUT in seen
                ),
            )
            count = sum(one.numRowsDroppedByWatermark for one in batch.stateOperators)
            if count:
                lost[batch.name] += count
                where = f"{batch.name}, batch {batch.batchId}"
                click.echo(f"{where}: Spark has dropped {count:,} {dropped}", err=True)

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            name, did = running.get(event.runId, (None, Counter()))
            if name is None:
                return
            left_out = f", {did['left_out']:,} left out" if did["left_out"] else ""
            click.echo(
                f"{name}: {did['records']:,} records read in {did['batches']} batches{left_out}",
                err=True,
            )
            with ended:
                del running[event.runId]
                ended.notify()

    reporter = Reporter()
    spark.streams.addListener(reporter)
    try:
        yield lost
    finally:
        with suppress(Py4JError):
            # Ctrl-C also ends the JVM of spark-submit, and then no end is reported.
            _ = spark.streams.active
            with ended:
                ended.wait_for(lambda: not running, LISTENER_TIMEOUT_S)
            spark.streams.removeListener(reporter)


def wait_for_end(
    is_active: Callable[[], bool], each_time: Callable[[], None] | None = None
) -> bool:
    """Wait until queries end (returns True) or Ctrl-C is pressed (returns False).

    PySpark's own handler of Ctrl-C breaks into the call to the JVM that is under way and makes
    another: the connection is lost, or its answers are mixed up, with pages of traceback.

    Args:
        is_active: asks Spark whether the queries are running.
        each_time: is called after each question that was answered with yes.
    """
    from py4j.protocol import Py4JError

    pressed = False

    def on_signal(_signal: int, _frame: object) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        while is_active():
            if pressed:
                return False
            time.sleep(POLL_INTERVAL_S)
            if each_time is not None:
                each_time()
    except Py4JError:
        if not pressed:  # Ctrl-C also ends the JVM of spark-submit
            raise
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True


def stop(query: StreamingQuery) -> None:
    """Stop a query, if the JVM is still running."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError):
        query.stop()
