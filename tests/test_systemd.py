"""The units, as systemd itself reads them; and that a broker does no more than they allow."""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import closing
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from plog.client.admin import SET, TOPIC, Admin
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from plog.server import START_TIMEOUT_S
from plog.storage.checkpoints import CLEANER_OFFSET_FILE
from plog.types import TopicPartition
from tests.compat.clients import PATIENCE_S, Confluent
from tests.compat.coordinated import begin, commit_offset, committed_offset, transactional
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, eventually, make_batch, produce, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.units import EXPOSURE, INSTALLED, add_units_of_every_host, complaints, exposure, say

UNITS = ROOT / "systemd"
AGENTS_EXPOSURE = 2.5
"""It sees all of the host, and writes nothing."""


def needs(command: str) -> None:
    if shutil.which(command) is None:
        pytest.skip(f"there is no {command}")


def install_units(into: Path) -> None:
    shutil.copy(UNITS / "plog.service", into)
    several = say("sed", "-f", UNITS / "instances.sed", UNITS / "plog.service")
    (into / "plog@.service").write_text(several)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root directory with plog installed, and the targets that every host has."""
    needs("systemd-analyze")
    add_units_of_every_host(tmp_path)
    install_units(tmp_path / INSTALLED)
    (tmp_path / "etc").mkdir()
    program = tmp_path / "opt" / "plog" / "bin" / "plog"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("unit", ["plog.service", "plog@one.service"])
def test_systemd_finds_nothing_wrong(host: Path, unit: str) -> None:
    assert complaints(host, unit) == ""


def test_unit_that_the_page_gives_for_the_agent_is_one(host: Path) -> None:
    page = (ROOT / "docs" / "OPERATIONS.md").read_text("utf-8")
    (text,) = (block for block in page.split("```") if "host-metrics --" in block)
    unit = host / INSTALLED / "plog-host-metrics.service"
    unit.write_text(text)
    assert complaints(host, unit.name) == ""
    assert exposure(unit) <= AGENTS_EXPOSURE


def test_systemd_would_find_a_key_that_it_does_not_know(host: Path) -> None:
    unit = host / INSTALLED / "plog.service"
    unit.write_text(unit.read_text().replace("ProtectClock=", "ProtectClok="))
    assert "Unknown key 'ProtectClok'" in complaints(host, unit.name)


@pytest.mark.parametrize("name", ["plog.service", "plog@.service"])
def test_exposure_is_small(tmp_path: Path, name: str) -> None:
    needs("systemd-analyze")
    install_units(tmp_path)
    assert exposure(tmp_path / name) <= EXPOSURE


def test_units_of_several_brokers_name_their_instance_wherever_they_differ(tmp_path: Path) -> None:
    install_units(tmp_path)
    one, several = (
        (tmp_path / name).read_text().splitlines() for name in ("plog.service", "plog@.service")
    )
    other = [mine for mine, of_one in zip(several, one, strict=True) if mine != of_one]
    assert [line for line in other if not line.startswith("#")] == [
        "Description=plog broker %i",
        "RequiresMountsFor=/var/lib/plog/%i",
        "ExecStart=/opt/plog/bin/plog server /etc/plog/%i.properties",
        "StateDirectory=plog/%i",
    ]


def test_start_is_given_as_long_again_as_the_unit_gives_it() -> None:
    assert f"\nTimeoutStartSec={START_TIMEOUT_S}s\n" in (UNITS / "plog.service").read_text()


WATCHED_AND_LIMITED = {
    "Type": "notify",
    "NotifyAccess": "main",
    "WatchdogSec": "120s",
    "TimeoutStopSec": "180s",
    "Restart": "on-failure",
    "User": "plog",
    "LimitNOFILE": "1048576",
}
"""What the broker and docs/OPERATIONS.md rely on. Without a line the unit still verifies."""


@pytest.mark.parametrize("name", ["plog.service", "plog@.service"])
def test_broker_is_watched_limited_and_started_again(tmp_path: Path, name: str) -> None:
    install_units(tmp_path)
    given = re.findall(r"^(\w+)=(.*)$", (tmp_path / name).read_text(), re.MULTILINE)
    assert len(given) > len(WATCHED_AND_LIMITED)
    assert {key: value for key, value in given if key in WATCHED_AND_LIMITED} == WATCHED_AND_LIMITED


def test_user_and_directories_are_made(host: Path) -> None:
    needs("systemd-sysusers")
    say("systemd-sysusers", f"--root={host}", UNITS / "plog.sysusers.conf")
    (user,) = (host / "etc/passwd").read_text().splitlines()
    name, _, uid, _, _, home, shell = user.split(":")
    assert (name, home, shell) == ("plog", "/var/lib/plog", "/usr/sbin/nologin")
    say("systemd-tmpfiles", f"--root={host}", "--create", UNITS / "plog.tmpfiles.conf")
    data = (host / "var/lib/plog").stat()
    assert (data.st_mode & 0o7777, data.st_uid) == (0o750, int(uid))
    assert (host / "etc/plog").stat().st_mode & 0o7777 == 0o755


def test_broker_makes_no_call_that_the_unit_forbids(plane: Plane, tmp_path: Path) -> None:
    needs("strace")
    needs("systemd-analyze")
    # The second life recovers what the first one left.
    called = calls_of_a_life(tmp_path, SIGKILL) | calls_of_a_life(tmp_path, SIGTERM)
    assert {"pwritev", "epoll_wait", "fdatasync"} <= called  # it was the broker that was seen
    allowed = permitted(UNITS / "plog.service")
    assert called <= allowed, sorted(called - allowed)


def calls_of_a_life(directory: Path, end: Signals) -> set[str]:
    """Return the system calls that a broker made from its start until this signal ended it."""
    trace = directory / f"trace-{end.name}"
    # -D: the broker is our child, and strace its own.
    launcher = ["strace", "-D", "-f", "-q", "-e", "signal=none", "-o", str(trace), sys.executable]
    broker = BrokerProcess(
        directory,
        log_dirs=2,
        overrides={"log.cleaner.backoff.ms": 200},
        launcher=[*launcher, "-m", "plog", "server"],
    )
    broker.start()
    pid = broker.pid
    try:
        use(broker, end.name)
        if end is SIGTERM:
            broker.stop()
    finally:
        broker.kill()
    if end is SIGTERM:
        # Of who is killed strace says no end. Short pids are padded.
        over = re.compile(rf"^{pid} +\+\+\+ exited with 0", re.MULTILINE)
        eventually(lambda: over.search(trace.read_text()) is not None, "the trace is whole")
    return set(re.findall(r"^\d+\s+([a-z]\w*)\(", trace.read_text(), re.MULTILINE))


def use(broker: BrokerProcess, name: str) -> None:
    """Have a broker do what brokers do: topics, groups, transactions, compaction, a move."""
    kept, deleted, compacted = (f"{name}-{what}" for what in ("kept", "deleted", "compacted"))
    with closing(speak(broker.port)) as wire:
        for topic in (kept, deleted):
            create_topic(wire, topic, 3)
            for acks in (1, -1):
                for codec in range(5):
                    produce(wire, topic, make_batch([b"x" * 100] * 50, codec=codec), acks=acks)
        create_topic(
            wire,
            compacted,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0,
            segment_bytes=200,
        )
        for _ in range(5):
            produce(wire, compacted, make_batch([b"v"], key=b"k"))
        checkpoints = [directory / CLEANER_OFFSET_FILE for directory in broker.log_dirs]
        eventually(
            lambda: any(at.exists() and compacted in at.read_text() for at in checkpoints),
            "it is compacted",
        )
    at = TopicPartition(kept, 0)
    commit_offset(broker.bootstrap, at, 7)
    assert committed_offset(broker.bootstrap, at) == 7
    producer = transactional(broker.bootstrap, "an id")
    for ends in (producer.commit_transaction, producer.abort_transaction):
        begin(producer, kept, [b"of a transaction"])
        ends(PATIENCE_S)
    assert Confluent().consume(broker.bootstrap, kept, 50)
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(deleted)
        admin.delete_records({at: 3})
        admin.alter_configs(TOPIC, kept, [("retention.ms", SET, "-1")])

        def here() -> str:
            dirs = {one.partition: one.log_dir for one in admin.log_dirs([kept])}
            return dirs[at]

        before = here()
        (other,) = (one for one in broker.log_dirs if str(one) != before)
        with closing(speak(broker.port)) as wire:
            asked = AlterReplicaLogDirTopic(name=kept, partitions=[0])
            moves = [AlterReplicaLogDir(path=str(other), topics=[asked])]
            wire.ask(AlterReplicaLogDirsRequest(dirs=moves), 2)
        eventually(lambda: here() == str(other), "it has moved")


def permitted(unit: Path) -> set[str]:
    """Return the system calls that a unit's SystemCallFilter= lines leave."""
    found: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit.read_text(), re.MULTILINE):
        names = members(line.lstrip("~").split())
        found = found - names if line.startswith("~") else found | names
    return found


def members(names: list[str]) -> set[str]:
    """Return the calls of sets of calls, whose members may be sets."""
    found: set[str] = set()
    for name in names:
        if not name.startswith("@"):
            found.add(name)
            continue
        told = say("systemd-analyze", "syscall-filter", "--no-pager", name)
        lines = [line.strip() for line in told.splitlines()[1:]]
        found |= members([line for line in lines if line and not line.startswith("#")])
    return found
