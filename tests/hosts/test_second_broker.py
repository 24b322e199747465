"""Brokers that are started on another's log directory, or on its port, while it serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plog.client.admin import Admin
from tests.crash.writer import Writer
from tests.hosts.host import MIB, MemoryBounded, read_all
from tests.servers import BrokerProcess

TIMES = 3


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("what", ["log directory", "port"])
def test_refused_starts_disturb_nobody(
    tmp_path: Path, what: str, memory_bounded: MemoryBounded
) -> None:
    with (
        BrokerProcess(tmp_path) as broker,
        memory_bounded(broker, f"a {what} in use", 32 * MIB),
    ):
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=1)
        given: dict[str, object] = {"log.dirs": tmp_path / "own", "broker.id": 7}
        if what == "port":
            given["listeners"] = broker.overrides["listeners"]
            told = f"plog: listener PLAINTEXT: cannot listen on {broker.bootstrap}: Address already"
        else:
            given |= {"log.dirs": broker.log_dirs[0], "listeners": "PLAINTEXT://127.0.0.1:0"}
            told = f"plog: log directory {broker.log_dirs[0]} is in use by another broker process"
        command = [sys.executable, "-m", "plog", "server"]
        for key, value in given.items():
            command += ["--override", f"{key}={value}"]
        with Writer(broker.bootstrap, "t", 1, pause_s=0.01) as writer:
            for _ in range(TIMES):
                writer.wait_for_more(20)
                ended = subprocess.run(
                    command, capture_output=True, text=True, timeout=60, check=False
                )
                assert ended.returncode == 1, ended.stderr
                (line,) = ended.stderr.splitlines()
                assert line.startswith(told)
                writer.wait_for_more(20)
            writer.stop()
            assert set(writer.acknowledged[0]) <= set(read_all(broker, "t"))
            assert writer.total_acknowledged >= 2 * TIMES * 20
