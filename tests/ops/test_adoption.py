"""What `plog adopt` refuses and leaves alone; tests/compat shows what it carries."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from plog.client.admin import SET, TOPIC, Admin
from plog.cluster import znodes
from plog.cluster.adoption_state import share
from plog.cluster.shared_store_mark import MARK_FILE, mark_shared
from plog.cluster.store import Store
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.store_move import MOVED_SUFFIX
from plog.cluster.znodes import ProducerIdBlock, TopicNode
from plog.errors import InconsistentLogDirs, PlogError
from plog.ops.adoption import AdoptionError, Carried, adopt, give_back
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import is_locked
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import eventually, speak
from tests.servers import BrokerProcess, free_port

OTHERS = "on-another-broker"
NOBODY = 65534


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


_numbers = itertools.count()


@pytest.fixture
def zookeeper(server: ZooKeeper) -> Iterator[str]:
    """A ZooKeeper of one's own: a chroot."""
    chroot = f"/test{next(_numbers)}"
    with server.client() as client:
        client.ensure_path(chroot)
    return f"127.0.0.1:{server.port}{chroot}"


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """A broker that is stopped, with the topics `kept` and `gone`."""
    broker = BrokerProcess(tmp_path, overrides={"broker.id": 0})
    with broker, Admin(broker.bootstrap) as admin:
        for topic in ("kept", "gone"):
            admin.create_topic(topic, partitions=2, configs={"retention.ms": "7000000"})
    return broker


def settings_of(broker: BrokerProcess) -> BrokerSettings:
    return BrokerSettings({"log.dirs": str(broker.log_dirs[0]), "broker.id": "0"})


def forget(broker: BrokerProcess) -> None:
    """Take the store away: what is left is what Kafka's directories hold."""
    for path in broker.log_dirs[0].glob("plog-store*"):
        path.unlink()


def remarks(carried: list[Carried]) -> dict[str, str]:
    return {one.topic: one.remark for one in carried}


class Nodes:
    """What a ZooKeeper holds."""

    def __init__(self, zookeeper: str) -> None:
        self.client = KazooClient(zookeeper)

    def __enter__(self) -> KazooClient:
        self.client.start(60)
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.stop()
        self.client.close()


def add_topic_of_others(zookeeper: str) -> None:
    with Nodes(zookeeper) as nodes:
        other = TopicNode(partitions={0: (7,)}, topic_id=None)
        nodes.create(znodes.topic_path(OTHERS), other.encode())


