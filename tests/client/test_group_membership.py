"""What a member makes of its coordinator's answers: of a scripted one, for what befalls few."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from plog.client import group_offsets
from plog.client.assignors import COOPERATIVE_STICKY, decode_subscription
from plog.client.group_consumer import (
    CommitFailed,
    GroupConsumer,
    Listener,
    RebalanceInProgress,
)
from plog.client.group_membership import State
from plog.errors import ErrorCode, KafkaError
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import RequestHeader
from plog.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
)
from plog.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from plog.types import TopicPartition
from tests.client.fake_broker import CLOSE, SILENCE, GroupBroker
from tests.waiting import until

REBALANCE, UNKNOWN, ILLEGAL, FENCED, MOVED, AWAY, LOADING, UNSTABLE = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
)
EAGER, COOPERATIVE = "range", "cooperative-sticky"


def name_of(value: object) -> str:
    """Return how a test's id calls one of its values."""
    if isinstance(value, list):
        return ",".join(map(name_of, value)) or "nothing"
    if value in (CLOSE, SILENCE):
        return "CLOSE" if value is CLOSE else "SILENCE"
    return value.__name__ if callable(value) else getattr(value, "name", str(value))


both = pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE])


@pytest.fixture
def fake() -> Iterator[GroupBroker]:
    with GroupBroker() as running:
        yield running


class Worker:
    """A member that has read its first records, on the test's own thread, and what it has heard."""

    def __init__(self, fake: GroupBroker, assignor: str, **options: object):
        self.heard: list[str] = []
        self.consumer = GroupConsumer(
            fake.bootstrap,
            "g",
            auto_offset_reset="none",
            assignors=[assignor],
            heartbeat_interval_ms=10,
            auto_commit_interval_ms=3_600_000,
            **options,  # type: ignore[arg-type]
        )
        self.membership = self.consumer._membership
        self.consumer.subscribe(
            ["t"],
            Listener(
                lambda _: self.heard.append("assigned"),
                lambda _: self.heard.append("revoked"),
                lambda _: self.heard.append("lost"),
            ),
        )


MakeWorker = Callable[..., Worker]


@pytest.fixture
def worker(fake: GroupBroker) -> Iterator[MakeWorker]:
    made: list[Worker] = []

    def make(assignor: str, *, is_reading: bool = True, **options: object) -> Worker:
        one = Worker(fake, assignor, **options)
        made.append(one)  # it is closed even if it cannot read
        if is_reading:
            until(lambda: one.consumer.poll(100))
        return one

    yield make
    for one in made:
        one.consumer.close()


def rejoins(one: Worker, fake: GroupBroker) -> None:
    """Have a cooperative member ask for the next generation, and stay on its way into it."""
    fake.lots[ApiKey.HEARTBEAT] = [REBALANCE]
    until(lambda: one.membership.must_rejoin)
    asked = fake.count(JoinGroupRequest)
    one.consumer.poll(0)
    until(lambda: fake.count(JoinGroupRequest) > asked)


# -- the heart, while the application works --------------------------------------------------------


@both
@pytest.mark.parametrize(
    "lots",
    [[REBALANCE] * 3, [MOVED], [AWAY], [LOADING], [CLOSE], [MOVED, CLOSE, REBALANCE, LOADING]],
    ids=name_of,
)
def test_heart_goes_on_whatever_passes(
    fake: GroupBroker, worker: MakeWorker, assignor: str, lots: list[object]
) -> None:
    one = worker(assignor)
    beats, looks = fake.count(HeartbeatRequest), fake.count(FindCoordinatorRequest)
    fake.lots[ApiKey.FIND_COORDINATOR] = [AWAY, CLOSE]
    fake.lots[ApiKey.HEARTBEAT] = [*lots]
    until(lambda: fake.count(HeartbeatRequest) >= beats + len(lots) + 3)
    assert one.membership.must_rejoin == (REBALANCE in lots)
    assert not one.membership.is_lost
    if set(lots) != {REBALANCE}:
        assert fake.count(FindCoordinatorRequest) >= looks + 3
    until(lambda: one.consumer.poll(10) == [] and one.membership.state is State.INSIDE)
    assert "lost" not in one.heard


