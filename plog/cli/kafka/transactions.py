"""kafka-transactions: show transactions, find and abort hanging ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from plog.cli.kafka.commands import Commands, Words
from plog.cli.kafka.config import Clients
from plog.cli.kafka.texts import reason
from plog.client.connection import Connection
from plog.client.coordinators import Coordinators, KeyType
from plog.client.metadata import Node
from plog.client.partition_producers import ActiveProducer
from plog.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    PlogError,
    TransactionalIdNotFound,
    error_for,
)
from plog.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from plog.types import NO_OFFSET, TopicPartition

OPTIONS = Commands(
    "kafka-transactions.sh",
    "Show transactions; find and abort hanging ones.",
    """
    --command-config FILE          Properties of the client.
    --bootstrap-server! HOST:PORT  Address of a broker. Required.
    """,
    {
        "list": (
            "List transactional ids.",
            "--duration-filter MS:Long  Only those whose transaction began this long ago.",
        ),
        "describe": (
            "Describe a transactional id.",
            "--transactional-id! ID  The transactional id. Required.",
        ),
        "describe-producers": (
            "Describe the producers of a partition.",
            """
            --broker-id ID:Integer          Only a leader on this broker.
            --topic! TOPIC                  The topic. Required.
            --partition! NUMBER:Integer     The partition. Required.
            """,
        ),
        "abort": (
            "Abort a hanging transaction in a partition.",
            """
            --topic! TOPIC                  The topic. Required.
            --partition! NUMBER:Integer     The partition. Required.
            --start-offset OFFSET:Long      First offset of the transaction.
            --producer-id ID:Long           Its producer id, in place of the offset.
            --producer-epoch EPOCH:Short    Its producer epoch.
            --coordinator-epoch EPOCH:Integer  Epoch of its coordinator.
            """,
        ),
        "find-hanging": (
            "Find transactions that no coordinator will end.",
            """
            --broker-id ID:Integer          Only partitions that this broker leads.
            --max-transaction-timeout MINUTES:Integer  Only older transactions; 15 by default.
            --topic TOPIC                   Only this topic.
            --partition NUMBER:Integer      Only this partition of the topic.
            """,
        ),
    },
)
DEFAULT_TIMEOUT_MIN = 15
MINUTE_MS = 60_000
PRODUCER_HEADS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
HANGING_HEADS = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


class _Failed(Exception):
    """The command failed; the text is its error line."""


def run(given: Words) -> int:
    """Run the script; return its exit status."""
    with Clients(given) as clients:
        try:
            COMMAND[given.command](given, clients)
        except _Failed as fault:
            sys.stderr.write(f"{fault}\n")
            return 1
    return 0


def _failed(what: str, fault: PlogError) -> _Failed:
    text = f"{what}: {reason(fault)}"
    return _Failed(f"{text.removesuffix('.')}. Enable debug logging for additional detail.")


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print cells as wide as the widest of their column, each with a tab behind it."""
    texts = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(heads))]
    for row in texts:
        print("".join(f"{cell.ljust(width)}\t" for cell, width in zip(row, widths, strict=True)))


# -- transactional ids -------------------------------------------------------------------------


def _list(given: Words, clients: Clients) -> None:
    longer = given.number("duration-filter")
    try:
        listed = clients.transactions.transactions(
            longer_than_ms=None if longer is None or longer < 0 else longer
        )
    except KafkaError as fault:
        raise _failed("Failed to list transactions", fault) from fault
    rows = [
        (one.transactional_id, one.coordinator_id, one.producer_id, one.state) for one in listed
    ]
    _print_table(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), rows)


def _describe(given: Words, clients: Clients) -> None:
    name = given.text("transactional-id")
    what = f"Failed to describe transaction state of transactional-id `{name}`"
    try:
        found = _state(clients, name)
    except TransactionalIdNotFound as fault:
        fault.broker_message = (
            f"DescribeTransactions request for transactionalId `{name}` failed because the ID"
            " could not be found"
        )
        raise _failed(what, fault) from fault
    except KafkaError as fault:
        raise _failed(what, fault) from fault
    heads = (
        "CoordinatorId",
        "TransactionalId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs",
        "TransactionDurationMs",
        "TopicPartitions",
    )
    _print_table(heads, [found])


def _state(clients: Clients, name: str) -> tuple[object, ...]:
    """Return the cells of a transactional id. The start of its last transaction stays known."""
    request = DescribeTransactionsRequest(transactional_ids=[name])

    def ask(node: Node, connection: Connection) -> tuple[Node, TransactionState]:
        (state,) = connection.call(request, DescribeTransactionsResponse).transaction_states
        if state.error_code != ErrorCode.NONE:
            raise error_for(state.error_code)
        return node, state

    coordinators = Coordinators(clients.cluster, KeyType.TRANSACTION, timeout_ms=clients.timeout_ms)
    node, state = coordinators.ask(name, ask)
    started = state.transaction_start_time_ms
    partitions = [
        TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions
    ]
    return (
        node.node_id,
        state.transactional_id,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        "None" if started < 0 else started,
        "None" if started < 0 else int(time.time() * 1000) - started,
        ",".join(map(str, sorted(partitions))),
    )


