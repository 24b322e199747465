"""A proxy that keeps one request back, as a network may, and passes it on when it is told to."""

from __future__ import annotations

import socket
import threading

from plog.protocol.api_keys import ApiKey
from tests.compat.recorder import Exchange, Recorder, send, shut_down
from tests.waiting import until


class Delayer(Recorder):
    """Cuts the client off a connection whose request it keeps; the broker's end stays open."""

    def __init__(self, target_port: int) -> None:
        self._wanted: ApiKey | None = None
        self._kept: tuple[socket.socket, Exchange] | None = None
        self._keeping = threading.Lock()
        super().__init__(target_port)

    def keep_next(self, api: ApiKey) -> None:
        """Keep the next request of an API back."""
        self._wanted = api

    @property
    def has_one(self) -> bool:
        """Whether a request is kept back."""
        return self._kept is not None

    def release(self) -> Exchange:
        """Let the broker have what was kept back; return it with its answer."""
        assert self._kept is not None
        broker, exchange = self._kept
        self._kept = None
        send(broker, exchange.request)
        until(lambda: exchange.answered >= 0, "the answer to what came late")
        return exchange

    def _pass(self, client: socket.socket, broker: socket.socket, exchange: Exchange) -> bool:
        with self._keeping:
            if exchange.header.api_key != self._wanted:
                return super()._pass(client, broker, exchange)
            self._wanted, self._kept = None, (broker, exchange)
        shut_down(client)
        return False
