"""`plog transactions`: list and describe transactions, find those that hang, and abort them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from plog.cli.output import (
    MOST_NAMED,
    bootstrap_option,
    duration_ms,
    duration_text,
    json_option,
    print_json,
    print_rows,
    raise_all,
    say,
    time_text,
    topic_partitions,
)
from plog.coordinator.txn_states import AT_REST, TxnState

if TYPE_CHECKING:
    from plog.client.partition_producers import ActiveProducer, OpenTransaction
    from plog.client.transaction_admin import TransactionAdmin, TransactionDescription
    from plog.types import TopicPartition

HANGS_AFTER = "20m"
"""By then coordinators have ended whatever they know of.

They let nobody have a timeout above transaction.max.timeout.ms (15 minutes unless it is set), and
some more are left for their markers to arrive.
"""
UNSTARTED = frozenset({TxnState.EMPTY, TxnState.DEAD})
OPEN_STATES = tuple(state.label for state in TxnState if state not in AT_REST | UNSTARTED)
LARGEST_ID, LARGEST_PRODUCER_EPOCH, LARGEST_EPOCH = 2**63 - 1, 2**15 - 1, 2**31 - 1
LIST_COLUMNS = ["Transactional id", "Coordinator", "Producer id", "State"]
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
"""What tables tell otherwise than objects do."""


@click.group()
def command() -> None:
    """Show what transactions are at, and end those that hang.

    A producer that has a name (its setting transactional.id) can write to many partitions in one
    transaction: readers of committed records (isolation.level=read_committed) see all of it once
    it is committed, and nothing where it is aborted. One broker, the coordinator of that name,
    knows which partitions are in the transaction. It ends it when the producer says so, or by
    itself when the producer's timeout is over.

    Such readers wait before the first transaction that is open in a partition. One that hangs is
    open there and no coordinator knows of it, so that nobody would ever end it: `find-hanging`
    finds it, and `abort` ends it.
    """


@command.command("list")
@bootstrap_option
@json_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.label for state in TxnState], case_sensitive=False),
    help="Only in this state; may be given many times.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=click.IntRange(0, LARGEST_ID),
    metavar="ID",
    help="Only of this producer; may be given many times.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Only open for longer, such as 90s, 15m or 2h.",
)
def list_transactions(
    bootstrap: str,
    as_json: bool,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
) -> None:
    """List the transactional ids there are.

    One is Ongoing while a transaction is open, PrepareCommit or PrepareAbort while the partitions
    are told how it has ended, then CompleteCommit or CompleteAbort; Empty before its first one.
    Those that nobody uses are forgotten in time (transactional.id.expiration.ms).
    """
    from plog.client.transaction_admin import TransactionAdmin

    if longer_than_ms is not None and not states:
        # Brokers tell how long ago the last one began, be it open or not.
        states = OPEN_STATES
    with TransactionAdmin(bootstrap) as admin:
        listed = admin.transactions(states, producer_ids, longer_than_ms)
    rows = [
        (one.transactional_id, one.coordinator_id, one.producer_id, one.state) for one in listed
    ]
    print_rows(rows, LIST_COLUMNS, as_json=as_json)


@command.command()
@click.argument("transactional_id")
@bootstrap_option
@json_option
def describe(transactional_id: str, bootstrap: str, as_json: bool) -> None:
    """Show what TRANSACTIONAL_ID is at, and which partitions are in its transaction."""
    from plog.client.transaction_admin import TransactionAdmin

    with TransactionAdmin(bootstrap) as admin:
        found = admin.describe(transactional_id)
    open_ms = None if found.started_ms is None else max(_now_ms() - found.started_ms, 0)
    rows = [(at.topic, at.partition) for at in found.partitions]
    if as_json:
        print_json(
            {
                "transactional_id": found.transactional_id,
                "state": found.state,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "timeout_ms": found.timeout_ms,
                "started_ms": found.started_ms,
                "open_ms": open_ms,
                "coordinator": found.coordinator.node_id,
                "partitions": [{"topic": topic, "partition": at} for topic, at in rows],
            }
        )
        return
    say(_line(found, open_ms))
    if rows:
        print_rows(rows, ["Topic", "Partition"], as_json=False)
    elif found.state in OPEN_STATES:
        say("Its markers are written, or refused: see `plog transactions find-hanging`.")
    else:
        say("No transaction of it is open.")


def _line(found: TransactionDescription, open_ms: int | None) -> str:
    since = ""
    if found.started_ms is not None and open_ms is not None:
        since = f", open for {duration_text(open_ms)} (since {time_text(found.started_ms)})"
    coordinator = found.coordinator
    return (
        f"Transactional id {found.transactional_id}: {found.state}{since}, producer"
        f" {found.producer_id} epoch {found.producer_epoch}, timeout"
        f" {duration_text(found.timeout_ms)}, coordinator broker {coordinator.node_id}"
        f" ({coordinator.host}:{coordinator.port})"
    )


@command.command()
@click.argument("topic", metavar="TOPIC[:0,1,2]")
@bootstrap_option
@json_option
def producers(topic: str, bootstrap: str, as_json: bool) -> None:
    """Show who has written to TOPIC, or to some of its partitions.

    Lists the producers with an id that a partition's leader remembers, which all transactional
    ones have, and idempotent ones too (enable.idempotence, which is the default of many clients).
    Last written is the latest time of their records. Where a transaction of theirs is open, it
    began at the offset in the last column.
    """
    from plog.client.transaction_admin import TransactionAdmin

    name, numbers = topic_partitions(topic, "TOPIC")
    with TransactionAdmin(bootstrap) as admin:
        told = admin.producers(admin.partitions_of(name, numbers))
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
        for at, some in sorted(told.producers.items())
        for one in some
    ]
    if as_json:
        print_json(rows)
    elif rows or not told.faults:
        _print_table(rows, PRODUCER_COLUMNS)
    raise_all([fault for _, fault in sorted(told.faults.items())], most=MOST_NAMED)


@command.command("find-hanging")
@bootstrap_option
@json_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,2]",
    help="Look only into this topic, or some of its partitions; may be given many times.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=duration_ms,
    metavar="DURATION",
    default=HANGS_AFTER,
    show_default=True,
    help="Only those that have written nothing for so long, such as 90s, 15m or 2h.",
)
def find_hanging(
    bootstrap: str, as_json: bool, topics: tuple[str, ...], longer_than_ms: int
) -> None:
    """Find transactions that are open in a partition, and that nobody will end.

    Looks into all partitions, and asks every coordinator whether it knows of what is open there.
    The default is as long as a producer's timeout may be (transaction.max.timeout.ms, 15 minutes)
    and some more; by what the coordinators say, one that hangs is told from one that goes on
    sooner than that. Time is that of the records' timestamps.

    The transactional id is that of the producer, where it has not expired: a name to look for its
    program by. Status 1 says that some partitions could not be judged.
    """
    from plog.client.transaction_admin import TransactionAdmin
    from plog.errors import UnknownTopicOrPartition

    asked = [topic_partitions(entry, "--topic") for entry in topics]
    now_ms = _now_ms()
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
    # A topic that was deleted meanwhile is nothing that anybody asked for, unless by its name.
    left = [
        fault
        for _, fault in sorted(faults.items())
        if asked or not isinstance(fault, UnknownTopicOrPartition)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        _print_table(rows, HANGING_COLUMNS)
        say("`plog transactions abort TOPIC PARTITION --start-offset START` ends one.")
    elif not left:
        say("No transaction hangs.")
    raise_all(left, most=MOST_NAMED)


@command.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@bootstrap_option
@json_option
@click.option(
    "--start-offset",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Where the transaction begins in the partition, as `find-hanging` tells.",
)
@click.option("--producer-id", type=click.IntRange(0, LARGEST_ID), metavar="ID")
@click.option("--producer-epoch", type=click.IntRange(0, LARGEST_PRODUCER_EPOCH), metavar="EPOCH")
@click.option(
    "--coordinator-epoch",
    type=click.IntRange(0, LARGEST_EPOCH),
    metavar="EPOCH",
    help="With the two above, in the place of --start-offset: abort without any question.",
)
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
def abort(
    topic: str,
    partition: int,
    bootstrap: str,
    as_json: bool,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    execute: bool,
) -> None:
    """Abort a transaction that hangs in a PARTITION of TOPIC.

    Shows whose transaction that is, and changes nothing unless --execute is given. Then it has
    ended in this partition, for good: readers of committed records pass over what it wrote there
    and go on. Other partitions are left alone. One that a coordinator will end is refused, for the
    others in it may yet be committed.

    With --producer-id, --producer-epoch and --coordinator-epoch nothing is looked up, for brokers
    that cannot tell (before Kafka 3.0), and to end what a coordinator does know of.

    \b
      plog transactions find-hanging
      plog transactions abort flights 0 --start-offset 4711
      plog transactions abort flights 0 --start-offset 4711 --execute
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
            "either --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch, say"
            " which transaction"
        )
    with TransactionAdmin(bootstrap) as admin:
        (at,) = admin.partitions_of(topic, [partition])
        if start_offset is not None:
            numbers = _marker(_hanging_at(admin, at, start_offset).producer)
        if execute:
            admin.abort(at, **numbers)
    told = {"topic": topic, "partition": partition, **numbers, "start_offset": start_offset}
    if as_json:
        print_json({**told, "executed": execute})
        return
    _print_table([told], ABORT_COLUMNS)
    whose = f"the transaction of producer {numbers['producer_id']} in {at}"
    if execute:
        say(f"Aborted {whose}.")
    else:
        say(f"Nothing is changed yet: --execute aborts {whose}.")


def _hanging_at(admin: TransactionAdmin, at: TopicPartition, start_offset: int) -> OpenTransaction:
    """Return the transaction that is open since an offset, unless its coordinator will end it."""
    from plog.client.transaction_admin import will_end
    from plog.errors import InvalidTxnState

    transaction = admin.open_since(at, start_offset)
    owner = admin.owners([transaction])[transaction]
    if owner is not None and will_end(owner, transaction):
        raise InvalidTxnState(
            f"the transaction open in {at} since offset {start_offset} does not hang: transactional"
            f" id {owner.transactional_id!r} is {owner.state}, and its coordinator will end it"
        )
    return transaction


def _marker(producer: ActiveProducer) -> dict[str, int]:
    """Return what the marker that aborts a producer's transaction says."""
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.marker_epoch,
    }


def _print_table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    told = [
        [
            TEXTS[name](value) if name in TEXTS and value is not None else value
            for name, value in row.items()
        ]
        for row in rows
    ]
    print_rows(told, columns, as_json=False)


def _known(number: int) -> int | None:
    """Return what the protocol says by a number; below 0 it says that there is none."""
    return None if number < 0 else number


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
