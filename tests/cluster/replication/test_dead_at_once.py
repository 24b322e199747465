"""Brokers that die at once, and are missed one after another: any of them may lead again."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper

from .live import EVERY, create, produce, read, until_led_by

CONTROLLER = 3


def test_first_that_was_missed_leads_once_it_is_back(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, zookeeper.bootstrap, 4)
    brokers[CONTROLLER].start()
    with brokers:
        assert brokers.controller == CONTROLLER
        create(brokers, "t")
        produce(brokers, "t", range(100))
        for one in EVERY:
            brokers[one].kill()
        for one in EVERY:
            brokers.lose(one)
            left = {CONTROLLER, *range(one + 1, CONTROLLER)}
            brokers.all_until(
                lambda admin, left=left: {node.node_id for node in admin.nodes()} == left
            )
        until_led_by(brokers, "t", -1)
        brokers[0].start()
        until_led_by(brokers, "t", 0)
        assert read(brokers, "t", 100) == list(range(100))
