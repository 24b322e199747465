"""What the service manager is told: that the broker starts, is ready, lives and stops.

Owns the datagrams of sd_notify(3) and the pace of the watchdog. Without $NOTIFY_SOCKET nobody
asked, and nothing is sent. A service manager that does not hear is no reason to stop: what cannot
be sent is said once in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

PINGS_PER_INTERVAL = 3
"""sd_watchdog_enabled(3) advises half of the interval; a third forgives one that is late."""


class ServiceManager:
    """Whoever started the broker, if it listens.

    Args:
        environment: NOTIFY_SOCKET is a path or, with @ before it, an abstract name.
            WATCHDOG_USEC asks for a ping in each so many microseconds, of the process WATCHDOG_PID.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._complained = False
        asked = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "") if asked and name else ""
        self.watchdog_s = int(interval) / 1e6 if interval.isdecimal() else 0.0
        """In which a sign of life is expected; 0: none is."""

    def tell(self, **assignments: str | int) -> None:
        """Send assignments (READY=1, STATUS=..., of sd_notify(3)) in one datagram."""
        if not self._address:
            return
        lines = [f"{key}={str(value).replace(chr(10), ' ')}" for key, value in assignments.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("the service manager at NOTIFY_SOCKET does not hear: %s", error)

    async def ping(self, is_alive: Callable[[], Awaitable[bool]]) -> None:
        """Send signs of life for as long as the broker gives them; for ever, if none is expected.

        The event loop must turn for this to go on at all; `is_alive` looks at the rest.
        """
        while self.watchdog_s:
            if await is_alive():
                self.tell(WATCHDOG=1)
            await asyncio.sleep(self.watchdog_s / PINGS_PER_INTERVAL)
