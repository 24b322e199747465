"""A broker of a cluster starts without its disks: their topics are offline and stay as they are."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from plog.cli.log_dirs import command as log_dirs
from plog.client.admin import Admin
from plog.errors import ErrorCode
from tests.broker.test_lost_replicas import partition_state
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import create_topic, make_batch, produce, speak
from tests.hosts.host import read_all, wait_until
from tests.servers import BrokerProcess

AWAY = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [0])


@pytest.fixture
def broker(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[BrokerProcess]:
    """A stopped broker with a topic on each of its disks."""
    connect = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    made = BrokerProcess(
        tmp_path, log_dirs=2, overrides={"broker.id": 0, "zookeeper.connect": connect}
    )
    with made, closing(speak(made.port)) as client:
        for name in ("gone", "kept"):
            create_topic(client, name)
            assert produce(client, name, make_batch([b"before"])).error_code == ErrorCode.NONE
    for path, name in zip(made.log_dirs, ("gone", "kept"), strict=True):
        assert (path / f"{name}-0").is_dir()
    yield made
    made.kill()


@pytest.mark.parametrize("is_mount_point", [False, True], ids=["no directory", "empty directory"])
def test_disk_that_is_not_mounted_takes_its_topics_away_until_it_is_back(
    broker: BrokerProcess, tmp_path: Path, is_mount_point: bool
) -> None:
    disk, elsewhere = broker.log_dirs[0], tmp_path / "elsewhere"
    for _ in range(2):
        disk.rename(elsewhere)
        if is_mount_point:
            disk.mkdir()
        with broker, Admin(broker.bootstrap) as admin, closing(speak(broker.port)) as client:
            wait_until(lambda: partition_state(client, "gone") == AWAY, "leaderless", broker)
            assert read_all(broker, "kept") == ["before"]
            admin.create_topic("new", partitions=3)
            assert all((broker.log_dirs[1] / f"new-{n}").is_dir() for n in range(3))
            admin.delete_topic("new")
        assert not (broker.log_dirs[1] / "gone-0").exists()
        if disk.exists():
            disk.rmdir()
        elsewhere.rename(disk)
        with broker:
            assert read_all(broker, "gone") == read_all(broker, "kept") == ["before"]
        assert not [path.name for path in disk.iterdir() if path.name.endswith("-stray")]


def test_broker_without_any_of_its_disks_does_not_start(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    for disk in broker.log_dirs:
        disk.rename(tmp_path / f"{disk.name}-elsewhere")
        disk.mkdir()
    with suppress(AssertionError):  # it ends before it listens
        broker.start()
    assert broker.wait() == 1
    assert (
        "the log directories are empty, but broker 0 has partitions in this cluster" in broker.log
    )
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    listed = CliRunner().invoke(log_dirs, [str(properties)])
    assert listed.output.count("not mounted") == 2, listed.output
    for disk in broker.log_dirs:
        assert {path.name for path in disk.iterdir()} <= {".lock"}
        shutil.rmtree(disk)
        (tmp_path / f"{disk.name}-elsewhere").rename(disk)
    with broker:
        assert read_all(broker, "gone") == read_all(broker, "kept") == ["before"]


def test_lost_disks_are_forgotten_and_new_ones_take_their_places(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    for disk in broker.log_dirs:
        shutil.rmtree(disk)
        disk.mkdir()
    for disk in broker.log_dirs:
        done = CliRunner().invoke(log_dirs, ["--forget", str(disk), "--yes", str(properties)])
        assert done.exit_code == 0, (done.output, done.exception)
    with broker, closing(speak(broker.port)) as client:
        wait_until(lambda: partition_state(client, "gone")[1] == 0, "led again", broker)
        assert read_all(broker, "gone") == []


def test_new_host_takes_the_place_of_one_without_partitions(broker: BrokerProcess) -> None:
    with broker, Admin(broker.bootstrap) as admin:
        for topic in admin.topics():
            admin.delete_topic(topic)
    for disk in broker.log_dirs:
        shutil.rmtree(disk)
    with broker, closing(speak(broker.port)) as client:
        create_topic(client, "next")
        assert produce(client, "next", make_batch([b"v"])).error_code == ErrorCode.NONE
        assert "is not in log.dirs" not in broker.log
