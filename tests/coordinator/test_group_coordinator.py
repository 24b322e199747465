"""The groups' coordinator around its machines: what comes while a partition's log is read."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from plog._native.batch import read_header
from plog._native.cleaning import empty_batch
from plog._native.records import build_batch, control_batch
from plog.cluster.own_appends import Pair, Writer, ignore
from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_events import Beat
from plog.coordinator.given_out import EACH_BYTES, GivenOut
from plog.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from plog.coordinator.group_endings import GroupEndings
from plog.coordinator.group_events import Join, JoinAnswer, Leaving, Protocol, Sync
from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_shard import Group, Shard
from plog.coordinator.group_states import GroupState
from plog.coordinator.member_memory import PATIENCE_MS, SHARE, STALE_MS
from plog.coordinator.replay import Entry, Replayed
from plog.coordinator.roster import Member
from plog.coordinator.shards import LOOK_S
from plog.coordinator.txn_events import Producer
from plog.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from plog.runtime.bounded_lines import AT_ONCE
from plog.runtime.clock import ManualClock
from plog.runtime.trusted_time import DOUBT_MS, TrustedTime
from plog.settings.definitions import BrokerSettings, GroupSettings
from plog.types import TopicPartition
from tests.bounded import counted, told
from tests.coordinator.consumer_play import cluster_of
from tests.coordinator.group_play import JOIN
from tests.coordinator.members import subscription

AT = TopicPartition("t", 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
TOPIC_ID = uuid.UUID(int=101)
PRODUCER = 7
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
NONE, TRY_AGAIN = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE
GROUPS = 1000
"""Far more than there is room for, however long it takes."""


def made(
    appends: object, settings: BrokerSettings | None = None, clock: ManualClock | None = None
) -> GroupCoordinator:
    """Return a coordinator of one partition, which is not led here yet."""
    known, clock = settings or BrokerSettings(), clock or ManualClock()
    return GroupCoordinator(
        asyncio.get_running_loop(),
        appends=appends,  # type: ignore[arg-type]
        settings=known,
        settings_of=lambda _: GroupSettings(known),
        clock=clock,
        trusted_time=TrustedTime(clock),
        partitions=lambda: 1,
    )


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("was_read", [True, False])
def test_marker_that_comes_while_the_log_is_read_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, is_commit: bool, was_read: bool
) -> None:
    key = group_log.encode_offset_key("g", AT)
    written = {key: Entry(group_log.encode_offset(CommittedOffset(9)), 4)}
    begun, go_on = threading.Event(), threading.Event()

    def replay(*_: object, **__: object) -> Replayed:
        begun.set()
        go_on.wait(60)
        if not was_read:  # the marker is behind what was the end
            return Replayed(undecided={PRODUCER: written})
        return Replayed(table=written if is_commit else {})

    monkeypatch.setattr("plog.coordinator.shards.replay", replay)
    partition = SimpleNamespace(
        topic_partition=OFFSETS,
        leadership=SimpleNamespace(leader_epoch=1),
        hosted_log=SimpleNamespace(size_bytes=0, high_watermark=0),
    )

    async def run() -> None:
        groups = made(None)
        groups.shards.on_leadership([partition], [])  # type: ignore[list-item]
        await asyncio.to_thread(begun.wait, 60)
        groups.on_marker(OFFSETS, PRODUCER, is_commit)
        go_on.set()
        async with asyncio.timeout(60):
            while groups.shards.at(0) is None:
                await asyncio.sleep(0.01)
        group = groups.find("g")
        if group is None:
            assert was_read
            assert not is_commit
        else:
            assert not group.offsets.is_undecided(AT)
            found = group.offsets.get(AT)
            assert (None if found is None else found.offset) == (9 if is_commit else None)
        groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("failure", [KafkaStorageError("offline"), ValueError("a bug")])
def test_log_that_moves_while_it_is_read_is_read_where_it_is_then(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    key = group_log.encode_offset_key("g", AT)
    logs = [SimpleNamespace(size_bytes=0, high_watermark=0) for _ in range(2)]
    partition = SimpleNamespace(
        topic_partition=OFFSETS, leadership=SimpleNamespace(leader_epoch=1), hosted_log=logs[0]
    )

    def replay(hosted: object, **_: object) -> Replayed:
        if hosted is logs[0]:
            partition.hosted_log = logs[1]
            raise failure
        return Replayed(table={key: Entry(group_log.encode_offset(CommittedOffset(9)), 4)})

    monkeypatch.setattr("plog.coordinator.shards.replay", replay)
    monkeypatch.setattr("plog.coordinator.shards.FIRST_PAUSE_S", 0.01)

    async def run() -> None:
        groups = made(None)
        groups.shards.on_leadership([partition], [])  # type: ignore[list-item]
        async with asyncio.timeout(60):
            while groups.shards.at(0) is None:
                await asyncio.sleep(0.01)
        group = groups.find("g")
        assert group is not None
        assert group.offsets.get(AT) == CommittedOffset(9)
        groups.close()

    asyncio.run(run())


def test_records_that_are_not_committed_are_shown_to_no_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next leader may take it back."""
    key = group_log.encode_offset_key("g", AT)
    hosted = SimpleNamespace(size_bytes=0, high_watermark=4)
    partition = SimpleNamespace(
        topic_partition=OFFSETS, leadership=SimpleNamespace(leader_epoch=1), hosted_log=hosted
    )
    table = {key: Entry(group_log.encode_offset(CommittedOffset(9)), 4)}
    monkeypatch.setattr(
        "plog.coordinator.shards.replay", lambda *_, **__: Replayed(table=table, end_offset=5)
    )

    async def run() -> None:
        groups = made(None)
        groups.shards.on_leadership([partition], [])  # type: ignore[list-item]
        for _ in range(10):
            await asyncio.sleep(LOOK_S)
            with pytest.raises(CoordinatorLoadInProgress):
                groups.find("g")
        hosted.high_watermark = 5
        async with asyncio.timeout(60):
            while groups.shards.at(0) is None:
                await asyncio.sleep(0.01)
        group = groups.find("g")
        assert group is not None
        assert group.offsets.get(AT) == CommittedOffset(9)
        groups.close()

    asyncio.run(run())


