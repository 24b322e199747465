"""Deleted topics take their committed offsets along, and leave those of the next topic."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from types import MappingProxyType, SimpleNamespace

import pytest

from plog.cluster.metadata_cache import MetadataSnapshot, PartitionMetadata, TopicMetadata
from plog.coordinator import group_log
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_shard import Shard
from plog.coordinator.replay import Entry, Replayed
from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode, KafkaStorageError
from plog.handlers import transactional_offsets
from plog.handlers.group_offsets import offset_commit
from plog.handlers.transactional_offsets import txn_offset_commit
from plog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from plog.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from plog.settings.definitions import BrokerSettings
from plog.types import ZERO_UUID
from tests.coordinator.test_group_coordinator import AT, OFFSETS, PRODUCER, Written, made

OLD, NEXT = uuid.UUID(int=101), uuid.UUID(int=102)
OLD_OFFSET, NEXT_OFFSET = 5, 7


class Cluster:
    """The metadata of a cluster that has one topic at most."""

    def __init__(self) -> None:
        self._look: Callable[[MetadataSnapshot], None] = lambda _: None
        self.snapshot = MetadataSnapshot()
        self.has(OLD)

    def subscribe(self, look: Callable[[MetadataSnapshot], None]) -> Callable[[], None]:
        self._look = look
        return lambda: None

    def has(self, topic_id: uuid.UUID | None) -> None:
        topics, names = {}, {}
        if topic_id is not None:
            partition = PartitionMetadata(0, 1, 0, (1,), (1,), (), 0)
            topics[AT.topic] = TopicMetadata(AT.topic, topic_id, {0: partition})
            names[topic_id] = AT.topic
        self.snapshot = MetadataSnapshot(
            topics=MappingProxyType(topics), topic_names=MappingProxyType(names)
        )
        self._look(self.snapshot)

    def recreate_topic(self) -> None:
        self.has(None)
        self.has(NEXT)


class Play:
    """A coordinator with one shard, its log, and the cluster's metadata."""

    def __init__(self) -> None:
        self.cluster, self.written = Cluster(), Written()
        self.groups = made(self.written)
        self.groups.shards.serve(Shard(0, 1))
        self.groups.start(self.cluster)  # type: ignore[arg-type]

    async def commit(self, topic_id: uuid.UUID, offset: int) -> ErrorCode:
        return await self.groups.commit(
            "g",
            [(AT, CommittedOffset(offset, topic_id=topic_id))],
            member_id="",
            instance_id=None,
            generation=-1,
            version=8,
        )

    async def commit_in_transaction(
        self, topic_id: uuid.UUID, offset: int, producer_id: int = PRODUCER
    ) -> ErrorCode:
        return await self.groups.commit_in_transaction(
            "g",
            [(AT, CommittedOffset(offset, topic_id=topic_id))],
            producer=Producer(producer_id, 0),
            guard=None,
            member_id="",
            instance_id=None,
            generation=-1,
        )

    def end_transaction(self, *, is_commit: bool) -> None:
        self.written.mark(abort=not is_commit)
        self.groups.on_marker(OFFSETS, PRODUCER, is_commit)

    @contextmanager
    def appends_waiting(self) -> Iterator[None]:
        """Keep every append under way until the end of the block."""
        self.written.may_go_on = asyncio.Event()
        yield
        self.written.may_go_on.set()
        self.written.may_go_on = None

    def restart(self) -> None:
        """Read the log again: the offsets have no topic id then."""
        self.groups.shards.serve(self.written.read())

    async def settle(self) -> None:
        """Wait for all tasks of the coordinator, except the periodic one."""
        await asyncio.sleep(0)  # the deletion that was seen reaches the event loop
        while len(self.groups.shards._tasks) > 1:
            await asyncio.sleep(0)

    def committed(self) -> list[int | None]:
        """Return the group's offset: in memory, and after a restart."""
        found = []
        for shard in (self.groups.shards.of("g"), self.written.read()):
            group = shard.groups.get("g")
            committed = None if group is None else group.offsets.get(AT)
            found.append(None if committed is None else committed.offset)
        return found


Commit = Callable[[Play, uuid.UUID, int], Coroutine[None, None, ErrorCode]]
BOTH = pytest.mark.parametrize("commit", [Play.commit, Play.commit_in_transaction])


