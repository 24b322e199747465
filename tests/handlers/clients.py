"""Clients that send one request each, and see whether it is answered."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

from plog.protocol import framing
from plog.protocol.schema import Struct
from tests.handlers.running import decoded, framed, receive
from tests.handlers.wire import WAIT_MS


class Clients:
    """Connections to a port of this host."""

    def __init__(self, port: int) -> None:
        self._address = "127.0.0.1", port
        self._sockets: dict[socket.socket, tuple[Struct, int]] = {}

    def send(self, request: Struct, version: int) -> None:
        """Send a request by a connection of its own."""
        client = socket.create_connection(self._address, WAIT_MS / 1000)
        self._sockets[client] = request, version
        client.sendall(framed(request, version, 1))

    def close(self) -> None:
        """Close the connections, without a look at the answers."""
        for client in self._sockets:
            client.close()

    @property
    def answered(self) -> int:
        """How many have been."""
        return len(select.select(list(self._sockets), [], [], 0)[0])

    def receive(self) -> list[Any]:
        """Return the answers, in the order of the requests."""
        found = []
        for client, (request, version) in self._sockets.items():
            response = framing.response_class(type(request).api.key)
            assert response is not None
            found.append(decoded(response, version, receive(client)))
            client.close()
        return found


def ask_alone(port: int, request: Struct, version: int) -> list[Any]:
    """Return the answer to one request."""
    client = Clients(port)
    client.send(request, version)
    return client.receive()


def codes_of(answer: Struct) -> Iterator[int]:
    """Return all error codes of an answer, wherever they are."""
    for name in type(answer).__annotations__:
        value = getattr(answer, name)
        if name in ("error_code", "partition_error_code"):
            yield value
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Struct):
                yield from codes_of(one)
