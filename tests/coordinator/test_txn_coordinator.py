"""The transactions' coordinator around its machines: markers, while partitions come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from plog.cluster.store import SessionLost, StoreError, Unreachable, WriteRefused
from plog.coordinator.txn import Txn
from plog.coordinator.txn_connections import ClientConnection, Sender, Way
from plog.coordinator.txn_coordinator import TxnCoordinator
from plog.coordinator.txn_events import EndTxn, LookAtTimeout, Producer, Stored, TxnValue
from plog.coordinator.txn_partitions import TxnPartitions
from plog.coordinator.txn_shard import TxnShard
from plog.coordinator.txn_states import TxnState
from plog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidProducerEpoch,
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from plog.runtime.bounded_lines import AT_ONCE
from plog.runtime.clock import ManualClock
from plog.runtime.trusted_time import DOUBT_MS, TrustedTime
from plog.types import TopicPartition
from tests.bounded import counted, told

AT = TopicPartition("t", 0)
HOUR_MS = 3_600_000
DECIDED = TxnValue(5, 3, 60_000, TxnState.PREPARE_COMMIT, frozenset({AT}), 0, 0)


class Metadata:
    """Which topics were deleted, as far as the broker has been told."""

    def __init__(self, *deleted: str) -> None:
        self.deleted = set(deleted)

    def is_deleted(self, at: TopicPartition) -> bool:
        return at.topic in self.deleted


class Appends:
    """Takes records, and markers as soon as nothing is in their way."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.store_refusal: Exception | None = None
        self.look_failure: Exception | None = None
        self.open: set[tuple[TopicPartition, int]] = set()
        """In which partitions a transaction is open, and whose."""
        self.asked = 0
        self.markers: list[tuple[TopicPartition, int, int]] = []
        self.stored: list[object] = []

    async def append(self, at: TopicPartition, pairs: Any) -> int:
        if self.store_refusal is not None:
            raise self.store_refusal
        self.stored += pairs
        return 0

    async def append_marker(self, at: TopicPartition, producer_id: int, epoch: int, _: Any) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        self.markers.append((at, producer_id, epoch))

    def has_open(self, at: TopicPartition, producer_id: int) -> bool:
        if self.look_failure is not None:
            raise self.look_failure
        if isinstance(self.refusal, UnknownTopicOrPartition):
            raise self.refusal
        return (at, producer_id) in self.open


