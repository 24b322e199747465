"""Loads topics into Parquet files, partitioned by topic and date, each record once.

    spark-submit spark/load_parquet.py --topic flights --path /data/warehouse

A run reads what came since the last one, however that ended: the rows and the offsets up to which
they were loaded become visible together, by the rename of one directory (`parquet_store` says why
that is atomic on a local filesystem and on HDFS). `--from` loads again from a point in time what
was loaded from there on, `--compact` puts small files together; both replace in one such step.

`read(spark, path)` is for whoever reads: the files that count, as the last manifest names them.
`spark.read.parquet(path)` by itself sees the same rows, except that it sees replaced ones besides
for some hours after a reload or a compaction, until their files are deleted.

A topic is known by its id. One that was deleted and created anew is refused, unless `--recreated`
says what is to become of the old one's records.
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
"""What `read` returns: the last two are directories."""
# Whole numbers, and no session's time zone; rounded down before 1970 too.
DATE = (
    "date_from_unix_date(cast((unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000))"
    " div 86400000000 as int))"
)
FAIL, KEEP, REPLACE = "fail", "keep", "replace"
"""What becomes of the records of a topic that was deleted, where there is a new one of its name."""
SMALL = 0.75
"""Of the size that files are to have: smaller ones are put together."""
MB = 1 << 20


class Recreated(PlogError):
    """A topic is not the one whose records were loaded, but a later one of the same name."""


class Unfinished(PlogError):
    """The files that were written do not hold what they should; they do not count."""


class Loaded(NamedTuple):
    """What a run has loaded of a partition: offsets start <= offset < end, in so many records."""

    topic: str
    partition: int
    start: int
    end: int
    records: int


class Plan(NamedTuple):
    """Where loading begins and ends in each partition, and the ids of the topics.

    `again` tells whether what comes takes the place of what was loaded from the starts on.
    """

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    ids: dict[str, str]
    again: bool = False


class Compacted(NamedTuple):
    """What a compaction has done: files and bytes before and after."""

    files: int
    into: int
    bytes: int
    into_bytes: int


# -- reading ---------------------------------------------------------------------------------------


def read(spark: SparkSession, path: str) -> DataFrame:
    """Return what was loaded, as of now; later loads, reloads and compactions do not disturb it.

    Its columns are those of the source, with headers, `topicId`, by which the records of a topic
    and those of a later one of the same name are told apart, and `date`, of the timestamp in UTC.
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
    """Return what is to be loaded now, behind what was; with a time, again from there on.

    A partition that is new begins at its earliest offset. So does a topic, unless there is a time.

    Raises:
        Recreated: see there.
        DataLoss: records that were not loaded yet are gone, or some that were.
        KafkaError: a topic does not exist, or the brokers do not answer.
    """
    from plog.spark import offsets
    from plog.spark.offsets import DataLoss

    def step() -> Plan:
        with offsets.open_cluster(options) as cluster:
            partitions = offsets.find_partitions(cluster, options)
            if not partitions:
                return Plan({}, {}, {})
            first, last = offsets.named_ends(cluster, options, partitions)
            # What an earlier run read of a transaction that is still open is not lost.
            log_end = offsets.log_ends(cluster, options, partitions)
            timed = (
                {}
                if start_ms is None
                # Below 0 are names, not times: -1 is the end.
                else offsets.offsets_at(cluster, options, partitions, max(start_ms, 0))
            )
            ids = _ids(cluster, partitions)
        starts = {}
        for at in partitions:
            known = state.topics.get(at.topic)
            if known is not None and known.topic_id != ids[at.topic]:
                if recreated == FAIL:
                    raise Recreated(
                        f"topic {at.topic} was deleted and created anew: loaded was the one of id "
                        f"{known.topic_id}, this one's is {ids[at.topic]}; --recreated {KEEP} loads"
                        f" it besides, --recreated {REPLACE} in its place"
                    )
                known = None
            # A time behind the last record finds none.
            since = timed.get(at, first[at])
            since = last[at] if since < 0 else since
            if known is None:
                starts[at] = since
            elif at.partition not in known.next:
                starts[at] = first[at]
            else:
                reached = known.next[at.partition]
                there = min(max(reached, first[at]), log_end[at])
                if there != reached and fail_on_data_loss:
                    raise DataLoss(
                        f"{at} was loaded to offset {reached}, and holds {first[at]} to "
                        f"{log_end[at]} now; --no-fail-on-data-loss goes on at {there}"
                    )
                # Nothing is left out that was not loaded yet.
                starts[at] = there if start_ms is None else min(there, since)
        ends = {at: max(last[at], start) for at, start in starts.items()}
        return Plan(starts, ends, ids, again=start_ms is not None)

    return offsets.with_attempts(options, step)