def set_config(zookeeper: str, topic: str, **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    with Nodes(zookeeper) as nodes:
        nodes.set(f"/config/topics/{topic}", znodes.encode_config(named))


def config_of(broker: BrokerProcess, topic: str, name: str) -> str | None:
    with Admin(broker.bootstrap) as admin:
        (entry,) = admin.describe_configs(TOPIC, topic, [name])
        return entry.value


def test_nobody_answers(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plog.ops.adoption.CONNECT_TIMEOUT_S", 1.0)
    with pytest.raises(AdoptionError, match="no response from ZooKeeper at"):
        adopt(settings_of(broker), f"127.0.0.1:{free_port()}")


ADOPT = """
import sys
from plog.ops import adoption
adoption.CONNECT_TIMEOUT_S = 3.0
from plog.cli import main
main(["adopt", "--zookeeper", *sys.argv[1:]])
"""


def line_of_adopt(broker: BrokerProcess, zookeeper: str) -> str:
    """Return all that the command says, which is to be one line."""
    properties = broker.directory / "server.properties"
    properties.write_text(f"log.dirs={broker.log_dirs[0]}\nbroker.id=0\n")
    ended = subprocess.run(
        [sys.executable, "-c", ADOPT, zookeeper, str(properties)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("plog: ")
    return line


def test_nobody_answers_is_one_line(broker: BrokerProcess, zookeeper: str) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    assert f"no response from ZooKeeper at {address}" in line_of_adopt(broker, address)
    assert "no response from ZooKeeper at nowhere.invalid" in line_of_adopt(
        broker, "nowhere.invalid:1"
    )
    assert "has no /cluster/id" in line_of_adopt(broker, f"{zookeeper}/nothing/here")


@pytest.mark.parametrize("answers", [1, 2, 5])
def test_zookeeper_that_goes_meanwhile_is_one_line(
    broker: BrokerProcess, zookeeper: str, answers: int
) -> None:
    give_back(settings_of(broker), zookeeper)
    place, _, chroot = zookeeper.partition("/")
    with ends_after(answers, int(place.rpartition(":")[2])) as port:
        line = line_of_adopt(broker, f"127.0.0.1:{port}/{chroot}")
    if answers > 1:  # the first one lets the client in
        assert f"the connection to ZooKeeper at 127.0.0.1:{port}/{chroot} was lost" in line


@contextlib.contextmanager
def ends_after(answers: int, port: int) -> Iterator[int]:
    """Yield a port that leads to another, until so many answers have come: then nobody listens."""
    listening = socket.create_server(("127.0.0.1", 0))

    def pass_on() -> None:
        with listening.accept()[0] as client:
            listening.close()
            with socket.create_connection(("127.0.0.1", port)) as server:
                for _ in range(answers):
                    # One request at a time, so that each is one piece.
                    server.sendall(client.recv(1 << 16))
                    client.sendall(server.recv(1 << 16))

    thread = threading.Thread(target=pass_on)
    thread.start()
    yield listening.getsockname()[1]
    thread.join()


def test_directory_of_kraft_is_refused_though_there_is_no_zookeeper(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    settings = BrokerSettings({"log.dirs": str(tmp_path), "broker.id": "0"})
    for carry in (adopt, give_back):
        with pytest.raises(InconsistentLogDirs, match="a KRaft broker's directory"):
            carry(settings, f"127.0.0.1:{free_port()}")


def test_zookeeper_without_a_cluster_is_refused(broker: BrokerProcess, zookeeper: str) -> None:
    with pytest.raises(AdoptionError, match="ZooKeeper has no /cluster/id"):
        adopt(settings_of(broker), zookeeper)


def test_another_cluster_is_refused_both_ways(broker: BrokerProcess, zookeeper: str) -> None:
    with Nodes(zookeeper) as nodes:
        nodes.create(znodes.CLUSTER_ID, znodes.encode_cluster_id("other"), makepath=True)
    for carry in (adopt, give_back):
        with pytest.raises(AdoptionError, match=r"cluster.* other"):
            carry(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        assert nodes.exists(znodes.TOPICS) is None


def test_broker_that_runs_is_refused_both_ways(broker: BrokerProcess, zookeeper: str) -> None:
    with broker:
        for carry in (adopt, give_back):
            with pytest.raises(InconsistentLogDirs):
                carry(settings_of(broker), zookeeper)


def test_directories_of_a_cluster_are_refused_both_ways(
    broker: BrokerProcess, zookeeper: str
) -> None:
    forget(broker)
    mark_shared(Filesystem(), broker.log_dirs, "zk-1.example:2181/plog")
    moved = broker.log_dirs[0] / (FILE_NAME + MOVED_SUFFIX)
    for why in "belongs to a cluster on ZooKeeper", "was moved to ZooKeeper":
        for carry in (adopt, give_back):
            with pytest.raises(InconsistentLogDirs, match=why):
                carry(settings_of(broker), zookeeper)
        assert not (broker.log_dirs[0] / FILE_NAME).exists()
        (broker.log_dirs[0] / MARK_FILE).unlink(missing_ok=True)
        moved.touch()


def test_directories_of_nobody_are_refused(tmp_path: Path, zookeeper: str) -> None:
    with pytest.raises(PlogError, match="no broker has run"):
        give_back(BrokerSettings({"log.dirs": str(tmp_path), "broker.id": "0"}), zookeeper)
    with pytest.raises(AdoptionError, match="set broker"):
        give_back(BrokerSettings({"log.dirs": str(tmp_path)}), zookeeper)


def test_topics_of_other_brokers_outlive_the_way_there_and_back(
    broker: BrokerProcess, zookeeper: str
) -> None:
    assert set(remarks(give_back(settings_of(broker), zookeeper))) == {"kept", "gone"}
    add_topic_of_others(zookeeper)
    forget(broker)
    assert remarks(adopt(settings_of(broker), zookeeper)) == {
        "gone": "",
        "kept": "",
        OTHERS: "belongs to another broker; skipped",
    }
    with broker, Admin(broker.bootstrap) as admin:
        assert set(admin.topics()) == {"kept", "gone"}
        admin.delete_topic("gone")
    assert remarks(give_back(settings_of(broker), zookeeper)) == {
        "gone": "deleted in plog, so deleted in ZooKeeper",
        "kept": "",
        OTHERS: "not adopted from here; skipped",
    }
    with Nodes(zookeeper) as nodes:
        assert set(nodes.get_children(znodes.TOPICS)) == {"kept", OTHERS}
        assert nodes.exists("/config/topics/gone") is None


def test_topic_that_is_known_is_left_as_it_is(broker: BrokerProcess, zookeeper: str) -> None:
    give_back(settings_of(broker), zookeeper)
    adopt(settings_of(broker), zookeeper)
    with broker, Admin(broker.bootstrap) as admin:
        admin.create_partitions("kept", 3)
    found = remarks(adopt(settings_of(broker), zookeeper))
    assert set(found.values()) == {"already known; skipped"}
    with broker, Admin(broker.bootstrap) as admin:
        assert len(admin.topic("kept").partitions) == 3


@pytest.mark.parametrize(
    ("replicas", "why"),
    [
        ({0: (0, 7), 1: (7, 0)}, r"have replicas on other brokers: kept-0, kept-1\."),
        ({0: (0,), 1: (0,), 2: (7,)}, r"have replicas on other brokers: kept-2\."),
        ({0: (0,), 1: (0,), 2: (0,)}, r"in none of its log directories: kept-2\."),
    ],
    ids=["replicas", "partition elsewhere", "partition lost"],
)
def test_topics_that_are_here_in_part_are_refused_before_anything_is_written(
    broker: BrokerProcess, zookeeper: str, replicas: dict[int, tuple[int, ...]], why: str
) -> None:
    give_back(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        path = znodes.topic_path("kept")
        topic_id = TopicNode.decode(nodes.get(path)[0]).topic_id
        nodes.set(path, TopicNode(partitions=replicas, topic_id=topic_id).encode())
    forget(broker)
    with pytest.raises(AdoptionError, match=why):
        adopt(settings_of(broker), zookeeper)
    assert not list(broker.log_dirs[0].glob("plog-store*"))


def test_directory_that_cannot_be_used_is_refused(
    broker: BrokerProcess, zookeeper: str, tmp_path: Path
) -> None:
    give_back(settings_of(broker), zookeeper)
    (tmp_path / "file").write_text("")
    both = f"{broker.log_dirs[0]},{tmp_path / 'file' / 'data'}"
    with pytest.raises(AdoptionError, match="cannot be used"):
        adopt(BrokerSettings({"log.dirs": both, "broker.id": "0"}), zookeeper)


def test_directory_without_partitions_is_refused(
    broker: BrokerProcess, zookeeper: str, tmp_path: Path
) -> None:
    give_back(settings_of(broker), zookeeper)
    (tmp_path / "other").mkdir()
    with pytest.raises(AdoptionError, match=r"is this the broker's log\.dirs\?"):
        adopt(BrokerSettings({"log.dirs": str(tmp_path / "other"), "broker.id": "0"}), zookeeper)


def test_kafka_that_runs_is_refused_both_ways(broker: BrokerProcess, zookeeper: str) -> None:
    """By its registration, or where that is not to be seen by its lock, which is Java's kind."""
    give_back(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        nodes.create(znodes.broker_path(0), b"{}", makepath=True)
        for carry in (adopt, give_back):
            with pytest.raises(AdoptionError, match="stop them first"):
                carry(settings_of(broker), zookeeper)
        nodes.delete(znodes.broker_path(0))
    with (broker.log_dirs[0] / ".lock").open("r+") as lock:
        child = os.fork()
        if child == 0:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            time.sleep(3600)
        try:
            eventually(lambda: is_locked(broker.log_dirs[0]), "locked")
            for carry in (adopt, give_back):
                with pytest.raises(InconsistentLogDirs):
                    carry(settings_of(broker), zookeeper)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_adoption_that_was_cut_short_is_finished_before_anything_else(
    broker: BrokerProcess, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_back(settings_of(broker), zookeeper)
    forget(broker)
    carried = itertools.count()

    def dies(store: Store, topic: str, topic_id: uuid.UUID | None) -> None:
        if next(carried):
            raise KeyboardInterrupt
        share(store, topic, topic_id)

    monkeypatch.setattr("plog.ops.adoption.share", dies)
    with pytest.raises(KeyboardInterrupt):
        adopt(settings_of(broker), zookeeper)
    monkeypatch.undo()
    with pytest.raises(AdoptionError, match="interrupted"):
        give_back(settings_of(broker), zookeeper)
    with pytest.raises(AssertionError, match="plog adopt was interrupted"):
        broker.start()
    adopt(settings_of(broker), zookeeper)
    with broker, Admin(broker.bootstrap) as admin:
        assert set(admin.topics()) == {"kept", "gone"}
        assert config_of(broker, "kept", "retention.ms") == "7000000"


def test_what_kafka_changes_in_between_is_taken_over(broker: BrokerProcess, zookeeper: str) -> None:
    give_back(settings_of(broker), zookeeper)
    with pytest.raises(AssertionError, match="the topics were given back to Kafka"):
        broker.start()
    set_config(zookeeper, "kept", retention_ms="8000000")
    with Nodes(zookeeper) as nodes:
        nodes.delete(znodes.topic_path("gone"), recursive=True)
    for partition in range(2):
        shutil.rmtree(broker.log_dirs[0] / f"gone-{partition}")
    assert remarks(adopt(settings_of(broker), zookeeper)) == {"kept": ""}
    with broker, Admin(broker.bootstrap) as admin:
        assert set(admin.topics()) == {"kept"}
        assert config_of(broker, "kept", "retention.ms") == "8000000"


def test_what_root_makes_belongs_to_whom_the_directory_does(
    broker: BrokerProcess, zookeeper: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    give_back(settings_of(broker), zookeeper)
    forget(broker)
    os.chown(broker.log_dirs[0], NOBODY, NOBODY)
    adopt(settings_of(broker), zookeeper)
    made = [broker.log_dirs[0] / ".lock", *broker.log_dirs[0].glob("plog-store*")]
    assert len(made) > 2
    assert {path.stat().st_uid for path in made} == {NOBODY}


def test_what_a_link_leads_to_stays_whose_it_is(
    broker: BrokerProcess, zookeeper: str, tmp_path: Path
) -> None:
    give_back(settings_of(broker), zookeeper)
    (tmp_path / "victim").write_text("")
    (broker.log_dirs[0] / "plog-store-link").symlink_to(tmp_path / "victim")
    os.chown(broker.log_dirs[0], NOBODY, NOBODY)
    adopt(settings_of(broker), zookeeper)
    assert (tmp_path / "victim").stat().st_uid == os.geteuid()


def test_topic_that_another_broker_has_made_anew_is_left_alone(
    broker: BrokerProcess, zookeeper: str
) -> None:
    give_back(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        path = znodes.topic_path("gone")
        nodes.delete(path, recursive=True)
        nodes.create(path, TopicNode(partitions={0: (7,)}, topic_id=uuid.uuid4()).encode())
    for partition in range(2):
        shutil.rmtree(broker.log_dirs[0] / f"gone-{partition}")
    assert remarks(adopt(settings_of(broker), zookeeper))["gone"] == (
        "belongs to another broker; skipped"
    )
    assert remarks(give_back(settings_of(broker), zookeeper))["gone"] == (
        "not adopted from here; skipped"
    )


def test_another_topic_of_the_same_name_is_not_written_over(
    broker: BrokerProcess, zookeeper: str
) -> None:
    with Nodes(zookeeper) as nodes:
        path = znodes.topic_path("kept")
        other = TopicNode(partitions={0: (7,)}, topic_id=uuid.uuid4()).encode()
        nodes.create(path, other, makepath=True)
        with pytest.raises(AdoptionError, match="another topic named kept"):
            give_back(settings_of(broker), zookeeper)
        assert nodes.get(path)[0] == other


def test_topic_that_is_to_be_kept_for_ever_stays_so(broker: BrokerProcess, zookeeper: str) -> None:
    give_back(settings_of(broker), zookeeper)
    adopt(settings_of(broker), zookeeper)
    for_ever = [("retention.ms", SET, "-1"), ("retention.bytes", SET, "-1")]
    with broker, Admin(broker.bootstrap) as admin:
        admin.alter_configs(TOPIC, "kept", for_ever)
    adopt(settings_of(broker), zookeeper)
    with broker:
        assert config_of(broker, "kept", "retention.ms") == "-1"


def test_configs_that_a_broker_had_to_make_up_are_replaced(
    broker: BrokerProcess, zookeeper: str
) -> None:
    give_back(settings_of(broker), zookeeper)
    forget(broker)
    with broker:
        assert config_of(broker, "kept", "retention.ms") == "-1"
    assert set(remarks(adopt(settings_of(broker), zookeeper)).values()) == {
        "replaced made-up configs"
    }
    with broker:
        assert config_of(broker, "kept", "retention.ms") == "7000000"


def test_producer_ids_are_given_out_once_and_settings_stay(
    broker: BrokerProcess, zookeeper: str
) -> None:
    give_back(settings_of(broker), zookeeper)
    with Nodes(zookeeper) as nodes:
        nodes.set(znodes.PRODUCER_ID_BLOCK, ProducerIdBlock(0, 5000, 5999).encode())
    taken = []
    for _ in range(2):
        adopt(settings_of(broker), zookeeper)
        with broker, contextlib.closing(speak(broker.port)) as wire:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
            taken.append(wire.ask(request, 4).producer_id)
    assert 5999 < taken[0] < taken[1]


def test_directory_is_missed_unless_kafka_was_there_in_between(
    tmp_path: Path, zookeeper: str
) -> None:
    broker = BrokerProcess(tmp_path, log_dirs=2)
    with broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("kept")
    one, two = broker.log_dirs
    assert (one / "kept-0").is_dir()
    both = BrokerSettings({"log.dirs": f"{one},{two}", "broker.id": "0"})
    two.rename(tmp_path / "away")
    for carry in (adopt, give_back):
        with pytest.raises(AdoptionError, match=f"{two} is empty, but was not before: mount"):
            carry(both, zookeeper)
    assert not two.exists()
    (tmp_path / "away").rename(two)
    give_back(both, zookeeper)
    # Kafka has moved away what it had there, and its disk was taken out.
    adopt(settings_of(broker), zookeeper)
    broker.overrides["log.dirs"] = one
    with broker:
        pass
    assert " ERROR " not in broker.log
