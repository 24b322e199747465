"""The wheel and the Debian package: built by their commands, installed where nothing else is.

The package goes into a chroot of the distribution's smallest kind, with Python and nothing else of
what plog is built with; a broker is started there as the package's user, upgraded and removed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from plog.client.admin import Admin
from tests.compat.clients import Confluent, Sent
from tests.conftest import ROOT
from tests.servers import free_port

BUILD_TIMEOUT_S = 900
LATER_LINE = "# Of a later release.\n"
SYSTEMCTL = """#!/bin/sh
# A systemd that restarts nothing; it remembers what it was asked for.
echo "$*" >>/asked
case "$*" in *try-restart*) exit 1 ;; esac
"""
MIRROR_TIMEOUT_S = 600
MATCH = (
    "from plog.coordinator.topic_regex import Pattern; print(*Pattern('a+').matching(['aa', 'b']))"
)
"""Loads RE2, which comes as a package of its own, when it is first asked."""


def run(*command: object, timeout: float = 120, **more: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **more,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def needs(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"there is no {command}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(ROOT / "bin" / "wheel", out, timeout=BUILD_TIMEOUT_S)
    (made,) = out.glob("*.whl")
    return made


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_wheel_carries_its_libraries_and_works_alone(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for library in ("lz4", "zstd", "snappy"):
        assert [name for name in names if name.startswith(f"plog.libs/lib{library}")], names
    assert "manylinux" in wheel.name
    venv = tmp_path / "venv"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    run(sys.executable, "-m", "venv", venv)
    pip = venv / "bin" / "pip", "install", "--disable-pip-version-check"
    run(*pip, wheel, timeout=300, env=environment)
    said = run(
        venv / "bin" / "python",
        "-c",
        "from plog._native import codec_lz4, compression; print(compression.__file__)",
        cwd=tmp_path,
        env=environment,
    )
    assert said.startswith(str(venv))
    assert "Run a broker." in run(venv / "bin" / "plog", "--help", cwd=tmp_path, env=environment)
    assert run(venv / "bin" / "python", "-c", MATCH, cwd=tmp_path, env=environment) == "aa\n"
    linked = run("ldd", *venv.glob("lib/*/site-packages/plog/_native/codec_*.so"))
    for library in ("lz4", "zstd", "snappy"):
        (place,) = set(re.findall(rf"lib{library}\S* => (\S+)", linked))
        assert place.startswith(str(venv)), linked


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("dpkg-deb")
    out = tmp_path_factory.mktemp("deb")
    run(ROOT / "bin" / "deb", out, timeout=BUILD_TIMEOUT_S, umask=0o077)  # as some do build
    (made,) = out.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the distribution's essential packages and its Python."""
    needs("debootstrap", "chroot")
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")
    root = tmp_path_factory.mktemp("host") / "root"
    release = re.search(
        r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.MULTILINE
    )
    assert release is not None
    try:
        run(
            "debootstrap", "--variant=minbase", "--include=python3", release[1], root,
            timeout=MIRROR_TIMEOUT_S,
        )  # fmt: skip
    except AssertionError as error:
        pytest.skip(f"the distribution's packages are not to be had: {str(error)[-500:]}")
    return root


class Installed:
    """A broker of the package, in its host, as its own user."""

    def __init__(self, host: Path, port: int) -> None:
        self.host, self.port = host, port

    def __enter__(self) -> Installed:
        self._process = subprocess.Popen(
            [
                "chroot", "--userspec=plog:plog", self.host, "plog", "server",
                "/etc/plog/server.properties", "--override",
                f"listeners=PLAINTEXT://127.0.0.1:{self.port}",
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )  # fmt: skip
        deadline = time.monotonic() + 60
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "listening on" in line:
                break
            assert time.monotonic() < deadline, line
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        _, said = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, said

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_package_is_of_roots_modes_whatever_builds_it(package: Path) -> None:
    listed = run("dpkg-deb", "-c", package).splitlines()
    assert {line.split()[0] for line in listed if line[0] != "l"} == {
        "drwxr-xr-x",
        "-rwxr-xr-x",
        "-rw-r--r--",
    }
    assert {line.split()[1] for line in listed} == {"root/root"}


def later_release(package: Path, out: Path) -> Path:
    """Return the same package with a higher version and another default in its settings."""
    tree = out / "tree"
    run("dpkg-deb", "-R", package, tree)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"^Version: .*", "Version: 99.0", control.read_text(), flags=re.M))
    settings = tree / "etc/plog/server.properties"
    changed = settings.read_text().replace("log.retention.hours=168", "log.retention.hours=169")
    assert changed != settings.read_text()
    settings.write_text(changed)
    with (tree / "etc/plog/client.properties").open("a") as client:
        client.write(LATER_LINE)
    made = out / "plog_99.0.deb"
    run("dpkg-deb", "--root-owner-group", "--build", tree, made)
    return made