def _ids(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[str, str]:
    return {name: str(cluster.topic(name).topic_id) for name in {at.topic for at in partitions}}


def check_ids(options: SourceOptions, ids: Mapping[str, str]) -> None:
    """Look whether the topics are still those of these ids.

    Raises:
        Recreated: they are not.
    """
    from plog.spark import offsets

    def step() -> dict[str, str]:
        with offsets.open_cluster(options) as cluster:
            return _ids(cluster, [TopicPartition(name, 0) for name in ids])

    now = offsets.with_attempts(options, step)
    changed = sorted(name for name in ids if now[name] != ids[name])
    if changed:
        raise Recreated(f"{', '.join(changed)}: deleted and created anew while it was loaded")


def steps(todo: Plan, most: int) -> list[dict[TopicPartition, int]]:
    """Return the ends of the steps of a plan, each of about `most` records.

    All partitions come along in each, in proportion to what they have.
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
    """Load what there is now, in steps of about `most` records; from a time on again, in one.

    Args:
        subscription: options of the source that say where the topics are and which.

    Returns:
        what was loaded, by partition.

    Raises:
        Conflict: another run loads the same topics; what it did stands.
        Unfinished: see `write`. And whatever `plan` raises.
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
    # What is replaced goes in the same step in which all of the new comes.
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
    """Load a part in one step; return what there is then, and the records by partition.

    Args:
        reading: options of the source, of which those count that do not say what is read.
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
        store.give_up(work)
        raise
    records = Counter[TopicPartition]()
    for one in files:
        for partition, span in one.spans.items():
            records[TopicPartition(one.topic, partition)] += span.rows
    return state, records - kept


def _after(part: Plan) -> dict[str, Position]:
    """Return how far the topics of a plan are loaded behind it."""
    reached = defaultdict[str, dict[int, int]](dict)
    for at, end in part.ends.items():
        reached[at.topic][at.partition] = end
    return {name: Position(part.ids[name], offsets) for name, offsets in reached.items()}


def _replaced(state: State, part: Plan, recreated: str) -> tuple[set[str], list[str]]:
    """Return the files that a load replaces, and those of them that hold rows which stay.

    Those of the same topic hold what is to come only where that is loaded again.
    """
    drop, cut = set[str](), []
    for one in state.files:
        if one.topic not in part.ids:
            continue
        if one.topic_id != part.ids[one.topic]:
            if recreated == REPLACE:
                drop.add(one.path)
            continue
        if not part.again:  # what the log has lost is nowhere else
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
        # So many tasks at least: there may be more processors than the driver has.
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .load()
    )
    return records.withColumns(
        {"topicId": F.create_map(*ids)[F.col("topic")], "date": F.expr(DATE)}
    )


def _rows_before(
    spark: SparkSession, store: Store, paths: Sequence[str], starts: Mapping[TopicPartition, int]
) -> DataFrame:
    """Return those rows of some files that are before where loading begins."""
    from pyspark.sql import functions as F  # noqa: N812

    begins = spark.createDataFrame(
        [(*at, start) for at, start in starts.items()],
        "topic string, partition int, begin bigint",
    )
    rows = read_files(spark, store, paths).join(F.broadcast(begins), ["topic", "partition"])
    return rows.where("offset < begin").drop("begin")


def write(spark: SparkSession, store: Store, work: str, rows: DataFrame) -> list[File]:
    """Write rows into a step's directory; return its files, of which three columns are read again.

    Raises:
        Unfinished: they hold more or fewer rows than were written.
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
        raise Unfinished(f"{written} rows were written, and {found} are there")
    return [files[path] for path in sorted(files)]


# -- compaction ------------------------------------------------------------------------------------


def bins(files: Sequence[File], target_bytes: int) -> list[list[File]]:
    """Return which small files become one: those of a topic and date, up to a size."""
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
    """Put small files together, of all topics, in one step.

    Raises:
        Conflict: another run has replaced the same files; what it did stands.
        Unfinished: the new files do not hold the rows of the old ones.
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
    # A task of Spark's gives its files the same name in each directory.
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
            raise Unfinished("the compacted files do not hold what the small ones do")
        store.commit(work, Change("compaction", add=new, drop={one.path for one in old}))
    except Exception:
        store.give_up(work)
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
    """Print what a run has loaded."""
    columns = ("Topic", "Partition", "From offset", "To offset", "Records")
    job.print_table(f"Loaded: {sum(one.records for one in loaded):,} records", columns, loaded)


def print_state(state: State) -> None:
    """Print what there is."""
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
    """Say until when replaced files are in the way, where there are some."""
    kept = store.kept()
    if kept:
        click.echo(
            f"{counted(len(kept), 'replaced file')} will stay until "
            f"{job.utc_text(max(kept.values()))} (UTC), and the first run behind that deletes them."
            " Until then spark.read.parquet and pandas find their records twice: read by "
            f'load_parquet.read(spark, "{path}")'
        )


@click.command()
@job.config_option
@job.bootstrap_option
@click.option("--path", required=True, help="The directory that everything is in: local or HDFS.")
@click.option("--topic", "topics", multiple=True, help="A topic to load; may be given repeatedly.")
@click.option("--pattern", help="Load every topic in whose name this regular expression is found.")
@click.option(
    "--from",
    "start_ms",
    type=job.UTC_TIME,
    help="Load again what was loaded from this time (UTC) on, and replace its files (see --keep); "
    "of new topics nothing before it.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option(
    "--step",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="About so many records become visible at a time, and are not lost when a run dies later.",
)
@click.option(
    "--recreated",
    type=click.Choice([FAIL, KEEP, REPLACE]),
    default=FAIL,
    show_default=True,
    help="If a topic is a new one of its name: what becomes of the old one's records.",
)
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    default=True,
    show_default=True,
    help="Whether to stop where records were deleted before they were loaded.",
)
@click.option(
    "--compact",
    "compacts",
    is_flag=True,
    help="Put small files together, and replace them (see --keep); load nothing.",
)
@click.option(
    "--target-size",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="MB that --compact makes files of.",
)
@click.option("--show", is_flag=True, help="Say what is there; load nothing.")
@click.option(
    "--keep",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    help="Hours that files stay which were replaced, for who reads them, or which a dead run left. "
    "No run may take longer. As long, spark.read.parquet and pandas find the records of replaced "
    "files twice: read(spark, PATH) of this module finds each once.",
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
        raise click.UsageError("one of --topic and --pattern must be given")
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
                else "There are no small files to put together"
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
                click.echo("There is nothing new")
        print_kept(store, path)


if __name__ == "__main__":
    main()
