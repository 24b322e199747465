"""A standalone cluster: a master and workers of a core each, every one of them a process.

Workers are on addresses of the loopback of their own, and are so hosts to Spark, which gives the
second attempt at a slow task to another host only.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from tests.servers import free_port
from tests.spark.jvm import QUICK_JVM
from tests.waiting import until

MASTER_HOST = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
START_TIMEOUT_S = 120


class Daemon:
    """One master or worker, with its log and all that it starts."""

    def __init__(self, log: Path, environment: Mapping[str, str], *command: object) -> None:
        self._log = log
        with log.open("ab") as out:
            # spark-class becomes the JVM, so that its pid is the JVM's.
            self._process = subprocess.Popen(
                [f"{environment['SPARK_HOME']}/bin/spark-class", *map(str, command)],
                env={**environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def children(self) -> list[psutil.Process]:
        """Return what it has started, and what that has."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """End it by SIGKILL, and all that it has started."""
        children = self.children()
        self._process.kill()
        self._process.wait()
        for one in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


class Worker(Daemon):
    """A worker, whose children are executors, whose children are Python's."""

    def executors(self) -> list[psutil.Process]:
        """Return the executors that it has started and that live."""
        found = []
        for one in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("CoarseGrainedExecutorBackend" in word for word in one.cmdline()):
                    found.append(one)
        return found


class Standalone:
    """A master and a worker for each host; everything that they write is in one directory."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {
            **environment,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} -Dspark.master.rest.enabled=false",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
        }
        self._page = free_port()
        port = free_port()
        self.url = f"spark://{MASTER_HOST}:{port}"
        self.workers: dict[str, Worker] = {}
        where = "--host", MASTER_HOST, "--port", port, "--webui-port", self._page
        master = "org.apache.spark.deploy.master.Master"
        self._master = Daemon(directory / "master.log", self._of(MASTER_HOST), master, *where)

    def __enter__(self) -> Self:
        try:
            self._wait(0)
            for host in WORKER_HOSTS:
                self._launch(host)
            self._wait(len(WORKER_HOSTS))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process of it."""
        for one in (*self.workers.values(), self._master):
            one.kill()

    def restore(self) -> None:
        """Start workers again that were killed."""
        for host, worker in self.workers.items():
            if worker.has_ended:
                self._launch(host)
        self._wait(len(WORKER_HOSTS))

    def _launch(self, host: str) -> None:
        self.workers[host] = Worker(
            self._directory / f"worker-{host}.log",
            self._of(host),
            "org.apache.spark.deploy.worker.Worker",
            *("--host", host, "--port", 0, "--webui-port", 0),
            *("--cores", 1, "--memory", "1g", "--work-dir", self._directory / "work"),
            self.url,
        )

    def _of(self, host: str) -> dict[str, str]:
        return {**self._environment, "SPARK_LOCAL_IP": host}

    def _wait(self, workers: int) -> None:
        """Wait until the master has so many of them."""

        def is_so() -> bool:
            for one in (self._master, *self.workers.values()):
                assert not one.has_ended, one.log
            with contextlib.suppress(OSError, ValueError):  # nor has its page anything at first
                return self._state()["aliveworkers"] == workers
            return False

        until(is_so, f"{workers} workers", START_TIMEOUT_S)

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{MASTER_HOST}:{self._page}/json/", timeout=10) as page:
            return json.load(page)
