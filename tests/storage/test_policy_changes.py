"""Logs whose cleanup.policy changes between passes of compaction, whole ones and others, and stops.

What a pass has left is no damage, whatever the policy says by the next start. Random histories are
compared with a dictionary, as in `test_cleaner`, here with what the log directory says of each log.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.errors import KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.settings.definitions import TopicSettings
from plog.storage.checkpoints import OFFSET_GAPS_FILE
from plog.storage.cleaner import Abandoned, Cleaner
from plog.storage.filesystem import Filesystem
from plog.storage.log import Log
from plog.storage.log_dir import BOOT_ID_FILE
from plog.storage.log_manager import LogManager
from plog.storage.log_moves import LogMoves
from plog.storage.scrub import Scrub
from plog.storage.segment_files import LOG, path_of
from tests.agreement.harness import run_seed

from .histories import PRODUCERS, History, told
from .log_managers import A0, ID_A, abandon, lead
from .storage_logs import NOW_MS, Crash, FaultyFilesystem, Settings, broker_settings
from .test_log_cleaner import dirty

POLICIES = ["compact", "delete", "compact,delete"]
MEMORY = 1 << 16
FEW_KEYS = 14 * 24


def settings(policy: str) -> TopicSettings:
    return Settings(
        cleanup_policy=policy,
        segment_bytes=2000,
        index_interval_bytes=200,
        delete_retention_ms=1000,
        file_delete_delay_ms=1000,
        retention_ms=-1,
        min_cleanable_dirty_ratio=0.0,
    )


class Broker:
    """A log manager with one log, which outlives its stops; its clock stands still."""

    def __init__(self, dirs: list[Path]) -> None:
        self._dirs = dirs
        self.policy = "compact"
        self.clock = ManualClock(NOW_MS)
        self.fs = FaultyFilesystem()
        self.start_manager()
        lead(self.manager.create(A0, ID_A, settings(self.policy)))

    @property
    def log_dir(self) -> Path:
        (found,) = [one for one in self._dirs if (one / str(A0)).exists()]
        return found

    @property
    def log(self) -> Log:
        found = self.manager.get(A0)
        assert found is not None, self.manager.offline
        return found

    def start(self) -> None:
        self.start_manager()
        lead(self.log)

    def start_manager(self) -> None:
        self.fs = FaultyFilesystem()
        self.manager = LogManager(
            broker_settings(self._dirs),
            lambda topic: settings(self.policy),
            cluster_id="cluster",
            clock=self.clock,
            fs=self.fs,
        )
        self.manager.start(background=False)

    def restart(self, *, killed: bool) -> None:
        if killed:
            abandon(self.manager)
        else:
            self.manager.shutdown()
        self.start()

    def alter(self, policy: str) -> None:
        self.policy = policy
        self.log.update_settings(settings(policy))

    def clean(
        self, memory: int = MEMORY, throttle: Callable[[int], None] = lambda size: None
    ) -> None:
        """Make a pass as the cleaner's threads do, and remember it if it comes to its end."""
        log = self.log
        log.flush()
        checkpoint = self.manager.dirs[log.log_dir].cleaner_offsets
        dirty = log.dirty_range(checkpoint.stored.get(A0), self.clock.now_ms())
        assert dirty is not None
        cleaner = Cleaner(self.fs, key_memory_bytes=memory, load_factor=0.9)
        done = cleaner.clean(log, dirty, now_ms=self.clock.now_ms(), throttle=throttle)
        checkpoint.put(A0, done.end)

    def check_whole(self) -> None:
        scrub = Scrub(self.manager.logs, self.manager.on_damage)
        while scrub.step(1 << 20, 0):
            pass
        assert not self.manager.offline


@pytest.fixture
def broker(dirs: list[Path]) -> Iterator[Broker]:
    made = Broker(dirs)
    yield made
    abandon(made.manager)


