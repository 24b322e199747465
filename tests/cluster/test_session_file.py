"""A broker that was killed ends the session that it left, and starts at once."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest

from plog.cluster import session_file
from plog.cluster.broker_registration import BrokerRegistration, create_persistent_paths
from plog.cluster.session_file import SESSION_FILE, end_last, forget, remember
from plog.cluster.store import Unreachable
from plog.cluster.znodes import BrokerNode, Endpoint
from plog.cluster.zookeeper_client import Session
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import DuplicateBrokerRegistration
from plog.storage.filesystem import Filesystem
from tests.compat.live_kafka import ZooKeeper
from tests.servers import free_port

WAIT_S = 40
NODE = BrokerNode((Endpoint("PLAINTEXT", "127.0.0.1", 9092),), 0)


@pytest.fixture
def connect(zookeeper: ZooKeeper) -> str:
    return f"{zookeeper.bootstrap}/{uuid.uuid4()}"


def test_registration_that_a_killed_broker_left_is_gone_at_once(
    connect: str, tmp_path: Path
) -> None:
    killed = ZooKeeperStore(connect, session_timeout_ms=60_000)
    create_persistent_paths(killed)
    remember(tmp_path, connect, killed.session)
    before = BrokerRegistration(killed, 7).register(NODE)
    fresh = ZooKeeperStore(connect)
    with pytest.raises(DuplicateBrokerRegistration):
        BrokerRegistration(fresh, 7).register(NODE)
    assert end_last(tmp_path, connect, within_s=WAIT_S)
    assert BrokerRegistration(fresh, 7).register(NODE) > before
    assert not end_last(tmp_path, connect, within_s=WAIT_S), "it is over"
    for store in killed, fresh:
        store.close()


def test_file_is_a_secret_and_goes_in_the_end(connect: str, tmp_path: Path) -> None:
    remember(tmp_path, connect, Session(1, b"secret"))
    remember(tmp_path, connect, Session(2, b"secret"))
    assert os.stat(tmp_path / SESSION_FILE).st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / SESSION_FILE).read_text())["session"] == "0x2"
    forget(tmp_path)
    assert list(tmp_path.iterdir()) == []
    forget(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session": 1}', '{"session": "0x1"}'])
def test_file_that_cannot_be_read_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / SESSION_FILE).write_text(text)
    assert not end_last(tmp_path, "127.0.0.1:1", within_s=1)
    assert "ignoring" in caplog.text


@pytest.mark.parametrize("path", ["", "/", "/b", "/a/b"])
def test_session_of_another_path_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    remember(tmp_path, "127.0.0.1:1/a", Session(1, b"secret"))
    monkeypatch.setattr(session_file, "end_session", lambda *_, **__: pytest.fail("asked"))
    assert not end_last(tmp_path, f"127.0.0.1:1{path}", within_s=1)


def test_session_is_ended_by_other_names_of_the_servers(connect: str, tmp_path: Path) -> None:
    killed = ZooKeeperStore(connect)
    remember(tmp_path, connect, killed.session)
    server, _, path = connect.partition("/")
    assert end_last(tmp_path, f"{server},127.0.0.1:{free_port()}/{path}", within_s=WAIT_S)
    killed.close()


def test_session_that_this_zookeeper_does_not_know_is_kept(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    remember(tmp_path, zookeeper.bootstrap, Session(1, bytes(16)))
    assert not end_last(tmp_path, zookeeper.bootstrap, within_s=WAIT_S)
    assert (tmp_path / SESSION_FILE).exists()


@pytest.mark.parametrize("differs", ["boot", "device", "inode"])
def test_session_of_another_place_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, differs: str
) -> None:
    remember(tmp_path, "127.0.0.1:1", Session(1, b"secret"))
    value = json.loads((tmp_path / SESSION_FILE).read_text())
    value["place"][differs] = 0
    (tmp_path / SESSION_FILE).write_text(json.dumps(value))
    monkeypatch.setattr(session_file, "end_session", lambda *_, **__: pytest.fail("asked"))
    assert not end_last(tmp_path, "127.0.0.1:1", within_s=1)
    assert "if session 0x1 lives, it is not ended" in caplog.text


def test_session_is_left_alone_where_no_place_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Filesystem, "boot_id", lambda _: None)
    remember(tmp_path, "127.0.0.1:1", Session(1, b"secret"))
    monkeypatch.setattr(session_file, "end_session", lambda *_, **__: pytest.fail("asked"))
    assert not end_last(tmp_path, "127.0.0.1:1", within_s=1)


def test_directory_that_was_renamed_is_the_same_place(connect: str, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    killed = ZooKeeperStore(connect)
    remember(tmp_path / "before", connect, killed.session)
    (tmp_path / "before").rename(tmp_path / "after")
    assert end_last(tmp_path / "after", connect, within_s=WAIT_S)
    killed.close()


def test_session_that_cannot_be_ended_is_kept(tmp_path: Path) -> None:
    remember(tmp_path, "127.0.0.1:1", Session(1, b"secret"))
    with pytest.raises(Unreachable):
        end_last(tmp_path, "127.0.0.1:1", within_s=0.2)
    assert (tmp_path / SESSION_FILE).exists()
