"""Streams that come in pieces and break off, over many connections at once.

Each guest sends one stream, cut anywhere, with pauses between the pieces. Some read what they are
answered and some do not; some say all that they have to say, and others reset the connection, close
it or stop sending in the middle of a frame. Who stops sending waits for the broker to close.
"""

from __future__ import annotations

import contextlib
import enum
import random
import selectors
import socket
import time
from collections import Counter

from tests.hostile.frames import Attack
from tests.hostile.sockets import connect, reset

PAUSES_S = (0.0,) * 6 + (0.001, 0.005, 0.02)
PIECES = (1, 2, 3, 4, 5, 30, 200, 500, 1000, 4000, 1 << 20)
"""Up to so many bytes; some end within a length, some within a header."""
STAYS_S = 0.1
"""How long a guest who has said everything goes on to listen."""
MUST_END_S = 60
"""Within which the broker has to close a connection that its guest no longer sends on."""
KEPT_WAITING = "kept waiting"
"""Who was not closed by then: damage may have made a Fetch wait for weeks, and whole requests stand
behind it. The wait is the client's own, as in Kafka; it ends when the client resets."""


class Leave(enum.Enum):
    """How a guest goes; but for the first, at any place of its stream."""

    STAYED = "stayed"
    RESET = "reset"
    CLOSED = "closed"
    STOPPED_SENDING = "stopped sending"


class _Guest:
    """One connection; it sends when its time has come, and leaves at the end of `unsent`."""

    def __init__(self, port: int, stream: bytes, rng: random.Random) -> None:
        self.leave = rng.choice(list(Leave))
        whole = self.leave is Leave.STAYED or rng.random() < 0.2
        self.unsent = memoryview(stream)[: None if whole else rng.randrange(len(stream) + 1)]
        self.reads = rng.random() < 0.8
        self.sock = connect(port, receive_buffer=None if self.reads else 4096)
        self.sock.setblocking(False)
        self.due = 0.0
        self.has_said_all = False


class Storm:
    """Has guests come and go until so many streams were sent."""

    def __init__(self, port: int, attack: Attack, rng: random.Random, *, connections: int) -> None:
        self._port = port
        self._attack = attack
        self._rng = rng
        self._most = connections
        self._guests: set[_Guest] = set()
        self._selector = selectors.DefaultSelector()
        self.outcomes: Counter[str] = Counter()
        self.connections = 0

    def send(self, count: int) -> None:
        """Send so many streams, and wait until all who sent them have gone."""
        while count or self._guests:
            while count and len(self._guests) < self._most:
                count -= 1
                self._invite()
            for key, _ in self._selector.select(0.001):
                self._listen(key.data)
            now = time.monotonic()
            for guest in [one for one in self._guests if one.due <= now]:
                self._speak(guest, now)

    def close(self) -> None:
        self._selector.close()

    def _invite(self) -> None:
        guest = _Guest(self._port, self._attack(self._rng), self._rng)
        self.connections += 1
        self._guests.add(guest)
        if guest.reads:
            self._selector.register(guest.sock, selectors.EVENT_READ, guest)

    def _listen(self, guest: _Guest) -> None:
        try:
            if not guest.sock.recv(1 << 18):
                self._end(guest, "closed by the broker")
        except BlockingIOError:
            return
        except ConnectionError:
            self._end(guest, "closed by the broker")

    def _speak(self, guest: _Guest, now: float) -> None:
        """Send the next piece, or go."""
        if guest.has_said_all:
            if guest.leave is Leave.STOPPED_SENDING:
                guest.leave = Leave.RESET
                self._end(guest, KEPT_WAITING)
            else:
                self._end(guest, guest.leave.value)
            return
        try:
            if guest.unsent:
                sent = guest.sock.send(guest.unsent[: self._rng.choice(PIECES)])
                guest.unsent = guest.unsent[sent:]
        except BlockingIOError:
            guest.unsent = guest.unsent[:0]  # it is not listened to any more, and goes
        except ConnectionError:
            self._end(guest, "closed by the broker")
            return
        guest.due = now + self._rng.choice(PAUSES_S)
        if not guest.unsent:
            self._has_said_all(guest, now)

    def _has_said_all(self, guest: _Guest, now: float) -> None:
        guest.has_said_all = True
        if guest.leave is Leave.STAYED:
            guest.due = now + STAYS_S
        elif guest.leave is Leave.STOPPED_SENDING:
            guest.due = now + MUST_END_S
            with contextlib.suppress(OSError):  # the broker may have reset it
                guest.sock.shutdown(socket.SHUT_WR)
            if not guest.reads:  # else it would not see the end
                guest.reads = True
                self._selector.register(guest.sock, selectors.EVENT_READ, guest)

    def _end(self, guest: _Guest, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self._guests.remove(guest)
        if guest.reads:
            self._selector.unregister(guest.sock)
        if guest.leave is Leave.RESET:
            reset(guest.sock)
        else:
            guest.sock.close()
