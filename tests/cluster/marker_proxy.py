"""A proxy between brokers that keeps a request for markers, or its answer, back.

The coordinator that sent the request goes on waiting for its answer.
"""

from __future__ import annotations

import socket
import threading

from plog.protocol.api_keys import ApiKey
from tests.compat.recorder import Exchange, Recorder, send
from tests.waiting import until


class MarkerProxy(Recorder):
    """Passes everything on, except one request or answer."""

    def __init__(self, target_port: int) -> None:
        self._keeps = {"request": False, "answer": False}
        self._kept: tuple[socket.socket, Exchange] | None = None
        self._keeping = threading.Lock()
        super().__init__(target_port)

    def keep_next(self, kind: str) -> None:
        """Keep the next request for markers, or the next answer to one."""
        with self._keeping:
            self._kept = None
            self._keeps[kind] = True

    def await_kept(self) -> None:
        """Wait until it has kept one."""
        until(lambda: self._kept is not None, "kept back")

    def release(self) -> Exchange:
        """Let the broker have the request that was kept back, whatever became of its sender."""
        assert self._kept is not None
        (broker, exchange), self._kept = self._kept, None
        send(broker, exchange.request)
        return exchange

    def _pass(self, client: socket.socket, broker: socket.socket, exchange: Exchange) -> bool:
        # The connection stays open on both sides, as when a network delivers nothing.
        return not self._keep("request", broker, exchange) and super()._pass(
            client, broker, exchange
        )

    def _pass_back(self, client: socket.socket, exchange: Exchange) -> None:
        if not self._keep("answer", client, exchange):
            super()._pass_back(client, exchange)

    def _keep(self, kind: str, to: socket.socket, exchange: Exchange) -> bool:
        with self._keeping:
            if exchange.header.api_key != ApiKey.WRITE_TXN_MARKERS or not self._keeps[kind]:
                return False
            self._keeps[kind], self._kept = False, (to, exchange)
            return True