@both
@pytest.mark.parametrize("before", [[], [REBALANCE], [REBALANCE, CLOSE]], ids=name_of)
@pytest.mark.parametrize("end", [UNKNOWN, ILLEGAL], ids=name_of)
def test_who_is_expelled_hears_of_a_loss_and_commits_nothing(
    fake: GroupBroker,
    worker: MakeWorker,
    assignor: str,
    before: list[object],
    end: ErrorCode,
) -> None:
    one = worker(assignor)
    fake.lots[ApiKey.HEARTBEAT] = [*before, end]
    until(lambda: one.membership.is_lost)
    heart = one.membership._heartbeats
    assert heart is not None
    until(lambda: not heart._thread.is_alive())
    one.consumer._commit_at = 0  # one would be due
    until(lambda: one.consumer.poll(100))
    assert one.heard == ["assigned", "lost", "assigned"]
    assert fake.count(OffsetCommitRequest) == 0
    assert one.consumer.group_metadata.member_id == "member-2"


@both
@pytest.mark.parametrize("before", [[], [REBALANCE]], ids=name_of)
def test_who_is_fenced_hears_of_a_loss_and_is_told(
    fake: GroupBroker, worker: MakeWorker, assignor: str, before: list[object]
) -> None:
    one = worker(assignor, group_instance_id="name")
    fake.lots[ApiKey.HEARTBEAT] = [*before, FENCED]
    until(lambda: one.membership.is_lost)
    with pytest.raises(KafkaError) as told:
        one.consumer.poll(100)
    assert told.value.code == FENCED
    assert one.heard == ["assigned", "lost"]
    assert fake.count(OffsetCommitRequest) == 0


def go_on(fake: GroupBroker, generation: int) -> None:
    """Wait until a member's heart has beaten for a generation, and again."""

    def beats() -> int:
        with fake.lock:
            every = [each for each in fake.requests if isinstance(each, HeartbeatRequest)]
        return sum(each.generation_id == generation for each in every)

    enough = beats() + 3
    until(lambda: beats() >= enough)


def test_heart_beats_on_the_way_in_while_the_application_works(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = worker(COOPERATIVE)
    fake.lots[ApiKey.SYNC_GROUP] = [REBALANCE]
    rejoins(one, fake)
    go_on(fake, 2)
    assert not one.membership.must_rejoin
    # The next one begins already.
    until(lambda: one.consumer.poll(0) == [] and one.membership.state is State.OUTSIDE)
    go_on(fake, 2)
    until(lambda: one.consumer.poll(10) == [] and one.membership.state is State.INSIDE)
    go_on(fake, 3)
    assert one.consumer.group_metadata.member_id == "member-1"
    assert one.heard == ["assigned"] * 2


def test_heart_beats_on_when_partitions_were_given_up_for_others(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = worker(COOPERATIVE)
    fake.given = 1
    fake.lots[ApiKey.HEARTBEAT] = [REBALANCE]
    until(lambda: one.consumer.poll(0) == [] and "revoked" in one.heard)
    go_on(fake, 2)
    assert one.membership.must_rejoin
    until(lambda: one.consumer.poll(10) == [] and one.consumer.group_metadata.generation == 3)
    assert one.heard[:3] == ["assigned", "revoked", "assigned"]


@both
@pytest.mark.parametrize("code", [UNKNOWN, ILLEGAL], ids=name_of)
def test_refused_commit_is_a_loss_before_the_heart_hears_of_it(
    fake: GroupBroker, worker: MakeWorker, assignor: str, code: ErrorCode
) -> None:
    one = worker(assignor)
    fake.lots |= {ApiKey.HEARTBEAT: [REBALANCE], ApiKey.OFFSET_COMMIT: [code]}
    until(lambda: one.membership.must_rejoin)
    until(lambda: one.consumer.poll(100))
    assert one.heard == ["assigned", "lost", "assigned"]
    assert one.consumer.group_metadata.member_id == "member-2"


def test_who_is_expelled_on_its_way_in_hears_of_a_loss(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = worker(COOPERATIVE, enable_auto_commit=False)
    fake.lots[ApiKey.SYNC_GROUP] = [SILENCE]
    rejoins(one, fake)
    until(lambda: not one.consumer.poll(0) and one.membership.state is State.SYNCING)
    fake.lots[ApiKey.HEARTBEAT] = [UNKNOWN]
    until(lambda: one.membership.is_lost)
    until(lambda: one.consumer.poll(100))
    assert one.heard == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (ApiKey.JOIN_GROUP, UNKNOWN),
        (ApiKey.SYNC_GROUP, UNKNOWN),
        (ApiKey.SYNC_GROUP, ILLEGAL),
    ],
    ids=name_of,
)
def test_who_is_refused_as_expelled_hears_of_a_loss(
    fake: GroupBroker, worker: MakeWorker, step: ApiKey, code: ErrorCode
) -> None:
    one = worker(COOPERATIVE, enable_auto_commit=False)
    fake.lots |= {ApiKey.HEARTBEAT: [REBALANCE], step: [code]}
    until(lambda: one.consumer.poll(100))
    assert one.heard == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize("step", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP], ids=name_of)
