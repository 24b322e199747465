"""The units, as systemd itself reads them; and that a broker does no more than they allow."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.server import START_TIMEOUT_S
from tests.conftest import ROOT
from tests.handlers.wire import create_topic, eventually, make_batch, produce, speak
from tests.servers import BrokerProcess

UNITS = ROOT / "systemd"
HOST_UNITS = Path("/usr/lib/systemd/system")
EXPOSURE = 2.0
"""Of ten, by systemd's own count; what is left is that it has a network and writes files."""


def needs(command: str) -> None:
    if shutil.which(command) is None:
        pytest.skip(f"there is no {command}")


def say(*command: object) -> str:
    """Return all that a command writes; it must end well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (done.stdout + done.stderr).strip()


def install_units(into: Path) -> None:
    shutil.copy(UNITS / "plog.service", into)
    several = say("sed", "-f", UNITS / "instances.sed", UNITS / "plog.service")
    (into / "plog@.service").write_text(several)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root directory with plog installed, and the targets that every host has."""
    needs("systemd-analyze")
    installed = tmp_path / "usr" / "lib" / "systemd" / "system"
    installed.mkdir(parents=True)
    for unit in [*HOST_UNITS.glob("*.target"), *HOST_UNITS.glob("*.slice")]:
        (installed / unit.name).write_bytes(unit.read_bytes())
    install_units(installed)
    (tmp_path / "etc").mkdir()
    program = tmp_path / "opt" / "plog" / "bin" / "plog"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("unit", ["plog.service", "plog@one.service"])
def test_systemd_finds_nothing_wrong(host: Path, unit: str) -> None:
    assert say("systemd-analyze", "verify", "--man=no", f"--root={host}", unit) == ""


def test_systemd_would_find_a_key_that_it_does_not_know(host: Path) -> None:
    unit = host / "usr/lib/systemd/system/plog.service"
    unit.write_text(unit.read_text().replace("ProtectClock=", "ProtectClok="))
    told = say("systemd-analyze", "verify", "--man=no", f"--root={host}", unit.name)
    assert "Unknown key 'ProtectClok'" in told


@pytest.mark.parametrize("name", ["plog.service", "plog@.service"])
def test_exposure_is_small(tmp_path: Path, name: str) -> None:
    needs("systemd-analyze")
    install_units(tmp_path)
    told = say("systemd-analyze", "security", "--offline=true", "--no-pager", tmp_path / name)
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert float(level) <= EXPOSURE, told


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


def test_broker_makes_no_call_that_the_unit_forbids(tmp_path: Path) -> None:
    needs("strace")
    needs("systemd-analyze")
    trace = tmp_path / "trace"
    # -D: the broker is our child, and strace its own.
    launcher = ["strace", "-D", "-f", "-q", "-e", "signal=none", "-o", str(trace), sys.executable]
    broker = BrokerProcess(tmp_path, log_dirs=2, launcher=[*launcher, "-m", "plog", "server"])
    with broker:
        pid = broker.pid
        wire = speak(broker.port)
        for topic in ("kept", "deleted"):
            create_topic(wire, topic, 3)
            for acks in (1, -1):
                produce(wire, topic, make_batch([b"x" * 100] * 50), acks=acks)
        with Admin(broker.bootstrap) as admin:
            admin.delete_topic("deleted")
        wire.close()
    # Short pids are padded.
    end = re.compile(rf"^{pid} +\+\+\+ exited with 0", re.MULTILINE)
    eventually(lambda: end.search(trace.read_text()) is not None, "the trace is whole")
    called = set(re.findall(r"^\d+\s+([a-z]\w*)\(", trace.read_text(), re.MULTILINE))
    assert {"pwritev", "epoll_wait", "fdatasync"} <= called  # it was the broker that was seen
    assert called <= permitted(UNITS / "plog.service"), sorted(
        called - permitted(UNITS / "plog.service")
    )


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
