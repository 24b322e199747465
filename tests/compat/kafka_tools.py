"""Apache Kafka's own tools, as its scripts start them.

Tools that run to their end share a JVM, a `ToolRunner`. `command` starts any other in a process.

The jars are Maven's, in the releases that `asv_bench/bench_kafka.py` measures beside plog. Where a
release keeps a tool's class is looked up in its jars: some have moved between packages.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.compat.made import made_once, not_made
from tests.compat.programs import BUILT, JAVA_TOOLS
from tests.compat.tool_runner import ToolRunner
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "asv_bench"))

import bench_kafka

RELEASES = ("3.9.1", "4.1.1")
TIMEOUT_S = 240
BRING_TIMEOUT_S = 280
GROUP = "org.apache.kafka"
LOGGER = ("org.slf4j", "slf4j-simple", "1.7.36")
"""Writes warnings and errors to stderr."""
JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)
HARMLESS = re.compile(
    r"Processed a total of \d+ messages|Consumer group '.*' has no active members\."
)
"""Lines of stderr that tell of nothing wrong."""
_runners: dict[Path, ToolRunner] = {}
"""Keys: the directories of their jars."""


class Tools:
    """The tools of one release.

    Args:
        release: the release.
        beside: artifacts to bring beside the broker, whose jars hold none of them.
    """

    def __init__(
        self, release: str, beside: Sequence[str] = ("kafka-tools", "connect-mirror")
    ) -> None:
        self.release = release
        self._beside = beside
        self._main_classes: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Kafka {self.release}"

    @property
    def jars(self) -> Path:
        """Where the release's jars are; Maven brings them the first time."""
        wanted = hashlib.sha256(repr(self._artifacts).encode()).hexdigest()
        directory = BUILT / f"kafka-{self.release}-{wanted[:12]}"
        return made_once(directory, self._make, "mvn") / "jars"

    @property
    def _artifacts(self) -> list[tuple[str, str, str]]:
        return [*((GROUP, name, self.release) for name in self._beside), LOGGER]

    def _make(self, made: Path) -> None:
        try:
            bench_kafka.bring_jars(self.release, made, *self._artifacts, timeout_s=BRING_TIMEOUT_S)
        except FileNotFoundError as error:
            pytest.skip(f"the jars of Kafka {self.release} are not to be had: {error}")
        except bench_kafka.load.LoadError as error:
            not_made(f"jars of Kafka {self.release}", str(error))

    @property
    def runner(self) -> ToolRunner:
        """Return this release's JVM for tools; each test process has its own."""
        if self.jars not in _runners:
            classes = JAVA_TOOLS.built() / "classes"
            _runners[self.jars] = ToolRunner(classes, self.jars, JVM_FLAGS)
        return _runners[self.jars]

    def main_class(self, name: str) -> str:
        """Return the class of a tool, with its package."""
        if name not in self._main_classes:
            self._main_classes[name] = self._find(name)
        return self._main_classes[name]

    def _find(self, name: str) -> str:
        patterns = ("kafka*.jar", "connect-mirror-*.jar", "zookeeper-3*.jar")
        for jar in sorted(jar for pattern in patterns for jar in self.jars.glob(pattern)):
            with zipfile.ZipFile(jar) as archive:
                for entry in archive.namelist():
                    if entry.endswith(f"/{name}.class"):
                        return entry.removesuffix(".class").replace("/", ".")
        raise AssertionError(f"Kafka {self.release} has no {name}")

    def command(self, name: str, *arguments: object, flags: Sequence[str] = ()) -> list[str]:
        """Return the command line of a tool, with more flags of the JVM."""
        return [
            "java",
            *JVM_FLAGS,
            *flags,
            "-cp",
            f"{self.jars}/*",
            self.main_class(name),
            *map(str, arguments),
        ]

    def run(self, name: str, *arguments: object, stdin: str = "", status: int = 0) -> str:
        """Run a tool to its end; return what it printed."""
        done = self._ended(name, *arguments, stdin=stdin)
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        # Some tell of what is wrong there and end with 0 all the same.
        assert status or not complaints(done), done.stderr
        return done.stdout

    def first_lines(self, name: str, *arguments: object, count: int) -> list[str]:
        """Run a tool that never ends until it has printed some lines; return those."""
        command = self.command(name, *arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            ends = threading.Timer(TIMEOUT_S, running.kill)
            ends.start()
            try:
                assert running.stdout is not None
                return list(itertools.islice(running.stdout, count))
            finally:
                ends.cancel()
                running.kill()

    def complaints(self, name: str, *arguments: object) -> list[str]:
        """Run a tool that ends with 0; return what it says is wrong."""
        return self.told(name, *arguments)[1]

    def told(self, name: str, *arguments: object) -> tuple[str, list[str]]:
        """Run a tool that ends with 0; return what it printed, and what it says is wrong."""
        done = self._ended(name, *arguments)
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout, complaints(done)

    def _ended(
        self, name: str, *arguments: object, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        if self.release in RELEASES:
            main_class = self.main_class(name)
            return self.runner.run(main_class, list(map(str, arguments)), stdin, TIMEOUT_S)
        # The runner does not know where later releases keep `Exit`.
        command = self.command(name, *arguments)
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of stderr that are not known to be harmless."""
    return [line for line in done.stderr.splitlines() if line and not HARMLESS.fullmatch(line)]


TOOLS = [Tools(release) for release in RELEASES]
