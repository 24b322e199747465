"""A broker that compacts its coordinators' own topics: what they know is there after a kill."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from plog._native.batch import scan
from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.group_admin import GroupAdmin
from plog.client.group_consumer import GroupConsumer, GroupMetadata
from plog.client.group_descriptions import GroupDescription
from plog.client.producer import Producer
from plog.client.transaction_admin import ONGOING, TransactionAdmin, TransactionDescription
from plog.coordinator.consumer_log import ConsumerKey, decode_key
from plog.coordinator.consumer_table import Kind
from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.txn_coordinator import TRANSACTIONS_TOPIC
from plog.errors import ErrorCode
from plog.storage.checkpoints import CLEANER_OFFSET_FILE, decode_offsets
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.coordinator.conftest import await_groups
from tests.coordinator.members import ByHand
from tests.coordinator.members import Consumer as ConsumerMember
from tests.handlers.wire import speak, walk_all
from tests.servers import BrokerProcess
from tests.transactions.transactor import Transactor
from tests.waiting import until

SETTINGS: dict[str, object] = {
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
OWN_EPOCHS = "tx2"
"""The transactional id whose transactions are of version 2 (KIP-890); it commits for `g1`."""
WAIT_S = 60


class Known(NamedTuple):
    """What coordinators tell of groups and transactional ids."""

    offsets: dict[str, dict[TopicPartition, int]]
    groups: dict[str, GroupDescription]
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
            {one.group_id: one for one in described},
            [transactions.describe(one.transactional_id) for one in transactions.transactions()],
        )


def end_of(bootstrap: str, at: TopicPartition) -> int:
    with Consumer(bootstrap) as consumer:
        return consumer.end_offsets([at])[at]


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

    def __init__(self, broker: BrokerProcess, chance: random.Random) -> None:
        self._broker, self._bootstrap, self._chance = broker, broker.bootstrap, chance
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

    def transact_by_own_epochs(self, count: int) -> None:
        """Do the same by transactions of version 2."""
        with closing(speak(self._broker.port)) as wire:
            producer = Transactor(wire, OWN_EPOCHS, own_epochs=True).start()
            for n in range(count):
                _, at, number = self._some()
                producer.send(at)
                assert producer.commit_offset("g1", at, number) is ErrorCode.NONE
                commits = n < count - len(PARTITIONS) and self._chance.random() > 0.3
                producer.finish(commit=commits)
                if commits:
                    self.offsets["g1"][at] = number

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
    traffic = Traffic(broker, random.Random(run_seed()))
    try:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=len(PARTITIONS))
        with (
            Producer(broker.bootstrap, transactional_id="open", retry_backoff_ms=10) as producer,
            closing(speak(broker.port)) as wire,
        ):
            producer.init_transactions()
            other = Transactor(wire, "open, of version 2", own_epochs=True).start()
            traffic.consume(10)
            traffic.transact(15)
            traffic.transact_by_own_epochs(15)
            # Offsets are compacted up to the open transaction, in whole segments; its own state
            # together with that of the others.
            offsets_end = end_of(broker.bootstrap, OFFSETS)
            traffic.commit(60)
            producer.begin_transaction()
            producer.send("t", b"v", partition=0).result(WAIT_S)
            producer.send_offsets_to_transaction({PARTITIONS[0]: 7}, GroupMetadata("g-open"))
            other.send(PARTITIONS[1])
            assert other.commit_offset("g-open", PARTITIONS[1], 8) is ErrorCode.NONE
            transactions_end = end_of(broker.bootstrap, TRANSACTIONS)
            traffic.transact(15)
            traffic.transact_by_own_epochs(15)
            await_compaction(broker, OFFSETS, offsets_end)
            await_compaction(broker, TRANSACTIONS, transactions_end)
            before = traffic.known()
            assert [one.state for one in before.transactions if "open" in one.transactional_id] == [
                ONGOING
            ] * 2
            broker.kill()
            broker.start()
            assert traffic.known() == before
            # They are as open as they were.
            producer.commit_transaction()
            with closing(speak(broker.port)) as other.wire:
                epoch = other.producer.epoch
                other.finish(commit=True)
                assert other.producer.epoch == epoch + 1
            traffic.offsets["g-open"] = {PARTITIONS[0]: 7, PARTITIONS[1]: 8}
            offsets_end = end_of(broker.bootstrap, OFFSETS)
            traffic.commit(60)
            await_compaction(broker, OFFSETS, offsets_end)
            before = traffic.known()
            broker.kill()
            broker.start()
            assert traffic.known() == before
        broker.stop()
    finally:
        broker.kill()


# -- groups of the consumer protocol ---------------------------------------------------------------

LONG_MS = 600_000
"""Nobody is put out of a group for being silent, or for keeping what it is to give up."""
BY_REGEX, LEFT, GONE = "by regex", "left", "gone"


def commit(member: ConsumerMember, traffic: Traffic, offset: int) -> None:
    """Commit as the member that it is in its epoch."""
    with closing(
        ByHand(member.port, member.group, member_id=member.member_id, generation=member.epoch)
    ) as hand:
        assert hand.commit("t", offset, 9) is ErrorCode.NONE
    traffic.offsets[member.group][PARTITIONS[0]] = offset


def settle(*members: ConsumerMember) -> None:
    """Have a group's members give up and take over until each has what it is to have."""

    def is_settled() -> bool:
        for one in members:
            assert one.tell().error_code == ErrorCode.NONE
        numbers = sorted(number for one in members for number in one.numbers())
        return numbers == [0, 1, 2] and len({one.epoch for one in members}) == 1

    until(is_settled, "settled")