def test_who_is_refused_as_fenced_hears_of_a_loss_and_is_told_at_every_poll(
    fake: GroupBroker, worker: MakeWorker, step: ApiKey
) -> None:
    one = worker(COOPERATIVE, group_instance_id="name")
    fake.lots |= {ApiKey.HEARTBEAT: [REBALANCE], step: [FENCED] * 3}
    until(lambda: one.membership.must_rejoin)
    for _ in range(3):
        with pytest.raises(KafkaError) as told:
            until(lambda: one.consumer.poll(100))
        assert told.value.code == FENCED
    assert one.heard == ["assigned", "lost"]


def test_topics_that_change_on_the_way_in_are_told_in_the_next_generation(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = worker(COOPERATIVE)
    rejoins(one, fake)
    one.consumer.subscribe(["t", "u"])
    until(lambda: one.consumer.poll(10) == [] and one.consumer.group_metadata.generation == 3)
    asked = [each for each in fake.requests if isinstance(each, JoinGroupRequest)]
    told = [decode_subscription(each.protocols[0].metadata, COOPERATIVE_STICKY) for each in asked]
    assert [one.topics for one in told] == [("t",), ("t",), ("t", "u")]


def test_connection_that_breaks_while_it_waits_for_a_join_is_opened_anew(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = worker(COOPERATIVE)
    fake.lots[ApiKey.JOIN_GROUP] = [CLOSE]
    rejoins(one, fake)
    until(lambda: one.consumer.poll(10) == [] and one.membership.state is State.INSIDE)
    assert one.heard == ["assigned"] * 2
    assert one.consumer.group_metadata == ("g", 2, "member-1", None)


def test_who_does_not_poll_on_its_way_in_leaves(fake: GroupBroker, worker: MakeWorker) -> None:
    one = worker(COOPERATIVE, enable_auto_commit=False, max_poll_interval_ms=500)
    rejoins(one, fake)
    until(lambda: fake.count(LeaveGroupRequest) == 1)
    until(lambda: one.consumer.poll(100))
    assert one.heard[-2:] == ["lost", "assigned"]


def test_who_waits_in_poll_for_others_does_not_leave(fake: GroupBroker, worker: MakeWorker) -> None:
    one = worker(EAGER, max_poll_interval_ms=2_000)
    fake.lots |= {ApiKey.HEARTBEAT: [REBALANCE], ApiKey.SYNC_GROUP: [SILENCE]}
    until(lambda: one.membership.must_rejoin)
    one.consumer.poll(3_000)
    assert fake.count(LeaveGroupRequest) == 0
    assert one.heard == ["assigned", "revoked"]


# -- listeners that raise --------------------------------------------------------------------------


@both
def test_who_is_expelled_and_unsubscribes_keeps_nothing_though_its_listener_may_not_commit(
    fake: GroupBroker, worker: MakeWorker, assignor: str
) -> None:
    one = worker(assignor, enable_auto_commit=False)
    one.consumer.subscribe(["t"], Listener(on_revoked=lambda _: one.consumer.commit()))
    fake.lots[ApiKey.HEARTBEAT] = [UNKNOWN]
    until(lambda: one.membership.is_lost)
    with pytest.raises(CommitFailed):
        one.consumer.unsubscribe()
    assert one.consumer.assignment() == one.consumer.subscription() == one.consumer.poll(10) == []
    assert fake.count(OffsetCommitRequest) == 0


def listen_badly(one: Worker) -> None:
    """Have the member hear of what goes, and raise the first time."""

    def raises(_: object) -> None:
        one.heard.append("gone")
        if one.heard.count("gone") == 1:
            raise ValueError("the application's own")

    one.consumer.subscribe(["t"], Listener(on_revoked=raises))


def poll(consumer: GroupConsumer) -> None:
    until(lambda: consumer.poll(0))


def change_topics(consumer: GroupConsumer) -> None:
    consumer.subscribe(["t", "u"], consumer._listener)


@pytest.mark.parametrize(
    ("assignor", "given", "beat", "act"),
    [
        (EAGER, 2, UNKNOWN, poll),
        (COOPERATIVE, 2, UNKNOWN, poll),
        (EAGER, 2, REBALANCE, poll),
        (COOPERATIVE, 1, REBALANCE, poll),  # one goes to another
        (EAGER, 2, ErrorCode.NONE, change_topics),
        (EAGER, 2, ErrorCode.NONE, GroupConsumer.unsubscribe),
        (COOPERATIVE, 2, ErrorCode.NONE, GroupConsumer.unsubscribe),
    ],
    ids=name_of,
)
def test_listener_that_raises_is_told_once_and_the_member_goes_on(
    fake: GroupBroker,
    worker: MakeWorker,
    assignor: str,
    given: int,
    beat: ErrorCode,
    act: Callable[[GroupConsumer], None],
) -> None:
    one = worker(assignor)
    had = one.consumer.assignment()
    listen_badly(one)
    joins = fake.count(JoinGroupRequest)
    fake.given, fake.lots[ApiKey.HEARTBEAT] = given, [beat]
    until(lambda: beat == ErrorCode.NONE or one.membership.must_rejoin)
    with pytest.raises(ValueError, match="the application's own"):
        act(one.consumer)
    kept = had[:1] if given == 1 else []
    assert one.consumer.assignment() == kept
    if not one.consumer.subscription():
        one.consumer.subscribe(["t"])
    # Who has given some up for another joins once more: the other waits for them.
    enough = joins + (2 if kept else 1)
    until(lambda: one.consumer.poll(10) == [] and fake.count(JoinGroupRequest) >= enough)
    until(lambda: one.consumer.poll(10) is not None and one.consumer.assignment() == had[:given])
    assert one.heard == ["assigned", "gone"]


# -- where to begin --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "lots", [[UNSTABLE] * 3, [MOVED], [LOADING], [CLOSE], [UNSTABLE, AWAY, CLOSE]], ids=name_of
)
def test_where_to_begin_is_asked_until_it_is_told(
    fake: GroupBroker, worker: MakeWorker, assignor: str, lots: list[object]
) -> None:
    fake.lots[ApiKey.OFFSET_FETCH] = [*lots]
    one = worker(assignor)
    assert fake.count(OffsetFetchRequest) == len(lots) + 1
    assert one.heard == ["assigned"]


def test_who_may_not_know_where_to_begin_is_told(fake: GroupBroker, worker: MakeWorker) -> None:
    fake.lots[ApiKey.OFFSET_FETCH] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaError) as told:
        worker(EAGER)
    assert told.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@both