@pytest.mark.timeout(BUILD_TIMEOUT_S + MIRROR_TIMEOUT_S)
def test_package_is_installed_upgraded_and_removed(
    package: Path, host: Path, tmp_path: Path
) -> None:
    shutil.copy(package, host / "plog.deb")
    shutil.copy(later_release(package, tmp_path), host / "later.deb")

    asked = host / "asked"

    def within(*command: object) -> str:
        asked.write_text("")
        return run("chroot", host, *command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def byte_code() -> list[Path]:
        return list((host / "opt/plog/lib/plog").glob("__pycache__/*.pyc"))

    (host / "run/systemd/system").mkdir(parents=True)
    (host / "usr/bin/systemctl").write_text(SYSTEMCTL)
    (host / "usr/bin/systemctl").chmod(0o755)

    within("dpkg", "-i", "/plog.deb")
    assert asked.read_text().splitlines() == ["daemon-reload"]
    assert byte_code()
    assert re.search(r"^plog:x:\d+:\d+:", (host / "etc/passwd").read_text(), re.MULTILINE)
    data = (host / "var/lib/plog").stat()
    assert data.st_mode & 0o7777 == 0o750
    assert data.st_uid != 0
    conffiles = within("dpkg-query", "-W", "-f", "${Conffiles}", "plog")
    assert "/etc/plog/server.properties" in conffiles
    assert (host / "usr/lib/systemd/system/plog.service").exists()
    assert "plog, version" in within("plog", "--version")
    assert (
        within("python3", "-c", f"import sys; sys.path.append('/opt/plog/lib'); {MATCH}") == "aa\n"
    )

    records = [Sent(b"k", b"kept")]
    with Installed(host, free_port()) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
        Confluent().produce(broker.bootstrap, "t", records)
    settings, client = (
        host / "etc/plog" / name for name in ("server.properties", "client.properties")
    )
    own = settings.read_text().replace("log.retention.hours=168", "log.retention.hours=170")
    settings.write_text(own)

    within("dpkg", "--force-confold", "-i", "/later.deb")
    # One that cannot be restarted is no reason for dpkg to fail, and no start is waited for.
    assert "--no-block try-restart plog.service plog@*.service" in asked.read_text().splitlines()
    assert "99.0" in within("dpkg-query", "-W", "plog")
    assert settings.read_text() == own
    offered = settings.with_name("server.properties.dpkg-dist")
    assert "log.retention.hours=169" in offered.read_text()
    assert client.read_text().endswith(LATER_LINE)
    with Installed(host, free_port()) as broker:
        assert Confluent().consume(broker.bootstrap, "t", 1) == records
        Confluent().produce(broker.bootstrap, "t", records)

    within("dpkg", "--force-confold", "-i", "/plog.deb")  # and back
    with Installed(host, free_port()) as broker:
        assert Confluent().consume(broker.bootstrap, "t", 2) == records * 2

    assert settings.read_text() == own
    assert not client.read_text().endswith(LATER_LINE)

    # As dpkg does when it gives an upgrade up.
    within("/var/lib/dpkg/info/plog.prerm", "upgrade", "99.0")
    assert not byte_code()
    within("/var/lib/dpkg/info/plog.postinst", "abort-upgrade", "99.0")
    assert byte_code()

    wanted = host / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    for name in ("plog.service", "plog@one.service", "other.service"):
        (wanted / name).symlink_to("/dev/null")
    within("dpkg", "-r", "plog")
    assert asked.read_text().splitlines() == [
        "stop plog.service plog@*.service",
        "disable plog.service plog@.service",
        "daemon-reload",
    ]
    assert not (host / "opt/plog").exists()
    assert settings.exists()
    within("dpkg", "-P", "plog")
    assert not settings.exists()
    left = {path.name for path in wanted.iterdir()}
    assert "other.service" in left
    assert not left & {"plog.service", "plog@one.service"}
    assert (host / "var/lib/plog/data/t-0").is_dir()
