"""A copy of ZooKeeper's data is put back, and the cluster has gone on since it was made."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.cluster.zookeepers import Ensemble
from tests.hosts.host import read_all
from tests.servers import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path, own_zookeeper: Ensemble) -> Iterator[BrokerProcess]:
    connect = f"{own_zookeeper.bootstrap}/{uuid.uuid4()}"
    made = BrokerProcess(tmp_path, overrides={"broker.id": 0, "zookeeper.connect": connect})
    yield made
    made.kill()


def write(broker: BrokerProcess, topic: str, value: str) -> None:
    """Write a record as a new idempotent producer."""
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, value.encode(), partition=0)


def test_older_copy_loses_later_topics_but_no_records(
    broker: BrokerProcess, own_zookeeper: Ensemble, tmp_path: Path
) -> None:
    data, copy = tmp_path / "zookeeper" / "1" / "version-2", tmp_path / "copy"
    with broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t")
        write(broker, "t", "before")
    own_zookeeper.kill(1)
    shutil.copytree(data, copy)
    own_zookeeper.start(1)
    with broker, Admin(broker.bootstrap) as admin:
        write(broker, "t", "after")
        admin.create_topic("later")
        write(broker, "later", "of a later topic")
    own_zookeeper.kill(1)
    shutil.rmtree(data)
    copy.rename(data)
    own_zookeeper.start(1)
    with broker, Admin(broker.bootstrap) as admin:
        assert "later" not in admin.topics()
        # A producer id that was given out again would make this a duplicate of the record before.
        write(broker, "t", "restored")
        assert read_all(broker, "t") == ["before", "after", "restored"]
    (aside,) = broker.log_dirs[0].glob("later-0.*-stray")
    assert (aside / f"{0:020}.log").stat().st_size > 0
