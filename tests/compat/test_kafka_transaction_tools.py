"""Apache Kafka's own tools for transactions against a broker, and on its files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.coordinator.txn_states import TxnState
from plog.types import TopicPartition
from tests.compat.clients import Confluent, Sent
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.workers import Output
from tests.coordinator.conftest import await_coordinator
from tests.handlers.wire import NOW_MS, speak
from tests.servers import BrokerProcess
from tests.transactions.hanging import leave_hanging
from tests.transactions.transactor import Transactor, read

pytestmark = pytest.mark.parametrize("tools", TOOLS, ids=repr)

NewTopic = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture
def one(broker: BrokerProcess) -> Iterator[Transactor]:
    """A producer of a transactional id that nobody else uses."""
    with closing(speak(broker.port)) as wire:
        yield Transactor(wire, f"tools-tx-{next(_numbers)}").start()


def rows(said: str) -> list[dict[str, str]]:
    """Return the rows of a table, by its headings."""
    first, *rest = [line for line in said.splitlines() if line.strip()]
    headings = first.split()
    return [dict(zip(headings, line.split(), strict=False)) for line in rest]


def transactions(tools: Tools, broker: BrokerProcess, *arguments: object) -> str:
    return tools.run("TransactionsCommand", "--bootstrap-server", broker.bootstrap, *arguments)


def test_transactions_are_listed_and_described(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic, one: Transactor
) -> None:
    at = TopicPartition(new_topic(2), 1)
    one.send(at, b"1", b"2")
    listed = {row["TransactionalId"]: row for row in rows(transactions(tools, broker, "list"))}
    assert listed[one.transactional_id]["ProducerId"] == str(one.producer.id)
    assert listed[one.transactional_id]["TransactionState"] == "Ongoing"
    said = transactions(tools, broker, "describe", "--transactional-id", one.transactional_id)
    (described,) = rows(said)
    assert described["ProducerId"] == str(one.producer.id)
    assert described["ProducerEpoch"] == str(one.producer.epoch)
    assert described["TransactionState"] == "Ongoing"
    assert str(at) in said
    (producer,) = rows(
        transactions(
            tools, broker, "describe-producers", "--topic", at.topic, "--partition", at.partition
        )
    )
    assert producer["ProducerId"] == str(one.producer.id)
    assert producer["CurrentTransactionStartOffset"] == "0"
    one.finish(commit=True)


def test_transaction_that_hangs_is_found_and_aborted(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic, one: Transactor
) -> None:
    at = TopicPartition(new_topic(2), 0)
    start = leave_hanging(one, at, b"hangs", timestamp=NOW_MS - 600_000)
    with closing(speak(broker.port)) as wire:
        other = Transactor(wire, f"tools-tx-{next(_numbers)}").start()
        other.send(TopicPartition(at.topic, 1), b"does not")
        with Admin(broker.bootstrap) as admin:
            leader = admin.topic(at.topic).partitions[at.partition].leader_id
        limits = ("--broker-id", leader, "--max-transaction-timeout", 1)
        found = rows(transactions(tools, broker, "find-hanging", *limits))
        (row,) = (row for row in found if row["Topic"] == at.topic)
        assert row["Partition"] == "0"
        assert row["ProducerId"] == str(one.producer.id)
        assert row["StartOffset"] == str(start)
        abort = ("abort", "--topic", at.topic, "--partition", 0, "--start-offset", start)
        transactions(tools, broker, *abort)
        (producer,) = rows(
            transactions(tools, broker, "describe-producers", "--topic", at.topic, "--partition", 0)
        )
        assert producer["CurrentTransactionStartOffset"] == "None"
        assert rows(transactions(tools, broker, "find-hanging", *limits)) == []
        other.finish(commit=True)
    assert read(one.wire, at) == []


def test_message_copier_copies_what_is_committed(
    tools: Tools, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    source, target = new_topic(), new_topic()
    sent = [Sent(None, b"%d" % n) for n in range(100)]
    Confluent().produce(broker.bootstrap, source, sent)
    tools.run(
        "TransactionalMessageCopier",
        "--broker-list",
        broker.bootstrap,
        "--input-topic",
        source,
        "--input-partition",
        0,
        "--output-topic",
        target,
        "--consumer-group",
        f"copiers-of-{source}",
        "--transactional-id",
        f"copier-of-{source}",
        "--transaction-size",
        10,
        "--max-messages",
        100,
        "--enable-random-aborts",
    )
    assert Output(broker.port, target, 1).read() == [list(range(100))]


@pytest.mark.usefixtures("plane")
def test_internal_topics_are_dumped(tools: Tools, tmp_path: Path) -> None:
    settings = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    at = TopicPartition("t", 0)
    with BrokerProcess(tmp_path, overrides=settings) as broker, closing(speak(broker.port)) as wire:
        Confluent().produce(broker.bootstrap, at.topic, [Sent(None, b"0")])
        await_coordinator(wire, "group-of-dumped")
        for name in ("dumped-v1", "dumped-v2"):
            # Version 2 has records of another version, and those name the next epoch's producer.
            one = Transactor(wire, name, own_epochs=name.endswith("v2")).start()
            one.send(at, b"1")
            assert one.add_offsets("group-of-dumped") == 0
            assert one.commit_offset("group-of-dumped", at, 7) == 0
            one.finish(commit=True)
    said = dump(tools, tmp_path, "__transaction_state-0", "--transaction-log-decoder")
    for name in ("dumped-v1", "dumped-v2"):
        records = "\n".join(line for line in said.splitlines() if name in line)
        told = [
            state
            for state in TxnState
            # One release tells names, the other numbers.
            if f"state={state.label}" in records or f'"transactionStatus":{state:d}' in records
        ]
        assert told == [
            TxnState.EMPTY,
            TxnState.ONGOING,
            TxnState.PREPARE_COMMIT,
            TxnState.COMPLETE_COMMIT,
        ]
        if '"version"' in records:
            assert ('"clientTransactionVersion":2' in records) is (name == "dumped-v2")
    said = dump(tools, tmp_path, "__consumer_offsets-0", "--offsets-decoder")
    assert "group-of-dumped" in said
    assert "endTxnMarker: COMMIT" in said
    said = dump(tools, tmp_path, "t-0", "--print-data-log")
    assert "endTxnMarker: COMMIT" in said
    assert "isTransactional: true" in said


def dump(tools: Tools, directory: Path, partition: str, *arguments: str) -> str:
    logs = sorted(directory.glob(f"**/data0/{partition}/*.log"))
    return tools.run("DumpLogSegments", "--files", ",".join(map(str, logs)), *arguments)


def test_features_are_described_and_changed(tools: Tools, broker: BrokerProcess) -> None:
    def features(*arguments: object) -> str:
        return tools.run("FeatureCommand", "--bootstrap-server", broker.bootstrap, *arguments)

    def level() -> str:
        (line,) = [one for one in features("describe").splitlines() if "transaction.version" in one]
        words = dict(itertools.pairwise(line.replace(":", "").split()))
        assert (words["SupportedMinVersion"], words["SupportedMaxVersion"]) == ("0", "2")
        return words["FinalizedVersionLevel"]

    assert level() == "2"
    try:
        features("downgrade", "--feature", "transaction.version=1")
        assert level() == "1"
    finally:
        features("upgrade", "--feature", "transaction.version=2")
    assert level() == "2"
