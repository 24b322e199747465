"""The faults. Each happens, lasts, and is taken back, all in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from plog.cluster import znodes
from tests.waiting import until

from .network import BrokersApart, Link, Way
from .scene import Scene

Strike = Callable[[Scene], None]


def last(scene: Scene, most_sessions: float = 2.0) -> None:
    """Let time pass, from nothing to past the end of a session, as the seed says."""
    time.sleep(scene.chance.uniform(0.0, most_sessions * scene.session_s))


# -- one broker --------------------------------------------------------------------------------


def kill(scene: Scene) -> None:
    """SIGKILL, and a start within the session or after it."""
    scene.brokers[scene.victim].kill()
    last(scene)
    scene.brokers[scene.victim].start()


def terminate(scene: Scene) -> None:
    """SIGTERM, and a start."""
    scene.brokers[scene.victim].stop()
    last(scene)
    scene.brokers[scene.victim].start()


def suspend(scene: Scene) -> None:
    """SIGSTOP for longer than the session."""
    with scene.brokers[scene.victim].suspended():
        until_gone(scene)
        last(scene, 1.0)


def until_gone(scene: Scene) -> None:
    """Wait until the broker's session is over."""
    with closing(scene.brokers.store()) as store:
        until(lambda: not store.exists(znodes.broker_path(scene.victim)), "the session is over")


def expire(scene: Scene) -> None:
    """The session ends, and the broker goes on."""
    scene.brokers.expire(scene.victim)


# -- ZooKeeper ---------------------------------------------------------------------------------


def restart_zookeeper(scene: Scene) -> None:
    """All servers are killed, and start again."""
    numbers = list(scene.zookeepers.ports)
    for number in numbers:
        scene.zookeepers.kill(number)
    last(scene)
    scene.zookeepers.start(*numbers)


@contextmanager
def _without_majority(scene: Scene) -> Iterator[None]:
    """Two of three servers are killed, or stand still, for the block."""
    lost = scene.chance.sample(list(scene.zookeepers.ports), 2)
    if scene.chance.random() < 0.5:
        for number in lost:
            scene.zookeepers.kill(number)
        yield
        scene.zookeepers.start(*lost)
    else:
        for number in lost:
            scene.zookeepers.pause(number)
        yield
        for number in lost:
            scene.zookeepers.pause(number, goes_on=True)


def lose_majority(scene: Scene) -> None:
    """ZooKeeper is away for a while."""
    with _without_majority(scene):
        last(scene)


def kill_without_majority(scene: Scene) -> None:
    """The broker is killed while ZooKeeper is away, and starts when it is back."""
    with _without_majority(scene):
        last(scene, 0.5)
        scene.brokers[scene.victim].kill()
        last(scene)
    scene.brokers[scene.victim].start()


# -- the network -------------------------------------------------------------------------------


@contextmanager
def _cut(scene: Scene, *links: Link) -> Iterator[None]:
    assert isinstance(scene.brokers, BrokersApart)
    network = scene.brokers.network
    network.cut(scene.victim, *links)
    try:
        yield
    finally:
        network.cut(scene.victim, *links, is_cut=False)


def cut_from_zookeeper(scene: Scene) -> None:
    """The broker cannot reach ZooKeeper for longer than its session; clients reach it."""
    with _cut(scene, Link.ZOOKEEPER):
        until_gone(scene)
        last(scene, 1.0)


def cut_from_brokers(scene: Scene) -> None:
    """No broker reaches it, nor it them; it keeps its session."""
    with _cut(scene, Link.BROKERS):
        last(scene)


def cut_off(scene: Scene) -> None:
    """No broker, client or ZooKeeper reaches it for longer than its session."""
    with _cut(scene, *Link):
        until_gone(scene)
        last(scene, 1.0)


def _cut_one_way(scene: Scene, way: Way) -> None:
    assert isinstance(scene.brokers, BrokersApart)
    network = scene.brokers.network
    links = scene.chance.choice(ONE_WAY_LINKS)
    network.cut_one_way(scene.victim, way, *links)
    try:
        last(scene)
    finally:
        network.cut_one_way(scene.victim, way, *links, is_cut=False)


def mute(scene: Scene) -> None:
    """Others send to the broker, and hear nothing from it: brokers, ZooKeeper, clients or all."""
    _cut_one_way(scene, Way.FROM_BROKER)


def deafen(scene: Scene) -> None:
    """The broker sends, and nothing that others send reaches it."""
    _cut_one_way(scene, Way.TO_BROKER)


ONE_WAY_LINKS: tuple[tuple[Link, ...], ...] = (*((one,) for one in Link), tuple(Link))
ON_ONE_HOST: tuple[Strike, ...] = (kill, terminate, suspend, expire)
WITHOUT_ZOOKEEPER: tuple[Strike, ...] = (restart_zookeeper, lose_majority, kill_without_majority)
CUTS: tuple[Strike, ...] = (cut_from_zookeeper, cut_from_brokers, cut_off, mute, deafen)