class Led:
    """Who may write where, and by which connection."""

    def __init__(self) -> None:
        self.appends: Appends | None = None
        self.given: dict[tuple[TopicPartition, int], tuple[int, str, int]] = {}
        self.used: set[TopicPartition] = set()

    def grant_ahead(
        self,
        partitions: Iterable[TopicPartition],
        producer_id: int,
        producer_epoch: int,
        transactional_id: str,
        connection: int,
    ) -> None:
        for at in partitions:
            self.given[at, producer_id] = producer_epoch, transactional_id, connection

    def leads(self, at: TopicPartition) -> bool:
        return True

    def has_open(self, at: TopicPartition, producer_id: int) -> bool:
        assert self.appends is not None
        return self.appends.has_open(at, producer_id)

    def has_begun(self, at: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        return at in self.used

    def revoke(self, partitions: Iterable[TopicPartition], producer_id: int) -> None:
        for at in partitions:
            self.given.pop((at, producer_id), None)


async def producer_id_100() -> int:
    return 100


def scene(
    metadata: Metadata,
    appends: Appends,
    *,
    led: Led | None = None,
    partitions: int = 1,
    clock: ManualClock | None = None,
    **intervals: int,
) -> tuple[TxnCoordinator, Txn]:
    """Return a coordinator that has read of a decided transaction."""
    clock = clock or ManualClock()
    led = led or Led()
    led.appends = appends
    given = {
        "transaction_state_log_load_buffer_size": 1000,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 10_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 10_000,
        "transactional_id_expiration_ms": 1_000_000,
    }
    settings = SimpleNamespace(**given | intervals)
    made = TxnCoordinator(
        asyncio.get_running_loop(),
        appends=appends,  # type: ignore[arg-type]
        led=led,  # type: ignore[arg-type]
        txn_partitions=TxnPartitions(0, led=led, metadata=metadata, peers=None),  # type: ignore[arg-type]
        metadata=metadata,  # type: ignore[arg-type]
        settings=settings,  # type: ignore[arg-type]
        clock=clock,
        trusted_time=TrustedTime(clock),
        partitions=lambda: 1,
        new_producer_id=producer_id_100,
        marker_written=lambda *_: None,
    )
    shard = TxnShard(0, 1)
    decided = DECIDED
    if partitions > 1:
        marked = frozenset(TopicPartition(AT.topic, n) for n in range(partitions))
        decided = replace(DECIDED, partitions=marked)
    txn = shard.txns["x"] = Txn("x", decided)
    made.shards.serve(shard)
    return made, txn


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ends(txn: Txn) -> None:
    async with asyncio.timeout(60):
        while txn.value is None or txn.value.state is not TxnState.COMPLETE_COMMIT:
            await asyncio.sleep(0.01)


def test_markers_wait_until_the_broker_knows_which_partitions_there_are() -> None:
    async def run() -> None:
        appends = Appends()
        appends.refusal = UnknownTopicOrPartition("not told yet")
        made, txn = scene(Metadata(), appends)
        await turns()
        assert appends.asked == 0
        made.start()
        await turns()
        assert appends.asked == 1
        assert txn.value is DECIDED  # unknown is not deleted
        appends.refusal = None
        await ends(txn)
        assert appends.markers == [(AT, *Producer(5, 3))]
        made.close()

    asyncio.run(run())


def test_marker_of_a_deleted_partition_is_not_waited_for() -> None:
    async def run() -> None:
        appends = Appends()
        appends.refusal = UnknownTopicOrPartition("deleted")
        made, txn = scene(Metadata(AT.topic), appends)
        made.start()
        await ends(txn)
        assert appends.markers == []
        made.close()

    asyncio.run(run())


@pytest.mark.parametrize("failure", [KafkaStorageError("offline"), RuntimeError("a bug")])
def test_partition_that_comes_back_gets_its_marker(failure: Exception) -> None:
    async def run() -> None:
        appends = Appends()
        appends.refusal = failure
        made, txn = scene(Metadata(), appends)
        made.start()
        await turns()
        assert txn.value is DECIDED
        appends.refusal = None
        await ends(txn)
        assert len(appends.markers) == 1
        made.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("refusal", "is_open"),
    [
        (InvalidProducerEpoch("later"), False),
        (InvalidProducerEpoch("later"), True),  # what is open there is a later one
        (TransactionCoordinatorFenced("by hand"), False),
    ],
)
def test_transaction_that_has_ended_in_a_partition_needs_no_marker_there(
    refusal: KafkaError, is_open: bool
) -> None:
    async def run() -> None:
        appends = Appends()
        appends.refusal = refusal
        appends.open = {(AT, DECIDED.producer_id)} if is_open else {(AT, 99)}
        made, txn = scene(Metadata(), appends)
        made.start()
        await ends(txn)
        assert appends.markers == []
        made.close()

    asyncio.run(run())


def test_marker_is_owed_though_the_partition_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plog.coordinator.txn_coordinator.LOOK_S", 0.001)

    async def run() -> None:
        appends = Appends()
        appends.refusal = TransactionCoordinatorFenced("by hand")
        appends.look_failure = ValueError("a response that does not fit")
        made, txn = scene(Metadata(), appends)
        made.start()
        await turns()
        assert txn.value is DECIDED
        appends.look_failure = None
        await ends(txn)
        made.close()

    asyncio.run(run())


def test_id_whose_value_cannot_be_stored_for_a_bug_is_answered() -> None:
    async def run() -> None:
        appends = Appends()
        appends.store_refusal = RuntimeError("a bug")
        made, _ = scene(Metadata(), appends)
        async with asyncio.timeout(60):
            answer = await made.init("another", 1000, None)
        assert answer.error is ErrorCode.UNKNOWN_SERVER_ERROR
        appends.store_refusal = None
        assert (await made.init("another", 1000, None)).error is ErrorCode.NONE
        made.close()

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["by hand", "deleted"])
def test_transaction_whose_marker_is_refused_waits_until_it_has_ended_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    monkeypatch.setattr("plog.coordinator.txn_coordinator.RETRY_S", 0.001)
    monkeypatch.setattr("plog.coordinator.txn_coordinator.LOOK_S", 0.001)

    async def run() -> None:
        appends, metadata = Appends(), Metadata()
        appends.refusal = TransactionCoordinatorFenced("by hand")
        appends.open = {(AT, DECIDED.producer_id)}
        made, txn = scene(metadata, appends)
        made.start()
        await asyncio.sleep(0.05)
        assert txn.value is DECIDED
        assert (appends.asked, appends.stored) == (1, [])
        # Its coordinator will not end it there, and says so to who looks for what hangs.
        assert txn.partitions == frozenset()
        assert made.markers_due == 1
        answer = await made.init("x", 1000, None)
        assert answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
        if ending == "by hand":
            appends.open.clear()
        else:
            metadata.deleted.add(AT.topic)
            appends.refusal = UnknownTopicOrPartition("deleted")
        await ends(txn)
        assert (appends.markers, made.markers_due) == ([], 0)
        made.close()

    asyncio.run(run())
    assert told(caplog, r"no marker for producer 5 \(its transaction stays open there\)") == 1


