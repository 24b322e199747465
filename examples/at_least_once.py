"""Consume, transform, produce: each record at least once.

The position is committed after the results are safe. Who takes over after a crash begins with
records that may have been worked on already: they are written again, and none is lost.

- Every result is acknowledged by the broker (acks=all: it is on disk) before the commit.
- A result that cannot be written ends the program without a commit, so that the next start begins
  with its record.

For results that may well be there twice, as those are that overwrite each other by their key.
"""

from __future__ import annotations

import time

import click

from plog.client.group_consumer import CommitFailed, GroupConsumer, RebalanceInProgress
from plog.client.producer import Producer
from plog.errors import PlogError


def transform(value: bytes | None) -> bytes:
    """Do the work."""
    return (value or b"").upper()


def copy(source: str, target: str, bootstrap_server: str, group: str, idle_s: float | None) -> None:
    """Copy records until nothing came for `idle_s`."""
    with (
        Producer(bootstrap_server) as producer,
        GroupConsumer(
            bootstrap_server,
            group,
            auto_offset_reset="earliest",
            # By itself it would commit what is still on its way to the target.
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
            sent = [
                producer.send(target, transform(record.value), key=record.key) for record in records
            ]
            producer.flush()
            for result in sent:
                result.result()  # raises what kept it from being written
            try:
                consumer.commit()
            except CommitFailed:
                # Others have our partitions now, and begin with these records: that is the
                # "at least". We go on with what the group gives us next.
                continue
            except RebalanceInProgress:
                # With a cooperative assignor we read on while the group shares its partitions anew.
                # The next commit has these records too, as far as their partitions stay ours.
                continue


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True)
@click.option("--group", default="at-least-once", show_default=True)
@click.option("--idle-s", type=float, help="End when nothing came for so long [default: never].")
def main(source: str, target: str, bootstrap_server: str, group: str, idle_s: float | None) -> None:
    """Copy topic SOURCE to TARGET in capitals.

    Each record at least once: a crash loses none, and may write some twice.
    """
    try:
        copy(source, target, bootstrap_server, group, idle_s)
    except PlogError as fault:
        raise click.ClickException(str(fault)) from fault


if __name__ == "__main__":
    main()