# -- producers ---------------------------------------------------------------------------------


def _describe_producers(given: Words, clients: Clients) -> None:
    at = _partition(given)
    broker = given.number("broker-id")
    where = "leader" if broker is None else f"broker {broker}"
    what = f"Failed to describe producers for partition {at} on {where}"
    try:
        leader = clients.cluster.leader(at).leader_id
        if broker is not None and broker != leader:
            raise InvalidTxnState(f"broker {leader} leads the partition")
        described = clients.transactions.producers([at])
    except KafkaError as fault:
        raise _failed(what, fault) from fault
    if at in described.faults:
        raise _failed(what, described.faults[at])
    _print_table(PRODUCER_HEADS, [_producer(one) for one in described.producers[at]])


def _producer(one: ActiveProducer) -> tuple[object, ...]:
    start = one.txn_start_offset
    return (
        one.producer_id,
        one.producer_epoch,
        one.coordinator_epoch,
        one.last_sequence,
        one.last_timestamp,
        "None" if start == NO_OFFSET else start,
    )


def _partition(given: Words) -> TopicPartition:
    number = given.number("partition")
    assert number is not None
    return TopicPartition(given.text("topic"), number)


# -- hanging transactions ----------------------------------------------------------------------


def _abort(given: Words, clients: Clients) -> None:
    at = _partition(given)
    start, producer_id = given.number("start-offset"), given.number("producer-id")
    if start is None and producer_id is None:
        raise _Failed(
            "The transaction to abort must be identified either with --start-offset (for brokers"
            " on 3.0 or above) or with --producer-id, --producer-epoch, and --coordinator-epoch"
            " (for older brokers)"
        )
    if start is not None:
        try:
            producer = clients.transactions.open_since(at, start).producer
        except InvalidTxnState as fault:
            raise _Failed(
                f"Could not find any open transactions starting at offset {start} on partition {at}"
            ) from fault
        except KafkaError as fault:
            raise _failed(f"Failed to validate producer state for partition {at}", fault) from fault
        producer_id, epoch = producer.producer_id, producer.producer_epoch
        coordinator_epoch = producer.marker_epoch
    else:
        for option in ("producer-epoch", "coordinator-epoch"):
            if not given.has(option):
                raise _Failed(f"Missing required argument --{option}")
        epoch, coordinator_epoch = (
            given.number(option) or 0 for option in ("producer-epoch", "coordinator-epoch")
        )
    assert producer_id is not None
    try:
        clients.transactions.abort(
            at,
            producer_id=producer_id,
            producer_epoch=epoch,
            # Kafka's script marks a transaction of an unknown coordinator so.
            coordinator_epoch=max(coordinator_epoch, 0),
        )
    except KafkaError as fault:
        raise _failed(f"Failed to abort transaction in partition {at}", fault) from fault


def _find_hanging(given: Words, clients: Clients) -> None:
    broker, topic = given.number("broker-id"), given.value("topic")
    if broker is None and topic is None:
        raise _Failed(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope"
            " of the search"
        )
    if given.has("partition") and topic is None:
        raise _Failed("The --partition argument requires --topic to be provided")
    number = given.number("partition")
    timeout = given.number("max-transaction-timeout")
    now_ms = int(time.time() * 1000)
    try:
        transactions = clients.transactions
        if topic is None:
            partitions = transactions.all_partitions()
        else:
            partitions = transactions.partitions_of(topic, [] if number is None else [number])
        if broker is not None:
            leaders = {at: clients.cluster.known_leader(at) for at in partitions}
            partitions = [at for at, one in leaders.items() if one and one.leader_id == broker]
        found, faults = transactions.hanging(
            partitions,
            longer_than_ms=(DEFAULT_TIMEOUT_MIN if timeout is None else timeout) * MINUTE_MS,
            now_ms=now_ms,
        )
    except KafkaError as fault:
        raise _failed("Failed to find hanging transactions", fault) from fault
    if faults:
        at, why = next(iter(faults.items()))
        raise _failed(f"Failed to describe producers for partition {at}", why)
    rows = []
    for one in found:
        at, producer = one.transaction
        minutes = (now_ms - producer.last_timestamp) // MINUTE_MS
        rows.append(
            (
                *(at.topic, at.partition, producer.producer_id, producer.producer_epoch),
                producer.coordinator_epoch,
                producer.txn_start_offset,
                producer.last_timestamp,
                minutes,
            )
        )
    _print_table(HANGING_HEADS, rows)


COMMAND: dict[str, Callable[[Words, Clients], None]] = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
}
