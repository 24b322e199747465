"""The three streams of `test_exactly_once`, while leads move on three brokers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.internal_replicas import TRANSACTIONS_TOPIC
from tests.agreement.harness import run_seed
from tests.cluster.processes import Brokers
from tests.cluster.replication.mover import COORDINATORS_TOO, SETTINGS, moving
from tests.compat.live_kafka import ZooKeeper
from tests.spark.marks import DEAR
from tests.spark.test_exactly_once import COUNTS, TOPICS, check, check_counts, fill, start_copying

pytestmark = DEAR

DRIVERS = 3
"""Spark gives up a query whose task has failed too often, and an operator starts it again."""


@pytest.fixture
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.kill()


@pytest.mark.timeout(600)
def test_each_record_is_there_once_while_leads_move(
    tmp_path: Path, zookeeper: ZooKeeper, workers_find_plog: dict[str, str]
) -> None:
    chance = random.Random(run_seed())
    with Brokers(tmp_path, zookeeper.bootstrap, **SETTINGS, **COORDINATORS_TOO) as brokers:
        fill(brokers.bootstrap)
        moved = [*TOPICS[1:], TOPICS[0], TRANSACTIONS_TOPIC]
        with moving(brokers, moved, chance):
            for _ in range(DRIVERS):
                driver = start_copying(brokers.bootstrap, tmp_path, workers_find_plog)
                try:
                    if driver.ended_well():
                        break
                finally:
                    driver.kill()
            else:
                raise AssertionError(driver.log)
        check(brokers.bootstrap)
        for topic in COUNTS:
            check_counts(brokers.bootstrap, topic)
