"""One JVM for many programs (`java/Host.java`): starting one each costs more than they do.

A `Jvm` starts with its first program and ends with this process. Tests that kill a program start it
as a process of its own instead.
"""

from __future__ import annotations

import atexit
import functools
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

START_TIMEOUT_S = 120
LOST = -1
"""The status of a program whose JVM has ended, or which the test has abandoned."""


class Jvm:
    """A process with a port on which it starts programs."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        atexit.register(self.end)

    def start(self, main_class: str, arguments: Sequence[str], stderr: Path) -> HostedProgram:
        """Start a program, whose stderr is appended to a file."""
        connection = socket.create_connection(("127.0.0.1", self._port), START_TIMEOUT_S)
        connection.settimeout(None)
        strings = [one.encode() for one in (str(stderr), main_class, *arguments)]
        head = struct.pack(">i", len(strings))
        connection.sendall(head + b"".join(struct.pack(">i", len(one)) + one for one in strings))
        return HostedProgram(connection)

    def run(self, main_class: str, arguments: Sequence[str], timeout_s: float) -> tuple[str, str]:
        """Run a program that must exit with 0; return what it prints to stdout and stderr."""
        with tempfile.NamedTemporaryFile() as stderr:
            program = self.start(main_class, arguments, Path(stderr.name))
            said, status = program.communicate(timeout_s), program.returncode
            complaints = Path(stderr.name).read_text()
        assert status == 0, complaints
        return said, complaints

    def end(self) -> None:
        """End it, with all programs in it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def jvm_of(*command: str) -> Jvm:
    """Return the JVM that a command starts; it starts the first time."""
    return Jvm(command)


class Input:
    """A program's stdin."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, text: str) -> None:
        self._connection.sendall(text.encode())

    def flush(self) -> None:
        """Do nothing: every write is sent at once."""

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the program has ended


class HostedProgram:
    """A program in a `Jvm`, with what tests use of `subprocess.Popen`.

    Its status is known once its output has been read to the end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.stdin = Input(connection)
        self.stdout = self
        self.returncode: int | None = None
        self._connection = connection
        self._output = connection.makefile("rb")
        self._is_over = threading.Event()

    def __iter__(self) -> Iterator[str]:
        while line := self.readline():
            yield line

    def readline(self) -> str:
        """Return the next line of its output; an empty text is the end."""
        if self._is_over.is_set():
            return ""
        try:
            line = self._output.readline()
        except ConnectionError:
            line = b""  # the test has abandoned it
        said, zero, status = line.partition(b"\0")
        if zero or not line:
            self.returncode = status[0] if status else LOST
            self._is_over.set()
            self._output.close()
            self._connection.close()
        return said.decode()

    def communicate(self, timeout_s: float) -> str:
        """Read its output to the end. Raises TimeoutError if it is silent for too long."""
        self._connection.settimeout(timeout_s)
        return "".join(self)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until another thread has read its output to the end."""
        if not self._is_over.wait(timeout):
            raise TimeoutError(f"the program has not ended in {timeout} s")
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Abandon it: its stdin ends, and its output is dropped."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended
