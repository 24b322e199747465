"""Coordinators' records in files: plog goes on with those of a Kafka 4.1, and Kafka with plog's.

What is carried over are the segments alone, into partitions of the same topic ids: of groups of the
consumer protocol (KIP-848) and a classic one, of offsets, decided and not, and of transactions of
version 2, one of which is open.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plog.coordinator.subscriptions import encode_assignment
from plog.errors import ErrorCode
from plog.protocol.messages.consumer_groups import Assignment, ConsumerGroupDescribeRequest
from plog.protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest
from plog.types import TopicPartition
from tests.compat.live_kafka import KraftKafka
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.coordinator.members import ByHand, Consumer, subscription
from tests.handlers.wire import Speaker, create_topic, speak
from tests.servers import BrokerProcess
from tests.transactions.transactor import Transactor, committed_offset, read
from tests.waiting import until

NEVER_MS = 900_000
SETTINGS: dict[str, object] = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.session.timeout.ms": NEVER_MS,
    "group.consumer.max.session.timeout.ms": NEVER_MS,
}
OF_SEGMENTS = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
META = "version=0\nbroker.id=0\ncluster.id=cGxvZy1iZXNpZGUta2Fma2E\n"
NOBODY = "nobody"
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
SIZES = [2, 2, 4, 4]
"""How many partitions the members have that `form` makes."""
KINDS = ("shared", "alone", "regex", "left", "upgraded")
CLASSIC = ("classic", "downgraded")
TRANSACTIONS = ("commits", "aborts", "open")
NONE = ErrorCode.NONE


@contextmanager
def kafka(where: Path, data: Path) -> Iterator[KraftKafka]:
    given = {**SETTINGS, "log.dirs": data}
    broker = KraftKafka(where, "".join(f"{key}={value}\n" for key, value in given.items()))
    try:
        yield broker
    except BaseException:
        broker.kill()
        raise
    broker.stop()
    assert broker.complaints == []


def await_read(wire: Speaker) -> None:
    """Wait until a broker has read what it coordinates: it says that it does before."""
    for kind in (GROUP, TRANSACTION):
        await_coordinator(wire, NOBODY, kind)
    until(lambda: group(wire, NOBODY).error_code == ErrorCode.GROUP_ID_NOT_FOUND, "groups read")
    absent = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    until(lambda: Transactor(wire, NOBODY).described().error_code == absent, "transactions read")


def carry(source: Path, target: Path) -> None:
    """Have the segments of one broker's partitions in place of those that the other has."""
    for partition in source.glob("*-[0-9]"):
        if partition.name.startswith("__cluster_metadata"):
            continue
        there = target / partition.name
        there.mkdir(parents=True, exist_ok=True)
        for file in there.iterdir():
            if file.suffix in OF_SEGMENTS:
                file.unlink()
        for file in partition.iterdir():
            if not (there / file.name).exists():
                shutil.copy(file, there)


# -- what there is


def form(port: int, name: str) -> list[Consumer]:
    """Make groups that have committed offsets; return those members who stay."""
    shared = [Consumer(port, f"{name}-shared", ("t",)) for _ in range(2)]
    alone = Consumer(port, f"{name}-alone", ("t",), instance="i", assignor="range")
    by_regex = Consumer(port, f"{name}-regex", regex="t.*")
    members = [*shared, alone, by_regex]
    left = Consumer(port, f"{name}-left", ("t",))
    for member in (*members, left):
        assert member.join().error_code == NONE
    settle(members)
    for offset, member in enumerate([shared[0], alone, by_regex, left], 5):
        commit(member, offset)
    assert left.leave().error_code == NONE
    classic = ByHand(port, f"{name}-classic", session_ms=NEVER_MS)
    classic.enter()
    assert classic.commit("t", 9) is NONE
    for one in (classic, left):
        one.close()
    upgraded = upgrade(port, f"{name}-upgraded")
    alone_again, leaves = upgrade(port, f"{name}-downgraded")
    assert leaves.leave().error_code == NONE
    enter(alone_again)
    for one in (*upgraded, alone_again, leaves):
        one.close()
    return members


def enter(classic: ByHand) -> None:
    """Be the only member of a classic group, and have everything."""
    assert classic.join().error_code == NONE
    everything = {classic.member_id: encode_assignment({"t": range(4)})}
    assert classic.sync(everything).error_code == NONE


def upgrade(port: int, group: str) -> tuple[ByHand, Consumer]:
    """Have a member of the consumer protocol join a classic group, which becomes one of its own."""
    classic = ByHand(port, group, protocols={"range": subscription("t")}, session_ms=NEVER_MS)
    enter(classic)
    consumer = Consumer(port, group, ("t",))
    assert consumer.join().error_code == NONE
    return classic, consumer


def settle(members: Sequence[Consumer]) -> None:
    """Have members tell what they own until nothing changes any more."""

    def is_settled() -> bool:
        before = [member.epoch for member in members]
        for member in members:
            assert member.tell().error_code == NONE
        sizes = [len(member.numbers()) for member in members]
        return sizes == SIZES and [member.epoch for member in members] == before

    until(is_settled, "settled")


