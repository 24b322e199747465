"""One connection to the listener of another broker, opened when it is needed and again when lost.

Used by one thread; only `interrupt` may come from another. Never retries, and decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from plog.client.connection import Connection
from plog.cluster.controller_context import LiveBroker
from plog.errors import BrokerNotAvailable, NetworkException
from plog.protocol.schema import Struct

R = TypeVar("R", bound=Struct)

CLIENT_ID = "plog-broker-{}"
MAX_DIGITS = 10
"""Of a broker id, which is an int32."""


def broker_of(client_id: str) -> int | None:
    """Return the broker that a request names as its sender, if it names one."""
    prefix, _, number = client_id.rpartition("-")
    is_broker = prefix == CLIENT_ID.rpartition("-")[0] and number.isascii() and number.isdecimal()
    return int(number) if is_broker and len(number) <= MAX_DIGITS else None


class Address(NamedTuple):
    """Where a broker listens for other brokers."""

    host: str
    port: int


def address_of(broker: LiveBroker, listener: str) -> Address:
    """Return where a broker listens for other brokers. Raises BrokerNotAvailable."""
    for end in broker.endpoints:
        if end.listener == listener:
            return Address(end.host, end.port)
    raise BrokerNotAvailable(f"broker {broker.id} has no listener {listener}")


class PeerLink:
    """A way to one broker.

    Args:
        broker_id: this broker, for the other's logs.
        address: returns where the other broker listens now. Raises KafkaError: it is not known.
        timeout_ms: how long a response may take.
    """

    def __init__(self, broker_id: int, address: Callable[[], Address], *, timeout_ms: int) -> None:
        self._client_id = CLIENT_ID.format(broker_id)
        self._address = address
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._at: Address | None = None
        self._is_closed = False

    def call(self, request: Struct, response: type[R], *, at_most: int | None = None) -> R:
        """Send a request and return the response; the connection is closed if there is none.

        Args:
            at_most: the highest version, where brokers send each other newer ones than clients.

        Raises:
            NetworkException, RequestTimedOut: the other broker may have obeyed or not.
            UnsupportedVersion: it does not serve the request.
        """
        connection = self._connected()
        try:
            version = connection.version_for(type(request), at_most=at_most)
            return connection.call(request, response, version=version)
        except Exception:
            self._disconnect()
            raise

    def version_for(self, request: type[Struct], *, at_most: int) -> int:
        """Return the version in which `call` would send a request. Raises as it."""
        return self._connected().version_for(request, at_most=at_most)

    def interrupt(self) -> None:
        """Have the call under way fail, and any later one. From any thread."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.interrupt()

    def close(self) -> None:
        """Close the connection. For the thread of the calls."""
        with self._lock:
            self._is_closed = True
        self._disconnect()

    def _connected(self) -> Connection:
        address = self._address()
        if self._connection is not None and (self._at != address or not self._connection.is_usable):
            self._disconnect()
        if self._connection is None:
            self._at = address
            made = Connection(
                *address,
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
                opened=self._opened,
            )
            self._connection = made
        return self._connection

    def _opened(self, connection: Connection) -> None:
        with self._lock:
            self._connection = connection
            if self._is_closed:
                raise NetworkException(f"connection to {connection.peer}: closed")

    def _disconnect(self) -> None:
        with self._lock:
            gone, self._connection = self._connection, None
        if gone is not None:
            gone.close()
