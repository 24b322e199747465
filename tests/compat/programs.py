"""Clients that are no Python: programs that do what `traffic` says, built when first wanted.

`java/Traffic.java` is built by Maven for each release of kafka-clients, `go/main.go` by Go, each
with programs beside it that make the requests of administrators and consume in groups. That happens
once for each state of their sources; what is made lies in .venv. `go/` is also built for an older
release of franz-go (`old.mod`), without the files that this release cannot compile.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.compat.jvm import HostedProgram, jvm_of
from tests.compat.made import made_once, not_made
from tests.compat.traffic import Shape
from tests.conftest import ROOT
from tests.servers import BrokerProcess

HERE = Path(__file__).parent
BUILT = ROOT / ".venv" / "built-clients"
# Runs take a second or two: neither the best code nor collecting in parallel pays.
SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
MAVEN_OPTS = " ".join([*SHORT_RUN, os.environ.get("MAVEN_OPTS", "")])
# Where the machine's Go is too old, bin/test has installed one there.
# Without cgo, Go compiles less of its library.
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
    "CGO_ENABLED": "0",
    "MAVEN_OPTS": MAVEN_OPTS,
    # Go's compiler collects garbage less often.
    "GOGC": "400",
}
# By their whole names: who asks for a plugin by its prefix is not told why it is not to be had.
COMPILE = "org.apache.maven.plugins:maven-compiler-plugin:compile"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
# Compiling takes far longer than the runs do, so nothing is optimised, and one thread compiles each
# package: more take more processor time.
GO_BUILD = ("go", "build", "-gcflags=all=-N -l -dwarf=false -c=1", "-ldflags=-s -w")
BUILD_TIMEOUT_S = 280
JAR, ARCHIVE = "classes.jar", "classes.jsa"
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""The JVM says nothing of an archive."""
MEMBER, WORKER = "GroupMember", "TransactionalWorker"
"""Java's programs that tests kill, or do not."""
RUN_TIMEOUT_S = 180


class Run(NamedTuple):
    """Topics to write to and read, and settings of the producer, with _ for dots."""

    topics: Sequence[str]
    settings: dict[str, object]

    def __str__(self) -> str:
        given = [f"{key.replace('_', '.')}={value}" for key, value in self.settings.items()]
        return " ".join([*self.topics, *given])


