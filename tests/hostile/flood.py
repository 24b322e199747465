"""A flood of hostile frames over many connections, each waited for until something came of it.

What comes of a frame is an answer, or the end of its connection. Behind a frame whose length is
right goes a question for versions, whose answer says that the broker is done with both; behind
other bytes the sender says that no more will come, and the broker has to close.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import encode_request_header
from tests.hostile.frames import Attack
from tests.hostile.sockets import address, prefixed, reset

LAST_WORD = 0x7E57C0DE
QUESTION = prefixed(encode_request_header(ApiKey.API_VERSIONS, 0, LAST_WORD, "hostile"))
PATIENCE_S = 2.0
"""For a Fetch that waits as long as it was told to: then its client goes."""
RESETS_IN = 200
"""So many frames are sent for each whose sender does not wait and resets the connection."""


class Kind(NamedTuple):
    """Some of the flood's frames."""

    attack: Attack
    is_frame: bool
    """Its length is right."""


class _Talk:
    __slots__ = ("is_frame", "rest", "since", "sock", "tail", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.tail = b""
        self.unsent = b""
        self.rest = 0
        self.is_frame = True
        self.since = 0.0


class Flood:
    """Sends from a pool of frames, most of them damaged once more."""

    def __init__(
        self, port: int, kinds: Sequence[Kind], rng: random.Random, *, connections: int, pool: int
    ) -> None:
        self._port = port
        self._rng = rng
        self._pool = [
            (kind.attack(rng), kind.is_frame) for _ in range(pool // len(kinds)) for kind in kinds
        ]
        self._selector = selectors.DefaultSelector()
        self._most = connections
        self.outcomes: Counter[str] = Counter()
        self.connections = 0

    def send(self, count: int) -> None:
        """Send so many frames, and wait until something has come of each."""
        left = count
        open_now = 0
        swept = time.monotonic()
        heard = swept
        while left or open_now:
            while left and open_now < self._most:
                open_now += 1
                left -= 1
                self._begin(self._connect())
            ready = self._selector.select(0.2)
            now = time.monotonic()
            if ready:
                heard = now
            assert now - heard < 60, f"{open_now} connections, and nothing comes of them"
            for key, mask in ready:
                talk = key.data
                outcome = self._go_on(talk, mask)
                if outcome is None:
                    continue
                self.outcomes[outcome] += 1
                if outcome == "answered" and left:
                    left -= 1
                    self._begin(talk)
                else:
                    open_now -= 1
                    self._end(talk)
            if now - swept > PATIENCE_S / 4:
                swept = now
                for key in list(self._selector.get_map().values()):
                    if now - key.data.since > PATIENCE_S:
                        self.outcomes["given up"] += 1
                        open_now -= 1
                        self._end(key.data, by_reset=True)

    def close(self) -> None:
        self._selector.close()

    def _connect(self) -> _Talk:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address(self._port))
        self.connections += 1
        talk = _Talk(sock)
        self._selector.register(sock, selectors.EVENT_WRITE, talk)
        return talk

    def _begin(self, talk: _Talk) -> None:
        rng = self._rng
        data, talk.is_frame = self._pool[rng.randrange(len(self._pool))]
        if rng.random() < 0.7 and len(data) > 12:
            damaged = bytearray(data)
            # The length stays where it is to be right.
            at = rng.randrange(4 if talk.is_frame else 0, len(damaged))
            damaged[at] = rng.randrange(256)
            data = bytes(damaged)
        talk.unsent = data + QUESTION if talk.is_frame else data
        talk.tail = b""
        talk.rest = 0
        talk.since = time.monotonic()
        self._selector.modify(talk.sock, selectors.EVENT_WRITE | selectors.EVENT_READ, talk)

    def _go_on(self, talk: _Talk, mask: int) -> str | None:
        try:
            if mask & selectors.EVENT_WRITE and talk.unsent:
                talk.unsent = talk.unsent[talk.sock.send(talk.unsent) :]
                if not talk.unsent:
                    if self._rng.randrange(RESETS_IN) == 0:
                        return "reset"
                    if not talk.is_frame:
                        talk.sock.shutdown(socket.SHUT_WR)
                    self._selector.modify(talk.sock, selectors.EVENT_READ, talk)
            if mask & selectors.EVENT_READ:
                data = talk.sock.recv(1 << 18)
                if not data:
                    return "closed"
                return self._hear(talk, data)
        except BlockingIOError:
            return None
        except OSError:
            return "closed"
        return None

    def _hear(self, talk: _Talk, data: bytes) -> str | None:
        """Skip over answers, up to that to the question."""
        talk.since = time.monotonic()
        at = 0
        if talk.rest:
            at = min(talk.rest, len(data))
            talk.rest -= at
        data = talk.tail + data[at:]
        talk.tail = b""
        at = 0
        while len(data) - at >= 8:
            size, correlation_id = struct.unpack_from(">ii", data, at)
            at += 4 + size
            if at > len(data):
                talk.rest = at - len(data)
                at = len(data)
            if correlation_id == LAST_WORD and talk.is_frame:
                return "answered" if not talk.rest else None
        talk.tail = data[at:]
        return None

    def _end(self, talk: _Talk, *, by_reset: bool = False) -> None:
        self._selector.unregister(talk.sock)
        if by_reset or talk.unsent:
            reset(talk.sock)
        else:
            talk.sock.close()