def go_on(members: Sequence[Consumer], port: int) -> list[Consumer]:
    """Have them tell another broker of themselves, as who they are; it may begin a new epoch."""
    again = [replace(member, port=port) for member in members]
    for before, member in zip(members, again, strict=True):
        before.close()
        assert member.tell().error_code == NONE
        assert member.epoch >= before.epoch > 0
    settle(again)
    for before, member in zip(members, again, strict=True):
        assert sorted(member.numbers()) == sorted(before.numbers())
    return again


def commit(member: Consumer, offset: int) -> None:
    with closing(ByHand(member.port, member.group)) as by:
        who = {"member_id": member.member_id, "generation_id_or_member_epoch": member.epoch}
        assert by.commit("t", offset, version=9, **who) is NONE


def transact(wire: Speaker, name: str) -> Transactor:
    """Make transactions; return the producer of one that is open, in records and offsets."""
    commits, aborts, opened = (
        Transactor(wire, f"{name}-{what}", timeout_ms=NEVER_MS, own_epochs=True).start()
        for what in TRANSACTIONS
    )
    for one in (commits, aborts, opened):
        one.send(FIRST, one.transactional_id.encode())
    commits.finish(commit=True)
    aborts.finish(commit=False)
    assert opened.commit_offset(f"{name}-left", SECOND, 3) is NONE
    return opened


def end(opened: Transactor, wire: Speaker) -> None:
    """Have another broker commit what was open."""
    there = replace(opened, wire=wire)
    there.send(FIRST, b"and " + opened.transactional_id.encode())
    there.finish(commit=True)


# -- what is told of it


def group(wire: Speaker, name: str) -> Any:
    (found,) = wire.ask(
        ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=False), 1
    ).groups
    return found


def told(wire: Speaker, *names: str) -> dict[str, object]:
    """Return what a broker tells of all that was made under these names."""
    found: dict[str, object] = {}
    for name in names:
        for kind in KINDS:
            found[f"{name}-{kind}"] = _group(group(wire, f"{name}-{kind}"))
        for kind in (*KINDS, *CLASSIC):
            found[f"offsets of {name}-{kind}"] = [
                committed_offset(wire, f"{name}-{kind}", at, require_stable=True)
                for at in (FIRST, SECOND)
            ]
        for kind in CLASSIC:
            request = DescribeGroupsRequest(
                groups=[f"{name}-{kind}"], include_authorized_operations=False
            )
            found[f"{name}-{kind}"] = wire.ask(request, 5).groups
        for what in TRANSACTIONS:
            found[f"{name}-{what}"] = _transaction(Transactor(wire, f"{name}-{what}").described())
    return found


def _group(found: Any) -> tuple[object, ...]:
    members = {
        one.member_id: (
            (one.instance_id, one.client_id, one.client_host, one.member_epoch, one.member_type),
            (sorted(one.subscribed_topic_names), one.subscribed_topic_regex),
            (_partitions(one.assignment), _partitions(one.target_assignment)),
        )
        for one in found.members
    }
    epochs = found.group_epoch, found.assignment_epoch
    return ErrorCode(found.error_code), found.group_state, epochs, found.assignor_name, members


def _partitions(assignment: Assignment) -> dict[object, list[int]]:
    return {one.topic_id: sorted(one.partitions) for one in assignment.topic_partitions}


def _transaction(found: Any) -> tuple[object, ...]:
    producer = found.producer_id, found.producer_epoch, found.transaction_timeout_ms
    partitions = {one.topic: sorted(one.partitions) for one in found.topics}
    return ErrorCode(found.error_code), found.transaction_state, producer, partitions


@pytest.mark.timeout(500)
def test_coordinators_go_on_where_kafka_stopped_and_where_plog_did(tmp_path: Path) -> None:
    of_kafka = tmp_path / "of-kafka"
    with kafka(tmp_path / "first", of_kafka) as first, closing(speak(first.port)) as wire:
        await_read(wire)
        create_topic(wire, "t", partitions=4)
        theirs, opened = form(first.port, "theirs"), transact(wire, "theirs")
        said = told(wire, "theirs")
        undecided = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert committed_offset(wire, "theirs-left", SECOND, require_stable=True) == undecided

    broker = BrokerProcess(tmp_path, overrides=SETTINGS)
    (of_plog,) = broker.log_dirs
    carry(of_kafka, of_plog)
    (of_plog / "meta.properties").write_text(META)
    with broker, closing(speak(broker.port)) as wire:
        await_read(wire)
        assert told(wire, "theirs") == said
        theirs = go_on(theirs, broker.port)
        end(opened, wire)
        ours, opened = form(broker.port, "ours"), transact(wire, "ours")
        deleted = wire.ask(DeleteGroupsRequest(groups_names=["theirs-left"]), 2)
        assert [one.error_code for one in deleted.results] == [NONE]
        said = told(wire, "theirs", "ours")
    assert "failed with an internal error" not in broker.log
    assert "cannot read the record" not in broker.log

    carry(of_plog, of_kafka)
    with kafka(tmp_path / "again", of_kafka) as again, closing(speak(again.port)) as wire:
        await_read(wire)
        assert told(wire, "theirs", "ours") == said
        for member in (*go_on(theirs, again.port), *go_on(ours, again.port)):
            member.close()
        end(opened, wire)
        values = [b"theirs-commits", b"theirs-open", b"and theirs-open"]
        values += [b"ours-commits", b"ours-open", b"and ours-open"]
        until(lambda: read(wire, FIRST) == values, "committed")
        assert committed_offset(wire, "ours-left", SECOND, require_stable=True) == (NONE, 3)
