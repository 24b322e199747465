"""`plog consume`: print the records of a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from plog.cli.output import bootstrap_option, data_json, is_number, time_ms, warn_of_leaderless

if TYPE_CHECKING:
    from plog.client.consumer import Consumer, ConsumerRecord
    from plog.types import TopicPartition

POLL_MS = 1000
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
ENDS = ("earliest", "latest")


@click.command()
@click.argument("topic")
@bootstrap_option
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition [default: all]. Repeatable.",
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|@TIME",
    help="Where to start in each partition. OFFSET outside the log means the nearer end of the log."
    " @TIME means the first record at or after that time: @2013-07-04T12:00:00 (UTC unless it has"
    " a time zone), or @ and milliseconds since 1970.",
)
@click.option(
    "--group",
    metavar="NAME",
    help="Join this consumer group: share the topic with its other members, continue at the group's"
    " committed offsets, and commit the printed records. --from then applies only to partitions"
    " without a committed offset.",
)
@click.option("--max", "most", type=click.IntRange(0), help="Maximum number of records to print.")
@click.option(
    "--exit-at-end", is_flag=True, help="Exit at the end instead of waiting for new records."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each record as a JSON object with all fields, one per line.",
)
@click.option("--keys", is_flag=True, help="Print the key and a tab before each value.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed skips records of open and aborted transactions.",
)
def command(
    topic: str,
    bootstrap: str,
    partitions: tuple[int, ...],
    start: str,
    group: str | None,
    most: int | None,
    exit_at_end: bool,
    as_json: bool,
    keys: bool,
    isolation_level: str,
) -> None:
    """Print the records of TOPIC, each value on a line, until Ctrl-C.

    Values are printed unchanged; a record without a value prints "null". With --json, bytes that
    are not UTF-8 print as {"base64": ...}.

    \b
      plog consume greetings --exit-at-end
      plog consume greetings --from @2013-07-04 --max 10 --json
      plog consume greetings --group readers
    """
    from plog.client.metadata import Cluster

    if group is not None:
        if partitions or start not in ENDS:
            raise click.UsageError(
                "--group conflicts with --partition, and with --from other than earliest or latest"
            )
        options = {"auto_offset_reset": start, "isolation_level": isolation_level}
        # A group waits for a missing topic, but here the user has probably mistyped its name.
        with Cluster(bootstrap) as cluster:
            cluster.topic(topic)
            warn_of_leaderless(cluster, topic)
        _consume_in_group(
            bootstrap, group, topic, options, _Output(most, exit_at_end, as_json, keys)
        )
        return
    from plog.client.consumer import Consumer
    from plog.errors import UnknownTopicOrPartition
    from plog.types import TopicPartition, counted

    with Cluster(bootstrap) as cluster:
        warn_of_leaderless(cluster, topic, partitions)
    with Consumer(
        bootstrap,
        auto_offset_reset=start if start in ENDS else "earliest",
        isolation_level=isolation_level,
    ) as consumer:
        known = consumer.partitions_for(topic)
        assigned = [TopicPartition(topic, p) for p in dict.fromkeys(partitions)] or known
        for partition in assigned:
            if partition not in known:
                raise UnknownTopicOrPartition(
                    f"topic {topic!r} has {counted(len(known), 'partition')}, "
                    f"but no partition {partition.partition}"
                )
        consumer.assign(assigned)
        _seek(consumer, assigned, start)
        ends = consumer.end_offsets(assigned) if exit_at_end else None
        count = 0
        while most is None or count < most:
            if ends is not None and all(consumer.position(p) >= ends[p] for p in assigned):
                break
            for record in consumer.poll(POLL_MS):
                if count == most:
                    break
                if ends is not None and record.offset >= ends[_where(record)]:
                    continue  # appended after the start; --exit-at-end ends before it
                _write(record, as_json=as_json, keys=keys)
                count += 1
            sys.stdout.buffer.flush()


class _Output(NamedTuple):
    """How to print records, and when to stop."""

    most: int | None
    exit_at_end: bool
    as_json: bool
    keys: bool


def _consume_in_group(
    bootstrap: str, group: str, topic: str, options: Mapping[str, Any], output: _Output
) -> None:
    from plog.client.group_consumer import GroupConsumer, Listener, OffsetAndMetadata

    ends: dict[TopicPartition, int] = {}
    count = 0
    with GroupConsumer(bootstrap, group, enable_auto_commit=False, **options) as consumer:

        def look_at_ends(come: list[TopicPartition]) -> None:
            ends.update(consumer.end_offsets(come))

        consumer.subscribe([topic], Listener(on_assigned=look_at_ends))
        while output.most is None or count < output.most:
            found = consumer.poll(POLL_MS)
            # Commit only printed records; the next run of the group prints the others.
            printed = found if output.most is None else found[: output.most - count]
            for record in printed:
                _write(record, as_json=output.as_json, keys=output.keys)
            sys.stdout.buffer.flush()
            count += len(printed)
            consumer.commit(
                {
                    _where(one): OffsetAndMetadata(one.offset + 1, leader_epoch=one.leader_epoch)
                    for one in printed
                }
            )
            assigned = consumer.assignment()
            at_end = assigned and all(consumer.position(at) >= ends[at] for at in assigned)
            if output.exit_at_end and at_end:
                break


def _where(record: ConsumerRecord) -> TopicPartition:
    from plog.types import TopicPartition

    return TopicPartition(record.topic, record.partition)


def _write(record: ConsumerRecord, *, as_json: bool, keys: bool) -> None:
    out = sys.stdout.buffer
    if not as_json:
        key = b"" if not keys else (b"null" if record.key is None else record.key) + b"\t"
        out.write(key + (b"null" if record.value is None else record.value) + b"\n")
        return
    text = json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type],
            "key": data_json(record.key),
            "value": data_json(record.value),
            "headers": [[name, data_json(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )
    # A header key is a str, but may hold surrogates, which UTF-8 cannot encode.
    out.write(text.encode(errors="backslashreplace") + b"\n")


def _seek(consumer: Consumer, assigned: Sequence[TopicPartition], start: str) -> None:
    """Seek to --from, unless it is an end of the log, which the consumer finds by itself."""
    if start in ENDS:
        return
    if start.startswith("@"):
        asked = dict.fromkeys(assigned, time_ms(start[1:], "--from"))
        ends = consumer.end_offsets(assigned)
        for partition, found in consumer.offsets_for_times(asked).items():
            consumer.seek(partition, found.offset if found.offset >= 0 else ends[partition])
    elif is_number(start):
        starts, ends = consumer.beginning_offsets(assigned), consumer.end_offsets(assigned)
        for partition in assigned:
            nearest = min(max(int(start), starts[partition]), ends[partition])
            consumer.seek(partition, nearest)
    else:
        raise click.BadParameter(
            f"{start!r} is not earliest, latest, an offset or @TIME", param_hint="--from"
        )
