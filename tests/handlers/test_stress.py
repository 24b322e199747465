"""A broker under producers and consumers at once while everything is changed beneath them.

What must hold, whatever the threads do:

1. every acknowledged record of a topic that stays is there, at the offset that was answered, until
   it is deleted on purpose; records of an idempotent producer are there once and in order;
2. a fetch gives whole, adjoining batches from the one that holds the asked offset, with right CRCs,
   the same that everybody else sees there;
3. no answer has an error code that the moment does not explain, the broker's log tells of no bug,
   and the broker stops.

Run under ThreadSanitizer it looks for races, too: docs/TESTING.md says how.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plog._native import faults
from plog.storage.log_manager import LogManager
from tests.agreement.harness import run_seed
from tests.descriptors import open_at
from tests.handlers import compacted, transacted
from tests.handlers.changers import Changer, come_and_go, cut_back, trouble_disks
from tests.handlers.generators import Generators, TopicChanger
from tests.handlers.running import Running
from tests.handlers.stress import (
    SMALLEST_SEGMENT,
    Consumer,
    Producer,
    World,
    check_log,
)
from tests.handlers.wire import Speaker, eventually, speak
from tests.planes import Plane

pytestmark = pytest.mark.usefixtures("soon_fast_again")  # else troubled disks are slow throughout

CLIENTS = 4
"""Producers, and as many consumers."""
IDEMPOTENT = range(CLIENTS // 2)


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What the broker logs as an error meanwhile."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    listener = Listener(logging.ERROR)
    logging.getLogger("plog").addHandler(listener)
    yield found
    logging.getLogger("plog").removeHandler(listener)


@dataclass
class Stress:
    """A broker with two disks, and those who are let loose on it."""

    directory: Path
    seed: int
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        log_dirs = [self.directory / "disk0", self.directory / "disk1"]
        managers: list[LogManager] = []
        start = LogManager.start
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LogManager, "start", lambda own: managers.append(own) or start(own))
            self.running = Running(
                self.directory,
                log_dirs=",".join(map(str, log_dirs)),
                num_network_threads=2,
                log_initial_task_delay_ms=0,
                log_retention_check_interval_ms=300,
                transaction_state_log_num_partitions=2,
                **self.settings,
            )
        self.world = World(self.running.port, log_dirs, self.seed)
        self.manager = managers[0]
        self.ledger = transacted.prepare(self.world)
        for name in ("one", "two", "three"):
            self.world.create(self.running.wire, name, 2, segment_bytes=SMALLEST_SEGMENT)
            self.world.partitions[name] = 2

    def workers(self, clients: int) -> dict[str, Callable[[], None]]:
        """Return so many producers and consumers, and everybody who changes something."""
        world = self.world
        return {
            **{
                f"producer-{n}": Producer(world, n, is_idempotent=n in IDEMPOTENT).run
                for n in range(clients)
            },
            **{
                f"consumer-{n}": Consumer(world, in_sessions=n % 2 == 0).run for n in range(clients)
            },
            "changer-0": Changer(world).run,
            "changer-1": Changer(world).run,
            "come-and-go": lambda: come_and_go(world),
            "cut-back": lambda: cut_back(world, self.manager),
            "disks": lambda: trouble_disks(world),
            **compacted.workers(world, self.manager),
            **transacted.workers(world, self.ledger),
        }

    def run(
        self,
        seconds: float,
        workers: dict[str, Callable[[], None]],
        *checks: Callable[[Speaker], None],
        needed: Collection[str] = (),
    ) -> dict[str, int]:
        """Return how often what happened; the broker is stopped then."""
        world = self.world
        try:
            world.run(seconds, workers, needed)
            world.counts["answered fast"] = self.running.fast_requests
            print(dict(sorted(world.counts.items())), self.running.callouts)
            assert world.failures == []
            wire = speak(self.running.port)
            for topic, count in world.partitions.items():
                # Nothing goes while it is looked at.
                Changer.alter(wire, topic, "retention.bytes", -1)
                for index in range(count):
                    check_log(world.book, (topic, index), wire, IDEMPOTENT)
            transacted.check(self.ledger, wire)
            for check in checks:
                check(wire)
            wire.close()
        finally:
            faults.inject([])
            self.running.stop()
        # A move that was under way may take a moment more.
        eventually(lambda: not open_at(self.directory), "every file is closed")
        return world.counts


HAPPENS = (
    "fetches with records",
    "session fetches",
    "replicas moved",
    "topics created",
    "logs compacted",
    "compacted logs read",
    "transactions committed",
    "transactions aborted",
    "committed records read",
)


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_everything_at_once(tmp_path: Path, complaints: list[str], served_by: Plane) -> None:
    stress = Stress(tmp_path, run_seed(), {"plane": served_by})
    counts = stress.run(3.0, stress.workers(CLIENTS), needed=HAPPENS)
    assert complaints == []
    for what in HAPPENS:
        assert counts.get(what, 0) > 0, counts
    assert (counts["answered fast"] > 0) == (served_by is Plane.FAST)


def under_load(directory: Path, seed: int, seconds: float, run_seconds: float) -> dict[str, int]:
    """Stress a broker with the C generator beside a few of the others."""
    stress = Stress(directory, seed)
    generators = Generators(stress.world, stress.running.wire, directory, seconds=run_seconds)
    changer = TopicChanger(stress.world)
    workers = {
        **stress.workers(clients=2),
        **{f"load-producer-{n}": generators.produce for n in range(2)},
        **{f"load-consumer-{n}": generators.fetch for n in range(2)},
        "load-changer": changer.run,
    }
    return stress.run(seconds, workers, generators.check)


def test_everything_at_once_under_load(tmp_path: Path, complaints: list[str]) -> None:
    counts = under_load(tmp_path, run_seed(), 2.0, 1.0)
    assert complaints == []
    for what in ("load: produce records", "load: fetch records", "answered fast"):
        assert counts.get(what, 0) > 0, counts


@pytest.mark.long
@pytest.mark.timeout(900)
def test_everything_at_once_for_long(tmp_path: Path, complaints: list[str]) -> None:
    seed = run_seed()
    for number in range(10):
        stress = Stress(tmp_path / str(number), seed + number)
        stress.run(30.0, stress.workers(CLIENTS))
        assert complaints == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_everything_at_once_under_load_for_long(tmp_path: Path, complaints: list[str]) -> None:
    seed = run_seed()
    for number in range(10):
        under_load(tmp_path / str(number), seed + number, 30.0, 8.0)
        assert complaints == []
