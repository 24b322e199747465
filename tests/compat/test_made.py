"""What tests have made by way of registries: skipped where none is reached, and only there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import test_packages
from tests.compat import kafka_tools, made, programs, test_old_clients
from tests.compat.kafka_tools import Tools
from tests.compat.made import made_once
from tests.compat.programs import FranzGo, Java, Program
from tests.compat.test_old_clients import OLD
from tests.compat.test_other_clients import KafkaJs

MAKERS: dict[str, Callable[[], object]] = {
    "go": lambda: FranzGo().built(),
    "npm": lambda: KafkaJs().built(),
    "mvn": lambda: Java("4.4.0").built(),
    "mvn, jars": lambda: Tools("3.9.1").jars,
    "pip": lambda: test_old_clients.installed(OLD[0]),
    "mmdebstrap": lambda: test_packages.fill(programs.BUILT),
}
PROGRAMS_IN_EVERY_RUN = [
    pytest.param(tool, marks=pytest.mark.long) if tool == "mvn, jars" else tool for tool in MAKERS
]
"""Maven fails alike for jars where its registry cannot be reached."""
JARS_IN_EVERY_RUN = [
    pytest.param(tool, marks=pytest.mark.long) if tool == "mvn" else tool for tool in MAKERS
]
"""Maven fails alike for a program where its registry does not know a name."""
HANGS_S = 3
TIMEOUTS = [
    (programs, "BUILD_TIMEOUT_S"),
    (kafka_tools, "BRING_TIMEOUT_S"),
    (test_old_clients, "INSTALL_TIMEOUT_S"),
    (test_packages, "MIRROR_TIMEOUT_S"),
]
REFUSED = r"is not to be had: .*([Rr]efused|ECONNREFUSED)"
UNKNOWN = {
    "go": "404 Not Found",
    "npm": "E404",
    "mvn": "Could not find artifact",
    "mvn, jars": "Could not find artifact",
    "pip": "No matching distribution",
    "mmdebstrap": "404  Not Found",
}
"""What they say of a name that the registry does not know."""


class Empty(BaseHTTPRequestHandler):
    """A registry that has nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def nothing_made_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "BUILT", tmp_path / "built")
    monkeypatch.setattr(kafka_tools, "BUILT", tmp_path / "built")
    monkeypatch.setattr(test_old_clients, "OLD_CLIENTS", tmp_path / "built")


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give the tools a registry on a port of this machine, and nothing of what they have kept."""

    def use(port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setattr(test_packages, "MIRROR", (url,))
        settings = tmp_path / ".m2" / "settings.xml"
        settings.parent.mkdir()
        settings.write_text(
            f"<settings><localRepository>{tmp_path}/repository</localRepository><mirrors><mirror>"
            f"<id>own</id><mirrorOf>*</mirrorOf><url>{url}</url></mirror></mirrors></settings>"
        )
        for key, value in {
            "GOPROXY": url,
            "GOMODCACHE": f"{tmp_path}/modules",
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
            "npm_config_registry": url,
            "npm_config_cache": f"{tmp_path}/npm",
            "npm_config_fetch_retries": "0",
            "MAVEN_OPTS": f"{programs.MAVEN_OPTS} -Duser.home={tmp_path}",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": url,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "1",
        }.items():
            monkeypatch.setenv(key, value)
            monkeypatch.setitem(programs.ENVIRONMENT, key, value)

    return use


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port where nobody listens, and nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where whoever comes is taken in, and answered never: as of a registry that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def empty() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def needs(*commands: str) -> None:
    for command in commands:
        if shutil.which(command, path=programs.ENVIRONMENT["PATH"]) is None:
            pytest.skip(f"there is no {command}")
    if "chroot" in commands and os.geteuid() != 0:
        pytest.skip("a chroot needs root")


def needs_of(tool: str) -> tuple[str, ...]:
    command = tool.partition(",")[0]
    return {"pip": (), "mvn": Java.needs, "mmdebstrap": test_packages.HOST_NEEDS}.get(
        command, (command,)
    )


@pytest.mark.parametrize("tool", PROGRAMS_IN_EVERY_RUN)
def test_registry_that_cannot_be_reached_skips_and_says_why(
    tool: str, use: Callable[[int], None], refusing: int
) -> None:
    needs(*needs_of(tool))
    use(refusing)
    with pytest.raises(pytest.skip.Exception, match=REFUSED):
        MAKERS[tool]()


@pytest.mark.parametrize("tool", MAKERS)
def test_registry_that_never_answers_skips_and_says_why(
    tool: str, use: Callable[[int], None], silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(*needs_of(tool))
    use(silent)
    for module, name in TIMEOUTS:
        monkeypatch.setattr(module, name, HANGS_S)
    with pytest.raises(pytest.skip.Exception, match=f"is not to be had: .*after {HANGS_S} seconds"):
        MAKERS[tool]()


def test_registry_that_never_answers_is_waited_for_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who waits for its lock meanwhile, or comes later, has no time left to skip."""

    def hang(_: Path) -> None:
        raise subprocess.TimeoutExpired(["npm", "ci"], HANGS_S)

    with pytest.raises(pytest.skip.Exception, match=r"^one is not to be had: .*npm"):
        made_once(tmp_path / "one", hang, "npm")
    with pytest.raises(pytest.skip.Exception, match=r"^other is not to be had: .*npm"):
        made_once(tmp_path / "other", Path.touch, "npm")
    made_once(tmp_path / "other", Path.touch, "go")
    monkeypatch.setattr(made, "RUN", "the next")
    made_once(tmp_path / "one", Path.touch, "npm")


