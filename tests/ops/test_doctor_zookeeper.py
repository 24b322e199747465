"""What `plog doctor` finds at the ZooKeeper of a broker, and at a broker of several."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from plog.cli.move_store import command as move_store
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.ops.doctor.examination import examine, examine_client
from plog.ops.doctor.findings import Finding, Verdict
from tests.cluster.cutting_proxy import CuttingProxy
from tests.cluster.processes import SESSION_MS, Brokers
from tests.cluster.zookeepers import Ensemble
from tests.compat.live_kafka import ZooKeeper
from tests.ops.test_doctor import failures, settings, warnings
from tests.ops.test_doctor_running import of, properties_of
from tests.servers import BrokerProcess, free_port
from tests.waiting import until


@pytest.fixture(autouse=True)
def _any_disk_has_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk beneath the tests may be nearly full."""
    monkeypatch.setattr("plog.ops.doctor.findings.FREE_SHARE", 0)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.kill()


@pytest.fixture(scope="module")
def connect(zookeeper: ZooKeeper) -> str:
    return f"{zookeeper.bootstrap}/{uuid.uuid4()}"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, connect: str) -> BrokerProcess:
    """A broker that has run on the ZooKeeper."""
    directory = tmp_path_factory.mktemp("stopped")
    made = BrokerProcess(directory, overrides={"broker.id": 7, "zookeeper.connect": connect})
    with made:
        pass
    return made


def of_zookeeper(found: list[Finding]) -> list[tuple[Verdict, str]]:
    return [(one.verdict, one.text) for one in of(found, "zookeeper")]


def test_cluster_that_is_well_is_described(stopped: BrokerProcess, connect: str) -> None:
    server = connect.partition("/")[0]
    found = examine(properties_of(stopped))
    with closing(ZooKeeperStore(connect)) as store:
        cluster_id = store.get("/cluster/id")[0].decode().split('"')[-2]
    assert of_zookeeper(found) == [
        (Verdict.OK, f"server {server} answers (standalone)"),
        (Verdict.OK, f"cluster {cluster_id} has no broker at present"),
    ]
    assert failures(found) == []


