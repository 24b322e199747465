"""Topics with three replicas: whatever happens to brokers, nothing acknowledged is lost.

Loads and judgement are those of `test_faults`. In addition, hosts lose their power.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble

from . import power, strikes
from .network import BrokersApart, Network
from .power import BrokersOnDisks
from .scene import Role, settings_of
from .strikes import Strike
from .test_faults import Say, apart, every, one_run, one_server, three_servers

__all__ = ["apart", "one_server", "three_servers"]

FACTOR = 3
LONG_STRIKES = 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("strike", "role"),
    [
        (strikes.kill, Role.LEADER),
        (strikes.suspend, Role.GROUPS),
        (power.one_host, Role.LEADER),
        (power.all_hosts, Role.CONTROLLER),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_nothing_is_lost_once(
    one_server: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = BrokersOnDisks(tmp_path, one_server.bootstrap, **settings_of(FACTOR))
    one_run(tmp_path, one_server, brokers, strike, role, record_property, factor=FACTOR)


@pytest.mark.timeout(300)
@every(*strikes.ON_ONE_HOST, power.one_host, power.two_hosts, power.all_hosts)
def test_nothing_is_lost(
    one_server: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = BrokersOnDisks(tmp_path, one_server.bootstrap, **settings_of(FACTOR))
    one_run(
        tmp_path, one_server, brokers, strike, role, record_property, times=LONG_STRIKES,
        factor=FACTOR,
    )  # fmt: skip


@pytest.mark.timeout(300)
@every(*strikes.WITHOUT_ZOOKEEPER)
def test_nothing_is_lost_without_zookeeper(
    three_servers: Ensemble, tmp_path: Path, record_property: Say, strike: Strike, role: Role
) -> None:
    brokers = Brokers(tmp_path, three_servers.bootstrap, **settings_of(FACTOR))
    one_run(
        tmp_path, three_servers, brokers, strike, role, record_property, times=LONG_STRIKES,
        factor=FACTOR,
    )  # fmt: skip


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
    one_run(
        tmp_path, servers, brokers, strike, role, record_property, times=LONG_STRIKES,
        factor=FACTOR,
    )  # fmt: skip
