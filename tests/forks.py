"""Broker processes that are forked from one that has imported plog: most of a start is imports.

`Forked` does what the tests need of `subprocess.Popen`. Each process of tests has one server
(`main`), which forks a process for each request and reports its exit status. Brokers with a
launcher or an environment of their own are started as commands (`tests/servers.py`).
The fuzzer has a server of its own (`tests/fuzz/child.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.planes import Plane, environment_of, take_plane

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("plog.broker", "plog.cli.server", "plog.server")
LARGEST = 1 << 18
"""Bytes of a request: arguments and environment."""
NUMBER = struct.Struct("=q")
"""A process id, and at its end its status."""


class Server:
    """A process that forks, and the socket by which it is asked to; it ends with this process."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", *arguments]
            self.process = subprocess.Popen(command, stdin=theirs, cwd=ROOT, env=env)
        atexit.register(self.close)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


_servers: dict[tuple[str, ...], Server] = {}


def server_of(*arguments: str, env: Mapping[str, str] | None = None) -> Server:
    """Return this process's server with these arguments; start it if none runs."""
    server = _servers.get(arguments)
    if server is None or server.process.poll() is not None:
        server = _servers[arguments] = Server(*arguments, env=env)
    return server


class Forked:
    """A process forked by `server`, by default that of brokers; its output goes to a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        output: IO[bytes],
        plane: Plane = Plane.FAST,
        *,
        server: Server | None = None,
    ) -> None:
        server = server or server_of("tests.forks")
        request = {
            "arguments": arguments,
            "environment": {**os.environ, **environment_of(plane)},
            "directory": os.getcwd(),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        self._socket, theirs = socket.socketpair()
        with theirs:
            fds = [output.fileno(), theirs.fileno()]
            socket.send_fds(server.socket, [json.dumps(request).encode()], fds)
        self.returncode: int | None = None
        self.pid = self._receive()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._socket.settimeout(timeout)
            try:
                self.returncode = self._receive()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("plog", timeout or 0) from None
            self._socket.close()
        return self.returncode

    def _receive(self) -> int:
        number = self._socket.recv(NUMBER.size)
        assert number, "the process that forks has ended"
        return int(NUMBER.unpack(number)[0])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# -- the server ------------------------------------------------------------------------------------


def prepare() -> None:
    """Import what a broker's start imports."""
    for name in (*MODULES, "plog.handlers", "tests.oracle.broker"):
        importlib.import_module(name)
    for one in pkgutil.iter_modules(sys.modules["plog.handlers"].__path__, "plog.handlers."):
        importlib.import_module(one.name)


def serve() -> dict[str, Any]:
    """Fork for each request and return it in the child. The server ends with its last client."""
    asked = socket.socket(fileno=0)
    woken, wakes = socket.socketpair()
    for one in (woken, wakes):
        one.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    reports: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            woken.recv(1000)
            reap(reports)
        if asked not in ready:
            continue
        text, fds, _, _ = socket.recv_fds(asked, LARGEST, 2)
        if not text:
            os._exit(0)
        child = os.fork()
        if not child:
            for one in (asked, woken, wakes, *reports.values()):
                one.detach()  # or it would close its number later, whosever it is then
            become(fds[0])
            return dict(json.loads(text))
        os.close(fds[0])
        reports[child] = socket.socket(fileno=fds[1])
        reports[child].sendall(NUMBER.pack(child))


def reap(reports: dict[int, socket.socket]) -> None:
    """Send the status of each child that has ended."""
    while reports:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with reports.pop(child) as one, contextlib.suppress(OSError):  # the reader is gone
            one.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def become(output: int) -> None:
    """Be in a child what a new process would be, with nothing open but its output."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(fd)


def main() -> None:
    prepare()
    request = serve()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["descriptors"])
    from plog.cli import main as plog

    take_plane()
    sys.argv = ["plog", *request["arguments"]]
    plog(request["arguments"])


if __name__ == "__main__":
    main()