def play(steps: Callable[[Play], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        one = Play()
        async with asyncio.timeout(60):
            await steps(one)
        one.groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("restarts", [True, False])
def test_commit_for_the_next_topic_stays(monkeypatch: pytest.MonkeyPatch, restarts: bool) -> None:
    monkeypatch.setattr("plog.runtime.give_way.AT_ONCE_S", -1)

    async def steps(one: Play) -> None:
        assert await one.commit(OLD, OLD_OFFSET) is ErrorCode.NONE
        if restarts:
            one.restart()
        # The other group is looked at first.
        shard = one.groups.shards.of("g")
        shard.groups = {"another": shard.group("another"), "g": shard.group("g")}
        one.cluster.recreate_topic()
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the groups are being looked at
        assert await one.commit(NEXT, NEXT_OFFSET) is ErrorCode.NONE
        await one.settle()
        assert one.committed() == [NEXT_OFFSET, NEXT_OFFSET]

    play(steps)


@pytest.mark.parametrize("restarts", [True, False])
def test_commit_before_the_deletion_goes(restarts: bool) -> None:
    async def steps(one: Play) -> None:
        assert await one.commit(OLD, OLD_OFFSET) is ErrorCode.NONE
        if restarts:
            one.restart()
        one.cluster.recreate_topic()
        await one.settle()
        assert one.committed() == [None, None]

    play(steps)


@BOTH
@pytest.mark.parametrize("is_next_there", [True, False])
def test_commit_under_way_goes_with_its_topic(commit: Commit, is_next_there: bool) -> None:
    async def steps(one: Play) -> None:
        with one.appends_waiting():
            commits = asyncio.ensure_future(commit(one, OLD, OLD_OFFSET))
            await asyncio.sleep(0)  # it is appended, and not known to be safe
            one.cluster.has(None)
            if is_next_there:
                one.cluster.has(NEXT)
            await one.settle()
        assert await commits is ErrorCode.NONE
        await one.settle()
        one.end_transaction(is_commit=True)
        await one.settle()
        assert one.committed() == [None, None]

    play(steps)


@BOTH
def test_commit_under_way_for_the_next_topic_stays(commit: Commit) -> None:
    async def steps(one: Play) -> None:
        assert await one.commit(OLD, OLD_OFFSET) is ErrorCode.NONE
        with one.appends_waiting():
            one.cluster.recreate_topic()
            # As if its check came before the event loop has learned of the deletion.
            commits = asyncio.ensure_future(commit(one, NEXT, NEXT_OFFSET))
            await one.settle()
        assert await commits is ErrorCode.NONE
        await one.settle()
        one.end_transaction(is_commit=True)
        await one.settle()
        assert one.committed() == [NEXT_OFFSET, NEXT_OFFSET]

    play(steps)


def test_commit_for_the_next_topic_that_fails_keeps_no_older_one() -> None:
    async def steps(one: Play) -> None:
        assert await one.commit(OLD, OLD_OFFSET) is ErrorCode.NONE
        append, fails = one.written.append, asyncio.Event()

        async def fail(*_: object, **__: object) -> int:
            await fails.wait()
            raise KafkaStorageError("offline")

        one.written.append = fail  # type: ignore[method-assign]
        one.cluster.recreate_topic()
        commits = asyncio.ensure_future(one.commit(NEXT, NEXT_OFFSET))
        await one.settle()
        one.written.append = append  # type: ignore[method-assign]
        fails.set()
        assert await commits is not ErrorCode.NONE
        await one.settle()
        assert one.committed() == [None, None]

    play(steps)


def test_transaction_for_the_next_topic_that_aborts_keeps_no_older_offset() -> None:
    async def steps(one: Play) -> None:
        assert await one.commit(OLD, OLD_OFFSET) is ErrorCode.NONE
        one.cluster.recreate_topic()
        assert await one.commit_in_transaction(NEXT, NEXT_OFFSET) is ErrorCode.NONE
        await one.settle()
        one.end_transaction(is_commit=False)
        await one.settle()
        assert one.committed() == [None, None]

    play(steps)


def test_deletion_that_cannot_be_stored_is_tried_again() -> None:
    async def steps(one: Play) -> None:
        assert await one.commit(OLD, OLD_OFFSET) is ErrorCode.NONE
        append = one.written.append

        async def fail(*_: object, **__: object) -> int:
            raise KafkaStorageError("offline")

        one.written.append = fail  # type: ignore[method-assign]
        one.cluster.recreate_topic()
        await one.settle()
        assert one.committed() == [OLD_OFFSET, OLD_OFFSET]
        one.written.append = append  # type: ignore[method-assign]
        await one.groups.endings.expire()
        assert one.committed() == [None, None]

    play(steps)


def test_topic_that_is_deleted_while_a_log_is_read_takes_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = group_log.encode_offset_key("g", AT)
    value = group_log.encode_offset(CommittedOffset(OLD_OFFSET))
    begun, go_on = threading.Event(), threading.Event()

    def replay(*_: object, **__: object) -> Replayed:
        begun.set()
        go_on.wait(60)
        return Replayed(table={key: Entry(value, 0)})

    monkeypatch.setattr("plog.coordinator.shards.replay", replay)
    partition = SimpleNamespace(
        topic_partition=OFFSETS,
        leadership=SimpleNamespace(leader_epoch=1),
        hosted_log=SimpleNamespace(size_bytes=0, high_watermark=0),
    )

    async def run() -> None:
        groups, cluster = made(Written()), Cluster()
        groups.start(cluster)  # type: ignore[arg-type]
        groups.shards.on_leadership([partition], [])  # type: ignore[list-item]
        await asyncio.to_thread(begun.wait, 60)
        cluster.recreate_topic()
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(60):
            while groups.shards.at(0) is None or groups.find("g") is not None:
                await asyncio.sleep(0)
        groups.close()

    asyncio.run(run())


# -- requests ------------------------------------------------------------------------------------


def context(groups: GroupCoordinator, cluster: Cluster) -> SimpleNamespace:
    services = SimpleNamespace(
        clock=SimpleNamespace(now_ms=lambda: 0),
        settings=SimpleNamespace(broker=BrokerSettings),
        metadata=cluster,
        groups=groups,
    )
    return SimpleNamespace(
        version=3, services=services, connection=SimpleNamespace(aside=nullcontext)
    )


async def ask_to_commit(one: Play) -> int:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=OLD_OFFSET, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id="g",
        topics=[OffsetCommitRequestTopic(name=AT.topic, topic_id=ZERO_UUID, partitions=[part])],
    )
    answer = await offset_commit(context(one.groups, one.cluster), request)  # type: ignore[arg-type]
    return int(answer.topics[0].partitions[0].error_code)


async def ask_to_commit_in_transaction(one: Play) -> int:
    part = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=OLD_OFFSET, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=PRODUCER,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name=AT.topic, topic_id=ZERO_UUID, partitions=[part])],
    )
    answer = await txn_offset_commit(context(one.groups, one.cluster), request)  # type: ignore[arg-type]
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("ask", [ask_to_commit, ask_to_commit_in_transaction])
def test_request_under_way_commits_nothing_for_the_next_topic(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Play], Coroutine[None, None, int]]
) -> None:
    async def no_leave(*_: object) -> None:
        pass

    monkeypatch.setattr(transactional_offsets, "_permission", no_leave)
    monkeypatch.setattr(transactional_offsets, "late_of", lambda *_: None)

    async def steps(one: Play) -> None:
        with one.appends_waiting():
            answer = asyncio.ensure_future(ask(one))
            await asyncio.sleep(0)
            one.cluster.recreate_topic()
            await one.settle()
        assert await answer == ErrorCode.NONE
        await one.settle()
        one.end_transaction(is_commit=True)
        await one.settle()
        assert one.committed() == [None, None]

    play(steps)


def test_topic_that_is_deleted_before_the_append_of_a_transaction_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joins, may_join = asyncio.Event(), asyncio.Event()

    async def leave(*_: object) -> None:
        joins.set()
        await may_join.wait()

    monkeypatch.setattr(transactional_offsets, "_permission", leave)
    monkeypatch.setattr(transactional_offsets, "late_of", lambda *_: None)

    async def steps(one: Play) -> None:
        answer = asyncio.ensure_future(ask_to_commit_in_transaction(one))
        await joins.wait()
        one.cluster.recreate_topic()
        assert await one.commit(NEXT, NEXT_OFFSET) is ErrorCode.NONE
        may_join.set()
        assert await answer == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        one.end_transaction(is_commit=True)
        await one.settle()
        assert one.committed() == [NEXT_OFFSET, NEXT_OFFSET]

    play(steps)