def test_group_stays_while_offsets_of_a_transaction_are_written() -> None:
    class Appends:
        may_go_on = asyncio.Event()

        async def append(
            self, *_: object, appended: Callable[[int], None] = ignore, **__: object
        ) -> int:
            await self.may_go_on.wait()
            appended(5)
            return 5

    async def run() -> None:
        appends = Appends()
        groups = made(appends)
        groups.shards.serve(Shard(0, 1))
        commits = asyncio.ensure_future(
            groups.commit_in_transaction(
                "g",
                [(AT, CommittedOffset(9))],
                producer=Producer(PRODUCER, 0),
                guard=None,
                member_id="",
                instance_id=None,
                generation=-1,
            )
        )
        await asyncio.sleep(0)  # it waits for its append
        await groups.endings.expire()
        appends.may_go_on.set()
        assert await commits is ErrorCode.NONE
        await groups.endings.expire()
        groups.on_marker(OFFSETS, PRODUCER, True)
        group = groups.find("g")
        assert group is not None
        assert group.offsets.get(AT) == CommittedOffset(9)
        groups.close()

    asyncio.run(run())


class Written:
    """Takes batches as the partition's log would, and is read as one is at a start."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.may_go_on: asyncio.Event | None = None

    async def append(
        self,
        _: TopicPartition,
        pairs: Sequence[Pair],
        *,
        of: Writer | None = None,
        appended: Callable[[int], None] = ignore,
        **__: object,
    ) -> int:
        begun = {"producer_id": of.producer_id, "producer_epoch": 0} if of else {}
        position = self.put(
            build_batch(
                [(0, key, value, ()) for key, value in pairs],
                base_offset=self.end,
                transactional=of is not None,
                **begun,
            )
        )
        appended(position)
        if self.may_go_on is not None:
            await self.may_go_on.wait()
        return position

    def put(self, data: bytes) -> int:
        position, self.end = self.end, read_header(data).next_offset
        self.batches.append(data)
        return position

    def mark(self, *, abort: bool = False) -> None:
        self.put(
            control_batch(
                abort=abort,
                offset=self.end,
                timestamp=0,
                producer_id=PRODUCER,
                producer_epoch=0,
                coordinator_epoch=0,
            )
        )

    def clean(self) -> None:
        """Leave the last batch without its record, as Kafka's cleaner does."""
        self.batches[-1] = empty_batch(self.batches[-1])

    def read(self) -> Shard:
        replayed = Replayed()
        for data in self.batches:
            replayed.take_batch(memoryview(data), read_header(data))
        replayed.drop_deleted()
        shard = Shard(0, 1)
        shard.fill(replayed)
        return shard


