"""The servers that bin/bench measures, each on a directory of its own: plog, Apache Kafka, C loops.

Each is asked for a topic, says which process to watch, and tells at its stop what it
has counted.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import bench_load
import bench_old_log

from plog.client.admin import Admin
from plog.client.metadata import PartitionInfo
from plog.errors import PlogError, UnknownTopicOrPartition
from plog.ops import load
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import CLEAN_SHUTDOWN_FILE
from plog.storage.shutdown_record import ShutdownRecord
from plog.types import TopicPartition

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
TOPIC = "bench"
OLD_BATCH_BYTES = 16_384
REQUESTS = re.compile(r"(\d+) requests, (\d+) of them on the fast path; passed to Python: (.*)")
# A thread that never lets go of the interpreter lock by itself, in the broker's process.
SPINNING = """
import sys, threading
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
from plog.cli import main
main(sys.argv[1:])
"""


class Topic(NamedTuple):
    """A topic as requests name it."""

    name: str
    id: uuid.UUID
    leader_epoch: int
    first_offset: int = 0  # of every partition: where the load's own records begin


class Counted(NamedTuple):
    """What a server says of itself at its end: requests by the reason why Python answered them."""

    most_rss_mb: float
    by_python: dict[str, int] | None = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def most_rss_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0


class Server(ABC):
    """One server that runs from the time it is made until `stop`, or until `kill`."""

    port: int
    pid: int
    start_s: float | None = None
    """From exec until it answers, where anybody waits for that."""

    @abstractmethod
    def create_topic(self, partitions: int) -> Topic:
        """Make the topic of the measurement."""

    @abstractmethod
    def stop(self) -> Counted:
        """End it in order."""

    @abstractmethod
    def kill(self) -> None:
        """End it, if it still runs."""


class ProcessServer(Server):
    """A broker in a process, with its log in a file."""

    topic_name = TOPIC

    def __init__(self, command: list[str], log: Path, port: int) -> None:
        self.port = port
        self.log = log
        self._command = command
        self._start()

    def _start(self) -> None:
        begun = time.monotonic()
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.pid = self._process.pid
        while not self._is_there():
            if self._process.poll() is not None or time.monotonic() > begun + START_TIMEOUT_S:
                self.kill()
                raise load.LoadError(f"{self._command[0]} does not start:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.start_s = time.monotonic() - begun

    def _is_there(self) -> bool:
        try:
            with Admin(f"127.0.0.1:{self.port}", request_timeout_ms=2_000) as admin:
                return bool(admin.nodes())
        except PlogError:
            return False

    def create_topic(self, partitions: int) -> Topic:
        with Admin(f"127.0.0.1:{self.port}") as admin:
            admin.create_topic(self.topic_name, partitions=partitions, replication_factor=1)
        return self._topic(partitions)

    def _topic(self, partitions: int) -> Topic:
        """Return the topic as soon as all of it has a leader; just made, it may be unknown yet."""
        with Admin(f"127.0.0.1:{self.port}") as admin:
            deadline = time.monotonic() + START_TIMEOUT_S
            led: list[PartitionInfo] = []
            while time.monotonic() < deadline:
                with suppress(UnknownTopicOrPartition):
                    topic = admin.topic(self.topic_name)
                    led = [part for part in topic.partitions.values() if part.leader_id >= 0]
                if len(led) == partitions:
                    return Topic(topic.name, topic.topic_id, led[0].leader_epoch)
                time.sleep(0.1)
        raise load.LoadError(f"{partitions - len(led)} partitions lack a leader")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> Counted:
        rss = most_rss_mb(self.pid)
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise load.LoadError(f"it does not stop:\n{self.log.read_text()}") from None
        return self._counted(rss)

    def _counted(self, rss: float) -> Counted:
        return Counted(rss)

    def kill(self) -> None:
        if self.is_running:
            self._process.kill()
            self._process.wait()


class Plog(ProcessServer):
    def __init__(self, directory: Path, *, spinning: bool = False, **overrides: object) -> None:
        port = free_port()
        self.log_dir = directory / "data"
        self._program = ("-c", SPINNING) if spinning else ("-m", "plog")
        self._settings: dict[str, object] = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": self.log_dir,
            "broker.id": 0,
        }
        super().__init__(self._command_with(overrides), directory / "plog.log", port)

    def _command_with(self, overrides: dict[str, object]) -> list[str]:
        """Return what starts it, with these settings beside those that it has, from now on."""
        self._settings |= {name.replace("_", "."): value for name, value in overrides.items()}
        command = [sys.executable, *self._program, "server"]
        for name, value in self._settings.items():
            command += ["--override", f"{name}={value}"]
        return command

    def restart(self, **overrides: object) -> None:
        """Start it again after its stop, with other settings."""
        self._command = self._command_with(overrides)
        self._start()

    def _counted(self, rss: float) -> Counted:
        # A server that was restarted has logged a line at each stop.
        *_, last = [None, *REQUESTS.finditer(self.log.read_text())]
        if last is None:
            raise load.LoadError(
                f"the broker has not logged its request counts:\n{self.log.read_text()}"
            )
        reasons = [text.rpartition(" ") for text in last[3].split(", ") if text != "none"]
        return Counted(rss, {reason: int(count) for reason, _, count in reasons})


@contextmanager
def running(where: Path, **overrides: object) -> Iterator[Plog]:
    """Run a broker on an empty directory in `where`, which goes with it."""
    directory = Path(tempfile.mkdtemp(dir=where, prefix="server-"))
    try:
        server = Plog(directory, **overrides)
        try:
            yield server
            if server.is_running:
                server.stop()
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)


class PlogWithOldLog(Plog):
    """A broker whose topic holds that much in old segments, and has been started on them.

    It does not scrub: the segments have holes.
    """

    def __init__(self, directory: Path, old_bytes: int) -> None:
        self._old_bytes = old_bytes
        self._batch = load.make_batch(directory / "old-batch", OLD_BATCH_BYTES)
        super().__init__(directory, log_scrub_bytes_per_second=0)

    def create_topic(self, partitions: int) -> Topic:
        topic = super().create_topic(partitions)
        self.stop()
        directories = {
            TopicPartition(topic.name, number): self.log_dir / f"{topic.name}-{number}"
            for number in range(partitions)
        }
        for directory in directories.values():
            first_offset = bench_old_log.write_old_segments(
                directory, self._batch, self._old_bytes // partitions
            )
        # As if the broker had closed them: a start would take the holes for damage.
        record = ShutdownRecord(Filesystem(), self.log_dir)
        record.store(self.log_dir / CLEAN_SHUTDOWN_FILE, directories.items())
        self._start()
        return self._topic(partitions)._replace(first_offset=first_offset)


class CLoop(Server):
    """One of the generator's own servers: what the machine allows."""

    def __init__(self, directory: Path, mode: str, **options: object) -> None:
        self._directory, self._mode, self._options = directory, mode, options
        self._server: bench_load.CServer | None = None

    def create_topic(self, partitions: int) -> Topic:
        """Start the server, which wants to know the topic."""
        topic = Topic(TOPIC, uuid.uuid4(), 0)
        options = dict(self._options)
        if "total_bytes" in options:
            options["file_bytes"] = int(str(options.pop("total_bytes"))) // partitions
        self._server = bench_load.CServer(
            self._mode,
            directory=self._directory,
            topic=topic.name,
            topic_id=topic.id,
            partitions=partitions,
            **options,
        )
        self.port, self.pid = self._server.port, self._server.pid
        return topic

    def stop(self) -> Counted:
        assert self._server is not None
        counted = Counted(most_rss_mb(self.pid))
        if said := self._server.stop():
            raise load.LoadError(said)
        return counted

    def kill(self) -> None:
        if self._server is not None:
            self._server.stop()
