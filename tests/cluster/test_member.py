"""A broker as a member, beside servers that give no answer: what it writes, and when again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from plog.cluster import member as member_module
from plog.cluster import znodes
from plog.cluster.broker_registration import BrokerRegistration, create_persistent_paths
from plog.cluster.control_fence import ControlFence
from plog.cluster.controller import Controller
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.member import Member
from plog.cluster.store import (
    CreateOp,
    DeleteOp,
    Op,
    OpResult,
    Stat,
    Store,
    Watch,
    WriteRefused,
)
from plog.cluster.znodes import BrokerNode, Endpoint
from plog.errors import DuplicateBrokerRegistration
from plog.runtime.clock import Clock, SystemClock
from tests.cluster.simulation.scheduler import Scheduler
from tests.cluster.simulation.zookeeper import SESSION_MS, SimStore, SimZooKeeper
from tests.waiting import until

BROKER = 1
PATH = znodes.broker_path(BROKER)
NODE = BrokerNode((Endpoint("PLAINTEXT", "h", 9092),), 1)


class Candidate:
    """The controller's part: whether the broker takes part in elections."""

    def __init__(self) -> None:
        self.stands = False

    def stand(self) -> None:
        self.stands = True

    def resign(self) -> None:
        self.stands = False


class Joined:
    """A member, and what became of it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.ends: list[str] = []
        self.fence = ControlFence()
        self.candidate = Candidate()
        self.member = Member(
            store,
            registration=BrokerRegistration(store, BROKER),
            node=lambda: NODE,
            fence=self.fence,
            controller=cast("Controller", self.candidate),
            read_again=lambda: None,
            on_end=self.ends.append,
            clock=clock,
            timeout_ms=lambda: SESSION_MS,
        )


class Simulated(Joined):
    """A member whose servers lose answers and connections as a test says."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.zookeeper = SimZooKeeper(self.scheduler)
        self.admin = SimStore(self.zookeeper, "admin")
        create_persistent_paths(self.admin)
        self.store = SimStore(self.zookeeper, "broker")
        super().__init__(self.store, self.scheduler.clock)
        self.member.note_connected()
        self.run(1_000)

    def run(self, for_ms: int) -> None:
        """Let time go on, and the member do the steps that are due."""
        for _ in range(for_ms // 500):
            self.member.run_due()
            self.scheduler.run(500)

    @property
    def reporters(self) -> list[int]:
        """The brokers that reported lost replicas, by report."""
        found = self.admin.children(znodes.LOG_DIR_EVENTS)
        nodes = [self.admin.get(f"{znodes.LOG_DIR_EVENTS}/{name}")[0] for name in found]
        return [znodes.decode_log_dir_event(one) for one in nodes]


def refuse(ops: Sequence[Op]) -> list[OpResult]:
    raise WriteRefused("the disk is full")


@pytest.fixture(params=range(5))
def joined(request: pytest.FixtureRequest) -> Simulated:
    return Simulated(request.param)


def test_loss_is_reported_once(joined: Simulated) -> None:
    joined.member.report_lost_replicas()
    joined.member.report_lost_replicas()
    joined.run(60_000)
    assert joined.reporters == [BROKER]


def test_report_without_an_answer_is_repeated(joined: Simulated) -> None:
    joined.store.faults = 1.0
    joined.member.report_lost_replicas()
    joined.run(20_000)
    joined.store.faults = 0.0
    joined.run(40_000)
    assert {*joined.reporters} == {BROKER}
    written = len(joined.reporters)
    joined.run(40_000)
    assert len(joined.reporters) == written


def test_report_that_is_refused_is_repeated(
    joined: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(joined.store, "multi", refuse)
        joined.member.report_lost_replicas()
        joined.run(5_000)
        assert joined.member.is_connected
    joined.run(20_000)
    assert joined.reporters == [BROKER]


@pytest.mark.parametrize("away_ms", [500, 4_000, 3 * SESSION_MS])
def test_loss_without_a_connection_is_reported_later(joined: Simulated, away_ms: int) -> None:
    joined.store.disconnect(away_ms)
    joined.member.report_lost_replicas()
    joined.run(away_ms + 10_000)
    assert joined.reporters == [BROKER]


def registration_of(joined: Simulated) -> Stat:
    found = joined.admin.exists(PATH)
    assert found is not None
    return found


def test_member_whose_registration_is_deleted_registers_again(
    joined: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    before = registration_of(joined).czxid
    joined.admin.delete(PATH)
    joined.run(5_000)
    after = registration_of(joined)
    assert after.czxid > before
    assert after.ephemeral_owner == joined.store.session_id
    assert joined.fence.broker_epoch == after.czxid
    assert joined.candidate.stands
    assert caplog.text.count("registration is gone") == 1


@pytest.mark.parametrize("away_ms", [500, 4_000, SESSION_MS - 500])
def test_deletion_is_noticed_with_the_next_connection(joined: Simulated, away_ms: int) -> None:
    before = registration_of(joined).czxid
    joined.store.disconnect(away_ms)
    joined.admin.delete(PATH)
    joined.run(away_ms + 5_000)
    assert registration_of(joined).czxid > before


def test_deletion_is_noticed_though_answers_are_lost(joined: Simulated) -> None:
    for _ in range(20):
        before = registration_of(joined).czxid
        joined.store.faults = 0.3
        joined.admin.delete(PATH)
        joined.run(5_000)
        joined.store.faults = 0.0
        joined.run(20_000)
        assert registration_of(joined).czxid > before


def test_member_whose_registration_another_process_replaced_ends(joined: Simulated) -> None:
    other = SimStore(joined.zookeeper, "other")
    other.multi([DeleteOp(PATH), CreateOp(PATH, NODE.encode(), ephemeral=True)])
    joined.run(5_000)
    (reason,) = joined.ends
    assert f"broker id {BROKER} is registered by another process" in reason
    assert not joined.candidate.stands
    assert registration_of(joined).ephemeral_owner == other.session_id


def test_session_that_ends_is_no_deletion(
    joined: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        joined.zookeeper.expire(joined.store.session_id)
        joined.store.disconnect(50)
        joined.run(20_000)
        assert registration_of(joined).ephemeral_owner == joined.store.session_id
    assert "registration is gone" not in caplog.text


# -- with a thread ---------------------------------------------------------------------------------


@pytest.fixture
def threaded(embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    """A member that looks at the time when something happens, not by itself."""
    monkeypatch.setattr(member_module, "CALM_TICK_S", 3_600)
    create_persistent_paths(embedded)
    made = Joined(embedded, SystemClock())
    made.member.start()
    yield made
    made.member.stop()


def test_time_is_looked_at_however_often_something_happens(
    threaded: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedStore, "has_failed", True)
    threaded.member.report_lost_replicas()
    until(lambda: threaded.ends, "the failed client is noticed")


def test_broker_ends_if_its_membership_fails(
    threaded: Joined, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(EmbeddedStore, "has_failed", property(lambda store: fail()))
    threaded.member.report_lost_replicas()
    until(lambda: threaded.ends, "the failure is noticed")
    assert "ZeroDivisionError" in caplog.text


def test_start_fails_if_the_membership_does(
    embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_persistent_paths(embedded)
    made = Joined(embedded, SystemClock())
    monkeypatch.setattr(BrokerRegistration, "register", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        made.member.start()
    assert not made.ends


def test_member_does_not_start_beside_a_broker_with_its_address(
    embedded: EmbeddedStore,
) -> None:
    create_persistent_paths(embedded)
    BrokerRegistration(embedded, BROKER + 1).register(NODE)
    late = Joined(embedded, SystemClock()).member
    with pytest.raises(DuplicateBrokerRegistration, match="is registered at h:9092"):
        late.start()
    late.stop()


def test_member_goes_on_beside_a_broker_that_took_its_address(
    threaded: Joined, embedded: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own clients reach it still."""
    BrokerRegistration(embedded, BROKER + 1).register(NODE)
    embedded.delete(PATH)
    until(lambda: "is registered at h:9092" in caplog.text, "the other broker is named")
    until(lambda: threaded.candidate.stands, "it is a member again")
    assert embedded.exists(PATH)
    assert not threaded.ends


class CancelledWatch(Watch):
    """A watch that says whether it was cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def test_watch_of_a_registration_ends_with_a_member_that_stops_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(0)
    admin = SimStore(SimZooKeeper(scheduler), "broker")
    create_persistent_paths(admin)
    joined = Joined(admin, SystemClock())
    watch = CancelledWatch()
    stopping = threading.Thread(target=joined.member.stop)

    def watch_slowly(on_change: Callable[[], None]) -> Watch:
        stopping.start()
        until(lambda: not joined.member._todo.empty(), "stop waits for the thread")
        return watch

    monkeypatch.setattr(joined.member._registration, "watch", watch_slowly)
    joined.member.start()
    stopping.join()
    assert watch.is_cancelled
