"""Real broker processes for the tests: on a free port of 127.0.0.1, ended by pid."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from plog.ops.pages.paths import READY
from plog.ops.pages.probes import Phase
from tests import several_brokers
from tests.forks import Forked
from tests.planes import ORACLE, Plane, broker_settings, environment_of, plane_or_default
from tests.suspension import resume, suspend
from tests.waiting import until

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 90


def _ports() -> Iterator[int]:
    """Yield this process's share of the ports below those that connections are given.

    A broker that is away for a moment finds its own again: neither a client nor the tests of
    another process come upon it meanwhile.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = range(10_000 + worker, 32_000, workers)
    first = random.randrange(len(share))
    return itertools.cycle([*share[first:], *share[:first]])


_free_ports = _ports()


def free_port() -> int:
    for port in _free_ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports go round")


def _of_plane(command: list[str], plane: Plane) -> list[str]:
    if plane is Plane.FAST:
        return command
    if "-m" in command:
        at = command.index("-m") + 1
        return [*command[:at], command[at].replace("plog", "tests.oracle"), *command[at + 1 :]]
    return [word.replace(" -m plog ", " -m tests.oracle ") for word in command]


class BrokerProcess:
    """One `plog server`, with its directory, its port and its log.

    The port stays the same over restarts, so that clients come back to the broker they know.
    Where a test is on several brokers (tests/several_brokers.py), this is the first of them. Its
    peers start, stop and are killed with it; `bootstrap`, `log` and `log_dirs` are those of all.
    """

    def __init__(
        self,
        directory: Path,
        *,
        overrides: dict[str, object] | None = None,
        plane: Plane | None = None,
        log_dirs: int = 1,
        launcher: list[str] | None = None,
        environment: dict[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.directory = directory
        self.host = host
        self.plane = plane_or_default(plane)
        self.port = free_port()
        self._log_dirs = [directory / f"data{n}" for n in range(log_dirs)]
        self.log_path = directory / "broker.log"
        self.overrides = broker_settings(
            self.port, ",".join(map(str, self._log_dirs)), overrides or {}
        )
        self._launcher = launcher
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._peers: list[BrokerProcess] = []
        count = several_brokers.count_of_this_test()
        if count > 1 and several_brokers.CONNECT not in self.overrides:
            self._add_peers(count - 1, log_dirs)

    def _add_peers(self, count: int, log_dirs: int) -> None:
        self.overrides.update(several_brokers.settings())
        for number in range(1, count + 1):
            peer = BrokerProcess(
                self.directory / f"broker{number}",
                overrides=several_brokers.settings_of_peer(self.overrides, {"broker.id": number}),
                plane=self.plane,
                log_dirs=log_dirs,
                launcher=self._launcher,
                environment=self._environment,
            )
            self._peers.append(peer)
        several_brokers.note_ports([one.port for one in self.all])

    @property
    def all(self) -> list[BrokerProcess]:
        """This broker and its peers."""
        return [self, *self._peers]

    @property
    def ids(self) -> list[int]:
        """The ids of all."""
        return [int(str(one.overrides["broker.id"])) for one in self.all]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{one.host}:{one.port}" for one in self.all)

    @property
    def log_dirs(self) -> list[Path]:
        return [directory for one in self.all for directory in one._log_dirs]

    def partition_dir(self, name: str) -> Path:
        """Return the directory `topic-partition`, of whichever broker has it."""
        (found,) = [directory / name for directory in self.log_dirs if (directory / name).exists()]
        return found

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return "".join(one._own_log for one in self.all)

    @property
    def _own_log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def fast_requests(self) -> int:
        """How many requests the fast path answered, as told whenever the broker stopped."""
        return sum(map(int, re.findall(r"(\d+) of them on the fast path", self.log)))

    def start(self) -> BrokerProcess:
        for peer in self._peers:
            peer.directory.mkdir(exist_ok=True)
            peer.overrides = several_brokers.settings_of_peer(self.overrides, peer.overrides)
        try:
            before = [len(one._own_log) for one in self.all]
            for one in self.all:
                one._begin()
            for one, logged in zip(self.all, before, strict=True):
                one._await_start(logged)
            if self._peers:
                several_brokers.until_each_knows_all(self.all)
        except BaseException:
            if self._peers:
                self.kill()
            raise
        return self

    def _begin(self) -> None:
        arguments = [
            word
            for key, value in self.overrides.items()
            for word in ("--override", f"{key}={value}")
        ]
        with self.log_path.open("ab") as log:
            if self._launcher or self._environment:
                command = self._launcher or [sys.executable, "-m", "plog", "server"]
                self._process = subprocess.Popen(
                    [*_of_plane(command, self.plane), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self._environment, **environment_of(self.plane)},
                )
            else:
                self._process = Forked(["server", *arguments], log, self.plane)

    def _await_start(self, before: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.poll() is not None:
                raise AssertionError(f"broker ended with {self._process.returncode}:\n{self.log}")
            try:
                socket.create_connection((self.host, self.port), 1).close()
                is_oracle = ORACLE in self._own_log[before:]
                assert is_oracle is (self.plane is Plane.PLAIN), self.log
                break
            except OSError:
                if time.monotonic() > deadline:
                    self.kill()
                    raise AssertionError(f"broker does not listen:\n{self.log}") from None
                time.sleep(0.02)
        until(self._is_started, "started")

    def _is_started(self) -> bool:
        """Return whether the health check agrees: it does a moment after clients are let in."""
        address = self.overrides.get("metrics.listener")
        if not address:
            return True
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(f"http://{address}{READY}", timeout=START_TIMEOUT_S).close()
        except urllib.error.HTTPError as refusal:
            return not refusal.read().startswith(Phase.STARTING.value.encode())
        return True

    def stop(self) -> None:
        """End the broker by SIGTERM and check that it went cleanly."""
        for one in reversed(self.all):
            one._stop()

    def _stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"broker does not stop:\n{self.log}") from None
        assert code == 0, f"broker ended with {code}:\n{self.log}"
        if self.plane is Plane.PLAIN:
            assert self.fast_requests == 0, self.log

    def wait(self) -> int:
        """Wait until the broker ends by itself; return its status."""
        assert self._process is not None
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"broker does not end:\n{self.log}") from None

    def kill(self) -> None:
        """End the broker by SIGKILL."""
        for one in self.all:
            one._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Hold the broker in the block."""
        pids = [one.pid for one in self.all]
        try:
            suspend(*pids)
            yield
        finally:
            resume(*pids)

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
