"""Loads topics into Parquet files, partitioned by topic and date, each record once.

    spark-submit spark/load_parquet.py --topic flights --path /data/warehouse

A run reads the records since the last run, even if that one crashed. Rows and offsets become
visible together, by the rename of one directory (`parquet_store` explains why that is atomic on a
local filesystem and on HDFS). `--from` reloads everything from a point in time, and `--compact`
merges small files; both replace files in one such step.

Read with `read(spark, path)`: it reads the current files, which the last manifest lists.
`spark.read.parquet(path)` sees the same rows, and for some hours after a reload or a compaction
also the replaced ones, until their files are deleted.

A topic is identified by its id. If a topic was deleted and recreated, the job refuses it unless
`--recreated` decides about the old topic's records.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click
import job
from filesystems import files_at
from parquet_store import Change, File, Position, Span, State, Store

from plog.errors import PlogError
from plog.types import TopicPartition, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from plog.client.metadata import Cluster
    from plog.spark.options import SourceOptions

COLUMNS = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>, topicId string"
)
SCHEMA = f"{COLUMNS}, topic string, date date"
"""The schema of `read`; the last two columns are directories."""
# Integer arithmetic, independent of the session's time zone; rounds down before 1970, too.
DATE = (
    "date_from_unix_date(cast((unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000))"
    " div 86400000000 as int))"
)
FAIL, KEEP, REPLACE = "fail", "keep", "replace"
"""The choices of `--recreated` for the records of a deleted topic."""
SMALL = 0.75
"""Files below this fraction of the target size are merged."""
MB = 1 << 20


class Recreated(PlogError):
    """The topic was recreated: it is not the one whose records were loaded."""


class Unfinished(PlogError):
    """The written files have other rows than expected, and are not used."""


class Loaded(NamedTuple):
    """The loaded offsets of a partition, start <= offset < end, and the number of records."""

    topic: str
    partition: int
    start: int
    end: int
    records: int


class Plan(NamedTuple):
    """The first and last offsets to load by partition, and the ids of the topics.

    With `again`, the new records replace everything loaded from the starts on.
    """

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    ids: dict[str, str]
    again: bool = False


class Compacted(NamedTuple):
    """The result of a compaction: files and bytes before and after."""

    files: int
    into: int
    bytes: int
    into_bytes: int


# -- reading ---------------------------------------------------------------------------------------


def read(spark: SparkSession, path: str) -> DataFrame:
    """Return the loaded rows as of now, unaffected by later loads, reloads and compactions.

    The columns are those of the source with headers, `topicId`, which distinguishes a topic from a
    recreated one of the same name, and `date`, the date of the timestamp in UTC.
    """
    store = Store(files_at(spark, path))
    return read_files(spark, store, [one.path for one in store.state().files])


def read_files(spark: SparkSession, store: Store, paths: Sequence[str]) -> DataFrame:
    """Return the rows of some files of a store."""
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    root = store.files.root
    reader = spark.read.schema(SCHEMA).option("basePath", root)
    return reader.parquet(*(f"{root}/{path}" for path in paths)).drop("load")


# -- planning --------------------------------------------------------------------------------------


def plan(
    options: SourceOptions,
    state: State,
    *,
    start_ms: int | None = None,
    recreated: str = FAIL,
    fail_on_data_loss: bool = True,
) -> Plan:
    """Return the plan of the next load: after the loaded records, or again from `start_ms` on.

    A new partition begins at its earliest offset. So does a new topic, unless `start_ms` is set.

    Raises:
        Recreated: a topic was recreated, and `recreated` is FAIL.
        DataLoss: records were deleted before they were loaded, or the log is shorter than before.
        KafkaError: a topic does not exist, or the brokers do not respond.
    """
    from plog.spark import offsets
    from plog.spark.offsets import DataLoss

    def step() -> Plan:
        with offsets.open_cluster(options) as cluster:
            partitions = offsets.find_partitions(cluster, options)
            if not partitions:
                return Plan({}, {}, {})
            first, last = offsets.named_ends(cluster, options, partitions)
            # Records of open transactions that an earlier run has read are not lost.
            log_end = offsets.log_ends(cluster, options, partitions)
            timed = (
                {}
                if start_ms is None
                # Negative numbers are names, not times: -1 is the end.
                else offsets.offsets_at(cluster, options, partitions, max(start_ms, 0))
            )
            ids = _ids(cluster, partitions)
        starts = {}
        for at in partitions:
            known = state.topics.get(at.topic)
            if known is not None and known.topic_id != ids[at.topic]:
                if recreated == FAIL:
                    raise Recreated(
                        f"topic {at.topic} was deleted and recreated: its id is {ids[at.topic]}, "
                        f"but topic {known.topic_id} was loaded. --recreated {KEEP} keeps the old "
                        f"topic's records, --recreated {REPLACE} replaces them"
                    )
                known = None
            # A time after the last record has no offset.
            since = timed.get(at, first[at])
            since = last[at] if since < 0 else since
            if known is None:
                starts[at] = since
            elif at.partition not in known.next:
                starts[at] = first[at]
            else:
                reached = known.next[at.partition]
                resume = min(max(reached, first[at]), log_end[at])
                if resume != reached and fail_on_data_loss:
                    raise DataLoss(
                        f"{at} was loaded up to offset {reached}, but now has offsets {first[at]} "
                        f"to {log_end[at]}; --no-fail-on-data-loss resumes at {resume}"
                    )
                # Never later than `resume`: all records that were not loaded yet are loaded.
                starts[at] = resume if start_ms is None else min(resume, since)
        ends = {at: max(last[at], start) for at, start in starts.items()}
        return Plan(starts, ends, ids, again=start_ms is not None)

    return offsets.with_attempts(options, step)


def _ids(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[str, str]:
    return {name: str(cluster.topic(name).topic_id) for name in {at.topic for at in partitions}}


def check_ids(options: SourceOptions, ids: Mapping[str, str]) -> None:
    """Check that the topics still have these ids.

    Raises:
        Recreated: a topic has another id.
    """
    from plog.spark import offsets

    def step() -> dict[str, str]:
        with offsets.open_cluster(options) as cluster:
            return _ids(cluster, [TopicPartition(name, 0) for name in ids])

    now = offsets.with_attempts(options, step)
    changed = sorted(name for name in ids if now[name] != ids[name])
    if changed:
        raise Recreated(
            f"topic {', '.join(changed)} was deleted and recreated while it was loaded; run again"
        )


def steps(todo: Plan, most: int) -> list[dict[TopicPartition, int]]:
    """Return the end offsets of a plan's steps of about `most` records each.

    Each step has all partitions, in proportion to their records.
    """
    total = sum(todo.ends[at] - start for at, start in todo.starts.items())
    count = max(1, math.ceil(total / most))
    return [
        {at: start + (todo.ends[at] - start) * number // count for at, start in todo.starts.items()}
        for number in range(1, count + 1)
    ]


# -- loading ---------------------------------------------------------------------------------------


def load(
    spark: SparkSession,
    store: Store,
    subscription: Mapping[str, str],
    *,
    start_ms: int | None = None,
    recreated: str = FAIL,
    fail_on_data_loss: bool = True,
    most: int = 10_000_000,
) -> list[Loaded]:
    """Load the present records, in steps of about `most` records; a reload is one step.

    Args:
        subscription: the source's options for the brokers and topics.

    Returns:
        The loaded offsets and records, by partition.

    Raises:
        Conflict: another run has loaded the same topics; its result is kept.
        Unfinished: see `write`.
        PlogError: as `plan`.
    """
    from plog.spark.options import parse

    options = parse(subscription)
    store.clean()
    state = store.state()
    todo = plan(
        options, state,
        start_ms=start_ms, recreated=recreated, fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    drop, _ = _replaced(state, todo, recreated)
    if not drop and all(state.topics.get(name) == at for name, at in _after(todo).items()):
        return []
    # A step that replaces files contains all new records, so that both change together.
    parts = [todo.ends] if drop else steps(todo, most)
    starts, loaded = todo.starts, Counter[TopicPartition]()
    for number, ends in enumerate(parts, 1):
        what = "loading" if len(parts) == 1 else f"loading, part {number} of {len(parts)}"
        with job.progress(spark, what):
            state, records = _load_part(
                spark,
                store,
                {**subscription, "failOnDataLoss": str(fail_on_data_loss).lower()},
                state,
                todo._replace(starts=starts, ends=ends),
                recreated,
            )
        loaded.update(records)
        starts = ends
    return [
        Loaded(*at, start, todo.ends[at], loaded[at])
        for at, start in sorted(todo.starts.items())
        if start < todo.ends[at]
    ]


def _load_part(
    spark: SparkSession,
    store: Store,
    reading: Mapping[str, str],
    state: State,
    part: Plan,
    recreated: str,
) -> tuple[State, Counter[TopicPartition]]:
    """Load a part in one step; return the new state, and the records by partition.

    Args:
        reading: the source's options; the topics and offsets are those of `part`.
    """
    from plog.spark.options import parse

    drop, cut = _replaced(state, part, recreated)
    rows, kept = _new_rows(spark, reading, part), Counter[TopicPartition]()
    if cut:
        old = _rows_before(spark, store, cut, part.starts)
        for topic, partition, count in old.groupBy("topic", "partition").count().collect():
            kept[TopicPartition(topic, partition)] = count
        rows = rows.unionByName(old)
    work = store.begin()
    try:
        files = write(spark, store, work, rows)
        check_ids(parse(reading), part.ids)
        before = {name: state.topics[name] for name in part.ids if name in state.topics}
        change = Change("reload" if drop else "load", before, _after(part), files, drop)
        state = store.commit(work, change)
    except Exception:
        store.discard(work)
        raise
    records = Counter[TopicPartition]()
    for one in files:
        for partition, span in one.spans.items():
            records[TopicPartition(one.topic, partition)] += span.rows
    return state, records - kept


def _after(part: Plan) -> dict[str, Position]:
    """Return the topics' positions after a plan."""
    reached = defaultdict[str, dict[int, int]](dict)
    for at, end in part.ends.items():
        reached[at.topic][at.partition] = end
    return {name: Position(part.ids[name], offsets) for name, offsets in reached.items()}