async def commit_with_transaction(groups: GroupCoordinator, offset: int = 9) -> ErrorCode:
    return await groups.commit_in_transaction(
        "g",
        [(AT, CommittedOffset(offset))],
        producer=Producer(PRODUCER, 0),
        guard=None,
        member_id="",
        instance_id=None,
        generation=-1,
    )


async def commit_alone(groups: GroupCoordinator, offset: int = 5) -> ErrorCode:
    return await groups.commit(
        "g",
        [(AT, CommittedOffset(offset))],
        member_id="",
        instance_id=None,
        generation=-1,
        version=8,
    )


@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("restarts", ["never", "before the marker", "after it"])
def test_deleted_group_does_not_come_back_with_a_transaction(
    has_committed: bool, restarts: str
) -> None:
    async def run() -> None:
        written = Written()
        groups = made(written)
        groups.shards.serve(Shard(0, 1))
        if has_committed:
            assert await commit_alone(groups) is ErrorCode.NONE
        assert await commit_with_transaction(groups) is ErrorCode.NONE
        assert await groups.endings.delete("g") is ErrorCode.NONE
        if restarts == "before the marker":
            groups.shards.serve(written.read())
            assert groups.find("g") is None
        written.mark()
        groups.on_marker(OFFSETS, PRODUCER, True)
        if restarts == "after it":
            groups.shards.serve(written.read())
        assert groups.find("g") is None
        groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("restarts", [True, False])
def test_what_a_transaction_commits_after_the_group_was_deleted_stands(restarts: bool) -> None:
    async def run() -> None:
        written = Written()
        groups = made(written)
        groups.shards.serve(Shard(0, 1))
        assert await commit_with_transaction(groups) is ErrorCode.NONE
        assert await groups.endings.delete("g") is ErrorCode.NONE
        assert await commit_with_transaction(groups, 11) is ErrorCode.NONE
        if restarts:
            groups.shards.serve(written.read())
        groups.on_marker(OFFSETS, PRODUCER, True)
        group = groups.find("g")
        assert group is not None
        assert group.offsets.get(AT) == CommittedOffset(11)
        groups.close()

    asyncio.run(run())


def test_marker_that_was_emptied_is_passed_by() -> None:
    async def run() -> None:
        written = Written()
        groups = made(written)
        groups.shards.serve(Shard(0, 1))
        assert await commit_with_transaction(groups) is ErrorCode.NONE
        written.mark()
        written.mark(abort=True)
        written.clean()
        groups.shards.serve(written.read())
        group = groups.find("g")
        assert group is not None
        assert group.offsets.get(AT) == CommittedOffset(9)
        groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("commit", [commit_alone, commit_with_transaction])