def test_what_asks_no_registry_fails_where_it_takes_too_long(tmp_path: Path) -> None:
    def hang(_: Path) -> None:
        raise subprocess.TimeoutExpired(["sleep"], HANGS_S)

    with pytest.raises((subprocess.TimeoutExpired, pytest.skip.Exception)) as told:
        made_once(tmp_path / "one", hang)
    assert told.type is subprocess.TimeoutExpired


@pytest.mark.parametrize("tool", JARS_IN_EVERY_RUN)
def test_name_that_the_registry_does_not_know_fails(
    tool: str, use: Callable[[int], None], empty: int
) -> None:
    needs(*needs_of(tool))
    use(empty)
    assert_fails(MAKERS[tool], UNKNOWN[tool])


def assert_fails(make: Callable[[], object], words: str) -> None:
    with pytest.raises((AssertionError, pytest.skip.Exception), match=words) as told:
        make()
    assert told.type is AssertionError  # a skip would be taken for this test's own


BROKEN = {
    "go, not compiled": (
        FranzGo,
        "main.go",
        "package main\n\nfunc main() { missing() }\n",
        "missing",
    ),
    "go, not read": (FranzGo, "main.go", "pakage main\n", "expected 'package'"),
    "go, not required": (
        FranzGo,
        "main.go",
        'package main\n\nimport "example.invalid/none"\n\nfunc main() { none.Do() }\n',
        "no required module provides",
    ),
    "npm, not read": (KafkaJs, "package.json", "{", "EJSONPARSE"),
    "mvn, not read": (lambda: Java("4.4.0"), "pom.xml", "<project></x>", "Non-parseable POM"),
}
"""Programs with one of their sources replaced, and the tool's words."""


@pytest.mark.parametrize("what", BROKEN)
def test_source_that_is_broken_fails(what: str, use: Callable[[int], None], refusing: int) -> None:
    """It needs no registry to find that out, so there is none."""
    needs(*needs_of(what))
    maker, name, text, words = BROKEN[what]
    program = with_source(maker(), name, text)
    use(refusing)
    assert_fails(program.built, words)


def with_source(program: Program, name: str, text: str) -> Program:
    """Return a program with copies of its sources, of which one is this text."""
    directory = programs.BUILT.parent / "sources"
    directory.mkdir()
    for source in program.sources:
        (directory / source.name).write_bytes(source.read_bytes())
    (directory / name).write_text(text)
    if name.endswith(".go"):  # alone, so that nothing is to be brought
        (directory / "go.mod").write_text("module broken\n\ngo 1.20\n")
        program.sources = tuple(directory / one for one in (name, "go.mod"))
        for other in directory.glob("*.go"):
            if other.name != name:
                other.unlink()
    else:
        program.sources = tuple(directory / source.name for source in program.sources)
    return program


def test_java_that_does_not_compile_fails() -> None:
    """Its compiler comes from the registry, too."""
    needs(*Java.needs)
    program = with_source(Java("4.4.0"), "Traffic.java", "class Traffic { Missing missing; }\n")
    try:
        assert_fails(program.built, "COMPILATION ERROR")
    except (AssertionError, pytest.skip.Exception):
        Java("4.4.0").built()  # skips if the compiler is not to be had
        raise
