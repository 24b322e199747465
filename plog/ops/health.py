"""What the service manager is told: that the broker starts, is ready, lives and stops.

Owns the datagrams of sd_notify(3) and the pace of the watchdog. Without $NOTIFY_SOCKET nobody
asked, and nothing is sent. A service manager that does not hear is no reason to stop or to wait:
what cannot be sent is said once in the log, and what it must hear is sent again later. Its socket
takes some datagrams ahead of it, and refuses more while it is busy.
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
LASTING = frozenset({"READY", "STOPPING", "STATUS"})
"""What is true until something else is told; a sign of life is of its moment alone."""
TELL_AGAIN_S = 1.0


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
        self._status: str | None = None
        # Lasting assignments that have not gone yet, in their order: of READY and STOPPING in one
        # datagram systemd takes the last.
        self._unsent: dict[str, str] = {}
        self._again: asyncio.TimerHandle | None = None
        asked = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "") if asked and name else ""
        self.watchdog_s = int(interval) / 1e6 if interval.isdecimal() else 0.0
        """In which a sign of life is expected; 0: none is."""

    def tell(self, **assignments: str | int) -> None:
        """Send assignments (READY=1, STATUS=..., of sd_notify(3)) in one datagram, if any is news.

        Lasting ones that do not go are sent again, each second until they have; that needs the
        running event loop.
        """
        if not self._address:
            return
        news = {key: str(value).replace("\n", " ") for key, value in assignments.items()}
        if news.get("STATUS", self._status) == self._status:
            news.pop("STATUS", None)
        self._status = news.get("STATUS", self._status)
        if news:
            self._unsent.update((key, news[key]) for key in news if key in LASTING)
            self._send(self._unsent | news)

    def _send(self, assignments: Mapping[str, str]) -> None:
        lines = [f"{key}={value}" for key, value in assignments.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("the service manager at NOTIFY_SOCKET does not hear: %s", error)
            if self._unsent and self._again is None:
                loop = asyncio.get_running_loop()
                self._again = loop.call_later(TELL_AGAIN_S, self._send_again)
        else:
            self._unsent.clear()

    def _send_again(self) -> None:
        self._again = None
        if self._unsent:
            self._send(self._unsent)

    async def ping(self, is_alive: Callable[[], Awaitable[bool]]) -> None:
        """Send signs of life for as long as the broker gives them; for ever, if none is expected.

        The event loop must turn for this to go on at all; `is_alive` looks at the rest.
        """
        while self.watchdog_s:
            if await is_alive():
                self.tell(WATCHDOG=1)
            await asyncio.sleep(self.watchdog_s / PINGS_PER_INTERVAL)
