"""Consume, transform, produce: each record at most once.

The position is committed before the records are worked on. Who takes over after a crash begins
behind them: what was not written yet is lost, and nothing is ever written twice.

- The commit comes first, and what it does not commit is not worked on.
- The producer is idempotent (its default), so that a retry on the way to the broker does not write
  a record twice either.

For what is out of date soon, as measurements are: a gap does no harm, a number counted twice does.
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
    """Go back to the first of these records of each partition that is ours still."""
    ours = consumer.assignment()
    for record in reversed(records):
        at = TopicPartition(record.topic, record.partition)
        if at in ours:
            consumer.seek(at, record.offset)


def copy(source: str, target: str, bootstrap_server: str, group: str, idle_s: float | None) -> None:
    """Copy records until nothing came for `idle_s`."""
    with (
        Producer(bootstrap_server) as producer,
        GroupConsumer(
            bootstrap_server,
            group,
            auto_offset_reset="earliest",
            # By itself it would commit behind our back, at a time that promises nothing.
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
                # From here on these records are ours alone, and nobody reads them again.
                consumer.commit()
            except CommitFailed:
                # The group has given our partitions to others, who read these records: not twice.
                continue
            except RebalanceInProgress:
                # With a cooperative assignor we read on while the group shares its partitions anew.
                # Nothing is committed: what stays ours comes once more.
                go_back(consumer, records)
                continue
            for record in records:
                producer.send(target, transform(record.value), key=record.key)


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True)
@click.option("--group", default="at-most-once", show_default=True)
@click.option("--idle-s", type=float, help="End when nothing came for so long [default: never].")
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
