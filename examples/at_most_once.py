"""Consume, transform, produce: each record at most once.

The position is committed before the records are processed. After a crash, the next worker starts
behind them: unwritten results are lost, and none is written twice.

- The commit comes first. Records that it does not commit are not processed.
- The producer is idempotent (its default), so its retries do not write a record twice either.

Use it for short-lived data such as measurements: a gap is harmless, a number counted twice is not.
"""

from __future__ import annotations

import time

import click

from plog.client.consumer import ConsumerRecord
from plog.client.group_consumer import CommitFailed, GroupConsumer, RebalanceInProgress
from plog.client.producer import Producer
from plog.errors import PlogError
from plog.types import TopicPartition


def transform(value: bytes | None) -> bytes:
    """Do the work."""
    return (value or b"").upper()


def go_back(consumer: GroupConsumer, records: list[ConsumerRecord]) -> None:
    """Go back to the first of these records in each partition that is still assigned to us."""
    ours = consumer.assignment()
    for record in reversed(records):
        at = TopicPartition(record.topic, record.partition)
        if at in ours:
            consumer.seek(at, record.offset)


def copy(source: str, target: str, bootstrap_server: str, group: str, idle_s: float | None) -> None:
    """Copy records until none has come for `idle_s` seconds."""
    with (
        Producer(bootstrap_server) as producer,
        GroupConsumer(
            bootstrap_server,
            group,
            auto_offset_reset="earliest",
            # Automatic commits may come after records are processed.
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.partitions_for(source)  # raises if no broker answers, or without this topic
        consumer.subscribe([source])
        came_at = time.monotonic()
        while idle_s is None or time.monotonic() - came_at < idle_s:
            records = consumer.poll(500)
            if not records:
                continue
            came_at = time.monotonic()
            try:
                # After this commit no other worker reads these records.
                consumer.commit()
            except CommitFailed:
                # Other members have our partitions now, and read these records: do not copy them.
                continue
            except RebalanceInProgress:
                # With a cooperative assignor a member keeps reading during a rebalance. Nothing is
                # committed: read the records of the partitions that we keep again.
                go_back(consumer, records)
                continue
            for record in records:
                producer.send(target, transform(record.value), key=record.key)


@click.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--bootstrap-server",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="PLOG_BOOTSTRAP_SERVER",
    show_envvar=True,
)
@click.option("--group", default="at-most-once", show_default=True)
@click.option(
    "--idle-s", type=float, help="Exit after this many seconds without a record [default: never]."
)
def main(source: str, target: str, bootstrap_server: str, group: str, idle_s: float | None) -> None:
    """Copy topic SOURCE to TARGET in capitals.

    Each record at most once: a crash may lose some, and never writes one twice.
    """
    try:
        copy(source, target, bootstrap_server, group, idle_s)
    except PlogError as fault:
        raise click.ClickException(str(fault)) from fault


if __name__ == "__main__":
    main()