class Program(ABC):
    """One client library in one release."""

    name: str
    sources: Sequence[Path]
    needs: Sequence[str]
    """Commands that build it and run it; the first has a registry."""

    @abstractmethod
    def build_command(self, made: Path) -> list[str]:
        """Return what builds it into a directory."""

    @abstractmethod
    def run_command(self, directory: Path) -> list[str]:
        """Return what starts it there."""

    def built(self) -> Path:
        """Return the program's directory; build it there the first time."""
        state = hashlib.sha256(b"\0".join(path.read_bytes() for path in self.sources)).hexdigest()
        return made_once(BUILT / f"{self.name}-{state[:12]}", self._build, self.needs[0])

    def _build(self, made: Path) -> None:
        missing = [one for one in self.needs if shutil.which(one, path=ENVIRONMENT["PATH"]) is None]
        if missing:
            pytest.skip(f"{self.name} is not built without {', '.join(missing)}")
        done = subprocess.run(
            self.build_command(made),
            cwd=self.sources[0].parent,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
        if done.returncode:
            not_made(self.name, (done.stdout + done.stderr).strip())

    def run(self, bootstrap: str, shape: Shape, *runs: Run, may_warn: bool = False) -> None:
        """Have it write and read; it checks the records that it reads.

        Args:
            may_warn: its client has a reason to warn. Otherwise that is an error, too.
        """
        numbers = shape.partitions, shape.rounds, shape.records_per_round
        said = self._run([bootstrap, *map(str, (*numbers, *runs))], may_warn=may_warn)
        assert said.split() == [str(shape.total(len(one.topics))) for one in runs]

    def _run(self, arguments: Sequence[str], *, may_warn: bool) -> str:
        command = [*self.run_command(self.built()), *arguments]
        return run_program(command, may_warn=may_warn)


class Administrator(Program):
    """One that makes the requests of administrators too."""

    @abstractmethod
    def administration_command(self, directory: Path) -> list[str]:
        """Return what makes every request of an administrator."""

    def administer(self, bootstrap: str, topic: str) -> None:
        """Have it ask for whatever administrators may, of a topic that has records."""
        self._administer([bootstrap, topic])

    def _administer(self, arguments: Sequence[str]) -> str:
        return run_program([*self.administration_command(self.built()), *arguments])


def run_program(command: list[str], *, may_warn: bool = False) -> str:
    """Return the output of a program. Raises AssertionError if it fails, or warns of something."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert may_warn or not done.stderr.strip(), done.stderr
    return done.stdout


class Java(Administrator):
    """Kafka's own client."""

    sources = tuple(
        HERE / "java" / name
        for name in (
            "pom.xml",
            "Traffic.java",
            "Administration.java",
            "GroupMember.java",
            "Load.java",
            "TransactionalWorker.java",
            "LateProducer.java",
            "CommittedOffsets.java",
            "HistoryProducer.java",
            "Apis.java",
            "Host.java",
        )
    )
    needs = ("mvn", "java")
    starts_often = True

    def __init__(self, release: str) -> None:
        self.release = release
        self.name = f"kafka-clients-{release}"

    def build_command(self, made: Path) -> list[str]:
        settings = [f"-Dkafka.version={self.release}", f"-Doutput={made}"]
        return ["mvn", "--batch-mode", "--quiet", *settings, COMPILE, COPY_DEPENDENCIES]

    def start(self, main_class: str, arguments: Sequence[str], stderr: Path) -> HostedProgram:
        """Start a program in the JVM that all of this release share; it cannot be killed."""
        return jvm_of(*self._command(self.built(), "Host")).start(main_class, arguments, stderr)

    def run_hosted(
        self, main_class: str, arguments: Sequence[str], *, may_warn: bool = False
    ) -> str:
        """Run a program in that JVM and return its output, as `run_program`."""
        jvm = jvm_of(*self._command(self.built(), "Host"))
        said, complaints = jvm.run(main_class, arguments, RUN_TIMEOUT_S)
        assert may_warn or not complaints.strip(), complaints
        return said

    def _run(self, arguments: Sequence[str], *, may_warn: bool) -> str:
        return self.run_hosted("Traffic", arguments, may_warn=may_warn)

    def _administer(self, arguments: Sequence[str]) -> str:
        return self.run_hosted("Administration", arguments)

    def run_command(self, directory: Path) -> list[str]:
        return self._command(directory, "Traffic")

    def administration_command(self, directory: Path) -> list[str]:
        return self._command(directory, "Administration")

    def member_command(self, directory: Path) -> list[str]:
        """Return what starts a member of a group, but for its arguments."""
        return self._command(directory, MEMBER)

    def worker_command(self, directory: Path) -> list[str]:
        """Return what starts a transactional worker, but for its arguments."""
        return self._command(directory, WORKER)

    def late_command(self, directory: Path) -> list[str]:
        """Return what starts a producer whose transaction takes too long, but for its arguments."""
        return self._command(directory, "LateProducer")

    def history_command(self, directory: Path) -> list[str]:
        """Return what starts a producer that writes down what it does, but for its arguments."""
        return self._command(directory, "HistoryProducer")

    def apis_command(self) -> list[str]:
        """Return the command that prints the APIs of the release, without its arguments."""
        return self._command(self.built(), "Apis")

    def load_command(self, directory: Path, flags: Sequence[str] = ()) -> list[str]:
        """Return what starts a load of benchmarks, which is measured: by the JVM's own defaults."""
        return self._command(directory, "Load", flags)

    def _command(
        self, directory: Path, main_class: str, flags: Sequence[str] = SHORT_RUN
    ) -> list[str]:
        classes = directory / "classes"
        if flags == SHORT_RUN and self.starts_often:
            archive = made_once(directory / "loaded", functools.partial(self._load, directory))
            classes = directory / JAR
            flags = [*flags, *QUIET, f"-XX:SharedArchiveFile={archive / ARCHIVE}"]
        return _java(classes, main_class, flags)

    def _load(self, directory: Path, made: Path) -> None:
        """Have a worker copy one record, and write an archive of the classes it has loaded.

        With the archive, a client starts in half the processor time. An archive can only contain
        classes from jars.
        """
        zipped = shutil.make_archive(str(directory / "classes"), "zip", directory / "classes")
        Path(zipped).rename(directory / JAR)
        flags = [*SHORT_RUN, *QUIET, f"-XX:ArchiveClassesAtExit={made / ARCHIVE}"]
        with tempfile.TemporaryDirectory() as data, BrokerProcess(Path(data)) as broker:
            with Admin(broker.bootstrap) as admin:
                for topic in ("source", "target"):
                    admin.create_topic(topic, partitions=1)
            with Producer(broker.bootstrap) as producer:
                producer.send("source", b"1")
            command = [
                *_java(directory / JAR, WORKER, flags),
                *("source", "target", "0", "0"),
                f"bootstrap.servers={broker.bootstrap}",
                "group.id=g",
                "auto.offset.reset=earliest",
                "max.poll.records=1",
                "producer.transactional.id=t",
            ]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                assert b"committed" in worker.stdout.readline()
                worker.stdin.close()
                assert worker.wait(RUN_TIMEOUT_S) == 0


def _java(classes: Path, main_class: str, flags: Sequence[str]) -> list[str]:
    """Return what starts a program of these classes, which have their dependencies beside them."""
    return [
        "java",
        *flags,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{classes}:{classes.parent / 'dependency'}/*",
        main_class,
    ]


class Streams(Java):
    """A small application of Kafka Streams."""

    starts_often = False
    sources = tuple(HERE / "streams" / name for name in ("pom.xml", "ExactlyOnce.java"))

    def __init__(self, release: str) -> None:
        super().__init__(release)
        self.name = f"kafka-streams-{release}"

    def command(self) -> list[str]:
        """Return what starts it, but for its arguments."""
        return self._command(self.built(), "ExactlyOnce")


class JavaTools(Java):
    """`ToolRunner`, which runs Kafka's tools, and `Ending`, which its tests run."""

    sources = tuple(
        HERE / "java_tools" / name for name in ("pom.xml", "ToolRunner.java", "Ending.java")
    )

    def __init__(self, release: str) -> None:
        super().__init__(release)
        self.name = f"kafka-tool-runner-{release}"


class FranzGo(Administrator):
    """franz-go; its members of groups speak either protocol."""

    name = "franz-go"
    sources = tuple(
        HERE / "go" / name
        for name in ("main.go", "administration.go", "group.go", "member.go", "go.mod", "go.sum")
    )
    needs = ("go",)
    options: Sequence[str] = ()

    def build_command(self, made: Path) -> list[str]:
        return [*GO_BUILD, *self.options, "-o", str(made / "traffic"), "."]

    def run_command(self, directory: Path) -> list[str]:
        return [str(directory / "traffic")]

    def administration_command(self, directory: Path) -> list[str]:
        return [*self.run_command(directory), "administer"]

    def group_command(self, directory: Path) -> list[str]:
        """Return what consumes in a group, but for its arguments."""
        return [*self.run_command(directory), "group"]

    def member_command(self, directory: Path) -> list[str]:
        """Return what starts a member of a group of KIP-848, but for its arguments."""
        return [*self.run_command(directory), "member"]


class OldFranzGo(FranzGo):
    """franz-go in a release that knows the classic protocol of groups alone.

    It is named by its package: rows of COMPATIBILITY that name franz-go are of the new release.
    """

    name = "kgo-1.18"
    sources = tuple(
        HERE / "go" / name
        for name in ("main.go", "administration.go", "group.go", "old.mod", "old.sum")
    )
    options = ("-modfile=old.mod", "-tags=old")


# The last line that still knew ZooKeeper, and the newest.
JAVA = [Java("3.9.1"), Java("4.4.0")]
# The class built with the older of the tools' releases runs with both.
JAVA_TOOLS = JavaTools("3.9.1")
STREAMS = [Streams("3.9.1"), Streams("4.1.1")]
FRANZ_GO = FranzGo()
RELEASES_OF_FRANZ_GO = [FRANZ_GO, pytest.param(OldFranzGo(), marks=pytest.mark.long)]
"""To compile a release costs more than all its tests: the old one runs with `--long`."""