def test_group_is_not_deleted_while_it_is_not_known_what_it_has_committed(
    commit: Callable[[GroupCoordinator], Coroutine[None, None, ErrorCode]],
) -> None:
    async def run() -> None:
        written = Written()
        groups = made(written)
        groups.shards.serve(Shard(0, 1))
        written.may_go_on = asyncio.Event()
        commits = asyncio.ensure_future(commit(groups))
        await asyncio.sleep(0)  # it is appended, and not known to be safe
        assert written.end == 1
        async with asyncio.timeout(60):
            assert await groups.endings.delete("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        written.may_go_on.set()
        assert await commits is ErrorCode.NONE
        assert await groups.endings.delete("g") is ErrorCode.NONE
        groups.on_marker(OFFSETS, PRODUCER, True)
        assert groups.find("g") is None
        assert not list(written.read())
        groups.close()

    asyncio.run(run())


def test_what_a_transaction_would_commit_goes_with_its_topic() -> None:
    async def run() -> None:
        written = Written()
        groups = made(written)
        groups.shards.serve(Shard(0, 1))
        assert await commit_with_transaction(groups) is ErrorCode.NONE
        groups._forget_topics({AT.topic: TOPIC_ID})
        async with asyncio.timeout(60):
            while groups.find("g") is not None:
                await asyncio.sleep(0)
        assert not list(written.read())
        groups.close()

    asyncio.run(run())


def test_offsets_do_not_expire_by_a_clock_that_is_suddenly_ahead() -> None:
    async def run() -> None:
        clock = ManualClock()
        written = Written()
        groups = made(written, clock=clock)
        groups.shards.serve(Shard(0, 1))
        assert await commit_alone(groups) is ErrorCode.NONE
        clock.jump_to(10 * YEAR_MS)
        await groups.endings.expire()
        for shard in (groups.shards.of("g"), written.read()):
            assert shard.groups["g"].offsets.get(AT) == CommittedOffset(5)
        clock.advance(DOUBT_MS)  # it stays so
        await groups.endings.expire()
        for shard in (groups.shards.of("g"), written.read()):
            assert not list(shard)
        groups.close()

    asyncio.run(run())


RETENTION_MS = 60_000
KEPT_A_MINUTE = BrokerSettings(
    {"group.initial.rebalance.delay.ms": "0", "offsets.retention.minutes": "1"}
)
WANTED, UNWANTED = TopicPartition("wanted", 0), TopicPartition("unwanted", 0)


@dataclass
class Kept:
    """A group whose offsets are kept for a minute."""

    is_of_consumer_protocol: bool = False
    expression: str | None = None
    metadata: bytes = subscription(WANTED.topic)

    def __post_init__(self) -> None:
        self.clock, self.written = ManualClock(YEAR_MS), Written()
        self.groups = made(self.written, KEPT_A_MINUTE, self.clock)
        cluster = cluster_of({WANTED.topic: 1, UNWANTED.topic: 1})
        self.groups._cluster = lambda: cluster
        self.groups.shards.serve(Shard(0, 1))

    @property
    def group(self) -> Group:
        found = self.groups.find("g")
        assert found is not None
        return found

    @property
    def generation(self) -> int:
        """The group's, or its only member's epoch."""
        machine = self.group.machine
        if isinstance(machine, ClassicGroup):
            return machine.generation
        return machine.table.current("m").epoch

    async def enter(self) -> None:
        """Have a first member come, and the group be stable."""
        if self.is_of_consumer_protocol:
            topics = None if self.expression else frozenset({WANTED.topic})
            assert await self.beat(0, topics=topics, regex=self.expression) is NONE
            async with asyncio.timeout(60):
                while self.written.read().groups["g"].subscribed_topics() != {WANTED.topic}:
                    await asyncio.sleep(0.01)
        else:
            assert (await self.join(must_know_id=False)).error is NONE
            assert await self.sync() is NONE

    async def join(self, new_member_id: str = "m", **changes: object) -> JoinAnswer:
        protocols = (Protocol("range", self.metadata),)
        changes = {"protocols": protocols, "session_timeout_ms": DAY_MS, **changes}
        asked = joining(self.groups, new_member_id, **changes)
        return await self.groups.join("g", asked)

    async def sync(self) -> ErrorCode:
        asked = Sync(self.groups.token(), "m", None, self.generation, None, None, {})
        return (await self.groups.sync("g", asked)).error

    async def beat(self, epoch: int, **told: object) -> ErrorCode:
        told = {"owned": frozenset(), "rebalance_timeout_ms": 30_000, **told}
        asked = Beat(self.groups.token(), "m", epoch, **told)  # type: ignore[arg-type]
        return (await self.groups.beat_as_consumer("g", asked)).error

    async def leave(self) -> None:
        """Have the only member go, and wait until that is written."""
        if self.is_of_consumer_protocol:
            assert await self.beat(-1) is NONE
        else:
            assert await self.groups.leave("g", (Leaving("m"),)) == (NONE,)
        async with asyncio.timeout(60):
            while not self.written.read().groups["g"].is_empty:
                await asyncio.sleep(0)

    async def commit(self, *partitions: TopicPartition) -> None:
        offset = CommittedOffset(5, committed_ms=self.clock.now_ms())
        error = await self.groups.commit(
            "g",
            [(at, offset) for at in partitions],
            member_id="m",
            instance_id=None,
            generation=self.generation,
            version=9,
        )
        assert error is NONE

    async def after(self, ms: int) -> list[TopicPartition] | None:
        """Return what is committed still after so long; None if the group is gone.

        It is so in memory and in the log.
        """
        self.clock.advance(ms)
        await self.groups.endings.expire()
        live, read = (
            shard.groups.get("g") for shard in (self.groups.shards.of("g"), self.written.read())
        )
        assert (live is None) is (read is None)
        if live is None or read is None:
            return None
        assert dict(live.offsets) == dict(read.offsets)
        return sorted(at for at, _ in live.offsets)


@pytest.mark.parametrize(
    ("metadata", "stays"),
    [(subscription(WANTED.topic), [WANTED]), (b"m", [UNWANTED, WANTED])],
    ids=["told", "not understood"],
)
def test_offsets_of_a_stable_group_expire_where_no_member_wants_the_topic(
    metadata: bytes, stays: list[TopicPartition]
) -> None:
    async def run() -> None:
        kept = Kept(metadata=metadata)
        await kept.enter()
        await kept.commit(WANTED, UNWANTED)
        assert await kept.after(RETENTION_MS - 1) == [UNWANTED, WANTED]
        assert await kept.after(1) == stays
        assert await kept.after(10 * RETENTION_MS) == stays
        kept.groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("restarts", [True, False])
def test_offsets_of_an_emptied_group_expire_by_when_it_became_empty(restarts: bool) -> None:
    async def run() -> None:
        kept = Kept()
        await kept.enter()
        await kept.commit(WANTED, UNWANTED)
        kept.clock.advance(RETENTION_MS // 2)
        await kept.leave()
        if restarts:
            kept.groups.shards.serve(kept.written.read())
        assert await kept.after(RETENTION_MS - 1) == [UNWANTED, WANTED]
        assert await kept.after(1) is None
        kept.groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("restarts", [True, False])
def test_what_is_committed_after_a_group_became_empty_is_kept_for_as_long(restarts: bool) -> None:
    async def run() -> None:
        kept = Kept()
        await kept.enter()
        await kept.commit(WANTED)
        await kept.leave()
        kept.clock.advance(RETENTION_MS // 2)
        late = CommittedOffset(7, committed_ms=kept.clock.now_ms())
        told = await kept.groups.commit(
            "g", [(UNWANTED, late)], member_id="", instance_id=None, generation=-1, version=8
        )
        assert told is NONE
        if restarts:
            kept.groups.shards.serve(kept.written.read())
        assert await kept.after(RETENTION_MS // 2 - 1) == [UNWANTED, WANTED]
        assert await kept.after(1) == [UNWANTED]
        assert await kept.after(RETENTION_MS // 2 - 1) == [UNWANTED]
        assert await kept.after(1) is None
        kept.groups.close()

    asyncio.run(run())


def test_nothing_expires_while_a_group_rebalances() -> None:
    async def run() -> None:
        kept = Kept()
        await kept.enter()
        await kept.commit(WANTED, UNWANTED)
        newcomer = asyncio.ensure_future(kept.join("n", must_know_id=False))
        await asyncio.sleep(0)
        for state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            if state is GroupState.COMPLETING_REBALANCE:
                assert (await kept.join(member_id="m")).error is NONE
                assert (await newcomer).error is NONE
            assert kept.group.machine.state is state
            # The log knows of stable groups alone: no broker reads it in between.
            kept.clock.advance(10 * RETENTION_MS)
            await kept.groups.endings.expire()
            assert sorted(kept.group.offsets.partitions) == [UNWANTED, WANTED]
        assert await kept.sync() is NONE
        assert await kept.after(0) == [WANTED]
        kept.groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("expression", [None, "want.*"])
@pytest.mark.parametrize("restarts", [True, False])
def test_offsets_of_a_consumer_group_expire_where_no_member_wants_the_topic(
    expression: str | None, restarts: bool
) -> None:
    async def run() -> None:
        kept = Kept(is_of_consumer_protocol=True, expression=expression)
        await kept.enter()
        await kept.commit(WANTED, UNWANTED)
        if restarts:
            kept.groups.shards.serve(kept.written.read())
        assert await kept.after(RETENTION_MS - 1) == [UNWANTED, WANTED]
        assert await kept.after(1) == [WANTED]
        assert await kept.after(10 * RETENTION_MS) == [WANTED]
        # Unlike those of a classic group they count from their commits, as in Kafka 4.
        await kept.leave()
        assert await kept.after(0) is None
        kept.groups.close()

    asyncio.run(run())


def test_nothing_expires_while_an_expression_has_no_topics_yet() -> None:
    """As after a restart that came before the topics of the expression were written."""

    async def run() -> None:
        kept = Kept(is_of_consumer_protocol=True, expression="want.*")
        await kept.enter()
        await kept.commit(WANTED, UNWANTED)
        table = kept.group.machine.table
        resolved = dict(table.regexes)
        table.regexes.clear()
        assert await kept.after(10 * RETENTION_MS) == [UNWANTED, WANTED]
        table.regexes.update(resolved)
        assert await kept.after(0) == [WANTED]
        kept.groups.close()

    asyncio.run(run())


class Beside:
    """Counts the turns that others have in the event loop meanwhile."""

    def __init__(self) -> None:
        self.turns = 0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def end(self) -> int:
        self._task.cancel()
        return self.turns


async def expire(groups: GroupCoordinator) -> None:
    await groups.endings.expire()


async def forget_topics(groups: GroupCoordinator, topic: str = "another") -> None:
    await groups.endings.forget_topics({topic: TOPIC_ID}, groups.groups())


@pytest.mark.parametrize("work", [expire, forget_topics])
def test_others_have_their_turn_while_all_groups_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[GroupCoordinator], Coroutine[None, None, None]]
) -> None:
    monkeypatch.setattr("plog.runtime.give_way.AT_ONCE_S", -1)

    async def run() -> None:
        groups = made(Written())
        shard = Shard(0, 1)
        groups.shards.serve(shard)
        for number in range(GROUPS):
            shard.group(f"g{number}").offsets.commit(AT, CommittedOffset(1), number)
        beside = Beside()
        await work(groups)
        assert beside.end() >= GROUPS
        assert len(groups.groups()) == GROUPS
        groups.close()

    asyncio.run(run())


def test_group_that_was_deleted_and_made_again_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plog.runtime.give_way.AT_ONCE_S", -1)

    async def run() -> None:
        written = Written()
        groups = made(written)
        shard = Shard(0, 1)
        groups.shards.serve(shard)
        shard.group("other")
        assert await commit_alone(groups) is ErrorCode.NONE
        looks = asyncio.ensure_future(forget_topics(groups, AT.topic))
        await asyncio.sleep(0)  # it has a list of what there is
        assert await groups.endings.delete("g") is ErrorCode.NONE
        assert await commit_alone(groups, 7) is ErrorCode.NONE
        end = written.end
        await looks
        assert written.end == end
        groups.close()

    asyncio.run(run())


def test_bug_does_not_end_what_is_done_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    async def fails(_: GroupEndings) -> None:
        asked.append(1)
        raise RuntimeError("one line\nnot two")

    monkeypatch.setattr(GroupEndings, "expire", fails)

    async def run() -> None:
        groups = made(Written(), BrokerSettings({"offsets.retention.check.interval.ms": "1"}))
        groups.start(
            SimpleNamespace(
                snapshot=SimpleNamespace(topic_names={}), subscribe=lambda _: lambda: None
            )  # type: ignore[arg-type]
        )
        async with asyncio.timeout(60):
            while len(asked) < 3:
                await asyncio.sleep(0.01)
        groups.close()

    asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) >= 2
    assert all("__consumer_offsets: periodic task failed" in line for line in lines)
    assert not any("\n" in line for line in lines)


def joining(groups: GroupCoordinator, new_member_id: str = "m", **changes: object) -> Join:
    return replace(JOIN, token=groups.token(), new_member_id=new_member_id, **changes)  # type: ignore[arg-type]


async def join_in_vain(groups: GroupCoordinator) -> ErrorCode:
    return (await groups.join("g", joining(groups, protocols=()))).error


@pytest.mark.parametrize("ask", [join_in_vain, commit_alone, commit_with_transaction])
def test_group_is_not_made_by_what_is_refused(
    ask: Callable[[GroupCoordinator], Coroutine[None, None, ErrorCode]],
) -> None:
    class Full:
        async def append(self, *_: object, **__: object) -> int:
            raise KafkaStorageError("no space left on device")

    async def run() -> None:
        groups = made(Full())
        groups.shards.serve(Shard(0, 1))
        assert await ask(groups) is not ErrorCode.NONE
        assert groups.find("g") is None
        groups.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["it leaves", "its time is up"])
def test_group_goes_with_the_last_id_that_nobody_came_back_with(how: str) -> None:
    async def run() -> None:
        groups = made(Written())
        groups.shards.serve(Shard(0, 1))
        asked = joining(groups, session_timeout_ms=60_000 if how == "it leaves" else 10)
        assert (await groups.join("g", asked)).error is ErrorCode.MEMBER_ID_REQUIRED
        assert groups.find("g") is not None
        if how == "it leaves":
            assert await groups.leave("g", (Leaving("m"),)) == (ErrorCode.NONE,)
        async with asyncio.timeout(60):
            while groups.find("g") is not None:
                await asyncio.sleep(0.01)
        groups.close()

    asyncio.run(run())


def test_group_that_has_committed_outlives_an_id_that_nobody_came_back_with() -> None:
    async def run() -> None:
        groups = made(Written())
        groups.shards.serve(Shard(0, 1))
        assert await commit_alone(groups) is ErrorCode.NONE
        await groups.join("g", joining(groups))
        assert await groups.leave("g", (Leaving("m"),)) == (ErrorCode.NONE,)
        assert await join_in_vain(groups) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        group = groups.find("g")
        assert group is not None
        assert group.offsets.get(AT) == CommittedOffset(5)
        groups.close()

    asyncio.run(run())


def test_ids_of_all_groups_are_bounded() -> None:
    async def run() -> None:
        groups = made(Written(), BrokerSettings({"group.initial.rebalance.delay.ms": "0"}))
        groups.shards.serve(Shard(0, 1))
        groups._given_out = GivenOut(10 * (EACH_BYTES + 10))
        for number in range(GROUPS):
            told = await groups.join(f"g{number}", joining(groups, f"m{number}"))
            assert told.error is ErrorCode.MEMBER_ID_REQUIRED
            await asyncio.sleep(0)
            assert len(groups.groups()) == len(groups._timers) <= 10
        late = await groups.join("g0", joining(groups, member_id="m0"))
        assert late.error is ErrorCode.UNKNOWN_MEMBER_ID
        name = f"{GROUPS - 1}"
        soon = await groups.join(f"g{name}", joining(groups, member_id=f"m{name}"))
        assert soon.error is ErrorCode.NONE
        groups.close()

    asyncio.run(run())


SMALL = BrokerSettings(
    {"group.initial.rebalance.delay.ms": "0", "group.members.max.bytes": "1048576"}
)
MOST = 1 << 20


async def tell(groups: GroupCoordinator, group_id: str, size: int, **changes: object) -> ErrorCode:
    """Join a group with so much metadata."""
    asked = joining(
        groups, "m", protocols=(Protocol("range", bytes(size)),), must_know_id=False, **changes
    )
    return (await groups.join(group_id, asked)).error


def test_what_members_tell_takes_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        clock = ManualClock()
        groups = made(Written(), SMALL, clock)
        groups.shards.serve(Shard(0, 1))
        assert await tell(groups, "g", MOST // SHARE) is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert groups.find("g") is None
        told = [await tell(groups, f"g{number}", 20_000) for number in range(GROUPS)]
        taken = told.count(NONE)
        assert told == [NONE] * taken + [TRY_AGAIN] * (GROUPS - taken)
        assert taken * 20_000 < sum(group.members_size for group in groups.groups()) < MOST
        assert len(groups.groups()) == taken
        # Who tells less is taken in still, and who is there may tell what it told before.
        assert await tell(groups, "less", 10) is NONE
        assert await tell(groups, "g0", 20_000, member_id="m") is NONE
        assert await tell(groups, "g0", 30_000, member_id="m") is TRY_AGAIN
        for number in range(taken):
            assert await groups.leave(f"g{number}", (Leaving("m"),)) == (NONE,)
        clock.advance(PATIENCE_MS)
        assert await tell(groups, "late", 30_000) is NONE
        groups.close()

    asyncio.run(run())
    assert (
        told(caplog, r"'g\d+' needs \d+ bytes, more than group\.members\.max\.bytes allows: COORD")
        > 1
    )
    assert counted(caplog, r"(\d+) further members were refused for lack of memory") > 1


def test_what_members_are_assigned_takes_bounded_memory() -> None:
    async def run() -> None:
        groups = made(Written(), SMALL)
        groups.shards.serve(Shard(0, 1))
        assert await tell(groups, "g", 10) is NONE
        group = groups.find("g")
        assert group is not None
        before = group.members_size

        async def assign(size: int) -> ErrorCode:
            asked = Sync(
                token=groups.token(),
                member_id="m",
                instance_id=None,
                generation=1,
                protocol_type=None,
                protocol_name=None,
                assignments={"m": bytes(size), "nobody": bytes(MOST)},
            )
            return (await groups.sync("g", asked)).error

        assert await assign(MOST // SHARE) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await assign(5_000) is NONE
        assert group.members_size == before + 5_000
        assert await groups.leave("g", (Leaving("m"),)) == (NONE,)
        assert group.members_size == 0
        groups.close()

    asyncio.run(run())


def test_what_members_of_consumer_groups_tell_takes_bounded_memory() -> None:
    async def run() -> None:
        groups = made(Written(), SMALL)
        groups.shards.serve(Shard(0, 1))

        async def beat(group_id: str, topics: int) -> ErrorCode:
            told = Beat(
                token=groups.token(),
                member_id="m",
                epoch=0,
                rebalance_timeout_ms=30_000,
                topics=frozenset(f"t{number}" for number in range(topics)),
                owned=frozenset(),
            )
            return (await groups.beat_as_consumer(group_id, told)).error

        assert await beat("g", 2_000) is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert groups.find("g") is None
        told = [await beat(f"g{number}", 200) for number in range(100)]
        taken = told.count(NONE)
        assert told == [NONE] * taken + [TRY_AGAIN] * (100 - taken)
        assert 0 < taken < 100
        assert sum(group.members_size for group in groups.groups()) < MOST
        assert await beat("g0", 200) is NONE
        groups.close()

    asyncio.run(run())


def test_what_expressions_match_takes_bounded_memory() -> None:
    async def run() -> None:
        clock = ManualClock()
        groups = made(Written(), SMALL, clock)
        cluster = cluster_of({f"t{number}": 1 for number in range(21_000)})
        groups._cluster = lambda: cluster
        groups.shards.serve(Shard(0, 1))
        told = Beat(
            token=groups.token(),
            member_id="m",
            epoch=0,
            rebalance_timeout_ms=30_000,
            regex="t.*",
            owned=frozenset(),
        )
        assert (await groups.beat_as_consumer("g", told)).error is NONE
        group = groups.find("g")
        assert group is not None
        async with asyncio.timeout(60):
            while group.members_size < MOST:
                await asyncio.sleep(0.01)
        clock.advance(STALE_MS)
        assert await tell(groups, "late", 10) is TRY_AGAIN
        groups.close()

    asyncio.run(run())


def test_groups_that_are_read_from_the_log_count() -> None:
    async def run() -> None:
        written = Written()
        groups = made(written, SMALL)
        groups.shards.serve(Shard(0, 1))
        assert await tell(groups, "few", 10) is NONE
        shard = Shard(0, 2)
        for number in range(20):
            machine = shard.group(f"g{number}").machine
            assert isinstance(machine, ClassicGroup)
            told = replace(JOIN, protocols=(Protocol("range", bytes(50_000)),))
            machine.roster.add(Member.of(told, "m"))
        groups.shards.serve(shard)
        assert await tell(groups, "more", 10_000) is TRY_AGAIN
        groups.close()

    asyncio.run(run())


def test_group_that_cannot_be_stored_for_a_bug_is_answered() -> None:
    class Appends:
        async def append(self, *_: object, **__: object) -> int:
            raise RuntimeError("a bug")

    async def run() -> None:
        groups = made(Appends(), BrokerSettings({"group.initial.rebalance.delay.ms": "0"}))
        groups.shards.serve(Shard(0, 1))
        async with asyncio.timeout(60):
            joined = await groups.join("g", joining(groups, must_know_id=False))
            sync = Sync(groups.token(), joined.member_id, None, 1, "consumer", "range", {})
            found = await groups.sync("g", sync)
        assert found.error is ErrorCode.UNKNOWN_SERVER_ERROR
        groups.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "level"),
    [
        pytest.param(KafkaStorageError, "WARNING", id="failed disk"),
        pytest.param(RequestTimedOut, "INFO", id="busy disk"),
        pytest.param(NotLeaderOrFollower, "INFO", id="moved"),
    ],
)
def test_lines_of_groups_that_cannot_be_stored_are_bounded(
    caplog: pytest.LogCaptureFixture, failure: type[KafkaError], level: str
) -> None:
    caplog.set_level(logging.INFO)

    class Appends:
        async def append(self, *_: object, **__: object) -> int:
            raise failure("offline")

    settings = BrokerSettings({"group.initial.rebalance.delay.ms": "0"})

    async def run() -> None:
        groups = made(Appends(), settings)
        shard = Shard(0, 1)
        groups.shards.serve(shard)
        for number in range(GROUPS):
            name = f"g\n{number}"
            member = joining(groups, "m", must_know_id=False, session_timeout_ms=DAY_MS)
            joined = await groups.join(name, member)
            sync = Sync(groups.token(), joined.member_id, None, 1, "consumer", "range", {})
            found = await groups.sync(name, sync)
            assert found.error is not ErrorCode.NONE
        groups.close()

    asyncio.run(run())
    lines = told(caplog, "^group 'g.n[0-9]+' cannot be stored: offline$")
    levels = {each.levelname for each in caplog.records if "cannot be stored" in each.message}
    assert levels == {level}
    assert AT_ONCE <= lines < GROUPS
    assert lines + counted(caplog, r"(\d+) further group changes") == GROUPS