class Stop:
    """A throttle that has a pass given up at its n-th call."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, size: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Abandoned("stopped")


def write_three_groups(log: Log) -> None:
    for _ in range(3):
        dirty(log, 25)


def test_what_a_stopped_pass_has_left_is_no_damage_under_another_policy(
    tmp_path: Path,
) -> None:
    calls, stopped = 0, True
    while stopped:
        broker = Broker([tmp_path / f"{calls}"])
        write_three_groups(broker.log)
        stopped = False
        try:
            broker.clean(throttle=Stop(calls))
        except Abandoned:
            stopped = True
        broker.alter("delete")
        broker.restart(killed=bool(calls % 2))
        broker.check_whole()
        assert told(broker.log) == {b"k": b"%d" % 24 * 40}
        broker.manager.shutdown()
        calls += 1
    assert calls > 30


@pytest.mark.parametrize("error", [0, errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_what_a_failed_pass_has_left_is_no_damage_under_another_policy(
    tmp_path: Path, error: int
) -> None:
    """At any of its steps, with `error` or, without one, by a crash."""
    history = History(random.Random(run_seed()))
    step, failed = 0, True
    while failed:
        broker = Broker([tmp_path / f"{step}"])
        history = History(random.Random(run_seed()))
        history.write(broker.log, 8)
        history.end_all(broker.log)
        broker.log.roll()
        history.put(broker.log, PRODUCERS[0])  # which stays open
        broker.log.flush()
        fs = broker.fs
        fs.fail_at, fs._crash, fs._error = fs.operations + step, not error, error
        failed = False
        try:
            broker.clean()
        except (Crash, KafkaStorageError, OSError):
            failed = True
        fs.fail_at = fs.fail_at if not error else -1
        broker.policy = "delete"
        broker.restart(killed=not error or error == errno.EIO)
        where = f"at step {step}"
        assert told(broker.log) == history.table(broker.log), where
        broker.check_whole()
        broker.alter("compact")
        for _ in range(2):
            broker.clean()
            assert told(broker.log) == history.table(broker.log), where
        broker.manager.shutdown()
        step += 1
    assert step > 10


def test_gaps_of_a_stopped_pass_are_known_where_the_log_has_moved_to(
    broker: Broker, dirs: list[Path]
) -> None:
    write_three_groups(broker.log)
    with pytest.raises(Abandoned):
        broker.clean(throttle=Stop(100))
    broker.alter("delete")
    (target,) = [one for one in dirs if one != broker.log.log_dir]
    LogMoves(broker.manager, Filesystem()).move(A0, target)
    for killed in (True, False):
        broker.restart(killed=killed)
        assert broker.log.log_dir == target
    broker.check_whole()


def test_gaps_of_a_log_that_another_release_has_compacted_are_no_damage_later(
    broker: Broker,
) -> None:
    write_three_groups(broker.log)
    with pytest.raises(Abandoned):
        broker.clean(throttle=Stop(100))
    broker.manager.shutdown()
    directory = broker.log_dir
    (directory / OFFSET_GAPS_FILE).unlink()  # as one leaves it that writes none
    broker.start()
    broker.alter("delete")
    broker.restart(killed=False)
    broker.check_whole()


def test_gaps_of_a_log_that_kafka_has_compacted_are_no_damage_now_or_later(
    broker: Broker, tmp_path: Path
) -> None:
    """Of a pass that Kafka's cleaner did not end, before the policy became another."""
    write_three_groups(broker.log)
    with pytest.raises(Abandoned):
        broker.clean(throttle=Stop(100))
    broker.policy = "delete"
    broker.manager.shutdown()
    directory = broker.log_dir
    for name in (OFFSET_GAPS_FILE, BOOT_ID_FILE):
        (directory / name).unlink()
    for _ in range(2):
        broker.start()
        broker.check_whole()
        broker.manager.shutdown()
    # What is lost later is still seen.
    broker.start()
    write_three_groups(broker.log)
    gone = broker.log.native.segments[-3].base_offset
    broker.manager.shutdown()
    path_of(directory / str(A0), gone, LOG).unlink()
    broker.start_manager()
    assert "is missing; it was there at the clean shutdown" in broker.manager.offline[A0]


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_knows_what_the_dictionary_knows_whatever_the_policy_becomes(
    broker: Broker, dirs: list[Path], seed: int
) -> None:
    number = run_seed() + seed
    chance = random.Random(number)
    history = History(chance)
    early = 0
    for _ in range(20):
        history.write(broker.log, 12)
        if chance.random() < 0.3:
            history.end_all(broker.log)
        if chance.random() < 0.4:
            broker.alter(chance.choice(POLICIES))
        killed = chance.random() < 0.5
        event = chance.random()
        if "compact" in broker.policy:
            memory = chance.choice([MEMORY, FEW_KEYS])
            if event < 0.3:
                broker.clean(memory)
            elif event < 0.6:
                try:
                    broker.clean(memory, Stop(chance.randrange(80)))
                except Abandoned:
                    early += 1
            else:
                fs = broker.fs
                broker.log.flush()
                error = chance.choice([0, errno.ENOSPC, errno.EMFILE])
                fs.fail_at, fs._crash = fs.operations + chance.randrange(40), not error
                fs._error = error
                try:
                    broker.clean(memory)
                except (Crash, KafkaStorageError, OSError):
                    early += 1
                if not error:
                    if chance.random() < 0.5:
                        broker.policy = chance.choice(POLICIES)
                    broker.restart(killed=True)
                fs.fail_at = -1
        where = f"{broker.policy}, seed {number}"
        assert told(broker.log) == history.table(broker.log), where
        if chance.random() < 0.5:
            if chance.random() < 0.5:
                broker.alter(chance.choice(POLICIES))
            broker.restart(killed=killed)
        if chance.random() < 0.1:
            target = chance.choice([one for one in dirs if one != broker.log.log_dir])
            LogMoves(broker.manager, broker.fs).move(A0, target)
        broker.check_whole()
        assert broker.log.last_stable_offset == history.stable_end(broker.log), where
        assert told(broker.log) == history.table(broker.log), where
        broker.clock.advance(chance.choice([0, 500, 2000]))
    assert early