def test_path_without_a_cluster_is_found(
    stopped: BrokerProcess, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    wrong = f"{zookeeper.bootstrap}/wrong"
    found = examine(properties_of(stopped, zookeeper_connect=wrong))
    (text,) = failures(found)
    assert text.startswith(f"no cluster is at {wrong}, but the log directories belong to ")
    first = examine(settings(tmp_path, zookeeper_connect=wrong))
    text = f"no cluster is at {wrong} yet: the first broker creates it"
    assert of_zookeeper(first)[1:] == [(Verdict.OK, text)]
    with closing(ZooKeeperStore(zookeeper.bootstrap)) as store:
        assert store.exists("/wrong") is None, "the doctor changes nothing"


def test_store_that_is_not_moved_yet_is_the_only_fault(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    alone = BrokerProcess(tmp_path, overrides={"broker.id": 7})
    with alone:
        pass
    target = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    found = examine(properties_of(alone, zookeeper_connect=target))
    (text,) = failures(found)
    assert text.endswith("is this broker's own store, but zookeeper.connect is set")
    text = f"no cluster is at {target} yet: plog move-store creates it"
    assert (Verdict.OK, text) in of_zookeeper(found)


def test_missing_zookeeper_connect_is_found(stopped: BrokerProcess, connect: str) -> None:
    path = Path(properties_of(stopped))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(one for one in lines if not one.startswith("zookeeper.connect=")))
    (fault,) = [one for one in examine(str(path)) if one.verdict is Verdict.FAILURE]
    assert fault.text.endswith("cluster on ZooKeeper, but zookeeper.connect is not set")
    assert fault.advice.startswith(f"set zookeeper.connect={connect}.")


def test_store_that_was_moved_is_found_as_a_start_finds_it(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    alone = BrokerProcess(tmp_path, overrides={"broker.id": 7})
    with alone:
        pass
    target = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    options = ["--zookeeper", target, "--execute", "--yes", properties_of(alone)]
    assert CliRunner().invoke(move_store, options).exit_code == 0
    (fault,) = [one for one in examine(properties_of(alone)) if one.verdict is Verdict.FAILURE]
    assert fault.what == "zookeeper"
    with pytest.raises(AssertionError, match=re.escape(f"{fault.text}: {fault.advice}")):
        alone.start()
    alone.kill()
    assert failures(examine(properties_of(alone, zookeeper_connect=target))) == []


def test_another_cluster_is_found(
    stopped: BrokerProcess, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    theirs = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    with BrokerProcess(tmp_path, overrides={"zookeeper.connect": theirs}):
        found = examine(properties_of(stopped, zookeeper_connect=theirs))
    (text,) = failures(found)
    assert text.startswith(f"{theirs} has cluster ")
    assert "but the log directories belong to " in text


@pytest.mark.parametrize("digest", ["plog:guess", None], ids=["wrong", "none"])
def test_wrong_digest_is_found(tmp_path: Path, zookeeper: ZooKeeper, digest: str | None) -> None:
    access = {"zookeeper.digest": "plog:secret", "zookeeper.set.acl": "true"}
    connect = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    broker = BrokerProcess(tmp_path, overrides={"zookeeper.connect": connect, **access})
    with broker:
        assert failures(examine(properties_of(broker))) == []
    if digest is None:
        broker.overrides |= {"zookeeper.set.acl": "false"}
        del broker.overrides["zookeeper.digest"]
    else:
        broker.overrides |= {"zookeeper.digest": digest}
    with closing(ZooKeeperStore(connect)) as store:
        before = store.get_many(store.descendants("/"))
        (fault,) = [one for one in examine(properties_of(broker)) if one.verdict is Verdict.FAILURE]
        assert store.get_many(store.descendants("/")) == before, "the doctor changes nothing"
    path = "/brokers/ids"
    assert fault.text == f"ZooKeeper refuses this broker access to {path}: check zookeeper.digest"
    assert fault.advice == "set the zookeeper.digest of the brokers that made the nodes"


def test_servers_that_do_not_answer_are_named(
    stopped: BrokerProcess, zookeeper: ZooKeeper, connect: str
) -> None:
    away = f"127.0.0.1:{free_port()}"
    path = connect.partition("/")[2]
    of_two = f"{zookeeper.bootstrap},{away}/{path}"
    found = examine(properties_of(stopped, zookeeper_connect=of_two))
    (text,) = warnings(found, "zookeeper")
    assert text.startswith(f"server {away} does not answer: ")
    assert failures(found) == []
    found = examine(properties_of(stopped, zookeeper_connect=f"{away}/{path}"))
    assert failures(found) == [f"no ZooKeeper answers at {away}/{path}"]


def test_lost_majority_is_found(tmp_path: Path) -> None:
    ensemble = Ensemble(tmp_path / "zookeepers")
    with closing(ensemble):
        given = settings(tmp_path, zookeeper_connect=ensemble.bootstrap)
        modes = [text.partition("(")[2] for _, text in of_zookeeper(examine(given))[:3]]
        assert sorted(modes) == ["follower)", "follower)", "leader)"]
        for number in (1, 2):
            ensemble.kill(number)
        left = f"127.0.0.1:{ensemble.ports[3]}"
        lost = f"server {left} runs, but does not serve: it has no majority of the servers"
        until(lambda: lost in warnings(examine(given), "zookeeper"), "it has seen that")
        found = examine(given)
        assert failures(found) == [f"no ZooKeeper answers at {ensemble.bootstrap}"]
        assert len(warnings(found, "zookeeper")) == 3


def test_running_broker_that_is_not_registered_is_found(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """The broker's way to ZooKeeper is cut, and its session ends; the doctor's is not."""
    proxy, path = CuttingProxy(zookeeper.port), uuid.uuid4()
    overrides = {
        "broker.id": 3,
        "zookeeper.connect": f"127.0.0.1:{proxy.port}/{path}",
        "zookeeper.session.timeout.ms": SESSION_MS,
    }
    connect = f"{zookeeper.bootstrap}/{path}"
    with BrokerProcess(tmp_path, overrides=overrides) as broker:
        given = properties_of(broker, zookeeper_connect=connect)
        assert failures(examine(given)) == []
        proxy.refuse()
        with closing(ZooKeeperStore(connect)) as store:
            until(lambda: store.children("/brokers/ids") == [], "its session has ended")
        text = "broker 3 is running, but not registered: its partitions have no leader"
        assert text in failures(examine(given))
        proxy.refuse(is_refusing=False)
        until(lambda: failures(examine(given)) == [], "it has registered again")


def test_each_broker_of_several_is_recognised(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with Brokers(tmp_path, zookeeper.bootstrap) as brokers:
        found = examine(properties_of(brokers[1]))
        assert failures(found) == []
        (reachable,) = of(found, "advertised")
        assert reachable.text.endswith(
            f"at {brokers[1].bootstrap} is reachable, and this broker answers"
        )
        assert any("broker 1 of cluster " in one.text for one in of(found, "broker"))
        # Another broker of the same cluster has taken the address that broker 1 advertises.
        given = properties_of(
            brokers[1],
            listeners=f"PLAINTEXT://{brokers[1].bootstrap},OTHER://{brokers[2].bootstrap}",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        )
        (text,) = failures(examine(given))
        assert text.startswith("broker 2 of cluster ")
        assert f"answers at OTHER://{brokers[2].bootstrap} instead of broker 1 of " in text
        found = examine_client(brokers[0].bootstrap)
        assert failures(found) == []
        assert len(of(found, "advertised")) == 3
