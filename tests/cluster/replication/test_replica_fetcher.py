"""A fetcher over real logs: it copies what the leader has, and nothing else."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import faults
from plog._native.faults import Fault
from plog.cluster.disks import Disks
from plog.cluster.leadership import Leadership
from plog.cluster.partition import Partition
from plog.cluster.replication.followed import Followed
from plog.cluster.replication.leader_requests import DIVERGENCE_SINCE, FETCH_VERSION, Limits
from plog.cluster.replication.replica_fetcher import (
    FIRST_PAUSE_MS,
    PATIENCE_MS,
    FetchFailures,
    ReplicaFetcher,
)
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import PartitionData, ReplicaState
from plog.runtime.clock import ManualClock
from tests.cluster.in_sync_sets import FakeSets
from tests.cluster.replication.leaders import Leader
from tests.storage.followers import (
    assert_same_files,
    follower_of,
    knowledge,
    leader_of_everything,
    put,
    restored,
)
from tests.storage.storage_logs import TOPIC_ID, TP, batch, read_all

ME, PEER = 1, 0
BACKOFF_MS = 10 * FIRST_PAUSE_MS
LIMITS = Limits(500, 1, 1 << 20, 1 << 20, BACKOFF_MS)


@pytest.fixture(autouse=True)
def healthy_disk() -> Iterator[None]:
    yield
    faults.inject([])


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "plog.cluster.replication.replica_fetcher")
    return caplog


@pytest.fixture(params=[FETCH_VERSION, 12, 11], autouse=True)
def fetch_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The leader's: 12 has topics by name, and 11 says no diverging epochs."""
    version: int = request.param
    monkeypatch.setattr(Leader, "fetch_version", version)
    return version


