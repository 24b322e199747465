"""A leader that restarts before it is missed leads no further in its old epoch.

What its host lost with the power others may have copied: it would write other records at the same
offsets in the same epoch, and epochs would not tell them apart.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from plog.client.producer import Producer
from tests.cluster.faults.power import BrokersOnDisks, journal_of
from tests.compat.live_kafka import ZooKeeper
from tests.crash import power_cut
from tests.servers import BrokerProcess

from .live import EVERY, create, log_of, until_equal, until_in_sync

TOPIC = "t"
SLOW = "slow-disk"
LAUNCH = f"""
import sys
from pathlib import Path
from plog._native import faults
from plog.cli import main
from tests.crash.power_cut import record_names
journal = Path(sys.argv[1])
if journal.with_name("{SLOW}").exists():
    syncs = str(journal.with_name("data0") / "{TOPIC}-")
    faults.inject([faults.Fault("fdatasync", delay_us=100_000_000, path_prefix=syncs)])
faults.record_durability(str(journal))
record_names(journal)
main(["server", *sys.argv[2:]])
"""


class SlowDisks(BrokersOnDisks):
    """Brokers that began with a file `SLOW` never come to an end with syncing `TOPIC`."""

    def _process(self, place: Path, overrides: dict[str, object]) -> BrokerProcess:
        journal = journal_of(place)
        power_cut.restart_machine(journal)
        launcher = [sys.executable, "-c", LAUNCH, str(journal)]
        return BrokerProcess(place, overrides=overrides, launcher=launcher)


class FirstOfAll(random.Random):
    """Always the first of several ways: bytes that were not synced are cut off."""

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]


def produce(bootstrap: str, values: range) -> None:
    """Write values that the leader alone acknowledges."""
    with Producer(bootstrap, acks="1", enable_idempotence=False) as producer:
        sent = [producer.send(TOPIC, str(number).encode(), partition=0) for number in values]
        producer.flush()
        for one in sent:
            one.result(0)


def lose_power(broker: BrokerProcess) -> None:
    broker.kill()
    for _ in power_cut.cut(broker.log_dirs, journal_of(broker.directory), FirstOfAll(1)):
        pass
    power_cut.restart_machine(journal_of(broker.directory))


def test_leader_without_its_end_leads_in_a_new_epoch(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    brokers = SlowDisks(tmp_path, zookeeper.bootstrap)
    leader, *others = EVERY
    slow = brokers[leader].directory / SLOW
    slow.touch()
    brokers[leader].start()
    with brokers:
        assert brokers.controller == leader, "no other broker sees it come back"
        create(brokers, TOPIC)
        produce(brokers[leader].bootstrap, range(20))
        until_equal(brokers, TOPIC)
        slow.unlink()
        with ExitStack() as suspended:
            for one in others:
                suspended.enter_context(brokers[one].suspended())
            lose_power(brokers[leader])
            assert not log_of(brokers, leader, TOPIC)
            brokers[leader].start()
            produce(brokers[leader].bootstrap, range(20, 60))
        until_in_sync(brokers, TOPIC, EVERY)
        until_equal(brokers, TOPIC)
