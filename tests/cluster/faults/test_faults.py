"""One broker fails in each way, in each role, under load; nothing acknowledged is lost.

Every run has a transactional copy load by two client libraries, and a grouped consumer load on what
they write. The seed chooses when a fault comes and how long it lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.agreement.harness import run_seed
from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble

from . import network, strikes
from .judging import check_replicas, judge
from .network import ZOOKEEPER, BrokersApart, Network
from .power import stacks_kept
from .scene import COMPLETE_WITHIN_S, Role, Scene, settings_of
from .strikes import Strike

LONG_STRIKES = 3
"""So many faults of one kind in a row, in the long form."""
Say = Callable[[str, object], None]


def every(*chosen: Strike) -> pytest.MarkDecorator:
    """Return the combinations of faults and roles, in the long form."""
    return pytest.mark.parametrize(
        ("strike", "role"),
        [
            pytest.param(
                strike,
                role,
                id=f"{strike.__name__}-{role}".replace(" ", "-"),
                marks=pytest.mark.long,
            )
            for strike in chosen
            for role in Role
        ],
    )


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    running = Ensemble(tmp_path_factory.mktemp("zookeeper"), 1)
    yield running
    running.close()


@pytest.fixture(scope="module")
def three_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    running = Ensemble(tmp_path_factory.mktemp("ensemble"))
    yield running
    running.close()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[Network, Ensemble]]:
    with network.network() as made:
        place = network.launcher(made.zookeeper)
        servers = Ensemble(tmp_path / "zookeeper", 1, host=ZOOKEEPER, launcher=place)
        yield made, servers
        servers.close()


def one_run(
    directory: Path,
    zookeepers: Ensemble,
    brokers: Brokers,
    struck: Sequence[tuple[Strike, Role]],
    say: Say,
    *,
    factor: int = 1,
) -> None:
    """Strike brokers of some roles one after the other, and judge. All recover after each."""
    with brokers, stacks_kept(brokers):
        scene = Scene(directory, zookeepers, brokers, struck[0][1], run_seed(), factor=factor)
        try:
            for strike, role in struck:
                strikes.last(scene, 0.3)
                aimed = scene
                if role is not scene.role:
                    aimed = scene.aimed(role, scene.chance.randrange(2**32))
                strike(aimed)
                returned_at = time.monotonic()
                scene.until_complete()
                complete_s = time.monotonic() - returned_at
                left_s = COMPLETE_WITHIN_S - complete_s
                scene.workers.until_progress(int(1e9 * returned_at), left_s)
                work_s = time.monotonic() - returned_at
                figures = f"complete after {complete_s:.1f} s, all work after {work_s:.1f} s"
                say("figures", f"{strike.__name__} of {role}: {figures}")
            scene.end()
        finally:
            scene.close()
        say("figures", f"{judge(scene)}, replaced: {scene.workers.replaced}")
    check_replicas(scene)


@pytest.mark.timeout(300)
@every(*strikes.ON_ONE_HOST)
def test_broker_fails(
    one_server: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = Brokers(tmp_path, one_server.bootstrap, **settings_of(1))
    one_run(tmp_path, one_server, brokers, [(strike, role)] * LONG_STRIKES, record_property)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_zookeeper_restarts(one_server: Ensemble, tmp_path: Path, record_property: Say) -> None:
    brokers = Brokers(tmp_path, one_server.bootstrap, **settings_of(1))
    struck = [(strikes.restart_zookeeper, Role.LEADER)] * LONG_STRIKES
    one_run(tmp_path, one_server, brokers, struck, record_property)


@pytest.mark.timeout(300)
@every(strikes.lose_majority, strikes.kill_without_majority)
def test_zookeeper_loses_its_majority(
    three_servers: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = Brokers(tmp_path, three_servers.bootstrap, **settings_of(1))
    one_run(tmp_path, three_servers, brokers, [(strike, role)] * LONG_STRIKES, record_property)


@pytest.mark.timeout(300)
@every(*strikes.CUTS)
def test_network_is_cut(
    apart: tuple[Network, Ensemble],
    tmp_path: Path,
    record_property: Say,
    strike: Strike,
    role: Role,
) -> None:
    made, servers = apart
    brokers = BrokersApart(tmp_path, servers.bootstrap, made, **settings_of(1))
    one_run(tmp_path, servers, brokers, [(strike, role)] * LONG_STRIKES, record_property)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize(
    ("strike", "role"),
    [
        (strikes.kill, Role.TRANSACTIONS),
        (strikes.suspend, Role.CONTROLLER),
        (strikes.expire, Role.GROUPS),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_broker_fails_once(
    one_server: Ensemble,
    tmp_path: Path,
    record_property: Say,
    strike: Strike,
    role: Role,
    factor: int,
) -> None:
    brokers = Brokers(tmp_path, one_server.bootstrap, **settings_of(factor))
    one_run(tmp_path, one_server, brokers, [(strike, role)], record_property, factor=factor)


@pytest.mark.timeout(120)
def test_leader_is_cut_from_zookeeper_once(
    apart: tuple[Network, Ensemble], tmp_path: Path, record_property: Say
) -> None:
    made, servers = apart
    brokers = BrokersApart(tmp_path, servers.bootstrap, made, **settings_of(1))
    struck = [(strikes.cut_from_zookeeper, Role.LEADER)]
    one_run(tmp_path, servers, brokers, struck, record_property)