def test_marker_that_was_refused_is_written_under_a_later_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plog.coordinator.txn_coordinator.LOOK_S", 0.001)

    async def run() -> None:
        appends = Appends()
        appends.refusal = TransactionCoordinatorFenced("by hand")
        appends.open = {(AT, DECIDED.producer_id)}
        made, txn = scene(Metadata(), appends)
        made.start()
        await turns()
        appends.refusal = None
        await asyncio.sleep(0.05)
        assert appends.markers == []
        shard = made.shards.at(0)
        assert shard is not None
        shard.leader_epoch += 1
        await ends(txn)
        assert appends.markers == [(AT, *Producer(5, 3))]
        made.close()

    asyncio.run(run())


def test_marker_that_was_refused_is_written_by_the_next_coordinator() -> None:
    async def run() -> None:
        appends, metadata = Appends(), Metadata()
        appends.refusal = TransactionCoordinatorFenced("by hand")
        appends.open = {(AT, DECIDED.producer_id)}
        made, before = scene(metadata, appends)
        made.start()
        await turns()
        made.shards.give_up(0)
        appends.refusal = None
        shard = TxnShard(0, 2)
        txn = shard.txns["x"] = Txn("x", before.value)
        made.shards.serve(shard)
        await ends(txn)
        assert appends.markers == [(AT, *Producer(5, 3))]
        assert before.value is DECIDED
        made.close()

    asyncio.run(run())


PARTITIONS = 1000
"""Far more than there is room for, however long it takes."""


def test_lines_of_markers_that_wait_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Appends:
        appends = Appends()
        appends.refusal = KafkaStorageError("offline")
        made, _ = scene(Metadata(), appends, partitions=PARTITIONS)
        made.start()
        await turns()
        made.close()
        return appends

    with caplog.at_level(logging.INFO):
        appends = asyncio.run(run())
    lines = told(caplog, "waiting to write the marker")
    assert AT_ONCE <= lines < PARTITIONS <= appends.asked
    assert lines + counted(caplog, r"(\d+) further waits for markers") == PARTITIONS


def test_marker_that_waits_for_the_same_reason_is_not_logged_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plog.coordinator.txn_coordinator.RETRY_S", 0.001)

    async def asked(appends: Appends, times: int) -> None:
        until, count = appends.asked + times, 0
        while appends.asked < until:
            await asyncio.sleep(0.001)
            count += 1
            assert count < 60_000

    async def run() -> None:
        appends = Appends()
        appends.refusal = KafkaStorageError("offline")
        made, txn = scene(Metadata(), appends)
        made.start()
        await asked(appends, 4)
        appends.refusal = UnknownTopicOrPartition("led nowhere")
        await asked(appends, 4)
        appends.refusal = None
        await ends(txn)
        made.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    waits = [one for one in caplog.messages if "waiting to write the marker" in one]
    assert [one.rpartition(": ")[2] for one in waits] == ["offline", "led nowhere"]


def test_lines_of_markers_that_are_refused_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        appends = Appends()
        appends.refusal = InvalidProducerEpoch("later")
        made, txn = scene(Metadata(), appends, partitions=PARTITIONS)
        made.start()
        await ends(txn)
        made.close()

    asyncio.run(run())
    lines = told(caplog, "no marker for producer")
    assert AT_ONCE <= lines < PARTITIONS
    assert lines + counted(caplog, r"(\d+) further markers were refused") == PARTITIONS


