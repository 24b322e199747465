"""Brokers whose hosts lose their power: what no disk has by then is lost or torn."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.processes import Brokers
from tests.crash import power_cut
from tests.servers import BrokerProcess

from .scene import Scene
from .strikes import last


class BrokersOnDisks(Brokers):
    """Each broker writes down what it has synced."""

    def _process(self, place: Path, overrides: dict[str, object]) -> BrokerProcess:
        journal = journal_of(place)
        power_cut.restart_machine(journal)
        return BrokerProcess(
            place,
            overrides=overrides,
            launcher=[sys.executable, "-m", "tests.crash.power_cut", str(journal)],
        )


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


def one_host(scene: Scene) -> None:
    """The power of the victim's host fails."""
    cut_power(scene, [scene.victim])


def two_hosts(scene: Scene) -> None:
    """That of another's, too."""
    other = scene.chance.choice([one for one in range(3) if one != scene.victim])
    cut_power(scene, [scene.victim, other])


def all_hosts(scene: Scene) -> None:
    """The power of all hosts fails at once."""
    cut_power(scene, [0, 1, 2])
