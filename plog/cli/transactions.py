"""`plog transactions`: transactional ids, as their coordinators know them.

The commands about transactions that are open in partitions come from `open_transactions`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from plog.cli.open_transactions import LARGEST_ID, abort, find_hanging, producers
from plog.cli.output import (
    bootstrap_option,
    duration_ms,
    duration_text,
    each,
    json_option,
    print_objects,
    print_rows,
    raise_all,
    say,
    time_text,
)
from plog.coordinator.txn_states import AT_REST, TxnState
from plog.types import counted

if TYPE_CHECKING:
    from plog.client.transaction_admin import TransactionDescription

UNSTARTED = frozenset({TxnState.EMPTY, TxnState.DEAD})
WITHOUT_TRANSACTION = frozenset(state.label for state in AT_REST | UNSTARTED)
OPEN_STATES = tuple(state.label for state in TxnState if state not in AT_REST | UNSTARTED)
LIST_COLUMNS = ["Transactional id", "Coordinator", "Producer id", "State"]


@click.group()
def command() -> None:
    """Inspect transactions; abort hanging ones.

    A producer with a transactional.id can write to many partitions in one transaction. Consumers
    with isolation.level=read_committed see all its records once it is committed, and none if it is
    aborted. One broker, the coordinator of the transactional id, knows the partitions of the
    transaction. It ends the transaction on the producer's request, or when the producer's timeout
    expires.

    A read_committed consumer waits at the first open transaction of a partition. A hanging
    transaction is open in a partition, but no coordinator knows about it, so it never ends by
    itself. `find-hanging` finds such transactions, and `abort` ends one.
    """


@command.command("list")
@bootstrap_option
@json_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.label for state in TxnState], case_sensitive=False),
    help="List only transactional ids in this state. Repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=click.IntRange(0, LARGEST_ID),
    metavar="ID",
    help="List only transactional ids of this producer id. Repeatable.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=duration_ms,
    metavar="DURATION",
    help="List only transactions open for longer, such as 90s, 15m or 2h.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also list transactional ids without a transaction."
)
def list_transactions(
    bootstrap: str,
    as_json: bool,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    show_all: bool,
) -> None:
    """List transactional ids with an open transaction.

    The last line counts the others, on stderr; --all lists them, too. --state and --producer-id
    select from all transactional ids.

    A transactional id is Empty before its first transaction and Ongoing while a transaction is
    open. It is PrepareCommit or PrepareAbort while the coordinator writes the markers to the
    partitions, then CompleteCommit or CompleteAbort. Unused transactional ids expire
    (transactional.id.expiration.ms).
    """
    from plog.client.transaction_admin import TransactionAdmin

    if longer_than_ms is not None and not states:
        # Brokers compare the start of the last transaction, even if it has ended.
        states = OPEN_STATES
    with TransactionAdmin(bootstrap) as admin:
        listed = admin.transactions(states, producer_ids, longer_than_ms)
    hidden = 0
    if not (show_all or states or producer_ids):
        shown = [one for one in listed if one.state not in WITHOUT_TRANSACTION]
        listed, hidden = shown, len(listed) - len(shown)
    rows = [
        (one.transactional_id, one.coordinator_id, one.producer_id, one.state) for one in listed
    ]
    if as_json or rows or not hidden:
        print_rows(rows, LIST_COLUMNS, as_json=as_json)
    if hidden:
        ids = counted(hidden, "transactional id")
        say(f"Not shown: {ids} without an open transaction; --all lists every id.", err=True)


@command.command()
@click.argument("transactional_ids", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@bootstrap_option
@json_option
def describe(transactional_ids: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the state of transactional ids and the partitions of their transactions.

    With --json, one TRANSACTIONAL_ID gives an object; several give a list of such objects.
    """
    from plog.client.transaction_admin import TransactionAdmin

    with TransactionAdmin(bootstrap) as admin:
        found, faults = each(transactional_ids, admin.describe)
    now_ms = time.time_ns() // 1_000_000
    if as_json:
        objects = [_description_json(one, now_ms) for one in found.values()]
        print_objects(objects, several=len(transactional_ids) > 1)
    else:
        for number, one in enumerate(found.values()):
            if number:
                say("")
            _print_description(one, now_ms)
    raise_all(faults)


def _open_ms(found: TransactionDescription, now_ms: int) -> int | None:
    return None if found.started_ms is None else max(now_ms - found.started_ms, 0)


def _description_json(found: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "started_ms": found.started_ms,
        "open_ms": _open_ms(found, now_ms),
        "coordinator": found.coordinator.node_id,
        "partitions": [{"topic": at.topic, "partition": at.partition} for at in found.partitions],
    }


def _print_description(found: TransactionDescription, now_ms: int) -> None:
    say(_line(found, _open_ms(found, now_ms)))
    if found.partitions:
        rows = [(at.topic, at.partition) for at in found.partitions]
        print_rows(rows, ["Topic", "Partition"], as_json=False)
    elif found.state in OPEN_STATES:
        say("All markers are written or refused: see `plog transactions find-hanging`.")
    else:
        say("It has no open transaction.")


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


command.add_command(producers)
command.add_command(find_hanging)
command.add_command(abort)
