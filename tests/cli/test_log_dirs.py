"""`plog log-dirs`: what a stopped broker has and misses, and how it is made to do without."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.cluster.store_copy import FILE_NAME
from plog.errors import ErrorCode
from plog.storage.log_dir import META_PROPERTIES, decode_properties
from tests.cli.conftest import TIMEOUT_S, command_line
from tests.handlers.wire import create_topic, make_batch, produce, speak
from tests.hosts.host import read_all
from tests.servers import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of two directories, with topic "one" in the first, which has run."""
    made = BrokerProcess(tmp_path, log_dirs=2)
    with made, closing(speak(made.port)) as client:
        for name in ("one", "two"):
            create_topic(client, name)
            assert produce(client, name, make_batch([b"before"])).error_code == ErrorCode.NONE
    yield made
    made.kill()


def log_dirs(
    broker: BrokerProcess, *arguments: object, status: int = 0, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    path = broker.directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in broker.overrides.items()))
    done = subprocess.run(
        command_line("log-dirs", path, *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def listed(broker: BrokerProcess) -> list[tuple[str, str | None, str]]:
    rows = json.loads(log_dirs(broker, "--json").stdout)
    return [(row["path"], row["id"], row["state"]) for row in rows]


def id_of(path: Path) -> str:
    return decode_properties((path / META_PROPERTIES).read_text())["directory.id"]


def test_directories_are_shown_with_their_ids_and_states(broker: BrokerProcess) -> None:
    one, two = broker.log_dirs
    ids = [id_of(one), id_of(two)]
    assert listed(broker) == [(str(one), ids[0], "there"), (str(two), ids[1], "there")]
    table = log_dirs(broker).stdout
    assert all(text in table for text in (str(one), str(two), *ids))
    more = broker.directory / "more"
    broker.overrides["log.dirs"] = f"{two},{more}"
    assert listed(broker) == [
        (str(two), ids[1], "there"),
        (str(more), None, "new"),
        (str(one), ids[0], "missing"),
    ]
    assert not more.exists()
    broker.overrides["log.dirs"] = f"{one},{two}"
    shutil.rmtree(one)
    one.mkdir()
    assert listed(broker) == [(str(one), ids[0], "not mounted"), (str(two), ids[1], "there")]
    assert list(one.iterdir()) == []
    one.rmdir()
    one.write_text("in the way")
    assert listed(broker)[0] == (str(one), None, "cannot be read")
    refused = log_dirs(broker, "--forget", one, "--yes", status=1)
    assert "cannot be read" in refused.stderr


def test_only_a_missing_directory_of_a_stopped_broker_is_forgotten(broker: BrokerProcess) -> None:
    one = broker.log_dirs[0]
    for named in (one, id_of(one)):
        refused = log_dirs(broker, "--forget", named, "--yes", status=1)
        assert refused.stderr == (
            f"plog: log directory {named} is not missing, so it cannot be forgotten\n"
        )
    refused = log_dirs(broker, "--forget", "/nowhere", "--yes", status=1)
    assert refused.stderr == "plog: unknown log directory /nowhere\n"
    shutil.rmtree(one)
    with broker:
        for arguments in ([], ["--forget", one, "--yes"]):
            refused = log_dirs(broker, *arguments, status=1)
            assert "is in use by another broker process" in refused.stderr
    assert listed(broker)[0][2] == "not mounted"
    store = broker.log_dirs[1] / FILE_NAME
    store.write_bytes(b"no database" * 1000)
    for arguments in ([], ["--forget", one, "--yes"]):
        refused = log_dirs(broker, *arguments, status=1)
        assert refused.stderr.startswith("plog: no copy of the coordination store is whole")
        assert "from a backup, or start the broker" in refused.stderr
    assert store.read_bytes() == b"no database" * 1000


@pytest.mark.parametrize("is_listed", [True, False])
def test_without_the_forgotten_directory_its_partitions_begin_anew(
    broker: BrokerProcess, is_listed: bool
) -> None:
    one, two = broker.log_dirs
    directory_id = id_of(one)
    shutil.rmtree(one)
    if not is_listed:
        broker.overrides["log.dirs"] = two
    declined = log_dirs(broker, "--forget", one, stdin="n\n", status=1)
    assert "Not forgotten" in declined.stderr
    assert "one-0" in declined.stderr
    assert "creates the rest empty" in declined.stderr
    assert "two-0" not in declined.stderr
    done = log_dirs(broker, "--forget", directory_id if is_listed else one, stdin="y\n")
    assert done.stdout == f"Forgot {one}.\n"
    broker.log_path.unlink()
    with broker, closing(speak(broker.port)) as client:
        assert produce(client, "one", make_batch([b"after"])).base_offset == 0
        assert read_all(broker, "two") == ["before"]
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("new", partitions=3)
        assert one.exists() is is_listed
        if is_listed:  # it is a directory like others
            assert list(one.glob("new-*"))
    assert " ERROR " not in broker.log
    assert [row[2] for row in listed(broker)] == ["there"] * (2 if is_listed else 1)
    with broker:
        assert read_all(broker, "one") == ["after"]


def test_forgotten_directory_that_comes_back_is_taken_up(broker: BrokerProcess) -> None:
    one, away = broker.log_dirs[0], broker.directory / "away"
    one.rename(away)
    log_dirs(broker, "--forget", one, "--yes")
    away.rename(one)
    assert listed(broker)[0] == (str(one), id_of(one), "new")
    with broker:
        assert read_all(broker, "one") == ["before"]


def test_directories_of_no_broker_are_told_of_and_left_alone(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    refused = log_dirs(broker, status=1)
    assert refused.stderr.startswith("plog: no broker has run on these log directories")
    directory = broker.log_dirs[0]
    directory.mkdir()
    (directory / META_PROPERTIES).write_text("version=0\nbroker.id=0\ncluster.id=c\n")
    refused = log_dirs(broker, status=1)
    assert refused.stderr == "plog: no plog broker has run on these log directories\n"
    assert {path.name for path in directory.iterdir()} <= {META_PROPERTIES, ".lock"}
