"""What operators do on purpose, alone or while something fails: moves, elections, restarts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from plog.client.reassignments import ReassignmentAdmin
from plog.errors import KafkaError
from plog.types import TopicPartition
from tests.cluster.elections import Elections
from tests.waiting import until

from .load import INPUT, OUTPUT
from .scene import ASK_MS, COMPLETE_WITHIN_S, PARTITIONS, Scene
from .strikes import Strike, last

PLACES = [TopicPartition(topic, index) for topic in (INPUT, OUTPUT) for index in range(PARTITIONS)]
MOVED = 3
"""So many partitions are moved at once."""
FEWEST = 2
"""The replicas of a partition while it is moved: `min.insync.replicas`."""


def reassign(scene: Scene) -> None:
    """Take a replica of some partitions away, and give it back in another order."""
    with _moves(scene):
        pass


@cache
def reassign_during(strike: Strike) -> Strike:
    """Return the strike with moves that begin before it and end after it."""

    def struck(scene: Scene) -> None:
        with _moves(scene):
            strike(scene)

    struck.__name__ = f"{strike.__name__} during moves"
    return struck


@contextmanager
def _moves(scene: Scene) -> Iterator[None]:
    """Begin to move partitions to other brokers for the block; afterwards, each is everywhere."""
    brokers = list(range(len(scene.brokers.brokers)))
    moved = scene.chance.sample(PLACES, MOVED)
    fewer = {at: scene.chance.sample(brokers, FEWEST) for at in moved}
    others = {at: [*(set(brokers) - set(kept)), kept[0]] for at, kept in fewer.items()}
    with ReassignmentAdmin(scene.brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
        _move(admin, fewer)
        _until_moved(admin)
        _move(admin, others)  # each gives one replica up for another, which has to copy
        yield
        _until_moved(admin)
        _move(admin, {at: scene.chance.sample(brokers, len(brokers)) for at in moved})
        _until_moved(admin)


def _move(admin: ReassignmentAdmin, targets: dict[TopicPartition, list[int]]) -> None:
    """Begin moves. A controller that was asked may end before it answers."""

    def begun() -> bool:
        try:
            admin.reassign(targets)
        except KafkaError:
            return False
        return True

    until(begun, f"the moves begin: {targets}", COMPLETE_WITHIN_S)


def _until_moved(admin: ReassignmentAdmin) -> None:
    def left() -> object:
        try:
            return admin.moves()
        except KafkaError as fault:
            return fault

    until(lambda: left() == {}, "all moves are over", COMPLETE_WITHIN_S)


def elect_preferred(scene: Scene) -> None:
    """Elect the preferred leaders, as after a restart."""

    def elected() -> bool:
        with Elections(scene.brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
            try:
                admin.elect_preferred()
            except KafkaError:
                return False
        return True

    until(elected, "leaders are elected", COMPLETE_WITHIN_S)


def rolling_restart(scene: Scene) -> None:
    """Restart the brokers in turn, the controller last, as `bin/rolling-restart` does."""
    _restart_all(scene, None)


@cache
def rolling_restart_during(strike: Strike) -> Strike:
    """Return the strike while one of the brokers that are restarted in turn is away."""

    def struck(scene: Scene) -> None:
        _restart_all(scene, strike)

    struck.__name__ = f"{strike.__name__} during a rolling restart"
    return struck


def _restart_all(scene: Scene, strike: Strike | None) -> None:
    brokers = scene.brokers
    controller = brokers.controller
    order = sorted(range(len(brokers.brokers)), key=lambda one: (one == controller, one))
    others = [one for one in order if one != scene.victim]
    struck_at = scene.chance.choice(others)
    for one in order:
        _until_may_restart(scene, one)
        brokers[one].stop()
        if strike is not None and one == struck_at:
            strike(scene)
        last(scene, 0.3)
        if not brokers[one].is_running:
            brokers[one].start()


def _until_may_restart(scene: Scene, broker_id: int) -> None:
    """Wait until `plog cluster restart-check` allows the restart.

    It fails at once while the broker that it asks has not heard yet that the other one is back.
    """
    command = [sys.executable, "-m", "plog", "cluster", "restart-check", str(broker_id)]
    command += ["-b", scene.brokers.bootstrap, "--wait", str(COMPLETE_WITHIN_S)]
    ends_at = time.monotonic() + COMPLETE_WITHIN_S
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = done.stdout + done.stderr
        assert time.monotonic() < ends_at, f"broker {broker_id} may not be restarted: {said}"
