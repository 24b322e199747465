"""The brokers that bin/bench-cluster measures: alone, or three on a ZooKeeper.

Each is a process with a health page. Owns their directories and their ends. A cluster keeps a
connection to each broker, and asks each for its own view.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bench_load
from bench_machine import cpu_s_of, memory_of, wake_ups_of

sys.path.insert(0, str(bench_load.ROOT))

from plog.errors import ErrorCode, PlogError
from plog.ops.load import LoadError
from plog.ops.pages.paths import READY
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from plog.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from tests.handlers.wire import (
    Speaker,
    create_topic_request,
    flat,
    make_batch,
    produce_request,
    speak,
)
from tests.servers import free_port

PATIENCE_S = 120.0
PAUSE_S = 0.01
STOP_TIMEOUT_S = 60.0
NO_LEADER = -1
SLEEPER_WAKE_UPS = 5
SLEEPER_START_S = 1.0


def until(happened: Callable[[], bool], what: str) -> None:
    """Look again and again. Raises LoadError when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            raise LoadError(f"not {what} in {PATIENCE_S:g} s")
        time.sleep(PAUSE_S)


class Broker:
    """One broker on its own directory. It keeps its port over restarts."""

    def __init__(self, directory: Path, broker_id: int, **settings: object) -> None:
        self.id = broker_id
        self.port, self._health_port = free_port(), free_port()
        self.directory = directory / f"broker-{broker_id}"
        self._log = self.directory.with_suffix(".log")
        given: dict[str, object] = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "metrics.listener": f"127.0.0.1:{self._health_port}",
            "log.dirs": self.directory,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        self._command = [sys.executable, "-m", "plog", "server"]
        for key, value in given.items():
            self._command += ["--override", f"{key}={value}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._begun_s = 0.0
        self._connection: Speaker | None = None

    def start(self) -> None:
        """Start the process; do not wait for it."""
        self._begun_s = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=bench_load.ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def ready_s(self) -> float:
        """Wait until the broker is ready; return the time since its exec."""
        until(self._is_ready, f"ready: broker {self.id}")
        return time.monotonic() - self._begun_s

    def _is_ready(self) -> bool:
        if not self.is_running:
            raise LoadError(f"broker {self.id} does not start:\n{self._log.read_text()}")
        asked = http.client.HTTPConnection("127.0.0.1", self._health_port, timeout=PATIENCE_S)
        try:
            asked.request("GET", READY)
            return asked.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            asked.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LoadError(f"broker {self.id} is not started")
        return self._process.pid

    def connection(self) -> Speaker:
        """Return the connection to this broker; open it if necessary."""
        if self._connection is None or not self._connection.is_usable:
            self.hang_up()
            self._connection = speak(self.port, client_id="bench")
        return self._connection

    def hang_up(self) -> None:
        """Close the connection: the broker idles without clients."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def metadata(self, *, topics: bool = True) -> MetadataResponse:
        """Return what this broker says of its cluster, with all topics or with none."""
        request = MetadataRequest(topics=None if topics else [], allow_auto_topic_creation=False)
        return self.connection().call(request, MetadataResponse)

    def stop(self) -> None:
        """End the broker in order."""
        self.hang_up()
        if self._process is not None:
            self._process.terminate()
            if self._process.wait(STOP_TIMEOUT_S) != 0:
                raise LoadError(f"broker {self.id} did not stop:\n{self._log.read_text()}")
            self._process = None

    def kill(self) -> None:
        """End the broker by SIGKILL."""
        self.hang_up()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def until_acknowledges(self, topic: str, partition: int) -> None:
        """Wait until this broker acknowledges a record."""
        until(lambda: self._acknowledges(topic, partition), f"acknowledged: {topic}-{partition}")

    def _acknowledges(self, topic: str, partition: int) -> bool:
        """Return whether this broker acknowledges a record of a partition."""
        request = produce_request([(topic, partition, make_batch())])
        try:
            (part,) = flat(self.connection().ask(request))
        except PlogError:  # the broker does not listen yet
            self.hang_up()
            return False
        return part.error_code == ErrorCode.NONE


class Usage:
    """Memory, processor time and wake-ups of idle processes.

    Attributes:
        rss_mb: of the largest.
        cpu_percent: of the busiest, in percent of a processor.
        wake_ups: a second, of the one that wakes most often.
    """

    def __init__(self, pids: Sequence[int], seconds: float) -> None:
        before = [(cpu_s_of(pid), wake_ups_of(pid)) for pid in pids]
        begun_s = time.monotonic()
        time.sleep(seconds)
        passed_s = time.monotonic() - begun_s
        self.rss_mb = max(memory_of(pid).rss_mb for pid in pids)
        used = [
            (cpu_s_of(pid) - cpu_s, wake_ups_of(pid) - wake_ups)
            for pid, (cpu_s, wake_ups) in zip(pids, before, strict=True)
        ]
        self.cpu_percent = max(cpu_s for cpu_s, _ in used) / passed_s * 100
        self.wake_ups = max(wake_ups for _, wake_ups in used) / passed_s


SLEEPER = f"import time\nwhile True: time.sleep({1 / SLEEPER_WAKE_UPS})"


@contextmanager
def sleeper() -> Iterator[int]:
    """Run a process that only sleeps, and wakes SLEEPER_WAKE_UPS times a second; yield its pid.

    What it uses is this host's price of waking: no idle broker can use less for each time.
    """
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as process:
        time.sleep(SLEEPER_START_S)
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def running(brokers: Sequence[Broker]) -> Iterator[None]:
    """Leave no process of these behind."""
    try:
        yield
    finally:
        for broker in brokers:
            broker.kill()


class Cluster:
    """Brokers 0, 1 and 2 below one path of a ZooKeeper."""

    SIZE = 3

    def __init__(self, directory: Path, connect: str, session_ms: int, **settings: object) -> None:
        self._directory = directory
        self._settings = {
            "zookeeper_connect": connect,
            "zookeeper_session_timeout_ms": session_ms,
            **settings,
        }
        self.brokers = [self.new_broker(number) for number in range(self.SIZE)]

    def new_broker(self, broker_id: int) -> Broker:
        """Return a broker that is not started."""
        return Broker(self._directory, broker_id, **self._settings)

    @property
    def live(self) -> list[Broker]:
        """The brokers that run."""
        return [broker for broker in self.brokers if broker.is_running]

    def start(self) -> float:
        """Start all at once; return when the last of them was ready, since its exec."""
        for broker in self.brokers:
            broker.start()
        slowest_s = max(broker.ready_s() for broker in self.brokers)
        self.until_known()
        return slowest_s

    def hang_up(self) -> None:
        """Close all connections."""
        for broker in self.brokers:
            broker.hang_up()

    @property
    def controller(self) -> Broker:
        """The controller, as the first live broker says."""
        return self.brokers[self.live[0].metadata(topics=False).controller_id]

    def until_known(self) -> None:
        """Wait until every live broker knows exactly the live ones, and one of them controls."""
        ids = {broker.id for broker in self.live}

        def is_known() -> bool:
            found = [broker.metadata(topics=False) for broker in self.live]
            return all(
                {one.node_id for one in seen.brokers} == ids and seen.controller_id in ids
                for seen in found
            )

        until(is_known, "known to each other")

    def until_led(self, count: int) -> None:
        """Wait until every live broker knows so many partitions, and each has its leader.

        The leader is the broker of the one replica, and none while that broker is away.
        """
        ids = {broker.id for broker in self.live}

        def is_led() -> bool:
            return all(_led(broker.metadata(), ids) == count for broker in self.live)

        until(is_led, f"led: {count} partitions")

    def led_by(self, broker: Broker) -> tuple[str, int]:
        """Return a partition that a broker leads."""
        for topic in broker.metadata().topics:
            for part in topic.partitions:
                if topic.name and part.leader_id == broker.id:
                    return topic.name, part.partition_index
        raise LoadError(f"broker {broker.id} leads nothing")

    def create(self, topics: Sequence[str], partitions: int) -> None:
        """Create topics by one request to the controller. Raises LoadError if it refuses."""
        refused = self._refusals(topics, partitions)
        if refused:
            raise LoadError(f"topics are not created: {refused}")

    def until_created(self, topic: str) -> None:
        """Create a topic of one partition, by as many requests as it takes."""
        until(lambda: not self._refusals([topic], 1), f"created: {topic}")

    def _refusals(self, topics: Sequence[str], partitions: int) -> dict[str | None, str]:
        whole = create_topic_request(topics[0], partitions)
        request = CreateTopicsRequest(
            topics=[create_topic_request(one, partitions).topics[0] for one in topics],
            timeout_ms=whole.timeout_ms,
        )
        answer = self.controller.connection().call(request, CreateTopicsResponse)
        return {
            one.name: ErrorCode(one.error_code).name
            for one in answer.topics
            if one.error_code != ErrorCode.NONE
        }


def _led(seen: MetadataResponse, live: set[int]) -> int:
    """Return how many partitions have the leader that they should have."""
    return sum(
        part.leader_id == (part.replica_nodes[0] if part.replica_nodes[0] in live else NO_LEADER)
        for topic in seen.topics
        for part in topic.partitions
    )
