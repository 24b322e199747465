"""A broker whose disk is full: it starts, serves what is there, and goes on with the space."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.errors import LeaderNotAvailable
from plog.types import TopicPartition
from tests.servers import BrokerProcess

TIMEOUT_S = 90
FILLER = "filler"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB; what must also be seen without one is tested at the store."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    """Take every free byte."""
    with (disk / FILLER).open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_broker_starts_on_a_full_disk_and_goes_on_when_there_is_space(
    small_disk: Path, end: str
) -> None:
    broker = BrokerProcess(small_disk.parent, overrides={"log.dirs": small_disk})
    try:
        broker.start()
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
        with Producer(broker.bootstrap) as producer:
            producer.send("t", b"before").result(TIMEOUT_S)
        for _ in range(3):
            fill(small_disk)
            getattr(broker, end)()
            fill(small_disk)
            broker.start()
        assert os.statvfs(small_disk).f_bavail < 64
        with Consumer(broker.bootstrap) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            (small_disk / FILLER).unlink()
            if "no space to recover it" in broker.log:
                broker.stop()
                broker.start()
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    consumer.seek_to_beginning()
                    break
                except LeaderNotAvailable:  # its epoch could not be written down
                    assert time.monotonic() < deadline, broker.log
                    time.sleep(0.1)
            assert [one.value for one in consumer.poll(TIMEOUT_S * 1000)] == [b"before"]
        with Producer(broker.bootstrap) as producer:
            assert producer.send("t", b"after").result(TIMEOUT_S).offset == 1
        broker.stop()
    finally:
        broker.kill()
