"""A broker of a cluster starts without `zookeeper.connect`: its log directories know better."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from plog.cli.log_dirs import command as log_dirs
from plog.cli.move_store import command as move_store
from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.cluster.shared_store_mark import MARK_FILE, check_not_shared, mark_shared
from plog.cluster.store_copy import FILE_NAME
from plog.errors import InconsistentLogDirs
from plog.storage.filesystem import Filesystem
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.servers import BrokerProcess

CONNECT = "zk-1.example:2181,zk-2.example:2181/plog"
COUNT = 30


def values_of(bootstrap: str) -> set[int]:
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for("t"))
        found: set[int] = set()
        while len(found) < COUNT:
            found |= {int(record.value or b"") for record in consumer.poll(10_000)}
    return found


def test_broker_of_a_cluster_does_not_start_alone(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with Brokers(tmp_path, zookeeper.bootstrap, count=2) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic("t", partitions=4)
        brokers.all_until(lambda admin: "t" in admin.topics())
        with Producer(brokers.bootstrap) as producer:
            for number in range(COUNT):
                producer.send("t", str(number).encode(), partition=number % 4)
        one = brokers[1]
        one.stop()
        del one.overrides["zookeeper.connect"]
        before = sorted(one.log_dirs[0].iterdir())
        with pytest.raises(AssertionError, match=f"set zookeeper.connect={brokers.connect}"):
            one.start()
        one.kill()
        assert sorted(one.log_dirs[0].iterdir()) == before
        one.overrides["zookeeper.connect"] = brokers.connect
        one.start()
        brokers.until_known()
        assert values_of(brokers.bootstrap) == set(range(COUNT))


def test_copies_without_the_mark_start_alone(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    (tmp_path / "cluster").mkdir()
    with Brokers(tmp_path / "cluster", zookeeper.bootstrap, count=1) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic("t")
        with Producer(brokers.bootstrap) as producer:
            for number in range(COUNT):
                producer.send("t", str(number).encode())
    (tmp_path / "alone").mkdir()
    alone = BrokerProcess(tmp_path / "alone")
    shutil.copytree(brokers[0].log_dirs[0], alone.log_dirs[0])
    with pytest.raises(AssertionError, match="lost for good"):
        alone.start()
    alone.kill()
    (alone.log_dirs[0] / MARK_FILE).unlink()
    with alone:
        assert values_of(alone.bootstrap) == set(range(COUNT))


def test_broker_that_ran_alone_returns_as_the_errors_say(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    with Brokers(tmp_path, zookeeper.bootstrap, count=1) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic("t")
        with Producer(brokers.bootstrap) as producer:
            for number in range(COUNT):
                producer.send("t", str(number).encode())
    one = brokers[0]
    (one.log_dirs[0] / MARK_FILE).unlink()
    del one.overrides["zookeeper.connect"]
    with one:
        pass
    properties = tmp_path / "alone.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in one.overrides.items()))
    one.overrides["zookeeper.connect"] = brokers.connect
    with pytest.raises(AssertionError, match="Run plog move-store"):
        one.start()
    one.kill()
    refused = CliRunner().invoke(move_store, ["--zookeeper", brokers.connect, str(properties)])
    text = str(refused.exception)
    assert "this broker belongs to it" in text
    assert f"move {FILE_NAME}* out of each log directory" in text
    assert text.endswith("set zookeeper.connect and start the broker")
    for path in one.log_dirs[0].glob(f"{FILE_NAME}*"):
        path.unlink()
    with one:
        assert values_of(one.bootstrap) == set(range(COUNT))


class Writes(Filesystem):
    """Counts the files that are replaced, or has no space for them."""

    def __init__(self, fault: int | None = None) -> None:
        super().__init__()
        self.fault, self.replaced = fault, 0

    def replace_bytes(self, path: Path, data: bytes) -> None:
        if self.fault is not None:
            raise OSError(self.fault, "fault")
        self.replaced += 1
        super().replace_bytes(path, data)


def test_mark_is_written_once_and_follows_the_setting(tmp_path: Path) -> None:
    fs = Writes()
    check_not_shared(fs, [tmp_path])
    for connect in (CONNECT, CONNECT, "zk-3.example:2181/plog"):
        mark_shared(fs, [tmp_path], connect)
        with pytest.raises(InconsistentLogDirs, match=f"set zookeeper.connect={connect}"):
            check_not_shared(fs, [tmp_path])
    assert fs.replaced == 2


@pytest.mark.parametrize("options", [(), ("--forget", "/gone", "--yes")], ids=["list", "forget"])
def test_log_dirs_of_a_cluster_are_not_a_lone_brokers(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\n")
    mark_shared(Filesystem(), [tmp_path], CONNECT)
    properties = tmp_path / "server.properties"
    properties.write_text(f"broker.id=1\nlog.dirs={tmp_path}\n")
    refused = CliRunner().invoke(log_dirs, [*options, str(properties)])
    assert f"set zookeeper.connect={CONNECT}" in str(refused.exception)


def test_one_marked_directory_is_enough(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    mark_shared(Filesystem(), paths[1:], CONNECT)
    with pytest.raises(InconsistentLogDirs, match=str(paths[1])):
        check_not_shared(Filesystem(), paths)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"nothing\n"])
def test_damaged_mark_is_a_mark(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MARK_FILE).write_bytes(data)
    with pytest.raises(InconsistentLogDirs, match="connect again"):
        check_not_shared(Filesystem(), [tmp_path])
    mark_shared(Filesystem(), [tmp_path], CONNECT)
    with pytest.raises(InconsistentLogDirs, match=f"set zookeeper.connect={CONNECT}"):
        check_not_shared(Filesystem(), [tmp_path])


def test_full_disk_gets_its_mark_at_a_later_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark_shared(Writes(errno.ENOSPC), [tmp_path], CONNECT)
    assert f"cannot write {tmp_path / MARK_FILE}" in caplog.text
    mark_shared(Writes(), [tmp_path], CONNECT)
    assert (tmp_path / MARK_FILE).exists()
