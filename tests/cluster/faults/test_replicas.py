"""Topics with three replicas: whatever happens to brokers, nothing acknowledged is lost.

Loads and judgement are those of `test_faults`. In addition, hosts lose their power, and partitions
move or brokers restart in turn meanwhile. `bin/chaos` has all of it in an order that a seed draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble

from . import planned, power, strikes
from .network import BrokersApart, Network
from .planned import reassign_during, rolling_restart_during
from .power import BrokersApartOnDisks, BrokersOnDisks
from .scene import Role, settings_of
from .strikes import Strike
from .test_faults import Say, apart, every, one_run, one_server, three_servers

__all__ = ["apart", "one_server", "three_servers"]

FACTOR = 3
LONG_STRIKES = 3
PLANNED = (
    *(planned.reassign, planned.rolling_restart, planned.elect_preferred),
    *(
        during(strike)
        for during in (reassign_during, rolling_restart_during)
        for strike in (strikes.kill, strikes.suspend, power.lose_power)
    ),
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "struck",
    [
        pytest.param(
            [
                (strikes.kill, Role.LEADER),
                (strikes.suspend, Role.GROUPS),
                (power.lose_power, Role.PLAIN),
            ],
            id="one-broker",
        ),
        pytest.param(
            [(power.two_lose_power, Role.LEADER), (power.all_lose_power, Role.CONTROLLER)],
            id="several-hosts",
        ),
        pytest.param(
            [
                (reassign_during(strikes.kill), Role.TRANSACTIONS),
                (rolling_restart_during(strikes.kill), Role.CONTROLLER),
            ],
            id="planned-work",
        ),
    ],
)
def test_nothing_is_lost_once(
    one_server: Ensemble,
    tmp_path: Path,
    record_property: Say,
    struck: Sequence[tuple[Strike, Role]],
) -> None:
    brokers = BrokersOnDisks(tmp_path, one_server.bootstrap, **settings_of(FACTOR))
    one_run(tmp_path, one_server, brokers, struck, record_property, factor=FACTOR)


@pytest.mark.timeout(180)
def test_nothing_is_lost_by_a_cut_once(
    apart: tuple[Network, Ensemble], tmp_path: Path, record_property: Say
) -> None:
    made, servers = apart
    brokers = BrokersApartOnDisks(tmp_path, servers.bootstrap, made, **settings_of(FACTOR))
    struck = [
        (strikes.cut_off, Role.LEADER),
        (strikes.cut_from_zookeeper, Role.TRANSACTIONS),
        (strikes.cut_from_brokers, Role.PLAIN),
        (strikes.mute, Role.GROUPS),
        (strikes.deafen, Role.LEADER),
    ]
    one_run(tmp_path, servers, brokers, struck, record_property, factor=FACTOR)


@pytest.mark.timeout(600)
@every(*strikes.ON_ONE_HOST, power.lose_power, power.two_lose_power, power.all_lose_power, *PLANNED)
def test_nothing_is_lost(
    one_server: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = BrokersOnDisks(tmp_path, one_server.bootstrap, **settings_of(FACTOR))
    struck = [(strike, role)] * LONG_STRIKES
    one_run(tmp_path, one_server, brokers, struck, record_property, factor=FACTOR)


@pytest.mark.timeout(300)
@every(*strikes.WITHOUT_ZOOKEEPER)
def test_nothing_is_lost_without_zookeeper(
    three_servers: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = Brokers(tmp_path, three_servers.bootstrap, **settings_of(FACTOR))
    struck = [(strike, role)] * LONG_STRIKES
    one_run(tmp_path, three_servers, brokers, struck, record_property, factor=FACTOR)


@pytest.mark.timeout(300)
@every(*strikes.CUTS)
def test_nothing_is_lost_by_cuts(
    apart: tuple[Network, Ensemble],
    tmp_path: Path,
    record_property: Say,
    strike: Strike,
    role: Role,
) -> None:
    made, servers = apart
    brokers = BrokersApart(tmp_path, servers.bootstrap, made, **settings_of(FACTOR))
    struck = [(strike, role)] * LONG_STRIKES
    one_run(tmp_path, servers, brokers, struck, record_property, factor=FACTOR)