def _replaced(state: State, part: Plan, recreated: str) -> tuple[set[str], list[str]]:
    """Return the files that a load replaces, and those of them with rows to keep.

    A normal load replaces no files of the same topic; a reload does.
    """
    drop, cut = set[str](), []
    for one in state.files:
        if one.topic not in part.ids:
            continue
        if one.topic_id != part.ids[one.topic]:
            if recreated == REPLACE:
                drop.add(one.path)
            continue
        if not part.again:  # keep them: the log may have lost their records
            continue
        starts = {p: part.starts[TopicPartition(one.topic, p)] for p in one.spans}
        if any(span.last >= starts[p] for p, span in one.spans.items()):
            drop.add(one.path)
            if any(span.first < starts[p] for p, span in one.spans.items()):
                cut.append(one.path)
    return drop, cut


def _new_rows(spark: SparkSession, reading: Mapping[str, str], part: Plan) -> DataFrame:
    """Return the records of a plan."""
    from pyspark.sql import functions as F  # noqa: N812

    assigned, starts, ends = (defaultdict[str, dict[int, int]](dict) for _ in range(3))
    for at, start in part.starts.items():
        if start < part.ends[at]:
            assigned[at.topic][at.partition] = at.partition
            starts[at.topic][at.partition] = start
            ends[at.topic][at.partition] = part.ends[at]
    if not assigned:
        return spark.createDataFrame([], SCHEMA)
    options = {name: value for name, value in reading.items() if not name.startswith("subscribe")}
    ids = [F.lit(text) for name in assigned for text in (name, part.ids[name])]
    records = (
        spark.read.format("plog")
        .options(**options)
        .option("assign", json.dumps({name: list(of) for name, of in assigned.items()}))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        # The executors may have more processors than the driver.
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .load()
    )
    return records.withColumns(
        {"topicId": F.create_map(*ids)[F.col("topic")], "date": F.expr(DATE)}
    )


