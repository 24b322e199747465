"""Commands that take PROPERTIES, on the host of a broker whose cluster is on ZooKeeper.

Each works, or says in one line why it does not. None changes what the broker needs to start.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest

from plog.cli import plog
from plog.client.admin import Admin
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import ErrorCode
from tests.cli.conftest import TIMEOUT_S, command_line
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import create_topic, make_batch, produce, speak
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

SHORT_WAIT_MS = 1_000


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.kill()


@pytest.fixture
def broker(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[BrokerProcess]:
    """A broker with a topic and two log directories, which has run."""
    overrides = {"broker.id": 5, "zookeeper.connect": f"{zookeeper.bootstrap}/{uuid.uuid4()}"}
    made = BrokerProcess(tmp_path, overrides=overrides, log_dirs=2)
    with made, closing(speak(made.port)) as client:
        create_topic(client, "t", 4)
        for partition in range(4):
            written = produce(client, "t", make_batch(), partition=partition)
            assert written.error_code == ErrorCode.NONE
    yield made
    made.kill()


def run(
    broker: BrokerProcess, command: str, *options: object, status: int = 0
) -> subprocess.CompletedProcess[str]:
    path = broker.directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    done = subprocess.run(
        command_line(command, *options, path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def refusal(broker: BrokerProcess, command: str, *options: object) -> str:
    """Return the one line with which a command refuses."""
    (line,) = run(broker, command, *options, status=1).stderr.splitlines()
    return line


def connect_of(broker: BrokerProcess) -> str:
    return str(broker.overrides["zookeeper.connect"])


def files_of(broker: BrokerProcess) -> set[Path]:
    return {found for log_dir in broker.log_dirs for found in log_dir.iterdir()}


def leaders_of(admin: Admin) -> list[int]:
    return sorted(one.leader_id for one in admin.topic("t").partitions.values())


def takers() -> set[str]:
    """Return the commands that take PROPERTIES."""
    return {
        name
        for name in plog.list_commands(click.Context(plog))
        if (found := plog.get_command(click.Context(plog), name)) is not None
        if "properties" in {parameter.name for parameter in found.params}
    }


def test_every_command_that_takes_properties_is_tested_here() -> None:
    assert takers() == {
        *("adopt", "bundle", "doctor", "health", "log-dirs", "move-store"),
        "server",  # tests/cluster
    }


def test_commands_beside_a_running_broker(broker: BrokerProcess) -> None:
    with broker:
        assert run(broker, "health").stdout
        assert run(broker, "doctor").stdout
        output = broker.directory / "bundle.tar.gz"
        assert "Wrote" in run(broker, "bundle", "--output", output).stdout
        for options in (["log-dirs"], ["move-store", "--zookeeper", f"{connect_of(broker)}-new"]):
            assert "is in use" in refusal(broker, *options)


def test_commands_beside_a_stopped_broker(broker: BrokerProcess) -> None:
    before = files_of(broker)
    assert "cannot connect" in refusal(broker, "health")
    assert "0 failures" in run(broker, "doctor").stdout
    output = broker.directory / "bundle.tar.gz"
    assert "Wrote" in run(broker, "bundle", "--output", output).stdout
    elsewhere = f"{connect_of(broker)}-new"
    said = refusal(broker, "move-store", "--zookeeper", elsewhere)
    assert said.endswith("or it was in a cluster already")
    for options in ([], ["--give-back", "--yes"]):
        said = refusal(broker, "adopt", "--zookeeper", connect_of(broker), *options)
        assert "zookeeper.connect is set, but only a broker that runs alone can" in said
    rows = json.loads(run(broker, "log-dirs", "--json").stdout)
    there = [(str(log_dir), "there") for log_dir in broker.log_dirs]
    assert [(row["path"], row["state"]) for row in rows] == there
    assert files_of(broker) == before
    with broker, Admin(broker.bootstrap) as admin:
        until(lambda: leaders_of(admin) == [5, 5, 5, 5], "all are led")


def test_commands_without_zookeeper(broker: BrokerProcess) -> None:
    away = f"127.0.0.1:{free_port()}/plog"
    broker.overrides |= {
        "zookeeper.connect": away,
        "zookeeper.connection.timeout.ms": SHORT_WAIT_MS,
    }
    no_answer = f"no ZooKeeper answers at {away}"
    assert no_answer in refusal(broker, "log-dirs")
    assert no_answer in run(broker, "doctor", status=1).stdout
    assert "Wrote" in run(broker, "bundle", "--output", broker.directory / "b.tar.gz").stdout
    assert no_answer in run(broker, "server", status=1).stderr


def test_directories_of_another_cluster_are_refused(
    broker: BrokerProcess, zookeeper: ZooKeeper
) -> None:
    broker.overrides["zookeeper.connect"] = f"{zookeeper.bootstrap}/none"
    assert refusal(broker, "log-dirs").endswith(f"ZooKeeper at {zookeeper.bootstrap}/none has none")
    assert "none has no cluster" in run(broker, "server", status=1).stderr
    with closing(ZooKeeperStore(zookeeper.bootstrap)) as store:
        assert store.exists("/none") is None


def test_store_of_its_own_is_refused(broker: BrokerProcess) -> None:
    (broker.log_dirs[0] / FILE_NAME).touch()
    assert "Run plog move-store first" in refusal(broker, "log-dirs")
    assert "is this broker's own store" in run(broker, "doctor", status=1).stdout


def test_disk_that_is_not_mounted_is_missed_and_can_be_forgotten(broker: BrokerProcess) -> None:
    """The empty directory in its place is not used: a disk mounted there would hide its files."""
    lost = broker.log_dirs[1]
    aside = lost.with_name("aside")
    lost.rename(aside)
    lost.mkdir()
    rows = json.loads(run(broker, "log-dirs", "--json").stdout)
    assert [row["state"] for row in rows] == ["there", "not mounted"]
    directory_id = rows[1]["id"]
    assert f"plog log-dirs --forget {directory_id}" in run(broker, "doctor", status=1).stdout
    with broker, Admin(broker.bootstrap) as admin:
        until(lambda: leaders_of(admin) == [-1, -1, 5, 5], "two partitions are offline")
        assert list(lost.iterdir()) == []
    lost.rmdir()
    aside.rename(lost)
    with broker, Admin(broker.bootstrap) as admin:
        until(lambda: leaders_of(admin) == [5, 5, 5, 5], "all are led")
    shutil.rmtree(lost)
    lost.mkdir()
    run(broker, "log-dirs", "--yes", "--forget", directory_id)
    with broker, Admin(broker.bootstrap) as admin:
        until(lambda: leaders_of(admin) == [5, 5, 5, 5], "all are led")