@pytest.mark.parametrize(
    ("failure", "answered", "level"),
    [
        pytest.param(KafkaStorageError, ErrorCode.NOT_COORDINATOR, "WARNING", id="failed disk"),
        pytest.param(RequestTimedOut, ErrorCode.COORDINATOR_NOT_AVAILABLE, "INFO", id="busy disk"),
    ],
)
def test_lines_of_ids_that_cannot_be_stored_are_bounded(
    caplog: pytest.LogCaptureFixture, failure: type[KafkaError], answered: ErrorCode, level: str
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        appends = Appends()
        appends.store_refusal = failure("offline")
        made, _ = scene(Metadata(), appends)
        for number in range(PARTITIONS):
            answer = await made.init(f"id\n{number}", 1000, None)
            assert answer.error is answered
        made.close()

    asyncio.run(run())
    lines = told(caplog, "^transactional id 'id.n[0-9]+': offline$")
    assert {each.levelname for each in caplog.records if "offline" in each.message} == {level}
    assert AT_ONCE <= lines < PARTITIONS
    assert lines + counted(caplog, r"(\d+) further transactional ids") == PARTITIONS


@pytest.mark.parametrize("why", [WriteRefused, SessionLost, Unreachable])
def test_producer_id_that_the_store_refuses_is_asked_for_again(why: type[StoreError]) -> None:
    async def run() -> None:
        made, _ = scene(Metadata(), Appends())

        async def refused() -> int:
            raise why("no space left on device")

        made._new_producer_id = refused
        with pytest.raises(CoordinatorNotAvailable):
            await made.init("another", 1000, None)

    asyncio.run(run())


AT_REST = TxnValue(5, 3, 60_000, TxnState.EMPTY, updated_ms=0)
OPEN = TxnValue(5, 3, 60_000, TxnState.ONGOING, frozenset({AT}), 0, 0)


@pytest.mark.parametrize("value", [AT_REST, OPEN])
def test_clock_that_is_suddenly_ahead_ends_nothing(value: TxnValue) -> None:
    async def run() -> None:
        clock = ManualClock()
        made, _ = scene(Metadata(), Appends(), clock=clock)
        shard = made.shards.at(0)
        assert shard is not None
        txn = shard.txns["x"] = Txn("x", value)
        clock.jump_to(1 << 40)
        await made.abort_late()
        await made.forget_old()
        await turns()
        assert txn.value is value
        clock.advance(DOUBT_MS)  # it stays so
        await made.abort_late()
        await made.forget_old()
        await turns()
        assert txn.value is not value
        made.close()

    asyncio.run(run())


@pytest.mark.parametrize("look", [TxnCoordinator.abort_late, TxnCoordinator.forget_old])
def test_others_have_their_turn_while_all_ids_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[TxnCoordinator], Coroutine[None, None, None]],
) -> None:
    monkeypatch.setattr("plog.runtime.give_way.AT_ONCE_S", -1)

    async def run() -> None:
        made, _ = scene(Metadata(), Appends())
        shard = made.shards.at(0)
        assert shard is not None
        for number in range(PARTITIONS):
            shard.txns[f"{number}"] = Txn(f"{number}", AT_REST)
        looks = asyncio.ensure_future(look(made))
        await turns(PARTITIONS)
        assert not looks.done()
        await looks
        made.close()

    asyncio.run(run())


@pytest.mark.parametrize("often", ["abort_timed_out", "remove_expired"])
def test_each_look_has_an_interval_of_its_own(often: str) -> None:
    async def run() -> None:
        clock = ManualClock()
        intervals = {
            f"transaction_{kind}_transaction_cleanup_interval_ms": 1 if kind == often else HOUR_MS
            for kind in ("abort_timed_out", "remove_expired")
        }
        made, _ = scene(Metadata(), Appends(), clock=clock, **intervals)
        shard = made.shards.at(0)
        assert shard is not None
        late = shard.txns["late"] = Txn("late", OPEN)
        old = shard.txns["old"] = Txn("old", AT_REST)
        looked_at, other = (late, old) if often == "abort_timed_out" else (old, late)
        before = other.value
        clock.advance(HOUR_MS)
        made.start()
        async with asyncio.timeout(60):
            while looked_at.value in (AT_REST, OPEN):
                await asyncio.sleep(0.01)
        assert other.value is before
        made.close()

    asyncio.run(run())


# -- leave to write --------------------------------------------------------------------------------

CONNECTION, LATER = ClientConnection(0, 9), ClientConnection(0, 10)


