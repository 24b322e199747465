"""Notifies the service manager that the broker starts, is ready, is alive and stops.

Owns the datagrams of sd_notify(3) and the interval of the watchdog. Without $NOTIFY_SOCKET it sends
nothing. The broker never stops or waits for a service manager that does not respond: it logs the
first failed send, and repeats the assignments that must arrive. The socket queues some datagrams
and refuses more while the service manager is busy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

PINGS_PER_INTERVAL = 3
"""sd_watchdog_enabled(3) advises two; with three, one ping may be late."""
LASTING = frozenset({"READY", "STOPPING", "STATUS"})
"""Assignments that stay true until the next one; these are sent again."""
RETRY_S = 1.0


class ServiceManager:
    """The service manager that started the broker, if there is one.

    Args:
        environment: NOTIFY_SOCKET is a path or, with @ before it, an abstract name.
            WATCHDOG_USEC is the maximum interval between pings of the process WATCHDOG_PID.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._complained = False
        self._status: str | None = None
        # Lasting assignments that have not been sent yet, in order: systemd uses the last of READY
        # and STOPPING in one datagram.
        self._unsent: dict[str, str] = {}
        self._again: asyncio.TimerHandle | None = None
        asked = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "") if asked and name else ""
        self.watchdog_s = int(interval) / 1e6 if interval.isdecimal() else 0.0
        """Maximum interval between pings; 0 if the watchdog is off."""

    def tell(self, **assignments: str | int) -> None:
        """Send assignments of sd_notify(3) (READY=1, STATUS=...) in one datagram.

        Sends nothing if only an unchanged STATUS is left. Lasting assignments that could not be
        sent are sent again each second, on the running event loop.
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
                log.warning("cannot notify the service manager at NOTIFY_SOCKET: %s", error)
            if self._unsent and self._again is None:
                loop = asyncio.get_running_loop()
                self._again = loop.call_later(RETRY_S, self._send_again)
        else:
            self._unsent.clear()

    def _send_again(self) -> None:
        self._again = None
        if self._unsent:
            self._send(self._unsent)

    async def ping(self, is_alive: Callable[[], Awaitable[bool]]) -> None:
        """Send pings while the broker is alive; return at once if the watchdog is off.

        A blocked event loop stops the pings; `is_alive` checks the other parts.
        """
        while self.watchdog_s:
            if await is_alive():
                self.tell(WATCHDOG=1)
            await asyncio.sleep(self.watchdog_s / PINGS_PER_INTERVAL)
