"""Consume, transform, produce: each record at least once.

The position is committed after the results are safe. After a crash, the next worker may process
records again: some are written twice, none is lost.

- Every result is acknowledged by the broker (acks=all: it is on disk) before the commit.
- If a result cannot be written, the program ends without a commit, and the next start processes its
  record again.

Use it for results that may appear twice, for example if they overwrite each other by key.
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
    """Copy records until none has come for `idle_s` seconds."""
    with (
        Producer(bootstrap_server) as producer,
        GroupConsumer(
            bootstrap_server,
            group,
            auto_offset_reset="earliest",
            # Automatic commits may include records that are not yet written to the target.
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
                result.result()  # raises if it was not written
            try:
                consumer.commit()
            except CommitFailed:
                # Other members have our partitions now and process these records again: that is
                # the "at least". Continue with the partitions that the group assigns next.
                continue
            except RebalanceInProgress:
                # With a cooperative assignor a member keeps reading during a rebalance. The next
                # commit includes these records, if their partitions stay assigned to us.
                continue


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
@click.option("--group", default="at-least-once", show_default=True)
@click.option(
    "--idle-s", type=float, help="Exit after this many seconds without a record [default: never]."
)
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
