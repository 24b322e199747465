"""Apache Kafka as processes: what plog is held against. 3.9 with its ZooKeeper, and 4.1 by itself.

They are of the jars that the tools are of. All are started on free ports of 127.0.0.1 and ended by
their pids; a data directory may be one that plog has written, and is plog's to read afterwards.
"""

from __future__ import annotations

import fcntl
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kazoo.client import KazooClient

from plog.client.admin import Admin
from tests.compat.kafka_tools import TOOLS, Tools
from tests.compat.programs import QUIET
from tests.servers import free_port

START_TIMEOUT_S = 150
STOP_TIMEOUT_S = 120
KAFKA_3_9, KAFKA_4_1 = TOOLS
KAFKA_4_4 = Tools("4.4.0", ("kafka-tools",))
ZOOKEEPER_SETTINGS = """dataDir={directory}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
tickTime={tick_ms}
maxClientCnxns=0
forceSync=no
"""
"""Other tests keep the disk busy: without a sync for each write, sessions do not wait for it."""
TICK_MS = 500
"""Tests wait for sessions to end, which ZooKeeper looks for once in this time."""
KAFKA_SETTINGS = """broker.id=0
zookeeper.connect=127.0.0.1:{zookeeper_port}
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
KRAFT_SETTINGS = """process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
"""
CLUSTER_ID = "cGxvZy1iZXNpZGUta2Fma2E"
HARMLESS = {
    r"NetworkClient - \[Controller id=0, targetBrokerId=0\] Connection to node 0 .* could not be":
        "the controller is elected before its own broker listens, and ends after it",
    r"RequestSendThread controllerId=0\] Controller 0's connection to broker .* unsuccessful":
        "the same, told once more by who wanted to send",
    r"RequestSendThread controllerId=0\] Controller 0 epoch \d+ fails to send request":
        "the same, where the broker ends while a request is on its way",
    r"Group(?:Metadata)? - .*Failed to parse Consumer Protocol consumer:range of group":
        "members that tests play by hand tell of no topics, whoever coordinates them",
    r"Performing controller activation\. The metadata log appears to be empty":
        "the first start of one of 4.1, whose data directories hold topics' logs alone",
    r"Performing controller activation\.$":
        "a later start of one of 4.1",
    r"Attempting to close NetworkClient that has already been closed":
        "4.1 says so of its registration when it is stopped",
}  # fmt: skip
"""Warnings that say nothing of what is in a log directory, by what they match, each with why."""


def archive_of(tools: Tools, main_class: str) -> Path:
    """Return where the classes are kept that a server has loaded."""
    return tools.jars.parent / f"{main_class}.jsa"


def archived(tools: Tools) -> list[str]:
    """Return the flags by which another program of these jars reads a broker's archive."""
    archive = archive_of(tools, "Kafka")
    return [*QUIET, f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


class _Server:
    """A Java process with a port.

    `stops` is false for one that is killed in the end: that one writes no archive.
    """

    def __init__(
        self,
        tools: Tools,
        main_class: str,
        settings: str,
        where: Path,
        port: int,
        loggers: Sequence[str] = (),
        *,
        stops: bool = True,
    ) -> None:
        where.mkdir(parents=True, exist_ok=True)
        properties = where / "server.properties"
        properties.write_text(settings)
        self.port = port
        self.log_path = where / "server.log"
        flags = [f"-Dorg.slf4j.simpleLogger.log.{logger}=info" for logger in loggers]
        self._archive = archive_of(tools, main_class)
        self._new_archive = where / self._archive.name
        self._writing: BinaryIO | None = None
        """Locked by the one process whose JVM is to write the archive."""
        archived = self._archive_flags(stops=stops)
        command = tools.command(main_class, properties, flags=[*flags, *QUIET, *archived])
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=where
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.poll() is not None:
                raise AssertionError(f"{main_class} has ended:\n{self.log_path.read_text()}")
            if self._serves():
                break
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{main_class} does not listen:\n{self.log_path.read_text()}")
            time.sleep(0.1)

    def _serves(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def _archive_flags(self, *, stops: bool) -> list[str]:
        """Return the flags that read the archive of loaded classes, or write it at the end.

        Starting a broker with it takes half as long. Writing it takes longer than starting without
        it: of all that run at a time, one does so.
        """
        if self._archive.exists():
            return [f"-XX:SharedArchiveFile={self._archive}"]
        if not stops:
            return []
        writing = self._archive.with_suffix(".lock").open("wb")
        try:
            fcntl.flock(writing, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            writing.close()
            return []
        if self._archive.exists():  # since the first look
            writing.close()
            return self._archive_flags(stops=stops)
        self._writing = writing
        return [f"-XX:ArchiveClassesAtExit={self._new_archive}"]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def complaints(self) -> list[str]:
        """What it logged as an error or a warning, or of a log that it had to mend.

        Less what is `HARMLESS`.
        """
        text = self.log_path.read_text()
        lines = re.findall(r"^(?:WARN|ERROR|FATAL).*|.*[Cc]orrupt.*", text, re.MULTILINE)
        return [line for line in lines if not any(re.search(one, line) for one in HARMLESS)]

    def stop(self) -> None:
        """End it by SIGTERM, cleanly."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        if self._new_archive.exists():
            self._keep_archive()
        self._let_others_write()

    def _keep_archive(self) -> None:
        """Move the archive to the jars. Its name appears there when it is complete."""
        with tempfile.NamedTemporaryFile(dir=self._archive.parent, delete=False) as copy:
            copy.write(self._new_archive.read_bytes())
        Path(copy.name).rename(self._archive)
        self._new_archive.unlink()

    def _let_others_write(self) -> None:
        if self._writing is not None:
            self._writing.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._let_others_write()


def mode_of(host: str, port: int) -> str:
    """Return a ZooKeeper server's part among others; nothing if it does not serve."""
    try:
        with socket.create_connection((host, port), 5) as asked:
            asked.sendall(b"srvr")
            text = asked.makefile().read()
    except OSError:
        return ""
    return text.partition("Mode: ")[2].partition("\n")[0]


class ZooKeeper(_Server):
    """One ZooKeeper server."""

    def __init__(self, directory: Path, *, stops: bool = True, tick_ms: int = TICK_MS) -> None:
        port = free_port()
        settings = ZOOKEEPER_SETTINGS.format(
            directory=directory / "zookeeper", port=port, tick_ms=tick_ms
        )
        super().__init__(KAFKA_3_9, "ZooKeeperServerMain", settings, directory, port, stops=stops)

    def _serves(self) -> bool:
        # It listens a moment before, and never answers clients that connect then.
        return mode_of("127.0.0.1", self.port) == "standalone"

    @contextmanager
    def client(self) -> Iterator[KazooClient]:
        """Return a client of it, started."""
        client = KazooClient(f"127.0.0.1:{self.port}")
        client.start(START_TIMEOUT_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()


class Kafka(_Server):
    """One broker of Kafka 3.9, in ZooKeeper mode, on a data directory.

    Args:
        directory: for its settings and log.
        data: its log.dirs.
        extra: lines of server.properties.
        loggers: of which more than warnings are in its log.
        stops: whether it is stopped in the end, or killed.
    """

    def __init__(
        self,
        directory: Path,
        data: Path,
        zookeeper: ZooKeeper,
        extra: str = "",
        loggers: Sequence[str] = (),
        *,
        stops: bool = True,
    ) -> None:
        port = free_port()
        settings = KAFKA_SETTINGS.format(zookeeper_port=zookeeper.port, port=port, directory=data)
        settings += extra
        super().__init__(KAFKA_3_9, "Kafka", settings, directory, port, loggers, stops=stops)
        self._wait_for_controller()

    def _wait_for_controller(self) -> None:
        """It listens before it is elected, and librdkafka asks who is but once in five minutes."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with Admin(self.bootstrap) as admin:
            while admin.controller_id() not in {node.node_id for node in admin.nodes()}:
                assert time.monotonic() < deadline, self.log_path.read_text()
                time.sleep(0.1)


class KraftKafka(_Server):
    """One broker of Kafka 4, its own controller, on a data directory: an empty one, or its own.

    Args:
        directory: for its settings and log.
        extra: lines of server.properties.
        tools: of its release.
        stops: whether it is stopped in the end, or killed.
    """

    def __init__(
        self, directory: Path, extra: str = "", tools: Tools = KAFKA_4_1, *, stops: bool = True
    ) -> None:
        port = free_port()
        settings = KRAFT_SETTINGS.format(port=port, controller_port=free_port()) + extra
        directory.mkdir(parents=True, exist_ok=True)
        formatted = directory / "format.properties"
        formatted.write_text(settings)
        tools.run("StorageTool", "format", "-g", "-c", formatted, "-t", CLUSTER_ID)
        super().__init__(tools, "Kafka", settings, directory, port, stops=stops)


@contextmanager
def kafka(directory: Path, data: Path, extra: str = "") -> Iterator[tuple[Kafka, ZooKeeper]]:
    """Run both for a while; they stop cleanly."""
    zookeeper = ZooKeeper(directory / "zookeeper")
    try:
        broker = Kafka(directory / "kafka", data, zookeeper, extra)
        try:
            yield broker, zookeeper
        finally:
            broker.stop()
    finally:
        zookeeper.stop()
