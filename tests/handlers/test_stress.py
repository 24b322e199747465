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
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import files
from plog.storage.log_manager import LogManager
from tests.agreement.harness import run_seed
from tests.handlers.running import Running
from tests.handlers.stress import (
    SMALLEST_SEGMENT,
    Changer,
    Consumer,
    Producer,
    World,
    check_log,
    come_and_go,
    cut_back,
    trouble_disks,
)
from tests.handlers.wire import speak

PRODUCERS = 4
IDEMPOTENT = range(PRODUCERS // 2)
CONSUMERS = 4


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


def stress(directory: Path, seed: int, seconds: float, **settings: object) -> World:
    log_dirs = [directory / "disk0", directory / "disk1"]
    managers: list[LogManager] = []
    start = LogManager.start
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LogManager, "start", lambda self: managers.append(self) or start(self))
        running = Running(
            directory,
            log_dirs=",".join(map(str, log_dirs)),
            num_network_threads=2,
            log_retention_check_interval_ms=300,
            **settings,
        )
    world = World(running.port, log_dirs, seed)
    for name in ("one", "two", "three"):
        world.create(running.wire, name, 2, segment_bytes=SMALLEST_SEGMENT)
        world.partitions[name] = 2
    world.run(
        seconds,
        {
            **{
                f"producer-{n}": Producer(world, n, is_idempotent=n in IDEMPOTENT).run
                for n in range(PRODUCERS)
            },
            **{
                f"consumer-{n}": Consumer(world, in_sessions=n % 2 == 0).run
                for n in range(CONSUMERS)
            },
            "changer-0": Changer(world).run,
            "changer-1": Changer(world).run,
            "come-and-go": lambda: come_and_go(world),
            "cut-back": lambda: cut_back(world, managers[0]),
            "disks": lambda: trouble_disks(world),
        },
    )
    world.counts["answered fast"] = running.fast_requests
    print(dict(sorted(world.counts.items())), running.handed_over)
    try:
        assert world.failures == []
        wire = speak(running.port)
        for topic, count in world.partitions.items():
            # Nothing goes while it is looked at.
            Changer.alter(wire, topic, "retention.bytes", -1)
            for index in range(count):
                check_log(world.book, (topic, index), wire, IDEMPOTENT)
        wire.close()
    finally:
        files.inject([])
        running.stop()
    return world


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_everything_at_once(tmp_path: Path, complaints: list[str], fast_path: str) -> None:
    world = stress(tmp_path, run_seed(), 3.0, fast_path_enable=fast_path)
    assert complaints == []
    for what in ("fetches with records", "session fetches", "replicas moved", "topics created"):
        assert world.counts.get(what, 0) > 0, world.counts
    assert (world.counts["answered fast"] > 0) == (fast_path == "true")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_everything_at_once_for_long(tmp_path: Path, complaints: list[str]) -> None:
    seed = run_seed()
    for number in range(10):
        stress(tmp_path / str(number), seed + number, 30.0)
        assert complaints == []
