"""Brokers whose hosts lose their power: what no disk has by then is lost or torn."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.processes import Brokers
from tests.crash import power_cut
from tests.servers import BrokerProcess
from tests.waiting import until

from .network import BrokersApart
from .scene import Scene
from .strikes import last

STACK = "(most recent call first)"
"""Is in the first line of a thread's stack."""


class BrokersOnDisks(Brokers):
    """Each broker writes down what it has synced."""

    def _process(self, place: Path, overrides: dict[str, object]) -> BrokerProcess:
        return BrokerProcess(place, overrides=overrides, launcher=_program(place))


class BrokersApartOnDisks(BrokersApart):
    """So does each broker in a namespace of its own."""

    def _program(self, place: Path) -> list[str]:
        return _program(place)


def _program(place: Path) -> list[str]:
    """Return what starts the broker of a directory on a machine that has just started."""
    journal = journal_of(place)
    power_cut.restart_machine(journal)
    return [sys.executable, "-m", "tests.crash.power_cut", str(journal)]


@contextmanager
def stacks_kept(brokers: Brokers) -> Iterator[None]:
    """Have running brokers write their threads' stacks to their logs if the block fails."""
    try:
        yield
    except Exception:
        for one in brokers.brokers:
            if one.is_running and isinstance(brokers, BrokersOnDisks | BrokersApartOnDisks):
                before = one.log.count(STACK)
                os.kill(one.pid, signal.SIGUSR2)
                until(lambda one=one, before=before: one.log.count(STACK) > before, "stacks")
        raise


def journal_of(place: Path) -> Path:
    """Return the journal of a broker's directory."""
    return place / "journal"


def cut_power(scene: Scene, victims: list[int]) -> None:
    """Take the power from some hosts at once, and give it back later."""
    brokers = [scene.brokers[one] for one in victims]
    for broker in brokers:
        broker.kill()
    for broker in brokers:
        for _ in power_cut.cut(broker.log_dirs, journal_of(broker.directory), scene.chance):
            pass
        power_cut.restart_machine(journal_of(broker.directory))
    last(scene)
    for broker in brokers:
        broker.start()


def lose_power(scene: Scene) -> None:
    """The power of the victim's host fails."""
    cut_power(scene, [scene.victim])


def two_lose_power(scene: Scene) -> None:
    """That of another's, too."""
    other = scene.chance.choice([one for one in range(3) if one != scene.victim])
    cut_power(scene, [scene.victim, other])


def all_lose_power(scene: Scene) -> None:
    """The power of all hosts fails at once."""
    cut_power(scene, [0, 1, 2])
