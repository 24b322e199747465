"""A broker that compacts its coordinators' own topics: what they know is there after a kill."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from plog._native.batch import scan
from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.client.group_consumer import GroupConsumer, GroupMetadata
from plog.client.producer import Producer
from plog.client.transaction_admin import ONGOING, TransactionAdmin, TransactionDescription
from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.txn_coordinator import TRANSACTIONS_TOPIC
from plog.storage.checkpoints import CLEANER_OFFSET_FILE, decode_offsets
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.servers import BrokerProcess
from tests.waiting import until

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.segment.bytes": 2000,
    "transaction.state.log.segment.bytes": 2000,
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 0,  # so that tombstones go, too
    "group.initial.rebalance.delay.ms": 0,
}
SETTLED = {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"}
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
OFFSETS, TRANSACTIONS = TopicPartition(OFFSETS_TOPIC, 0), TopicPartition(TRANSACTIONS_TOPIC, 0)
GROUPS = ["g0", "g1", "g2"]
GROUP_OF = {"tx0": "g0", "tx1": "of transactions alone"}
WAIT_S = 60


class Known(NamedTuple):
    """What coordinators tell of groups and transactional ids."""

    offsets: dict[str, dict[TopicPartition, int]]
    groups: dict[str, tuple[str, str]]
    transactions: list[TransactionDescription]

    @property
    def is_settled(self) -> bool:
        """Nothing is on its way: no marker, no transaction that will be aborted."""
        return all(one.state in SETTLED for one in self.transactions)


def known(bootstrap: str) -> Known:
    with GroupAdmin(bootstrap) as groups, TransactionAdmin(bootstrap) as transactions:
        described = [groups.describe(one.group_id) for one in groups.groups()]
        return Known(
            {one.group_id: groups.committed(one.group_id) for one in described},
            {one.group_id: (one.state, one.protocol_type) for one in described},
            [transactions.describe(one.transactional_id) for one in transactions.transactions()],
        )


def ends(bootstrap: str) -> dict[TopicPartition, int]:
    with Consumer(bootstrap) as consumer:
        return consumer.end_offsets([OFFSETS, TRANSACTIONS])


def await_compaction(broker: BrokerProcess, at: TopicPartition, end: int) -> None:
    """Wait until the cleaner has passed an offset, and see that something has gone."""
    path = broker.log_dirs[0] / CLEANER_OFFSET_FILE

    def is_compacted() -> bool:
        return path.exists() and decode_offsets(path.read_text(), path.name).get(at, 0) >= end

    until(is_compacted, f"{at} is compacted up to {end}")
    found: list[int] = []

    def is_counted() -> bool:
        # A file may be replaced while it is looked for.
        with suppress(FileNotFoundError):
            found.append(records_below(broker.log_dirs[0] / str(at), end))
        return bool(found)

    until(is_counted, f"the records of {at} are counted")
    assert found[0] < end


def records_below(directory: Path, end: int) -> int:
    return sum(
        header.records_count
        for path in sorted(directory.glob("*.log"))
        for header in scan(path.read_bytes())
        if header.base_offset < end
    )


class Traffic:
    """Commits offsets in every way; of each it keeps in mind what stands."""

    def __init__(self, bootstrap: str, chance: random.Random) -> None:
        self._bootstrap, self._chance = bootstrap, chance
        self._next = 0
        self.offsets: dict[str, dict[TopicPartition, int]] = defaultdict(dict)

    def commit(self, count: int) -> None:
        """Commit so often from outside; some of it is forgotten again, and a group deleted."""
        with GroupAdmin(self._bootstrap) as admin:
            for _ in range(count):
                group, at, number = self._some()
                if at in self.offsets[group] and self._chance.random() < 0.2:
                    admin.delete_offsets(group, [at])
                    del self.offsets[group][at]
                else:
                    admin.commit(group, {at: number})
                    self.offsets[group][at] = number
            admin.commit("gone", {PARTITIONS[0]: 1})
            admin.delete("gone")

    def transact(self, count: int) -> None:
        """Have each transactional id commit so often for its group; what is last is aborted."""
        for transactional_id, group in GROUP_OF.items():
            with Producer(self._bootstrap, transactional_id=transactional_id) as producer:
                producer.init_transactions()
                for n in range(count):
                    _, at, number = self._some()
                    producer.begin_transaction()
                    producer.send(at.topic, b"v", partition=at.partition)
                    producer.send_offsets_to_transaction({at: number}, GroupMetadata(group))
                    if n >= count - len(PARTITIONS) or self._chance.random() < 0.3:
                        producer.abort_transaction()
                    else:
                        producer.commit_transaction()
                        self.offsets[group][at] = number

    def consume(self, count: int) -> None:
        """Have the member of a group commit so often."""
        with GroupConsumer(self._bootstrap, "members", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])

            def is_inside() -> bool:
                consumer.poll(50)
                return bool(consumer.assignment())

            until(is_inside)
            for _ in range(count):
                _, at, number = self._some()
                consumer.commit({at: number})
                self.offsets["members"][at] = number

    def _some(self) -> tuple[str, TopicPartition, int]:
        self._next += 1
        return self._chance.choice(GROUPS), self._chance.choice(PARTITIONS), self._next

    def known(self) -> Known:
        """Return what coordinators tell, which is what stands."""
        told = known(self._bootstrap)
        while not told.is_settled:
            told = known(self._bootstrap)
        stands = {group: its for group, its in told.offsets.items() if its}
        assert stands == {group: its for group, its in self.offsets.items() if its}
        return told


@pytest.mark.usefixtures("plane")
def test_coordinators_know_after_a_kill_what_they_did_before_their_topics_were_compacted(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path, overrides=SETTINGS).start()
    traffic = Traffic(broker.bootstrap, random.Random(run_seed()))
    try:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=len(PARTITIONS))
        with Producer(broker.bootstrap, transactional_id="open", retry_backoff_ms=10) as producer:
            producer.init_transactions()
            traffic.consume(10)
            traffic.transact(15)
            # Offsets are compacted up to the open transaction, in whole segments; its own state
            # together with that of the others.
            offsets_end = ends(broker.bootstrap)[OFFSETS]
            traffic.commit(60)
            producer.begin_transaction()
            producer.send("t", b"v", partition=0).result(WAIT_S)
            producer.send_offsets_to_transaction({PARTITIONS[0]: 7}, GroupMetadata("g-open"))
            transactions_end = ends(broker.bootstrap)[TRANSACTIONS]
            traffic.transact(15)
            await_compaction(broker, OFFSETS, offsets_end)
            await_compaction(broker, TRANSACTIONS, transactions_end)
            before = traffic.known()
            assert [one.state for one in before.transactions if one.transactional_id == "open"] == [
                ONGOING
            ]
            broker.kill()
            broker.start()
            assert traffic.known() == before
            # It is as open as it was.
            producer.commit_transaction()
            traffic.offsets["g-open"] = {PARTITIONS[0]: 7}
            offsets_end = ends(broker.bootstrap)[OFFSETS]
            traffic.commit(60)
            await_compaction(broker, OFFSETS, offsets_end)
            before = traffic.known()
            broker.kill()
            broker.start()
            assert traffic.known() == before
        broker.stop()
    finally:
        broker.kill()