class Stage:
    """A leader's log and a follower's, with a fetcher between them that has no thread."""

    def __init__(self, directory: Path, *, seed: int = 1, batches: int = 30) -> None:
        directory.mkdir(exist_ok=True)
        self.led = leader_of_everything(directory / "leader", seed, batches=batches)
        self.log = follower_of(self.led, directory / "follower")
        self.clock = ManualClock(1_700_000_000_000)
        self.leader = Leader({(TOPIC_ID, TP.partition): self.led}, {TP.topic: TOPIC_ID})
        self.leader.fetch_version = Leader.fetch_version
        self.changed = 0
        self.failures = FetchFailures()
        self.partition = Partition(
            TP,
            TOPIC_ID,
            broker_id=ME,
            settings=self.log.settings,
            on_change=self._on_change,
            disks=Disks(),
            in_sync_sets=FakeSets(),
        )
        self.fetcher = ReplicaFetcher(
            PEER,
            0,
            self.leader,  # type: ignore[arg-type]
            limits=LIMITS,
            who=lambda: ReplicaState(replica_id=ME, replica_epoch=50),
            clock=self.clock,
            failures=self.failures,
        )
        self.follow()

    def _on_change(self, at: object) -> None:
        self.changed += 1

    def follow(self) -> None:
        """Obey an order to follow in the leader's epoch."""
        epoch = self.led.native.leader_epoch
        leadership = Leadership(PEER, epoch, (PEER,), (PEER, ME), epoch, 1)
        self.fetcher.remove([TP])
        self.partition.make_follower(leadership, self.log)
        self.fetcher.add([Followed(self.partition, leadership)])

    def catch_up(self, most_rounds: int = 200) -> int:
        """Fetch until there is nothing more; return the rounds."""
        for number in range(most_rounds):
            if (
                self.log.log_end_offset == self.led.log_end_offset
                and self.log.high_watermark == self.led.high_watermark
            ):
                return number
            assert self.fetcher.run_round() == 0
        raise AssertionError(f"the follower is at {self.log.log_end_offset} of {self.led}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize("most_bytes", [1 << 20, 3_000, 1])
def test_follower_gets_the_leaders_log(stage: Stage, most_bytes: int) -> None:
    stage.leader.most_bytes = most_bytes
    stage.catch_up()
    assert stage.changed
    assert stage.log.durable_end == stage.log.log_end_offset
    assert_same_files(stage.led, stage.log, (".snapshot",))


def test_lag_is_the_way_to_the_leaders_high_watermark(stage: Stage) -> None:
    assert stage.partition.offset_lag == 0, "it has not heard from its leader"
    stage.leader.most_bytes = 1
    stage.fetcher.run_round()
    lag = stage.led.high_watermark - stage.log.log_end_offset
    assert stage.partition.offset_lag == lag > 0
    stage.catch_up()
    assert stage.partition.offset_lag == 0
    put(stage.led, batch())
    faults.inject([Fault("pwritev", errno=errno.ENOSPC)])
    stage.fetcher.run_round()
    assert stage.partition.offset_lag == stage.led.log_end_offset - stage.log.log_end_offset > 0
    stage.follow()
    assert stage.partition.offset_lag == 0, "it may have another leader"


def test_position_is_what_is_durable(stage: Stage, fetch_version: int) -> None:
    stage.catch_up()
    put(stage.led, batch())
    stage.fetcher.run_round()
    assert stage.log.durable_end == stage.led.log_end_offset
    stage.fetcher.run_round()
    ((part,),) = (topic.partitions for topic in stage.leader.requests[-1].topics)
    assert part.fetch_offset == stage.led.log_end_offset
    epoch = stage.led.native.leader_epoch
    assert part.last_fetched_epoch == (-1 if fetch_version < DIVERGENCE_SINCE else epoch)


def test_session_names_only_what_has_changed(stage: Stage) -> None:
    stage.catch_up()
    stage.fetcher.run_round()
    stage.fetcher.run_round()
    assert stage.leader.requests[-1].topics == []
    put(stage.led, batch())
    for _ in range(2):
        stage.fetcher.run_round()
    assert len(stage.leader.requests[-1].topics) == 1
    assert stage.log.log_end_offset == stage.led.log_end_offset


@pytest.mark.parametrize("has_sessions", [True, False])
@pytest.mark.parametrize(
    "error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
def test_lost_session_is_opened_again(stage: Stage, error: ErrorCode, has_sessions: bool) -> None:
    stage.leader.has_sessions = has_sessions
    stage.catch_up()
    stage.leader.session_error = error
    put(stage.led, batch())
    stage.fetcher.run_round()
    stage.catch_up()


def test_leader_that_is_away_is_asked_again(stage: Stage, caplog) -> None:
    stage.leader.is_away = True
    for _ in range(3):
        assert stage.fetcher.run_round() == BACKOFF_MS
    stage.leader.is_away = False
    stage.catch_up()
    assert stage.failures.counts() == {PEER: 3}
    assert [line.getMessage() for line in caplog.records] == [
        "no replicas are copied from broker 0: no route",
        "replicas are copied from broker 0 again",
    ]


# -- logs that part --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_log_that_has_parted_is_cut_and_filled_again(tmp_path: Path, seed: int) -> None:
    """Both have led for a while without the other; the leader of now is right."""
    chance = random.Random(seed)
    stage = Stage(tmp_path, seed=seed, batches=chance.randint(1, 30))
    stage.catch_up()
    for turn in range(chance.randint(1, 3)):
        epoch = stage.led.native.leader_epoch
        stage.log.become_leader(epoch + 1, sole_replica=False)
        for _ in range(chance.randint(1, 3)):
            put(stage.log, batch(chance.randint(1, 5)))
        if chance.random() < 0.5:
            stage.log.become_leader(stage.log.native.leader_epoch + 1, sole_replica=False)
            put(stage.log, batch())
        stage.led.become_leader(stage.log.native.leader_epoch + 1, sole_replica=True)
        for number in range(chance.randint(1, 20)):
            producer_id = 1_000 * (turn + 1) + number
            put(stage.led, batch(2, producer_id=producer_id, epoch=0, sequence=0))
        stage.follow()
        stage.catch_up()
    assert read_all(stage.log) == read_all(stage.led)
    mine, theirs = (restored(knowledge(one)).producers for one in (stage.log, stage.led))
    assert mine == theirs


def test_missed_leader_epoch_is_no_missed_cut(tmp_path: Path) -> None:
    """Another broker led meanwhile, then the same one again, with less (KAFKA-7164)."""
    stage = Stage(tmp_path)
    stage.catch_up()
    committed = stage.led.log_end_offset
    for _ in range(3):
        put(stage.led, batch(2))
    stage.catch_up()
    epoch = stage.led.native.leader_epoch
    stage.led.become_follower(epoch + 1)
    stage.led.truncate_to(committed)
    stage.led.become_leader(epoch + 2, sole_replica=True)
    for number in range(4):
        put(stage.led, batch(3, producer_id=500 + number, epoch=0, sequence=0))
    stage.follow()
    stage.catch_up()
    assert read_all(stage.log) == read_all(stage.led)


@pytest.mark.parametrize("has_records", [False, True])
def test_follower_ahead_of_its_leader_goes_on(stage: Stage, has_records: bool) -> None:
    """The leader was elected uncleanly, with little or nothing (KAFKA-3410, KAFKA-7414)."""
    stage.catch_up()
    epoch = stage.led.native.leader_epoch
    stage.led.become_follower(epoch)
    stage.led.truncate_to(1 if has_records else 0)
    kept = read_all(stage.led) if stage.led.log_end_offset else b""
    stage.led.become_leader(epoch + 1, sole_replica=True)
    stage.follow()
    stage.catch_up()
    assert stage.log.log_end_offset == stage.led.log_end_offset
    put(stage.led, batch(2))
    stage.catch_up()
    assert read_all(stage.log) == read_all(stage.led)
    assert read_all(stage.log).startswith(kept)


def test_position_that_was_refused_for_a_moment_costs_no_records(stage: Stage) -> None:
    """The leader has grown past it by the time that it is asked for its range (KAFKA-2143)."""
    stage.catch_up()
    before, end = read_all(stage.log), stage.log.log_end_offset
    put(stage.led, batch(3))

    def refuse(answer: PartitionData) -> PartitionData:
        stage.leader.change = lambda answer: answer
        return PartitionData(
            partition_index=answer.partition_index,
            error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
            high_watermark=-1,
            records=b"",
        )

    stage.leader.change = refuse
    stage.fetcher.run_round()
    assert (stage.log.log_end_offset, read_all(stage.log)) == (end, before)
    assert stage.fetcher.run_round() == FIRST_PAUSE_MS
    stage.clock.advance(FIRST_PAUSE_MS)
    stage.catch_up()
    assert read_all(stage.log).startswith(before)


def test_position_below_the_leaders_start_begins_again_there(stage: Stage) -> None:
    stage.catch_up()
    put(stage.led, batch(5))
    stage.led.roll()
    start = stage.led.log_end_offset
    put(stage.led, batch(3))
    stage.led.delete_records_before(start)
    stage.catch_up()
    assert stage.log.log_start_offset == start


def test_start_follows_the_leaders(stage: Stage) -> None:
    stage.catch_up()
    middle = stage.led.log_end_offset // 2
    stage.led.delete_records_before(middle)
    stage.fetcher.run_round()
    assert stage.log.log_start_offset == middle


# -- epochs ----------------------------------------------------------------------------------------


def test_older_epoch_waits_for_its_order(stage: Stage) -> None:
    stage.catch_up()
    stage.led.become_leader(stage.led.native.leader_epoch + 1, sole_replica=True)
    put(stage.led, batch())
    stage.fetcher.run_round()
    assert stage.fetcher.run_round() is None
    stage.follow()
    stage.catch_up()


def test_newer_epoch_than_the_leaders_is_asked_for_again(stage: Stage) -> None:
    stage.catch_up()
    put(stage.led, batch())
    leadership = stage.partition.leadership
    later = leadership._replace(leader_epoch=leadership.leader_epoch + 1)
    stage.fetcher.remove([TP])
    stage.partition.make_follower(later, stage.log)
    stage.fetcher.add([Followed(stage.partition, later)])
    pauses = []
    for _ in range(6):
        stage.fetcher.run_round()
        pauses.append(stage.fetcher.run_round())
        stage.clock.advance(BACKOFF_MS)
    assert pauses == [*(FIRST_PAUSE_MS << n for n in range(4)), BACKOFF_MS, BACKOFF_MS]
    stage.led.become_leader(later.leader_epoch, sole_replica=True)
    stage.catch_up()
    stage.leader.change = flip
    put(stage.led, batch())
    stage.fetcher.run_round()
    assert stage.fetcher.run_round() == FIRST_PAUSE_MS, "it was copied meanwhile"


def test_answer_of_an_earlier_epoch_is_dropped(stage: Stage) -> None:
    """The order comes while the request is away."""

    def obey(answer: PartitionData) -> PartitionData:
        stage.leader.change = lambda answer: answer
        stage.led.become_leader(stage.led.native.leader_epoch + 1, sole_replica=True)
        stage.follow()
        return answer

    stage.leader.change = obey
    stage.fetcher.run_round()
    assert stage.log.log_end_offset == 0
    stage.catch_up()


# -- what fails ------------------------------------------------------------------------------------


def flip(answer: PartitionData) -> PartitionData:
    data = bytearray(answer.records)
    data[-1] ^= 1
    answer.records = bytes(data)
    return answer


def test_damaged_answer_is_not_appended(stage: Stage, caplog) -> None:
    stage.leader.most_bytes, stage.leader.change = 1, flip
    for _ in range(3):
        stage.fetcher.run_round()
        assert stage.log.log_end_offset == 0
        stage.clock.advance(BACKOFF_MS)
    assert stage.failures.counts() == {PEER: 3}
    assert len([line for line in caplog.records if "not copied" in line.getMessage()]) == 1
    stage.leader.change = lambda answer: answer
    stage.catch_up()
    assert "copied from broker 0 again" in caplog.records[-1].getMessage()


def test_full_disk_is_waited_for(stage: Stage, caplog) -> None:
    faults.inject([Fault("pwritev", errno=errno.ENOSPC)])
    for _ in range(2 * PATIENCE_MS // BACKOFF_MS):
        stage.fetcher.run_round()
        assert stage.fetcher.run_round() in range(FIRST_PAUSE_MS, BACKOFF_MS + 1)
        stage.clock.advance(BACKOFF_MS)
    assert stage.log.log_end_offset == 0
    assert len([line for line in caplog.records if "not copied" in line.getMessage()]) == 1
    faults.inject([])
    stage.catch_up()


def test_partition_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    broken, sound = Stage(tmp_path / "a"), Stage(tmp_path / "b")
    other = sound.partition
    other.topic_partition = TP._replace(partition=1)
    broken.leader.logs[TOPIC_ID, 1] = sound.led
    broken.leader.change = lambda answer: flip(answer) if answer.partition_index == 0 else answer
    broken.fetcher.add([Followed(other, other.leadership)])
    while sound.log.log_end_offset < sound.led.log_end_offset:
        broken.fetcher.run_round()
    assert broken.log.log_end_offset == 0


def test_partition_that_was_taken_away_is_left_alone(stage: Stage) -> None:
    def take_away(answer: PartitionData) -> PartitionData:
        stage.fetcher.remove([TP])
        return answer

    stage.leader.change = take_away
    stage.fetcher.run_round()
    assert stage.log.log_end_offset == 0
    assert stage.fetcher.is_idle
    assert stage.fetcher.run_round() is None