def _rows_before(
    spark: SparkSession, store: Store, paths: Sequence[str], starts: Mapping[TopicPartition, int]
) -> DataFrame:
    """Return the rows of some files before the starts."""
    from pyspark.sql import functions as F  # noqa: N812

    begins = spark.createDataFrame(
        [(*at, start) for at, start in starts.items()],
        "topic string, partition int, begin bigint",
    )
    rows = read_files(spark, store, paths).join(F.broadcast(begins), ["topic", "partition"])
    return rows.where("offset < begin").drop("begin")


def write(spark: SparkSession, store: Store, work: str, rows: DataFrame) -> list[File]:
    """Write rows into a step's directory, read three columns back, and return the files.

    Raises:
        Unfinished: the files have more or fewer rows than were written.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    target = f"{store.files.root}/{work}"
    seen = Observation()
    (
        rows.observe(seen, F.count(F.lit(1)).alias("rows"))
        .sortWithinPartitions("topic", "date", "partition", "offset")
        .write.partitionBy("topic", "date")
        .parquet(target)
    )
    parts = (
        spark.read.schema(SCHEMA)
        .parquet(target)
        .groupBy(
            F.col("_metadata.file_name"), F.col("_metadata.file_size"), "topic", "topicId",
            F.col("date").cast("string"), "partition",
        )
        .agg(F.min("offset"), F.max("offset"), F.count("offset"))
        .collect()
    )  # fmt: skip
    files: dict[str, File] = {}
    spans = defaultdict[str, dict[int, Span]](dict)
    for name, size, topic, topic_id, date, partition, *span in parts:
        path = f"topic={topic}/date={date}/{name}"
        spans[path][partition] = Span(*span)
        files[path] = File(path, topic, topic_id, date, size, spans[path])
    found, written = sum(one.rows for one in files.values()), seen.get["rows"]
    if found != written:
        raise Unfinished(f"{written} rows were written, but the files have {found}; run again")
    return [files[path] for path in sorted(files)]


# -- compaction ------------------------------------------------------------------------------------


def bins(files: Sequence[File], target_bytes: int) -> list[list[File]]:
    """Return groups of small files to merge: of one topic and date, up to a size."""
    groups = defaultdict[tuple[str, str, str], list[File]](list)
    for one in sorted(files):
        if one.bytes < SMALL * target_bytes:
            groups[one.topic, one.topic_id, one.date].append(one)
    found = []
    for group in groups.values():
        together: list[File] = []
        for one in group:
            if together and sum(other.bytes for other in together) + one.bytes > target_bytes:
                found.append(together)
                together = []
            together.append(one)
        found.append(together)
    return [together for together in found if len(together) > 1]


def compact(spark: SparkSession, store: Store, *, target_bytes: int = 128 * MB) -> Compacted:
    """Merge small files of all topics, in one step.

    Raises:
        Conflict: another run has replaced the same files; its result is kept.
        Unfinished: the new files do not have the rows of the old ones.
    """
    from pyspark.sql import functions as F  # noqa: N812

    store.clean()
    together = bins(store.state().files, target_bytes)
    old = [one for some in together for one in some]
    if not old:
        return Compacted(0, 0, 0, 0)
    numbers = [
        (one.topic, one.date, one.path.rpartition("/")[2], number)
        for number, some in enumerate(together)
        for one in some
    ]
    # A task in Spark gives its files the same name in each directory.
    by_name = spark.createDataFrame(numbers, "topic string, day string, name string, bin int")
    rows = (
        read_files(spark, store, [one.path for one in old])
        .withColumns({"name": F.col("_metadata.file_name"), "day": F.col("date").cast("string")})
        .join(F.broadcast(by_name), ["topic", "day", "name"])
        .repartitionById(len(together), "bin")
        .drop("day", "name", "bin")
    )
    work = store.begin()
    try:
        with job.progress(spark, "compacting"):
            new = write(spark, store, work, rows)
        if _contents(new) != _contents(old):
            raise Unfinished("the compacted files have other rows than the small ones; run again")
        store.commit(work, Change("compaction", add=new, drop={one.path for one in old}))
    except Exception:
        store.discard(work)
        raise
    return Compacted(
        len(old), len(new), sum(one.bytes for one in old), sum(one.bytes for one in new)
    )


def _contents(files: Sequence[File]) -> dict[tuple[str, str, str, int], Span]:
    """Return the rows of each topic, date and partition."""
    found: dict[tuple[str, str, str, int], Span] = {}
    for one in files:
        for partition, span in one.spans.items():
            key = (one.topic, one.topic_id, one.date, partition)
            other = found.get(key, Span(span.first, span.last, 0))
            found[key] = Span(
                min(span.first, other.first), max(span.last, other.last), span.rows + other.rows
            )
    return found


# -- the command -----------------------------------------------------------------------------------


def print_loaded(loaded: Sequence[Loaded]) -> None:
    """Print the loaded offsets and records of a run."""
    columns = ("Topic", "Partition", "From offset", "To offset", "Records")
    job.print_table(f"Loaded: {sum(one.records for one in loaded):,} records", columns, loaded)


def print_state(state: State) -> None:
    """Print the topics, records and files of a state."""
    rows = []
    for name in sorted({one.topic for one in state.files} | state.topics.keys()):
        files = [one for one in state.files if one.topic == name]
        dates = [one.date for one in files]
        rows.append(
            (
                name,
                sum(one.rows for one in files),
                len(files),
                round(sum(one.bytes for one in files) / MB),
                min(dates, default=""),
                max(dates, default=""),
            )
        )
    columns = ("Topic", "Records", "Files", "MB", "First date", "Last date")
    title = f"Step {state.number}, {state.kind} of {job.utc_text(state.at_ms)}"
    job.print_table(title if state.number else "Nothing was loaded yet", columns, rows)


def print_kept(store: Store, path: str) -> None:
    """Print until when replaced files stay, if there are any."""
    kept = store.kept()
    if kept:
        click.echo(
            f"{counted(len(kept), 'replaced file')} will stay until "
            f"{job.utc_text(max(kept.values()))} (UTC); the first run after that deletes them. "
            "Until then spark.read.parquet and pandas read their records twice. Use "
            f'load_parquet.read(spark, "{path}")'
        )


@click.command()
@job.config_option
@job.bootstrap_option
@click.option("--path", required=True, help="Directory for all files: local or on HDFS.")
@click.option("--topic", "topics", multiple=True, help="Topic to load. Repeatable.")
@click.option("--pattern", help="Regular expression: load all topics whose name contains a match.")
@click.option(
    "--from",
    "start_ms",
    type=job.UTC_TIME,
    help="Reload everything from this time (UTC) on, and replace its files (see --keep). New "
    "topics are loaded from this time, too.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Records to load: committed ones, or all.",
)
@click.option(
    "--step",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="Approximate records per step. Finished steps are visible, and kept if the run dies.",
)
@click.option(
    "--recreated",
    type=click.Choice([FAIL, KEEP, REPLACE]),
    default=FAIL,
    show_default=True,
    help="Old records of a topic that was deleted and recreated: refuse, keep or replace them.",
)
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    default=True,
    show_default=True,
    help="Stop if records were deleted before they were loaded.",
)
@click.option(
    "--compact",
    "compacts",
    is_flag=True,
    help="Merge small files, and replace them (see --keep); load nothing.",
)
@click.option(
    "--target-size",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="File size in MB for --compact.",
)
@click.option("--show", is_flag=True, help="List topics, records and files; load nothing.")
@click.option(
    "--keep",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    help="Hours to keep replaced files for present readers, and files of dead runs. No run may "
    "take longer. Meanwhile spark.read.parquet and pandas read replaced records twice; "
    "read(spark, PATH) of this module reads each once.",
)
def main(
    bootstrap_server: str,
    path: str,
    topics: tuple[str, ...],
    pattern: str | None,
    start_ms: int | None,
    isolation_level: str,
    step: int,
    recreated: str,
    fail_on_data_loss: bool,
    compacts: bool,
    target_size: int,
    show: bool,
    keep: float,
) -> None:
    """Load topics into Parquet files, by topic and date, each record once."""
    if not compacts and not show and bool(topics) == bool(pattern):
        raise click.UsageError("specify --topic or --pattern (one of them)")
    with job.session("load parquet") as spark:
        store = Store(files_at(spark, path), keep_s=keep * 3600)
        if show:
            print_state(store.state())
        elif compacts:
            done = compact(spark, store, target_bytes=target_size * MB)
            click.echo(
                f"{done.files:,} files of {done.bytes / MB:,.1f} MB became {done.into:,} of "
                f"{done.into_bytes / MB:,.1f} MB"
                if done.files
                else "No small files to merge."
            )
        else:
            subscription = {
                "kafka.bootstrap.servers": bootstrap_server,
                "kafka.isolation.level": isolation_level,
                **({"subscribePattern": pattern} if pattern else {"subscribe": ",".join(topics)}),
            }
            loaded = load(
                spark, store, subscription,
                start_ms=start_ms, recreated=recreated,
                fail_on_data_loss=fail_on_data_loss, most=step,
            )  # fmt: skip
            if loaded:
                print_loaded(loaded)
            else:
                click.echo("No new records.")
        print_kept(store, path)


if __name__ == "__main__":
    main()
