"""A disk that fails one fdatasync and says nothing afterwards: what is acknowledged is there."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.crash import power_cut
from tests.crash.test_kill import read_all
from tests.servers import BrokerProcess

Option = TypeVar("Option")


class Worst(random.Random):
    """Has a power cut take every byte that is not synced."""

    def choice(self, seq: Sequence[Option]) -> Option:  # type: ignore[override]
        return seq[0]


def wait_for(broker: BrokerProcess, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in broker.log:
        assert time.monotonic() < deadline, f"not in the log: {words}\n{broker.log}"
        time.sleep(0.01)


@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(300)
def test_retry_acknowledged_after_a_failed_sync_outlives_a_power_cut(tmp_path: Path) -> None:
    """Linux takes pages that it could not write for clean: a second sync would lie."""
    journal = tmp_path / "journal"
    power_cut.restart_machine(journal)
    partition = tmp_path / "data0" / "t-0"
    broker = BrokerProcess(
        tmp_path,
        launcher=[sys.executable, "-m", "tests.crash.power_cut", str(journal)],
        environment={power_cut.FAIL_SYNC_BELOW: str(partition)},
    ).start()
    try:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=1)
        with Producer(broker.bootstrap) as producer:
            for n in range(3):
                producer.send("t", f"0-{n}".encode(), partition=0).result(60)
            os.kill(broker.pid, signal.SIGUSR1)
            wait_for(broker, "the next fdatasync below")
            retried = producer.send("t", b"0-3", partition=0)
            wait_for(broker, f"log directory {broker.log_dirs[0]} is offline")
            broker.kill()
            (path,) = partition.glob("*.log")
            power_cut.forget_unsynced(path, journal)
            broker.start()
            retried.result(60)
        broker.kill()
        (path,) = partition.glob("*.log")
        size = path.stat().st_size
        print(*power_cut.cut(broker.log_dirs, journal, Worst(0)), sep="\n")
        assert path.stat().st_size == size
        power_cut.restart_machine(journal)
        broker.start()
        assert read_all(broker.bootstrap, "t") == {0: ["0-0", "0-1", "0-2", "0-3"]}
        broker.stop()
    finally:
        broker.kill()
