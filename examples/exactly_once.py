"""Consume, transform, produce: each record exactly once.

One transaction commits the results and the position behind their records: both or neither. After a
crash, the next worker starts at the last committed transaction.

- The transactional id contains the worker's name. A new worker with that name fences the old one
  and aborts its open transaction before it reads a position.
- The offsets are committed as the group's member that read the records. If the group has assigned
  its partitions to other members, the commit is refused and the transaction is aborted.
- After a failure the transaction is aborted and the records are read again.
- Readers of the target need isolation_level="read_committed". Others see results of aborted
  transactions. This program reads its source in the same way.
"""

from __future__ import annotations

import time

import click

from plog.client.group_consumer import CommitFailed, GroupConsumer
from plog.client.producer import Producer, TransactionAborted
from plog.errors import KafkaError, PlogError, ProducerFenced, RequestTimedOut


def transform(value: bytes | None) -> bytes:
    """Do the work."""
    return (value or b"").upper()


def go_back(consumer: GroupConsumer) -> None:
    """Go back to the committed offsets: the results of later records were aborted."""
    partitions = consumer.assignment()
    committed = consumer.committed(partitions)
    for at in partitions:
        if at in committed:
            consumer.seek(at, committed[at])
        else:
            consumer.seek_to_beginning([at])


def copy(
    source: str,
    target: str,
    bootstrap_server: str,
    group: str,
    worker: str,
    records: int,
    idle_s: float | None,
) -> None:
    """Copy records until none has come for `idle_s` seconds."""
    with (
        Producer(bootstrap_server, transactional_id=f"{group}-{worker}") as producer,
        GroupConsumer(
            bootstrap_server,
            group,
            # A static member: after a restart it has its partitions at once (KIP-345).
            group_instance_id=worker,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=records,
        ) as consumer,
    ):
        consumer.partitions_for(source)  # raises if no broker answers, or without this topic
        # Before the first position is read: the previous worker may be about to commit one.
        producer.init_transactions()
        consumer.subscribe([source])
        came_at = time.monotonic()
        while idle_s is None or time.monotonic() - came_at < idle_s:
            found = consumer.poll(500)
            if not found:
                continue
            came_at = time.monotonic()
            try:
                with producer.transaction():
                    for record in found:
                        producer.send(target, transform(record.value), key=record.key)
                    producer.send_offsets_to_transaction(
                        consumer.positions(), consumer.group_metadata
                    )
            except (ProducerFenced, RequestTimedOut):
                # Another worker has our name, or the outcome of the commit is unknown. The next
                # start's init_transactions waits until it is decided.
                raise
            except (CommitFailed, TransactionAborted, KafkaError) as failure:
                click.echo(f"starting again from the last commit: {failure}", err=True)
                go_back(consumer)


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
@click.option("--group", default="exactly-once", show_default=True)
@click.option(
    "--worker", default="1", show_default=True, help="Worker name; keep it across restarts."
)
@click.option("--records", default=500, show_default=True, help="Maximum records per transaction.")
@click.option(
    "--idle-s", type=float, help="Exit after this many seconds without a record [default: never]."
)
def main(
    source: str,
    target: str,
    bootstrap_server: str,
    group: str,
    worker: str,
    records: int,
    idle_s: float | None,
) -> None:
    """Copy topic SOURCE to TARGET in capitals.

    Each record exactly once, whatever crashes.
    """
    try:
        copy(source, target, bootstrap_server, group, worker, records, idle_s)
    except PlogError as fault:
        raise click.ClickException(str(fault)) from fault


if __name__ == "__main__":
    main()
