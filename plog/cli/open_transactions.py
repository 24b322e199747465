"""`plog transactions producers`, `find-hanging` and `abort`: transactions open in partitions.

Owns the tables of producers and of hanging transactions, and the check before an abort.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from plog.cli.output import (
    MOST_NAMED,
    bootstrap_option,
    confirm,
    duration_ms,
    duration_text,
    each,
    execute_option,
    json_option,
    print_found,
    print_json,
    print_rows,
    raise_all,
    say,
    time_text,
    topic_partitions,
)

if TYPE_CHECKING:
    from plog.client.partition_producers import ActiveProducer, OpenTransaction
    from plog.client.transaction_admin import TransactionAdmin
    from plog.types import TopicPartition

HANGS_AFTER = "20m"
"""By then coordinators have ended all transactions that they know of.

They allow no timeout above transaction.max.timeout.ms (15 minutes by default). The other five
minutes are for their markers to arrive.
"""
LARGEST_ID, LARGEST_PRODUCER_EPOCH, LARGEST_EPOCH = 2**63 - 1, 2**15 - 1, 2**31 - 1
PRODUCER_COLUMNS = [
    *("Topic", "Partition", "Producer id", "Epoch", "Coordinator epoch"),
    *("Last sequence", "Last written", "Open since offset"),
]
HANGING_COLUMNS = [
    *("Topic", "Partition", "Producer id", "Epoch", "Coordinator epoch"),
    *("Start", "Last written", "Idle", "Transactional id"),
]
ABORT_COLUMNS = ["Topic", "Partition", "Producer id", "Epoch", "Coordinator epoch", "Start"]

TEXTS: Mapping[str, Callable[[int], str]] = {
    "last_timestamp": time_text,
    "idle_ms": duration_text,
}
"""Columns that tables format differently from JSON."""


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,1,2]...")
@bootstrap_option
@json_option
def producers(topics: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List the producers that have written to topics, or to some of their partitions.

    Lists the producer ids that the leader of each partition remembers. Transactional and idempotent
    producers have an id (enable.idempotence is the default of many clients). Last written is the
    latest timestamp of a producer's records. If it has an open transaction, the last column is the
    transaction's first offset.
    """
    from plog.client.transaction_admin import TransactionAdmin

    asked = [topic_partitions(entry, "TOPIC") for entry in topics]
    with TransactionAdmin(bootstrap) as admin:
        found, faults = each(asked, lambda one: admin.partitions_of(*one))
        answer = admin.producers(at for some in found.values() for at in some)
    rows = [
        {
            "topic": at.topic,
            "partition": at.partition,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "coordinator_epoch": _known(one.coordinator_epoch),
            "last_sequence": _known(one.last_sequence),
            "last_timestamp": _known(one.last_timestamp),
            "txn_start_offset": _known(one.txn_start_offset),
        }
        for at, some in sorted(answer.producers.items())
        for one in some
    ]
    if as_json:
        print_found(rows, found, several=len(topics) > 1)
    elif rows or not (faults or answer.faults):
        _print_table(rows, PRODUCER_COLUMNS)
    faults += [fault for _, fault in sorted(answer.faults.items())]
    raise_all(faults, most=MOST_NAMED)


