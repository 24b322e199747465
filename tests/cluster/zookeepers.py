"""ZooKeeper servers that agree with each other, as processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.compat.live_kafka import KAFKA_3_9, QUIET, mode_of
from tests.servers import free_port
from tests.suspension import resume, suspend

START_S = 60
SETTINGS = """tickTime=500
initLimit=20
syncLimit=4
dataDir={directory}
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
maxClientCnxns=0
forceSync=no
maxSessionTimeout=60000
4lw.commands.whitelist=srvr
"""


class Ensemble:
    """Servers 1, 2 and 3, of which two are a majority; or one server.

    Args:
        host: the address of all.
        launcher: goes before each command.
    """

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        host: str = "127.0.0.1",
        launcher: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._host, self._launcher = host, launcher
        self.ports = {number: free_port() for number in range(1, count + 1)}
        peers = "".join(
            f"server.{number}={host}:{free_port()}:{free_port()}\n" for number in self.ports
        )
        if count == 1:
            peers = ""
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for number, port in self.ports.items():
            place = directory / str(number)
            place.mkdir(parents=True)
            (place / "myid").write_text(f"{number}\n")
            text = SETTINGS.format(directory=place, host=host, port=port) + peers
            (place / "zoo.cfg").write_text(text)
        try:
            self.start(*self.ports)
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """What `zookeeper.connect` says."""
        return ",".join(map(self.address, self.ports))

    def address(self, number: int) -> str:
        """Return what `zookeeper.connect` says of a client that knows one server."""
        return f"{self._host}:{self.ports[number]}"

    @property
    def leader(self) -> int:
        """Return the number of the server that leads."""
        return next(number for number in self._running if self._mode(number) == "leader")

    def start(self, *numbers: int) -> None:
        """Start servers, and wait until they serve."""
        for number in numbers:
            self._begin(number)
        for number in numbers:
            self._wait(number)

    def kill(self, number: int) -> None:
        """Kill a server."""
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def pause(self, number: int, *, goes_on: bool = False) -> None:
        """Stop a server where it is, or let it go on."""
        (resume if goes_on else suspend)(self._running[number].pid)

    def close(self) -> None:
        """Kill all."""
        for number in list(self._running):
            self.kill(number)

    def _begin(self, number: int) -> None:
        place = self._directory / str(number)
        command = KAFKA_3_9.command("QuorumPeerMain", place / "zoo.cfg", flags=QUIET)
        with (place / "server.log").open("ab") as log:
            self._running[number] = subprocess.Popen(
                [*self._launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place,
            )

    def _wait(self, number: int) -> None:
        until = time.monotonic() + START_S
        while self._mode(number) not in ("leader", "follower", "standalone"):
            assert time.monotonic() < until, (
                self._directory / str(number) / "server.log"
            ).read_text()
            time.sleep(0.05)

    def _mode(self, number: int) -> str:
        return mode_of(self._host, self.ports[number])