class SlowAppends(Appends):
    """Takes records once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_store = asyncio.Event()

    async def append(self, at: TopicPartition, pairs: Any) -> int:
        await self.may_store.wait()
        return await super().append(at, pairs)


async def joined(value: TxnValue = AT_REST) -> tuple[TxnCoordinator, Txn, Led, SlowAppends]:
    """Return a coordinator of a transaction that a partition has joined, with permission."""
    appends, led = SlowAppends(), Led()
    made, _ = scene(Metadata(), appends, led=led)
    shard = made.shards.at(0)
    assert shard is not None
    txn = shard.txns["y"] = Txn("y", value)
    adds = asyncio.ensure_future(
        made.add("y", value.producer, [AT], connection=CONNECTION, grants=True)
    )
    await turns()
    assert led.given == {}  # it may not come to stand in the log
    appends.may_store.set()
    assert await adds is ErrorCode.NONE
    assert led.given == {(AT, value.producer_id): (value.producer_epoch, "y", CONNECTION.number)}
    appends.may_store.clear()
    return made, txn, led, appends


@pytest.mark.parametrize("used", [True, False])
def test_write_that_was_granted_ahead_tells_that_its_client_has_one_connection_for_all(
    used: bool,
) -> None:
    async def run() -> None:
        made, txn, led, appends = await joined()
        assert txn.value is not None
        producer = txn.value.producer
        led.used = {AT} if used else set()
        appends.may_store.set()
        answer = await made.end("y", producer, commit=True, connection=LATER)
        assert answer.error is ErrorCode.NONE
        late = Sender(Way.PRODUCE, CONNECTION)
        assert made.takes("y", producer, late) == (not used)
        assert made.takes("y", producer, Sender(Way.PRODUCE, LATER))
        made.close()

    asyncio.run(run())


def test_partition_that_joins_by_a_write_has_no_leave() -> None:
    async def run() -> None:
        made, _, led, appends = await joined()
        appends.may_store.set()
        led.given.clear()
        other = TopicPartition(AT.topic, 1)
        assert await made.add("y", AT_REST.producer, [other]) is ErrorCode.NONE
        assert led.given == {}
        made.close()

    asyncio.run(run())


def test_partition_that_cannot_join_has_no_leave() -> None:
    async def run() -> None:
        made, _, led, appends = await joined()
        appends.may_store.set()
        led.given.clear()
        appends.store_refusal = KafkaStorageError("broken")
        other = TopicPartition(AT.topic, 1)
        answer = await made.add("y", AT_REST.producer, [other], connection=CONNECTION, grants=True)
        assert answer is not ErrorCode.NONE
        stranger = Producer(AT_REST.producer_id, 30_000)
        answer = await made.add("y", stranger, [AT], connection=CONNECTION, grants=True)
        assert answer is ErrorCode.PRODUCER_FENCED
        assert led.given == {}
        made.close()

    asyncio.run(run())


def test_leave_is_taken_back_before_the_end_is_stored() -> None:
    async def run() -> None:
        made, txn, led, _ = await joined()
        ends = asyncio.ensure_future(
            made.end("y", AT_REST.producer, commit=True, connection=CONNECTION)
        )
        await turns()
        assert not ends.done()
        assert txn.value is not None
        assert txn.value.state is TxnState.ONGOING
        assert led.given == {}
        ends.cancel()
        made.close()

    asyncio.run(run())


def test_leave_is_taken_back_from_who_is_fenced_or_late() -> None:
    async def run() -> None:
        for late in (False, True):
            made, _, led, _ = await joined()
            if late:
                shard = made.shards.at(0)
                assert shard is not None
                look = LookAtTimeout(HOUR_MS * 1000, HOUR_MS * 1000)
                made._feed(shard, shard.txns["y"], look)
            else:
                following = asyncio.ensure_future(made.init("y", 60_000, None))
                await turns()
                following.cancel()
            assert led.given == {}
            made.close()

    asyncio.run(run())


def test_leave_is_taken_back_when_the_coordinator_resigns() -> None:
    async def run() -> None:
        made, _, led, _ = await joined()
        made.shards.give_up(0)
        assert led.given == {}
        made.close()

    asyncio.run(run())


def test_end_that_comes_between_the_log_and_the_answer_grants_nothing() -> None:
    async def run() -> None:
        appends, led = SlowAppends(), Led()
        made, _ = scene(Metadata(), appends, led=led)
        shard = made.shards.at(0)
        assert shard is not None
        txn = shard.txns["y"] = Txn("y", AT_REST)
        adds = asyncio.ensure_future(
            made.add("y", AT_REST.producer, [AT], connection=CONNECTION, grants=True)
        )
        await turns()
        assert txn._storing is not None
        made._feed(shard, txn, Stored(txn._storing.ticket, ErrorCode.NONE))
        # Who joined has its answer, and has not been resumed yet.
        token = asyncio.get_running_loop().create_future()
        made._feed(shard, txn, EndTxn(token, AT_REST.producer, True, 0))
        assert await adds is ErrorCode.NONE
        assert led.given == {}
        made.close()

    asyncio.run(run())
