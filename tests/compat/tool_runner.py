"""A JVM that runs Kafka's tools one after another.

Starting a JVM costs more than the tool itself. `java_tools/ToolRunner.java` runs the tools and
describes the protocol. A tool has its own stdin, exit status, shutdown hooks and static fields, as
in a process of its own. Tools that get signals or run in the background need their own process.
"""

from __future__ import annotations

import atexit
import os
import select
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

MAIN = "ToolRunner"
RELOADED = ("connect-", "kafka-tools-", "kafka_")
"""Jars whose classes are loaded for each run: the tools, and what refers to them."""
END_TIMEOUT_S = 10


class ToolRunner:
    """The JVM of one release. It starts with the first tool.

    Args:
        classes: The directory of `ToolRunner.class`.
        jars: The directory of the release's jars.
        flags: Flags of the JVM.
    """

    def __init__(self, classes: Path, jars: Path, flags: Sequence[str]) -> None:
        reloaded, kept = [], [classes]
        for jar in sorted(jars.glob("*.jar")):
            (reloaded if jar.name.startswith(RELOADED) else kept).append(jar)
        self._command = [
            "java",
            *flags,
            # Messages of the JVM itself: stdout is for responses.
            "-XX:+DisplayVMOutputToStderr",
            # ToolRunner reads the list of shutdown hooks there.
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-cp",
            ":".join(map(str, kept)),
            MAIN,
            *map(str, reloaded),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._files = ExitStack()
        self._lock = threading.Lock()
        atexit.register(self.end)

    @property
    def pid(self) -> int | None:
        """Return the JVM's pid, or None while it does not run."""
        return self._process and self._process.pid

    def run(
        self, main_class: str, arguments: Sequence[str], stdin: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end.

        Raises:
            TimeoutExpired: The tool takes longer; its JVM is killed.
        """
        command = [main_class, *arguments]
        texts = [text.encode() for text in (stdin, *command)]
        request = struct.pack(">i", len(texts)) + b"".join(
            struct.pack(">i", len(text)) + text for text in texts
        )
        with self._lock:
            process = self._process or self._start()
            assert process.stdin
            assert process.stdout
            reading = _Reading(process.stdout, time.monotonic() + timeout_s)
            try:
                process.stdin.write(request)
                process.stdin.flush()
                status = reading.number()
                out, err = (reading.take(reading.number()) for _ in range(2))
                (threads_left,) = reading.take(1)
            except TimeoutError:
                self._kill()
                raise subprocess.TimeoutExpired(command, timeout_s) from None
            except (EOFError, BrokenPipeError):
                raise AssertionError(f"{main_class} ended its JVM:\n{self._kill()}") from None
            except BaseException:
                self._kill()  # part of its response may be unread
                raise
            if threads_left:
                self._kill()  # the threads would disturb the next tool
        # subprocess.run(text=True) does the same.
        said, complained = (text.decode().replace("\r\n", "\n") for text in (out, err))
        return subprocess.CompletedProcess(command, status, said, complained)

    def _start(self) -> subprocess.Popen[bytes]:
        self._log = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        return self._process

    def _kill(self) -> str:
        """Kill the JVM; return what it wrote to stderr."""
        if self._process:
            self._process.kill()
            self._process.wait()
        self._log.seek(0)
        logged = self._log.read().decode(errors="replace")
        self.end()
        return logged

    def end(self) -> None:
        """End the JVM; the next tool starts another one."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        assert process.stdout
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._files.close()


class _Reading:
    """Reads a pipe up to a deadline, in seconds of time.monotonic()."""

    def __init__(self, pipe: IO[bytes], deadline: float) -> None:
        self._fd = pipe.fileno()
        self._deadline = deadline

    def number(self) -> int:
        (number,) = struct.unpack(">i", self.take(4))
        return number

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            TimeoutError: The deadline has passed.
            EOFError: The pipe has ended.
        """
        taken = b""
        while len(taken) < count:
            left_s = max(0, self._deadline - time.monotonic())
            ready, _, _ = select.select([self._fd], [], [], left_s)
            if not ready:
                raise TimeoutError
            part = os.read(self._fd, count - len(taken))
            if not part:
                raise EOFError
            taken += part
        return taken