@click.command("find-hanging")
@bootstrap_option
@json_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,2]",
    help="Check only this topic, or some of its partitions. Repeatable.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=duration_ms,
    metavar="DURATION",
    default=HANGS_AFTER,
    show_default=True,
    help="Find only transactions without a write for this long, such as 90s, 15m or 2h.",
)
def find_hanging(
    bootstrap: str, as_json: bool, topics: tuple[str, ...], longer_than_ms: int
) -> None:
    """Find hanging transactions: open in a partition, but unknown to every coordinator.

    Checks all partitions, and asks every coordinator about the transactions that are open there.
    The default of --longer-than exceeds the maximum timeout of a producer
    (transaction.max.timeout.ms, 15 minutes). A shorter time works as well, because the coordinators
    know all transactions that are not hanging. Idle counts from the timestamp of the last record.

    Transactional id helps you find the producer's program; it is empty if the id has expired. Exit
    status 1 means that some partitions could not be checked.
    """
    from plog.client.transaction_admin import TransactionAdmin
    from plog.errors import UnknownTopicOrPartition

    asked = [topic_partitions(entry, "--topic") for entry in topics]
    now_ms = time.time_ns() // 1_000_000
    with TransactionAdmin(bootstrap) as admin:
        if asked:
            partitions = [at for name, some in asked for at in admin.partitions_of(name, some)]
        else:
            partitions = admin.all_partitions()
        found, faults = admin.hanging(partitions, longer_than_ms=longer_than_ms, now_ms=now_ms)
    rows = []
    for transaction, transactional_id in found:
        at, producer = transaction
        written = _known(producer.last_timestamp)
        rows.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                **_marker(producer),
                "start_offset": producer.txn_start_offset,
                "last_timestamp": written,
                "idle_ms": None if written is None else max(now_ms - written, 0),
                "transactional_id": transactional_id,
            }
        )
    # Ignore a topic that was deleted meanwhile, unless the user has named it.
    left = [
        fault
        for _, fault in sorted(faults.items())
        if asked or not isinstance(fault, UnknownTopicOrPartition)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        _print_table(rows, HANGING_COLUMNS)
        say("To end one: `plog transactions abort TOPIC PARTITION --start-offset START`.")
    elif not left:
        say("No hanging transactions.")
    raise_all(left, most=MOST_NAMED)


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@bootstrap_option
@json_option
@click.option(
    "--start-offset",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="First offset of the transaction in the partition, as shown by `find-hanging`.",
)
@click.option(
    "--producer-id",
    type=click.IntRange(0, LARGEST_ID),
    metavar="ID",
    help="Producer id of the transaction.",
)
@click.option(
    "--producer-epoch",
    type=click.IntRange(0, LARGEST_PRODUCER_EPOCH),
    metavar="EPOCH",
    help="Producer epoch of the transaction.",
)
@click.option(
    "--coordinator-epoch",
    type=click.IntRange(0, LARGEST_EPOCH),
    metavar="EPOCH",
    help="With the two options above, instead of --start-offset: abort without a check.",
)
@execute_option
@click.option("--dry-run", is_flag=True, help="Show the transaction and do not abort it.")
def abort(
    topic: str,
    partition: int,
    bootstrap: str,
    as_json: bool,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Abort a hanging transaction in a PARTITION of TOPIC.

    Shows the transaction, then asks for confirmation. The abort is final, and applies to this
    partition only: read_committed consumers skip the records of the transaction there and continue.
    The command refuses a transaction that a coordinator is going to end, because its
    other partitions may still be committed.

    With --producer-id, --producer-epoch and --coordinator-epoch the command checks nothing. Use
    them with brokers before Kafka 3.0, which cannot list producers, or to end a transaction that
    a coordinator knows.

    \b
      plog transactions find-hanging
      plog transactions abort flights 0 --start-offset 4711
    """
    from plog.client.transaction_admin import TransactionAdmin

    given = {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "coordinator_epoch": coordinator_epoch,
    }
    numbers = {name: number for name, number in given.items() if number is not None}
    is_clear = not numbers if start_offset is not None else len(numbers) == len(given)
    if not is_clear:
        raise click.UsageError(
            "specify either --start-offset, or all of --producer-id, --producer-epoch and"
            " --coordinator-epoch"
        )
    with TransactionAdmin(bootstrap) as admin:
        (at,) = admin.partitions_of(topic, [partition])
        if start_offset is not None:
            numbers = _marker(_hanging_at(admin, at, start_offset).producer)
        row = {"topic": topic, "partition": partition, **numbers, "start_offset": start_offset}
        whose = f"the transaction of producer {numbers['producer_id']} in {at}"
        if not as_json:
            _print_table([row], ABORT_COLUMNS)
        if not dry_run:
            sys.stdout.flush()  # the transaction, before the question
            lost = "Its records there are lost for read_committed consumers."
            confirm(f"Abort {whose}? {lost}", "Not aborted.", yes=yes)
            admin.abort(at, **numbers)
    if as_json:
        print_json({**row, "executed": not dry_run})
    elif dry_run:
        say(f"Nothing is changed: without --dry-run the command aborts {whose}.")
    else:
        say(f"Aborted {whose}.")


def _hanging_at(admin: TransactionAdmin, at: TopicPartition, start_offset: int) -> OpenTransaction:
    """Return the open transaction that starts at an offset.

    Raises:
        InvalidTxnState: its coordinator is going to end it.
    """
    from plog.client.transaction_admin import will_end
    from plog.errors import InvalidTxnState

    transaction = admin.open_since(at, start_offset)
    owner = admin.owners([transaction])[transaction]
    if owner is not None and will_end(owner, transaction):
        raise InvalidTxnState(
            f"the transaction open in {at} since offset {start_offset} is not hanging:"
            f" transactional id {owner.transactional_id!r} is {owner.state}, and its coordinator"
            " will end it"
        )
    return transaction


def _marker(producer: ActiveProducer) -> dict[str, int]:
    """Return the fields of the marker that aborts a producer's transaction."""
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.marker_epoch,
    }


def _print_table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    cells = [
        [
            TEXTS[name](value) if name in TEXTS and value is not None else value
            for name, value in row.items()
        ]
        for row in rows
    ]
    print_rows(cells, columns, as_json=False)


def _known(number: int) -> int | None:
    """Return a number of the protocol; None for the negative numbers that mean "none"."""
    return None if number < 0 else number
