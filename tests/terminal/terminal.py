"""A terminal for tests: runs one command line and returns the text on its screen.

The command gets a real pseudo-terminal, so it draws what a person would see. `pyte` interprets the
control sequences.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyte

COLUMNS = 100
LINES = 400
"""More than any command prints here, so that nothing scrolls away."""
TIMEOUT_S = 60
INTERRUPT = "\x03"
"""What Ctrl-C sends."""


class Terminal:
    """One command line of bash in a terminal of its own.

    Args:
        directory: where the command runs.
        environment: all its variables.
    """

    def __init__(
        self,
        command: str,
        directory: Path,
        environment: Mapping[str, str],
        *,
        columns: int = COLUMNS,
        lines: int = LINES,
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._end, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    @property
    def text(self) -> str:
        """Return the text on the screen, without blank ends of lines and of the screen."""
        lines = [line.rstrip() for line in self._screen.display]
        return "\n".join(lines).rstrip("\n")

    def type(self, text: str) -> None:
        """Type text as a person would."""
        os.write(self._end, text.encode())

    def wait_for(self, text: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the screen shows a text."""
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert self._read(deadline), f"ended before it showed {text!r}:\n{self.text}"

    def answer(self, text: str) -> None:
        """Type a line at the prompt that the command shows, or is about to show."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self._screen.display[self._screen.cursor.y].strip():
            assert self._read(deadline), f"ended without a prompt:\n{self.text}"
        self.type(text + "\n")

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the end of the command and return its status as a shell reports it."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        status = self._process.wait(max(deadline - time.monotonic(), 1))
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """End whatever still runs in this terminal."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)
        os.close(self._end)

    def _read(self, deadline: float) -> bool:
        """Take what the command has written; return False at its end."""
        left = deadline - time.monotonic()
        ready, _, _ = select.select([self._end], [], [], max(left, 0))
        assert ready, f"nothing new for too long:\n{self.text}"
        try:
            data = os.read(self._end, 1 << 16)
        except OSError:  # EIO: the last process has closed the terminal
            return False
        self._stream.feed(data)
        return bool(data)