def consumer_records(broker: BrokerProcess, end: int) -> list[tuple[ConsumerKey, bool]]:
    """Return the records of consumer groups below an offset, each with whether it has a value.

    Nobody may be writing.
    """
    paths = sorted((broker.log_dirs[0] / str(OFFSETS)).glob("*.log"))
    found = [
        (decode_key(record.key), record.value is not None)
        for path in paths
        for record in walk_all(path.read_bytes())
        if record.offset < end and record.key
    ]
    return [(key, has_value) for key, has_value in found if key is not None]


@pytest.mark.usefixtures("plane")
def test_consumer_group_goes_on_after_its_file_was_compacted_and_its_broker_killed(
    tmp_path: Path,
) -> None:
    overrides = {**SETTINGS, "group.consumer.session.timeout.ms": LONG_MS}
    overrides["group.consumer.max.session.timeout.ms"] = LONG_MS
    broker = BrokerProcess(tmp_path, overrides=overrides).start()
    traffic = Traffic(broker, random.Random(run_seed()))
    made: list[ConsumerMember] = []

    def enter(
        group: str, *topics: str, regex: str | None = None, instance: str | None = None
    ) -> ConsumerMember:
        made.append(ConsumerMember(broker.port, group, topics, regex, instance))
        assert made[-1].join(rebalance_timeout_ms=LONG_MS).error_code == ErrorCode.NONE
        return made[-1]

    def compact() -> int:
        """Have all be compacted that there is by now; return its end."""
        end = end_of(broker.bootstrap, OFFSETS)
        traffic.commit(60)
        await_compaction(broker, OFFSETS, end)
        return end

    def kill_and_start() -> None:
        """See that the coordinator knows what it did; have members come back."""
        before = traffic.known()
        broker.kill()
        for one in made:
            one.close()
        broker.start()
        assert traffic.known() == before
        for one in made:
            one.wire = speak(broker.port)

    try:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=len(PARTITIONS))
        await_groups(broker, "g")
        stays = enter("g", "t", instance="static")
        for turn in range(6):
            comes = enter("g", "t")
            settle(stays, comes)
            commit(comes, traffic, 2 * turn)
            comes.leave()
            settle(stays)
            commit(stays, traffic, 2 * turn + 1)
        by_regex = enter(BY_REGEX, regex="t.*")
        settle(by_regex)
        for group in (LEFT, GONE):
            one = enter(group, "t")
            commit(one, traffic, 5)
            one.leave()
        with GroupAdmin(broker.bootstrap) as groups:
            groups.delete(GONE)
        del traffic.offsets[GONE]
        # It waits for what the other has, and knows that it is to give up, but has not.
        waits = enter("g", "t")
        stays.beat()
        assert waits.numbers() == []
        assert waits.epoch > stays.epoch
        inside = [stays, waits, by_regex]

        compact()
        kill_and_start()
        for one in inside:
            epoch = one.epoch
            assert one.beat().error_code == ErrorCode.NONE
            assert one.epoch == epoch
        for one in made:
            if one not in inside:
                refused = one.beat(member_epoch=1).error_code
                assert refused == (
                    ErrorCode.GROUP_ID_NOT_FOUND
                    if one.group == GONE
                    else ErrorCode.UNKNOWN_MEMBER_ID
                )
        settle(stays, waits)
        commit(waits, traffic, 100)

        end = compact()
        kill_and_start()
        for one in inside:
            epoch = one.epoch
            assert one.tell().error_code == ErrorCode.NONE
            assert one.epoch == epoch
        commit(stays, traffic, 101)
        broker.stop()
        records = consumer_records(broker, end)
        # Each once; nothing is left of those who have gone.
        assert len(records) == len(set(records))
        assert all(has_value for _, has_value in records), records
        assert {key.key.name for key, _ in records if key.key.kind is Kind.MEMBER} == {
            one.member_id for one in inside
        }
        assert {key.group for key, _ in records} == {"g", BY_REGEX, LEFT}
        assert {key.key.kind for key, _ in records} == set(Kind)
    finally:
        for one in made:
            one.close()
        broker.kill()