@pytest.mark.parametrize("lot", [UNSTABLE, MOVED, LOADING, CLOSE], ids=name_of)
def test_where_to_begin_is_not_asked_at_every_poll(
    fake: GroupBroker,
    worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    assignor: str,
    lot: object,
) -> None:
    fake.given = 1
    one = worker(assignor, max_poll_records=1)
    fake.given = 2
    asked = fake.count(OffsetFetchRequest)
    monkeypatch.setattr(group_offsets, "RETRY_BACKOFF_S", 3_600)
    fake.lots |= {ApiKey.OFFSET_FETCH: [lot], ApiKey.HEARTBEAT: [REBALANCE]}
    until(lambda: one.membership.must_rejoin)
    read: list[object] = []
    until(lambda: read.extend(one.consumer.poll(0)) or fake.count(OffsetFetchRequest) > asked)
    looks = fake.count(FindCoordinatorRequest)
    for _ in range(20):
        read += one.consumer.poll(1)
    # What a cooperative member keeps it reads on meanwhile.
    assert len(read) == (2 if assignor == COOPERATIVE else 0)
    assert fake.count(OffsetFetchRequest) == asked + 1
    assert fake.count(FindCoordinatorRequest) <= looks + 1  # the heart's
    # A new generation is not of the last one's luck.
    fake.lots[ApiKey.HEARTBEAT] = [REBALANCE]
    until(lambda: one.consumer.poll(10) is not None and len(one.consumer.assignment()) == 2)
    assert fake.count(OffsetFetchRequest) == asked + 2


def asks_where_to_begin(fake: GroupBroker, worker: MakeWorker) -> Worker:
    """Return a member that has asked, and is not answered."""
    fake.lots[ApiKey.OFFSET_FETCH] = [SILENCE]
    one = worker(EAGER, is_reading=False)
    until(lambda: one.consumer.poll(10) == [] and fake.count(OffsetFetchRequest) == 1)
    return one


def test_poll_ends_before_it_is_known_where_to_begin_and_the_next_waits_for_the_same_answer(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = asks_where_to_begin(fake, worker)
    for _ in range(3):
        assert one.consumer.poll(10) == one.consumer.assignment() == one.heard == []
    assert fake.count(OffsetFetchRequest) == 1
    # It takes part meanwhile, and asks anew in the next generation.
    fake.lots[ApiKey.HEARTBEAT] = [REBALANCE]
    until(lambda: one.consumer.poll(100))
    assert one.consumer.group_metadata.generation == 2
    assert fake.count(OffsetFetchRequest) == 2
    assert one.heard == ["assigned"]


def test_where_to_begin_is_asked_again_when_the_answer_is_overdue(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = asks_where_to_begin(fake, worker)
    connection = one.membership._connection
    assert connection is not None
    connection._pending[0] = connection._pending[0]._replace(deadline=time.monotonic())
    until(lambda: one.consumer.poll(100))
    assert fake.count(OffsetFetchRequest) == 2
    assert one.consumer.group_metadata.generation == 1


def test_poll_of_a_member_without_partitions_looks_around_now_and_then_only(
    fake: GroupBroker, worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.given = 0
    one = worker(EAGER, is_reading=False)
    until(lambda: one.consumer.poll(10) == [] and one.heard == ["assigned"])
    turns: list[None] = []
    monkeypatch.setattr(one.membership, "polled", lambda: turns.append(None))
    assert one.consumer.poll(300) == []
    assert 1 < len(turns) < 10


# -- commits meanwhile -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "lot", "state", "code", "error"),
    [
        (ApiKey.JOIN_GROUP, SILENCE, State.JOINING, ILLEGAL, RebalanceInProgress),
        (ApiKey.JOIN_GROUP, CLOSE, State.OUTSIDE, ILLEGAL, RebalanceInProgress),
        (ApiKey.SYNC_GROUP, SILENCE, State.SYNCING, REBALANCE, RebalanceInProgress),
        (ApiKey.SYNC_GROUP, SILENCE, State.SYNCING, ILLEGAL, RebalanceInProgress),
        (ApiKey.SYNC_GROUP, SILENCE, State.SYNCING, UNKNOWN, CommitFailed),
        (ApiKey.SYNC_GROUP, SILENCE, State.SYNCING, FENCED, CommitFailed),
        (ApiKey.JOIN_GROUP, SILENCE, State.JOINING, UNKNOWN, CommitFailed),
        (ApiKey.HEARTBEAT, ErrorCode.NONE, State.INSIDE, ILLEGAL, CommitFailed),
    ],
    ids=name_of,
)
def test_commit_amid_a_rebalance_fails_only_if_the_group_has_gone_on(
    fake: GroupBroker,
    worker: MakeWorker,
    step: ApiKey,
    lot: object,
    state: State,
    code: ErrorCode,
    error: type[Exception],
) -> None:
    one = worker(COOPERATIVE, enable_auto_commit=False)
    if state is not State.INSIDE:
        fake.lots |= {ApiKey.HEARTBEAT: [REBALANCE], step: [lot]}
        until(lambda: one.consumer.poll(0) == [] and one.membership.state is state)
    fake.lots[ApiKey.OFFSET_COMMIT] = [code]
    with pytest.raises(error):
        one.consumer.commit()
    # It is the answer that decides: while the others join, what is read is taken.
    one.consumer.commit()


@both
@pytest.mark.parametrize("end", [UNKNOWN, ILLEGAL], ids=name_of)
@pytest.mark.parametrize(
    ("step", "lot", "state", "error"),
    [
        (ApiKey.JOIN_GROUP, SILENCE, State.JOINING, RebalanceInProgress),
        (ApiKey.JOIN_GROUP, CLOSE, State.OUTSIDE, CommitFailed),
        (ApiKey.SYNC_GROUP, SILENCE, State.SYNCING, RebalanceInProgress),
    ],
    ids=name_of,
)
def test_who_is_expelled_commits_as_who_it_was_until_it_is_back(
    fake: GroupBroker,
    worker: MakeWorker,
    assignor: str,
    end: ErrorCode,
    step: ApiKey,
    lot: object,
    state: State,
    error: type[Exception],
) -> None:
    """In transactions, that is: nobody's commit would be taken."""
    one = worker(assignor, enable_auto_commit=False)
    was = one.consumer.group_metadata
    fake.lots |= {ApiKey.HEARTBEAT: [end], step: [lot]}
    until(lambda: one.membership.is_lost)
    until(lambda: one.consumer.poll(0) == [] and one.membership.state is state)
    assert one.heard == ["assigned", "lost"]
    assert one.consumer.group_metadata == was == ("g", 1, "member-1", None)
    with pytest.raises(error):
        one.consumer.commit({TopicPartition("t", 0): 3})
    assert fake.count(OffsetCommitRequest) == 0
    if lot is CLOSE:
        until(lambda: one.consumer.poll(100))
        assert one.consumer.group_metadata == ("g", 2, "member-2", None)
        one.consumer.commit()


@both
def test_who_is_on_its_way_into_a_generation_commits_as_one_of_the_last(
    fake: GroupBroker, worker: MakeWorker, assignor: str
) -> None:
    one = worker(assignor, enable_auto_commit=False)
    fake.lots |= {ApiKey.HEARTBEAT: [REBALANCE], ApiKey.SYNC_GROUP: [SILENCE]}
    until(lambda: one.consumer.poll(0) == [] and one.membership.state is State.SYNCING)
    assert one.consumer.group_metadata == ("g", 1, "member-1", None)
    one.consumer.commit({TopicPartition("t", 0): 3})
    (commit,) = (each for each in fake.requests if isinstance(each, OffsetCommitRequest))
    assert (commit.generation_id_or_member_epoch, commit.member_id) == (1, "member-1")


@both
@pytest.mark.parametrize(
    ("step", "lot", "state", "error"),
    [
        (ApiKey.JOIN_GROUP, SILENCE, State.JOINING, RebalanceInProgress),
        (ApiKey.JOIN_GROUP, CLOSE, State.OUTSIDE, CommitFailed),
        (ApiKey.SYNC_GROUP, SILENCE, State.SYNCING, RebalanceInProgress),
    ],
    ids=name_of,
)
def test_who_is_on_its_way_in_for_the_first_time_may_commit_later(
    fake: GroupBroker,
    worker: MakeWorker,
    assignor: str,
    step: ApiKey,
    lot: object,
    state: State,
    error: type[Exception],
) -> None:
    fake.lots[step] = [lot]
    one = worker(assignor, is_reading=False)
    until(lambda: one.consumer.poll(0) == [] and one.membership.state is state)
    with pytest.raises(error):
        one.consumer.commit({TopicPartition("t", 0): 3})
    assert fake.count(OffsetCommitRequest) == 0


def test_who_subscribes_commits_only_as_a_member(fake: GroupBroker, worker: MakeWorker) -> None:
    one = worker(EAGER, is_reading=False)
    offsets = {TopicPartition("t", 0): 3}
    with pytest.raises(CommitFailed):
        one.consumer.commit(offsets)
    assert fake.count(OffsetCommitRequest) == 0
    until(lambda: one.consumer.poll(100))
    was = one.consumer.group_metadata
    one.consumer.commit(offsets)
    one.consumer.unsubscribe()
    # Nobody's, as if it had never subscribed; not in a transaction, which may be of what it read.
    one.consumer.commit(offsets)
    assert one.consumer.group_metadata == was
    told = [each.member_id for each in fake.requests if isinstance(each, OffsetCommitRequest)]
    assert told == ["member-1", "member-1", ""]  # one by itself, as the partitions go


def test_commits_by_themselves_find_a_coordinator_that_has_moved(
    fake: GroupBroker, worker: MakeWorker
) -> None:
    one = worker(EAGER)
    until(lambda: fake.count(HeartbeatRequest) > 0)  # the heart has looked for itself
    one.consumer.committed([TopicPartition("t", 0)])  # so has who commits
    one.consumer._auto_commit_s = one.consumer._commit_at = 0
    looks = fake.count(FindCoordinatorRequest)
    fake.lots[ApiKey.OFFSET_COMMIT] = [MOVED]
    one.consumer.poll(0)
    one.consumer.poll(0)
    assert fake.count(FindCoordinatorRequest) == looks + 1
    assert fake.count(OffsetCommitRequest) == 2
    assert one.consumer._committed == {TopicPartition("t", index): 3 for index in range(2)}


# -- a coordinator that keeps the connection and does not answer -----------------------------------


@both
def test_first_join_is_given_up_after_the_request_timeout(
    fake: GroupBroker, worker: MakeWorker, assignor: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator answers it at once (KIP-394), whatever the other members do."""
    fake.lots[ApiKey.JOIN_GROUP] = [SILENCE]
    one = worker(assignor, request_timeout_ms=300)
    assert one.heard == ["assigned"]
    assert f"{fake.bootstrap} did not answer JoinGroup within 0.3 s; trying again" in caplog.text


def test_sync_of_the_leader_is_given_up_after_the_request_timeout(
    fake: GroupBroker, worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    join = fake.answers[ApiKey.JOIN_GROUP]

    def join_as_leader(request: object, header: RequestHeader) -> object:
        answer = join(request, header)
        answer.leader = answer.member_id
        return answer

    fake.answers[ApiKey.JOIN_GROUP] = join_as_leader
    fake.lots[ApiKey.SYNC_GROUP] = [SILENCE]
    one = worker(EAGER, request_timeout_ms=300)
    assert one.heard == ["assigned"]
    assert f"{fake.bootstrap} did not answer SyncGroup within 0.3 s; trying again" in caplog.text


@pytest.mark.parametrize(
    ("request_name", "api_key"),
    [("JoinGroup", ApiKey.JOIN_GROUP), ("SyncGroup", ApiKey.SYNC_GROUP)],
)
def test_wait_for_other_members_is_reported_and_ends(
    fake: GroupBroker,
    worker: MakeWorker,
    caplog: pytest.LogCaptureFixture,
    request_name: str,
    api_key: ApiKey,
) -> None:
    fake.lots[api_key] = [SILENCE]
    one = worker(
        EAGER, request_timeout_ms=200, max_poll_interval_ms=800, group_instance_id="static"
    )
    assert one.heard == ["assigned"]
    said = [record.getMessage() for record in caplog.records]
    waits = (
        f"group 'g': {fake.bootstrap} has not answered {request_name} yet;"
        " waiting for other members, max_poll_interval_ms=800 at most"
    )
    assert said == [
        waits,
        f"{fake.bootstrap} did not answer {request_name} within 1 s; trying again",
    ]


def test_look_up_of_committed_offsets_that_is_not_answered_is_reported(
    fake: GroupBroker, worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    fake.lots[ApiKey.OFFSET_FETCH] = [SILENCE]
    worker(EAGER, request_timeout_ms=200)
    assert (
        f"group 'g': committed offsets are not known yet: {fake.bootstrap}"
        " did not answer OffsetFetch within 0.2 s; trying again"
    ) in caplog.text


def test_heartbeat_that_is_not_answered_is_reported(
    fake: GroupBroker, worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker(EAGER, request_timeout_ms=200)
    fake.lots[ApiKey.HEARTBEAT] = [SILENCE]
    warning = (
        f"group 'g': heartbeat failed: {fake.bootstrap}"
        " did not answer Heartbeat within 0.2 s; trying again"
    )
    until(lambda: warning in caplog.text)
